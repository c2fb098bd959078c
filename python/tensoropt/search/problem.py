"""The native problem of one mesh and one number of micro-batches, and its answers decoded.

Repeated blocks are contracted once: the operators inside become one table over the block's border
tensors, each cell a frontier of time against what stays in memory. A block is contracted in several
ways: as it is, with operators struck out that need more than some transient memory at a time; and
recomputed, when what it keeps for backward is transient for the graph outside, since it is there
only while that block runs backward. The ways are united cell by cell, so that the search chooses
block by block. What is left is a small graph of the blocks' borders and what stands outside them.

Objectives: time (sum), resident bytes (sum), transient bytes (max). Every plan needs the *floor* of
transient memory, so less than that is never looked at. With every transient lowered to the floor
the problem has two objectives, and its frontier bounds the true one from below: that is how answers
are proven (:meth:`MeshProblem.relaxed`).
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
from tensoropt.sharding.decisions import Link, Node

__all__ = ["Choices", "MeshProblem", "Recompute", "Resolution"]

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.integer]
Recompute = Literal["none", "full", "sweep"]

WHOLE = ("sum", "sum", "max")
"""Objectives of the outer graph: time, resident and transient bytes."""

FLAT = ("sum", "sum")
"""Objectives inside a block: time and resident bytes."""

LEVELS = 4
"""Limits on the transient memory of operators, the floor first, for which a block is contracted."""


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


@dataclass(frozen=True)
class _Contracted:
    """A block's table over its border: the alternatives of all ways, cell by cell."""

    shape: tuple[int, ...]
    offsets: IntArray
    costs: FloatArray
    ways: tuple[_Way, ...]
    starts: IntArray
    """(ways + 1, cells): where each way's alternatives begin within a cell."""

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
    threads : int or None
    """

    def __init__(
        self,
        tables: Tables,
        recompute: Recompute,
        *,
        threads: int | None = None,
    ) -> None:
        self.tables = tables
        self.recompute: Recompute = recompute
        self.threads = threads
        self.graph = tables.graph
        self.outer, self.blocks = self._parts()
        self.resolution = self._resolution()
        self._contracted: dict[Hashable, _Contracted] = {}
        self.floor_steps = self._floor()
        self._flat: dict[Hashable, _Contracted] = {}
        self._ways: dict[Hashable, _native.Contraction] = {}
        self._outer_ids: dict[Node, int] = {}

    def build(self) -> _native.CostGraph:
        """The outer graph, in steps of the resolution."""
        return self._graph(WHOLE, [self._contract(part) for part in self.blocks])

    def relaxed(self) -> _native.CostGraph:
        """The outer graph with time and resident bytes only.

        The frontier of this graph, the floor of transient memory added to what is resident, bounds
        every strategy from below.
        """
        return self._graph(FLAT, [self._contract_flat(part) for part in self.blocks])

    def _graph(self, aggregate: tuple[str, ...], tables: list[_Contracted]) -> _native.CostGraph:
        graph = _native.CostGraph(aggregate)
        ids = {node: self._add_node(graph, node, aggregate) for node in self.outer.inner}
        for link in self.outer.links:
            self._add_link(graph, ids, link, aggregate)
        for part, contracted in zip(self.blocks, tables, strict=True):
            table = graph.add_table_with_alternatives(
                list(contracted.shape), contracted.offsets, contracted.costs
            )
            graph.add_factor([ids[node] for node in part.border], table)
        self._outer_ids = ids
        return graph

    def decode(self, assignments: IntArray, alternatives: IntArray) -> Choices:
        """Turn answers of the outer graph into choices for every node and link.

        Parameters
        ----------
        assignments : (points, outer nodes) int array
        alternatives : (points, outer factors) int array
        """
        if not len(assignments):
            return Choices({}, {}, np.zeros((0, len(self.graph.blocks)), bool))
        nodes = {node: np.asarray(assignments[:, i]) for node, i in self._outer_ids.items()}
        links: dict[Link, IntArray] = {
            link: np.asarray(alternatives[:, i], np.int64)
            for i, link in enumerate(self.outer.links)
        }
        recomputed = np.zeros((len(assignments), len(self.graph.blocks)), bool)
        for i, part in enumerate(self.blocks):
            table = self._contract(part)
            cells = np.ravel_multi_index([nodes[node] for node in part.border], table.shape)
            chosen = np.asarray(alternatives[:, len(self.outer.links) + i], np.int64)
            redo, inner, taken = table.expand(np.asarray(cells, np.int64), chosen)
            nodes.update((node, inner[:, j]) for j, node in enumerate(part.inner))
            links.update((link, taken[:, j]) for j, link in enumerate(part.links))
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
            costs = _taken(self.tables.link(link).costs, alternative, *at)
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
        """Steps fine enough to change nothing that matters, coarse enough for 32-bit sums."""
        decisions = self.tables.decisions
        total = np.zeros(2)
        for node in decisions.nodes:
            total += _largest(self.tables.node(node).costs)
        for link in decisions.links:
            total += _largest(self.tables.link(link).costs)
        time = 1e-9
        while total[0] / time >= 2**31:
            time *= 2.0
        memory = 512
        while total[1] / memory >= 2**31:
            memory *= 2
        return Resolution(time, memory)

    # Native tables.

    def _floor(self) -> int:
        """Transient memory that every plan needs, in steps: no node or link can do with less."""
        decisions = self.tables.decisions
        tables = [self.tables.node(node).costs for node in decisions.nodes]
        tables += [self.tables.link(link).costs for link in decisions.links]
        least = max(_least_transient(costs) for costs in tables)
        return math.ceil(least / self.resolution.memory_bytes)

    def _columns(
        self,
        costs: FloatArray,
        aggregate: tuple[str, ...],
        redo: bool = False,
        level: float = math.inf,
    ) -> FloatArray:
        """Objectives of a table in steps; ``inf`` everywhere marks the impossible.

        Parameters
        ----------
        costs : float array
        aggregate : tuple of str
            :data:`WHOLE` or :data:`FLAT`.
        redo : bool
            Whether the table is part of a recomputed block.
        level : float
            Strike out what needs more transient memory than this, in steps.
        """
        steps = np.empty((*costs.shape[:-1], len(aggregate)))
        time = costs[..., TIME] + (costs[..., RECOMPUTE_TIME] if redo else 0.0)
        steps[..., 0] = np.rint(time / self.resolution.time_s)
        # Memory is rounded up: what fits in the answer fits on the device.
        resident = costs[..., RESIDENT] + (0.0 if redo else costs[..., SAVED])
        steps[..., 1] = np.ceil(resident / self.resolution.memory_bytes)
        transient = np.ceil(costs[..., TRANSIENT] / self.resolution.memory_bytes)
        if aggregate == WHOLE:
            steps[..., 2] = np.maximum(transient, self.floor_steps)
        steps[(~np.isfinite(steps[..., 0])) | (transient > level)] = np.inf
        return steps

    def _add_node(
        self,
        graph: _native.CostGraph,
        node: Node,
        aggregate: tuple[str, ...],
        redo: bool = False,
        level: float = math.inf,
    ) -> int:
        steps = self._columns(self.tables.node(node).costs, aggregate, redo, level)
        return graph.add_node(graph.add_table(steps))

    def _add_link(
        self,
        graph: _native.CostGraph,
        ids: dict[Node, int],
        link: Link,
        aggregate: tuple[str, ...],
        redo: bool = False,
        level: float = math.inf,
    ) -> None:
        steps = self._columns(self.tables.link(link).costs, aggregate, redo, level)
        if len(steps) == 1:
            table = graph.add_table(steps[0])
        else:
            shape, offsets, costs = _alternatives(steps)
            table = graph.add_table_with_alternatives(list(shape), offsets, costs)
        graph.add_factor([ids[link.source], ids[link.target]], table)

    # Blocks.

    def _contract(self, part: _Part) -> _Contracted:
        key = self._structure(part)
        found = self._contracted.get(key)
        if found is None:
            found = self._contracted[key] = self._contract_new(part)
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

    def _contract_new(self, part: _Part) -> _Contracted:
        ways: list[_Way] = []
        costs: list[tuple[IntArray, FloatArray]] = []
        if self.recompute != "full":
            for level in self._levels(part):
                flat = self._contract_as(part, redo=False, level=level)
                most = level if math.isfinite(level) else self._largest_transient(part)
                transient = np.full(len(flat.costs), max(most, self.floor_steps))
                ways.append(_Way(flat, redo=False))
                costs.append(_with_transient(flat, transient))
        if self.recompute != "none":
            flat = self._contract_as(part, redo=True, level=math.inf)
            ways.append(_Way(flat, redo=True))
            costs.append(_with_transient(flat, self._transient_of_recomputed(part, flat)))
        return self._united(part, ways, costs)

    def _contract_flat(self, part: _Part) -> _Contracted:
        """The block without regard to transient memory."""
        key = self._structure(part)
        found = self._flat.get(key)
        if found is None:
            modes = {"none": [False], "full": [True], "sweep": [False, True]}[self.recompute]
            ways = [
                _Way(self._contract_as(part, redo=redo, level=math.inf), redo) for redo in modes
            ]
            costs = [
                (
                    np.asarray(way.contraction.offsets, np.int64),
                    np.asarray(way.contraction.costs, np.float64),
                )
                for way in ways
            ]
            found = self._flat[key] = self._united(part, ways, costs)
        return found

    def _united(
        self, part: _Part, ways: list[_Way], costs: Sequence[tuple[IntArray, FloatArray]]
    ) -> _Contracted:
        """Cell by cell, the alternatives of one way after the other."""
        shape = tuple(self.tables.size(node) for node in part.border)
        sizes = np.stack([np.diff(offsets) for offsets, _ in costs])
        starts = np.concatenate([np.zeros((1, sizes.shape[1]), np.int64), np.cumsum(sizes, axis=0)])
        offsets = np.concatenate([[0], np.cumsum(starts[-1])])
        united = np.empty((offsets[-1], costs[0][1].shape[1]))
        for size, start, (begins, values) in zip(sizes, starts, costs, strict=False):
            within = np.arange(len(values)) - np.repeat(begins[:-1], size)
            united[np.repeat(offsets[:-1] + start, size) + within] = values
        return _Contracted(shape, offsets, united, tuple(ways), starts)

    def _levels(self, part: _Part) -> list[float]:
        """Limits on transient memory, in steps: the floor, and a few above it."""
        steps = self._transients(part)
        above = steps[steps > self.floor_steps]
        if not len(above):
            return [math.inf]
        wanted = np.geomspace(max(above[0], 1), above[-1], LEVELS - 1)[:-1]
        at = np.maximum(np.searchsorted(above, wanted, side="right") - 1, 0)
        # The last level strikes out nothing.
        return [self.floor_steps, *sorted({int(above[i]) for i in at}), math.inf]

    def _transients(self, part: _Part) -> IntArray:
        """All values of transient memory in a block's tables, in steps, rising."""
        tables = [self.tables.node(node).costs for node in part.inner]
        tables += [self.tables.link(link).costs for link in part.links]
        values = np.concatenate(
            [costs[..., TRANSIENT][np.isfinite(costs[..., TIME])] for costs in tables]
        )
        return np.unique(np.ceil(values / self.resolution.memory_bytes)).astype(np.int64)

    def _largest_transient(self, part: _Part) -> int:
        return int(self._transients(part)[-1])

    def _transient_of_recomputed(self, part: _Part, flat: _native.Contraction) -> FloatArray:
        """What is kept inside while the block runs backward, beside its largest operator."""
        offsets = np.asarray(flat.offsets, np.int64)
        sizes = np.diff(offsets)
        cells = np.repeat(np.arange(len(sizes)), sizes)
        within = np.arange(len(cells)) - np.repeat(offsets[:-1], sizes)
        nodes, _, taken = flat.expand(cells, within)
        place = {node: i for i, node in enumerate([*part.inner, *part.border])}
        saved, largest = np.zeros(len(cells)), np.zeros(len(cells))
        for node in part.inner:
            costs = self.tables.node(node).costs[nodes[:, place[node]]]
            saved += costs[:, SAVED]
            np.maximum(largest, costs[:, TRANSIENT], out=largest)
        for i, link in enumerate(part.links):
            at = (nodes[:, place[link.source]], nodes[:, place[link.target]])
            costs = _taken(self.tables.link(link).costs, taken[:, i], *at)
            saved += costs[:, SAVED]
            np.maximum(largest, costs[:, TRANSIENT], out=largest)
        steps = np.ceil((saved + largest) / self.resolution.memory_bytes)
        return np.asarray(np.maximum(steps, self.floor_steps))

    def _contract_as(self, part: _Part, *, redo: bool, level: float) -> _native.Contraction:
        """The block in one way; each different one once."""
        key = (self._structure(part), redo, level)
        found = self._ways.get(key)
        if found is None:
            graph = _native.CostGraph(FLAT)
            ids = {
                node: self._add_node(graph, node, FLAT, redo, level)
                for node in [*part.inner, *part.border]
            }
            for link in part.links:
                self._add_link(graph, ids, link, FLAT, redo, level)
            keep = [ids[node] for node in part.border]
            found = self._ways[key] = _native.contract(graph, keep=keep, threads=self.threads)
        return found


