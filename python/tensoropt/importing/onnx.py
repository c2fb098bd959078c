"""Import an ONNX file: its inputs bound to sizes, its nodes translated, a loss added.

The translation itself is in ``onnx_translate`` (values, folding, emission) and ``onnx_ops_*`` (one
handler for each group of operators).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensoropt.errors import ImportModelError, MissingExtraError
from tensoropt.graph import FLOATING, Graph
from tensoropt.importing.onnx_batch import Rebatch
from tensoropt.importing.onnx_fusions import fuse
from tensoropt.importing.onnx_translate import Translator
from tensoropt.importing.onnx_values import Value, dtype_name, is_known
from tensoropt.importing.passes import simplify
from tensoropt.importing.repeats import mark_repeats

__all__ = ["import_onnx"]

_BATCH_NAMES = re.compile(r"^(n|b|bs)$|batch", re.IGNORECASE)
_SEQUENCE_NAMES = re.compile(r"seq|length|tokens|^(t|s|l)$", re.IGNORECASE)


def import_onnx(
    model: Any,
    *,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    dims: Mapping[str, int] | None = None,
    loss: str | None = None,
    name: str | None = None,
) -> Graph:
    """Read the forward pass of an ONNX model as it would be trained.

    Batch normalisation and dropout are read as in training. Floating initializers are parameters
    (external data need not be present), except scalars in arithmetic and what frameworks keep as
    buffers. Constant subgraphs are folded.

    Parameters
    ----------
    model : path or onnx.ModelProto
        File, or a loaded model.
    batch_size : int, optional
        Samples of one iteration: binds the symbolic batch of the inputs. A fixed batch is
        rewritten if every operator shows how it grows with it.
    sequence_length : int, optional
        Binds the symbolic sequence dim of the inputs.
    dims : mapping of str to int, optional
        Sizes of other symbolic dims by name; a dim without name is called ``input.position``.
    loss : str, optional
        Name of the output to minimise; if it is no scalar, its mean. By default the output that is
        a scalar, or else the mean of the first floating output, which is noted.
    name : str, optional
        Name of the graph; by default that of the file.

    Returns
    -------
    Graph
        With repeated layers marked. Operators without translation are ``opaque`` and noted.

    Raises
    ------
    ImportModelError
        If the file cannot be read, is no ONNX model or is empty; if a symbolic dim is unbound; if
        a fixed batch cannot be rewritten; if shapes depend on data.
    MissingExtraError
        If onnx is not installed.
    """
    proto, title, base_dir = _load(model)
    title = name or title
    if not proto.graph.node:
        raise ImportModelError(f"'{title}' is an ONNX model without operators: nothing to import")
    proto = _inlined(proto)
    inputs = _Inputs(proto.graph, batch_size, sequence_length, dict(dims or {}), title)
    translator = _translate(proto, title, base_dir, inputs.shapes, None)
    if inputs.rewritten is not None:
        shapes = {value: v.shape for value, v in translator.values.items()}
        rebatch = Rebatch(inputs.batch, inputs.wanted, shapes)
        translator = _translate(proto, title, base_dir, inputs.rewritten, rebatch)
        _check_outputs(translator, proto, title)
        translator.note(
            f"the file has a fixed batch of {inputs.batch}; every operator was shown to take "
            f"{inputs.wanted} as well"
        )
    target = _loss(translator, proto.graph, loss, title)
    tokens = sequence_length or inputs.tokens
    graph = translator.builder.build(target, inputs.wanted, tokens)
    return mark_repeats(simplify(fuse(graph)))


def _load(model: Any) -> tuple[Any, str, str]:
    """The model, its name and the folder of its external data."""
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx") from error
    if isinstance(model, onnx.ModelProto):
        return model, model.graph.name or "onnx model", ""
    if not isinstance(model, (str, os.PathLike)):
        raise ImportModelError(
            f"model is of type {type(model).__name__}, expected a path or an onnx.ModelProto"
        )
    path = Path(model)
    if not path.exists():
        raise ImportModelError(f"no file '{path}': check the path of the ONNX model")
    if path.is_dir():
        raise ImportModelError(f"'{path}' is a folder: give the path of the .onnx file in it")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError) as error:
        raise ImportModelError(
            f"'{path}' is no ONNX model, or is truncated: export or download it again"
        ) from error
    except OSError as error:
        raise ImportModelError(f"'{path}' cannot be read: {error.strerror}") from error
    if not proto.opset_import and not proto.graph.node:
        raise ImportModelError(f"'{path}' is no ONNX model: it has no operators and no opset")
    return proto, path.stem, str(path.parent)


def _inlined(proto: Any) -> Any:
    """The model without functions of its own."""
    if not proto.functions:
        return proto
    from onnx import inliner

    return inliner.inline_local_functions(proto)


class _Inputs:
    """The graph's inputs with every dim bound to a size.

    Parameters
    ----------
    graph : GraphProto
    batch_size, sequence_length : int or None
    dims : dict of str to int
    title : str
        Name of the model, for messages.

    Attributes
    ----------
    shapes : dict of str to tuple of int
        Shape of every input; with the batch of the file where that is fixed.
    rewritten : dict of str to tuple of int, or None
        Shapes with the batch that is wanted, where the file has another, fixed one.
    batch, wanted : int
        The batch of the file and the one that is wanted.
    tokens : int or None
        Length of a sequence of integer inputs.
    """

    def __init__(
        self,
        graph: Any,
        batch_size: int | None,
        sequence_length: int | None,
        dims: dict[str, int],
        title: str,
    ) -> None:
        _require_positive({"batch_size": batch_size, "sequence_length": sequence_length})
        _require_positive(dims)
        held = {i.name for i in graph.initializer}
        self._inputs = [i for i in graph.input if i.name not in held]
        self._title = title
        declared = {i.name: _declared(i) for i in self._inputs}
        symbols = {s for shape in declared.values() for s in shape if isinstance(s, str)}
        unknown = sorted(set(dims) - symbols)
        if unknown:
            known = ", ".join(sorted(symbols)) or "none"
            raise ImportModelError(
                f"'{title}' has no symbolic dim {', '.join(unknown)}; it has: {known}"
            )
        bound = dict(dims)
        leading = self._batch_symbol(declared)
        if (
            leading is not None
            and batch_size is not None
            and bound.setdefault(leading, batch_size) != batch_size
        ):
            raise ImportModelError(
                f"batch_size is {batch_size} and dim {leading}={bound[leading]}: they are the "
                "same dim, give one of them"
            )
        if sequence_length is not None:
            for symbol in self._sequence_symbols(declared, leading):
                bound.setdefault(symbol, sequence_length)
        self._require_bound(declared, bound, leading)
        self.shapes = {
            key: tuple(bound[s] if isinstance(s, str) else s for s in shape)
            for key, shape in declared.items()
        }
        ranked = [shape for shape in self.shapes.values() if shape]
        self.batch = bound[leading] if leading is not None else ranked[0][0] if ranked else 1
        self.wanted = batch_size if batch_size is not None else self.batch
        self.rewritten = self._rewrite() if self.wanted != self.batch else None
        self.tokens = next(
            (
                self.shapes[i.name][1]
                for i in self._inputs
                if len(self.shapes[i.name]) == 2 and _elem(i) in (6, 7)
            ),
            None,
        )

    def _batch_symbol(self, declared: Mapping[str, tuple[int | str, ...]]) -> str | None:
        symbols = [s for shape in declared.values() for s in shape if isinstance(s, str)]
        named = [s for s in symbols if _BATCH_NAMES.search(s)]
        leading = [
            shape[0]
            for shape in declared.values()
            if shape and isinstance(shape[0], str) and not _SEQUENCE_NAMES.search(shape[0])
        ]
        return next(iter(named + leading), None)

    def _sequence_symbols(
        self, declared: Mapping[str, tuple[int | str, ...]], leading: str | None
    ) -> list[str]:
        symbols = [s for shape in declared.values() for s in shape if isinstance(s, str)]
        named = [s for s in symbols if _SEQUENCE_NAMES.search(s) and s != leading]
        second = [
            declared[i.name][1]
            for i in self._inputs
            if len(declared[i.name]) == 2 and _elem(i) in (6, 7)
        ]
        return named + [s for s in second if isinstance(s, str)]

    def _require_bound(
        self,
        declared: Mapping[str, tuple[int | str, ...]],
        bound: Mapping[str, int],
        leading: str | None,
    ) -> None:
        missing: dict[str, str] = {}
        for key, shape in declared.items():
            for symbol in shape:
                if isinstance(symbol, str) and symbol not in bound:
                    missing.setdefault(symbol, key)
        if not missing:
            return
        listed = ", ".join(f"'{s}' (of input '{key}')" for s, key in missing.items())
        options = ["--batch SIZE" if s == leading else f"--dim {s}=SIZE" for s in missing]
        raise ImportModelError(
            f"'{self._title}' has symbolic dims without a size: {listed}; give {' '.join(options)}"
        )

    def _rewrite(self) -> dict[str, tuple[int, ...]]:
        """Input shapes with the wanted batch, for a file of fixed batch."""
        found = {
            key: (self.wanted, *shape[1:])
            if shape and shape[0] == self.batch and (len(shape) > 1 or self.batch > 1)
            else shape
            for key, shape in self.shapes.items()
        }
        if found == self.shapes:
            raise ImportModelError(
                f"'{self._title}' has no input with a leading batch dim that could become "
                f"{self.wanted}: import it without batch_size"
            )
        return found


def _require_positive(sizes: Mapping[str, int | None]) -> None:
    for name, size in sizes.items():
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ImportModelError(f"{name} is {size!r}, expected a positive integer")


def _elem(info: Any) -> int:
    return int(info.type.tensor_type.elem_type)


def _declared(info: Any) -> tuple[int | str, ...]:
    """Shape of an input as the file has it; unknown dims are called ``input.position``."""
    if not info.type.HasField("tensor_type"):
        raise ImportModelError(f"input '{info.name}' is no tensor: only tensors can be fed")
    sizes: list[int | str] = []
    for position, dim in enumerate(info.type.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            sizes.append(int(dim.dim_value))
        else:
            named = dim.dim_param not in ("", "?", "-1", "None", "unk")
            sizes.append(dim.dim_param if named else f"{info.name}.{position}")
    return tuple(sizes)


def _translate(
    proto: Any,
    title: str,
    base_dir: str,
    shapes: Mapping[str, tuple[int, ...]],
    rebatch: Rebatch | None,
) -> Translator:
    # Handlers register themselves.
    from tensoropt.importing import (  # noqa: F401
        onnx_ops_math,
        onnx_ops_nn,
        onnx_ops_sequence,
        onnx_ops_shape,
    )

    opsets = {o.domain if o.domain != "ai.onnx" else "": o.version for o in proto.opset_import}
    translator = Translator(title, opsets or {"": 1}, base_dir, rebatch)
    elems = {i.name: _elem(i) for i in proto.graph.input}
    for key, shape in shapes.items():
        if not is_known(elems[key]):
            raise ImportModelError(
                f"input '{key}' has an element type (strings, 4-bit floats) that cannot be trained "
                "on: cut that part off before export"
            )
        tensor = translator.builder.input(key, shape, dtype_name(elems[key]))
        translator.values[key] = Value(key, shape, elems[key], tensor=tensor)
    translator.graph(proto.graph)
    return translator


def _check_outputs(translator: Translator, proto: Any, title: str) -> None:
    """A batch that no output shows was not the batch."""
    rebatch = translator.rebatch
    assert rebatch is not None
    outputs = [translator.values[o.name] for o in proto.graph.output]
    if not any(v.shape != rebatch.shapes[v.name] or not v.shape for v in outputs):
        raise ImportModelError(
            f"no output of '{title}' grows with the leading dim of its inputs: it cannot be shown "
            f"to be the batch, import with batch_size={rebatch.before}"
        )


def _loss(translator: Translator, graph: Any, wanted: str | None, title: str) -> str:
    """The scalar that is minimised."""
    outputs = [o.name for o in graph.output]
    if wanted is not None:
        if wanted not in translator.values:
            raise ImportModelError(
                f"'{title}' has no output '{wanted}'; it has: {', '.join(outputs)}"
            )
        chosen = translator.values[wanted]
        if dtype_name(chosen.elem) not in FLOATING:
            raise ImportModelError(f"output '{wanted}' is no floating tensor: it is no loss")
    else:
        chosen = _default_output(translator, outputs, title)
    if chosen.constant or chosen.is_parameter:
        raise ImportModelError(f"output '{chosen.name}' does not depend on the inputs: no loss")
    tensor = translator.use(chosen)
    if all(s == 1 for s in chosen.shape):
        return tensor
    others = [o for o in outputs if o != chosen.name]
    dropped = f"; not used: {', '.join(others)}" if others else ""
    translator.note(
        f"the model has no loss: the mean of its output '{chosen.name}' is one{dropped}"
    )
    return translator.builder.op(
        "reduce", (tensor,), (), name=translator.fresh("loss"), source="loss", op="mean",
        dims=list(range(len(chosen.shape))), keepdim=False,
    )  # fmt: skip


def _default_output(translator: Translator, outputs: Iterable[str], title: str) -> Value:
    values = [translator.values[o] for o in outputs if o in translator.values]
    floating = [
        v
        for v in values
        if dtype_name(v.elem) in FLOATING and not v.constant and not v.is_parameter
    ]
    if not floating:
        raise ImportModelError(
            f"'{title}' has no floating output that depends on its inputs: nothing to train"
        )
    scalars = [v for v in floating if v.shape == ()]
    return (scalars or floating)[0]
