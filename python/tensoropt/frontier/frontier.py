"""The Pareto frontier of strategies: to look at, to pick from, to keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from tensoropt.checks import number
from tensoropt.cluster import Cluster
from tensoropt.errors import InfeasibleError, MissingExtraError, ProblemError
from tensoropt.reporting.units import (
    format_bytes,
    format_bytes_apart,
    format_seconds,
    format_seconds_apart,
)
from tensoropt.strategy import Strategy

if TYPE_CHECKING:
    import pandas

    from tensoropt.graph import Graph

__all__ = ["Distance", "Frontier", "FrontierCosts", "GraphSummary"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class FrontierCosts(NamedTuple):
    """Costs of every point, as arrays in the order of the points.

    Attributes
    ----------
    time_s : (n,) float array
        Iteration time by the search's cost model, ascending.
    device_bytes : (n,) int array
        Device total, descending.
    memory_bound_bytes : (n,) int array
        Resident plus transient bytes, descending.
    """

    time_s: FloatArray
    device_bytes: IntArray
    memory_bound_bytes: IntArray


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """What a frontier remembers of its model.

    Parameters
    ----------
    name : str
    batch_size : int
        Samples of one iteration.
    tokens_per_sample : int or None
    parameter_count : int
    fingerprint : str
        ``Graph.fingerprint()``.
    """

    name: str
    batch_size: int
    tokens_per_sample: int | None
    parameter_count: int
    fingerprint: str

    @classmethod
    def of(cls, graph: Graph) -> GraphSummary:
        """Summarise a graph."""
        return cls(
            graph.name,
            graph.batch_size,
            graph.tokens_per_sample,
            graph.parameter_count,
            graph.fingerprint(),
        )


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a strategy lies from a frontier.

    Parameters
    ----------
    time_ratio : float or None
        Its time over the least time of the frontier within its memory; None if no point is as lean.
    memory_ratio : float or None
        Its device total over the least of the frontier within its time; None if none is as fast.
    faster, leaner : int or None
        The points of the frontier that those two compare with.
    """

    time_ratio: float | None
    memory_ratio: float | None
    faster: int | None
    leaner: int | None

    @property
    def is_dominated(self) -> bool:
        """Whether some point is no worse in both and better in one."""
        ratios = (self.time_ratio, self.memory_ratio)
        return any(ratio is not None and ratio > 1 for ratio in ratios)


