"""Handlers of ONNX operators that move, pick or rename elements."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from tensoropt.errors import ImportModelError
from tensoropt.importing.onnx_translate import Translator, register
from tensoropt.importing.onnx_values import Names, Node, Value, dtype_name


@register("Identity")
def _identity(t: Translator, n: Node) -> Value:
    return n.value(0)


@register("Constant", "ConstantOfShape", "Range", "EyeLike")
def _constant(t: Translator, n: Node) -> Value | None:
    # Reached only if the shape of the constant itself is computed from data.
    raise ImportModelError(
        f"the size of '{n.outputs[0]}', made by operator '{n.name}' ({n.op}), depends on data: "
        "export the model with fixed sizes there"
    )


@register("Shape", "Size")
def _shape(t: Translator, n: Node) -> Value:
    sizes = n.value(0).shape
    if n.op == "Size":
        data = np.array(math.prod(sizes), dtype=np.int64)
    else:
        data = np.array(sizes[slice(n.attr("start", 0), n.attr("end"))], dtype=np.int64)
    return Value(n.outputs[0], data.shape, 7, data=data, constant=True)


def _reshaped(t: Translator, n: Node, shape: tuple[int, ...]) -> Names | Value:
    value = n.value(0)
    if math.prod(value.shape) != math.prod(shape):
        raise ImportModelError(
            f"operator '{n.name}' ({n.op}) turns {value.shape} into {shape}, which has another "
            "number of elements: sizes were fixed at export, give the ones the model was made for"
        )
    return t.reshaped(n, value, shape)


@register("Reshape")
def _reshape(t: Translator, n: Node) -> Names | Value:
    value = n.value(0)
    target = n.attr("shape") or t.integers(n, 1)
    if target is None:
        raise ImportModelError(f"operator '{n.name}' (Reshape) has no target shape")
    shape = _resolved(n, value.shape, [int(s) for s in target])
    if t.rebatch is not None and t.rebatch.fed(value):
        scaled = t.rebatch.view(value, t.rebatch.shapes[n.outputs[0]])
        if scaled is None or math.prod(scaled) != math.prod(value.shape):
            raise t.unproven(n)
        shape = scaled
    return _reshaped(t, n, shape)


def _resolved(n: Node, given: tuple[int, ...], target: list[int]) -> tuple[int, ...]:
    """Target shape with 0 (as it was) and -1 (what is left) replaced."""
    if not n.attr("allowzero", 0):
        target = [given[d] if s == 0 and d < len(given) else s for d, s in enumerate(target)]
    if -1 in target:
        known = math.prod(s for s in target if s != -1)
        rest = math.prod(given) // known if known else 0
        target = [rest if s == -1 else s for s in target]
    return tuple(target)


@register("Flatten")
def _flatten(t: Translator, n: Node) -> Names | Value:
    value = n.value(0)
    axis = int(n.attr("axis", 1))
    axis = axis + value.rank if axis < 0 else axis
    return _reshaped(t, n, (math.prod(value.shape[:axis]), math.prod(value.shape[axis:])))


@register("Squeeze")
def _squeeze(t: Translator, n: Node) -> Names | Value:
    value = n.value(0)
    axes = n.attr("axes") or t.integers(n, 1)
    if axes is None:
        axes = [d for d, size in enumerate(value.shape) if size == 1]
    drop = {d % value.rank for d in axes}
    return _reshaped(t, n, tuple(s for d, s in enumerate(value.shape) if d not in drop))


@register("Unsqueeze")
def _unsqueeze(t: Translator, n: Node) -> Names | Value:
    value = n.value(0)
    axes = n.attr("axes") or t.integers(n, 1) or []
    rank = value.rank + len(axes)
    new = {d % rank for d in axes}
    sizes = iter(value.shape)
    return _reshaped(t, n, tuple(1 if d in new else next(sizes) for d in range(rank)))


@register("Transpose")
def _transpose(t: Translator, n: Node) -> Names | Value:
    value = n.value(0)
    perm = tuple(int(d) for d in n.attr("perm") or reversed(range(value.rank)))
    shape = tuple(value.shape[d] for d in perm)
    if value.initializer is not None:
        chain = (*value.chain, ("transpose", perm))
        return replace(value, shape=shape, chain=chain, tensor=None)
    return t.transpose(n, t.use(value), perm)


@register("Expand")
def _expand(t: Translator, n: Node) -> Names | Value:
    value = n.value(0)
    target = tuple(t.integers(n, 1) or ())
    if t.rebatch is not None:
        target = _grown(t, value, target)
        if not t.rebatch.fed(value) and len(target) > 1:
            # Repeated for the batch of the file: whoever meets the batch repeats it as needed.
            lead = len(target) > value.rank or value.shape[0] == 1
            target = (1, *target[1:]) if lead and target[0] == t.rebatch.before else target
    shape = np.broadcast_shapes(value.shape, target)
    return value if shape == value.shape else t.expand(n, t.use(value), shape)


def _grown(t: Translator, value: Value, target: tuple[int, ...]) -> tuple[int, ...]:
    """A target shape with the batch of the file where the operand has the new one."""
    assert t.rebatch is not None
    old = t.rebatch.old(value)
    lead = len(target) - value.rank
    return tuple(
        value.shape[d - lead] if d >= lead and value.shape[d - lead] != old[d - lead] else size
        for d, size in enumerate(target)
    )


@register("Tile")
def _tile(t: Translator, n: Node) -> Names | Value:
    value = n.value(0)
    repeats = t.integers(n, 1) or []
    if all(r == 1 for r in repeats):
        return value
    x = t.use(value)
    shape = [r if s == 1 else s for s, r in zip(value.shape, repeats, strict=True)]
    x = t.expand(n, x, shape)
    for dim, (size, times) in enumerate(zip(value.shape, repeats, strict=True)):
        if size != 1 and times != 1:
            grown = list(t.size(x))
            grown[dim] *= times
            x = t.emit(n, "concat", [x] * times, grown, dim=dim)
    return x


@register("Concat")
def _concat(t: Translator, n: Node) -> Names | Value | None:
    values = [n.value(p) for p in range(len(n.inputs))]
    values = [v for v in values if math.prod(v.shape) or len(values) == 1]
    axis = int(n.attr("axis", 1)) % values[0].rank
    joined = _joined(values, axis)
    if joined is not None:
        return joined
    operands = [t.use(v) for v in values]
    shape: tuple[int, ...]
    # A class token of the old batch, or of batch 1, goes along with tokens of the new batch.
    widest = [max(v.shape[d] for v in values) if d != axis else -1 for d in range(values[0].rank)]
    for position, value in enumerate(values):
        shape = tuple(s if w == -1 else w for s, w in zip(value.shape, widest, strict=True))
        if shape != value.shape:
            fits = all(a in (1, b) for a, b in zip(value.shape, shape, strict=True))
            if t.rebatch is not None and not fits:
                raise t.unproven(n)
            if t.rebatch is None:
                raise ImportModelError(
                    f"operator '{n.name}' (Concat) joins {[v.shape for v in values]} along dim "
                    f"{axis}: other dims must agree, check the sizes given for symbolic dims"
                )
            operands[position] = t.expand(n, operands[position], shape)
    if len(operands) == 1:
        return operands[0]
    shape = t.size(operands[0])
    total = sum(t.size(o)[axis] for o in operands)
    return t.emit(n, "concat", operands, (*shape[:axis], total, *shape[axis + 1 :]), dim=axis)


def _joined(values: list[Value], axis: int) -> Value | None:
    """Parameters joined again: the slices of one of them, or several along their first dim.

    Exporters reorder the gates of recurrent layers; which rows make which gate does not matter.
    """
    if len(values) < 2 or not all(v.is_parameter for v in values):
        return None
    first = values[0]
    total = sum(v.shape[axis] for v in values)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    ends = [v.chain[-1] if v.chain else ("", ()) for v in values]
    sliced = [kind == "slice" for kind, _ in ends]
    if all(sliced) and len({(v.initializer, v.chain[:-1]) for v in values}) == 1:
        spans = sorted(argument for _, argument in ends)
        whole = spans[0] == (axis, 0, spans[0][2]) and spans[-1][2] == first.cut_from
        if whole and all(a[0] == b[0] and a[2] == b[1] for a, b in pairwise(spans)):
            return replace(first, shape=shape, chain=first.chain[:-1], tensor=None)
    parts = tuple(p for v in values for p in (v.parts or (v,)))
    if axis == 0 and not any(sliced) and len({p.shape[1:] for p in parts}) == 1:
        return Value(first.name, shape, first.elem, parts=parts)
    return None


@register("Split")
def _split(t: Translator, n: Node) -> Names:
    value = n.value(0)
    axis = int(n.attr("axis", 0)) % value.rank
    sizes = n.attr("split") or t.integers(n, 1)
    if not sizes:
        parts = int(n.attr("num_outputs") or len(n.outputs))
        chunk = -(-value.shape[axis] // parts)
        sizes = [min(chunk, value.shape[axis] - i * chunk) for i in range(parts)]
    shapes = [(*value.shape[:axis], int(s), *value.shape[axis + 1 :]) for s in sizes]
    if len(shapes) == 1:
        return t.use(value)
    return t.emit_many(n, "split", (t.use(value),), shapes, dim=axis, sizes=[int(s) for s in sizes])


@register("Slice")
def _slice(t: Translator, n: Node) -> Names | Value | None:
    value = n.value(0)
    if n.opset < 10:
        starts, ends, axes, steps = n.attr("starts"), n.attr("ends"), n.attr("axes"), None
    else:
        starts, ends, axes, steps = (t.integers(n, p) for p in (1, 2, 3, 4))
    if starts is None or ends is None:
        raise ImportModelError(f"operator '{n.name}' (Slice) has no starts or ends")
    axes = [d % value.rank for d in axes] if axes else list(range(len(starts)))
    steps = steps or [1] * len(starts)
    if any(step < 0 for step in steps):
        return _reversed(t, n, axes, starts, ends, steps)
    if value.initializer is not None and len(axes) == 1 and steps == [1]:
        first, stop, _ = slice(starts[0], ends[0]).indices(value.shape[axes[0]])
        return t.part(value, axes[0], first, max(first, stop))
    x = t.use(value)
    for dim, start, end, step in zip(axes, starts, ends, steps, strict=True):
        first, stop, _ = slice(start, end, step).indices(value.shape[dim])
        x = t.cut(n, x, dim, first, max(first, stop), step)
    return x


def _reversed(
    t: Translator, n: Node, axes: list[int], starts: list[int], ends: list[int], steps: list[int]
) -> str:
    """A slice backwards picks rows by a constant index."""
    x = t.use(n.value(0))
    for dim, start, end, step in zip(axes, starts, ends, steps, strict=True):
        shape = list(t.size(x))
        # Python takes -1 for the last row where ONNX, for huge negative ends, means the very first.
        picked = range(shape[dim])[start : None if end < -shape[dim] else end : step]
        index = np.array(picked, dtype=np.int64)
        rows = t.use(Value(f"{n.name}/rows", index.shape, 7, data=index, constant=True))
        shape[dim] = len(picked)
        x = t.emit(n, "index_select", (x, rows), shape, dim=dim)
    return x


@register("Pad")
def _pad(t: Translator, n: Node) -> Names | Value:
    value = n.value(0)
    pads = n.attr("pads") or n.attr("paddings") or t.integers(n, 1) or []
    axes = t.integers(n, 3)
    axes = [d % value.rank for d in axes] if axes else list(range(value.rank))
    pairs = [[0, 0] for _ in value.shape]
    for position, dim in enumerate(axes):
        pairs[dim] = [int(pads[position]), int(pads[position + len(axes)])]
    number = t.number(n.inputs[2]) if n.has(2) else None
    fill = float(n.attr("value", 0.0)) if number is None else number
    x = t.use(value)
    for dim, (before, after) in enumerate(pairs):
        if before < 0 or after < 0:  # Negative padding cuts.
            x = t.cut(n, x, dim, max(0, -before), t.size(x)[dim] - max(0, -after))
            pairs[dim] = [max(0, before), max(0, after)]
    return pad(t, n, x, pairs, fill, str(n.attr("mode", "constant")))


def pad(
    t: Translator, n: Node, x: str, pairs: list[list[int]], fill: float, mode: str = "constant"
) -> str:
    """Pad each dim before and after; nothing if there is nothing to add."""
    if not any(any(pair) for pair in pairs):
        return x
    shape = [s + before + after for s, (before, after) in zip(t.size(x), pairs, strict=True)]
    attributes: dict[str, Any] = {} if mode == "constant" else {"mode": mode}
    if math.isfinite(fill):
        attributes["value"] = fill
    else:
        attributes["value"] = math.copysign(np.finfo(np.float32).max.item(), fill)
    return t.emit(n, "pad", (x,), shape, pads=pairs, **attributes)


@register("Resize", "Upsample")
def _resize(t: Translator, n: Node) -> Names | Value | None:
    value = n.value(0)
    shape = _resized(t, n, value)
    if shape == value.shape:
        return value
    if value.rank < 3 or shape[:2] != value.shape[:2]:
        return None
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(str(n.attr("mode", "nearest")))
    scale = [o / i for o, i in zip(shape[2:], value.shape[2:], strict=True)]
    whole = [int(s) if s == int(s) else s for s in scale]
    return t.emit(
        n, "upsample", (t.use(value),), shape, mode=mode or n.attr("mode", "nearest"), scale=whole
    )


def _resized(t: Translator, n: Node, value: Value) -> tuple[int, ...]:
    if t.rebatch is not None:
        return (*value.shape[:2], *t.rebatch.shapes[n.outputs[0]][2:])
    if n.shapes[0] is not None:
        return n.shapes[0]
    sizes = t.integers(n, 3)
    if sizes:
        return (*value.shape[: value.rank - len(sizes)], *sizes)
    position = 2 if n.op == "Resize" and n.opset >= 11 else 1
    scales = n.attr("scales")
    if scales is None and n.has(position):
        scales = t.array(n.value(position))
    if scales is None:
        return n.shape(0)
    flat = np.asarray(scales).reshape(-1)
    return tuple(math.floor(s * float(f)) for s, f in zip(value.shape, flat, strict=True))


@register("DepthToSpace")
def _depth_to_space(t: Translator, n: Node) -> Names:
    b, c, h, w = n.value(0).shape
    r, x = int(n.attr("blocksize")), t.use(n.value(0))
    if n.attr("mode", "DCR") == "DCR":
        x = t.transpose(n, t.view(n, x, (b, r, r, c // r**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        x = t.transpose(n, t.view(n, x, (b, c // r**2, r, r, h, w)), (0, 1, 4, 2, 5, 3))
    return t.view(n, x, (b, c // r**2, h * r, w * r))


@register("SpaceToDepth")
def _space_to_depth(t: Translator, n: Node) -> Names:
    b, c, h, w = n.value(0).shape
    r, x = int(n.attr("blocksize")), t.use(n.value(0))
    x = t.transpose(n, t.view(n, x, (b, c, h // r, r, w // r, r)), (0, 3, 5, 1, 2, 4))
    return t.view(n, x, (b, c * r * r, h // r, w // r))


@register("Gather")
def _gather(t: Translator, n: Node) -> Names:
    table, index = n.value(0), n.value(1)
    axis = int(n.attr("axis", 0)) % table.rank
    if table.is_parameter and table.rank == 2 and axis == 0 and index.rank:
        inputs = (t.use(index), t.use(table))
        shape = (*index.shape, table.shape[1])
        dtype = dtype_name(table.elem)
        return t.emit(n, "embedding", inputs, shape, dtype=dtype, padding_idx=None)
    rows = t.array(index)
    x = t.use(table)
    shape = (*table.shape[:axis], *index.shape, *table.shape[axis + 1 :])
    if rows is not None and rows.size:
        flat = [int(r) % table.shape[axis] for r in np.asarray(rows).reshape(-1)]
        if flat == list(range(flat[0], flat[0] + len(flat))):
            return t.view(n, t.cut(n, x, axis, flat[0], flat[0] + len(flat)), shape)
    return t.emit(n, "index_select", (x, t.use(index)), shape, dim=axis)


@register("GatherElements")
def _gather_elements(t: Translator, n: Node) -> Names:
    table, index = n.value(0), n.value(1)
    axis = int(n.attr("axis", 0)) % table.rank
    return t.emit(n, "gather", (t.use(table), t.use(index)), index.shape, dim=axis)


@register("ScatterElements", "Scatter")
def _scatter(t: Translator, n: Node) -> Names | None:
    x, index, source = (n.value(p) for p in range(3))
    mode = n.attr("reduction", "none")
    if mode not in ("none", "add"):
        return None
    axis = int(n.attr("axis", 0)) % x.rank
    inputs = (t.use(x), t.use(index), t.use(source))
    reduction = None if mode == "none" else mode
    return t.emit(n, "scatter", inputs, x.shape, dim=axis, reduce=reduction)


@register("TopK")
def _topk(t: Translator, n: Node) -> Names:
    value = n.value(0)
    axis = int(n.attr("axis", -1)) % value.rank
    k = int(n.attr("k") or (t.integers(n, 1) or [1])[0])
    shape = (*value.shape[:axis], k, *value.shape[axis + 1 :])
    dtypes = [dtype_name(value.elem), "int64"]
    return t.emit_many(n, "topk", (t.use(value),), [shape, shape], dtypes, k=k, dim=axis)


@register("OneHot")
def _one_hot(t: Translator, n: Node) -> Names:
    index = n.value(0)
    classes = (t.integers(n, 1) or [0])[0]
    axis = int(n.attr("axis", -1))
    axis = axis + index.rank + 1 if axis < 0 else axis
    dtype = dtype_name(n.elems[0])
    y = t.emit(n, "one_hot", (t.use(index),), (*index.shape, classes), dtype=dtype, classes=classes)
    perm = [*range(axis), index.rank, *range(axis, index.rank)]
    return t.transpose(n, y, perm)


@register("Trilu")
def _trilu(t: Translator, n: Node) -> Names | Value:
    """A triangle is what a constant mask leaves."""
    value = n.value(0)
    rows, columns = value.shape[-2:]
    offset = (t.integers(n, 1) or [0])[0]
    kept = np.tri(rows, columns, offset, dtype=bool)
    if n.attr("upper", 1):
        kept = ~np.tri(rows, columns, offset - 1, dtype=bool)
    mask = Value(f"{n.name}/mask", kept.shape, 9, data=~kept, constant=True)
    return t.apply(n, "masked_fill", t.use(value), t.use(mask), scalars=[0.0])
