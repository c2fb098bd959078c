"""Emission: values of an ONNX model become tensors and operators of the neutral graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensoropt.errors import ImportModelError
from tensoropt.graph import GraphBuilder, Operator
from tensoropt.importing.onnx_values import Node, Shape, Value, dtype_name, mask_kind

__all__ = ["MOST_ELEMENTS", "Emitter"]

# Constants with more elements are not computed, only their shape is known.
MOST_ELEMENTS = 1 << 17


class Emitter:
    """Makes tensors of values when they are read, and operators of them.

    Parameters
    ----------
    title : str
        Name of the graph.
    base_dir : str
        Where external data would lie.
    """

    def __init__(self, title: str, base_dir: str) -> None:
        self.builder = GraphBuilder(title)
        self.uses: Counter[str] = Counter()
        self.linears: dict[str, int] = {}
        self._base_dir = base_dir
        self._protos: dict[str, Any] = {}
        self._tables: dict[tuple[Any, ...], str] = {}
        self._makers: dict[str, int] = {}
        self._declared: dict[tuple[str, tuple[Any, ...]], str] = {}
        self._buffers: set[str] = set()

    # -- content --

    def _load(self, name: str) -> Any:
        """Content of an initializer, if it is small and at hand."""
        from onnx import checker, numpy_helper

        proto = self._protos.get(name)
        if proto is None or math.prod(proto.dims) > MOST_ELEMENTS:
            return None
        try:
            return numpy_helper.to_array(proto, self._base_dir)
        except (OSError, ValueError, TypeError, checker.ValidationError):
            return None

    def array(self, value: Value) -> Any:
        """Content of a value, if it is known before training."""
        if value.data is None and value.initializer is not None and not value.chain:
            return self._load(value.initializer)
        return value.data

    def integers(self, node: Node, position: int) -> list[int] | None:
        """Content of an optional operand of integers.

        Raises
        ------
        ImportModelError
            If it is there and depends on data.
        """
        if not node.has(position):
            return None
        data = self.array(node.value(position))
        if data is None:
            raise ImportModelError(
                f"input {position} of operator '{node.name}' ({node.op}) depends on data: "
                "export the model with fixed sizes there"
            )
        return [int(x) for x in np.asarray(data).reshape(-1)]

    def number(self, value: Value | None) -> float | None:
        """Content of a value of one element that is no parameter, if it is known."""
        if value is None or math.prod(value.shape) != 1:
            return None
        data = self.array(value)
        return None if data is None else float(np.asarray(data).reshape(-1)[0])

    # -- emission --

    def use(self, value: Value) -> str:
        """The tensor of a value, made on first use."""
        if value.tensor is None:
            value.tensor = self._made(value)
        return value.tensor

    def _made(self, value: Value) -> str:
        if value.items is not None:
            raise ImportModelError(
                f"the sequence '{value.name}' is read as a tensor: the file is damaged"
            )
        if value.parts:
            joined = [self.use(part) for part in value.parts]
            first = value.parts[0].shape
            shape = (sum(part.shape[0] for part in value.parts), *first[1:])
            tensor = self._part(value.name, "concat", joined, shape, dim=0)
            return (
                tensor
                if shape == value.shape
                else self._part(value.name, "view", (tensor,), value.shape)
            )
        if value.initializer is not None:
            return self._parameter(value, value.initializer)
        # Equal tables are one tensor: layers that each make their own are then alike.
        content = None if value.data is None else np.asarray(value.data).tobytes()
        key = (value.shape, value.elem, content)
        if content is None or key not in self._tables:
            name = self.fresh(value.name or "constant")
            op = "causal_mask" if mask_kind(value) == "causal" else "table"
            self._tables[key] = self.builder.op(
                "constant", (), value.shape, name=name, dtype=dtype_name(value.elem), op=op,
                source=value.name,
            )  # fmt: skip
        return self._tables[key]

    def _part(
        self, name: str, family: str, inputs: Sequence[str], shape: Shape, **attributes: Any
    ) -> str:
        """Add an operator on parameters."""
        label = self.fresh(f"{name}/{family}")
        return self.builder.op(family, inputs, shape, name=label, source=name, **attributes)

    def buffer(self, value: Value) -> str:
        """The tensor of a value that is kept and not trained."""
        if value.initializer is not None:
            self._buffers.add(value.initializer)
        return self.use(value)

    def _parameter(self, value: Value, name: str) -> str:
        # A view of a weight that nobody reads otherwise is the weight in another shape.
        sliced = any(family == "slice" for family, _ in value.chain)
        alone = self.uses[name] <= 1 and not sliced
        key = (name, value.chain if alone else ())
        if key not in self._declared:
            base = self._protos.get(name)
            shape = value.shape if alone or base is None else tuple(base.dims)
            make = self.builder.buffer if name in self._buffers else self.builder.parameter
            self._declared[key] = make(self.fresh(name), shape, dtype_name(value.elem))
        tensor = self._declared[key]
        if alone:
            return tensor
        for family, argument in value.chain:
            given = self.builder.tensors[tensor].shape
            if family == "view":
                tensor = self._part(name, family, (tensor,), argument)
            elif family == "transpose":
                shape = tuple(given[d] for d in argument)
                tensor = self._part(name, family, (tensor,), shape, perm=list(argument))
            else:
                dim, start, stop = argument
                shape = (*given[:dim], stop - start, *given[dim + 1 :])
                bounds = {"dim": dim, "start": start, "stop": stop, "step": 1}
                tensor = self._part(name, family, (tensor,), shape, **bounds)
        return tensor

    def fresh(self, name: str) -> str:
        """The name itself, or with a number if a tensor has it."""
        taken, number, candidate = self.builder.tensors, 0, name
        while candidate in taken or f"{candidate}:0" in taken:
            number += 1
            candidate = f"{name}#{number}"
        return candidate

    def emit(
        self,
        node: Node,
        family: str,
        inputs: Iterable[str],
        shape: Iterable[int] | None = None,
        *,
        dtype: str | None = None,
        **attributes: Any,
    ) -> str:
        """Add an operator with one result, by default of the shape of the node's first one."""
        size = node.shape(0) if shape is None else tuple(shape)
        name = self.fresh(node.name)
        self._makers[name] = len(self.builder.operators)
        return self.builder.op(
            family, inputs, size, name=name, source=node.source, dtype=dtype, **attributes
        )

    def emit_many(
        self,
        node: Node,
        family: str,
        inputs: Iterable[str],
        shapes: Iterable[Shape],
        dtypes: Iterable[str] | None = None,
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Add an operator with several results."""
        name = self.fresh(node.name)
        return self.builder.ops(
            family, inputs, shapes, name=name, source=node.source, dtypes=dtypes, **attributes
        )

    def maker(self, tensor: str, family: str, op: str | None = None) -> Operator | None:
        """Give the operator that made a tensor, if it is of that family (and elementwise op)."""
        position = self._makers.get(tensor)
        found = None if position is None else self.builder.operators[position]
        if found is None or found.family != family:
            return None
        return found if op is None or found.attributes.get("op") == op else None

    def size(self, tensor: str) -> Shape:
        """Shape of a tensor of the graph."""
        return self.builder.tensors[tensor].shape

    def view(self, node: Node, x: str, shape: Iterable[int]) -> str:
        """Reshape; nothing if the shape is as it was."""
        shape = tuple(shape)
        return x if self.size(x) == shape else self.emit(node, "view", (x,), shape)

    def reshaped(self, node: Node, value: Value, shape: Shape) -> Value:
        """A value in another shape; of what is not fed nor made, without an operator."""
        if value.shape == shape:
            return value
        if value.parts:
            return replace(value, shape=shape, tensor=None)
        if value.initializer is not None:
            return replace(value, shape=shape, chain=(*value.chain, ("view", shape)), tensor=None)
        if value.constant:
            data = None if value.data is None else np.asarray(value.data).reshape(shape)
            return replace(value, shape=shape, data=data, tensor=None)
        return replace(value, shape=shape, tensor=self.view(node, self.use(value), shape))

    def part(self, value: Value, dim: int, start: int, stop: int) -> Value:
        """A range of a parameter, cut when somebody reads it."""
        size = value.shape[dim]
        if (start, stop) == (0, size):
            return value
        shape = (*value.shape[:dim], stop - start, *value.shape[dim + 1 :])
        chain = (*value.chain, ("slice", (dim, start, stop)))
        return replace(value, shape=shape, chain=chain, tensor=None, cut_from=size)

    def transpose(self, node: Node, x: str, perm: Sequence[int]) -> str:
        """Permute; nothing if the order is as it was."""
        if list(perm) == sorted(perm):
            return x
        shape = [self.size(x)[d] for d in perm]
        return self.emit(node, "transpose", (x,), shape, perm=[int(d) for d in perm])

    def expand(self, node: Node, x: str, shape: Iterable[int]) -> str:
        """Repeat dims of size 1; nothing if the shape is as it was."""
        shape = tuple(shape)
        return x if self.size(x) == shape else self.emit(node, "expand", (x,), shape)

    def cut(self, node: Node, x: str, dim: int, start: int, stop: int, step: int = 1) -> str:
        """Take a range of a dim; nothing if it is all of it."""
        shape = list(self.size(x))
        if (start, stop, step) == (0, shape[dim], 1):
            return x
        shape[dim] = len(range(start, stop, step))
        return self.emit(node, "slice", (x,), shape, dim=dim, start=start, stop=stop, step=step)

    def apply(
        self, node: Node, op: str, *operands: str, dtype: str | None = None, **attributes: Any
    ) -> str:
        """Add an elementwise operator whose operands broadcast."""
        shape = np.broadcast_shapes(*(self.size(x) for x in operands))
        return self.emit(node, "elementwise", operands, shape, dtype=dtype, op=op, **attributes)

    def linear(
        self, node: Node, x: str, weight: Value, *, swapped: bool, bias: Value | None = None
    ) -> str:
        """Add a linear layer; the weight is ``[k, n]``, or ``[n, k]`` if ``swapped``."""
        if weight.chain and weight.chain[-1] == ("transpose", (1, 0)):
            # Read the weight as it is stored, so that one that is tied stays one tensor.
            shape = weight.shape[::-1]
            weight = replace(weight, chain=weight.chain[:-1], shape=shape, tensor=None)
            swapped = not swapped
        columns = weight.shape[0] if swapped else weight.shape[1]
        inputs = [x, self.use(weight)]
        if bias is not None:
            flat = (columns,)
            if bias.shape != flat:
                bias = replace(bias, shape=flat, chain=(*bias.chain, ("view", flat)), tensor=None)
            inputs.append(self.use(bias))
        shape = (*self.size(x)[:-1], columns)
        result = self.emit(node, "linear", inputs, shape, weight="nk" if swapped else "kn")
        self.linears[result] = len(self.builder.operators) - 1
        return result

    def linear_bias(self, product: Value, bias: Value) -> str:
        """Give the linear layer that made ``product`` a bias."""
        assert product.tensor is not None
        position = self.linears[product.tensor]
        operator = self.builder.operators[position]
        inputs = (*operator.inputs, self.use(bias))
        self.builder.operators[position] = replace(operator, inputs=inputs)
        return product.tensor

    def note(self, text: str) -> None:
        """Record something that every report must say."""
        self.builder.note(text)