class Frontier(Sequence[Strategy]):
    """All strategies that no other strategy beats in both time and memory.

    Iterating and indexing give strategies, the fastest first and the leanest last.

    Parameters
    ----------
    graph_summary : GraphSummary
        What it was searched for.
    cluster : Cluster
        What it was searched on.
    points : sequence of Strategy
        By ascending time and descending memory; may be a :class:`LazyPoints`.
    schemes : sequence of Strategy
        Well-known schemes, costed by the same model without the search.
    status : str
        Why the search ended: ``optimal`` (every point is exact), ``epsilon``, ``time_limit``...
    factor : float
        Proven: every strategy has a point that is within this factor in both costs. Infinite if
        nothing is proven.
    notes : sequence of str
        Assumptions that hold for all points.
    settings : mapping, optional
        Options of the search that have an influence on the result; JSON values.
    seconds : mapping of str to float, optional
        How long each phase took. Not saved: a file depends on the result alone.
    costs : FrontierCosts, optional
        Costs of the points; taken from the points if left out, which builds lazy ones.
    model : str, optional
        Name for people; default: that of the graph.

    Raises
    ------
    ProblemError
        If there are no points, or they are out of order.
    """

    def __init__(
        self,
        *,
        graph_summary: GraphSummary,
        cluster: Cluster,
        points: Sequence[Strategy],
        schemes: Sequence[Strategy] = (),
        status: str = "optimal",
        factor: float = 1.0,
        notes: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        seconds: Mapping[str, float] | None = None,
        costs: FrontierCosts | None = None,
        model: str | None = None,
    ) -> None:
        if not len(points):
            raise ProblemError("a frontier needs at least one point; none is an InfeasibleError")
        if not factor >= 1:
            raise ProblemError(f"factor is {factor!r}, expected at least 1 (1 means exact)")
        self.graph_summary = graph_summary
        self.cluster = cluster
        self.model = graph_summary.name if model is None else model
        self.points = points
        self.schemes = tuple(schemes)
        self.status = status
        self.factor = float(factor)
        self.notes = tuple(notes)
        self.settings = dict(settings or {})
        self.seconds = dict(seconds or {})
        self.costs = _checked(costs or _costs_of(points), len(points))

    def __len__(self) -> int:
        return len(self.points)

    @overload
    def __getitem__(self, index: int) -> Strategy: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Strategy, ...]: ...
    def __getitem__(self, index: int | slice) -> Strategy | tuple[Strategy, ...]:
        if isinstance(index, slice):
            return tuple(self.points[i] for i in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no point {index}: the frontier has {len(self)} points")
        return self.points[index]

    def __iter__(self) -> Iterator[Strategy]:
        for index in range(len(self)):
            yield self.points[index]

    def __repr__(self) -> str:
        return (
            f"<Frontier of {self.model} on {self.cluster.name}: {len(self)} points, "
            f"{format_seconds(self.costs.time_s[0])} at {format_bytes(self.costs.device_bytes[0])} "
            f"to {format_seconds(self.costs.time_s[-1])} at "
            f"{format_bytes(self.costs.device_bytes[-1])}, {self.status}>"
        )

    def fastest(self, memory_bytes: float | None = None) -> Strategy:
        """Return the fastest strategy within a memory limit (mini-time).

        Parameters
        ----------
        memory_bytes : float, optional
            Limit of the device total; default: the memory of the device. ``math.inf`` lifts it.

        Returns
        -------
        Strategy

        Raises
        ------
        InfeasibleError
            If no point is as lean; the message names the least memory and what takes it, and
            ``least`` is that memory in bytes.
        """
        return self.points[self.fastest_index(memory_bytes)]

    def fastest_index(self, memory_bytes: float | None = None) -> int:
        """Return the position of :meth:`fastest`."""
        whole = self.cluster.device.memory_bytes
        cap = number("memory_bytes", whole if memory_bytes is None else memory_bytes)
        index = _first_within(self.costs.device_bytes, cap)
        if index is None:
            of_device = f" of one {self.cluster.device.name}" if memory_bytes is None else ""
            raise self._too_large(cap, of_device)
        return index

    def leanest(self, time_s: float | None = None) -> Strategy:
        """Return the strategy with the least memory within a time limit.

        Parameters
        ----------
        time_s : float, optional
            Limit of the time of one iteration; default: none.

        Returns
        -------
        Strategy

        Raises
        ------
        InfeasibleError
            If no point is as fast; ``least`` is the least time in seconds.
        """
        return self.points[self.leanest_index(time_s)]

    def leanest_index(self, time_s: float | None = None) -> int:
        """Return the position of :meth:`leanest`."""
        cap = math.inf if time_s is None else number("time_s", time_s)
        count = int(np.searchsorted(self.costs.time_s, cap, side="right"))
        if count == 0:
            least = float(self.costs.time_s[0])
            limit, fastest = format_seconds_apart(cap, least)
            raise InfeasibleError(
                f"no strategy of {self.model} on {self.cluster.name} takes at most "
                f"{limit}: the fastest takes {fastest} with "
                f"{format_bytes(self.costs.device_bytes[0])} a device; use more devices, a smaller "
                "batch, or allow more time",
                least,
            )
        return count - 1

    def distance(self, strategy: Strategy) -> Distance:
        """Say how far a strategy lies from the frontier.

        Parameters
        ----------
        strategy : Strategy
            Costed for the same model and cluster, e.g. one of :attr:`schemes`.

        Returns
        -------
        Distance
        """
        costs = strategy.costs
        faster = _first_within(self.costs.device_bytes, costs.device_bytes)
        count = int(np.searchsorted(self.costs.time_s, costs.time_s, side="right"))
        leaner = count - 1 if count else None
        return Distance(
            None if faster is None else costs.time_s / float(self.costs.time_s[faster]),
            None if leaner is None else costs.device_bytes / int(self.costs.device_bytes[leaner]),
            faster,
            leaner,
        )

    def price_per_step(self, strategy: Strategy) -> float | None:
        """Price in USD of one iteration on this cluster, None if its price is unknown."""
        hourly = self.cluster.price_usd_per_hour
        return None if hourly is None else hourly * strategy.costs.time_s / 3600

    def table(self, rows: int = 20) -> str:
        """Return the frontier and the named schemes as a plain text table.

        Parameters
        ----------
        rows : int
            Most points shown; they are spread over the frontier, both ends included.
        """
        from tensoropt.reporting.frontier_table import frontier_table

        return frontier_table(self, rows)

    def to_dataframe(self) -> pandas.DataFrame:
        """Return all points and named schemes as a pandas table, one row each.

        Raises
        ------
        MissingExtraError
            If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("pandas", "pandas") from None
        from tensoropt.reporting.frontier_table import record

        rows = [record(self, s, i) for i, s in enumerate(self)]
        rows += [record(self, s, None) for s in self.schemes]
        frame = pandas.DataFrame(rows)
        frame["point"] = frame["point"].astype("Int64")
        return frame

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw the frontier, the named schemes and the memory of the device.

        Parameters
        ----------
        path : path-like
            ``.png``, ``.svg`` or ``.pdf``.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        from tensoropt.reporting.plots import plot_frontier

        plot_frontier(self, path)

    def save(
        self, path: str | PathLike[str], progress: Callable[[float], None] | None = None
    ) -> None:
        """Write everything as JSON (compressed if the name ends in ``.gz``).

        The same frontier always gives the same bytes.

        Parameters
        ----------
        path : path-like
        progress : callable, optional
            Called with the fraction done.
        """
        from .file import save

        save(self, path, progress)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Frontier:
        """Read a frontier that :meth:`save` wrote.

        Raises
        ------
        OSError
            If the file cannot be read.
        FileFormatError
            If it is no frontier, or is damaged: the message says what is wrong where.
        """
        from .file import load

        return load(path)

    def _too_large(self, cap: float, of_device: str) -> InfeasibleError:
        leanest = self.points[len(self) - 1]
        costs = leanest.costs
        if leanest.largest:
            what = [f"{t.name} ({t.part}, {format_bytes(t.nbytes)})" for t in leanest.largest[:3]]
        else:
            parts = [
                ("weights", costs.weight_bytes),
                ("gradients", costs.gradient_bytes),
                ("optimizer state", costs.optimizer_bytes),
                ("tensors saved for backward", costs.saved_bytes),
                ("transient tensors", costs.transient_bytes),
            ]
            parts.sort(key=lambda part: -part[1])
            what = [f"{name} ({format_bytes(nbytes)})" for name, nbytes in parts[:3]]
        limit, least = format_bytes_apart(cap, costs.device_bytes)
        return InfeasibleError(
            f"no strategy of {self.model} on {self.cluster.name} fits {limit}{of_device}: the "
            f"leanest needs {least}, of which tensors take "
            f"{format_bytes(costs.memory_bound_bytes)}, most for {', '.join(what)}; use more "
            "devices, more micro-batches or recomputation, or a leaner optimizer or precision",
            float(costs.device_bytes),
        )


def _first_within(descending: IntArray, cap: float) -> int | None:
    """Return the first position whose value is at most ``cap``."""
    count = len(descending)
    index = count - int(np.searchsorted(descending[::-1], cap, side="right"))
    return index if index < count else None


def _costs_of(points: Sequence[Strategy]) -> FrontierCosts:
    costs = [strategy.costs for strategy in points]
    return FrontierCosts(
        np.array([c.time_s for c in costs], np.float64),
        np.array([c.device_bytes for c in costs], np.int64),
        np.array([c.memory_bound_bytes for c in costs], np.int64),
    )


def _checked(costs: FrontierCosts, count: int) -> FrontierCosts:
    time_s = np.asarray(costs.time_s, np.float64)
    device = np.asarray(costs.device_bytes, np.int64)
    bound = np.asarray(costs.memory_bound_bytes, np.int64)
    for name, column in zip(FrontierCosts._fields, (time_s, device, bound), strict=True):
        if column.shape != (count,):
            raise ProblemError(f"costs.{name} has shape {column.shape}, expected ({count},)")
    if not (np.isfinite(time_s).all() and (time_s > 0).all() and (device >= 0).all()):
        raise ProblemError("costs of points must be finite, times greater than zero")
    if (np.diff(time_s) < 0).any() or (np.diff(device) > 0).any():
        raise ProblemError("points must come by ascending time and descending memory")
    for column in (time_s, device, bound):
        column.setflags(write=False)
    return FrontierCosts(time_s, device, bound)
