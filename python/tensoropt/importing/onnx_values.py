"""What ONNX names stand for while a model is read: values, nodes, element types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensoropt.errors import ImportModelError
from tensoropt.graph import FLOATING

__all__ = [
    "Names",
    "Node",
    "Shape",
    "Value",
    "as_value",
    "dtype_name",
    "elem_of",
    "elem_type",
    "is_floating",
    "is_known",
    "mask_kind",
    "type_of",
]

Shape = tuple[int, ...]
Names = str | tuple[str | None, ...]


@dataclass(slots=True)
class Value:
    """What an ONNX name stands for.

    Parameters
    ----------
    name : str
    shape : tuple of int
    elem : int
        ``TensorProto.DataType``.
    tensor : str or None
        The tensor of the graph, once there is one.
    data : array or None
        The content, of a small constant.
    constant : bool
        Whether nothing fed or trained flows into it.
    initializer : str or None
        The initializer that it is (as a parameter or buffer), seen through ``chain``.
    chain : tuple
        Views ``('view', shape)``, transposes ``('transpose', perm)`` and, not yet joined again,
        slices ``('slice', (dim, start, stop))`` since the initializer.
    parts : tuple of Value
        Parameters that it is a concatenation of, along dim 0 once views are undone.
    items : list of Value or None
        Members, of a sequence.
    cut_from : int
        Size of the sliced dim before the slice, if the chain ends with one.
    """

    name: str
    shape: Shape
    elem: int
    tensor: str | None = None
    data: Any = None
    constant: bool = False
    initializer: str | None = None
    chain: tuple[tuple[str, tuple[int, ...]], ...] = ()
    parts: tuple[Value, ...] = ()
    items: list[Value] | None = None
    cut_from: int = 0

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def is_parameter(self) -> bool:
        """Whether it is an initializer that is trained, a view of one, or several joined."""
        return self.initializer is not None or bool(self.parts)


@dataclass(slots=True)
class Node:
    """One ONNX node with its operands looked up and the types of its results inferred."""

    op: str
    name: str
    source: str
    opset: int
    inputs: list[Value | None]
    outputs: list[str]
    attributes: dict[str, Any]
    shapes: list[Shape | None] = field(default_factory=list)
    elems: list[int] = field(default_factory=list)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value."""
        return self.attributes.get(name, default)

    def has(self, position: int) -> bool:
        """Whether the optional operand is there."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def value(self, position: int) -> Value:
        """An operand.

        Raises
        ------
        ImportModelError
            If it is absent.
        """
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            raise ImportModelError(f"operator '{self.name}' ({self.op}) lacks input {position}")
        return found

    def shape(self, position: int = 0) -> Shape:
        """The shape of a result.

        Raises
        ------
        ImportModelError
            If it depends on data.
        """
        found = self.shapes[position] if position < len(self.shapes) else None
        if found is None:
            raise ImportModelError(
                f"the shape of '{self.outputs[position]}', made by operator '{self.name}' "
                f"({self.op}), depends on data: export the model with fixed sizes there"
            )
        return found


_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "int16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "int32",
    13: "int64",
    14: "complex64",
    16: "bfloat16",
    17: "float8",
    18: "float8",
    19: "float8",
    20: "float8",
    21: "uint8",
    22: "int8",
}


def mask_kind(mask: Value) -> str:
    """Say if a constant mask hides nothing (``none``), the future (``causal``) or ``other``."""
    if mask.data is None or not mask.constant or mask.rank < 2 or dtype_name(mask.elem) == "int64":
        return "other"
    data = np.asarray(mask.data)
    seen = data if data.dtype == bool else data > -1e4
    if data.dtype != bool and np.any(data[seen]):
        return "other"  # It adds something to scores that it does not hide.
    if np.all(seen):
        return "none"
    rows, columns = data.shape[-2:]
    return "causal" if np.all(seen == np.tri(rows, columns, dtype=bool)) else "other"


def as_value(name: str, number: int) -> Value:
    """A constant integer."""
    return Value(name, (), 7, data=np.array(number, dtype=np.int64), constant=True)


def dtype_name(elem: int) -> str:
    """Name of an element type of ONNX in the neutral graph.

    Raises
    ------
    ImportModelError
        If the graph has no such dtype (strings).
    """
    if elem not in _DTYPES:
        raise ImportModelError(
            f"ONNX element type {elem} has no counterpart: strings and 4-bit floats are not "
            "supported, cut them off before export"
        )
    return _DTYPES[elem]


def is_known(elem: int) -> bool:
    """Whether the graph has a dtype for an element type of ONNX."""
    return elem in _DTYPES


def is_floating(elem: int) -> bool:
    """Whether an element type of ONNX is a floating one that the graph knows."""
    return _DTYPES.get(elem) in FLOATING


def elem_type(dtype: str) -> int:
    """Element type of ONNX for a dtype of the neutral graph."""
    return next(elem for elem, name in _DTYPES.items() if name == dtype)


def elem_of(array: Any, otherwise: int) -> int:
    """Element type of ONNX of an array."""
    from onnx import helper

    try:
        return int(helper.np_dtype_to_tensor_dtype(array.dtype))
    except (KeyError, ValueError):
        return otherwise


def type_of(proto: Any) -> tuple[Shape | None, int]:
    """Shape (``None`` if any size is unknown) and element type of a ``TypeProto``."""
    if proto is None or not proto.HasField("tensor_type"):
        return None, 0
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return None, tensor.elem_type
    sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
    return (tuple(sizes) if all(s >= 0 for s in sizes) else None), tensor.elem_type
