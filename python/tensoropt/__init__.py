"""Exact Pareto frontiers of strategies for training neural networks on many devices."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors, examples
from ._native import CostGraph, IopddlProblem, Solution, solve
from .cluster import Cluster, Device, Mesh
from .errors import TensorOptError
from .frontier import Frontier, Sweep
from .graph import Graph, GraphBuilder

# Not later: whoever imports the package `search` first would else leave it in the function's place.
from .search import search, sweep
from .strategy import Strategy

if TYPE_CHECKING:
    from .importing.huggingface import import_huggingface
    from .importing.onnx import import_onnx
    from .importing.torch_export import import_torch

    __version__: str

__all__ = [
    "Cluster",
    "CostGraph",
    "Device",
    "Frontier",
    "Graph",
    "GraphBuilder",
    "IopddlProblem",
    "Mesh",
    "Solution",
    "Strategy",
    "Sweep",
    "TensorOptError",
    "__version__",
    "errors",
    "examples",
    "import_huggingface",
    "import_onnx",
    "import_torch",
    "search",
    "solve",
    "sweep",
]

# Loaded when first used: most runs import one model in one way, or none.
_LATER = {
    "import_huggingface": ".importing.huggingface",
    "import_onnx": ".importing.onnx",
    "import_torch": ".importing.torch_export",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("tensoropt")
    elif name in _LATER:
        value = getattr(import_module(_LATER[name], __name__), name)
    else:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
