"""Sequences of tensors: known at import, so that no operator remains of them."""

from __future__ import annotations

from dataclasses import replace

from tensoropt.errors import ImportModelError
from tensoropt.importing.onnx_translate import SEQUENCES, Translator
from tensoropt.importing.onnx_values import Node, Value, as_value


def _items(n: Node) -> list[Value]:
    items = n.value(0).items
    if items is None:
        raise ImportModelError(f"operator '{n.name}' ({n.op}) reads a tensor as a sequence")
    return items


def _bind(t: Translator, n: Node, items: list[Value]) -> None:
    t.values[n.outputs[0]] = Value(n.outputs[0], (), 1, items=items)


def _index(t: Translator, n: Node, position: int, size: int, otherwise: int) -> int:
    given = t.integers(n, position)
    index = given[0] if given else otherwise
    if not -size <= index <= size:
        raise ImportModelError(
            f"operator '{n.name}' ({n.op}) picks item {index} of a sequence of {size}"
        )
    return index % size if index < 0 else index


def _construct(t: Translator, n: Node) -> None:
    _bind(t, n, [v for v in n.inputs if v is not None])


def _insert(t: Translator, n: Node) -> None:
    items = list(_items(n))
    items.insert(_index(t, n, 2, len(items), len(items)), n.value(1))
    _bind(t, n, items)


def _erase(t: Translator, n: Node) -> None:
    items = list(_items(n))
    del items[_index(t, n, 1, len(items), len(items) - 1)]
    _bind(t, n, items)


def _at(t: Translator, n: Node) -> None:
    items = _items(n)
    chosen = items[_index(t, n, 1, len(items), 0)]
    t.values[n.outputs[0]] = replace(chosen, name=n.outputs[0])


def _length(t: Translator, n: Node) -> None:
    t.values[n.outputs[0]] = as_value(n.outputs[0], len(_items(n)))


def _split(t: Translator, n: Node) -> None:
    value = n.value(0)
    axis = int(n.attr("axis", 0)) % value.rank
    size = value.shape[axis]
    given = t.integers(n, 1) or [1]
    if n.has(1) and n.value(1).rank == 1:
        sizes = given
    else:
        sizes = [min(given[0], size - start) for start in range(0, size, given[0])]
    shapes = [(*value.shape[:axis], s, *value.shape[axis + 1 :]) for s in sizes]
    if len(sizes) == 1:
        items = [value]
    else:
        names = t.emit_many(n, "split", (t.use(value),), shapes, dim=axis, sizes=sizes)
        items = [
            Value(name, shape, value.elem, tensor=name)
            for name, shape in zip(names, shapes, strict=True)
        ]
    if not n.has(1) and not n.attr("keepdims", 1):
        items = [
            t.reshaped(n, item, (*item.shape[:axis], *item.shape[axis + 1 :])) for item in items
        ]
    _bind(t, n, items)


def _concat(t: Translator, n: Node) -> None:
    items = _items(n)
    rank = items[0].rank
    axis = int(n.attr("axis", 0))
    if n.attr("new_axis", 0):
        axis = axis + rank + 1 if axis < 0 else axis
        items = [t.reshaped(n, v, (*v.shape[:axis], 1, *v.shape[axis:])) for v in items]
    else:
        axis %= rank
    shape = list(items[0].shape)
    shape[axis] = sum(v.shape[axis] for v in items)
    name = t.emit(n, "concat", [t.use(v) for v in items], shape, dim=axis)
    t.values[n.outputs[0]] = Value(n.outputs[0], tuple(shape), items[0].elem, tensor=name)


SEQUENCES.update(
    {
        "SequenceConstruct": _construct,
        "SequenceEmpty": _construct,
        "SequenceInsert": _insert,
        "SequenceErase": _erase,
        "SequenceAt": _at,
        "SequenceLength": _length,
        "SplitToSequence": _split,
        "ConcatFromSequence": _concat,
    }
)
