"""Peak memory of a program by liveness: what lies there at each event, in executed order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensoropt.cost.events import Buffer, Program

__all__ = ["Replay", "replay"]


@dataclass(frozen=True)
class Replay:
    """Memory over the events of a program.

    Attributes
    ----------
    timeline : (events,) float array
        Bytes that lie there while each event runs.
    program : Program
    """

    timeline: npt.NDArray[np.float64]
    program: Program

    @property
    def peak_bytes(self) -> float:
        """The most there ever is."""
        return float(self.timeline.max(initial=0.0))

    @property
    def peak_event(self) -> int:
        """Position of the first event at the peak."""
        return int(self.timeline.argmax())

    def live(self, event: int) -> list[Buffer]:
        """Buffers that lie there while an event runs, the largest first."""
        found = [b for b in self.program.buffers if b.start <= event <= b.stop]
        return sorted(found, key=lambda b: (-b.nbytes, b.name, b.part))


def replay(program: Program) -> Replay:
    """Add up the buffers of a program event by event.

    Parameters
    ----------
    program : Program

    Returns
    -------
    Replay
    """
    count = len(program.events)
    changes = np.zeros(count + 1)
    buffers = program.buffers
    sizes = np.fromiter((b.nbytes for b in buffers), np.float64, len(buffers))
    starts = np.fromiter((b.start for b in buffers), np.int64, len(buffers))
    stops = np.fromiter((b.stop for b in buffers), np.int64, len(buffers))
    np.add.at(changes, starts, sizes)
    np.add.at(changes, stops + 1, -sizes)
    return Replay(np.cumsum(changes)[:count], program)
