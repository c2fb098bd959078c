"""Layouts of one tensor on a mesh, and the cheapest way from one to another.

A **layout** gives each mesh axis a placement: ``Replicate``, ``Partial`` or ``Shard(d)``. Axes
that share a dim are nested in mesh order, the first axis outermost, as DTensor nests them; so only
the innermost of them can be gathered or scattered alone.

A **state** is what an operator asks of a tensor or offers: its forward layout together with the
layout of its gradient. Per axis only four combinations occur (see "Backward layouts" in the
project's cost semantics): ``R/R``, ``R/P``, ``P/R`` and ``Shard(d)/Shard(d)``.

Layouts and states are small integers so that tables over thousands of configurations are numpy
index operations: one digit an axis, first axis most significant.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

__all__ = [
    "PARTIAL",
    "REPLICATE",
    "LayoutSpace",
    "Redistribution",
    "Step",
    "layout_text",
    "shard",
    "state_text",
]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.floating]

# Digits of a layout.
REPLICATE = 0
PARTIAL = 1

# Digits of a state: forward/gradient.
STATE_RR = 0
STATE_RP = 1
STATE_PR = 2


def shard(dim: int) -> int:
    """Digit of ``Shard(dim)`` in a layout."""
    return 2 + dim


def state_shard(dim: int) -> int:
    """Digit of ``Shard(dim)/Shard(dim)`` in a state."""
    return 3 + dim


def layout_text(digits: Sequence[int]) -> str:
    """A layout for people, e.g. ``[S0, R]``."""
    return "[" + ", ".join("RP"[d] if d < 2 else f"S{d - 2}" for d in digits) + "]"


def state_text(digits: Sequence[int]) -> str:
    """A state for people, e.g. ``[S0, R/P]``."""
    names = ("R", "R/P", "P")
    return "[" + ", ".join(names[d] if d < 3 else f"S{d - 3}" for d in digits) + "]"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a redistribution.

    Parameters
    ----------
    kind : str
        ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``all_to_all``, ``slice`` or
        ``to_partial`` (the last two move nothing).
    axis : int
        Position of the mesh axis.
    nbytes : int
        Size by the convention of ``cost.communication``.
    source, target : tuple of int
        Layouts before and after.
    """

    kind: str
    axis: int
    nbytes: int
    source: tuple[int, ...]
    target: tuple[int, ...]


