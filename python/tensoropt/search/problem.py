"""The native problem of one mesh and one number of micro-batches, and its answers decoded.

Repeated blocks are contracted once: the operators inside become one table over the block's border
tensors, each cell a frontier, contracted as they are ("keep") and with everything between the
borders recomputed in the backward pass ("recompute"). The two are united cell by cell, so that the
search chooses block by block. What is left is a small graph of the blocks' borders and of what
stands outside them.

Objectives: time (sum), resident bytes (sum), transient bytes (max). Inside a recomputed block a
fourth one adds up what is kept for backward, which is transient for the graph outside: it is there
only while that block runs backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tensoropt import _native
from tensoropt.cost.tables import RECOMPUTE_TIME, RESIDENT, SAVED, TIME, TRANSIENT, Tables
from tensoropt.sharding.decisions import Link, Node

__all__ = ["Choices", "MeshProblem", "Recompute", "Resolution"]

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.int64]
Recompute = Literal["none", "full", "sweep"]

KEEP = ("sum", "sum", "max")
REDO = ("sum", "sum", "max", "sum")

MAX_BORDER_CELLS = 4_000_000
"""A block whose border has more joint states is not contracted beforehand."""


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
class _Contracted:
    """A block's table over its border, and which alternatives come from which way of running it."""

    shape: tuple[int, ...]
    offsets: IntArray
    costs: FloatArray
    keep: _native.Contraction | None
    redo: _native.Contraction | None
    redo_from: IntArray

    def expand(
        self, cells: IntArray, alternatives: IntArray
    ) -> tuple[npt.NDArray[np.bool_], IntArray, IntArray]:
        """Whether each is recomputed, and the choices inside: (n, nodes) and (n, links)."""
        pairs, back = np.unique(np.stack([cells, alternatives]), axis=1, return_inverse=True)
        cell, alternative = pairs
        first = self.redo_from[cell]
        redo = alternative >= first
        nodes: IntArray | None = None
        links: IntArray | None = None
        for source, chosen, shift in ((self.keep, ~redo, 0), (self.redo, redo, first)):
            if source is None or not chosen.any():
                continue
            some = source.expand(cell[chosen], (alternative - shift)[chosen])
            if nodes is None or links is None:
                nodes = np.zeros((len(cell), some[0].shape[1]), np.int64)
                links = np.zeros((len(cell), some[2].shape[1]), np.int64)
            nodes[chosen], links[chosen] = some[0], some[2]
        assert nodes is not None
        assert links is not None
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
    epsilon : float
        Given to the contraction of recomputed blocks, whose frontiers have four objectives.
    """

    def __init__(self, tables: Tables, recompute: Recompute, *, threads: int | None = None) -> None:
        self.tables = tables
        self.recompute: Recompute = recompute
        self.threads = threads
        self.graph = tables.graph
        self.outer, self.blocks = self._parts()
        self.resolution = self._resolution()
        self._contracted: dict[Hashable, _Contracted] = {}
        self._outer_ids: dict[Node, int] = {}
        self._block_tables: list[_Contracted] = []

    def build(self, progress: Callable[[], None] | None = None) -> _native.CostGraph:
        """The outer graph: objectives time, resident and transient, in steps of the resolution."""
        graph = _native.CostGraph(KEEP)
        ids = {node: self._add_node(graph, node, KEEP) for node in self.outer.inner}
        self._outer_ids = ids
        for link in self.outer.links:
            self._add_link(graph, ids, link, KEEP)
        self._block_tables = []
        for part in self.blocks:
            contracted = self._contract(part)
            self._block_tables.append(contracted)
            table = graph.add_table_with_alternatives(
                list(contracted.shape), contracted.offsets, contracted.costs
            )
            graph.add_factor([ids[node] for node in part.border], table)
            if progress is not None:
                progress()
        return graph

    def decode(self, assignments: IntArray, alternatives: IntArray) -> Choices:
        """Turn answers of the outer graph into choices for every node and link.

        Parameters
        ----------
        assignments : (points, outer nodes) int array
        alternatives : (points, outer factors) int array
        """
        nodes = {node: np.asarray(assignments[:, i]) for node, i in self._outer_ids.items()}
        links = {link: np.asarray(alternatives[:, i]) for i, link in enumerate(self.outer.links)}
        recomputed = np.zeros((len(assignments), len(self.graph.blocks)), bool)
        for i, (part, table) in enumerate(zip(self.blocks, self._block_tables, strict=True)):
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
            table = self.tables.link(link).costs
            at = (alternative, choices.nodes[link.source], choices.nodes[link.target])
            costs = table[at]
            # An impossible alternative repeats the first one (see _alternatives).
            costs = np.where(
                np.isfinite(costs[:, :1]), costs, table[(np.zeros_like(at[0]), *at[1:])]
            )
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

    def _columns(self, costs: FloatArray, aggregate: tuple[str, ...]) -> FloatArray:
        """Objectives of a table in steps; ``inf`` everywhere marks the impossible."""
        redo = aggregate == REDO
        columns = [
            costs[..., TIME] + (costs[..., RECOMPUTE_TIME] if redo else 0.0),
            costs[..., RESIDENT] + (0.0 if redo else costs[..., SAVED]),
            costs[..., TRANSIENT],
        ]
        if redo:
            columns.append(costs[..., SAVED])
        steps = np.stack(columns, axis=-1)
        steps[..., 0] = np.rint(steps[..., 0] / self.resolution.time_s)
        # Memory is rounded up: what fits in the answer fits on the device.
        steps[..., 1:] = np.ceil(steps[..., 1:] / self.resolution.memory_bytes)
        steps[~np.isfinite(steps[..., 0])] = np.inf
        return steps

    def _add_node(self, graph: _native.CostGraph, node: Node, aggregate: tuple[str, ...]) -> int:
        return graph.add_node(
            graph.add_table(self._columns(self.tables.node(node).costs, aggregate))
        )

    def _add_link(
        self,
        graph: _native.CostGraph,
        ids: dict[Node, int],
        link: Link,
        aggregate: tuple[str, ...],
    ) -> None:
        steps = self._columns(self.tables.link(link).costs, aggregate)
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
        shape = tuple(self.tables.size(node) for node in part.border)
        cells = math.prod(shape)
        keep = redo = None
        empty = (np.zeros(cells + 1, np.int64), np.zeros((0, 3)))
        kept, redone = empty, empty
        if self.recompute != "full":
            keep = self._contract_as(part, KEEP)
            kept = (np.asarray(keep.offsets, np.int64), np.asarray(keep.costs, np.float64))
        if self.recompute != "none":
            redo = self._contract_as(part, REDO)
            costs = np.asarray(redo.costs, np.float64)
            # Outside the block, what is kept inside is transient, beside the largest operator.
            costs = np.stack([costs[:, 0], costs[:, 1], costs[:, 2] + costs[:, 3]], axis=1)
            redone = (np.asarray(redo.offsets, np.int64), costs)
        offsets, united = _united(kept, redone)
        return _Contracted(shape, offsets, united, keep, redo, np.diff(kept[0]))

    def _contract_as(self, part: _Part, aggregate: tuple[str, ...]) -> _native.Contraction:
        graph = _native.CostGraph(aggregate)
        ids = {node: self._add_node(graph, node, aggregate) for node in [*part.inner, *part.border]}
        for link in part.links:
            self._add_link(graph, ids, link, aggregate)
        return _native.contract(
            graph, keep=[ids[node] for node in part.border], threads=self.threads
        )


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


def _united(
    first: tuple[IntArray, FloatArray], second: tuple[IntArray, FloatArray]
) -> tuple[IntArray, FloatArray]:
    """Cell by cell, the alternatives of the first and then of the second."""
    sizes = [np.diff(offsets) for offsets, _ in (first, second)]
    offsets = np.concatenate([[0], np.cumsum(sizes[0] + sizes[1])])
    costs = np.empty((offsets[-1], 3))
    before = np.zeros(len(sizes[0]), np.int64)
    for size, (_, values) in zip(sizes, (first, second), strict=True):
        start = offsets[:-1] + before
        within = np.arange(len(values)) - np.repeat(np.cumsum(size) - size, size)
        costs[np.repeat(start, size) + within] = values
        before = before + size
    return offsets, costs