def _with_transient(
    flat: _native.Contraction, transient: FloatArray
) -> tuple[IntArray, FloatArray]:
    costs = np.asarray(flat.costs, np.float64)
    return np.asarray(flat.offsets, np.int64), np.column_stack([costs, transient])


def _least_transient(costs: FloatArray) -> float:
    possible = costs[..., TRANSIENT][np.isfinite(costs[..., TIME])]
    return float(possible.min()) if len(possible) else 0.0


def _largest(costs: FloatArray) -> FloatArray:
    """Largest finite time and bytes of a table."""
    possible = costs[np.isfinite(costs[..., TIME])]
    if not len(possible):
        return np.zeros(2)
    time = possible[:, TIME] + possible[:, RECOMPUTE_TIME]
    memory = possible[:, RESIDENT] + possible[:, SAVED]
    return np.array([time.max(), max(memory.max(), possible[:, TRANSIENT].max())])


def _alternatives(steps: FloatArray) -> tuple[tuple[int, ...], IntArray, FloatArray]:
    """Cells with every possible alternative of a stack of tables.

    An alternative that is impossible in a cell still takes a place in front of a possible one, so
    that places tell which alternative it is; it repeats the first, which then wins.
    """
    count, *shape, width = steps.shape
    cells = steps.reshape(count, -1, width)
    possible = np.isfinite(cells[0, :, 0])
    cells = np.where(np.isfinite(cells), cells, cells[0][None])
    sizes = np.where(possible, count, 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    costs = cells.transpose(1, 0, 2)[possible].reshape(-1, width)
    return tuple(shape), offsets, costs


def _taken(
    table: FloatArray, alternative: IntArray, source: IntArray, target: IntArray
) -> FloatArray:
    """Costs of a link's alternatives; an impossible one repeats the first (see _alternatives)."""
    costs = table[alternative, source, target]
    first = table[np.zeros_like(alternative), source, target]
    return np.where(np.isfinite(costs[:, :1]), costs, first)
