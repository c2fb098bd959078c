"""Runs a graph with torch: what an imported model computes can be compared with its source."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as functional

from tensoropt.graph import Graph, Operator

__all__ = ["evaluate"]


def evaluate(graph: Graph, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Values of all tensors, given inputs, parameters, buffers and constants by name."""
    values = dict(feeds)
    for operator in graph.operators:
        if operator.family == "constant":
            assert operator.outputs[0] in values, f"no content for '{operator.outputs[0]}'"
            continue
        operands = [values[i] if i else None for i in operator.inputs]
        results = _FAMILIES[operator.family](graph, operator, *operands)
        results = results if isinstance(results, (tuple, list)) else (results,)
        for name, value in zip(operator.outputs, results, strict=False):
            expected = graph.tensors[name].shape
            assert tuple(value.shape) == expected, (operator.name, value.shape, expected)
            values[name] = value
    return values


def _shape(graph: Graph, o: Operator) -> tuple[int, ...]:
    return graph.tensors[o.outputs[0]].shape


def _linear(g: Graph, o: Operator, x: Any, w: Any, b: Any = None) -> Any:
    return functional.linear(x, w if o.attributes["weight"] == "nk" else w.T, b)


def _convolution(g: Graph, o: Operator, x: Any, w: Any, b: Any = None) -> Any:
    a, rank = o.attributes, x.dim() - 2
    shared = {k: a[k] for k in ("stride", "padding", "dilation", "groups")}
    if not a["transposed"]:
        return (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1](
            x, w, b, **shared
        )
    call = (
        functional.conv_transpose1d,
        functional.conv_transpose2d,
        functional.conv_transpose3d,
    )[rank - 1]
    least = call(x, w, b, **shared)
    extra = [r - s for r, s in zip(_shape(g, o)[2:], least.shape[2:], strict=True)]
    return call(x, w, b, output_padding=extra, **shared)


def _pool(g: Graph, o: Operator, x: Any) -> Any:
    a, rank = o.attributes, x.dim() - 2
    arguments = {k: a[k] for k in ("stride", "padding", "ceil_mode")}
    if a["mode"] == "max":
        call = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[rank - 1]
        return call(x, a["kernel"], dilation=a.get("dilation", 1), **arguments)
    call = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[rank - 1]
    return call(x, a["kernel"], **arguments)


def _layer_norm(g: Graph, o: Operator, x: Any, w: Any = None, b: Any = None) -> Any:
    a = o.attributes
    size = x.shape[-a["dims"] :]
    if a["kind"] == "rms":
        return functional.rms_norm(x, size, w, a["eps"])
    return functional.layer_norm(x, size, w, b, a["eps"])


def _attention(g: Graph, o: Operator, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    a = o.attributes
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = a["scale"] * q @ k.transpose(-1, -2)
    if a["causal"]:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ v


def _lstm(g: Graph, o: Operator, x: Any, *weights: Any) -> Any:
    """The final states only have to have the right shapes: gates are in another order."""
    raise NotImplementedError("recurrent layers are compared by structure")


def _slice(g: Graph, o: Operator, x: Any) -> Any:
    a = o.attributes
    picked = range(x.shape[a["dim"]])[a["start"] : a["stop"] : a["step"]]
    return x.index_select(a["dim"], torch.tensor(list(picked), dtype=torch.long))


def _pad(g: Graph, o: Operator, x: Any) -> Any:
    a = o.attributes
    pairs = [list(pair) for pair in a["pads"]]
    mode = {"edge": "replicate"}.get(a.get("mode", "constant"), a.get("mode", "constant"))
    if mode == "constant":
        return functional.pad(x, [n for pair in reversed(pairs) for n in pair], value=a["value"])
    while not any(pairs[0]) and len(pairs) > x.dim() - 2:
        pairs.pop(0)
    return functional.pad(x, [n for pair in reversed(pairs) for n in pair], mode=mode)


def _upsample(g: Graph, o: Operator, x: Any) -> Any:
    size = _shape(g, o)[2:]
    assert o.attributes["mode"] == "nearest", "others are not unique"
    return functional.interpolate(x, size=size, mode="nearest")


def _reduce(g: Graph, o: Operator, x: Any) -> Any:
    a = o.attributes
    op, dims, keep = a["op"], list(a["dims"]), a["keepdim"]
    if not dims:
        return x
    if op in ("argmax", "argmin"):
        return getattr(x, op)(dims[0], keep)
    if op == "prod":
        for dim in sorted(dims, reverse=True):
            x = x.prod(dim, keep)
        return x
    name = {"max": "amax", "min": "amin"}.get(op, op)
    return getattr(x, name)(dim=dims, keepdim=keep)


def _cross_entropy(g: Graph, o: Operator, logits: Any, target: Any) -> Any:
    a = o.attributes
    return functional.cross_entropy(
        logits.movedim(a["dim"], 1),
        target,
        ignore_index=a["ignore_index"],
        reduction=a["reduction"],
    )


_BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "scale": torch.mul, "div": torch.div,
    "pow": torch.pow, "eq": torch.eq, "gt": torch.gt, "ge": torch.ge, "lt": torch.lt,
    "le": torch.le, "maximum": torch.maximum, "minimum": torch.minimum,
    "remainder": torch.remainder, "prelu": lambda x, w: torch.where(x >= 0, x, w * x),
    "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor, "floor_divide": torch.floor_divide,
    "rsub": lambda x, y: y - x, "bitwise_and": torch.bitwise_and,
}  # fmt: skip
_RENAMED = {
    "hardsigmoid": None, "gelu": functional.gelu, "relu6": functional.relu6,
    "silu": functional.silu, "softplus": functional.softplus, "mish": functional.mish,
    "celu": functional.celu, "elu": functional.elu, "hardswish": functional.hardswish,
    "selu": functional.selu, "softsign": functional.softsign,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}  # fmt: skip


