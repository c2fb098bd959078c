"""ONNX nodes to operators of the neutral graph: values, shapes, folding, emission.

A :class:`Translator` walks the nodes once. What depends on nothing but constants is computed at
once (or, where large, remembered as a constant of known shape), so that shape arithmetic leaves no
trace. Floating initializers are parameters; they enter the graph when an operator reads them. Every
other node is handed to the handler that :func:`register` knows for its type, and becomes ``opaque``
where there is none.

Everything here imports onnx inside functions.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tensoropt.errors import ImportModelError
from tensoropt.graph import FLOATING, GraphBuilder, Operator

__all__ = [
    "HANDLERS",
    "SEQUENCES",
    "Node",
    "Rebatch",
    "Translator",
    "Value",
    "as_value",
    "dtype_name",
    "register",
]

Shape = tuple[int, ...]
Names = str | tuple[str | None, ...]
Handler = Callable[["Translator", "Node"], "Names | Value | None"]

HANDLERS: dict[str, Handler] = {}
"""Handlers by operator type, for the standard domain and those that extend it."""

SEQUENCES: dict[str, Callable[["Translator", "Node"], None]] = {}
"""Handlers of operators that make or take sequences of tensors; they bind their results."""

# Constants with more elements are not computed, only their shape is known.
_MOST_ELEMENTS = 1 << 17
# Initializers that frameworks keep as buffers, by the names they give them.
_FROZEN = re.compile(
    r"inv_freq|lifted_tensor|_tensor_constant|masked_bias|position_ids|"
    r"(attn|attention|causal)[._]?mask|rotary|(^|[._])(cos|sin)(_cached)?$"
)
_ARITHMETIC = frozenset(
    "Add Sub Mul Div Pow Sqrt Neg Exp Log Reciprocal Max Min Where Clip Cast Equal Greater Less "
    "GreaterOrEqual LessOrEqual Range Mod Resize Upsample Pad ConstantOfShape".split()
)
# Operators whose operands broadcast: a constant that repeats itself along the batch can be cut.
_BROADCASTS = _ARITHMETIC | frozenset(("And", "Or", "Xor", "Sum", "Attention", "Gather"))
_RANDOM = frozenset(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Bernoulli Multinomial".split()
)
_SUBGRAPHS = frozenset(("If", "Loop", "Scan", "SequenceMap"))
# What a node may do to the batch and be right nonetheless.
_ENDS_BATCH = frozenset(("Shape", "Size", "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"))


def register(*types: str) -> Callable[[Handler], Handler]:
    """Make a function the handler of ONNX operator types.

    It returns the names of the tensors it made (``None`` for results that it cannot give), or a
    :class:`Value`; ``None`` alone makes the node opaque.
    """

    def enter(handler: Handler) -> Handler:
        for name in types:
            assert name not in HANDLERS, f"two handlers for {name}"
            HANDLERS[name] = handler
        return handler

    return enter


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


@dataclass(frozen=True, slots=True)
class Rebatch:
    """A model of fixed batch that is read with another one.

    Parameters
    ----------
    before, after : int
        The batch in the file, and the one that is wanted.
    shapes : mapping of str to tuple of int
        Shapes of all values with the batch of the file.
    """

    before: int
    after: int
    shapes: Mapping[str, Shape]

    def scales(self, before: Sequence[int], after: Sequence[int]) -> bool:
        """Whether each dim is as it was or has grown as the batch has."""
        return len(before) == len(after) and all(
            a == b or a * self.before == b * self.after
            for a, b in zip(after, before, strict=True)
        )

    def view(self, old: Shape, new: Shape, target: Shape) -> Shape | None:
        """Shape that a view to ``target`` has when its operand grew from ``old`` to ``new``."""
        grown = [d for d, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        if not grown:
            return target
        if len(grown) > 1:
            return None
        ahead = math.prod(old[: grown[0]])
        spots = [
            d
            for d, size in enumerate(target)
            if math.prod(target[:d]) <= ahead
            and math.prod(target[: d + 1]) >= ahead * self.before
            and size % self.before == 0
        ]
        if not spots:
            return None
        spot = spots[0]
        # (s, 1, h) to (s, h): the batch of 1 went into the dim before it, what follows is as it was.
        follows = target[spot:] == old[grown[0] + 1 :]
        if self.before == 1 and spot > 0 and target[spot] != 1 and follows:
            spot -= 1
        scaled = target[spot] * self.after // self.before
        return (*target[:spot], scaled, *target[spot + 1 :])


class Translator:
    """Builds the graph of a model.

    Parameters
    ----------
    title : str
        Name of the graph.
    opsets : mapping of str to int
        Version of each operator domain.
    base_dir : str
        Where external data would lie.
    rebatch : Rebatch, optional
        How the batch is rewritten, if it is.
    """

    def __init__(
        self,
        title: str,
        opsets: Mapping[str, int],
        base_dir: str,
        rebatch: Rebatch | None = None,
    ) -> None:
        self.builder = GraphBuilder(title)
        self.opsets = dict(opsets)
        self.base_dir = base_dir
        self.rebatch = rebatch
        self.values: dict[str, Value] = {}
        self.uses: Counter[str] = Counter()
        self.linears: dict[str, int] = {}
        self._protos: dict[str, Any] = {}
        self._tables: dict[tuple[Any, ...], str] = {}
        self._makers: dict[str, int] = {}
        self._declared: dict[tuple[str, tuple[Any, ...]], str] = {}
        self._buffers: set[str] = set()
        self._infos: dict[str, Any] = {}

    # -- the walk -----------------------------------------------------------------------------

    def graph(self, graph: Any, *, branch: bool = False) -> None:
        """Translate all nodes of a ``GraphProto``: the model's, or that of a branch."""
        readers: dict[str, set[str]] = {}
        for node in graph.node:
            for name in _reads(node):
                readers.setdefault(name, set()).add(node.op_type)
                if not branch:  # What branches read was counted with the operator they belong to.
                    self.uses[name] += 1
        if not branch:
            self.uses.update(o.name for o in graph.output)
        self._infos.update({info.name: info for info in (*graph.value_info, *graph.output)})
        for initializer in graph.initializer:
            name = initializer.name
            self._initializer(name, initializer, readers.get(name, set()))
        weights = _weights_made_by_nodes(graph)
        for node in graph.node:
            name = node.output[0] if node.output else ""
            if name not in weights:
                self._node(node)
            elif node.op_type == "Constant":
                self._initializer(name, node.attribute[0].t, readers.get(name, set()))
            else:
                self._generated(node)

    def _initializer(self, name: str, proto: Any, readers: set[str]) -> None:
        shape = tuple(proto.dims)
        self._protos[name] = proto
        value = Value(name, shape, proto.data_type)
        trained = dtype_name(proto.data_type) in FLOATING and not _FROZEN.search(name)
        if trained and math.prod(shape) == 1 and readers <= _ARITHMETIC:
            trained = False  # An epsilon or a scale.
        if trained:
            value.initializer = name
        else:
            value.constant = True
            value.data = self._load(name)
        self.values[name] = value

    def _generated(self, node: Any) -> None:
        """A weight that the file makes of its shape, to stay small."""
        shape = self.array(self.values[node.input[0]])
        value = Value(node.output[0], tuple(int(s) for s in shape), 1, initializer=node.output[0])
        self.values[value.name] = value
        self.note("weights that the file fills with a constant are read as trained parameters")

    def _load(self, name: str) -> Any:
        """Content of an initializer, if it is small and at hand."""
        from onnx import external_data_helper, numpy_helper

        proto = self._protos.get(name)
        if proto is None or math.prod(proto.dims) > _MOST_ELEMENTS:
            return None
        try:
            return numpy_helper.to_array(proto, self.base_dir)
        except (OSError, ValueError, TypeError, external_data_helper.checker.ValidationError):
            return None

    def _node(self, proto: Any) -> None:
        node = self._look_up(proto)
        if node.op in _SUBGRAPHS:
            self._with_subgraph(node, proto)
            return
        if node.op in SEQUENCES:
            SEQUENCES[node.op](self, node)
            return
        constant = all(v is None or v.constant for v in node.inputs)
        if not constant and node.op in _BROADCASTS:
            self._shrink(node)
        self._infer(node, proto)
        if constant and self._fold(node, proto):
            return
        made = self._handled(node)
        self._bind(node, self.opaque(node) if made is None else made)
        if self.rebatch is not None:
            self._check_batch(node)

    def _handled(self, node: Node) -> Names | Value | None:
        """What the handler makes of a node; ``None`` if it has none or none that copes with it."""
        handler = HANDLERS.get(node.op)
        if handler is None:
            return None
        try:
            return handler(self, node)
        except ImportModelError:
            raise
        except (ValueError, IndexError, KeyError, TypeError) as error:
            if self.rebatch is not None:
                raise self.unproven(node) from error
            # A node that breaks the operator's definition, or uses a corner of it: the rest of the
            # model is still worth having.
            self.note(f"operator '{node.name}' ({node.op}) has an unusual form: {error}")
            return None

    def _look_up(self, proto: Any) -> Node:
        from onnx import helper

        inputs: list[Value | None] = []
        for name in proto.input:
            if name and name not in self.values:
                raise ImportModelError(
                    f"operator '{proto.name or proto.output[0]}' ({proto.op_type}) reads '{name}', "
                    "which nothing makes: the file is damaged"
                )
            inputs.append(self.values[name] if name else None)
        attributes = {
            a.name: helper.get_attribute_value(a) for a in proto.attribute if not a.ref_attr_name
        }
        for key, value in attributes.items():
            if isinstance(value, bytes):
                attributes[key] = value.decode(errors="replace")
        first = next((o for o in proto.output if o), "")
        name = proto.name or first or proto.op_type
        version = self.opsets.get(proto.domain, self.opsets.get("", 1))
        return Node(
            proto.op_type, name, _source(proto, name), version, inputs, [*proto.output], attributes
        )

    def _bind(self, node: Node, made: Names | Value) -> None:
        if isinstance(made, Value):
            self.values[node.outputs[0]] = replace(made, name=node.outputs[0])
            return
        results = (made,) if isinstance(made, str) else made
        for position, output in enumerate(node.outputs):
            name = results[position] if position < len(results) else None
            if not output:
                continue
            if name is None:
                if self.uses[output]:
                    raise ImportModelError(
                        f"output {position} of operator '{node.name}' ({node.op}) is read and has "
                        "no translation: export the model for training without it"
                    )
                continue
            tensor = self.builder.tensors[name]
            elem = node.elems[position] if position < len(node.elems) else elem_type(tensor.dtype)
            self.values[output] = Value(output, tensor.shape, elem, tensor=name)

    def _shrink(self, node: Node) -> None:
        """Cut constants that repeat themselves along the batch to a batch of one.

        Exporters write masks and position ids for the batch of the example.
        """
        ranks = [v.rank for v in node.inputs if v is not None]
        others = [v for v in node.inputs if v is not None and not v.constant]
        for position, value in enumerate(node.inputs):
            if value is None or value.data is None or not value.constant or not value.rank:
                continue
            size = value.shape[0]
            if node.op == "Gather":
                grown = position == 1 and self.rebatch is not None and value.rank > 1
                found = [self.rebatch.after] if grown and self.rebatch is not None else []
            else:
                axis = max(ranks) - value.rank
                found = [
                    v.shape[axis + v.rank - max(ranks)]
                    for v in others
                    if axis + v.rank >= max(ranks)
                ]
            wanted = size in found or (
                self.rebatch is not None
                and size == self.rebatch.before
                and self.rebatch.after in found
            )
            if size > 1 and wanted and bool(np.all(value.data == value.data[:1])):
                cut = value.data[:1]
                node.inputs[position] = replace(value, shape=cut.shape, data=cut, tensor=None)

    # -- types and constants --------------------------------------------------------------------

    def _infer(self, node: Node, proto: Any) -> None:
        """Types of the results, by the operator's own inference, else as the file says."""
        types = self._inferred(node, proto)
        for position, name in enumerate(node.outputs):
            found = types.get(name)
            stated = self._infos.get(name)
            if found is None and stated is not None and self.rebatch is None:
                found = stated.type
            shape, elem = _type_of(found)
            if shape is None and stated is not None and self.rebatch is None:
                shape = _type_of(stated.type)[0]
            if self.rebatch is not None and position == 0 and node.op == "Reshape":
                shape = None  # The target may hold the old batch; the handler knows.
            first = next((v for v in node.inputs if v is not None), None)
            node.shapes.append(shape)
            node.elems.append(elem or (first.elem if first is not None else 1))

    def _inferred(self, node: Node, proto: Any) -> dict[str, Any]:
        import onnx

        version = self.opsets.get(proto.domain)
        if version is None:
            return {}
        try:
            schema = onnx.defs.get_schema(proto.op_type, version, proto.domain)
        except onnx.defs.SchemaError:
            return {}
        types, data = {}, {}
        for name, value in zip(proto.input, node.inputs, strict=True):
            if value is None or value.items is not None:
                continue
            types[name] = onnx.helper.make_tensor_type_proto(value.elem, value.shape)
            if value.data is not None and value.data.size <= 1024:
                data[name] = onnx.numpy_helper.from_array(np.asarray(value.data), name)
        opsets = [onnx.helper.make_opsetid(d, v) for d, v in self.opsets.items()]
        try:
            return dict(
                onnx.shape_inference.infer_node_outputs(
                    schema, proto, types, data, opset_imports=opsets
                )
            )
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
            if node.op not in ("Reshape", "Concat", "Expand", "Resize"):
                self._refuse(node, str(error))
            return {}

    def _refuse(self, node: Node, cause: str) -> None:
        """An operator does not accept its operands."""
        if self.rebatch is not None:
            raise self.unproven(node)
        line = next((text for text in cause.splitlines() if text.strip()), "")
        shapes = ", ".join(str(v.shape) for v in node.inputs if v is not None)
        raise ImportModelError(
            f"operator '{node.name}' ({node.op}) does not fit operands of shape {shapes}: "
            f"{line.strip()}; check the sizes given for symbolic dims"
        )

    def _fold(self, node: Node, proto: Any) -> bool:
        """Compute a node of constants, or at least know its shape; whether that was possible."""
        if node.op in _RANDOM:
            data: list[Any] = [None] * len(node.outputs)
        else:
            data = self._computed(node, proto)
        values = []
        for position, name in enumerate(node.outputs):
            result = data[position] if position < len(data) else None
            if result is not None:
                result = np.asarray(result)
                shape: Shape | None = result.shape
                elem = _elem_of(result, node.elems[position])
            else:
                shape, elem = node.shapes[position], node.elems[position]
            if shape is None:
                if node.op == "Reshape":
                    return False
                raise ImportModelError(
                    f"the shape of '{name}', made by operator '{node.name}' ({node.op}), depends "
                    "on values that the file lacks or that are too many to compute"
                )
            values.append(Value(name, shape, elem, data=result, constant=True))
        self.values.update({v.name: v for v in values if v.name})
        return True

    def _computed(self, node: Node, proto: Any) -> list[Any]:
        unknown: list[Any] = [None] * len(node.outputs)
        large = any(s is not None and math.prod(s) > _MOST_ELEMENTS for s in node.shapes)
        if large or any(v is not None and v.data is None for v in node.inputs):
            return unknown
        if node.op == "Constant":
            return [self._constant(proto)]
        from onnx.reference import ReferenceEvaluator

        feeds = {n: v.data for n, v in zip(proto.input, node.inputs, strict=True) if v is not None}
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = ReferenceEvaluator(proto, opsets=self.opsets).run(None, feeds)
        except Exception:
            # The reference implementation covers what shape arithmetic needs; whatever else it
            # refuses stays a constant of unknown content.
            return unknown
        kept = [np.asarray(r) for r in results]
        return [r if r.size <= _MOST_ELEMENTS else None for r in kept]

    def _constant(self, proto: Any) -> Any:
        from onnx import helper, numpy_helper

        for attribute in proto.attribute:
            value = helper.get_attribute_value(attribute)
            if attribute.name == "value":
                return numpy_helper.to_array(value) if _small(value) else None
            if attribute.name in ("value_float", "value_floats"):
                return np.array(value, dtype=np.float32)
            if attribute.name in ("value_int", "value_ints"):
                return np.array(value, dtype=np.int64)
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

    # -- emission -----------------------------------------------------------------------------------

    def use(self, value: Value) -> str:
        """The tensor of a value, made on first use."""
        if value.tensor is None:
            value.tensor = self._made(value)
        return value.tensor

    def _made(self, value: Value) -> str:
        if value.items is not None:
            raise ImportModelError(
                f"the sequence '{value.name}' is read where a tensor is expected: the file is damaged"
            )
        if value.parts:
            joined = [self.use(part) for part in value.parts]
            first = value.parts[0].shape
            shape = (sum(part.shape[0] for part in value.parts), *first[1:])
            tensor = self._part(value.name, "concat", joined, shape, dim=0)
            return tensor if shape == value.shape else self._part(
                value.name, "view", (tensor,), value.shape
            )
        if value.initializer is not None:
            return self._parameter(value, value.initializer)
        # Equal tables are one tensor: layers that each make their own are then alike.
        content = None if value.data is None else np.asarray(value.data).tobytes()
        key = (value.shape, value.elem, content)
        if content is None or key not in self._tables:
            name = self.fresh(value.name or "constant")
            self._tables[key] = self.builder.op(
                "constant", (), value.shape, name=name, dtype=dtype_name(value.elem), op="table",
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
        return self.emit(
            node, "slice", (x,), shape, dim=dim, start=start, stop=stop, step=step
        )

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

    def opaque(self, node: Node) -> tuple[str, ...]:
        """Add a node as an operator that is replicated and reported."""
        first = next((v for v in node.inputs if v is not None), None)
        shapes, guessed = [], False
        for shape in node.shapes:
            if shape is None and first is not None and node.op not in _SHAPES_FROM_DATA:
                shape, guessed = first.shape, True
            if shape is None:
                shape = node.shape(len(shapes))
            shapes.append(shape)
        guess = ", its result is taken to have the shape of its first input" if guessed else ""
        self.note(f"operator type {node.op} is not known and is replicated{guess}")
        inputs = [self.use(v) for v in node.inputs if v is not None]
        dtypes = [dtype_name(e) for e in node.elems]
        made = self.emit_many(node, "opaque", inputs, shapes, dtypes, op=node.op)
        return made

    def note(self, text: str) -> None:
        """Record something that every report must say."""
        self.builder.note(text)

    # -- the batch --------------------------------------------------------------------------------

    def unproven(self, node: Node) -> ImportModelError:
        """The error for a fixed batch that cannot be rewritten."""
        assert self.rebatch is not None
        before, after = self.rebatch.before, self.rebatch.after
        return ImportModelError(
            f"the file has a fixed batch of {before} and operator '{node.name}' ({node.op}) does "
            f"not show how it grows to {after}: export the model with a symbolic batch, or import "
            f"it with batch_size={before}"
        )

    def _check_batch(self, node: Node) -> None:
        """Prove that results grew with the batch, and that the batch was not lost."""
        assert self.rebatch is not None
        shapes = self.rebatch.shapes
        # Constants were cut, not fed.
        read = node.inputs[:1] if node.op == "CastLike" else node.inputs
        fed = any(
            v is not None and not v.constant and v.shape != shapes.get(v.name, v.shape) for v in read
        )
        if not fed:
            return
        for name in node.outputs:
            value = self.values.get(name)
            if value is None or value.constant or name not in shapes:
                continue
            if not self.rebatch.scales(shapes[name], value.shape):
                raise self.unproven(node)
            lost = value.shape == shapes[name]
            ends = node.op in _ENDS_BATCH or math.prod(value.shape) == 1
            if lost and not ends and not node.op.startswith("Reduce"):
                raise self.unproven(node)

    # -- subgraphs ---------------------------------------------------------------------------------

    def _with_subgraph(self, node: Node, proto: Any) -> None:
        """A branch is translated in place; loops stay opaque."""
        if node.op != "If":
            self._infer_stated(node)
            self._bind(node, self.opaque(node))
            return
        condition = self.array(node.value(0))
        branches = [node.attributes["then_branch"], node.attributes["else_branch"]]
        if condition is not None:
            chosen = branches[0 if bool(np.asarray(condition).reshape(-1)[0]) else 1]
        else:
            chosen = max(branches, key=lambda branch: len(branch.node))
            self.note(
                f"the branch at '{node.name}' depends on data: the longer one is taken to run always"
            )
        self.graph(chosen, branch=True)
        for output, made in zip(node.outputs, chosen.output, strict=True):
            if made.name not in self.values:
                raise ImportModelError(
                    f"a branch of operator '{node.name}' returns '{made.name}', which nothing makes"
                )
            self.values[output] = replace(self.values[made.name], name=output)

    def _infer_stated(self, node: Node) -> None:
        for name in node.outputs:
            stated = self._infos.get(name)
            shape, elem = _type_of(stated.type if stated is not None else None)
            node.shapes.append(shape)
            node.elems.append(elem or 1)


_SHAPES_FROM_DATA = frozenset(("NonZero", "NonMaxSuppression", "Compress", "Unique", "Loop", "Scan"))


def _reads(node: Any) -> Iterator[str]:
    """Names that a node reads, those of its branches included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for inner in graph.node:
                yield from _reads(inner)
            yield from (o.name for o in graph.output)


_WEIGHT_OPERANDS = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "MatMul": (1,),
    "BatchNormalization": (1, 2, 3, 4),
}


def _weights_made_by_nodes(graph: Any) -> set[str]:
    """Weights that are results of nodes instead of initializers; none if no layer reads such a one.

    Some exporters write them as ``Constant``, small test files as ``ConstantOfShape``.
    """
    initializers = {i.name for i in graph.initializer}
    made = set()
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in initializers:
            if all(a.t.data_type == 1 for a in node.attribute):
                made.add(node.output[0])
        elif node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = node.attribute[0].t
            if math.prod(tensor.dims) > 1 and _DTYPES.get(tensor.data_type) in FLOATING:
                made.add(node.output[0])
    read = {
        node.input[position]
        for node in graph.node
        for position in _WEIGHT_OPERANDS.get(node.op_type, ())
        if position < len(node.input)
    }
    return made if made & read else set()


def _source(proto: Any, name: str) -> str:
    """Module path of a node: from the exporter's metadata, else its name."""
    for entry in proto.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            try:
                scopes = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError):
                break
            if len(scopes) > 1 and scopes[-2]:
                return str(scopes[-2])
    return name.lstrip("/")


def _type_of(proto: Any) -> tuple[Shape | None, int]:
    """Shape (``None`` if any size is unknown) and element type of a ``TypeProto``."""
    if proto is None or not proto.HasField("tensor_type"):
        return None, 0
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return None, tensor.elem_type
    sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
    return (tuple(sizes) if all(s >= 0 for s in sizes) else None), tensor.elem_type


def _small(proto: Any) -> bool:
    return math.prod(proto.dims) <= _MOST_ELEMENTS


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


def elem_type(dtype: str) -> int:
    """Element type of ONNX for a dtype of the neutral graph."""
    return next(elem for elem, name in _DTYPES.items() if name == dtype)


def _elem_of(array: Any, otherwise: int) -> int:
    from onnx import helper

    try:
        return int(helper.np_dtype_to_tensor_dtype(array.dtype))
    except (KeyError, ValueError):
        return otherwise
