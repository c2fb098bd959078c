"""When weights that are kept in pieces are gathered: ahead of their operator, as far as they fit.

A weight may be gathered while the operator with weights before its own is worked on, so that the
collective hides behind kernels. It then lies there beside other operators. A plan knows what each
of them needs, so it gathers a weight only as early as that does not raise the peak of the stretch
from one operator to the next. Beside a kernel there is room for twice its weight: a scheme is
charged for two of them beside what the operator reads (a tied one only for what it needs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tensoropt.cost.order import Step
from tensoropt.cost.priced import Move

__all__ = ["Gathered", "Point", "Trace", "early"]

Point = tuple[str, int, str]
"""A step, and whether it ``begins`` or, its operands being there, ``runs``."""

ROUNDING = 1e-3
"""Bytes by which sums may differ where shards are uneven."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """Bytes of weights that are gathered for a step, of those that come and go.

    Attributes
    ----------
    whole : float
        Once they are gathered.
    most : float
        The most that lies there on the way.
    spare : float
        For how much more there is room beside the kernel.
    """

    whole: float
    most: float
    spare: float

    @classmethod
    def of(cls, weights: Iterable[tuple[Sequence[Move], bool]]) -> Gathered:
        """Add up the gathers of several weights, each with whether others read it too."""
        whole = most = spare = 0.0
        for moves, tied in weights:
            if moves:
                size = moves[-1].local_bytes
                whole += size
                most += sum(move.local_bytes for move in moves[-2:])
                spare += 0.0 if tied else 2.0 * size
        return cls(whole, most, spare)


@dataclass(slots=True)
class Trace:
    """Where a program could have gathered weights, when each was gathered at the last moment.

    Attributes
    ----------
    points : dict of Point to int
        In order, with the next event at that moment.
    kernels : dict of Step to int
        Events of the kernels.
    passes : list of list of Step
        Steps with weights in each pass, in order, whether they are to be gathered or not.
    """

    points: dict[Point, int] = field(default_factory=dict)
    kernels: dict[Step, int] = field(default_factory=dict)
    passes: list[list[Step]] = field(default_factory=list)


def early(
    trace: Trace,
    levels: npt.NDArray[np.float64],
    sizes: Mapping[Step, Gathered],
) -> dict[Point, list[Step]]:
    """At which points the weights of which steps are gathered.

    Parameters
    ----------
    trace : Trace
    levels : (events,) float array
        Bytes that lie there while each event runs, each weight gathered at the last moment.
    sizes : mapping of Step to Gathered
    """
    names = list(trace.points)
    edges = [*trace.points.values(), len(levels)]
    highest = [_highest(levels, a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    filled = list(highest)
    place = {name: number for number, name in enumerate(names)}
    found: dict[Point, list[Step]] = {}
    for steps in trace.passes:
        before: Step | None = None
        soonest = 0
        for step in steps:
            if step not in sizes:
                before, soonest = step, place[*step, "begins"]
                continue
            last = place[*step, "runs"]
            if before is None:
                first = soonest = place[*step, "begins"]
            else:
                first = place[*before, "begins"]
                if before[1] == step[1]:
                    # The same weights, dropped between two passes of their operator.
                    first = place[*before, "runs"] + 1
            size = sizes[step]
            room = max(highest[first : last + 1])
            room = max([room, *_beside_kernels(trace, levels, sizes, (before, step))]) + ROUNDING
            start = last
            while start > max(first, soonest) and filled[start - 1] + size.most <= room:
                start -= 1
            for number in range(start, last):
                filled[number] += size.whole
            found.setdefault(names[start], []).append(step)
            before, soonest = step, start
    return found


def _highest(levels: npt.NDArray[np.float64], start: int, stop: int) -> float:
    return float(levels[start:stop].max(initial=0.0))


def _beside_kernels(
    trace: Trace,
    levels: npt.NDArray[np.float64],
    sizes: Mapping[Step, Gathered],
    steps: Sequence[Step | None],
) -> list[float]:
    """What may lie there while kernels run whose weights come and go."""
    return [
        float(levels[trace.kernels[step]]) + (sizes[step].spare if step in sizes else 0.0)
        for step in steps
        if step is not None and step in trace.kernels
    ]
