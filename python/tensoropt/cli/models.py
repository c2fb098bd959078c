"""From what the user names to a graph."""

from __future__ import annotations

import json
import warnings
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensoropt.errors import ImportModelError

if TYPE_CHECKING:
    from tensoropt.graph import Graph

__all__ = ["load_model", "model_kind"]

HELP = (
    "a model is a Hugging Face config (.json, or a folder with config.json) or an ONNX file; "
    "for a PyTorch module, call tensoropt.import_torch in Python"
)


def load_model(options: Namespace) -> Graph:
    """Import the model that the options name.

    Raises
    ------
    ImportModelError
        If none or two are named, the file is of no known kind, or an option does not apply to it.
    """
    if (options.model is None) == (options.example is None):
        found = "neither" if options.model is None else "both"
        raise ImportModelError(f"give either MODEL or --example NAME, found {found}: {HELP}")
    sizes: dict[str, Any] = {"batch_size": options.batch, "sequence_length": options.seq}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    if options.example is not None:
        _refuse_onnx_options(options, "a built-in model")
        from tensoropt import examples

        return examples.named(options.example, **sizes)
    path = Path(options.model)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    kind = model_kind(path)
    if kind == "huggingface":
        _refuse_onnx_options(options, "a Hugging Face config")
        if options.batch is None:
            raise ImportModelError(
                f"'{path}' says nothing of a batch: give --batch N, the samples of one iteration"
            )
        from tensoropt.importing.huggingface import import_huggingface

        with warnings.catch_warnings():
            # What torch warns of while it traces is no news to whoever reads our result.
            warnings.simplefilter("default" if options.debug else "ignore")
            return import_huggingface(path, **sizes)
    from tensoropt.importing.onnx import import_onnx

    graph = import_onnx(path, **sizes, dims=_dims(options.dim), loss=options.loss)
    _check_sequence(graph, options.seq)
    return graph


def _dims(given: list[tuple[str, int]]) -> dict[str, int]:
    """Return the sizes of symbolic dims, each of which may be given once."""
    dims: dict[str, int] = {}
    for name, size in given:
        if dims.setdefault(name, size) != size:
            raise ImportModelError(
                f"--dim {name} is given as {dims[name]} and as {size}: leave one of them out"
            )
    return dims


def _check_sequence(graph: Graph, tokens: int | None) -> None:
    """Refuse a number of tokens that no input has: throughput would be reported in it."""
    inputs = [t for t in graph.tensors.values() if t.kind == "input"]
    if tokens is not None and not any(tokens in t.shape[1:] for t in inputs):
        shapes = ", ".join(f"'{t.name}' {list(t.shape)}" for t in inputs) or "none"
        raise ImportModelError(
            f"--seq {tokens} is no dim of an input of '{graph.name}': leave it out, or give the "
            f"symbolic dim by --dim NAME={tokens}; inputs: {shapes}"
        )


def _refuse_onnx_options(options: Namespace, what: str) -> None:
    for name, value in (("--dim", options.dim), ("--loss", options.loss)):
        if value:
            raise ImportModelError(f"{name} is for ONNX files, and this is {what}: leave it out")


def model_kind(path: Path) -> str:
    """Tell kinds of model files apart by content, not by name alone.

    Returns
    -------
    str
        ``huggingface`` or ``onnx``.

    Raises
    ------
    OSError
        If there is no such file.
    ImportModelError
        If it is of no known kind.
    """
    if path.is_dir():
        raise ImportModelError(f"'{path}' is a folder without config.json: {HELP}")
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        raise ImportModelError(f"'{path}' is empty: {HELP}")
    if path.suffix == ".py":
        raise ImportModelError(f"'{path}' is Python source: {HELP}")
    if start.lstrip()[:1] == b"{":
        return _json_kind(path)
    if path.suffix == ".json":
        raise ImportModelError(f"'{path}' is not JSON with an object at its top: {HELP}")
    if path.suffix == ".onnx" or (start[0] == 0x08 and b"\x00" not in start[:2]):
        return "onnx"  # an ONNX file begins with field 1, its version, as a small integer
    raise ImportModelError(f"'{path}' is of no known kind: {HELP}")


def _json_kind(path: Path) -> str:
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise ImportModelError(f"'{path}' is not valid JSON: {error}") from None
    made_by_us = str(document.get("format", ""))
    if made_by_us.startswith("tensoropt-"):
        raise ImportModelError(
            f"'{path}' is a saved {made_by_us.removeprefix('tensoropt-')}, not a model: "
            f"see 'tensoropt show {path}'"
        )
    if "model_type" not in document:
        raise ImportModelError(
            f"'{path}' has no field 'model_type', so it is no Hugging Face config: {HELP}"
        )
    return "huggingface"
