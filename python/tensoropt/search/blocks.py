"""Repeated blocks as one table over their border tensors, each different block once."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tensoropt import _native
from tensoropt.errors import LimitError
from tensoropt.sharding.decisions import Link, Node

from .cells import costs_taken
from .steps import AGGREGATES, Kind, Steps

__all__ = ["Blocks", "Bound", "Contracted", "Part", "Recompute"]

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.integer]
Recompute = Literal["none", "full", "sweep"]

Bound = Literal["lower", "closer", "upper"]
"""On which side of the truth a table is: see :class:`Blocks`."""

MOST_WORK = 5_000_000
"""Sums of points beyond which a recomputed block is not contracted exactly."""

MANY_CELLS = 4096
"""Cells of a block's table from which on transient bytes are no objective of their own. Blocks that
border on three tensors have as many."""


@dataclass(frozen=True)
class Part:
    """A block, or what is outside: nodes with their own table, nodes it borders on, links."""

    inner: list[Node]
    border: list[Node]
    links: list[Link]


@dataclass(frozen=True)
class _Way:
    """A block contracted in one way."""

    contraction: _native.Contraction
    redo: bool
    costs: FloatArray
    """(alternatives, 3): time, resident and transient bytes, in steps."""


@dataclass(frozen=True)
class Contracted:
    """A block's table over its border: the alternatives of all ways, cell by cell."""

    shape: tuple[int, ...]
    offsets: IntArray
    costs: FloatArray
    ways: tuple[_Way, ...]
    starts: IntArray
    """(ways + 1, cells): where each way's alternatives begin within a cell."""

    @property
    def factor(self) -> float:
        """Within which the alternatives cover the true ones."""
        return max(way.contraction.factor for way in self.ways)

    def expand(
        self, cells: IntArray, alternatives: IntArray
    ) -> tuple[npt.NDArray[np.bool_], IntArray, IntArray]:
        """Whether each is recomputed, and the choices inside: (n, nodes) and (n, links)."""
        pairs, back = np.unique(np.stack([cells, alternatives]), axis=1, return_inverse=True)
        cell, alternative = pairs
        redo = np.zeros(len(cell), bool)
        nodes: IntArray = np.zeros((len(cell), 0), np.int64)
        links: IntArray = np.zeros((len(cell), 0), np.int64)
        for number, way in enumerate(self.ways):
            first, end = self.starts[number][cell], self.starts[number + 1][cell]
            chosen = (first <= alternative) & (alternative < end)
            if not chosen.any():
                continue
            some = way.contraction.expand(cell[chosen], (alternative - first)[chosen])
            if not nodes.shape[1]:
                nodes = np.zeros((len(cell), some[0].shape[1]), np.int64)
                links = np.zeros((len(cell), some[2].shape[1]), np.int64)
            nodes[chosen], links[chosen], redo[chosen] = some[0], some[2], way.redo
        back = back.reshape(-1)
        return redo[back], nodes[back], links[back]


