"""Points of many searches united: the staircase of time against memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["covered_within", "skyline", "thinned"]


def skyline(
    time: npt.NDArray[np.floating], memory: npt.NDArray[np.floating]
) -> npt.NDArray[np.int64]:
    """Indices of the points that no other point weakly dominates, the fastest first.

    Of points that are equal in both, the first is kept.

    Parameters
    ----------
    time, memory : (n,) arrays
        Lower is better.

    Returns
    -------
    (k,) int array
        By ascending time and descending memory.

    Examples
    --------
    >>> skyline(np.array([3.0, 1.0, 2.0, 2.0]), np.array([1.0, 5.0, 5.0, 4.0])).tolist()
    [1, 3, 0]
    """
    order = np.lexsort((memory, time))
    least = np.minimum.accumulate(memory[order])
    before = np.concatenate([[np.inf], least[:-1]])
    return np.asarray(order[memory[order] < before], np.int64)


def covered_within(
    time: npt.NDArray[np.floating],
    memory: npt.NDArray[np.floating],
    by_time: npt.NDArray[np.floating],
    by_memory: npt.NDArray[np.floating],
    cap: float = np.inf,
) -> float:
    """Least factor within which every point is covered by one of a staircase.

    Parameters
    ----------
    time, memory : (n,) arrays
        Points to cover; those with more memory than `cap` need not be.
    by_time, by_memory : (k,) arrays
        A staircase: ascending time, descending memory; at least one point.
    cap : float

    Returns
    -------
    float
        At least 1.

    Examples
    --------
    >>> covered_within(np.array([2.0]), np.array([4.0]), np.array([1.0, 2.2]), np.array([5.0, 4.0]))
    1.1
    """
    worst = 1.0
    for t, m in zip(time, memory, strict=True):
        if m > cap:
            continue
        # The ratio in time rises along the staircase, that in memory falls: look where they cross.
        ratio = np.maximum(by_time / t, by_memory / m)
        worst = max(worst, float(ratio.min()))
    return worst


def thinned(
    time: npt.NDArray[np.floating], memory: npt.NDArray[np.floating], tolerance: float
) -> npt.NDArray[np.int64]:
    """Indices of the fewest points of a staircase that cover all of it within `1 + tolerance`.

    Parameters
    ----------
    time, memory : (n,) arrays
        Ascending time, descending memory.
    tolerance : float
        0 keeps every point.

    Returns
    -------
    (k,) int array

    Examples
    --------
    >>> thinned(np.array([1.0, 1.05, 2.0]), np.array([3.0, 2.0, 1.0]), 0.1).tolist()
    [1, 2]
    """
    kept: list[int] = []
    first = 0
    while first < len(time):
        # The furthest point that still covers the first one left in time...
        last = int(np.searchsorted(time, time[first] * (1.0 + tolerance), side="right")) - 1
        kept.append(last)
        # ... covers everything after it that is not much leaner.
        first = last + 1
        while first < len(time) and memory[last] <= memory[first] * (1.0 + tolerance):
            first += 1
    return np.array(kept, np.int64)
