"""Named schemes: what each operator is split along, and what falls back."""

from __future__ import annotations

from typing import Any

import pytest

from tensoropt import examples
from tensoropt.cluster import Cluster, Mesh
from tensoropt.cost import Optimizer, Precision
from tensoropt.cost.assignment import Assignment
from tensoropt.cost.evaluate import evaluate
from tensoropt.cost.model import CostModel
from tensoropt.cost.tables import Tables
from tensoropt.graph import Graph
from tensoropt.schemes import NamedScheme, SchemeBuilder, Schemes, named_schemes
from tensoropt.sharding.decisions import decisions
from tensoropt.sharding.dims import micro_batch

LINE = Cluster.parse("8xA100-SXM-80GB").meshes()[0]
SQUARE = Cluster.parse("2x4xA100-SXM-80GB").meshes()[0]
SMALL: dict[str, Any] = {"batch_size": 16, "sequence_length": 64, "layers": 2}


def on(graph: Graph, mesh: Mesh = LINE, m: int = 1) -> Schemes:
    return SchemeBuilder(decisions(micro_batch(graph, m)), m).on(mesh)


def pick(schemes: Schemes, name: str) -> NamedScheme:
    return {s.name: s for s in schemes.schemes}[name]


def labels(graph: Graph, assignment: Assignment) -> dict[str, tuple[str, ...]]:
    return {graph.operators[p].name: found for p, found in assignment.operators.items()}


def test_names_on_one_level() -> None:
    found = on(examples.named("gpt2", heads=8, hidden=512, **SMALL))
    assert [s.name for s in found.schemes] == [
        "data parallel",
        "ZeRO-1",
        "ZeRO-2",
        "ZeRO-3",
        "tensor parallel 8",
        "tensor parallel 8 with sequence parallel",
    ]
    assert found.left_out == ()


def test_tensor_parallel_takes_the_fast_links_first() -> None:
    names = {
        s.name for s in on(examples.named("gpt2", heads=8, hidden=512, **SMALL), SQUARE).schemes
    }
    assert "tensor parallel 4 x data 2, ZeRO-1" in names
    assert "tensor parallel 8" in names
    # Two ranks across nodes while four inside do something else: nobody does that.
    assert not any(name.startswith("tensor parallel 2") for name in names)


def test_equal_axes_of_one_level_are_left_to_coarser_meshes() -> None:
    cluster = Cluster.parse("8xA100-SXM-80GB")
    graph = examples.named("gpt2", heads=8, hidden=512, **SMALL)
    by_mesh = {str(mesh): {s.name for s in on(graph, mesh).schemes} for mesh in cluster.meshes()}
    assert "data parallel" in by_mesh["8"]
    assert "tensor parallel 2 x data 4" in by_mesh["2x4"]
    assert "tensor parallel 4 x data 2" in by_mesh["2x4"]
    assert "data parallel" not in by_mesh["2x4"]
    assert by_mesh["2x2x2"] == set()


def test_megatron_labels_of_a_gpt_layer() -> None:
    graph = examples.named("gpt2", heads=8, hidden=512, **SMALL)
    found = on(graph)
    plain = labels(graph, pick(found, "tensor parallel 8").assignment)
    split = labels(graph, pick(found, "tensor parallel 8 with sequence parallel").assignment)
    for name, label, in_sequence in [
        ("embeddings.token", "v", "v"),
        ("embeddings.position", "", "i0"),
        ("layers.1.norm1", "", "m1"),
        ("layers.1.attention.query", "n", "n"),
        ("layers.1.attention.attention", "hk", "hk"),
        ("layers.1.attention.output", "k", "k"),
        ("layers.1.add", "", "d1"),
        ("layers.1.norm2", "", "m1"),
        ("layers.1.mlp.up", "n", "n"),
        ("layers.1.mlp.gelu", "d2", "d2"),
        ("layers.1.mlp.down", "k", "k"),
        ("norm", "", "m1"),
        ("head", "n", "n"),
        ("loss", "c", "c"),
    ]:
        assert (plain[name], split[name]) == ((label,), (in_sequence,)), name


def test_gated_and_grouped_layers() -> None:
    graph = examples.named("llama-3-8b", **SMALL)
    found = labels(graph, pick(on(graph), "tensor parallel 8").assignment)
    assert found["layers.0.mlp.gate"] == found["layers.0.mlp.up"] == ("n",)
    assert found["layers.0.mlp.down"] == ("k",)
    assert found["layers.0.attention.key"] == ("n",)
    # Rotary positions: the halves of a head stay together.
    rotated = [o for o in graph.operators if o.source == "layers.0.attention"]
    assert {o.family for o in rotated} >= {"slice", "concat", "elementwise"}
    for operator in rotated:
        if operator.family in ("slice", "concat", "elementwise"):
            assert found[operator.name] == ("d1",), operator.name


def test_heads_that_do_not_divide_stay_whole_and_say_so() -> None:
    graph = examples.named("gpt2-xl", **SMALL)
    scheme = pick(on(graph), "tensor parallel 8")
    found = labels(graph, scheme.assignment)
    assert found["layers.0.attention.query"] == found["layers.0.attention.output"] == ("",)
    assert found["layers.0.mlp.up"] == ("n",)
    assert any("has size 25" in note for note in scheme.notes)