class Blocks:
    """Contracts blocks, as they are and recomputed.

    What a recomputed block keeps for its backward pass is transient for the graph outside, since it
    is there only while that block runs backward: a sum inside (what is saved) plus a maximum (the
    largest operator). With both as objectives of their own the contraction is exact. Where that is
    too much work there are tables on either side of the truth, by their transient bytes:

    ``lower``
        what any plan of the same cell needs at the least,
    ``closer``
        what the plan saves, and the least that the largest operator needs,
    ``upper``
        what the plan needs in truth; but there are other plans.

    Parameters
    ----------
    steps : Steps
    recompute : str
        ``none``, ``full`` (every block) or ``sweep`` (block by block).
    epsilon : float
        What contracting a block may lose.
    threads : int or None
    """

    def __init__(
        self, steps: Steps, recompute: Recompute, *, epsilon: float, threads: int | None
    ) -> None:
        self.steps = steps
        self.tables = steps.tables
        self.recompute: Recompute = recompute
        self.epsilon = epsilon
        self.threads = threads
        self._contractions: dict[Hashable, _native.Contraction | None] = {}
        self._found: dict[Hashable, Contracted] = {}

    def exact(self, part: Part) -> bool:
        """Whether the tables of a block are the block itself, so that all are equal."""
        if self._cells(part) >= MANY_CELLS:
            return False
        return self.recompute == "none" or self._exactly_redone(part) is not None

    def contracted(self, part: Part, bound: Bound) -> Contracted:
        """The table of a block."""
        key = (self._structure(part), "lower" if self.exact(part) else bound)
        if key not in self._found:
            ways = [] if self.recompute == "full" else self._kept(part, bound)
            if self.recompute != "none":
                ways += self._redone(part, bound)
            self._found[key] = self._united(part, ways)
        return self._found[key]

    def _structure(self, part: Part) -> Hashable:
        place = {node: i for i, node in enumerate([*part.inner, *part.border])}
        return (
            tuple(self.tables.node(node).key for node in place),
            tuple(
                (self.tables.link(link).key, place[link.source], place[link.target])
                for link in part.links
            ),
        )

    def _cells(self, part: Part) -> int:
        return math.prod(self.tables.size(node) for node in part.border)

    def _kept(self, part: Part, bound: Bound) -> list[_Way]:
        """The block as it is."""
        if self._cells(part) >= MANY_CELLS:
            return [self._about(part, "plain", bound)]
        contraction = self._contract(part, "kept", epsilon=self.epsilon)
        return [_Way(contraction, False, np.asarray(contraction.costs, np.float64))]

    def _redone(self, part: Part, bound: Bound) -> list[_Way]:
        """The block recomputed."""
        exactly = self._exactly_redone(part)
        if exactly is not None:
            costs = np.asarray(exactly.costs, np.float64)
            transient = np.maximum(costs[:, 2] + costs[:, 3], self.steps.floor)
            return [_Way(exactly, True, np.column_stack([costs[:, :2], transient]))]
        if bound == "closer" and self._cells(part) < MANY_CELLS:
            return [self._about(part, "saving", bound)]
        # What is best in time and resident bytes bounds the rest from below. For plans that can be
        # had, there are also some that save little.
        kinds: tuple[Kind, ...] = ("fast", "lean") if bound == "upper" else ("fast",)
        return [self._about(part, kind, bound) for kind in kinds]

    def _exactly_redone(self, part: Part) -> _native.Contraction | None:
        """The block recomputed, over all objectives; None if that is too much work."""
        if self._cells(part) >= MANY_CELLS:
            return None
        key = (self._structure(part), "redone")
        if key not in self._contractions:
            try:
                self._contract(part, "redone", epsilon=self.epsilon, work_limit=MOST_WORK)
            except LimitError:
                self._contractions[key] = None
        return self._contractions[key]

    def _about(self, part: Part, kind: Kind, bound: Bound) -> _Way:
        """The block over fewer objectives; for transient bytes a bound."""
        few = self._cells(part) < MANY_CELLS and kind != "saving"
        # Over two objectives tables of ordinary blocks are small.
        contraction = self._contract(part, kind, epsilon=0.0 if few else 4.0 * self.epsilon)
        redo = kind != "plain"
        if bound == "upper":
            return _Way(contraction, redo, self._costs_in_truth(part, contraction, redo=redo))
        flat = np.asarray(contraction.costs, np.float64)
        offsets = np.asarray(contraction.offsets, np.int64)
        sizes = offsets[1:] - offsets[:-1]
        transient = self._least(part, "largest")
        if redo and kind != "saving":
            transient = transient + self._least(part, "saved")
        transient = np.repeat(transient, sizes)
        if kind == "saving":
            transient = transient + flat[:, 2]
        transient = np.maximum(transient, self.steps.floor)
        return _Way(contraction, redo, np.column_stack([flat[:, :2], transient]))

    def _least(self, part: Part, kind: Kind) -> FloatArray:
        """The least of one objective in each cell; 0 where nothing is possible."""
        contraction = self._contract(part, kind)
        offsets = np.asarray(contraction.offsets, np.int64)
        least = np.zeros(len(offsets) - 1)
        possible = offsets[1:] > offsets[:-1]
        least[possible] = np.asarray(contraction.costs, np.float64)[offsets[:-1][possible], 0]
        return least

    def _united(self, part: Part, ways: list[_Way]) -> Contracted:
        """Cell by cell, the alternatives of one way after the other."""
        shape = tuple(self.tables.size(node) for node in part.border)
        begins = [np.asarray(way.contraction.offsets, np.int64) for way in ways]
        sizes = np.stack([np.diff(offsets) for offsets in begins])
        starts = np.concatenate([np.zeros((1, sizes.shape[1]), np.int64), np.cumsum(sizes, axis=0)])
        offsets = np.concatenate([[0], np.cumsum(starts[-1])])
        united = np.empty((offsets[-1], len(AGGREGATES["kept"])))
        for way, begin, size, start in zip(ways, begins, sizes, starts, strict=False):
            within = np.arange(len(way.costs)) - np.repeat(begin[:-1], size)
            united[np.repeat(offsets[:-1] + start, size) + within] = way.costs
        return Contracted(shape, offsets, united, tuple(ways), starts)

    def _costs_in_truth(
        self, part: Part, contraction: _native.Contraction, *, redo: bool
    ) -> FloatArray:
        """What a block's plans cost in steps: (alternatives, 3).

        Transient in a recomputed block is what is kept inside while it runs backward, beside its
        largest operator; else that operator.
        """
        offsets = np.asarray(contraction.offsets, np.int64)
        sizes = np.diff(offsets)
        cells = np.repeat(np.arange(len(sizes)), sizes)
        within = np.arange(len(cells)) - np.repeat(offsets[:-1], sizes)
        nodes, _, taken = contraction.expand(cells, within)
        place = {node: i for i, node in enumerate([*part.inner, *part.border])}
        kind: Kind = "redone" if redo else "kept"
        last = len(AGGREGATES[kind]) - 1
        sums, largest = np.zeros((len(cells), last)), np.zeros(len(cells))

        def add(steps: FloatArray) -> None:
            np.add(sums, steps[:, :last], out=sums)
            np.maximum(largest, steps[:, last], out=largest)

        for node in part.inner:
            add(self.steps.columns(self.tables.node(node).costs, kind)[nodes[:, place[node]]])
        for i, link in enumerate(part.links):
            at = (nodes[:, place[link.source]], nodes[:, place[link.target]])
            columns = self.steps.columns(self.tables.link(link).costs, kind)
            add(costs_taken(columns, taken[:, i], *at))
        saved = sums[:, 2] if redo else 0.0
        return np.column_stack([sums[:, :2], np.maximum(saved + largest, self.steps.floor)])

    def _contract(
        self, part: Part, kind: Kind, *, epsilon: float = 0.0, work_limit: int | None = None
    ) -> _native.Contraction:
        """The block over some objectives; each different one once."""
        key = (self._structure(part), kind)
        known = self._contractions.get(key)
        if known is not None:
            return known
        graph = _native.CostGraph(AGGREGATES[kind])
        nodes = [*part.inner, *part.border]
        ids = {node: self.steps.add_node(graph, node, kind) for node in nodes}
        for link in part.links:
            self.steps.add_link(graph, ids, link, kind)
        keep = [ids[node] for node in part.border]
        found = _native.contract(graph, keep, epsilon, threads=self.threads, work_limit=work_limit)
        self._contractions[key] = found
        return found
