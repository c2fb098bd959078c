"""Walks a functionalised PyTorch graph and builds ours, operator by operator.

Each ATen operator that survives ``run_decompositions({})`` has a handler in ``torch_ops_*``,
registered by its name without overload. A handler reads the node's arguments by their schema names
and emits operators of our families; what has no handler becomes ``opaque``.
"""

from __future__ import annotations

import operator as python_operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tensoropt.errors import ImportModelError
from tensoropt.graph import FLOATING, Graph, GraphBuilder, Operator
from tensoropt.importing.torch_constants import Constants

__all__ = ["LSTM_STATES", "Handler", "Translator", "register", "translate"]

Name = str
Names = tuple[str, ...]
Handler = Callable[["Translator", Any, dict[str, Any]], "Name | Names"]

HANDLERS: dict[str, Handler] = {}
"""From an ATen operator's name to what translates it."""

LSTM_STATES = (
    "torch before 2.13 traces them with a wrong shape: use torch 2.13 or newer, or read the last "
    "step of the LSTM's output instead"
)
"""What to do about a wrong shape that torch gives, for the end of a message."""

_DTYPES = {
    "uint16": "int16",
    "uint32": "int32",
    "uint64": "int64",
    "complex32": "complex64",
    "complex128": "complex64",
}

_DROPPED = {
    "_assert_async",
    "_assert_scalar",
    "_assert_tensor_metadata",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
    "lazy_load_decompositions",
}


def register(*names: str) -> Callable[[Handler], Handler]:
    """Make a function the handler of ATen operators, by name without overload."""

    def enter(handler: Handler) -> Handler:
        for name in names:
            assert name not in HANDLERS, f"two handlers for {name}"
            HANDLERS[name] = handler
        return handler

    return enter


def translate(
    program: Any,
    *,
    name: str,
    input_names: Mapping[str, str],
    batch_size: int,
    tokens_per_sample: int | None,
    notes: Iterable[str],
) -> Graph:
    """Translate an exported program whose only user output is the loss.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        After ``run_decompositions({})``.
    name : str
        Of the graph.
    input_names : mapping
        From placeholder names to the names that inputs get.
    batch_size, tokens_per_sample : int
        For reports.
    notes : iterable of str
        To be carried by the graph.

    Raises
    ------
    ImportModelError
        If a size depends on data, or the loss does not depend on any operator.
    """
    # The handlers register themselves; importing them here keeps torch out of this module.
    from tensoropt.importing import torch_ops_math, torch_ops_nn, torch_ops_shape  # noqa: F401

    translator = Translator(program, name, input_names)
    for note in notes:
        translator.builder.note(note)
    loss = translator.run()
    return translator.builder.build(loss, batch_size, tokens_per_sample)


