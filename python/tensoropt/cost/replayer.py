"""Peaks and simulated times of many assignments that share their blocks.

A program is a row of stretches: the forward and backward passes of the repeated blocks, and what
runs between them. A stretch depends on what is chosen in its own block and in the ones before and
after it, so a few of them make up the programs of a whole frontier. This module cuts programs into
stretches once, keeps each as a template, and strings templates together. Of a program with a new
stretch only what lies about it is walked.

- memory: a template's peak above its start and what it leaves behind, added up along the row;
- time: nothing of a stretch starts before the last kernel of the one before it does. What is not
  done at that moment (the backlog) is all that a stretch needs to know of the past. Runs of equal
  stretches soon meet equal backlogs, and are simulated once.

The answers are those of ``liveness.replay`` and ``schedule.iteration_time``, which a test holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tensoropt.cost.assignment import Assignment
from tensoropt.cost.evaluate import evaluate
from tensoropt.cost.events import Program
from tensoropt.cost.liveness import replay
from tensoropt.cost.parts import Parts
from tensoropt.cost.program import build_program
from tensoropt.cost.schedule import (
    STEADY,
    Run,
    Simulation,
    Task,
    interference,
    iteration_time,
    joined_runs,
)

__all__ = ["Replayer"]

PICOSECOND = 12
"""Decimals to which times of a backlog are rounded, so that equal ones are found equal."""

WHOLE = 4
"""So many programs are walked whole, and stretches that look alike compared, before parts are."""

NEAR = 2
"""How far from a stretch all must be walked for it to be what it is in truth: where its kernels are
cut depends on what the next one begins with, and that on what the block beyond hands on."""

Reference = tuple[int, int]
"""A task: how many stretches back it lies (0: this one), and its number there. Stretches between
blocks have fixed places: stretch s is written as -1 - s. Numbers in other stretches count from
their ends (-1 is the last), since what a stretch begins with depends on the one before it. The
first stretch has none before it: seen from afar its numbers count from its start, since what it
ends with depends on the one after it."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """One task of a template."""

    stream: int
    seconds: float
    when: str
    needs: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class _Template:
    """A stretch of a program, wherever it occurs.

    Attributes
    ----------
    peak_bytes, left_bytes : float
        Above what lies there when it begins: at most, and when it is through.
    pieces : tuple of _Piece
    fixed : bool
        Whether some piece needs a task at a fixed place.
    """

    peak_bytes: float
    left_bytes: float
    pieces: tuple[_Piece, ...]
    fixed: bool


@dataclass(frozen=True, slots=True)
class _Pending:
    """A task that is still to be done when the last kernel of a stretch starts."""

    age: int
    number: int
    stream: int
    seconds: float
    needs: tuple[int, ...]


Backlog = tuple[_Pending, ...]


class Replayer:
    """Replays and re-times assignments, and keeps what their programs have in common.

    Parameters
    ----------
    parts : Parts

    Attributes
    ----------
    regular : bool
        Whether stretches that should be alike were alike so far; if not, nothing is shared.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.kappa = interference(parts.model)
        self._levels = [1 + axis.level for axis in parts.model.mesh.axes]
        self._templates: dict[Hashable, _Template] = {}
        self._advances: dict[Hashable, tuple[float, Backlog]] = {}
        self.regular = True
        self._row: list[tuple[str, int | None]] = []
        self._walked = 0
        blocks = range(len(parts.graph.blocks))
        inside = {p for block in blocks for p in parts.segments[block].positions}
        readers = [{p for p, _ in g.readers} for g in parts.decisions.groups if len(g.readers) > 1]
        self._divisible = not any(inside & positions for positions in readers)

    def peak_and_time(self, assignment: Assignment) -> tuple[float, float]:
        """Peak bytes of the replay and simulated seconds of an iteration.

        Raises
        ------
        ShardingError
            If the assignment is illegal.
        """
        keys = self._keys(assignment) if self.regular else []
        if not self.regular or any(key not in self._templates for key in keys):
            passed_over = self._passed_over(keys)
            program = build_program(self.parts, assignment, passed_over)
            self._walked += 1
            keys = self._learn(assignment, program, passed_over)
            if not self.regular:
                if passed_over:
                    program = build_program(self.parts, assignment)
                time = iteration_time(program, self.parts.model)
                return replay(program).peak_bytes, time
        templates = [self._templates[key] for key in keys]
        found = evaluate(self.parts, self.parts.decisions, assignment)
        base = found.weight_bytes + found.optimizer_bytes + found.buffer_bytes
        # With several micro-batches gradients lie there from the start.
        base += found.gradient_bytes if assignment.micro_batches > 1 else 0.0
        return self._peak(base, templates), self._time(keys, templates) + found.optimizer_s

    # Cutting.

    def _keys(self, assignment: Assignment) -> list[Hashable]:
        """What each stretch depends on: its block's choices and those of its neighbours."""
        numbers = self.parts.choices(assignment)
        segments = self.parts.segments
        choices = {s.block: number for s, number in zip(segments, numbers, strict=True)}
        row = self._row
        own = [-1, *(choices[block] for _, block in row), -1]
        # What stands between blocks, or next to it, has a place; blocks occur again and again.
        outside = [True, *(block is None for _, block in row), True]
        return [
            (
                name,
                *own[number : number + 3],
                number if any(outside[number : number + 3]) else -1,
            )
            for number, (name, _) in enumerate(row)
        ] or [-1]

    def _passed_over(self, keys: Sequence[Hashable]) -> set[int]:
        """Blocks that say nothing new, and are not near what is new or stands between blocks.

        What stands between blocks is always walked, and as a whole, since tasks in it are counted
        from its ends.
        """
        if self._walked < WHOLE or not self._divisible or not self.regular:
            return set()
        row = [block for _, block in self._row]
        new = {n for n, key in enumerate(keys) if key not in self._templates}
        new |= {n for n, block in enumerate(row) if block is None}
        near = {row[n] for k in new for n in range(max(k - NEAR, 0), min(k + NEAR + 1, len(row)))}
        return {block for block in row if block is not None and block not in near}

    def _learn(
        self, assignment: Assignment, program: Program, passed_over: set[int]
    ) -> list[Hashable]:
        """Keep the stretches of a program as templates; returns the keys of all.

        What was passed over, or is near that, teaches nothing.
        """
        # The last stretch is the optimizer, which waits for everything.
        row = [(mark.name, mark.block) for mark in program.marks[:-1]]
        if not self._row:
            self._row = row
        if row != self._row:
            self.regular = False
        if not self.regular:
            return []
        keys = self._keys(assignment)
        pieces = self._pieces(program)
        memory = _memory(program)
        blocks = [block for _, block in row]
        found = zip(keys, memory[:-1], pieces[:-1], strict=True)
        for number, (key, (peak, left), run) in enumerate(found):
            if passed_over.intersection(blocks[max(number - NEAR, 0) : number + NEAR + 1]):
                continue
            fixed = any(back < 0 for piece in run for back, _ in piece.needs)
            template = _Template(peak, left, run, fixed)
            # Should stretches that look alike not be alike, every program is replayed by itself.
            self.regular &= self._templates.setdefault(key, template) == template
        return keys

    def _pieces(self, program: Program) -> list[tuple[_Piece, ...]]:
        """Tasks of every stretch, with references to others by stretch and number."""
        marks = program.marks
        starts = [mark.event for mark in marks]
        place: dict[int, tuple[int, int]] = {}
        found: list[list[_Piece]] = [[] for _ in marks]
        stretch = 0
        for run in joined_runs(program):
            while stretch + 1 < len(starts) and run.events[0] >= starts[stretch + 1]:
                stretch += 1
            number = len(found[stretch])
            needs = []
            for other, own in (place[n] for n in run.needs):
                # What the forward pass did is done in the backward pass.
                if marks[other].name == marks[stretch].name:
                    far = marks[other].block is None and other != stretch
                    back = -1 - other if far else stretch - other
                    from_start = other == stretch or (far and other == 0)
                    needs.append((back, own if from_start else own - len(found[other])))
            found[stretch].append(
                _Piece(
                    self._stream(run),
                    run.seconds,
                    run.when,
                    tuple(needs),
                )
            )
            place.update(dict.fromkeys(run.events, (stretch, number)))
        return [tuple(pieces) for pieces in found]

    def _stream(self, run: Run) -> int:
        return 0 if run.axis < 0 else self._levels[run.axis]

    # Stringing together.

    @staticmethod
    def _peak(base: float, templates: list[_Template]) -> float:
        level, peak = base, 0.0
        for template in templates:
            peak = max(peak, level + template.peak_bytes)
            level += template.left_bytes
        return peak

    def _time(self, keys: list[Hashable], templates: list[_Template]) -> float:
        """Seconds until all is done that the optimizer waits for."""
        m = self.parts.model.micro_batches
        count = min(m, STEADY)
        now = 0.0
        ends = []
        opening = len(templates[0].pieces) if templates else 0
        backlog: Backlog = ()
        for micro_batch in range(count):
            first, last = micro_batch == 0, micro_batch == count - 1
            for place, (key, template) in enumerate(zip(keys, templates, strict=True)):
                where = (place, opening) if template.fixed and backlog else None
                memo = (key, first, last, where, backlog)
                found = self._advances.get(memo)
                if found is None:
                    found = self._run(template, (place, opening), (first, last), backlog)
                    self._advances[memo] = found
                step, backlog = found
                now += step
            ends.append(now + sum(p.seconds for p in backlog if p.stream == 0))
        done = Simulation([Task(p.stream, p.seconds, p.needs) for p in backlog], self.kappa).done
        time = now + max(done, default=0.0)
        if m > count:
            time += (m - count) * (ends[1] - ends[0])
        return time

    def _run(
        self,
        template: _Template,
        where: tuple[int, int],
        edge: tuple[bool, bool],
        backlog: Backlog,
    ) -> tuple[float, Backlog]:
        """Run a stretch: seconds until its last kernel starts, and what is not done then.

        `where` it stands, and how many tasks the first stretch has; `edge`: whether the first and
        the last micro-batch runs.
        """
        (stretch, opening), (first, last) = where, edge
        when: Mapping[str, bool] = {"every": True, "first": first, "last": last, "after": last}
        tasks = [Task(p.stream, p.seconds, p.needs) for p in backlog]
        place = {(p.age, p.number): i for i, p in enumerate(backlog)}
        origin = [(p.age, p.number) for p in backlog]
        kernels = [i for i, p in enumerate(backlog) if p.stream == 0]
        for number, piece in enumerate(template.pieces):
            if not when[piece.when]:
                continue
            asked = [
                (stretch + 1 + b if b < 0 else b, n - opening if b == -1 and n >= 0 else n)
                for b, n in piece.needs
            ]
            needs = [place[n] for n in asked if n in place]
            place[0, number] = len(tasks)
            origin.append((0, number - len(template.pieces)))
            if piece.stream == 0:
                kernels.append(len(tasks))
            else:
                needs += kernels[-2:-1]
            tasks.append(Task(piece.stream, piece.seconds, tuple(needs)))
        if len(kernels) < 2:
            return 0.0, self._left(tasks, origin, None)
        until = kernels[-2]
        run = Simulation(tasks, self.kappa, until)
        return run.done[until], self._left(tasks, origin, run)

    @staticmethod
    def _left(tasks: list[Task], origin: list[Reference], run: Simulation | None) -> Backlog:
        """Tasks that are not done, seen from the next stretch."""
        place: dict[int, int] = {}
        found: list[_Pending] = []
        for number, task in enumerate(tasks):
            if run is not None and run.done[number] >= 0.0:
                continue
            seconds = task.seconds if run is None else run.left(number)
            needs = tuple(place[n] for n in task.needs if n in place)
            place[number] = len(found)
            age, own = origin[number]
            found.append(_Pending(age + 1, own, task.stream, round(seconds, PICOSECOND), needs))
        return tuple(found)


def _memory(program: Program) -> list[tuple[float, float]]:
    """For every stretch, its peak above its start, and what it leaves behind."""
    count = len(program.events)
    moving = [b for b in program.buffers if b.start > 0 or b.stop < count - 1]
    sizes = np.array([b.nbytes for b in moving])
    starts = np.array([b.start for b in moving], np.int64)
    stops = np.array([b.stop for b in moving], np.int64)
    changes = np.zeros(count + 1)
    np.add.at(changes, starts, sizes)
    np.add.at(changes, stops + 1, -sizes)
    level = np.cumsum(changes)
    found = []
    edges = [*(mark.event for mark in program.marks), count]
    for begin, end in itertools.pairwise(edges):
        before = level[begin - 1] if begin else 0.0
        peak = level[begin:end].max(initial=before) - before
        after = level[end - 1] if end > begin else before
        # Sums of bytes differ by rounding where shards are uneven.
        found.append((round(float(peak), 3), round(float(after - before), 3)))
    return found
