"""What a collective adds beyond the computation behind which it hides.

Measured on matmul and all-gather run alone and together (A100, V100, L4, A10G): the pair takes
``max(t_compute, t_communication) + kappa * min(t_compute, t_communication)``, with kappa about 0.5
on NVLink and below 0.1 where a network adapter is the bottleneck. Neither perfect overlap nor none
describes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoropt.errors import CostError

__all__ = ["exposed_time", "overlapped_time"]


def _checked(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array: NDArray[Any] = np.asarray(values, dtype=np.float64)
    if not np.all(array >= 0):
        raise CostError(f"{name} must be >= 0 and not NaN")
    return array


def overlapped_time(
    compute_s: ArrayLike, communication_s: ArrayLike, kappa: ArrayLike
) -> NDArray[np.float64]:
    """Return the time of a computation and a collective that run at the same time.

    Parameters
    ----------
    compute_s : array_like
        Time in seconds of the computation alone.
    communication_s : array_like
        Time in seconds of the collective alone; broadcast with `compute_s`.
    kappa : array_like
        Interference factor in [0, 1]: 0 is perfect overlap, 1 is none.

    Returns
    -------
    ndarray
        Seconds, of the broadcast shape.

    Raises
    ------
    CostError
        If a time is negative or NaN, or `kappa` is outside [0, 1].
    """
    compute = _checked("compute_s", compute_s)
    communication = _checked("communication_s", communication_s)
    factor = _checked("kappa", kappa)
    if np.any(factor > 1):
        raise CostError("kappa must be in [0, 1]: 0 is perfect overlap, 1 is none")
    longer = np.maximum(compute, communication)
    return np.asarray(longer + factor * np.minimum(compute, communication))


def exposed_time(
    compute_s: ArrayLike, communication_s: ArrayLike, kappa: ArrayLike
) -> NDArray[np.float64]:
    """Return what a collective adds to the computation behind which it hides.

    Parameters
    ----------
    compute_s, communication_s, kappa : array_like
        As in :func:`overlapped_time`.

    Returns
    -------
    ndarray
        Seconds, at least 0 and at most `communication_s`.

    Raises
    ------
    CostError
        As in :func:`overlapped_time`.

    Examples
    --------
    >>> float(exposed_time(3.0, 2.0, 0.5)), float(exposed_time(0.0, 2.0, 0.5))
    (1.0, 2.0)
    """
    both = overlapped_time(compute_s, communication_s, kappa)
    return np.asarray(np.maximum(both - np.asarray(compute_s, dtype=np.float64), 0.0))
