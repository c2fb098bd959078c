"""From allocated bytes to what the device shows as used: device total = c0 + k * allocated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoropt.errors import CostError

__all__ = ["MemoryCalibration"]


@dataclass(frozen=True, slots=True)
class MemoryCalibration:
    """The two constants between the allocator's view and the device's.

    Parameters
    ----------
    fixed_bytes : float
        c0: what the device holds beside the allocator's memory (driver context, communicators,
        library workspaces). Measured values lie between 1 and 8 GB; the default is the lower third
        of that and should be measured on your machine.
    scale : float
        k: reserved over allocated memory (fragmentation, rounding). Default: the mean over 166
        measured pipeline stages on A10G and L4, 1.11 (90th percentile 1.15, largest 1.22).
    at_risk_share : float
        Share of the card above which a plan is marked at risk. Default 0.90: runs beyond it were
        seen flushing the allocator's cache and taking up to 1.75 times as long.

    Examples
    --------
    >>> calibration = MemoryCalibration(fixed_bytes=1e9, scale=1.1)
    >>> float(calibration.device_total(10e9))
    12000000000.0
    """

    fixed_bytes: float = 1.5e9
    scale: float = 1.11
    at_risk_share: float = 0.90

    def __post_init__(self) -> None:
        if not 0 <= self.fixed_bytes < float("inf"):
            raise CostError("memory calibration: fixed_bytes must be finite and >= 0")
        if not 1 <= self.scale < float("inf"):
            raise CostError("memory calibration: scale is reserved / allocated, so at least 1")
        if not 0 < self.at_risk_share <= 1:
            raise CostError("memory calibration: at_risk_share must be in (0, 1]")

    def device_total(self, allocated_bytes: ArrayLike) -> NDArray[np.float64]:
        """Return the bytes that the device shows as used."""
        allocated = np.asarray(allocated_bytes, dtype=np.float64)
        return np.asarray(self.fixed_bytes + self.scale * allocated)

    def allocated_for(self, device_total_bytes: ArrayLike) -> NDArray[np.float64]:
        """Return the most whole allocated bytes that fit a device total, at least 0."""
        total = np.asarray(device_total_bytes, dtype=np.float64)
        about = np.floor(np.maximum((total - self.fixed_bytes) / self.scale, 0.0))
        # The quotient may be off in its last bit, to either side of a whole number.
        fits = [
            np.where(self.device_total(n) <= total, n, 0.0) for n in (about - 1, about, about + 1)
        ]
        return np.asarray(np.maximum(np.max(fits, axis=0), 0.0))

    def at_risk(self, allocated_bytes: ArrayLike, memory_bytes: float) -> NDArray[np.bool_]:
        """Return whether a plan fills more of the card than is safe."""
        return np.asarray(self.device_total(allocated_bytes) > self.at_risk_share * memory_bytes)
