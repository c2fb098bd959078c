"""The native problem of one mesh and one number of micro-batches, and its answers decoded.

Repeated blocks are contracted once: the operators inside become one table over the block's border
tensors, each cell a frontier. A block is contracted in two ways, as it is and recomputed, and the
ways are united cell by cell, so that the search chooses block by block. What is left is a small
graph of the blocks' borders and what stands outside them.

Objectives: time (sum), resident bytes (sum), transient bytes (max). Every plan needs the *floor* of
transient memory, so less than that is never told apart.

What a recomputed block keeps for its backward pass is transient for the graph outside, since it is
there only while that block runs backward: a sum inside (what is saved) plus a maximum (the largest
operator). With both as objectives of their own the contraction is exact; where that is too much
work, two graphs stand on either side of the truth (:meth:`MeshProblem.lower`,
:meth:`MeshProblem.upper`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tensoropt import _native
from tensoropt.cost.tables import RECOMPUTE_TIME, RESIDENT, SAVED, TIME, TRANSIENT, Tables
from tensoropt.errors import LimitError
from tensoropt.sharding.decisions import Link, Node

from .cells import costs_taken, largest_costs, least_transient, most_rounded_up, with_alternatives

__all__ = ["Choices", "MeshProblem", "Recompute", "Resolution"]

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.integer]
Recompute = Literal["none", "full", "sweep"]

Kind = Literal["kept", "redone", "fast", "lean"]
"""Objectives of a graph: see :data:`AGGREGATES`."""

AGGREGATES: dict[Kind, tuple[str, ...]] = {
    "kept": ("sum", "sum", "max"),
    "redone": ("sum", "sum", "sum", "max"),
    "fast": ("sum", "sum"),
    "lean": ("sum", "sum"),
}
"""Time and resident bytes, and with them: transient bytes where nothing is recomputed (``kept``);
in a recomputed block saved bytes and the largest operator (``redone``), or nothing (``fast``).
``lean`` adds the saved bytes of a recomputed block to the resident ones."""

MOST_WORK = 5_000_000
"""Sums of points beyond which a recomputed block is not contracted exactly."""


MANY_CELLS = 4096
"""Cells of a block's table from which on its frontiers are trimmed more, so that they fit in
memory. Blocks have as many that border on three tensors."""

MORE = 16.0
"""How much more."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Size of one integer step: seconds and bytes."""

    time_s: float
    memory_bytes: int


@dataclass(frozen=True)
class Choices:
    """Answers, all points at once: what every node is, which alternative every link takes.

    Attributes
    ----------
    nodes : dict of Node to (points,) int array
        Configurations.
    links : dict of Link to (points,) int array
        Alternatives (1: gathered again in the backward pass).
    recomputed : (points, blocks) bool array
    """

    nodes: dict[Node, IntArray]
    links: dict[Link, IntArray]
    recomputed: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.recomputed)

    def joined(self, other: Choices) -> Choices:
        """The points of both, one after the other; `other` has the same nodes and links."""
        if not len(self):
            return other
        if not len(other):
            return self
        return Choices(
            {node: np.concatenate([a, other.nodes[node]]) for node, a in self.nodes.items()},
            {link: np.concatenate([a, other.links[link]]) for link, a in self.links.items()},
            np.concatenate([self.recomputed, other.recomputed]),
        )


@dataclass(frozen=True)
class _Part:
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
class _Contracted:
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