class Translator:
    """State of one translation: the builder, and our name of every traced value.

    Parameters
    ----------
    program : torch.export.ExportedProgram
    name : str
    input_names : mapping of str to str
    """

    def __init__(self, program: Any, name: str, input_names: Mapping[str, str]) -> None:
        self.builder = GraphBuilder(name)
        self._program = program
        self._input_names = input_names
        self._values: dict[Any, Name | Names] = {}
        self._constant_names: dict[int, Name] = {}
        self._schemas: dict[Any, list[Any]] = {}
        self._made: dict[Name, Operator] = {}
        self._opaque: dict[str, list[str]] = {}
        self._nodes = list(program.graph.nodes)
        self._placeholders = {n.name: n for n in self._nodes if n.op == "placeholder"}
        self.constants = Constants(self._nodes, self._constant_leaves())

    # -- reading the traced graph ---------------------------------------------------------------

    @staticmethod
    def shape(node: Any) -> tuple[int, ...]:
        """Static shape of a traced value."""
        return tuple(int(size) for size in node.meta["val"].shape)

    @staticmethod
    def dtype(node: Any) -> str:
        """Our dtype of a traced value."""
        return dtype_name(node.meta["val"].dtype)

    def arguments(self, node: Any) -> dict[str, Any]:
        """Arguments of a call by their schema names, defaults filled in."""
        schema = self._schemas.get(node.target)
        if schema is None:
            declared = getattr(node.target, "_schema", None)
            schema = list(declared.arguments) if declared is not None else []
            self._schemas[node.target] = schema
        bound: dict[str, Any] = {a.name: a.default_value for a in schema if a.has_default_value()}
        bound.update({a.name: v for a, v in zip(schema, node.args, strict=False)})
        bound.update(node.kwargs)
        return bound

    def tensor(self, node: Any) -> Name:
        """Our tensor of a traced value; a constant becomes an operator when first read."""
        if node in self.constants:
            return self._constant(node)
        value = self._values.get(node)
        if not isinstance(value, str):
            raise ImportModelError(
                f"'{node.name}' ({node.target}) in module '{module_path(node) or 'top level'}' is "
                "read and has no counterpart in the graph"
            )
        return value

    def optional(self, node: Any) -> Name:
        """As :meth:`tensor`, with the empty string for ``None``."""
        return "" if node is None else self.tensor(node)

    def kind(self, name: Name) -> str:
        """Kind of one of our tensors."""
        return self.builder.tensors[name].kind

    def size(self, name: Name) -> tuple[int, ...]:
        """Shape of one of our tensors."""
        return self.builder.tensors[name].shape

    def made_by(self, name: Name, family: str) -> Operator | None:
        """The operator that made a tensor, if it is of that family."""
        made = self._made.get(name)
        return made if made is not None and made.family == family else None

    # -- emitting -------------------------------------------------------------------------------

    def emit(
        self,
        node: Any,
        family: str,
        inputs: Sequence[Name],
        shape: Sequence[int] | None = None,
        *,
        dtype: str | None = None,
        label: str | None = None,
        requires_grad: bool | None = None,
        **attributes: Any,
    ) -> Name:
        """Add an operator with one result; shape and dtype default to the node's."""
        return self.emit_many(
            node,
            family,
            inputs,
            [tuple(self.shape(node) if shape is None else shape)],
            dtypes=[dtype or self._default_dtype(node)],
            label=label,
            requires_grad=requires_grad,
            **attributes,
        )[0]

    def emit_many(
        self,
        node: Any,
        family: str,
        inputs: Sequence[Name],
        shapes: Sequence[tuple[int, ...]],
        *,
        dtypes: Sequence[str] | None = None,
        label: str | None = None,
        requires_grad: bool | None = None,
        **attributes: Any,
    ) -> Names:
        """Add an operator with several results."""
        path = module_path(node)
        if requires_grad is None and _without_gradient(node):
            requires_grad = False
        label = label or attributes.get("op") or family
        outputs = self.builder.ops(
            family,
            inputs,
            shapes,
            name=f"{path}/{label}" if path else str(label),
            dtypes=[self._default_dtype(node)] * len(shapes) if dtypes is None else dtypes,
            source=f"{path}/{node.name}" if path else node.name,
            requires_grad=requires_grad,
            **attributes,
        )
        self._made.update(dict.fromkeys(outputs, self.builder.operators[-1]))
        return outputs

    def view(self, node: Any, name: Name, shape: Sequence[int]) -> Name:
        """The same elements in another shape; nothing if the shape is the same."""
        if tuple(shape) == self.size(name):
            return name
        return self.emit(node, "view", (name,), shape, dtype=self.builder.tensors[name].dtype)

    def transpose(self, node: Any, name: Name, perm: Sequence[int]) -> Name:
        """Reordered dims; nothing if the order is the same."""
        if list(perm) == list(range(len(perm))):
            return name
        old = self.size(name)
        return self.emit(
            node,
            "transpose",
            (name,),
            [old[p] for p in perm],
            dtype=self.builder.tensors[name].dtype,
            perm=[int(p) for p in perm],
        )

    def opaque(self, node: Any) -> Name | Names:
        """An operator without a family: replicated, and noted."""
        values = node.meta.get("val")
        many = isinstance(values, (tuple, list))
        found = [v for v in (values if many else [values]) if hasattr(v, "shape")]
        if not found:
            return ()
        inputs = list(
            dict.fromkeys(self.tensor(n) for n in node.all_input_nodes if self._single(n))
        )
        self._opaque.setdefault(str(node.target), []).append(module_path(node) or node.name)
        outputs = self.emit_many(
            node,
            "opaque",
            inputs,
            [tuple(int(s) for s in v.shape) for v in found],
            dtypes=[dtype_name(v.dtype) for v in found],
            label=base_name(node.target),
            op=str(node.target),
        )
        return outputs if many else outputs[0]

    # -- the walk -------------------------------------------------------------------------------

    def run(self) -> Name:
        """Translate everything; return the name of the loss."""
        self._enter_placeholders()
        for node in self._nodes:
            if node.op != "call_function":
                continue
            _require_static(node)
            if node in self.constants:
                continue
            if node.target is python_operator.getitem:
                item = self._item(node)
                if item is not None:
                    self._values[node] = item
            elif base_name(node.target) not in _DROPPED and "val" in node.meta:
                self._values[node] = self._call(node)
        for target, places in self._opaque.items():
            self.builder.note(
                f"no sharding rule for {target} ({len(places)} times, first in '{places[0]}'): "
                "it is replicated"
            )
        return self._loss()

    def _call(self, node: Any) -> Name | Names:
        handler = HANDLERS.get(base_name(node.target))
        namespace = getattr(node.target, "namespace", "aten")
        if handler is None or namespace not in ("aten", "prims", "transformers"):
            return self.opaque(node)
        result = handler(self, node, self.arguments(node))
        if isinstance(result, str):
            expected, found = self.shape(node), self.size(result)
            if expected != found:
                raise ImportModelError(
                    f"translation of '{node.name}' ({node.target}) has shape {found}, expected "
                    f"{expected}: please report this with the model"
                )
        return result

    def _single(self, node: Any) -> bool:
        return node in self.constants or isinstance(self._values.get(node), str)

    def _item(self, node: Any) -> Name | None:
        """One of several results; ``None`` for one that has no counterpart (new statistics)."""
        source, index = node.args
        values = self._values.get(source)
        return values[index] if isinstance(values, tuple) and index < len(values) else None

    def _default_dtype(self, node: Any) -> str:
        value = node.meta.get("val")
        if isinstance(value, (tuple, list)):
            value = value[0]
        return dtype_name(value.dtype)

    def _constant(self, node: Any) -> Name:
        key = self.constants.key(node)
        if key not in self._constant_names:
            target = base_name(node.target) if node.op == "call_function" else "buffer"
            self._constant_names[key] = self.emit(
                node, "constant", (), label=f"constant/{target}", op=target, requires_grad=False
            )
        return self._constant_names[key]

    def _constant_leaves(self) -> dict[Any, Any]:
        """Buffers that the step does not write, and tensors lifted from the code."""
        from torch.export.graph_signature import InputKind, OutputKind

        signature = self._program.graph_signature
        written = {
            spec.target
            for spec in signature.output_specs
            if spec.kind == OutputKind.BUFFER_MUTATION
        }
        leaves: dict[Any, Any] = {}
        for spec in signature.input_specs:
            node = self._placeholders.get(getattr(spec.arg, "name", ""))
            if node is None or not hasattr(node.meta.get("val"), "shape"):
                continue
            if spec.kind == InputKind.CONSTANT_TENSOR or (
                spec.kind == InputKind.BUFFER and spec.target not in written
            ):
                known = self._program.state_dict.get(spec.target)
                leaves[node] = self._program.constants.get(spec.target, known)
        return leaves

    def _enter_placeholders(self) -> None:
        from torch.export.graph_signature import InputKind

        tied: dict[int, Name] = {}
        for spec in self._program.graph_signature.input_specs:
            node = self._placeholders.get(getattr(spec.arg, "name", ""))
            if node is None or node in self.constants or not hasattr(node.meta["val"], "shape"):
                continue
            if spec.kind == InputKind.PARAMETER:
                self._values[node] = self._enter_parameter(spec, node, tied)
            elif spec.kind == InputKind.BUFFER:
                self._values[node] = self.builder.buffer(
                    clean_path(spec.target), self.shape(node), self.dtype(node)
                )
            else:
                name = self._input_names.get(node.name, node.name)
                self._values[node] = self.builder.input(name, self.shape(node), self.dtype(node))

    def _enter_parameter(self, spec: Any, node: Any, tied: dict[int, Name]) -> Name:
        value = self._program.state_dict[spec.target]
        if id(value) in tied:
            return tied[id(value)]
        name = clean_path(spec.target)
        enter = self.builder.parameter if value.requires_grad else self.builder.buffer
        tied[id(value)] = enter(name, self.shape(node), self.dtype(node))
        return name

    def _loss(self) -> Name:
        from torch.export.graph_signature import OutputKind

        for spec in self._program.graph_signature.output_specs:
            if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT):
                for node in self._nodes:
                    if node.name == getattr(spec.arg, "name", None):
                        return self.tensor(node)
        raise ImportModelError("the traced model has no output: return the loss from forward")


