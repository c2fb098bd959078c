"""The answers of one mesh and one number of micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensoropt import _native
from tensoropt.cost.assignment import Assignment, from_tables
from tensoropt.cost.tables import Tables

from .blocks import Bound, Recompute
from .problem import Choices, MeshProblem
from .skyline import covered_within, skyline
from .steps import Resolution

__all__ = ["Answers", "Known", "solve_mesh"]

FloatArray = npt.NDArray[np.floating]
Progress = Callable[[float], None]


CLOSE = 1.01
"""A bound from below is good enough for a search for plans if they come this close."""

ENOUGH = 2.0
"""How many times closer to the bound the plans are that are looked for, about."""


class Known:
    """The staircase of everything found so far that fits.

    Parameters
    ----------
    within : float
        Cap on resident plus transient bytes; infinite without one.
    """

    def __init__(self, within: float) -> None:
        self.within = within
        self.time_s: FloatArray = np.zeros(0)
        self.bound_bytes: FloatArray = np.zeros(0)

    def __len__(self) -> int:
        return len(self.time_s)

    def copy(self) -> Known:
        """Another one with the same points."""
        other = Known(self.within)
        other.time_s, other.bound_bytes = self.time_s, self.bound_bytes
        return other

    def add(self, time_s: npt.ArrayLike, bound_bytes: npt.ArrayLike) -> None:
        """Add points."""
        time = np.concatenate([self.time_s, np.asarray(time_s, np.float64)])
        memory = np.concatenate([self.bound_bytes, np.ceil(np.asarray(bound_bytes, np.float64))])
        fits = np.nonzero(memory <= self.within)[0]
        chosen = fits[skyline(time[fits], memory[fits])]
        self.time_s, self.bound_bytes = time[chosen], memory[chosen]

    def cover(self, time_s: FloatArray, bound_bytes: FloatArray) -> float:
        """Least factor within which every point is covered; infinite if nothing is known."""
        if not len(time_s):
            return 1.0
        if not len(self):
            return np.inf
        return covered_within(time_s, bound_bytes, self.time_s, self.bound_bytes, self.within)

    def steps(self, resolution: Resolution) -> npt.NDArray[np.float64]:
        """Time and memory in whole steps, rounded up: (points, 2)."""
        memory = np.ceil(self.bound_bytes / resolution.memory_bytes)
        time = np.ceil(self.time_s / resolution.time_s)
        return np.column_stack([time, memory]).astype(np.float64)


@dataclass(frozen=True)
class Answers:
    """The frontier of one mesh and one number of micro-batches.

    Attributes
    ----------
    problem : MeshProblem
    choices : Choices
    time_s, bound_bytes : (points,) float arrays
        Iteration time, and resident plus transient bytes, from the unrounded tables.
    status : str
        Of the search.
    lower_time_s, lower_bytes : (bounds,) float arrays
        No strategy is better by more than `lower_factor` than all of these and the known points.
    lower_factor : float
        In steps; with `rounding`, of true costs.
    rounding : float
    least_bound_bytes : float or None
        If nothing fits under the cap: the least that any strategy needs.
    """

    problem: MeshProblem
    choices: Choices
    time_s: FloatArray
    bound_bytes: FloatArray
    status: str
    lower_time_s: FloatArray
    lower_bytes: FloatArray
    lower_factor: float
    rounding: float
    least_bound_bytes: float | None

    @property
    def tables(self) -> Tables:
        """The tables behind the answers."""
        return self.problem.tables

    def assignment(self, point: int) -> Assignment:
        """One answer in the neutral form that evaluation, schemes and files share."""
        return from_tables(
            self.tables,
            {node: int(rows[point]) for node, rows in self.choices.nodes.items()},
            {link: int(taken[point]) for link, taken in self.choices.links.items()},
            [bool(redo) for redo in self.choices.recomputed[point]],
        )


def solve_mesh(
    tables: Tables,
    recompute: Recompute,
    *,
    epsilon: float,
    cap_bytes: float | None,
    threads: int | None,
    known: Known | None = None,
    progress: Progress | None = None,
) -> Answers:
    """Find the frontier of one mesh and one number of micro-batches.

    Parameters
    ----------
    tables : Tables
    recompute : str
    epsilon : float
    cap_bytes : float or None
        On resident plus transient bytes.
    threads : int or None
    known : Known, optional
        Points found elsewhere: what they cover within `epsilon` need not be found here.
    progress : callable, optional
        Called with the fraction done.
    """
    # A cap is tested against what blocks need in truth, so nothing may be lost on the way to it.
    trimmed = epsilon / 16 if cap_bytes is None else 0.0
    problem = MeshProblem(tables, recompute, epsilon=trimmed, threads=threads)
    known = (known or Known(np.inf)).copy()
    step = problem.resolution
    cap = None if cap_bytes is None else int(cap_bytes // step.memory_bytes)
    tell = progress or (lambda _: None)

    def solve(
        bound: Bound, begun: float, share: float, within: float = epsilon / 2
    ) -> tuple[_native.Solution, Choices]:
        solution = _native.solve(
            problem.outer_graph(bound),
            epsilon=within,
            threads=threads,
            peak=(1, 2, cap),
            known=known.steps(step),
            progress=lambda state: tell(begun + share * float(state["fraction"])),
        )
        assignments, alternatives = solution.assignments, solution.alternatives
        return solution, problem.decode(np.asarray(assignments), np.asarray(alternatives), bound)

    share = 1.0 if problem.exact else 1 / 3
    lower, choices = solve("lower", 0.0, share)
    status = lower.status
    lower_time_s, lower_bytes = _costs(lower, step)
    time, resident, transient = problem.costs(choices)
    if problem.exact:
        lower_time_s, lower_bytes = time, resident + transient
    else:
        # Where plans are as close to the bound as it is to the truth, nothing is to be gained.
        tried: list[Bound] = ["closer", "upper"]
        for number, bound in enumerate(tried, 1):
            known.add(time, resident + transient)
            cover = known.cover(lower_time_s, lower_bytes)
            if cover <= max(CLOSE if bound == "closer" else lower.factor, 1.0 + epsilon / 2):
                continue
            # For better plans it need not be proven how good they are, as a bound must be.
            within = epsilon / 2 if bound == "closer" else max(epsilon / 2, (cover - 1.0) / ENOUGH)
            solution, found = solve(bound, number * share, share, within)
            status = solution.status
            choices = choices.joined(found)
            time, resident, transient = problem.costs(choices)
            if bound == "closer":
                lower = solution
                lower_time_s, lower_bytes = _costs(lower, step)
    reached = next((least for what, _, least in lower.least if what == "peak"), None)
    return Answers(
        problem,
        choices,
        time,
        resident + transient,
        status,
        lower_time_s,
        lower_bytes,
        float(lower.factor),
        problem.rounding(lower_time_s, lower_bytes),
        None if reached is None else float(reached) * step.memory_bytes,
    )


def _costs(solution: _native.Solution, step: Resolution) -> tuple[FloatArray, FloatArray]:
    """Time, and resident plus transient bytes, as the solver counts them."""
    costs = np.asarray(solution.costs, np.float64)
    return costs[:, 0] * step.time_s, (costs[:, 1] + costs[:, 2]) * step.memory_bytes
