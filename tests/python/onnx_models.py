"""Imports an ONNX model and runs both it and its source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tensoropt.graph import Graph
from tensoropt.importing.onnx import import_onnx
from tensoropt.importing.onnx_emit import Emitter

__all__ = ["Imported", "light", "small"]


class Imported:
    """An imported model that remembers the content of parameters and constants.

    Parameters
    ----------
    monkeypatch
        To listen to the importer.
    model : path or ModelProto
    **options
        Of :func:`import_onnx`.
    """

    def __init__(self, monkeypatch: Any, model: Any, **options: Any) -> None:
        self.content: dict[str, np.ndarray] = {}
        make = Emitter._made
        declare = Emitter._parameter

        def made(emitter: Emitter, value: Any) -> str:
            name = make(emitter, value)
            if value.data is not None:
                self.content[name] = np.asarray(value.data)
            return name

        def parameter(emitter: Emitter, value: Any, name: str) -> str:
            tensor = declare(emitter, value, name)
            stored = emitter._load(name)
            if stored is not None:
                for key, declared in emitter._declared.items():
                    if key[0] == name:
                        self.content[declared] = _applied(stored, key[1])
            return tensor

        monkeypatch.setattr(Emitter, "_made", made)
        monkeypatch.setattr(Emitter, "_parameter", parameter)
        self.graph: Graph = import_onnx(model, **options)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Values of all tensors of the graph, in float64."""
        import torch

        from numeric import evaluate

        feeds = {}
        for name, tensor in self.graph.tensors.items():
            if tensor.kind not in ("input", "parameter", "buffer", "constant"):
                continue
            array = inputs[name] if name in inputs else self.content.get(name)
            if array is None and name.endswith("]"):
                array = _part(self.content, name)
            if array is None:
                continue
            value = torch.from_numpy(np.array(array))
            feeds[name] = value.double() if value.is_floating_point() else value
        return {k: v.numpy() for k, v in evaluate(self.graph, feeds).items()}

    def output(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """What the mean that stands for a loss is taken of, or the loss itself."""
        values = self.run(inputs)
        last = self.graph.operators[-1]
        averaged = last.family == "reduce" and last.source == "loss"
        return values[last.inputs[0] if averaged else self.graph.loss]


def _part(content: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """A part of a parameter, named like ``w[0:32]`` or ``w[:, 32:64]``."""
    base, _, spans = name.rpartition("[")
    picked = tuple(
        slice(*(int(s) if s.strip() else None for s in span.split(":")))
        for span in spans.rstrip("]").split(",")
    )
    return content[base][picked]


def _applied(array: np.ndarray, chain: tuple[Any, ...]) -> np.ndarray:
    for family, argument in chain:
        array = array.reshape(argument) if family == "view" else array.transpose(argument)
    return array


def _data() -> Path:
    import onnx

    return Path(onnx.__file__).parent / "backend" / "test" / "data"


def light() -> dict[str, Path]:
    """Networks that the onnx package carries, without their weights."""
    return {p.stem: p for p in sorted((_data() / "light").glob("*.onnx"))}


def small() -> dict[str, Path]:
    """Folders of one-operator models with inputs and outputs that the onnx package carries."""
    groups = ("pytorch-converted", "pytorch-operator", "simple")
    found = (p for group in groups for p in sorted((_data() / group).glob("test_*")))
    return {p.name: p for p in found}
