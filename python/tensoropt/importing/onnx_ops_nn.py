"""Handlers of ONNX operators that are layers: products, convolutions, pools, norms, recurrence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensoropt.importing.onnx_ops_shape import pad
from tensoropt.importing.onnx_translate import Translator, register
from tensoropt.importing.onnx_values import Names, Node, Shape, Value, mask_kind


@register("MatMul", "FusedMatMul")
def _matmul(t: Translator, n: Node) -> Names:
    left, right = n.value(0), n.value(1)
    scale = float(n.attr("alpha", 1.0))
    a = _turned(t, n, left) if n.attr("transA", 0) else None
    if right.is_parameter and right.rank == 2 and left.rank >= 1:
        swapped = bool(n.attr("transB", 0))
        return _scaled(t, n, t.linear(n, a or t.use(left), right, swapped=swapped), scale)
    x = a or t.use(left)
    y = _turned(t, n, right) if n.attr("transB", 0) else t.use(right)
    if left.rank == 1:
        x = t.view(n, x, (1, *t.size(x)))
    if right.rank == 1:
        y = t.view(n, y, (*t.size(y), 1))
    batch = np.broadcast_shapes(t.size(x)[:-2], t.size(y)[:-2])
    shape = (*batch, t.size(x)[-2], t.size(y)[-1])
    product = t.emit(n, "matmul", (x, y), shape)
    if left.rank == 1 or right.rank == 1:
        kept = [
            *batch,
            *([shape[-2]] if left.rank > 1 else []),
            *([shape[-1]] if right.rank > 1 else []),
        ]
        product = t.view(n, product, kept)
    return _scaled(t, n, product, scale)


def _turned(t: Translator, n: Node, value: Value) -> str:
    perm = [*range(value.rank - 2), value.rank - 1, value.rank - 2]
    return t.transpose(n, t.use(value), perm)


def _scaled(t: Translator, n: Node, x: str, factor: float) -> str:
    return x if factor == 1 else t.apply(n, "scale", x, scalars=[factor])


@register("Gemm")
def _gemm(t: Translator, n: Node) -> Names:
    left, right = n.value(0), n.value(1)
    x = t.use(left)
    if n.attr("transA", 0):
        x = t.transpose(n, x, (1, 0))
    bias = n.value(2) if n.has(2) else None
    alpha, beta = float(n.attr("alpha", 1.0)), float(n.attr("beta", 1.0))
    swapped = bool(n.attr("transB", 0))
    columns = right.shape[0] if swapped else right.shape[1]
    joined = (
        bias is not None
        and bias.is_parameter
        and math.prod(bias.shape) == columns == bias.shape[-1]
        and (bias.rank == 1 or t.uses[bias.name] == 1)
        and alpha == beta == 1
    )
    if right.is_parameter:
        y = t.linear(n, x, right, swapped=swapped, bias=bias if joined else None)
    else:
        other = t.use(right)
        other = t.transpose(n, other, (1, 0)) if swapped else other
        y = t.emit(n, "matmul", (x, other), (t.size(x)[0], columns))
        joined = False
    y = _scaled(t, n, y, alpha)
    if bias is None or joined or beta == 0:
        return y
    return t.apply(n, "add", y, _scaled(t, n, t.use(bias), beta))


def _window(n: Node, image: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], ...]:
    """Strides, dilations, and padding before and after, with automatic padding resolved."""
    rank = len(image)
    strides = [int(s) for s in n.attr("strides") or [1] * rank]
    dilations = [int(d) for d in n.attr("dilations") or [1] * rank]
    pads = [int(p) for p in n.attr("pads") or [0] * (2 * rank)]
    before, after = pads[:rank], pads[rank:]
    mode = str(n.attr("auto_pad", "NOTSET"))
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        for d in range(rank):
            steps = -(-image[d] // strides[d])
            reach = (steps - 1) * strides[d] + dilations[d] * (kernel[d] - 1) + 1
            total = max(0, reach - image[d])
            small, large = total // 2, total - total // 2
            before[d], after[d] = (small, large) if mode == "SAME_UPPER" else (large, small)
    elif mode == "VALID":
        before, after = [0] * rank, [0] * rank
    return strides, dilations, before, after


@register("Conv")
def _conv(t: Translator, n: Node) -> Names | None:
    value, weight = n.value(0), n.value(1)
    if value.rank < 3:
        return None
    kernel = weight.shape[2:]
    image = value.shape[2:]
    strides, dilations, before, after = _window(n, image, kernel)
    x = t.use(value)
    if before != after:
        pairs = [[0, 0], [0, 0], *([b, a] for b, a in zip(before, after, strict=True))]
        x, before = pad(t, n, x, pairs, 0.0), [0] * len(image)
    sizes = [
        (s + 2 * p - d * (k - 1) - 1) // step + 1
        for s, p, d, k, step in zip(t.size(x)[2:], before, dilations, kernel, strides, strict=True)
    ]
    inputs = [x, t.use(weight), *([t.use(n.value(2))] if n.has(2) else [])]
    return t.emit(
        n, "convolution", inputs, (value.shape[0], weight.shape[0], *sizes), stride=strides,
        padding=before, dilation=dilations, groups=int(n.attr("group", 1)), transposed=False,
    )  # fmt: skip


@register("ConvTranspose")
def _conv_transpose(t: Translator, n: Node) -> Names | None:
    value, weight = n.value(0), n.value(1)
    if value.rank < 3:
        return None
    kernel, image = weight.shape[2:], value.shape[2:]
    rank, groups = len(image), int(n.attr("group", 1))
    strides = [int(s) for s in n.attr("strides") or [1] * rank]
    dilations = [int(d) for d in n.attr("dilations") or [1] * rank]
    beyond = [int(p) for p in n.attr("output_padding") or [0] * rank]
    full = [
        (s - 1) * step + d * (k - 1) + 1 + extra
        for s, step, d, k, extra in zip(image, strides, dilations, kernel, beyond, strict=True)
    ]
    shape = n.shape(0)
    inputs = [t.use(value), t.use(weight), *([t.use(n.value(2))] if n.has(2) else [])]
    pads = [int(p) for p in n.attr("pads") or [0] * (2 * rank)]
    mode = n.attr("auto_pad", "NOTSET")
    exact = not n.attr("output_shape") and mode == "NOTSET"
    attributes: dict[str, Any] = {
        "stride": strides, "dilation": dilations, "groups": groups, "transposed": True,
    }  # fmt: skip
    if exact and pads[:rank] == pads[rank:]:
        return t.emit(n, "convolution", inputs, shape, padding=pads[:rank], **attributes)
    # Otherwise the whole result is made and its rim cut off.
    grown = [max(f, s) for f, s in zip(full, shape[2:], strict=True)]
    whole = (value.shape[0], weight.shape[1] * groups, *grown)
    x = t.emit(n, "convolution", inputs, whole, padding=[0] * rank, **attributes)
    for d, size in enumerate(shape[2:]):
        rim = grown[d] - size
        start = pads[d] if exact else rim // 2 if mode == "SAME_UPPER" else rim - rim // 2
        x = t.cut(n, x, d + 2, start, start + size)
    return x


@register("MaxPool", "AveragePool", "LpPool")
def _pool(t: Translator, n: Node) -> Names | None:
    value = n.value(0)
    if n.op == "LpPool" or value.rank < 3:
        return None
    kernel = [int(k) for k in n.attr("kernel_shape")]
    strides, dilations, before, after = _window(n, value.shape[2:], kernel)
    mode = "max" if n.op == "MaxPool" else "avg"
    x = t.use(value)
    if before != after:
        pairs = [[0, 0], [0, 0], *([b, a] for b, a in zip(before, after, strict=True))]
        x = pad(t, n, x, pairs, -math.inf if mode == "max" else 0.0)
        before = [0] * len(kernel)
    attributes: dict[str, Any] = {
        "mode": mode, "kernel": kernel, "stride": strides, "padding": before,
        "ceil_mode": bool(n.attr("ceil_mode", 0)),
    }  # fmt: skip
    if any(d != 1 for d in dilations):
        attributes["dilation"] = dilations
    if mode == "avg" and list(t.size(x)[2:]) == kernel and not any(before):
        attributes["global"] = True
    return (t.emit(n, "pool", (x,), **attributes),)


@register("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(t: Translator, n: Node) -> Names | None:
    value = n.value(0)
    if value.rank < 3:
        return None
    image = list(value.shape[2:])
    attributes: dict[str, Any] = {
        "mode": "max" if n.op == "GlobalMaxPool" else "avg", "kernel": image, "stride": image,
        "padding": [0] * len(image), "ceil_mode": False, "global": True,
    }  # fmt: skip
    shape = (*value.shape[:2], *[1] * len(image))
    return t.emit(n, "pool", (t.use(value),), shape, **attributes)


def _trimmed(names: Sequence[str]) -> list[str]:
    """Operands without absent ones at the end."""
    found = list(names)
    while found and not found[-1]:
        found.pop()
    return found


def _optional(t: Translator, n: Node, position: int) -> str:
    return t.use(n.value(position)) if n.has(position) else ""


@register("BatchNormalization")
def _batch_norm(t: Translator, n: Node) -> Names:
    value = n.value(0)
    inputs = [t.use(value), _optional(t, n, 1), _optional(t, n, 2)]
    inputs += [t.buffer(n.value(p)) if n.has(p) else "" for p in (3, 4)]
    if not n.attr("training_mode", 0):
        t.note("batch normalisation is read as in training, though the file is for inference")
    eps = float(n.attr("epsilon", 1e-5))
    y = t.emit(n, "batch_norm", _trimmed(inputs), value.shape, eps=eps)
    return (y,)


@register("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def _layer_norm(t: Translator, n: Node) -> Names:
    value = n.value(0)
    kind = "layer" if n.op == "LayerNormalization" else "rms"
    axis = int(n.attr("axis", -1)) % value.rank
    return (_normalised(t, n, t.use(value), value.rank - axis, kind, (1, 2)),)


def _normalised(
    t: Translator, n: Node, x: str, dims: int, kind: str, positions: tuple[int, int]
) -> str:
    shape = t.size(x)
    inputs = [x]
    for position in positions if kind == "layer" else positions[:1]:
        inputs.append(_optional(t, n, position))
        if inputs[-1] and t.size(inputs[-1]) != shape[-dims:]:
            inputs[-1] = t.expand(n, inputs[-1], shape[-dims:])
    eps = float(n.attr("epsilon", 1e-5))
    return t.emit(n, "layer_norm", _trimmed(inputs), shape, dims=dims, eps=eps, kind=kind)


@register("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _skip_norm(t: Translator, n: Node) -> Names:
    simplified = "Simplified" in n.op
    x = t.apply(n, "add", t.use(n.value(0)), t.use(n.value(1)))
    bias = 3 if simplified else 4
    if n.has(bias):
        x = t.apply(n, "add", x, t.use(n.value(bias)))
    y = _normalised(t, n, x, 1, "rms" if simplified else "layer", (2, 3))
    return (y, None, None, x)


@register("GroupNormalization", "InstanceNormalization")
def _group_norm(t: Translator, n: Node) -> Names:
    value = n.value(0)
    channels = value.shape[1]
    groups = int(n.attr("num_groups", channels))
    inputs = [t.use(value)]
    for position in (1, 2):
        name = _optional(t, n, position)
        if name and t.size(name) != (channels,):
            # Before version 21 scale and bias belong to groups.
            name = t.view(n, name, (groups, 1))
            name = t.expand(n, name, (groups, channels // groups))
            name = t.view(n, name, (channels,))
        inputs.append(name)
    eps = float(n.attr("epsilon", 1e-5))
    return t.emit(n, "group_norm", _trimmed(inputs), value.shape, groups=groups, eps=eps)


@register("Attention")
def _attention(t: Translator, n: Node) -> Names | None:
    """Attention of the standard domain; that of other domains has other operands."""
    if n.opset < 23 or n.has(4) or n.has(5) or "num_heads" in n.attributes:
        return None
    values = [n.value(p) for p in range(3)]
    q, k, v = (t.use(value) for value in values)
    flat = values[0].rank == 3
    if flat:
        heads, kv_heads = int(n.attr("q_num_heads")), int(n.attr("kv_num_heads"))
        q, k, v = (_heads(t, n, x, h) for x, h in ((q, heads), (k, kv_heads), (v, kv_heads)))
    b, h, s, d = t.size(q)
    inputs, causal = [q, k, v], bool(n.attr("is_causal", 0))
    if n.has(3):
        kind = mask_kind(n.value(3))
        causal = causal or kind == "causal"
        inputs += [t.use(n.value(3))] if kind == "other" else []
    scale = n.attr("scale")
    y = t.emit(
        n, "attention", inputs, (b, h, s, t.size(v)[3]), causal=causal,
        scale=float(scale) if scale else 1.0 / math.sqrt(d), dropout=0.0,
    )  # fmt: skip
    if flat:
        y = t.view(n, t.transpose(n, y, (0, 2, 1, 3)), (b, s, h * t.size(v)[3]))
    return (y,)


def _heads(t: Translator, n: Node, x: str, heads: int) -> str:
    b, s, width = t.size(x)
    return t.transpose(n, t.view(n, x, (b, s, heads, width // heads)), (0, 2, 1, 3))


@register("LSTM", "GRU", "RNN")
def _recurrent(t: Translator, n: Node) -> Names:
    value = n.value(0)
    first = bool(n.attr("layout", 0))
    b, s = value.shape[:2] if first else value.shape[1::-1]
    both = str(n.attr("direction", "forward")) == "bidirectional"
    directions, hidden = (2 if both else 1), int(n.attr("hidden_size") or n.value(2).shape[2])
    weights = [n.value(p) for p in (1, 2, 3) if n.has(p)]
    inputs = [t.use(value), *(t.use(part) for weight in weights for part in _parts(weight))]
    for position in (5, 6) if n.op == "LSTM" else (5,):
        if n.has(position) and not n.value(position).constant:
            state = t.use(n.value(position))
            inputs.append(state if not first else t.transpose(n, state, (1, 0, 2)))
    if n.op == "LSTM" and n.has(7):
        inputs.append(t.use(n.value(7)))
    lead = (b, s) if first else (s, b)
    state_shape = (directions, b, hidden)
    shapes: list[Shape] = [(*lead, directions * hidden), state_shape]
    if n.op == "LSTM":
        shapes.append(state_shape)
    y, *states = t.emit_many(
        n, "lstm", inputs, shapes, hidden=hidden, layers=1, bidirectional=both, batch_first=first,
        cell=n.op.lower(), dropout=0.0,
    )  # fmt: skip
    split = t.view(n, y, (*lead, directions, hidden))
    # ONNX has (s, directions, b, hidden), or (b, s, directions, hidden) with the batch first.
    results = [split if first else t.transpose(n, split, (0, 2, 1, 3))]
    if directions == 1 and not first:
        results = [t.view(n, y, (s, 1, b, hidden))]
    results += [t.transpose(n, state, (1, 0, 2)) if first else state for state in states]
    return tuple(results)


def _parts(weight: Value) -> tuple[Value, ...]:
    """The parameters that a weight of a recurrent layer was joined from, as they were."""
    parts = weight.parts or (weight,)
    return tuple(
        replace(p, shape=p.shape[1:], chain=p.chain[:-1], tensor=None)
        if p.chain and p.chain[-1][0] == "view" and p.shape[:1] == (1,) and p.initializer
        else p
        for p in parts
    )
