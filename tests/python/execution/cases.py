"""Small operators of every family, with what torch computes for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional

from . import bodies
from .harness import Case, Operand, floats, integers, weight

CASES: list[Case] = []


def case(
    name: str, family: str, operands: Sequence[Operand | None], whole: Any, **rest: Any
) -> None:
    fields = {k: rest.pop(k) for k in ("part", "body", "padded") if k in rest}
    CASES.append(Case(f"{family}/{name}", family, operands, whole, rest, **fields))


def _contractions() -> None:
    nk, kn = bodies.linear("nk"), bodies.linear("kn")
    case("bias", "linear", [floats(4, 8, 4), weight(8, 4), weight(8)], **nk, weight="nk")
    case("kn", "linear", [floats(4, 4), weight(4, 8), weight(8)], **kn, weight="kn")
    case("plain", "linear", [floats(8, 1, 4), weight(8, 4)], **nk, weight="nk")
    case("frozen input", "linear", [floats(4, 4, grad=False), weight(4, 4)], **nk, weight="nk")
    case(
        "padded",
        "linear",
        [floats(4, 4), weight(7, 4, padded=(0,)), weight(7, padded=(0,))],
        **nk,
        weight="nk",
        padded=(1,),
    )
    case("batched", "matmul", [floats(4, 4, 8), floats(4, 8, 4)], torch.matmul)
    case("broadcast", "matmul", [floats(1, 4, 4, 4), floats(4, 1, 4, 4)], torch.matmul)
    case("experts", "matmul", [floats(4, 4, 4), weight(4, 4, 8)], torch.matmul)
    case("short", "matmul", [floats(4, 4, 4, 4), floats(4, 4)], torch.matmul)
    for name, equation, shapes in (
        ("scores", "bshd,bthd->bhst", [(2, 4, 4, 4), (2, 4, 4, 4)]),
        ("three", "ab,bc,cd->ad", [(4, 4), (4, 4), (4, 8)]),
        ("sum", "ab->a", [(4, 4)]),
        ("implied", "ba,ac", [(4, 4), (4, 8)]),
        ("ellipsis", "...ij,jk->...ik", [(2, 4, 4), (4, 4)]),
        ("diagonal", "aab,b->ab", [(4, 4, 4), (4,)]),
        ("broadcast", "ab,ab->ab", [(4, 1), (4, 4)]),
    ):
        operands = [floats(*shape) for shape in shapes]
        case(name, "einsum", operands, partial(torch.einsum, equation), equation=equation)


def _convolutions() -> None:
    def add(name: str, operands: list[Operand], transposed: bool = False, groups: int = 1,
            **rest: Any) -> None:  # fmt: skip
        nd = len(operands[0].shape) - 2
        call = bodies.convolution(nd, transposed, groups, **rest)
        attributes = {
            key: [value] * nd for key, value in rest.items() if key in ("stride", "padding")
        }
        attributes = {"stride": [1] * nd, "padding": [0] * nd, "dilation": [1] * nd} | attributes
        case(
            name,
            "convolution",
            operands,
            **call,
            transposed=transposed,
            groups=groups,
            **attributes,
        )

    add("same", [floats(4, 4, 5, 5), weight(8, 4, 3, 3), weight(8)], padding=1)
    add("strided", [floats(2, 4, 8, 8), weight(4, 4, 3, 3)], padding=1, stride=2)
    add("patches", [floats(4, 4, 8, 8), weight(8, 4, 2, 2), weight(8)], stride=2)
    add("pointwise", [floats(2, 4, 4, 4), weight(4, 4, 1, 1)])
    add("grouped", [floats(2, 8, 4, 4), weight(8, 2, 3, 3), weight(8)], groups=4, padding=1)
    add("depthwise", [floats(2, 4, 6), weight(4, 1, 3), weight(4)], groups=4)
    add("up", [floats(2, 4, 4, 4), weight(4, 8, 2, 2), weight(8)], transposed=True, stride=2)
    add("up overlapping", [floats(2, 4, 4, 4), weight(4, 4, 3, 3)], transposed=True, stride=2,
        padding=1)  # fmt: skip
    add("up grouped", [floats(2, 4, 3), weight(4, 2, 2), weight(8)], transposed=True, groups=4,
        stride=2)  # fmt: skip


def _pools() -> None:
    image = (4, 4, 8, 8)
    window = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
    case(
        "max", "pool", [floats(*image)], lambda x: functional.max_pool2d(x, 2), mode="max", **window
    )
    case(
        "avg", "pool", [floats(*image)], lambda x: functional.avg_pool2d(x, 2), mode="avg", **window
    )
    overlapping = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": False}
    case("overlapping", "pool", [floats(*image)], lambda x: functional.max_pool2d(x, 3, 2, 1),
         mode="max", **overlapping)  # fmt: skip
    whole = {"kernel": [8, 8], "stride": [8, 8], "padding": [0, 0], "global": True}
    average = bodies.mean([2, 3], True, 64)
    case("global avg", "pool", [floats(*image)], **average, mode="avg", **whole)
    case(
        "global max",
        "pool",
        [floats(*image)],
        lambda x: functional.adaptive_max_pool2d(x, 1),
        mode="max",
        **whole,
    )
    up = partial(functional.interpolate, scale_factor=2)
    case("nearest", "upsample", [floats(2, 4, 4, 4)], lambda x: up(x, mode="nearest"),
         mode="nearest", scale=[2, 2])  # fmt: skip
    case("bilinear", "upsample", [floats(2, 4, 4, 4)], lambda x: up(x, mode="bilinear"),
         mode="bilinear", scale=[2, 2])  # fmt: skip
    case("zero", "pad", [floats(4, 4, 4)], lambda x: functional.pad(x, (1, 2)),
         pads=[[0, 0], [0, 0], [1, 2]], value=0.0)  # fmt: skip
    case("one", "pad", [floats(4, 4)], lambda x: functional.pad(x, (1, 0), value=1.0),
         pads=[[0, 0], [1, 0]], value=1.0)  # fmt: skip


def _norms() -> None:
    def layer(x: torch.Tensor, w: Any = None, b: Any = None) -> torch.Tensor:
        return functional.layer_norm(x, w.shape if w is not None else x.shape[-1:], w, b)

    def rms(x: torch.Tensor, w: Any = None) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], w, 1e-6)

    def group(rank: Any, x: torch.Tensor, w: Any = None, b: Any = None) -> torch.Tensor:
        groups = 4 if rank is None else 4 // rank.parts("g")
        return functional.group_norm(x, groups, w, b)

    affine = [weight(8), weight(8)]
    case("layer", "layer_norm", [floats(4, 4, 8), *affine], layer, dims=1, kind="layer", eps=1e-5)
    case("two dims", "layer_norm", [floats(8, 4, 4), weight(4, 4), weight(4, 4)], layer, dims=2,
         kind="layer", eps=1e-5)  # fmt: skip
    case("plain", "layer_norm", [floats(4, 8)], layer, dims=1, kind="layer", eps=1e-5)
    case("rms", "layer_norm", [floats(4, 4, 8), weight(8)], rms, dims=1, kind="rms", eps=1e-6)
    whole = partial(group, None)
    case("affine", "group_norm", [floats(4, 8, 3), *affine], whole, part=group, groups=4, eps=1e-5)
    case("plain", "group_norm", [floats(4, 8, 4, 2)], whole, part=group, groups=4, eps=1e-5)
    for name, operands in {
        "affine": [floats(4, 8, 4, 4), *affine],
        "plain": [floats(4, 4)],
        "running": [floats(4, 8, 2), *affine, floats(8, grad=False, kind="buffer"),
                    Operand((8,), grad=False, kind="buffer", values=_positive(8))],
    }.items():  # fmt: skip
        body = bodies.BatchNorm(operands[0].shape)
        case(name, "batch_norm", operands, body.whole, body=body, eps=1e-5)
    case("last", "softmax", [floats(4, 4, 8)], lambda x: x.softmax(-1), dim=-1, log=False)
    case("middle", "softmax", [floats(4, 8, 4)], lambda x: x.log_softmax(1), dim=1, log=True)


def _positive(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda random: 0.5 + torch.rand(shape, generator=random, dtype=torch.float64)


def _attention() -> None:
    def add(name: str, operands: list[Operand], causal: bool = False) -> None:
        scale = operands[0].shape[-1] ** -0.5
        call = bodies.attention(causal, scale, operands[0].shape[2])
        case(name, "attention", operands, **call, causal=causal, scale=scale, dropout=0.0)

    add("causal", [floats(4, 4, 4, 4)] + [floats(4, 4, 4, 4)] * 2, causal=True)
    add("cross", [floats(2, 4, 4, 4), floats(2, 4, 6, 4), floats(2, 4, 6, 2)])
    add("grouped", [floats(2, 8, 4, 4)] + [floats(2, 4, 4, 4)] * 2, causal=True)
    add("single", [floats(2, 4, 4, 4)] + [floats(2, 1, 4, 4)] * 2)
    add("bias", [floats(4, 4, 4, 4)] * 3 + [floats(1, 4, 4, 4)])
    add("mask", [floats(4, 4, 4, 4)] * 3 + [floats(4, 1, 1, 4, grad=False)])
    add("low rank mask", [floats(2, 4, 4, 4)] * 3 + [floats(4, 4)])


def _lookups() -> None:
    for name, padding, words, padded in (
        ("plain", None, 8, ()),
        ("padding", 5, 8, ()),
        ("padded", None, 7, (0,)),
    ):
        case(name, "embedding", [integers(4, 4, high=words), weight(words, 4, padded=padded)],
             **bodies.embedding(padding, words), padding_idx=padding)  # fmt: skip
    case("last", "gather", [floats(4, 8), integers(4, 4, high=8)], **bodies.gather(1, 8), dim=1)
    case("short", "gather", [floats(8, 4, 4), integers(4, 4, 4, high=4)], **bodies.gather(1, 4),
         dim=1)  # fmt: skip
    case("first", "index_select", [floats(8, 4), integers(4, 4, high=8)],
         **bodies.index_select(0, 8), dim=0)  # fmt: skip
    case("middle", "index_select", [floats(4, 8, 4), integers(4, high=8)],
         **bodies.index_select(1, 8), dim=1)  # fmt: skip

    def distinct(random: torch.Generator) -> torch.Tensor:
        rows = [torch.randperm(8, generator=random)[:4] for _ in range(4)]
        return torch.stack(rows)

    index = Operand((4, 4), "int64", False, values=distinct)
    case("set", "scatter", [floats(4, 8), index, floats(4, 4)], **bodies.scatter(1, 8, None),
         dim=1, reduce=None)  # fmt: skip
    case("add", "scatter", [floats(4, 4, 4), integers(4, 8, 4, high=4), floats(4, 8, 4)],
         **bodies.scatter(1, 4, "add"), dim=1, reduce="add")  # fmt: skip
    case("short", "scatter", [floats(8, 4), integers(4, 4, high=8), floats(4, 4)],
         **bodies.scatter(0, 8, "add"), dim=0, reduce="add")  # fmt: skip
    case("classes", "one_hot", [integers(4, 4, high=5)], lambda i: functional.one_hot(i, 5),
         classes=5)  # fmt: skip


def _losses() -> None:
    def ignoring(*shape: int) -> Operand:
        def values(random: torch.Generator) -> torch.Tensor:
            target = torch.randint(0, 7, shape, generator=random)
            dropped = torch.rand(shape, generator=random) < 0.3
            return torch.where(dropped, -100, target)

        return Operand(shape, "int64", False, values=values)

    def add(name: str, logits: Operand, dim: int, reduction: str = "mean") -> None:
        rows = tuple(s for d, s in enumerate(logits.shape) if d != dim)
        body = bodies.CrossEntropy(dim, logits.shape, reduction, -100)
        case(name, "cross_entropy", [logits, ignoring(*rows)], body.whole, body=body, dim=dim,
             reduction=reduction, ignore_index=-100)  # fmt: skip

    add("mean", floats(8, 8), 1)
    add("sum", floats(8, 8), 1, "sum")
    add("sequences", floats(4, 4, 8), 2)
    add("channels", floats(4, 8, 4), 1)
    add("padded", floats(8, 7, padded=(1,), fill=-math.inf), 1)


_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neg": torch.neg, "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "gelu": functional.gelu, "silu": functional.silu, "exp": torch.exp, "erf": torch.erf,
    "leaky_relu": functional.leaky_relu, "softplus": functional.softplus, "abs": torch.abs,
    "elu": functional.elu, "identity": lambda x: x * 1.0, "sin": torch.sin,
    "hardswish": functional.hardswish, "some_new_function": torch.arctan,
}  # fmt: skip


def _elementwise() -> None:
    def add(name: str, operands: list[Operand], whole: Any, label: str = "", **rest: Any) -> None:
        case(f"{name}{label}", "elementwise", operands, whole, op=name, **rest)

    pair = [floats(4, 4), floats(4, 4)]
    for name, function in _UNARY.items():
        add(name, [floats(4, 4)], function)
    for name, function in {"add": torch.add, "sub": torch.sub, "mul": torch.mul,
                           "maximum": torch.maximum}.items():  # fmt: skip
        add(name, pair, function)
        add(name, [floats(4, 4, 4), floats(4, 1)], function, " broadcast")
    divisor = Operand((4, 4), values=_positive(4, 4))
    add("div", [floats(4, 4), divisor], torch.div)
    add("pow", [divisor, floats(4, 4)], torch.pow)
    add("sqrt", [divisor], torch.sqrt)
    add("log", [divisor], torch.log)
    add("add", [floats(4, 4)], lambda x: x + 3.0, " scalar", scalars=[3.0])
    add("scale", [floats(4, 4)], lambda x: x * 3.0, scalars=[3.0])
    add("rsub", [floats(4, 4)], lambda x: 1.0 - x, scalars=[1.0])
    add("pow", [divisor], lambda x: x**3, " scalar", scalars=[3.0])
    add("clamp", [floats(4, 4)], lambda x: x.clamp(-0.5, 0.5), scalars=[-0.5, 0.5])
    mask = Operand((4, 4), "bool", False)
    add("where", [mask, *pair], torch.where)
    add("where", [mask, floats(4, 4)], lambda m, x: torch.where(m, x, 0.0), " zero", scalars=[0.0])
    add("masked_fill", [floats(4, 4), mask], lambda x, m: x.masked_fill(m, 0.0), scalars=[0.0])
    add("masked_fill", [floats(4, 4), mask], lambda x, m: x.masked_fill(m, -9.0), " other",
        scalars=[-9.0])  # fmt: skip
    add("tril", [floats(4, 4, 4)], torch.tril)
    add("eq", [integers(4, 4, high=3), integers(4, 4, high=3)], torch.eq)
    add("cast", [floats(4, 4)], lambda x: x.to(torch.float64) * 1)
    add("gelu", [floats(4, 7, padded=(1,))], functional.gelu, " padded", padded=(1,))
    keep = torch.rand((4, 4), generator=torch.Generator().manual_seed(7)) < 0.7
    case("shared mask", "dropout", [floats(4, 4)], **bodies.masked_dropout(0.3, keep), p=0.3)
    case("nothing dropped", "dropout", [floats(4, 4)], lambda x: x * 1.0, p=0.0)


def _reductions() -> None:
    def add(op: str, whole: Any, dims: list[int], keepdim: bool = False, **rest: Any) -> None:
        name = f"{op} {dims}{' keep' if keepdim else ''}"
        case(name, "reduce", [floats(4, 4, 8)], whole, op=op, dims=dims, keepdim=keepdim, **rest)

    add("sum", lambda x: x.sum(1), [1])
    add("sum", lambda x: x.sum((0, 2), True), [0, -1], True)
    for dims, keep in (([2], True), ([0, 1], False), ([0, 1, 2], False)):
        count = math.prod((4, 4, 8)[d] for d in dims)
        call = bodies.mean(dims, keep, count)
        add("mean", call["whole"], dims, keep, part=call["part"])
    add("max", lambda x: x.amax(2), [2])
    add("min", lambda x: x.amin((0, 1)), [0, 1])
    add("var", lambda x: x.var(2), [2])
    add("std", lambda x: x.std(1, keepdim=True), [1], True)
    add("norm", lambda x: torch.linalg.vector_norm(x, dim=2), [2])
    add("logsumexp", lambda x: x.logsumexp(2), [2])
    add("argmax", lambda x: x.argmax(2), [2])
    add("prod", lambda x: x.prod(1), [1])
    case("any", "reduce", [Operand((4, 4), "bool", False)], lambda x: x.any(1), op="any", dims=[1],
         keepdim=False)  # fmt: skip
    case("sum", "cumulative", [floats(4, 4, 8)], lambda x: x.cumsum(1), op="sum", dim=1)
    case("prod", "cumulative", [floats(4, 8)], lambda x: x.cumprod(-1), op="prod", dim=-1)
    case("max", "cumulative", [floats(4, 8)], lambda x: x.cummax(0)[0], op="max", dim=0)
    case("two", "topk", [floats(4, 4, 8)], lambda x: tuple(x.topk(2, -1)), k=2, dim=-1)
    case("first", "sort", [floats(4, 4)], lambda x: tuple(x.sort(0)), dim=0)


def _layouts() -> None:
    for before, after in (
        ((4, 4, 8), (16, 8)),
        ((16, 8), (4, 4, 2, 4)),
        ((8, 6, 4), (8, 4, 6)),
        ((1, 8, 1, 4), (8, 1, 2, 2)),
        ((4, 3, 4), (48,)),
        ((12, 4), (8, 6)),
        ((4, 4), (4, 4)),
    ):
        case(f"{before} {after}", "view", [floats(*before)], partial(_reshape, after),
             part=lambda rank, x: x.reshape(rank.shapes[0]))  # fmt: skip
    case("scalar", "view", [floats(1, 1)], lambda x: x.reshape(()))
    case("padded", "view", [floats(4, 1, 7, padded=(2,))], lambda x: x.reshape(4, 7), padded=(1,),
         part=lambda rank, x: x.reshape(rank.shapes[0]))  # fmt: skip
    case("three", "transpose", [floats(4, 8, 2)], lambda x: x.permute(2, 0, 1), perm=[2, 0, 1])
    case("repeat", "expand", [floats(4, 1, 4)], lambda x: x.expand(4, 4, 4),
         part=lambda rank, x: x.expand(rank.shapes[0]))  # fmt: skip
    case("lead", "expand", [floats(4)], lambda x: x.expand(8, 4),
         part=lambda rank, x: x.expand(rank.shapes[0]))  # fmt: skip
    case("step", "slice", [floats(4, 8, 4)], lambda x: x[:, 1:7:2], dim=1, start=1, stop=7, step=2)
    case("end", "slice", [floats(8, 4)], lambda x: x[-4:], dim=0, start=-4, stop=1 << 62, step=1)
    case("last", "concat", [floats(4, 4), floats(4, 2), floats(4, 1)],
         lambda *x: torch.cat(x, 1), dim=1)  # fmt: skip
    case("uneven", "split", [floats(4, 8, 4)], lambda x: x.split([2, 1, 5], 1), dim=1,
         sizes=[2, 1, 5])  # fmt: skip


def _recurrent() -> None:
    def run(cell: str, layers: int, both: bool, first: bool) -> Callable[..., Any]:
        def whole(x: torch.Tensor, *weights: torch.Tensor) -> Any:
            states = layers * (2 if both else 1)
            hidden = weights[1].shape[1]
            zero = x.new_zeros(states, x.shape[0 if first else 1], hidden)
            start = (zero, zero) if cell == "lstm" else zero
            function = {"lstm": torch.lstm, "gru": torch.gru, "rnn": torch.rnn_tanh}[cell]
            return tuple(function(x, start, list(weights), True, layers, 0.0, True, both, first))

        return whole

    def weights(cell: str, width: int, hidden: int, layers: int, both: bool) -> list[Operand]:
        rows = {"lstm": 4, "gru": 3, "rnn": 1}[cell] * hidden
        found = []
        for layer in range(layers):
            into = width if layer == 0 else hidden * (2 if both else 1)
            each = [weight(rows, into), weight(rows, hidden), weight(rows), weight(rows)]
            found += each * (2 if both else 1)
        return found

    for cell, layers, both, first in (
        ("lstm", 1, False, True),
        ("lstm", 2, True, False),
        ("gru", 1, True, True),
        ("rnn", 2, False, False),
    ):
        operands = [
            floats(4, 3, 5) if first else floats(3, 4, 5),
            *weights(cell, 5, 4, layers, both),
        ]
        case(
            f"{cell} {layers}",
            "lstm",
            operands,
            run(cell, layers, both, first),
            hidden=4,
            layers=layers,
            bidirectional=both,
            batch_first=first,
            cell=cell,
            dropout=0.0,
        )


def _experts() -> None:
    def balanced(random: torch.Generator) -> torch.Tensor:
        # Any two neighbouring tokens use each of four experts once.
        pairs = [torch.randperm(4, generator=random).reshape(2, 2) for _ in range(4)]
        return torch.cat(pairs)

    indices = Operand((8, 2), "int64", False, values=balanced)
    case("balanced", "moe_dispatch", [floats(8, 4), indices], **bodies.dispatch(4), experts=4)
    case("balanced", "moe_combine", [floats(4, 4, 4), indices, floats(8, 2)],
         **bodies.combine_experts(4))  # fmt: skip


def _fallbacks() -> None:
    case("arange", "constant", [], lambda: torch.arange(4), op="arange")
    case("inverse", "opaque", [floats(4, 4)], torch.linalg.inv, op="inverse")


def _reshape(shape: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    return x.reshape(shape)


for _family in (_contractions, _convolutions, _pools, _norms, _attention, _lookups, _losses,
                _elementwise, _reductions, _layouts, _recurrent, _experts, _fallbacks):  # fmt: skip
    _family()