def _require_static(node: Any) -> None:
    """Refuse sizes that are not plain numbers."""
    values = node.meta.get("val")
    for value in values if isinstance(values, (tuple, list)) else [values]:
        shape = getattr(value, "shape", ())
        if any(type(size) is not int for size in shape):
            raise ImportModelError(
                f"'{node.name}' ({node.target}) in module '{module_path(node) or 'top level'}' has "
                f"sizes that depend on data, ({', '.join(map(str, shape))}): replace boolean "
                "indexing and nonzero by masks or torch.where"
            )


def _without_gradient(node: Any) -> bool:
    """Whether the node comes from a ``torch.no_grad`` region."""
    return str((node.meta.get("torch_fn") or ("",))[0]).startswith("wrap_with_set_grad_enabled")


def base_name(target: Any) -> str:
    """``linear`` for ``aten.linear.default``."""
    return str(getattr(target, "__name__", target)).split(".")[0]


def module_path(node: Any) -> str:
    """Path of the module that a node comes from, without the wrapper of the importer."""
    stack = node.meta.get("nn_module_stack") or {}
    entries = list(stack.values())
    return clean_path(entries[-1][0]) if entries else ""


def clean_path(path: str) -> str:
    """A path without the importer's wrapper around the user's model."""
    if path in ("model", "criterion"):
        return "" if path == "model" else "loss"
    if path.startswith("model."):
        return path.removeprefix("model.")
    return "loss." + path.removeprefix("criterion.") if path.startswith("criterion.") else path


def dtype_name(dtype: Any) -> str:
    """Our name of a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    return "float8" if name.startswith("float8") else _DTYPES.get(name, name)


def is_floating(name: str) -> bool:
    """Whether a dtype of ours carries gradients."""
    return name in FLOATING