class LayoutSpace:
    """All layouts of a tensor shape on a mesh shape.

    Parameters
    ----------
    shape : tuple of int
        Global shape.
    mesh_shape : tuple of int
        Sizes of the mesh axes.
    padded_dims : tuple of int
        Dims that are padded when their axes do not divide them.
    dims : iterable of int or None
        Tensor dims that may be sharded (default all): leaving out dims that no operator shards
        keeps the space small.
    uneven : bool
        Whether every dim may be split unevenly, the largest chunk counting (parameters).
    """

    def __init__(
        self,
        shape: Sequence[int],
        mesh_shape: Sequence[int],
        padded_dims: Sequence[int] = (),
        dims: Sequence[int] | None = None,
        *,
        uneven: bool = False,
    ) -> None:
        self.shape = tuple(shape)
        self.mesh_shape = tuple(mesh_shape)
        self.dims = tuple(range(len(self.shape))) if dims is None else tuple(sorted(set(dims)))
        self.radix = 2 + len(self.shape)
        digits = [REPLICATE, PARTIAL, *(shard(d) for d in self.dims)]
        table = np.array(list(itertools.product(digits, repeat=len(self.mesh_shape))), np.int64)
        table = table.reshape(-1, len(self.mesh_shape))
        splits = self._splits(table)
        possible = np.ones(len(table), bool)
        local = np.ones(len(table), np.int64)
        for d, size in enumerate(self.shape):
            n = splits[:, d]
            local *= -(-size // n)
            if d in padded_dims or uneven:
                possible &= n <= max(size, 1)
            else:
                possible &= (size % n) == 0
        self.digits: IntArray = table[possible]
        self.local_elements: IntArray = local[possible]
        codes = self.encode(self.digits)
        self._position = np.full(self.radix ** len(self.mesh_shape), -1, np.int64)
        self._position[codes] = np.arange(len(codes))

    def __len__(self) -> int:
        return len(self.digits)

    def _splits(self, table: IntArray) -> IntArray:
        splits = np.ones((len(table), len(self.shape)), np.int64)
        for axis, size in enumerate(self.mesh_shape):
            for d in range(len(self.shape)):
                splits[:, d] *= np.where(table[:, axis] == shard(d), size, 1)
        return splits

    def encode(self, digits: IntArray) -> IntArray:
        """Layout codes of rows of digits."""
        code = np.zeros(len(digits), np.int64)
        for axis in range(len(self.mesh_shape)):
            code = code * self.radix + digits[:, axis]
        return code

    def positions(self, digits: IntArray) -> IntArray:
        """Position of each row of digits in this space; -1 where it is not possible."""
        return self._position[self.encode(digits)]


def split_states(states: IntArray) -> tuple[IntArray, IntArray]:
    """Forward and gradient layout digits of state digits.

    A gradient digit is ``PARTIAL`` for ``R/P``, ``REPLICATE`` for ``R/R`` and ``P/R``.
    """
    forward = np.where(
        states >= 3, states - 1, np.where(states == STATE_PR, PARTIAL, REPLICATE)
    ).astype(np.int64)
    gradient = np.where(
        states >= 3, states - 1, np.where(states == STATE_RP, PARTIAL, REPLICATE)
    ).astype(np.int64)
    return forward, gradient


class Redistribution:
    """Cheapest conversions between all layouts of a space.

    Parameters
    ----------
    space : LayoutSpace
    itemsize : float
        Bytes of an element.
    time : callable
        ``time(kind, axis, nbytes array) -> seconds array``, as ``CommunicationModel.time``.
    into_partial : bool
        Whether a gradient may become ``Partial`` for free (kept on one rank, zero-padded): only
        true for gradients that arrive at a fan-out node.

    Attributes
    ----------
    seconds : (L, L) float array
        Time from each layout to each other; ``inf`` where impossible.
    buffer_bytes : (L, L) float array
        What a conversion takes beside its source, at most: a step's result, and from the second
        step on what the step starts from as well.
    """

    def __init__(
        self,
        space: LayoutSpace,
        itemsize: float,
        time: Callable[[str, int, FloatArray], FloatArray],
        *,
        into_partial: bool = False,
    ) -> None:
        self.space = space
        self.itemsize = itemsize
        count = len(space)
        local = space.local_elements * float(itemsize)
        self.seconds: FloatArray = np.full((count, count), np.inf)
        self._kind = np.zeros((count, count), np.int8)
        np.fill_diagonal(self.seconds, 0.0)
        for axis in range(len(space.mesh_shape)):
            self._add_steps(axis, local, time, into_partial)
        self._close()
        self.buffer_bytes: FloatArray = self._buffers(local)

    _KINDS = ("", "slice", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "to_partial")

    def _add_steps(
        self,
        axis: int,
        local: FloatArray,
        time: Callable[[str, int, FloatArray], FloatArray],
        into_partial: bool,
    ) -> None:
        space = self.space
        digits = space.digits
        targets = [REPLICATE, PARTIAL, *(shard(d) for d in space.dims)]
        for target in targets:
            moved = digits.copy()
            moved[:, axis] = target
            position = space.positions(moved)
            source = np.nonzero((position >= 0) & (digits[:, axis] != target))[0]
            goal = position[source]
            before = digits[source, axis]
            # Only the innermost of the axes that share a dim can be gathered or scattered alone.
            inner = digits[source, axis + 1 :]
            free = ~np.any((inner == before[:, None]) & (before[:, None] >= 2), axis=1)
            if target >= 2:
                free &= ~np.any(inner == target, axis=1)
            moves = self._moves(before, target, source, goal, local, into_partial)
            for kind, mask, size in moves:
                use = mask & free
                if not use.any():
                    continue
                s, g = source[use], goal[use]
                seconds: FloatArray = np.zeros(len(s))
                if kind not in ("slice", "to_partial"):
                    seconds = time(kind, axis, size[use])
                better = seconds < self.seconds[s, g]
                self.seconds[s[better], g[better]] = seconds[better]
                self._kind[s[better], g[better]] = self._KINDS.index(kind)

    @staticmethod
    def _moves(
        before: IntArray,
        target: int,
        source: IntArray,
        goal: IntArray,
        local: FloatArray,
        into_partial: bool,
    ) -> list[tuple[str, npt.NDArray[np.bool_], FloatArray]]:
        sharded = before >= 2
        if target == REPLICATE:
            return [
                ("all_gather", sharded, local[goal]),
                ("all_reduce", before == PARTIAL, local[source]),
            ]
        if target == PARTIAL:
            if into_partial:
                return [("to_partial", before != PARTIAL, local[goal])]
            return []
        return [
            ("slice", before == REPLICATE, local[goal]),
            ("reduce_scatter", before == PARTIAL, local[source]),
            ("all_to_all", sharded, local[source]),
        ]

    def _close(self) -> None:
        count = len(self.space)
        self._next = np.where(np.isfinite(self.seconds), np.arange(count)[None, :], -1)
        for middle in range(count):
            through = self.seconds[:, middle, None] + self.seconds[None, middle, :]
            better = through < self.seconds
            if not better.any():
                continue
            self.seconds[better] = through[better]
            rows, columns = np.nonzero(better)
            self._next[rows, columns] = self._next[rows, middle]

    def _buffers(self, local: FloatArray) -> FloatArray:
        """Follow all ways at once, step by step."""
        goal = np.broadcast_to(np.arange(len(local))[None, :], self._next.shape)
        here = np.where(self._next >= 0, self._next, goal)
        most = local[here]
        while np.any(here != goal):
            after = self._next[here, goal]
            moved = here != goal
            most = np.where(moved, np.maximum(most, local[here] + local[after]), most)
            here = np.where(moved, after, here)
        return most

    def steps(self, source: int, target: int) -> list[Step]:
        """The steps from one layout to another, by position in the space.

        Raises
        ------
        ValueError
            If the conversion is impossible.
        """
        if not np.isfinite(self.seconds[source, target]):
            raise ValueError(
                f"no way from {layout_text(self.space.digits[source])} to "
                f"{layout_text(self.space.digits[target])}"
            )
        steps: list[Step] = []
        here = source
        while here != target:
            there = int(self._next[here, target])
            kind = self._KINDS[self._kind[here, there]]
            before, after = self.space.digits[here], self.space.digits[there]
            axis = int(np.nonzero(before != after)[0][0])
            grown = there if kind in ("all_gather", "slice", "to_partial") else here
            nbytes = int(self.space.local_elements[grown] * self.itemsize)
            steps.append(Step(kind, axis, nbytes, tuple(map(int, before)), tuple(map(int, after))))
            here = there
        return steps

    @cached_property
    def local_bytes(self) -> FloatArray:
        """Local bytes of every layout."""
        return self.space.local_elements * float(self.itemsize)
