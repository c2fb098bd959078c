"""Cost tables cell by cell: what is possible there, how large, in which alternatives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tensoropt.cost.tables import RECOMPUTE_TIME, RESIDENT, SAVED, TIME, TRANSIENT

__all__ = [
    "costs_taken",
    "largest_costs",
    "least_transient",
    "most_rounded_up",
    "with_alternatives",
]

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.integer]


def least_transient(costs: FloatArray) -> float:
    """Least transient bytes of a possible entry; 0 if there is none."""
    possible = costs[..., TRANSIENT][np.isfinite(costs[..., TIME])]
    return float(possible.min()) if len(possible) else 0.0


def largest_costs(costs: FloatArray) -> FloatArray:
    """Largest finite time and bytes of a table."""
    possible = costs[np.isfinite(costs[..., TIME])]
    if not len(possible):
        return np.zeros(2)
    time = possible[:, TIME] + possible[:, RECOMPUTE_TIME]
    memory = possible[:, RESIDENT] + possible[:, SAVED]
    return np.array([time.max(), max(memory.max(), possible[:, TRANSIENT].max())])


def most_rounded_up(costs: FloatArray, step: int) -> float:
    """The most bytes by which rounding up to whole steps is off in an entry of a table."""
    possible = costs[np.isfinite(costs[..., TIME])]
    if not len(possible):
        return 0.0
    off = 0.0
    for memory in (possible[:, RESIDENT], possible[:, RESIDENT] + possible[:, SAVED]):
        off = max(off, float((np.ceil(memory / step) * step - memory).max()))
    return off


def with_alternatives(steps: FloatArray) -> tuple[tuple[int, ...], IntArray, FloatArray]:
    """Cells with every possible alternative of a stack of tables.

    An alternative that is impossible in a cell still takes a place in front of a possible one, so
    that places tell which alternative it is; it repeats the first, which then wins.
    """
    count, *shape, width = steps.shape
    cells = steps.reshape(count, -1, width)
    possible = np.isfinite(cells[0, :, 0])
    cells = np.where(np.isfinite(cells), cells, cells[0][None])
    sizes = np.where(possible, count, 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    costs = cells.transpose(1, 0, 2)[possible].reshape(-1, width)
    return tuple(shape), offsets, costs


def costs_taken(
    table: FloatArray, alternative: IntArray, source: IntArray, target: IntArray
) -> FloatArray:
    """Costs of alternatives of a link; an impossible one repeats the first.

    So does :func:`with_alternatives`.
    """
    costs = table[alternative, source, target]
    first = table[np.zeros_like(alternative), source, target]
    return np.where(np.isfinite(costs[:, :1]), costs, first)
