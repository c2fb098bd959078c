"""Handlers of operators that move elements: views, slices, concatenation, indexing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensoropt.importing.torch_translate import Name, Names, Translator, register

_END = 1 << 62


def normal(dim: int, rank: int) -> int:
    """A dim counted from the front."""
    return dim + rank if dim < 0 else dim


@register(
    "view",
    "_unsafe_view",
    "reshape",
    "flatten",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "view_as",
    "reshape_as",
    "_reshape_alias",
    "ravel",
)
def _view(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    return t.view(node, t.tensor(_first(node)), t.shape(node))


@register(
    "alias",
    "clone",
    "contiguous",
    "lift_fresh_copy",
    "lift_fresh",
    "lift",
    "positive",
    "_to_copy",
    "to",
    "type_as",
    "view_of",
    "detach_copy",
    "alias_copy",
    "expand_as",
    "expand",
    "broadcast_to",
)
def _same_or_expand(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(_first(node))
    if t.size(x) != t.shape(node):
        return t.emit(node, "expand", (x,))
    if t.builder.tensors[x].dtype != t.dtype(node):
        return t.emit(node, "elementwise", (x,), op="cast")
    return x


@register("fill")
def _fill(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    value = t.tensor(a["value"])
    return value if t.size(value) == t.shape(node) else t.emit(node, "expand", (value,))


@register("broadcast_tensors")
def _broadcast_tensors(t: Translator, node: Any, a: dict[str, Any]) -> Names:
    shape = tuple(int(s) for s in node.meta["val"][0].shape)
    names = [t.tensor(n) for n in a["tensors"]]
    return tuple(n if t.size(n) == shape else t.emit(node, "expand", (n,), shape) for n in names)


@register("detach")
def _detach(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["self"])
    if not t.builder.tensors[x].requires_grad:
        return x
    return t.emit(node, "view", (x,), label="detach", requires_grad=False)


@register("permute")
def _permute(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    rank = len(a["dims"])
    return t.transpose(node, t.tensor(a["self"]), [normal(d, rank) for d in a["dims"]])


@register("transpose", "swapaxes", "swapdims", "t", "numpy_T", "mT", "adjoint")
def _transpose(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(_first(node))
    rank = len(t.size(x))
    perm = list(range(rank))
    if rank >= 2:
        # `t`, `mT` and `adjoint` name no dims: they exchange the last two.
        first, second = (a.get("dim0", a.get("axis0", -2)), a.get("dim1", a.get("axis1", -1)))
        i, j = normal(first, rank), normal(second, rank)
        perm[i], perm[j] = perm[j], perm[i]
    return t.transpose(node, x, perm)


@register("movedim")
def _movedim(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["self"])
    rank = len(t.size(x))
    as_list = [v if isinstance(v, (list, tuple)) else [v] for v in (a["source"], a["destination"])]
    source = [normal(d, rank) for d in as_list[0]]
    target = [normal(d, rank) for d in as_list[1]]
    rest = iter(d for d in range(rank) if d not in source)
    perm = [source[target.index(d)] if d in target else next(rest) for d in range(rank)]
    return t.transpose(node, x, perm)


@register("repeat", "tile")
def _repeat(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    repeats = list(a.get("repeats") or a["dims"])
    x = t.tensor(a["self"])
    shape = list(t.size(x))
    shape = [1] * (len(repeats) - len(shape)) + shape
    repeats = [1] * (len(shape) - len(repeats)) + repeats
    x = t.view(node, x, shape)
    split: list[int] = []
    grown: list[int] = []
    for size, count in zip(shape, repeats, strict=True):
        if count != 1 and size != 1:
            split += [1, size]
            grown += [count, size]
        else:
            split.append(size)
            grown.append(size * count)
    x = t.view(node, x, split)
    if grown != split:
        x = t.emit(node, "expand", (x,), grown)
    return t.view(node, x, t.shape(node))


@register("repeat_interleave")
def _repeat_interleave(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    if not isinstance(a.get("repeats"), int) or "self" not in a:
        return t.opaque(node)
    x = t.tensor(a["self"])
    if a.get("dim") is None:
        x = t.view(node, x, [math.prod(t.size(x))])
    dim = normal(a.get("dim") or 0, len(t.size(x)))
    shape = t.size(x)
    x = t.view(node, x, [*shape[: dim + 1], 1, *shape[dim + 1 :]])
    x = t.emit(node, "expand", (x,), [*shape[: dim + 1], a["repeats"], *shape[dim + 1 :]])
    return t.view(node, x, t.shape(node))


def cut(t: Translator, node: Any, x: Name, dim: int, start: int, stop: int, step: int = 1) -> Name:
    """Elements ``start:stop:step`` of a dim; nothing if those are all."""
    size = t.size(x)[dim]
    start, stop = (max(v + size, 0) if v < 0 else min(v, size) for v in (start, stop))
    if (start, stop, step) == (0, size, 1):
        return x
    shape = list(t.size(x))
    shape[dim] = max(0, -(-(stop - start) // step))
    return t.emit(
        node,
        "slice",
        (x,),
        shape,
        dtype=t.builder.tensors[x].dtype,
        dim=dim,
        start=start,
        stop=stop,
        step=step,
    )


@register("slice", "slice_copy")
def _slice(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["self"])
    start = 0 if a.get("start") is None else a["start"]
    stop = _END if a.get("end") is None else a["end"]
    return cut(t, node, x, normal(a["dim"], len(t.size(x))), start, stop, a["step"])


@register("narrow")
def _narrow(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["self"])
    dim = normal(a["dim"], len(t.size(x)))
    start = a["start"] + (t.size(x)[dim] if a["start"] < 0 else 0)
    return cut(t, node, x, dim, start, start + a["length"])


@register("select", "select_copy")
def _select(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["self"])
    dim = normal(a["dim"], len(t.size(x)))
    index = a["index"] + (t.size(x)[dim] if a["index"] < 0 else 0)
    return t.view(node, cut(t, node, x, dim, index, index + 1), t.shape(node))


def divide(t: Translator, node: Any, x: Name, dim: int, sizes: Sequence[int]) -> Names:
    """Parts of a dim; the tensor itself if there is one part."""
    if len(sizes) == 1:
        return (x,)
    shapes = []
    for size in sizes:
        shape = list(t.size(x))
        shape[dim] = int(size)
        shapes.append(tuple(shape))
    dtype = t.builder.tensors[x].dtype
    return t.emit_many(
        node,
        "split",
        (x,),
        shapes,
        dtypes=[dtype] * len(sizes),
        dim=dim,
        sizes=[int(s) for s in sizes],
    )


@register(
    "split",
    "split_with_sizes",
    "chunk",
    "tensor_split",
    "split_copy",
    "unsafe_split",
    "unsafe_chunk",
    "split_with_sizes_copy",
)
def _split(t: Translator, node: Any, a: dict[str, Any]) -> Names:
    x = t.tensor(a["self"])
    dim = normal(a["dim"], len(t.size(x)))
    return divide(t, node, x, dim, [int(v.shape[dim]) for v in node.meta["val"]])


@register("unbind", "unbind_copy")
def _unbind(t: Translator, node: Any, a: dict[str, Any]) -> Names:
    x = t.tensor(a["self"])
    dim = normal(a["dim"], len(t.size(x)))
    shape = t.size(x)
    parts = divide(t, node, x, dim, [1] * shape[dim])
    return tuple(t.view(node, part, [*shape[:dim], *shape[dim + 1 :]]) for part in parts)


@register("cat", "concat", "concatenate")
def _cat(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    rank = len(t.shape(node))
    # torch accepts empty one-dimensional operands and skips them.
    parts = [t.tensor(n) for n in a["tensors"] if t.shape(n) != (0,) or rank == 1]
    if len(parts) == 1:
        return parts[0]
    return t.emit(node, "concat", parts, dim=normal(a["dim"], rank))


@register("stack")
def _stack(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    shape = t.shape(node)
    dim = normal(a["dim"], len(shape))
    one = [*shape[:dim], 1, *shape[dim + 1 :]]
    parts = [t.view(node, t.tensor(n), one) for n in a["tensors"]]
    return parts[0] if len(parts) == 1 else t.emit(node, "concat", parts, dim=dim)


@register("slice_scatter")
def _slice_scatter(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    if a["step"] != 1:
        return t.opaque(node)
    x = t.tensor(a["self"])
    dim = normal(a["dim"], len(t.size(x)))
    size = t.size(x)[dim]
    start = 0 if a.get("start") is None else a["start"]
    stop = size if a.get("end") is None else a["end"]
    start, stop = (max(v + size, 0) if v < 0 else min(v, size) for v in (start, stop))
    parts = [t.tensor(a["src"])]
    if start > 0:
        parts.insert(0, cut(t, node, x, dim, 0, start))
    if stop < size:
        parts.append(cut(t, node, x, dim, stop, size))
    return parts[0] if len(parts) == 1 else t.emit(node, "concat", parts, dim=dim)


@register("select_scatter")
def _select_scatter(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["self"])
    shape = t.size(x)
    dim = normal(a["dim"], len(shape))
    index = a["index"] + (shape[dim] if a["index"] < 0 else 0)
    parts = [t.view(node, t.tensor(a["src"]), [*shape[:dim], 1, *shape[dim + 1 :]])]
    if index > 0:
        parts.insert(0, cut(t, node, x, dim, 0, index))
    if index + 1 < shape[dim]:
        parts.append(cut(t, node, x, dim, index + 1, shape[dim]))
    return parts[0] if len(parts) == 1 else t.emit(node, "concat", parts, dim=dim)


@register("copy")
def _copy(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["src"])
    if t.builder.tensors[x].dtype != t.dtype(node):
        x = t.emit(node, "elementwise", (x,), t.size(x), op="cast")
    return x if t.size(x) == t.shape(node) else t.emit(node, "expand", (x,))


@register("roll")
def _roll(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    if not a["dims"]:
        return t.opaque(node)
    x = t.tensor(a["self"])
    for shift, dim in zip(a["shifts"], a["dims"], strict=True):
        size = t.size(x)[dim]
        at = -shift % size
        if at:
            halves = divide(t, node, x, normal(dim, len(t.size(x))), [at, size - at])
            x = t.emit(node, "concat", halves[::-1], dim=normal(dim, len(t.size(x))))
    return x


@register("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad2d")
def _pad(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["self"])
    flat = list(a.get("pad") or a.get("padding") or [])
    pads = [[0, 0] for _ in t.size(x)]
    for position in range(len(flat) // 2):
        pads[-1 - position] = [int(flat[2 * position]), int(flat[2 * position + 1])]
    if not any(map(any, pads)):
        return x
    mode = a.get("mode") or {"r": "reflect"}.get(str(node.target).split(".")[1][0], "constant")
    return t.emit(node, "pad", (x,), pads=pads, value=a.get("value") or 0.0, mode=mode)


@register("index_select")
def _index_select(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["self"])
    return t.emit(
        node, "index_select", (x, t.tensor(a["index"])), dim=normal(a["dim"], len(t.size(x)))
    )


@register("index", "_unsafe_index")
def _index(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    given = [(dim, i) for dim, i in enumerate(a["indices"]) if i is not None]
    if len(given) != 1 or t.dtype(given[0][1]) in ("bool", "uint8"):
        return t.opaque(node)
    dim, index = given[0]
    return t.emit(node, "index_select", (t.tensor(a["self"]), t.tensor(index)), dim=dim)


@register("flip")
def _flip(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["self"])
    for dim in a["dims"]:
        dim = normal(dim, len(t.size(x)))
        size = t.size(x)[dim]
        index = made_constant(t, node, (size,), "int64", op="arange", start=size - 1, step=-1)
        x = t.emit(node, "index_select", (x, index), dim=dim)
    return x


def made_constant(
    t: Translator, node: Any, shape: Sequence[int], dtype: str, **attributes: Any
) -> Name:
    """A constant that the source does not hold as a tensor; its attributes say its value."""
    label = f"constant/{attributes['op']}"
    return t.emit(
        node, "constant", (), shape, dtype=dtype, label=label, requires_grad=False, **attributes
    )


@register("gather")
def _gather(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["self"])
    return t.emit(node, "gather", (x, t.tensor(a["index"])), dim=normal(a["dim"], len(t.size(x))))


@register("scatter", "scatter_add", "scatter_reduce")
def _scatter(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    x, index = t.tensor(a["self"]), t.tensor(a["index"])
    reduce = "add" if base(node) == "scatter_add" else a.get("reduce")
    reduce = {"sum": "add", "add": "add", None: None}.get(reduce, "other")
    if reduce == "other":
        return t.opaque(node)
    if "src" in a:
        source = t.tensor(a["src"])
    else:
        dtype = t.builder.tensors[x].dtype
        source = made_constant(t, node, t.size(index), dtype, op="full", value=a["value"])
    dim = normal(a["dim"], len(t.size(x)))
    return t.emit(node, "scatter", (x, index, source), dim=dim, reduce=reduce)


@register("topk")
def _topk(t: Translator, node: Any, a: dict[str, Any]) -> Names:
    return _ranked(t, node, "topk", k=a["k"], dim=normal(a["dim"], len(t.shape(a["self"]))))


@register("sort")
def _sort(t: Translator, node: Any, a: dict[str, Any]) -> Names:
    return _ranked(t, node, "sort", dim=normal(a.get("dim", -1), len(t.shape(a["self"]))))


def _ranked(t: Translator, node: Any, family: str, **attributes: Any) -> Names:
    x = t.tensor(_first(node))
    values, indices = node.meta["val"]
    shapes = [tuple(int(s) for s in v.shape) for v in (values, indices)]
    return t.emit_many(
        node, family, (x,), shapes, dtypes=[t.builder.tensors[x].dtype, "int64"], **attributes
    )


@register("one_hot")
def _one_hot(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    return t.emit(node, "one_hot", (t.tensor(a["self"]),), classes=t.shape(node)[-1])


def base(node: Any) -> str:
    """Name of a node's operator without namespace and overload."""
    return str(node.target).split(".")[1]


def _first(node: Any) -> Any:
    return node.args[0]
