"""One model on several numbers of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensoropt.checks import is_integer, of_type
from tensoropt.cluster import Cluster
from tensoropt.errors import GraphError, InfeasibleError, ProblemError
from tensoropt.frontier import Sweep, SweepRow
from tensoropt.graph import Graph

from .driver import search

__all__ = ["sweep"]


def sweep(
    graph: Graph,
    device: str,
    counts: Sequence[int],
    *,
    fewest: bool = False,
    memory_bytes: float | None = None,
    progress: Callable[[str, float], None] | None = None,
    **options: Any,
) -> Sweep:
    """Search one model on several numbers of devices.

    This is how the paper's *profiling* (the best time for every count) and *mini-parallelism* (the
    fewest devices that do) are asked.

    Parameters
    ----------
    graph : Graph
    device : str
        Name of a device, e.g. ``A100-SXM-80GB``; more than eight make nodes of eight.
    counts : sequence of int
        Numbers of devices.
    fewest : bool
        Stop at the first count, in ascending order, on which some strategy fits.
    memory_bytes : float, optional
        Limit of the device total. Default: what the device holds.
    progress : callable, optional
        As for :func:`search`.
    **options
        Further options of :func:`search`.

    Returns
    -------
    Sweep
        One row for each count that was searched.

    Raises
    ------
    ProblemError
        If there is no count, or one is not positive.
    UnknownDeviceError
        If the device is unknown.
    """
    of_type("counts", counts, Sequence, "a sequence of positive integers")
    wanted = sorted(set(counts)) if all(map(is_integer, counts)) else []
    if not wanted or wanted[0] < 1:
        raise ProblemError(f"counts is {list(counts)}, expected one or more positive integers")
    rows: list[SweepRow] = []
    limit = 0.0
    for done, count in enumerate(wanted):
        cluster = Cluster.parse(f"{count}x{device}")
        limit = float(cluster.device.memory_bytes if memory_bytes is None else memory_bytes)
        report = None if progress is None else _part(progress, count, done, len(wanted))
        rows.append(_row(graph, cluster, count, limit, report, options))
        if fewest and rows[-1].fits:
            break
    return Sweep(graph.name, rows[0].cluster.device.name, rows, limit)


def _part(
    progress: Callable[[str, float], None], count: int, done: int, total: int
) -> Callable[[str, float], None]:
    def report(phase: str, fraction: float) -> None:
        progress(f"{count} devices, {phase}", (done + fraction) / total)

    return report


def _row(
    graph: Graph,
    cluster: Cluster,
    count: int,
    limit: float,
    progress: Callable[[str, float], None] | None,
    options: dict[str, Any],
) -> SweepRow:
    try:
        frontier = search(graph, cluster, memory_bytes=limit, progress=progress, **options)
    except InfeasibleError as error:
        least = None if error.least is None else int(error.least)
        return SweepRow(
            count, cluster, None, least_bytes=least, status="infeasible", reason=str(error)
        )
    except GraphError as error:
        return SweepRow(count, cluster, None, status="failed", reason=str(error))
    return SweepRow(
        count,
        cluster,
        frontier.fastest(limit),
        int(frontier.costs.device_bytes[-1]),
        len(frontier),
        frontier.status,
        frontier.factor,
    )
