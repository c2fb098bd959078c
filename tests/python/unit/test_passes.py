"""Passes on small graphs built by hand: what they rewrite, and what they leave alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensoropt.graph import GraphBuilder
from tensoropt.importing.draft import Draft
from tensoropt.importing.moves import _normal_form
from tensoropt.importing.passes import mark_vocabulary, simplify
from tensoropt.sharding.rules import rule_for

B, S, H = 4, 6, 8


class Net(GraphBuilder):
    """A builder with the few operators that these tests need."""

    def __init__(self):
        super().__init__("test")
        self.x = self.input("x", (B, S, H))

    def view(self, x, *shape):
        return self.op("view", (x,), shape)

    def transpose(self, x, *perm):
        shape = [self.tensors[x].shape[p] for p in perm]
        return self.op("transpose", (x,), shape, perm=list(perm))

    def linear(self, x, n, name, weight="nk", bias=True):
        k = self.tensors[x].shape[-1]
        w = self.parameter(f"{name}.weight", (n, k) if weight == "nk" else (k, n))
        inputs = (x, w, self.parameter(f"{name}.bias", (n,))) if bias else (x, w)
        return self.op("linear", inputs, (*self.tensors[x].shape[:-1], n), weight=weight)

    def elementwise(self, op, *inputs, **attributes):
        return self.op("elementwise", inputs, self.tensors[inputs[0]].shape, op=op, **attributes)

    def done(self, y):
        dims = list(range(len(self.tensors[y].shape)))
        loss = self.op("reduce", (y,), (), op="mean", dims=dims, keepdim=False)
        graph = simplify(self.build(loss, B))
        for operator in graph.operators:
            rule_for(graph, operator)
        return graph


def families(graph):
    return [o.family for o in graph.operators]


def test_views_and_transposes_compose():
    net = Net()
    y = net.elementwise("relu", net.x)
    y = net.view(net.view(y, B * S, H), B, S, 2, H // 2)
    y = net.transpose(net.transpose(y, 0, 2, 1, 3), 0, 1, 3, 2)
    graph = net.done(net.elementwise("tanh", y))
    assert families(graph) == ["elementwise", "view", "transpose", "elementwise", "reduce"]
    assert graph.operators[2].attributes["perm"] == [0, 2, 3, 1]


def test_what_changes_nothing_vanishes():
    net = Net()
    y = net.transpose(net.transpose(net.view(net.view(net.x, B * S, H), B, S, H), 1, 0, 2), 1, 0, 2)
    assert families(net.done(net.elementwise("tanh", y))) == ["elementwise", "reduce"]


def test_dims_merged_and_split_again_stay_apart():
    """Batch and heads in one dim, as torch's attention writes it."""
    net = Net()
    y = net.transpose(net.view(net.x, B, S * 2, H // 2), 1, 0, 2)
    y = net.view(net.elementwise("relu", net.view(y, S, 2, B, H // 2)), S, 2 * B * H // 2)
    graph = net.done(y)
    shapes = [graph.tensors[o.outputs[0]].shape for o in graph.operators]
    assert families(graph)[:3] == ["view", "transpose", "elementwise"]
    assert shapes[:2] == [(B, S, 2, H // 2), (S, 2, B, H // 2)]


@pytest.mark.parametrize(
    ("origin", "viewed", "perm", "last"),
    [
        ((5, 3, 8), (5, 6, 4), [1, 0, 2], (6, 5, 4)),
        ((5, 3, 8), (5, 6, 4), [1, 0, 2], (3, 2, 5, 4)),
        ((4, 6), (2, 2, 2, 3), [2, 0, 1, 3], (8, 3)),
        ((1, 4, 6), (4, 1, 6), [2, 1, 0], (6, 4)),
        ((12,), (2, 6), [1, 0], (3, 4)),
        ((12,), (3, 4), [1, 0], (4, 3)),
        ((4, 6), (6, 4), [1, 0], (4, 6)),
        ((8, 9), (2, 4, 3, 3), [2, 0, 3, 1], (6, 12)),
    ],
)
def test_regrouping_keeps_every_element_in_its_place(origin, viewed, perm, last):
    x = np.arange(math.prod(origin)).reshape(origin)
    expected = x.reshape(viewed).transpose(perm).reshape(last)
    found = _normal_form(origin, viewed, perm, last)
    if found is None:
        # 4 x 6 has no common refinement with 6 x 4; 2 x 6 has none with 3 x 4 after a transpose.
        assert (origin, viewed) in (((4, 6), (6, 4)), ((12,), (2, 6)))
        return
    split, order = found
    np.testing.assert_array_equal(x.reshape(split).transpose(order).reshape(last), expected)


def test_a_view_that_stops_the_gradient_stays():
    net = Net()
    y = net.linear(net.x, H, "a")
    y = net.op("view", (y,), (B, S, H), requires_grad=False)
    graph = net.done(net.elementwise("mul", net.linear(net.x, H, "b"), y))
    assert families(graph).count("view") == 1


def test_flattened_rows_become_batch_and_token():
    net = Net()
    y = net.view(net.x, B * S, H)
    y = net.elementwise("gelu", net.linear(y, 2 * H, "up", "kn"))
    y = net.op("dropout", (net.linear(y, H, "down"),), (B * S, H), p=0.1)
    graph = net.done(net.elementwise("add", net.view(y, B, S, H), net.x))
    assert "view" not in families(graph)
    assert [graph.tensors[o.outputs[0]].shape for o in graph.operators[:2]] == [
        (B, S, 2 * H),
        (B, S, 2 * H),
    ]


def test_rows_from_heads_become_batch_and_token():
    net = Net()
    y = net.transpose(net.view(net.x, B, S, 2, H // 2), 0, 2, 1, 3)
    y = net.view(net.transpose(net.elementwise("relu", y), 0, 2, 1, 3), B * S, H)
    graph = net.done(net.view(net.linear(y, H, "out"), B, S, H))
    linear = next(o for o in graph.operators if o.family == "linear")
    assert graph.tensors[linear.inputs[0]].shape == (B, S, H)


def test_rows_stay_where_their_source_is_unknown():
    net = Net()
    y = net.op("index_select", (net.view(net.x, B * S, H), net.input("i", (5,), "int64")), (5, H),
               dim=0)  # fmt: skip
    graph = net.done(net.linear(y, H, "out"))
    assert families(graph) == ["view", "index_select", "linear", "reduce"]


@pytest.mark.parametrize("lead", [(B, S), (B, 2, 3)])
def test_cross_entropy_takes_tokens(lead):
    net = Net()
    logits = net.linear(net.view(net.x, *lead, H), 10, "head")
    flat = net.view(logits, B * S, 10)
    target = net.view(net.input("t", (B, S), "int64"), B * S)
    loss = net.op("cross_entropy", (flat, target), (), dim=1, reduction="mean", ignore_index=-100)
    graph = simplify(net.build(loss, B))
    operator = graph.operators[-1]
    assert operator.attributes["dim"] == len(lead)
    assert [graph.tensors[n].shape for n in operator.inputs] == [(*lead, 10), lead]
    head = graph.tensors["head.weight"], graph.tensors["head.bias"]
    assert [t.padded_dims for t in head] == [(0,), (0,)]
    assert graph.tensors[operator.inputs[0]].padded_dims == (len(lead),)


def test_vocabulary_is_marked_through_transposes_and_for_kn_weights():
    net = Net()
    logits = net.linear(net.x, 10, "head", "kn")
    target = net.input("t", (B, S), "int64")
    loss = net.op("cross_entropy", (net.transpose(logits, 0, 2, 1), target), (), dim=1,
                  reduction="mean", ignore_index=-100)  # fmt: skip
    graph = mark_vocabulary(net.build(loss, B))
    assert graph.tensors["head.weight"].padded_dims == (1,)
    assert graph.tensors["head.bias"].padded_dims == (0,)


def test_vocabulary_of_a_tied_embedding_is_marked_once():
    net = Net()
    w = net.parameter("w", (10, H))
    y = net.op("embedding", (net.input("ids", (B, S), "int64"), w), (B, S, H), padding_idx=None)
    logits = net.op("linear", (y, w), (B, S, 10), weight="nk")
    target = net.input("t", (B, S), "int64")
    loss = net.op("cross_entropy", (logits, target), (), dim=2, reduction="mean", ignore_index=-100)
    graph = mark_vocabulary(net.build(loss, B))
    assert graph.tensors["w"].padded_dims == (0,)
    assert graph.tensors[logits].padded_dims == (2,)


def fused(net, weight="nk"):
    return net.linear(net.x, 3 * H, "qkv", weight)


@pytest.mark.parametrize("weight", ["nk", "kn"])
def test_fused_projection_splits_into_slices(weight):
    net = Net()
    parts = net.ops("split", (fused(net, weight),), [(B, S, H)] * 3, dim=2, sizes=[H, H, H])
    y = net.elementwise("mul", net.elementwise("add", *parts[:2]), parts[2])
    graph = net.done(y)
    assert families(graph).count("linear") == 3
    assert "split" not in families(graph)
    lead = "" if weight == "nk" else ":, "
    assert [t.name for t in graph.parameters] == [
        name
        for start in (0, H, 2 * H)
        for name in (
            f"qkv.weight[{lead}{start}:{start + H}]",
            f"qkv.bias[{start}:{start + H}]",
        )
    ]
    assert {t.source for t in graph.parameters} == {"qkv.weight", "qkv.bias"}
    assert graph.parameter_count == 3 * H * H + 3 * H


def test_projection_cut_after_a_view_and_a_transpose_splits():
    net = Net()
    y = net.transpose(net.view(fused(net), B, S, 3, 2, H // 2), 2, 0, 3, 1, 4)
    shape = (1, B, 2, S, H // 2)
    parts = net.ops("split", (y,), [shape] * 3, dim=0, sizes=[1, 1, 1])
    q, k, v = (net.view(p, B, 2, S, H // 2) for p in parts)
    y = net.op("attention", (q, k, v), (B, 2, S, H // 2), causal=False, scale=1.0, dropout=0.0)
    graph = net.done(y)
    assert families(graph).count("linear") == 3
    assert "split" not in families(graph)


def test_slices_that_cover_all_split_and_others_do_not():
    for bounds, split in (((0, H, 3 * H), True), ((0, H, 2 * H), False)):
        net = Net()
        y = fused(net)
        parts = [
            net.op("slice", (y,), (B, S, b - a), dim=2, start=a, stop=b, step=1)
            for a, b in zip(bounds, bounds[1:], strict=False)
        ]
        parts = [net.op("reduce", (p,), (B, S), op="sum", dims=[2], keepdim=False) for p in parts]
        graph = net.done(net.elementwise("mul", *parts))
        assert (families(graph).count("linear") == 2) is split


def test_projection_interleaved_by_heads_is_left_alone():
    net = Net()
    y = net.view(fused(net), B, S, 2, 3 * H // 2)
    parts = net.ops("split", (y,), [(B, S, 2, H // 2)] * 3, dim=3, sizes=[H // 2] * 3)
    graph = net.done(net.elementwise("mul", *parts[:2]))
    assert families(graph).count("linear") == 1


def test_tied_projection_is_not_split():
    net = Net()
    y = fused(net)
    parts = net.ops("split", (y,), [(B, S, H)] * 3, dim=2, sizes=[H] * 3)
    again = net.op("linear", (parts[0], "qkv.weight"), (B, S, 3 * H), weight="nk")
    graph = net.done(net.elementwise("tanh", again))
    assert "split" in families(graph)


def rms(net, x, eps=1e-5):
    square = net.elementwise("pow", x, scalars=[2])
    shape = (*net.tensors[x].shape[:-1], 1)
    dim = len(shape) - 1
    mean = net.op("reduce", (square,), shape, op="mean", dims=[dim], keepdim=True)
    scale = net.elementwise("rsqrt", net.elementwise("add", mean, scalars=[eps]))
    return net.elementwise("mul", x, scale)


def test_rms_norm_is_fused_with_and_without_weight():
    net = Net()
    y = net.elementwise("mul", rms(net, net.x), net.parameter("w", (H,)))
    graph = net.done(rms(net, net.elementwise("tanh", y)))
    assert families(graph) == ["layer_norm", "elementwise", "layer_norm", "reduce"]
    assert [len(graph.operators[i].inputs) for i in (0, 2)] == [2, 1]
    assert graph.operators[0].attributes == {"dims": 1, "eps": 1e-5, "kind": "rms"}
    assert any("RMS" in note for note in graph.notes)


def test_rms_norm_of_another_tensor_is_not_fused():
    net = Net()
    y = net.elementwise("relu", net.x)
    square = net.elementwise("pow", y, scalars=[2])
    mean = net.op("reduce", (square,), (B, S, 1), op="mean", dims=[2], keepdim=True)
    scale = net.elementwise("rsqrt", net.elementwise("add", mean, scalars=[1e-5]))
    graph = net.done(net.elementwise("mul", net.x, scale))
    assert "layer_norm" not in families(graph)


def gelu(net, x, factor=0.044715):
    half = net.elementwise("scale", x, scalars=[0.5])
    cube = net.elementwise("scale", net.elementwise("pow", x, scalars=[3.0]), scalars=[factor])
    inner = net.elementwise(
        "scale", net.elementwise("add", x, cube), scalars=[(2 / 3.14159265358979) ** 0.5]
    )
    plus = net.elementwise("add", net.elementwise("tanh", inner), scalars=[1.0])
    return net.elementwise("mul", half, plus)


def test_gelu_is_fused_and_its_look_alike_is_not():
    net = Net()
    graph = net.done(gelu(net, net.x))
    assert [o.attributes.get("op") for o in graph.operators] == ["gelu_tanh", "mean"]
    net = Net()
    assert len(net.done(gelu(net, net.x, factor=0.05)).operators) == 9


def test_repeated_heads_become_grouped_attention():
    net = Net()
    q = net.view(net.x, B, 4, S, 2)
    k = net.op("slice", (q,), (B, 2, S, 2), dim=1, start=0, stop=2, step=1)
    wide = net.op("expand", (net.view(k, B, 2, 1, S, 2),), (B, 2, 2, S, 2))
    repeated = net.view(wide, B, 4, S, 2)
    y = net.op("attention", (q, repeated, repeated), (B, 4, S, 2), causal=True, scale=1.0,
               dropout=0.0)  # fmt: skip
    graph = net.done(y)
    attention = next(o for o in graph.operators if o.family == "attention")
    assert [graph.tensors[n].shape[1] for n in attention.inputs] == [4, 2, 2]
    assert "expand" not in families(graph)


def test_dead_operators_and_unused_parameters_go():
    net = Net()
    net.linear(net.x, H, "unused")
    graph = net.done(net.linear(net.x, H, "used"))
    assert families(graph) == ["linear", "reduce"]
    assert graph.notes == (
        "parameters that do not reach the loss are left out (2): unused.bias, unused.weight",
    )


def test_constants_come_first():
    net = Net()
    y = net.linear(net.x, H, "a")
    table = net.op("constant", (), (H,), op="arange")
    assert families(net.done(net.elementwise("add", y, table)))[0] == "constant"


def test_names_are_unique_and_simplify_is_idempotent():
    net = Net()
    parts = net.ops("split", (fused(net),), [(B, S, H)] * 3, dim=2, sizes=[H, H, H])
    graph = net.done(net.elementwise("mul", net.elementwise("add", *parts[:2]), parts[2]))
    assert len({o.name for o in graph.operators}) == len(graph.operators)
    assert simplify(graph).to_dict() == graph.to_dict()


def test_a_draft_refuses_to_replace_twice():
    net = Net()
    graph = net.done(net.elementwise("tanh", net.x))
    draft = Draft(graph)
    draft.replace(graph.operators[0])
    with pytest.raises(AssertionError, match="replaced twice"):
        draft.replace(graph.operators[0])