def test_a_dense_layer_before_a_norm_stays_whole() -> None:
    """BERT's head: the norm that follows needs the whole width."""
    graph = examples.named("bert-large", **SMALL)
    scheme = pick(on(graph), "tensor parallel 8")
    found = labels(graph, scheme.assignment)
    assert found["head.dense"] == ("",)
    assert found["head.decoder"] == ("n",)
    assert found["embeddings.type"] == ("",)


def test_post_norm_residuals_in_sequence() -> None:
    """Gathered once for query, key and value; the residual addition slices it.

    It is kept as gathered: up to the addition others run, beside which it would lie in any case.
    """
    graph = examples.named("bert-large", **SMALL)
    scheme = pick(on(graph), "tensor parallel 8 with sequence parallel").assignment
    assert scheme.tensors["layers.0.norm2"] == (1,)
    assert labels(graph, scheme)["layers.1.add"] == ("d1",)
    gathered = {tensor for tensor, reader, _ in scheme.regathered if reader is None}
    assert "layers.0.norm2" not in gathered


def test_experts() -> None:
    graph = examples.named("mixtral-8x7b", **SMALL)
    found = on(graph)
    expert = pick(found, "data parallel with expert parallel, ZeRO-3").assignment
    named = labels(graph, expert)
    assert named["layers.0.moe.moe_dispatch"] == named["layers.0.moe.moe_combine"] == ("t",)
    assert named["layers.0.moe.experts.up.matmul"] == ("b0",)
    assert named["layers.0.attention.query"] == ("m0",)
    assert expert.schemes["layers.0.moe.experts.up"].name == "ddp"
    assert expert.schemes["layers.0.attention.query.weight"].name == "zero3"
    tensor = labels(graph, pick(found, "tensor parallel 8").assignment)
    # Products of all experts by columns and rows; the sum travels on to the tokens.
    assert tensor["layers.0.moe.experts.up.matmul"] == ("n",)
    assert tensor["layers.0.moe.experts.down.matmul"] == ("k",)
    assert tensor["layers.0.moe.moe_combine"] == ("~0",)
    assert tensor["layers.0.moe.router"] == ("",)


def test_convolutions() -> None:
    graph = examples.named("resnet-18", batch_size=32)
    found = on(graph)
    data = pick(found, "data parallel").assignment
    assert {label for (label,) in labels(graph, data).values()} <= {"b", "d0", "m0", "r0"}
    channels = labels(graph, pick(found, "tensor parallel 8").assignment)
    kinds = {o.name: o.family for o in graph.operators}
    assert {channels[n] for n, f in kinds.items() if f == "convolution"} == {
        ("co",),
        ("ci",),
        ("",),
    }
    reasons = {left.name: left.reason for left in found.left_out}
    assert "sequence" in reasons["tensor parallel 8 with sequence parallel"]


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "lstm", "vit-b", "unet"])
def test_zero_shards_over_data_axes_only(name: str) -> None:
    sizes = {"batch_size": 16} | ({"layers": 2} if name not in ("unet", "lstm") else {})
    graph = examples.named(name, **sizes)
    for scheme in on(graph, SQUARE).schemes:
        states = scheme.assignment.parameter_states(decisions(graph))
        for parameter, kept in scheme.assignment.schemes.items():
            data = (0,) if scheme.name.startswith("tensor parallel 4") else (0, 1)
            assert set(kept.axes) <= set(data)
            assert all(states[parameter][axis] < 3 for axis in kept.axes)
            assert (kept.name == "ddp") == (kept.axes == ())


def test_batches_that_do_not_split_are_left_out_with_a_reason() -> None:
    found = on(examples.named("gpt2", **(SMALL | {"batch_size": 4})))
    reasons = {left.name: left.reason for left in found.left_out}
    assert reasons["data parallel"] == "the batch of a micro-batch of 4 does not split 8 ways"
    assert "ZeRO-3" in reasons
    assert {s.name.split()[0] for s in found.schemes} == {"tensor"}


def test_recomputation_doubles_the_list() -> None:
    graph = examples.named("gpt2", **SMALL)
    builder = SchemeBuilder(decisions(graph), 1)
    both = builder.on(LINE, (False, True)).schemes
    assert len(both) == 2 * len(builder.on(LINE).schemes)
    assert {s.assignment.recompute for s in both} == {(False, False), (True, True)}


def test_without_blocks_there_is_nothing_to_recompute() -> None:
    graph = examples.named("gpt2", **SMALL).with_blocks(())
    builder = SchemeBuilder(decisions(graph), 1)
    assert len(builder.on(LINE, (False, True)).schemes) == len(builder.on(LINE).schemes)


def test_schemes_of_tables() -> None:
    cluster = Cluster.parse("8xA100-SXM-80GB")
    graph = micro_batch(examples.named("gpt2", **SMALL), 2)
    model = CostModel(cluster, LINE, Precision.named("bf16"), Optimizer.named("adamw"), 2)
    tables = Tables(model, decisions(graph), recomputable=True)
    found = named_schemes(tables)
    assert {a.micro_batches for _, a in found} == {2}
    assert {any(a.recompute) for _, a in found} == {False, True}
    for _, assignment in found:
        assignment.check(tables.decisions)
        assert evaluate(model, tables.decisions, assignment).time_s > 0