def _elementwise(g: Graph, o: Operator, *operands: Any) -> Any:
    a, op = o.attributes, o.attributes["op"]
    scalars = [torch.tensor(s, dtype=operands[0].dtype) for s in a.get("scalars") or []]
    x = operands[0]
    if op in _BINARY:
        return _BINARY[op](*operands, *scalars)
    if op == "clamp":
        return x.clamp(a.get("min"), a.get("max"))
    if op == "where":
        return torch.where(*operands)
    if op == "masked_fill":
        return x.masked_fill(operands[1], a["scalars"][0] if "scalars" in a else -math.inf)
    if op == "cast":
        wanted = g.tensors[o.outputs[0]].dtype
        return (
            x.double() if wanted.startswith(("float", "bfloat")) else x.to(getattr(torch, wanted))
        )
    if op == "leaky_relu":
        return functional.leaky_relu(x, a.get("alpha", 0.01))
    if op == "elu":
        return functional.elu(x, a.get("alpha", 1.0))
    if op == "hardsigmoid":
        return (a.get("alpha", 0.2) * x + a.get("beta", 0.5)).clamp(0, 1)
    if op == "threshold":
        return torch.where(x > a.get("alpha", 1.0), x, torch.zeros_like(x))
    call = _RENAMED.get(op) or getattr(torch, op)
    return call(x)


_FAMILIES: dict[str, Any] = {
    "linear": _linear,
    "matmul": lambda g, o, a, b: a @ b,
    "einsum": lambda g, o, *x: torch.einsum(o.attributes["equation"], *x),
    "convolution": _convolution,
    "pool": _pool,
    "upsample": _upsample,
    "pad": _pad,
    "layer_norm": _layer_norm,
    "group_norm": lambda g, o, x, w=None, b=None: functional.group_norm(
        x, o.attributes["groups"], w, b, o.attributes["eps"]
    ),
    "batch_norm": lambda g, o, x, w=None, b=None, m=None, v=None: functional.batch_norm(
        x, None, None, w, b, training=True, eps=o.attributes["eps"]
    ),
    "softmax": lambda g, o, x: (
        x.log_softmax(o.attributes["dim"])
        if o.attributes["log"]
        else x.softmax(o.attributes["dim"])
    ),
    "attention": _attention,
    "embedding": lambda g, o, ids, w: functional.embedding(ids, w),
    "cross_entropy": _cross_entropy,
    "elementwise": _elementwise,
    "dropout": lambda g, o, x: x,
    "reduce": _reduce,
    "cumulative": lambda g, o, x: x.cumsum(o.attributes["dim"]),
    "view": lambda g, o, x: x.reshape(_shape(g, o)),
    "transpose": lambda g, o, x: x.permute(o.attributes["perm"]),
    "expand": lambda g, o, x: x.expand(_shape(g, o)),
    "slice": _slice,
    "concat": lambda g, o, *x: torch.cat(x, o.attributes["dim"]),
    "split": lambda g, o, x: x.split(o.attributes["sizes"], o.attributes["dim"]),
    "gather": lambda g, o, x, i: x.gather(o.attributes["dim"], i),
    "index_select": lambda g, o, x, i: x.index_select(
        o.attributes["dim"], i.reshape(-1) % x.shape[o.attributes["dim"]]
    ).reshape(_shape(g, o)),
    "scatter": lambda g, o, x, i, s: (
        x.scatter_add(o.attributes["dim"], i, s)
        if o.attributes["reduce"]
        else x.scatter(o.attributes["dim"], i, s)
    ),
    "topk": lambda g, o, x: x.topk(o.attributes["k"], o.attributes["dim"]),
    "one_hot": lambda g, o, i: functional.one_hot(i, o.attributes["classes"]).double(),
    "lstm": _lstm,
}
