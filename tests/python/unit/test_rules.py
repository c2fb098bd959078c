"""What sharding rules say, family by family; that it is true is checked by execution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.errors import ShardingError
from tensoropt.examples import named
from tensoropt.graph import FAMILIES, Graph, GraphBuilder, Operator, Tensor, TensorKind
from tensoropt.sharding.families.layout import groups
from tensoropt.sharding.rule import Collective, Extent, Rule
from tensoropt.sharding.rules import RULES, rule_for

Shape = tuple[int, ...]
Spec = Shape | Tensor | None


def rule(family: str, operands: list[Spec], results: list[Spec], **attributes: Any) -> Rule:
    """Rule of one operator; operands given as shapes are activations that need a gradient."""
    tensors: dict[str, Tensor] = {}

    def add(name: str, spec: Spec, kind: TensorKind) -> str:
        if spec is None:
            return ""
        tensor = spec if isinstance(spec, Tensor) else Tensor(name, spec, kind=kind)
        tensors[tensor.name] = tensor if kind == "input" else replace(tensor, kind=kind)
        return tensor.name

    inputs = tuple(add(f"x{i}", s, "input") for i, s in enumerate(operands))
    outputs = tuple(add(f"y{i}", s, "activation") for i, s in enumerate(results))
    operator = Operator("it", family, inputs, outputs, attributes)
    tensors["loss"] = Tensor("loss", ())
    loss = Operator("loss", "opaque", outputs[:1], ("loss",))
    graph = Graph("test", tensors, (operator, loss), "loss", 1)
    return rule_for(graph, operator)


def roles(found: Rule) -> dict[str, tuple[int, str]]:
    return {dim.name: (dim.size, dim.role) for dim in found.dims}


def parameter(name: str, shape: Shape, padded: Shape = ()) -> Tensor:
    return Tensor(name, shape, kind="parameter", padded_dims=padded)


def constant(name: str, shape: Shape, dtype: str = "int64") -> Tensor:
    return Tensor(name, shape, dtype, "input", requires_grad=False)


def test_every_family_has_a_rule() -> None:
    assert set(RULES) == set(FAMILIES)


def test_a_family_without_a_rule_is_named() -> None:
    graph = named("lstm")
    with pytest.raises(ShardingError, match="'x' has family 'unheard_of' without a sharding rule"):
        rule_for(graph, Operator("x", "unheard_of", (), ()))


@pytest.mark.parametrize(
    "model",
    ["gpt2", "llama-3-8b", "mixtral-8x7b", "bert-base", "vit-b", "resnet-50", "lstm", "unet"],
)
def test_rules_are_well_formed(model: str) -> None:
    graph = named(model)
    for operator in graph.operators:
        found = rule_for(graph, operator)
        names = [dim.name for dim in found.dims]
        assert len(set(names)) == len(names)
        operands = graph.operands(operator)
        tensors = [*operands, *graph.results(operator)]
        labels = [*found.inputs, *found.outputs]
        assert len(labels) == len(tensors)
        for tensor, own in zip(tensors, labels, strict=True):
            assert len(own) == (0 if tensor is None else len(tensor.shape))
            given = [name for name in own if name]
            assert len(set(given)) == len(given)
            for dim, name in enumerate(own):
                if name is not None:
                    assert tensor is not None
                    assert found.dim(name).size > 1
                    assert tensor.shape[dim] % found.dim(name).size == 0
        assert set(names) == {name for own in labels for name in own if name}
        assert found.flops >= 0
        assert found.backward_flops >= 0
        sizes = {dim.name: dim.size for dim in found.dims}
        extents = [*found.saved_extra, *(c.extent for c in found.collectives)]
        assert all(extent.elements(sizes) > 0 for extent in extents)
        assert all(c.dim in names for c in found.collectives)
        assert all(p < len(operands) for s in found.linear for p in s)
        for position in found.saved_inputs:
            saved = operands[position]
            assert saved is not None
            assert saved.kind in ("activation", "input")
        if not any(t is not None and t.requires_grad for t in operands):
            assert not found.saved_inputs + found.saved_outputs + found.saved_extra
            assert found.backward_flops == 0


# Contractions.


def test_linear() -> None:
    weight, bias = parameter("w", (16, 8)), parameter("b", (16,))
    found = rule("linear", [(4, 2, 8), weight, bias], [(4, 2, 16)], weight="nk")
    assert roles(found) == {
        "m0": (4, "free"),
        "m1": (2, "free"),
        "k": (8, "reduction"),
        "n": (16, "free"),
    }
    assert found.inputs == (("m0", "m1", "k"), ("n", "k"), ("n",))
    assert found.outputs == (("m0", "m1", "n"),)
    assert found.bias == 2
    assert found.flops == 2 * 8 * 8 * 16
    assert found.backward_flops == 2 * found.flops
    assert found.saved_inputs == (0,)
    assert found.alignment == ("k", "n")


def test_linear_without_bias_on_data_computes_no_gradient_of_the_data() -> None:
    data = constant("x0", (4, 8), "float32")
    found = rule("linear", [data, parameter("w", (8, 16))], [(4, 16)], weight="kn")
    assert found.inputs == (("m0", "k"), ("k", "n"))
    assert found.bias is None
    assert found.backward_flops == found.flops


def test_a_frozen_weight_keeps_no_operand() -> None:
    frozen = Tensor("w", (16, 8), kind="buffer", requires_grad=False)
    found = rule("linear", [(4, 8), frozen], [(4, 16)], weight="nk")
    assert found.saved_inputs == ()
    assert found.backward_flops == found.flops


def test_padding_needs_the_result_to_allow_it() -> None:
    weight = parameter("w", (7, 8), (0,))
    plain = rule("linear", [(4, 8), weight], [(4, 7)], weight="nk")
    assert not plain.dim("n").padded
    result = Tensor("y0", (4, 7), padded_dims=(1,))
    padded = rule("linear", [(4, 8), weight], [result], weight="nk")
    assert padded.dim("n").padded
    assert not padded.dim("m0").padded


def test_a_sum_over_a_padded_dim_is_not_padded() -> None:
    padded = Tensor("x0", (4, 7), kind="input", padded_dims=(1,))
    assert not rule("reduce", [padded], [(4,)], op="sum", dims=[1]).dim("d1").padded


def test_matmul_broadcasts() -> None:
    found = rule("matmul", [(1, 4, 8, 16), (2, 1, 16, 32)], [(2, 4, 8, 32)])
    assert found.inputs == ((None, "b1", "m", "k"), ("b0", None, "k", "n"))
    assert found.outputs == (("b0", "b1", "m", "n"),)
    # Both operands are copied before they are multiplied.
    assert found.saved_inputs == ()
    assert {extent.dims for extent in found.saved_extra} == {
        ("b0", "b1", "m", "k"),
        ("b0", "b1", "k", "n"),
    }


def test_experts_keep_only_what_is_no_weight() -> None:
    found = rule("matmul", [(8, 4, 16), parameter("w", (8, 16, 32))], [(8, 4, 32)])
    assert found.saved_inputs == (0,)
    assert found.flops == 2 * 8 * 4 * 16 * 32


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("bshd,bthd->bhst", {"b": "free", "s": "free", "h": "free", "d": "reduction", "t": "free"}),
        ("bshd,bthd", {"b": "reduction", "s": "free", "h": "reduction", "d": "reduction",
                       "t": "free"}),
    ],
)  # fmt: skip
def test_einsum_roles(equation: str, expected: dict[str, str]) -> None:
    result = (2, 3, 4, 4) if "->" in equation else (4, 4)
    found = rule("einsum", [(2, 4, 3, 8), (2, 4, 3, 8)], [result], equation=equation)
    assert {dim.name: dim.role for dim in found.dims} == expected
    assert found.flops == 2 * 2 * 3 * 4 * 4 * 8


def test_einsum_fixes_a_diagonal_and_spells_out_an_ellipsis() -> None:
    found = rule("einsum", [(4, 4, 6), (6,)], [(4, 6)], equation="aab,b->ab")
    assert found.inputs[0] == (None, None, "b")
    found = rule("einsum", [(2, 3, 4), (4, 5)], [(2, 3, 5)], equation="...ij,jk->...ik")
    assert [dim.size for dim in found.dims] == [2, 3, 4, 5]


# Attention, normalisation, losses.


def test_attention_shards_whole_groups_of_heads() -> None:
    q, kv = (2, 8, 16, 4), (2, 2, 16, 4)
    found = rule("attention", [q, kv, kv], [q], causal=True, scale=0.5, dropout=0.0)
    assert roles(found) == {"b": (2, "free"), "hk": (2, "free"), "s": (16, "free")}
    assert found.inputs[0] == ("b", "hk", "s", None)
    assert found.inputs[1] == found.inputs[2] == ("b", "hk", None, None)
    assert found.flops == 4 * 2 * 8 * 16 * 16 * 4 / 2
    assert found.backward_flops == 2.5 * found.flops
    assert found.saved_inputs == (0, 1, 2)
    assert found.saved_outputs == (0,)
    assert found.saved_extra == (Extent(("b", "hk", "s"), 4, "float32"),)
    assert "causal" in found.note


def test_the_group_is_sharded_where_there_is_one_key_value_head() -> None:
    found = rule("attention", [(2, 8, 4, 4), (2, 1, 6, 4), (2, 1, 6, 4)], [(2, 8, 4, 4)])
    assert found.inputs == (
        ("b", "group", "s", None),
        ("b", None, None, None),
        ("b", None, None, None),
    )
    assert found.flops == 4 * 2 * 8 * 4 * 6 * 4
    assert not found.note


def test_attention_masks_broadcast() -> None:
    q = (2, 4, 8, 4)
    mask = constant("mask", (2, 1, 1, 8), "float32")
    assert rule("attention", [q, q, q, mask], [q]).inputs[3] == ("b", None, None, None)
    # A learned bias is read by every sample, is kept, and has a gradient.
    found = rule("attention", [q, q, q, (1, 4, 8, 8)], [q])
    assert found.inputs[3] == (None, "hk", "s", None)
    assert found.saved_inputs == (0, 1, 2, 3)


def test_layer_norm_keeps_statistics_of_every_row() -> None:
    affine: list[Spec] = [parameter("w", (16,)), parameter("b", (16,))]
    found = rule("layer_norm", [(4, 8, 16), *affine], [(4, 8, 16)], dims=1, kind="layer")
    assert found.inputs == (("m0", "m1", None), (None,), (None,))
    assert found.saved_extra == (Extent(("m0", "m1"), 2, "float32"),)
    found = rule("layer_norm", [(4, 8, 16), affine[0]], [(4, 8, 16)], dims=1, kind="rms")
    assert found.saved_extra == (Extent(("m0", "m1"), 1, "float32"),)


def test_batch_norm_adds_its_sums_inside() -> None:
    found = rule("batch_norm", [(4, 8, 6, 1), parameter("w", (8,))], [(4, 8, 6, 1)], eps=1e-5)
    assert roles(found) == {"b": (4, "internal"), "c": (8, "free"), "s0": (6, "internal")}
    sums = Extent(("c",), 2, "float32")
    assert set(found.collectives) == {
        Collective(dim, "all_reduce", sums, phase) for dim in ("b", "s0")
        for phase in ("forward", "backward")
    }  # fmt: skip


def test_batch_norm_of_data_has_no_backward_collective() -> None:
    data = constant("x0", (4, 8), "float32")
    found = rule("batch_norm", [data, parameter("w", (8,))], [(4, 8)], eps=1e-5)
    assert [c.phase for c in found.collectives] == ["forward"]


def test_cross_entropy() -> None:
    targets = constant("t", (4, 6))
    logits = Tensor("x0", (4, 6, 7), kind="input", padded_dims=(2,))
    found = rule("cross_entropy", [logits, targets], [()], dim=2, reduction="mean")
    assert roles(found) == {"r0": (4, "reduction"), "r1": (6, "reduction"), "c": (7, "internal")}
    assert found.dim("c").padded
    assert found.inputs == (("r0", "r1", "c"), ("r0", "r1"))
    count = Extent((), 1, "float32")
    assert found.collectives == (
        Collective("r0", "all_reduce", count),
        Collective("r1", "all_reduce", count),
        Collective("c", "all_reduce", Extent(("r0", "r1"), 1, "float32"), count=3),
    )
    assert found.saved_extra == (Extent(("r0", "r1", "c"), 1, "float32"),)
    assert found.saved_inputs == (1,)
    assert (
        len(rule("cross_entropy", [logits, targets], [()], dim=2, reduction="sum").collectives) == 1
    )


def test_embedding() -> None:
    ids, table = constant("ids", (4, 6)), parameter("w", (7, 8), (0,))
    found = rule("embedding", [ids, table], [(4, 6, 8)], padding_idx=None)
    assert found.dim("v").role == "reduction"
    assert found.dim("v").padded
    assert found.inputs == (("i0", "i1"), ("v", "h"))
    assert found.saved_inputs == (0,)


# Elementwise and reductions.


@pytest.mark.parametrize(
    ("op", "count", "attributes", "linear"),
    [
        ("add", 2, {}, [{0, 1}]),
        ("add", 1, {"scalars": [1.0]}, []),
        ("mul", 2, {}, [{0}, {1}]),
        ("scale", 1, {"scalars": [2.0]}, [{0}]),
        ("div", 2, {}, [{0}]),
        ("neg", 1, {}, [{0}]),
        ("gelu", 1, {}, []),
        ("maximum", 2, {}, []),
        ("unheard_of", 1, {}, []),
    ],
)
def test_which_operands_may_be_pending_sums(
    op: str, count: int, attributes: dict[str, Any], linear: list[set[int]]
) -> None:
    found = rule("elementwise", [(4, 4)] * count, [(4, 4)], op=op, **attributes)
    assert list(found.linear) == linear


def test_integers_are_never_pending_sums() -> None:
    found = rule("elementwise", [constant("a", (4,))], [constant("b", (4,))], op="neg")
    assert found.linear == ()


@pytest.mark.parametrize(
    ("op", "count", "inputs", "outputs"),
    [
        ("add", 2, (), ()),
        ("gelu", 1, (0,), ()),
        ("relu", 1, (), (0,)),
        ("mul", 2, (0, 1), ()),
        ("div", 2, (0, 1), ()),
        ("unheard_of", 2, (0, 1), (0,)),
    ],
)
def test_what_elementwise_operators_keep(
    op: str, count: int, inputs: Shape, outputs: Shape
) -> None:
    found = rule("elementwise", [(4, 4)] * count, [(4, 4)], op=op)
    assert (found.saved_inputs, found.saved_outputs) == (inputs, outputs)


def test_a_product_keeps_only_what_another_gradient_needs() -> None:
    table = constant("cos", (4, 4), "float32")
    assert rule("elementwise", [(4, 4), table], [(4, 4)], op="mul").saved_inputs == (1,)
    fixed = Tensor("table", (4, 4), kind="parameter", requires_grad=False)
    assert rule("elementwise", [(4, 4), fixed], [(4, 4)], op="mul").saved_inputs == ()


def test_broadcast_operands_lack_the_dim() -> None:
    found = rule("elementwise", [(4, 6), (6,), (4, 1), ()], [(4, 6)], op="addcmul")
    assert found.inputs == (("d0", "d1"), ("d1",), ("d0", None), ())


def test_a_triangle_is_fixed_in_its_last_two_dims() -> None:
    assert rule("elementwise", [(2, 4, 4)], [(2, 4, 4)], op="tril").inputs == (("d0", None, None),)


def test_dropout_keeps_a_bool_for_each_element() -> None:
    found = rule("dropout", [(4, 6)], [(4, 6)], p=0.1)
    assert found.saved_extra == (Extent(("d0", "d1"), 1, "bool"),)
    assert rule("dropout", [(4, 6)], [(4, 6)], p=0.0).alias


def test_reductions_are_pending_sums_only_where_they_add() -> None:
    total = rule("reduce", [(4, 6)], [(4,)], op="sum", dims=[-1])
    assert roles(total) == {"d0": (4, "free"), "d1": (6, "reduction")}
    assert total.linear == (frozenset({0}),)
    largest = rule("reduce", [(4, 6)], [(4, 1)], op="max", dims=[1], keepdim=True)
    assert roles(largest) == {"d0": (4, "free")}
    assert largest.outputs == (("d0", None),)
    assert (largest.saved_inputs, largest.saved_outputs) == ((0,), (0,))


# Layout.


def _shape(factors: list[int], cuts: list[bool]) -> tuple[int, ...]:
    """Multiply neighbouring factors where there is no cut; a cut beside a cut leaves a 1."""
    shape = [1]
    for factor, cut in zip(factors, cuts, strict=True):
        shape[-1] *= factor
        if cut:
            shape.append(1)
    return tuple(shape)


_CUTS = st.lists(st.booleans(), min_size=6, max_size=6)


@given(st.permutations([2, 2, 2, 3, 3, 1]), st.permutations([2, 2, 2, 3, 3, 1]), _CUTS, _CUTS)
def test_shards_of_a_view_are_views_of_shards(
    left: list[int], right: list[int], cuts: list[bool], others: list[bool]
) -> None:
    before, after = _shape(left, cuts), _shape(right, others)
    full = np.arange(np.prod(before)).reshape(before)
    found = rule("view", [before], [after])
    for dim in found.dims:
        i, j = found.inputs[0].index(dim.name), found.outputs[0].index(dim.name)
        for parts in (p for p in range(2, dim.size + 1) if dim.size % p == 0):
            shape = [*after]
            shape[j] //= parts
            pieces = [part.reshape(shape) for part in np.split(full, parts, i)]
            assert np.array_equal(np.concatenate(pieces, j), full.reshape(after))


def test_groups_of_a_reshape() -> None:
    assert groups((4, 16, 8), (64, 8)) == [(0, 0), (2, 1)]
    assert groups((1, 6, 4), (4, 1, 6)) == [(1, 0)]
    assert groups((), (1,)) == []
    assert groups((0, 4), (2, 0)) == []


def test_views_take_no_memory_and_copies_do() -> None:
    assert rule("view", [(4, 6)], [(24,)]).alias
    assert rule("transpose", [(4, 6)], [(6, 4)], perm=[1, 0]).outputs == (("d1", "d0"),)
    assert rule("split", [(4, 6)], [(4, 2), (4, 4)], dim=1, sizes=[2, 4]).alias
    joined = rule("concat", [(4, 2), (4, 4)], [(4, 6)], dim=1)
    assert not joined.alias
    assert joined.linear == (frozenset({0, 1}),)


def test_padding_with_something_else_than_zero_is_not_linear() -> None:
    pads = [[0, 0], [1, 1]]
    assert rule("pad", [(4, 4)], [(4, 6)], pads=pads, value=0.0).linear == (frozenset({0}),)
    assert rule("pad", [(4, 4)], [(4, 6)], pads=pads, value=1.0).linear == ()
    assert rule("pad", [(4, 4)], [(4, 6)], pads=pads, value=0.0).inputs == (("d0", None),)


# Images, recurrence, experts.


def test_convolution_shards_an_image_only_if_windows_tile_it() -> None:
    weight = parameter("w", (8, 3, 4, 4))
    attributes = {"padding": [0, 0], "dilation": [1, 1], "groups": 1}
    found = rule(
        "convolution", [(2, 3, 16, 16), weight], [(2, 8, 4, 4)], stride=[4, 4], **attributes
    )
    assert found.inputs[0] == ("b", "ci", "s0", "s1")
    assert found.dim("s0").size == 4
    assert found.flops == 2 * 2 * 8 * 16 * 3 * 16
    found = rule(
        "convolution", [(2, 3, 16, 16), weight], [(2, 8, 7, 7)], stride=[2, 2], **attributes
    )
    assert found.inputs[0] == ("b", "ci", None, None)


def test_grouped_convolution_shards_whole_groups() -> None:
    found = rule("convolution", [(2, 8, 6), parameter("w", (16, 2, 3))], [(2, 16, 4)], groups=4)
    assert roles(found) == {"b": (2, "free"), "g": (4, "free")}
    assert found.inputs == (("b", "g", None), ("g", None, None))


def test_global_average_pooling_is_a_mean() -> None:
    found = rule("pool", [(2, 4, 8)], [(2, 4, 1)], mode="avg", kernel=[8], **{"global": True})
    assert found.dim("s0").role == "reduction"
    assert found.saved_inputs == ()


def test_a_maximum_remembers_where_it_was() -> None:
    found = rule("pool", [(2, 4, 8)], [(2, 4, 4)], mode="max", kernel=[2], stride=[2])
    assert found.saved_extra == (Extent(("b", "c", "s0"), 1, "int64"),)


def test_lstm_reserves_gates_and_states() -> None:
    weights: list[Spec] = [parameter("wi", (32, 6)), parameter("wh", (32, 8))]
    state = (1, 4, 8)
    attributes = {"hidden": 8, "layers": 1, "batch_first": True, "cell": "lstm"}
    found = rule("lstm", [(4, 5, 6), *weights], [(4, 5, 8), state, state], **attributes)
    assert found.inputs == (("b", None, None), (None, None), (None, None))
    assert found.outputs == (("b", None, None), (None, "b", None), (None, "b", None))
    assert found.flops == 2 * 4 * 5 * 32 * (6 + 8)
    assert found.backward_flops == 2 * found.flops
    assert found.saved_extra == (Extent(("b",), 5 * 6 * 8),)


def test_tokens_are_sharded_with_slots() -> None:
    indices = constant("i", (16, 2))
    found = rule("moe_dispatch", [(16, 8), indices], [(4, 8, 8)], experts=4)
    assert roles(found) == {"t": (8, "free"), "e": (4, "free"), "h": (8, "free")}
    assert found.outputs == (("e", "t", "h"),)
    assert found.collectives == ()
    found = rule("moe_combine", [(4, 8, 8), indices, (16, 2)], [(16, 8)])
    assert found.dim("e").role == "reduction"
    assert "balanced" in found.note


def test_what_is_unknown_is_replicated_and_said() -> None:
    found = rule("opaque", [(4, 6)], [(4, 6)], op="fft")
    assert found.dims == ()
    assert "'fft'" in found.note


# Bad input.


@pytest.mark.parametrize(
    ("family", "operands", "results", "attributes", "message"),
    [
        ("linear", [(4, 8)], [(4, 4)], {}, "has 1 operands, expected 2 to 3"),
        ("linear", [(4, 8), (4, 9)], [(4, 4)], {},
         r"operand 1 'x1' has shape \(4, 9\), expected weight 'nk' = \(\*, 8\)"),
        ("linear", [(4, 8), (4, 8), (5,)], [(4, 4)], {}, r"operand 2 'x2' .* expected bias\[n\]"),
        ("linear", [(4, 8), (4, 8)], [(4, 5)], {}, r"result 0 'y0' .* = \(4, 4\)"),
        ("linear", [(4, 8), (4, 8)], [(4, 4)], {"weight": "oi"}, "expected 'nk' or 'kn'"),
        ("matmul", [(4, 8), (9, 4)], [(4, 4)], {}, r"operand 1 'x1' .* expected b"),
        ("matmul", [(2, 4, 8), (3, 8, 4)], [(2, 4, 4)], {}, "do not broadcast"),
        ("einsum", [(2, 3), (4, 5)], [(2, 5)], {"equation": "ab,bc->ac"}, "index 'b' has size 4"),
        ("einsum", [(2, 3)], [(2,)], {"equation": "ab,b->a"}, "has 2 terms for 1 operands"),
        ("convolution", [(2, 3, 8), (4, 2, 3)], [(2, 4, 6)], {}, r"w\[co, ci/groups"),
        ("convolution", [(2, 3, 8), (4, 3, 3)], [(2, 4, 8)], {}, r"image \(8,\), expected \(6,\)"),
        ("pool", [(2, 3, 8)], [(2, 3, 4)], {"mode": "median"}, "expected 'max' or 'avg'"),
        ("layer_norm", [(4, 8)], [(4, 8)], {"dims": 3}, "how many of"),
        ("group_norm", [(4, 8)], [(4, 8)], {"groups": 3}, "expected a divisor of the 8 channels"),
        ("softmax", [(4, 8)], [(4, 8)], {"dim": 2}, r"has dim 2, expected an integer in \[-2, 2\)"),
        ("softmax", [(4, 8)], [(4, 8)], {}, "attribute 'dim' is missing"),
        ("attention", [(2, 3, 4, 4), (2, 2, 4, 4), (2, 2, 4, 4)], [(2, 3, 4, 4)], {},
         "3 query heads and 2 key-value heads"),
        ("attention", [(2, 3, 4, 4)] * 3 + [(5, 4)], [(2, 3, 4, 4)], {}, "a mask that broadcasts"),
        ("cross_entropy", [(4, 8), (5,)], [()], {"dim": 1}, "operand 1 'x1'"),
        ("cross_entropy", [(4, 8), (4,)], [(4,)], {"dim": 1}, "expected a scalar"),
        ("elementwise", [(4, 3), (4, 2)], [(4, 3)], {"op": "add"}, "operand 1 'x1' .* broadcasts"),
        ("reduce", [(4, 3)], [(4,)], {"op": "median", "dims": [1]}, "op='median'"),
        ("view", [(4, 3)], [(4, 4)], {}, "16 elements"),
        ("transpose", [(4, 3)], [(3, 4)], {"perm": [1, 1]}, "a permutation of 2 dims"),
        ("expand", [(4, 3)], [(4, 4)], {}, r"expands to \(4, 4\)"),
        ("concat", [(4, 3), (5, 3)], [(4, 6)], {"dim": 1}, "operand 1 'x1'"),
        ("split", [(4, 3)], [(4, 1), (4, 1)], {"dim": 1, "sizes": [1, 1]}, "add up to 3"),
        ("pad", [(4, 3)], [(4, 4)], {"pads": [[0, 1]]}, "one .before, after. for each"),
        ("gather", [(4, 3), (5, 3)], [(5, 3)], {"dim": 1}, "at most"),
        ("moe_dispatch", [(16, 8), (16, 2)], [(4, 9, 8)], {"experts": 4}, "has 9 slots"),
        ("lstm", [(4, 5, 6)], [(4, 5, 9)], {"hidden": 8, "batch_first": True}, "result 0 'y0'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(
    family: str, operands: list[Spec], results: list[Spec], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShardingError, match=message) as error:
        rule(family, operands, results, **attributes)
    assert str(error.value).startswith(f"operator 'it' ({family}): ")
    assert "\n" not in str(error.value)


def test_rules_work_on_built_graphs() -> None:
    builder = GraphBuilder("tiny")
    x = builder.input("x", (8, 4))
    y = builder.op("linear", (x, builder.parameter("w", (4, 4))), (8, 4), weight="nk")
    z = builder.op("elementwise", (y,), (8, 4), op="relu")
    loss = builder.op("reduce", (z,), (), op="mean", dims=[0, 1], keepdim=False)
    graph = builder.build(loss, 8)
    assert [len(rule_for(graph, o).dims) for o in graph.operators] == [3, 2, 2]


def test_steps_of_a_recurrent_layer_wait_for_each_other() -> None:
    graph = named("lstm", batch_size=64, sequence_length=32)
    [first, *_] = [o for o in graph.operators if o.family == "lstm"]
    rule = rule_for(graph, first)
    hidden = int(first.attributes["hidden"])
    assert rule.serial is not None
    assert rule.serial.steps == 32
    assert rule.serial.elements == 4 * hidden * hidden
    # Half of the work is that of the hidden state where the operand is as wide.
    assert rule.serial.flops == 2.0 * 64 * 32 * 4 * hidden * hidden
    assert rule.serial.flops < rule.flops
