"""One model on different numbers of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from tensoropt.cluster import Cluster
from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.reporting.units import format_bytes_apart
from tensoropt.strategy import Strategy

__all__ = ["Sweep", "SweepRow"]


@dataclass(frozen=True)
class SweepRow:
    """The outcome for one number of devices.

    Parameters
    ----------
    count : int
        Number of devices.
    cluster : Cluster
        Those devices.
    strategy : Strategy or None
        The fastest that fits, None if nothing fits.
    least_bytes : int or None
        Device total of the leanest strategy, None if unknown.
    points : int
        Points on the frontier, 0 if there is none.
    status : str
        Of the search, see :class:`Frontier`.
    factor : float
        Proven by the search, see :class:`Frontier`.
    reason : str
        Why nothing fits, or empty.
    """

    count: int
    cluster: Cluster
    strategy: Strategy | None
    least_bytes: int | None = None
    points: int = 0
    status: str = "optimal"
    factor: float = 1.0
    reason: str = ""

    @property
    def fits(self) -> bool:
        """Whether any strategy fits."""
        return self.strategy is not None

    @property
    def throughput(self) -> float | None:
        """Samples per second of all devices together."""
        return None if self.strategy is None else self.strategy.throughput

    @property
    def throughput_per_device(self) -> float | None:
        """Samples per second of one device."""
        return None if self.strategy is None else self.strategy.throughput / self.count

    @property
    def price_per_step(self) -> float | None:
        """USD per iteration, None if the price is unknown or nothing fits."""
        hourly = self.cluster.price_usd_per_hour
        if hourly is None or self.strategy is None:
            return None
        return hourly * self.strategy.costs.time_s / 3600


@dataclass(frozen=True)
class Sweep:
    """What :func:`tensoropt.sweep` returns: one row for each number of devices.

    Parameters
    ----------
    model, device : str
        Names, for people.
    rows : sequence of SweepRow
        By ascending count.
    memory_bytes : float
        Limit of the device total that strategies had to keep.
    """

    model: str
    device: str
    rows: Sequence[SweepRow]
    memory_bytes: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        counts = [row.count for row in self.rows]
        if not counts or counts != sorted(set(counts)):
            raise ProblemError(f"rows of a sweep must have ascending counts, got {counts}")

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[SweepRow]:
        return iter(self.rows)

    @property
    def fewest(self) -> SweepRow:
        """The row with the smallest number of devices on which something fits.

        Raises
        ------
        InfeasibleError
            If nothing fits on any.
        """
        for row in self.rows:
            if row.fits:
                return row
        most = self.rows[-1]
        limit, least_text = format_bytes_apart(self.memory_bytes, most.least_bytes or 0)
        text = f"no strategy of {self.model} fits {limit} a device on up "
        text += f"to {most.count} {self.device}"
        if most.least_bytes is not None:
            text += f": the leanest needs {least_text}"
        elif most.reason:
            text += f": {most.reason}"
        least = None if most.least_bytes is None else float(most.least_bytes)
        raise InfeasibleError(f"{text}; try larger counts", least)

    def table(self) -> str:
        """Return the rows as a plain text table."""
        from tensoropt.reporting.sweep_table import sweep_table

        return sweep_table(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as JSON values."""
        from tensoropt.reporting.sweep_table import sweep_record

        return sweep_record(self)

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw throughput and price per step against the number of devices.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        from tensoropt.reporting.plots import plot_sweep

        plot_sweep(self, path)