class MeshProblem:
    """Builds and decodes the native problem.

    Parameters
    ----------
    tables : Tables
    recompute : str
        ``none``, ``full`` (every block) or ``sweep`` (block by block).
    epsilon : float
        What contracting the blocks may lose.
    threads : int or None

    Attributes
    ----------
    exact : bool
        Whether the graphs are the problem itself, so that both are equal.
    """

    def __init__(
        self,
        tables: Tables,
        recompute: Recompute,
        *,
        epsilon: float = 0.0,
        threads: int | None = None,
    ) -> None:
        self.tables = tables
        self.recompute: Recompute = recompute
        self.epsilon = epsilon
        self.threads = threads
        self.graph = tables.graph
        self.outer, self.blocks = self._parts()
        self.resolution = self._resolution()
        self.floor_steps = self._floor()
        self._contractions: dict[Hashable, _native.Contraction | None] = {}
        self._lower: dict[Hashable, _Contracted] = {}
        self._upper: dict[Hashable, _Contracted] = {}
        self._outer_ids: dict[Node, int] = {}
        self.exact = recompute == "none" or all(
            self._contract_redone(part) is not None for part in self.blocks
        )

    def lower(self) -> _native.CostGraph:
        """The outer graph, in steps of the resolution.

        If the problem is not :attr:`exact`, recomputed blocks need less transient memory here than
        in truth, so that the frontier bounds every strategy from below.
        """
        return self._graph([self._contracted(part, upper=False) for part in self.blocks])

    def upper(self) -> _native.CostGraph:
        """The outer graph with what recomputed blocks need in truth, but not all they could do."""
        return self._graph([self._contracted(part, upper=True) for part in self.blocks])

    def _graph(self, tables: list[_Contracted]) -> _native.CostGraph:
        graph = _native.CostGraph(AGGREGATES["kept"])
        ids = {node: self._add_node(graph, node, "kept") for node in self.outer.inner}
        for link in self.outer.links:
            self._add_link(graph, ids, link, "kept")
        numbers: dict[int, int] = {}
        for part, contracted in zip(self.blocks, tables, strict=True):
            table = numbers.get(id(contracted))
            if table is None:
                table = numbers[id(contracted)] = graph.add_table_with_alternatives(
                    list(contracted.shape), contracted.offsets, contracted.costs, contracted.factor
                )
            graph.add_factor([ids[node] for node in part.border], table)
        self._outer_ids = ids
        return graph

    def decode(
        self, assignments: IntArray, alternatives: IntArray, *, upper: bool = False
    ) -> Choices:
        """Turn answers of an outer graph into choices for every node and link.

        Blocks with the same table and the same configurations at their borders could be swapped
        without any change of costs. Of these the ones that are recomputed come first: they run
        backward last, when little else is saved any more.

        Parameters
        ----------
        assignments : (points, outer nodes) int array
        alternatives : (points, outer factors) int array
        upper : bool
            Whether the graph was :meth:`upper`.
        """
        if not len(assignments):
            return Choices({}, {}, np.zeros((0, len(self.graph.blocks)), bool))
        nodes = {node: np.asarray(assignments[:, i]) for node, i in self._outer_ids.items()}
        links: dict[Link, IntArray] = {
            link: np.asarray(alternatives[:, i], np.int64)
            for i, link in enumerate(self.outer.links)
        }
        recomputed = np.zeros((len(assignments), len(self.graph.blocks)), bool)
        tables = [self._contracted(part, upper=upper) for part in self.blocks]
        cells = [
            np.asarray(np.ravel_multi_index([nodes[n] for n in part.border], table.shape), np.int64)
            for part, table in zip(self.blocks, tables, strict=True)
        ]
        taken = [
            np.asarray(alternatives[:, len(self.outer.links) + i], np.int64)
            for i in range(len(self.blocks))
        ]
        for which in _equal(tables):
            ordered = _in_order(
                np.stack([cells[i] for i in which]), np.stack([taken[i] for i in which])
            )
            for i, row in zip(which, ordered, strict=True):
                taken[i] = row
        for part, table, cell, chosen in zip(self.blocks, tables, cells, taken, strict=True):
            redo, inner, inside = table.expand(cell, chosen)
            nodes.update((node, inner[:, j]) for j, node in enumerate(part.inner))
            links.update((link, inside[:, j]) for j, link in enumerate(part.links))
            recomputed[:, self.tables.decisions.block_of[part.inner[0]]] = redo
        return Choices(nodes, links, recomputed)

    def costs(self, choices: Choices) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Time, resident and transient bytes of choices, added up from the unrounded tables."""
        points, blocks = len(choices), len(self.graph.blocks)
        decisions = self.tables.decisions
        time, resident = np.zeros(points), np.zeros(points)
        # One more column for what stands outside the blocks: that is never recomputed.
        saved, largest = np.zeros((points, blocks + 1)), np.zeros((points, blocks + 1))
        redo = np.concatenate([choices.recomputed, np.zeros((points, 1), bool)], axis=1)

        def add(costs: FloatArray, block: int) -> None:
            nonlocal time, resident
            time = time + costs[:, TIME] + np.where(redo[:, block], costs[:, RECOMPUTE_TIME], 0.0)
            resident = resident + costs[:, RESIDENT]
            saved[:, block] += costs[:, SAVED]
            np.maximum(largest[:, block], costs[:, TRANSIENT], out=largest[:, block])

        for node, row in choices.nodes.items():
            add(self.tables.node(node).costs[row], decisions.block_of.get(node, blocks))
        for link, alternative in choices.links.items():
            block = decisions.block_of_link(link)
            at = (choices.nodes[link.source], choices.nodes[link.target])
            costs = costs_taken(self.tables.link(link).costs, alternative, *at)
            add(costs, blocks if block is None else block)
        resident = resident + np.where(redo, 0.0, saved).sum(axis=1)
        transient = np.where(redo, largest + saved, largest).max(axis=1)
        return time, resident, transient

    def regathered(self, link: Link, choices: Choices, point: int) -> bool:
        """Whether a link's tensor is gathered again in the backward pass."""
        if choices.links[link][point] < 1:
            return False
        at = (1, choices.nodes[link.source][point], choices.nodes[link.target][point], TIME)
        return bool(np.isfinite(self.tables.link(link).costs[at]))

    # Parts.

    def _parts(self) -> tuple[_Part, list[_Part]]:
        decisions = self.tables.decisions
        blocks = [_Part([], [], []) for _ in self.graph.blocks]
        outer = _Part([], [], [])
        for node in decisions.nodes:
            block = decisions.block_of.get(node)
            (outer if block is None else blocks[block]).inner.append(node)
        for link in decisions.links:
            block = decisions.block_of_link(link)
            if block is None:
                outer.links.append(link)
                continue
            part = blocks[block]
            part.links.append(link)
            for node in (link.source, link.target):
                if node not in decisions.block_of and node not in part.border:
                    part.border.append(node)
        return outer, [part for part in blocks if part.inner]

    def _resolution(self) -> Resolution:
        """The finest steps in which all sums stay within 31 bits: two of them make a word."""
        total = sum((largest_costs(costs) * n for costs, n in self._different()), np.zeros(2))
        time = 1e-12
        while total[0] / time >= 2**31:
            time *= 2.0
        memory = 1
        while total[1] / memory >= 2**31:
            memory *= 2
        return Resolution(time, memory)

    def rounding(self, time_s: FloatArray, memory_bytes: FloatArray) -> float:
        """The factor within which costs in steps tell the true ones, of some points."""
        if not len(time_s):
            return 1.0
        step = self.resolution
        count, memory = 0, 0.0
        for costs, n in self._different():
            count += n
            # Memory is rounded up, so that only what a point covers can be off.
            memory += n * most_rounded_up(costs, step.memory_bytes)
        # Both what covers and what is covered may be off by half a step for each.
        time = count * step.time_s
        # What is compared are whole steps; whole bytes are what there is.
        if memory > 0.0 or step.memory_bytes > 1:
            memory += float(step.memory_bytes)
        return 1.0 + max(
            time / max(float(time_s.min()), step.time_s),
            memory / max(float(memory_bytes.min()), float(step.memory_bytes)),
        )

    def _different(self) -> list[tuple[FloatArray, int]]:
        """The costs of each different table, and how often it occurs."""
        decisions = self.tables.decisions
        tables = [self.tables.node(node).costs for node in decisions.nodes]
        tables += [self.tables.link(link).costs for link in decisions.links]
        found: dict[int, tuple[FloatArray, int]] = {}
        for costs in tables:
            found[id(costs)] = (costs, found.get(id(costs), (costs, 0))[1] + 1)
        return list(found.values())

    # Native tables.

    def _floor(self) -> int:
        """Transient memory that every plan needs, in steps: no node or link can do with less."""
        least = max(least_transient(costs) for costs, _ in self._different())
        return math.ceil(least / self.resolution.memory_bytes)

    def _columns(self, costs: FloatArray, kind: Kind) -> FloatArray:
        """Objectives of a table in steps; ``inf`` everywhere marks the impossible."""
        steps = np.empty((*costs.shape[:-1], len(AGGREGATES[kind])))
        redo = kind != "kept"
        time = costs[..., TIME] + (costs[..., RECOMPUTE_TIME] if redo else 0.0)
        steps[..., 0] = np.rint(time / self.resolution.time_s)
        # Memory is rounded up: what fits in the answer fits on the device.
        resident = costs[..., RESIDENT] + (costs[..., SAVED] if kind in ("kept", "lean") else 0.0)
        steps[..., 1] = np.ceil(resident / self.resolution.memory_bytes)
        if kind in ("kept", "redone"):
            steps[..., -1] = np.ceil(costs[..., TRANSIENT] / self.resolution.memory_bytes)
        if kind == "kept":
            np.maximum(steps[..., 2], self.floor_steps, out=steps[..., 2])
        if kind == "redone":
            steps[..., 2] = np.ceil(costs[..., SAVED] / self.resolution.memory_bytes)
        steps[~np.isfinite(steps[..., 0])] = np.inf
        return steps

    def _add_node(self, graph: _native.CostGraph, node: Node, kind: Kind) -> int:
        return graph.add_node(graph.add_table(self._columns(self.tables.node(node).costs, kind)))

    def _add_link(
        self, graph: _native.CostGraph, ids: dict[Node, int], link: Link, kind: Kind
    ) -> None:
        steps = self._columns(self.tables.link(link).costs, kind)
        if len(steps) == 1:
            table = graph.add_table(steps[0])
        else:
            shape, offsets, costs = with_alternatives(steps)
            table = graph.add_table_with_alternatives(list(shape), offsets, costs)
        graph.add_factor([ids[link.source], ids[link.target]], table)

    # Blocks.

    def _contracted(self, part: _Part, *, upper: bool) -> _Contracted:
        """The table of a block; each different one once."""
        known = self._upper if upper and not self.exact else self._lower
        key = self._structure(part)
        found = known.get(key)
        if found is None:
            ways = [] if self.recompute == "full" else [self._kept(part)]
            if self.recompute != "none":
                redone = self._redone(part)
                ways += [redone] if redone is not None else self._redone_about(part, upper=upper)
            found = known[key] = self._united(part, ways)
        return found

    def _structure(self, part: _Part) -> Hashable:
        place = {node: i for i, node in enumerate([*part.inner, *part.border])}
        return (
            tuple(self.tables.node(node).key for node in place),
            tuple(
                (self.tables.link(link).key, place[link.source], place[link.target])
                for link in part.links
            ),
        )

    def _kept(self, part: _Part) -> _Way:
        """The block as it is."""
        contraction = self._contract(part, "kept", epsilon=self._trimmed(part))
        assert contraction is not None, "contracted without a limit"
        return _Way(contraction, False, np.asarray(contraction.costs, np.float64))

    def _trimmed(self, part: _Part) -> float:
        """What contracting a block may lose."""
        return self.epsilon * (MORE if self._cells(part) >= MANY_CELLS else 1.0)

    def _cells(self, part: _Part) -> int:
        return math.prod(self.tables.size(node) for node in part.border)

    def _redone(self, part: _Part) -> _Way | None:
        """The block recomputed, exactly; None if that is too much work."""
        contraction = self._contract_redone(part)
        if contraction is None:
            return None
        costs = np.asarray(contraction.costs, np.float64)
        transient = np.maximum(costs[:, 2] + costs[:, 3], self.floor_steps)
        return _Way(contraction, True, np.column_stack([costs[:, :2], transient]))

    def _contract_redone(self, part: _Part) -> _native.Contraction | None:
        return self._contract(part, "redone", epsilon=self.epsilon, work_limit=MOST_WORK)

    def _redone_about(self, part: _Part, *, upper: bool) -> list[_Way]:
        """The block recomputed, over two objectives only; for transient bytes a bound."""
        ways = []
        # What is best in time and resident bytes bounds the rest from below. For plans that can be
        # had, there are also some that save little.
        kinds: tuple[Kind, ...] = ("fast", "lean") if upper else ("fast",)
        for kind in kinds:
            # Over two objectives tables of ordinary blocks are small.
            few = self._cells(part) < MANY_CELLS
            contraction = self._contract(part, kind, epsilon=0.0 if few else self._trimmed(part))
            assert contraction is not None, "contracted without a limit"
            if upper:
                costs = self._costs_of_redone(part, contraction)
            else:
                flat = np.asarray(contraction.costs, np.float64)
                costs = np.column_stack([flat, np.full(len(flat), float(self.floor_steps))])
            ways.append(_Way(contraction, True, costs))
        return ways

    def _united(self, part: _Part, ways: list[_Way]) -> _Contracted:
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
        return _Contracted(shape, offsets, united, tuple(ways), starts)

    def _costs_of_redone(self, part: _Part, contraction: _native.Contraction) -> FloatArray:
        """What a recomputed block's plans cost in steps: (alternatives, 3).

        Transient is what is kept inside while the block runs backward, beside its largest operator.
        """
        offsets = np.asarray(contraction.offsets, np.int64)
        sizes = np.diff(offsets)
        cells = np.repeat(np.arange(len(sizes)), sizes)
        within = np.arange(len(cells)) - np.repeat(offsets[:-1], sizes)
        nodes, _, taken = contraction.expand(cells, within)
        place = {node: i for i, node in enumerate([*part.inner, *part.border])}
        sums, largest = np.zeros((len(cells), 3)), np.zeros(len(cells))

        def add(steps: FloatArray) -> None:
            np.add(sums, steps[:, :3], out=sums)
            np.maximum(largest, steps[:, 3], out=largest)

        for node in part.inner:
            add(self._columns(self.tables.node(node).costs, "redone")[nodes[:, place[node]]])
        for i, link in enumerate(part.links):
            at = (nodes[:, place[link.source]], nodes[:, place[link.target]])
            add(
                costs_taken(self._columns(self.tables.link(link).costs, "redone"), taken[:, i], *at)
            )
        transient = np.maximum(sums[:, 2] + largest, self.floor_steps)
        return np.column_stack([sums[:, :2], transient])

    def _contract(
        self,
        part: _Part,
        kind: Kind,
        *,
        epsilon: float = 0.0,
        work_limit: int | None = None,
    ) -> _native.Contraction | None:
        """The block over some objectives; each different one once, None if it hit the limit."""
        key = (self._structure(part), kind)
        if key not in self._contractions:
            graph = _native.CostGraph(AGGREGATES[kind])
            ids = {node: self._add_node(graph, node, kind) for node in [*part.inner, *part.border]}
            for link in part.links:
                self._add_link(graph, ids, link, kind)
            keep = [ids[node] for node in part.border]
            try:
                self._contractions[key] = _native.contract(
                    graph, keep, epsilon, threads=self.threads, work_limit=work_limit
                )
            except LimitError:
                if work_limit is None:
                    raise
                self._contractions[key] = None
        return self._contractions[key]


def _equal(tables: Sequence[_Contracted]) -> list[list[int]]:
    """Groups of places that hold the same table."""
    groups: dict[int, list[int]] = {}
    for i, table in enumerate(tables):
        groups.setdefault(id(table), []).append(i)
    return list(groups.values())


def _in_order(cells: IntArray, alternatives: IntArray) -> IntArray:
    """Among blocks in the same cell, the alternatives in falling order: (blocks, points).

    Alternatives that recompute stand behind the others, so that these blocks come first.
    """
    # Blocks sorted by cell, once by place and once by alternative: the n-th of one takes the
    # n-th of the other.
    places = np.argsort(cells, axis=0, kind="stable")
    chosen = np.lexsort((-alternatives, cells), axis=0)
    ordered = np.empty_like(alternatives)
    np.put_along_axis(ordered, places, np.take_along_axis(alternatives, chosen, axis=0), axis=0)
    return ordered
