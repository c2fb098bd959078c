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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tensoropt.errors import ImportModelError
from tensoropt.importing.onnx_batch import Rebatch
from tensoropt.importing.onnx_emit import MOST_ELEMENTS, Emitter
from tensoropt.importing.onnx_values import (
    Names,
    Node,
    Shape,
    Value,
    dtype_name,
    elem_of,
    elem_type,
    is_floating,
    type_of,
)

__all__ = ["HANDLERS", "SEQUENCES", "Translator", "register"]

Handler = Callable[["Translator", Node], Names | Value | None]

HANDLERS: dict[str, Handler] = {}
"""Handlers by operator type, for the standard domain and those that extend it."""

SEQUENCES: dict[str, Callable[[Translator, Node], None]] = {}
"""Handlers of operators that make or take sequences of tensors; they bind their results."""

# Initializers that frameworks keep as buffers, by the names they give them.
_FROZEN = re.compile(
    r"inv_freq|lifted_tensor|_tensor_constant|masked_bias|position_ids|"
    r"(attn|attention|causal)[._]?mask|rotary|(^|[._])(cos|sin)(_cached)?$"
)
_ARITHMETIC = frozenset(
    (
        *(
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Pow",
            "Sqrt",
            "Neg",
            "Exp",
            "Log",
            "Reciprocal",
            "Max",
            "Min",
        ),
        *("Where", "Clip", "Cast", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"),
        *("Mod", "Range", "Resize", "Upsample", "Pad", "ConstantOfShape"),
    )
)
# Operators whose operands broadcast: a constant that repeats itself along the batch can be cut.
_BROADCASTS = _ARITHMETIC | frozenset(("And", "Or", "Xor", "Sum", "Attention", "Gather"))
_RANDOM = frozenset(
    (
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Multinomial"),
    )
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


class Translator(Emitter):
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
        super().__init__(title, base_dir)
        self.opsets = dict(opsets)
        self.rebatch = rebatch
        self.values: dict[str, Value] = {}
        self._infos: dict[str, Any] = {}
        self._guessed: list[str] = []

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
        trained = is_floating(proto.data_type) and not _FROZEN.search(name)
        if trained and math.prod(shape) == 1 and readers <= _ARITHMETIC:
            trained = False  # An epsilon or a scale.
        content = self._load(name)
        added = content is not None and readers <= _ARITHMETIC | {"Attention"}
        if trained and added and np.any(content < -1e4):
            trained = False  # A mask that is added to scores.
        if trained:
            value.initializer = name
        else:
            value.constant = True
            value.data = content
        self.values[name] = value

    def _generated(self, node: Any) -> None:
        """A weight that the file makes of its shape, to stay small."""
        shape = self.array(self.values[node.input[0]])
        value = Value(node.output[0], tuple(int(s) for s in shape), 1, initializer=node.output[0])
        self.values[value.name] = value
        self.note("weights that the file fills with a constant are read as trained parameters")

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
            wanted = size in found or (self.rebatch is not None and size == self.rebatch.before)
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
            shape, elem = type_of(found)
            if shape is None and stated is not None and self.rebatch is None:
                shape = type_of(stated.type)[0]
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
        advice = "check the sizes given for symbolic dims"
        if self._guessed:
            advice = (
                f"the shapes that {', '.join(self._guessed)} makes are not known and were guessed: "
                f"export the model without what is not known, or {advice}"
            )
        raise ImportModelError(
            f"operator '{node.name}' ({node.op}) does not fit operands of shape {shapes}: "
            f"{line.strip()}; {advice}"
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
                elem = elem_of(result, node.elems[position])
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
        large = any(s is not None and math.prod(s) > MOST_ELEMENTS for s in node.shapes)
        if large or any(v is not None and v.data is None for v in node.inputs):
            return unknown
        if node.op == "Constant":
            return [self._constant(proto)]
        own = _COMPUTE.get(node.op)
        if own is not None:
            return [own(node, *(v.data for v in node.inputs if v is not None))]
        from onnx.reference import ReferenceEvaluator

        feeds = {n: v.data for n, v in zip(proto.input, node.inputs, strict=True) if v is not None}
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = ReferenceEvaluator(self._alone(proto)).run(None, feeds)
        except Exception:
            # The reference implementation covers what shape arithmetic needs; whatever else it
            # refuses stays a constant of unknown content.
            return unknown
        kept = [np.asarray(r) for r in results]
        return [r if r.size <= MOST_ELEMENTS else None for r in kept]

    def _alone(self, proto: Any) -> Any:
        """A model of one node: of a bare node, the reference takes the newest definition."""
        import onnx

        operands = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(proto.input) if name]
        results = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
        graph = onnx.helper.make_graph([proto], "node", operands, results)
        opsets = [onnx.helper.make_opsetid(d, v) for d, v in self.opsets.items()]
        return onnx.helper.make_model(graph, opset_imports=opsets)

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

    def opaque(self, node: Node) -> tuple[str, ...]:
        """Add a node as an operator that is replicated and reported."""
        first = next((v for v in node.inputs if v is not None), None)
        shapes: list[Shape] = []
        guessed = False
        for shape in node.shapes:
            if shape is None and first is not None and node.op not in _SHAPES_FROM_DATA:
                shape, guessed = first.shape, True
            if shape is None:
                shape = node.shape(len(shapes))
            shapes.append(shape)
        guess = ", its result is taken to have the shape of its first input" if guessed else ""
        if guessed and node.op not in self._guessed:
            self._guessed.append(node.op)
        self.note(f"operator type {node.op} is not known and is replicated{guess}")
        inputs = [self.use(v) for v in node.inputs if v is not None]
        dtypes = [dtype_name(e) for e in node.elems]
        made = self.emit_many(node, "opaque", inputs, shapes, dtypes, op=node.op)
        return made

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
        rebatch = self.rebatch
        assert rebatch is not None
        # The second operand of CastLike lends its type alone.
        read = node.inputs[:1] if node.op == "CastLike" else node.inputs
        if not any(v is not None and rebatch.fed(v) for v in read):
            return
        for name in node.outputs:
            value = self.values.get(name)
            if value is None or value.constant or name not in rebatch.shapes:
                continue
            if not rebatch.scales(rebatch.shapes[name], value.shape):
                raise self.unproven(node)
            ends = node.op in _ENDS_BATCH or node.op.startswith("Reduce")
            if not rebatch.fed(value) and not ends and math.prod(value.shape) != 1:
                raise self.unproven(node)
            rebatch.record(node, value)

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
                f"the branch at '{node.name}' depends on data: the longer one is taken to run"
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
            shape, elem = type_of(stated.type if stated is not None else None)
            node.shapes.append(shape)
            node.elems.append(elem or 1)


# What the reference implementation of onnx gets wrong or refuses.
_COMPUTE: Mapping[str, Callable[..., Any]] = {
    "GatherElements": lambda node, x, index: np.take_along_axis(x, index, node.attr("axis", 0)),
}

_SHAPES_FROM_DATA = frozenset(
    ("NonZero", "NonMaxSuppression", "Compress", "Unique", "Loop", "Scan")
)


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
            if math.prod(tensor.dims) > 1 and is_floating(tensor.data_type):
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


def _small(proto: Any) -> bool:
    return bool(math.prod(proto.dims) <= MOST_ELEMENTS)
