"""Named schemes cost what their papers say, in bytes sent and bytes held.

What the papers leave out and the model has (statistics of normalisations, the log-sum-exp of flash
attention) is added by name, so that every comparison is exact.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tensoropt import examples
from tensoropt.cluster import Cluster, Mesh
from tensoropt.cost import Optimizer, Precision
from tensoropt.cost.evaluate import Evaluation, evaluate
from tensoropt.cost.model import CostModel
from tensoropt.graph import Graph
from tensoropt.schemes import SchemeBuilder
from tensoropt.sharding.decisions import decisions
from tensoropt.sharding.dims import micro_batch

S, B, H, HEADS, V = 64, 16, 128, 8, 1024
SBH = S * B * H


def gpt(layers: int, **changes: Any) -> Graph:
    sizes: dict[str, Any] = {
        "batch_size": B,
        "sequence_length": S,
        "hidden": H,
        "layers": layers,
        "heads": HEADS,
        "vocabulary": V,
        "dropout": 0.1,
    }
    return examples.transformer(**(sizes | changes))


def run(
    graph: Graph, cluster: str, title: str, m: int = 1, redo: bool = False
) -> tuple[Evaluation, Mesh]:
    """Evaluate a named scheme, on whichever mesh has it."""
    whole = Cluster.parse(cluster)
    found = decisions(micro_batch(graph, m))
    builder = SchemeBuilder(found, m)
    for mesh in whole.meshes():
        for scheme in builder.on(mesh, (redo,)).schemes:
            if scheme.name == title:
                model = CostModel(whole, mesh, Precision.named("bf16"), Optimizer.named("adam"), m)
                return evaluate(model, found, scheme.assignment), mesh
    raise AssertionError(f"no scheme {title!r} on {cluster}")


def per_layer(title: str, cluster: str = "8xA100-SXM-80GB", **options: Any) -> float:
    """Bytes that one layer saves: what a third adds to two."""
    saved = [run(gpt(n), cluster, title, **options)[0].saved_bytes for n in (2, 3)]
    return saved[1] - saved[0]


def layer_collectives(found: Evaluation, mesh: Mesh, ways: int) -> Counter[tuple[str, str, int]]:
    """Collectives of layer 1 on the tensor axis, by kind, phase and bytes."""
    counts: Counter[tuple[str, str, int]] = Counter()
    for use in found.collectives:
        inside = use.subject.startswith("layers.1.")
        if inside and mesh.shape[use.axis] == ways and use.why == "redistribution":
            counts[use.kind, use.phase, use.nbytes] += use.count
    return counts


# Communication.


def test_megatron_two_all_reduces_each_way() -> None:
    """arXiv 1909.08053, section 3: two all-reduces forward and two backward in every layer.

    Each of the 2sbh bytes of an activation in 16 bits.
    """
    found, mesh = run(gpt(3), "8xA100-SXM-80GB", "tensor parallel 8")
    # With dropout the row-parallel products of layer 1 are named by the layer itself.
    assert layer_collectives(found, mesh, 8) == {
        ("all_reduce", "forward", 2 * SBH): 2,
        ("all_reduce", "backward", 2 * SBH): 2,
    }


def test_sequence_parallel_gathers_and_scatters() -> None:
    """arXiv 2205.05198, section 4.2.2: each all-reduce becomes all-gather and reduce-scatter.

    The gathered operands of the column-parallel products are not kept: two more all-gathers
    backward.
    """
    found, mesh = run(gpt(3), "8xA100-SXM-80GB", "tensor parallel 8 with sequence parallel")
    counts = layer_collectives(found, mesh, 8)
    # The residual stream between layers is named after the addition that makes it; no traffic.
    assert counts == {
        ("all_gather", "forward", 2 * SBH): 2,
        ("reduce_scatter", "forward", 2 * SBH): 2,
        ("all_gather", "backward", 2 * SBH): 2 + 2,
        ("reduce_scatter", "backward", 2 * SBH): 2,
    }


def test_data_parallel_all_reduces_all_gradients() -> None:
    """Two bytes a parameter in 16 bits, once an iteration whatever the micro-batches."""
    graph = gpt(2, positions="rotary", dropout=0.0, tied=False)
    for m in (1, 2):
        found, _ = run(graph, "8xA100-SXM-80GB", "data parallel", m)
        sync = [use for use in found.collectives if use.why == "gradient sync"]
        assert {use.kind for use in sync} == {"all_reduce"}
        assert sum(use.nbytes * use.count for use in sync) == 2 * graph.parameter_count


def test_zero3_moves_half_as_much_again() -> None:
    """arXiv 1910.02054, section 7.2.2: gathered forward and backward, scattered once: 3 Psi.

    A ring all-reduce is a reduce-scatter and an all-gather: 2 Psi. In bytes of the gathered whole,
    as the conventions here have it, that is 3 x 2 bytes a parameter.
    """
    graph = gpt(2, positions="rotary", dropout=0.0, tied=False)
    found, _ = run(graph, "8xA100-SXM-80GB", "ZeRO-3")
    sent: Counter[tuple[str, str]] = Counter()
    for use in found.collectives:
        if use.why in ("gradient sync", "parameter gather"):
            sent[use.kind, use.phase] += use.nbytes * use.count
    assert sent == {
        ("all_gather", "forward"): 2 * graph.parameter_count,
        ("all_gather", "backward"): 2 * graph.parameter_count,
        ("reduce_scatter", "backward"): 2 * graph.parameter_count,
    }


def test_expert_parallel_two_all_to_alls_each_way() -> None:
    """arXiv 2006.16668, section 3.2: one all-to-all to the experts, one back; again backward."""
    # Large enough that an all-to-all is faster than gathering everything and dropping most.
    tokens, hidden = B * 1024, 2048
    graph = examples.named(
        "mixtral-8x7b", layers=2, batch_size=B, sequence_length=1024, hidden=hidden
    )
    found, _ = run(graph, "8xA100-SXM-80GB", "data parallel with expert parallel")
    local = 2 * (tokens * 2 * hidden) // 8
    sent: Counter[str] = Counter()
    for use in found.collectives:
        if use.subject.startswith("layers.1.") and use.kind == "all_to_all":
            assert use.nbytes == local
            sent[use.phase] += use.count
    # Two products read the routed tokens, which are sent once.
    assert sent == {"forward": 2, "backward": 2}


# Memory.


@pytest.mark.parametrize(
    ("title", "weight", "gradient", "state"),
    [
        ("data parallel", 1, 1, 1),
        ("ZeRO-1", 1, 1, 8),
        ("ZeRO-2", 1, 8, 8),
        ("ZeRO-3", 8, 8, 8),
    ],
)
def test_zero_table(title: str, weight: int, gradient: int, state: int) -> None:
    """arXiv 1910.02054, figure 1, with K = 12: 16 Psi, 4 Psi + 12 Psi / N, 2 Psi + 14 Psi / N."""
    graph = gpt(2)
    psi = graph.parameter_count
    found, _ = run(graph, "8xA100-SXM-80GB", title)
    assert found.weight_bytes == 2 * psi / weight
    assert found.gradient_bytes == 2 * psi / gradient
    assert found.optimizer_bytes == 12 * psi / state


def statistics(ways: int, attention: int) -> float:
    """Two layer norms (mean and deviation in float32) and the log-sum-exp of attention."""
    return 2 * 2 * 4 * S * B / ways + 4 * B * HEADS * S / attention


def test_activations_of_a_layer() -> None:
    """arXiv 2205.05198, equation 1 without the 5as/h of attention, which flash never stores."""
    assert per_layer("data parallel") == (34 * SBH + statistics(1, 1)) / 8


@pytest.mark.parametrize("t", [2, 4, 8])
def test_activations_under_tensor_parallel(t: int) -> None:
    """arXiv 2205.05198, equation 2: sbh (10 + 24 / t)."""
    d = 8 // t
    title = f"tensor parallel {t} x data {d}" if d > 1 else f"tensor parallel {t}"
    expected = SBH * (10 + 24 / t) + statistics(1, t)
    assert per_layer(title) == expected / d


@pytest.mark.parametrize("t", [2, 4, 8])
def test_activations_under_sequence_parallel(t: int) -> None:
    """arXiv 2205.05198, equation 4: 34 sbh / t."""
    d = 8 // t
    title = f"tensor parallel {t} x data {d}" if d > 1 else f"tensor parallel {t}"
    expected = (34 * SBH + statistics(1, 1)) / t
    assert per_layer(f"{title} with sequence parallel") == expected / d


def test_activations_with_full_recomputation() -> None:
    """arXiv 2205.05198, section 5: a layer keeps its input, 2 sbh, or 2 sbh / t in sequence."""
    assert per_layer("data parallel", redo=True) == 2 * SBH / 8
    assert per_layer("tensor parallel 8", redo=True) == 2 * SBH
    assert per_layer("tensor parallel 8 with sequence parallel", redo=True) == 2 * SBH / 8


def test_recomputation_repeats_the_forward_pass() -> None:
    """arXiv 2205.05198, section 5: a third more work in products, collectives forward repeated."""
    kept, mesh = run(gpt(3), "8xA100-SXM-80GB", "tensor parallel 8")
    redone, _ = run(gpt(3), "8xA100-SXM-80GB", "tensor parallel 8", redo=True)
    assert layer_collectives(redone, mesh, 8) == layer_collectives(kept, mesh, 8) + Counter(
        {("all_reduce", "recompute", 2 * SBH): 2}
    )


def test_megatron_states() -> None:
    """Tensor parallel splits all matrices and vocabularies; biases of rows and norms stay whole."""
    graph = gpt(2)
    found, _ = run(graph, "8xA100-SXM-80GB", "tensor parallel 8")
    whole = sum(
        t.size
        for t in graph.parameters
        if "norm" in t.name
        or t.name == "embeddings.position.weight"
        or t.name.endswith(("attention.output.bias", "mlp.down.bias"))
    )
    assert found.weight_bytes == 2 * (whole + (graph.parameter_count - whole) / 8)
