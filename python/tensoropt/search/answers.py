"""The answers of one mesh and one number of micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensoropt import _native
from tensoropt.cost.assignment import Assignment, from_tables
from tensoropt.cost.tables import Tables

from .problem import Choices, MeshProblem, Recompute

__all__ = ["Answers", "solve_mesh"]

FloatArray = npt.NDArray[np.floating]
Progress = Callable[[float], None]


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
        Of the search; ``covered`` if there was nothing to find.
    lower_time_s, lower_bytes : (bounds,) float arrays
        No strategy is better than all of these points by more than `lower_factor`.
    lower_factor : float
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
    covered: Callable[[FloatArray, FloatArray], float] | None = None,
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
    covered : callable, optional
        Given times and bytes that bound every strategy here from below, the factor within which
        what is known already covers them. Where that is within `epsilon` there is nothing to find.
    progress : callable, optional
        Called with the fraction done.
    """
    problem = MeshProblem(tables, recompute, threads=threads)
    step = problem.resolution
    tell = progress or (lambda _: None)
    bound = _native.solve(
        problem.relaxed(),
        epsilon=epsilon / 2,
        threads=threads,
        progress=lambda state: tell(float(state["fraction"]) / 2),
    )
    lower = np.asarray(bound.costs, np.float64)
    lower_time_s = lower[:, 0] * step.time_s
    lower_bytes = (lower[:, 1] + problem.floor_steps) * step.memory_bytes
    least: float | None = None
    if covered is not None and covered(lower_time_s, lower_bytes) * bound.factor <= 1.0 + epsilon:
        status = "covered"
        choices = problem.decode(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64))
    else:
        cap = None if cap_bytes is None else int(cap_bytes // step.memory_bytes)
        solution = _native.solve(
            problem.build(),
            epsilon=epsilon / 2,
            threads=threads,
            peak=(1, 2, cap),
            progress=lambda state: tell(0.5 + float(state["fraction"]) / 2),
        )
        status = solution.status
        choices = problem.decode(
            np.asarray(solution.assignments), np.asarray(solution.alternatives)
        )
        reached = next((r for what, _, r in solution.least if what == "peak"), None)
        least = None if reached is None else float(reached) * step.memory_bytes
    time, resident, transient = problem.costs(choices)
    return Answers(
        problem,
        choices,
        time,
        resident + transient,
        status,
        lower_time_s,
        lower_bytes,
        float(bound.factor),
        least,
    )
