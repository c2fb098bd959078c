"""Time of a collective as a function of its size: measured points and fitted laws.

The law is t(S) = a + b S + c sqrt(S), all coefficients >= 0: latency, bandwidth, and the ramp
between them. A measured curve follows its points: the law carries the shape, and what the points
say beyond it is interpolated in the logarithm of the size and made monotone, so that a larger
message is never quicker.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoropt.errors import CostError

__all__ = ["Law", "MeasuredCurve", "fit_law", "measured_curve", "measured_ranks"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Law:
    """t(S) = a + b S + c sqrt(S) in seconds, S in bytes.

    Parameters
    ----------
    a_s, b_s_per_byte, c_s_per_root_byte : float
        Coefficients, all >= 0.
    """

    a_s: float
    b_s_per_byte: float
    c_s_per_root_byte: float

    def __call__(self, nbytes: ArrayLike) -> Array:
        """Return seconds for each size in bytes."""
        size = np.asarray(nbytes, dtype=np.float64)
        ramp = self.c_s_per_root_byte * np.sqrt(size)
        return np.asarray(self.a_s + self.b_s_per_byte * size + ramp)


def fit_law(nbytes: ArrayLike, seconds: ArrayLike) -> Law:
    """Fit the law to measured points by least squares of the relative error.

    Parameters
    ----------
    nbytes, seconds : array_like, shape (N,)
        Sizes and times, N >= 3.

    Returns
    -------
    Law
        The best of all fits whose coefficients are >= 0 (every subset of the three terms is
        solved, which is the exact non-negative solution).

    Raises
    ------
    CostError
        If there are fewer than three points or a value is not positive.
    """
    size, time = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if size.ndim != 1 or size.shape != time.shape or size.size < 3:
        raise CostError("a collective curve needs at least three points (bytes, seconds)")
    if not (np.all(size > 0) and np.all(time > 0) and np.all(np.isfinite(time))):
        raise CostError("the points of a collective curve must be positive and finite")
    # Columns of very different size: scaling them keeps the least-squares problem well posed.
    columns = np.stack([np.ones_like(size), size, np.sqrt(size)], axis=1)
    scale = columns.max(axis=0)
    weighted = columns / scale / time[:, None]
    best, best_error = np.zeros(3), np.inf
    for count in (1, 2, 3):
        for terms in itertools.combinations(range(3), count):
            solved, *_ = np.linalg.lstsq(weighted[:, terms], np.ones_like(time), rcond=None)
            if np.any(solved < 0):
                continue
            error = float(np.sum((weighted[:, terms] @ solved - 1) ** 2))
            if error < best_error:
                best, best_error = np.zeros(3), error
                best[list(terms)] = solved
    a, b, c = best / scale
    return Law(float(a), float(b), float(c))


class MeasuredCurve:
    """A collective's time through measured points.

    Parameters
    ----------
    nbytes, seconds : array_like, shape (N,)
        Sizes and times, N >= 3; sizes increasing.
    """

    # Steps of the table per octave of size: finer than any stored measurement.
    _STEPS = 8

    def __init__(self, nbytes: ArrayLike, seconds: ArrayLike) -> None:
        size, time = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        self.law = fit_law(size, time)
        if np.any(np.diff(size) <= 0):
            raise CostError("the sizes of a collective curve must increase")
        self.smallest, self.largest = float(size[0]), float(size[-1])
        # A message that took longer than a larger one was an outlier or a bad switch of protocol:
        # the geometric mean of the envelopes from both sides splits the difference.
        above = np.maximum.accumulate(time)
        below = np.minimum.accumulate(time[::-1])[::-1]
        smooth = np.sqrt(above * below)
        octaves = np.log2(size[-1] / size[0])
        grid = np.geomspace(size[0], size[-1], int(np.ceil(octaves * self._STEPS)) + 1)
        residual = np.interp(np.log(grid), np.log(size), np.log(smooth / self.law(size)))
        table = np.maximum.accumulate(self.law(grid) * np.exp(residual))
        self._log_size, self._log_time = np.log(grid), np.log(table)

    def __call__(self, nbytes: ArrayLike) -> Array:
        """Return seconds for each size in bytes (> 0), beyond the points by the law's shape."""
        size = np.asarray(nbytes, dtype=np.float64)
        inside = np.clip(size, self.smallest, self.largest)
        time = np.exp(np.interp(np.log(inside), self._log_size, self._log_time))
        return np.asarray(time * self.law(size) / self.law(inside))


@cache
def _table() -> dict[str, Any]:
    text = files("tensoropt.cost").joinpath("data").joinpath("collectives.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


@cache
def _index() -> dict[tuple[str, str, int], Sequence[Sequence[float]]]:
    return {
        (curve["family"], curve["kind"], curve["ranks"]): curve["points_bytes_us"]
        for curve in _table()["curves"]
    }


@cache
def measured_curve(family: str, kind: str, ranks: int) -> MeasuredCurve | None:
    """Return the stored measurement for a link family, a collective and a group size, if any."""
    points = _index().get((family, kind, ranks))
    if points is None:
        return None
    array = np.asarray(points, dtype=np.float64)
    return MeasuredCurve(array[:, 0], array[:, 1] * 1e-6)


def measured_ranks(family: str, kind: str) -> tuple[int, ...]:
    """Return the group sizes for which a measurement is stored."""
    return tuple(sorted(n for f, k, n in _index() if (f, k) == (family, kind)))
