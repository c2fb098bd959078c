"""Exceptions raised by tensoropt.

Every exception derives from :class:`TensorOptError` and from the built-in that fits best, so that
``except ValueError`` keeps working for callers who know nothing of this package. Messages are one
line: they name the thing at fault, say what was expected and what to do about it.

Whether a search stopped early is never an exception: it is the ``status`` of the result.
"""

from __future__ import annotations

__all__ = [
    "ClusterError",
    "CostError",
    "FileFormatError",
    "GraphError",
    "ImportModelError",
    "InfeasibleError",
    "LimitError",
    "MissingExtraError",
    "ProblemError",
    "ShardingError",
    "TensorOptError",
    "UnknownDeviceError",
]


class TensorOptError(Exception):
    """Base of every exception that tensoropt raises on purpose."""


class ProblemError(TensorOptError, ValueError):
    """A cost graph, a cost table or a solver option is not valid.

    Raised at the door, before any work: wrong shapes, unknown ids, NaN or negative costs, costs
    whose sum would not fit, options that contradict each other.
    """


class LimitError(TensorOptError, RuntimeError):
    """A hard limit of the solver was reached and no result can be given within it.

    The message names the nodes that caused it and the option that raises the limit.
    """


class InfeasibleError(TensorOptError, ValueError):
    """No assignment satisfies the caps that were given.

    Parameters
    ----------
    message : str
        One line that says which cap cannot be met and what the least reachable value is.
    least : float or None, optional
        The least reachable value of the capped quantity, in the unit that the message names.
    """

    def __init__(self, message: str, least: float | None = None) -> None:
        super().__init__(message)
        self.least = least


class GraphError(TensorOptError, ValueError):
    """A model graph is inconsistent: unknown tensors, shapes that disagree, an empty graph."""


class ImportModelError(TensorOptError, ValueError):
    """A model could not be imported from PyTorch, ONNX or a Hugging Face configuration."""


class ClusterError(TensorOptError, ValueError):
    """A cluster description is not valid."""


class UnknownDeviceError(ClusterError):
    """A device name is not among the devices whose figures ship with the package."""


class ShardingError(TensorOptError, ValueError):
    """A layout or an operator configuration is not legal."""


class CostError(TensorOptError, ValueError):
    """A cost cannot be computed from what was given."""


class FileFormatError(TensorOptError, ValueError):
    """A file is missing fields, is of an unknown version, or is not what it says it is."""


class MissingExtraError(TensorOptError, ImportError):
    """An optional dependency is needed and is not installed.

    Parameters
    ----------
    module : str
        The module that could not be imported, for example ``"torch"``.
    extra : str
        The extra of this package that installs it, for example ``"torch"``.

    Examples
    --------
    >>> str(MissingExtraError("matplotlib", "plot"))
    "matplotlib is needed for this and is not installed: run `pip install 'tensoropt[plot]'`"
    """

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(
            f"{module} is needed for this and is not installed: "
            f"run `pip install 'tensoropt[{extra}]'`",
            name=module,
        )
        self.module = module
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        """Rebuild from the two names: worker processes pickle exceptions."""
        return type(self), (self.module, self.extra)
