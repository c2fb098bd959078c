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
work, graphs stand on either side of the truth (see :class:`~tensoropt.search.blocks.Blocks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensoropt import _native
from tensoropt.cost.tables import RECOMPUTE_TIME, RESIDENT, SAVED, TIME, TRANSIENT, Tables
from tensoropt.sharding.decisions import Link, Node

from .blocks import Blocks, Bound, Contracted, Part, Recompute
from .cells import costs_taken
from .steps import AGGREGATES, Resolution, Steps

__all__ = ["Choices", "MeshProblem"]

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.integer]


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
        self.graph = tables.graph
        self.outer, self.blocks = self._parts()
        self.steps = Steps(tables)
        self._contracted = Blocks(self.steps, recompute, epsilon=epsilon, threads=threads)
        self._outer_ids: dict[Node, int] = {}
        self.exact = all(self._contracted.exact(part) for part in self.blocks)

    @property
    def resolution(self) -> Resolution:
        """Size of one integer step."""
        return self.steps.resolution

    def rounding(self, time_s: FloatArray, memory_bytes: FloatArray) -> float:
        """The factor within which costs in steps tell the true ones, of some points."""
        return self.steps.rounding(time_s, memory_bytes)

    def outer_graph(self, bound: Bound) -> _native.CostGraph:
        """The graph of the blocks' borders and what stands outside, in steps of the resolution.

        If the problem is not :attr:`exact`, blocks need less transient memory in the bounds from
        below than in truth, so that their frontier bounds every strategy. In the one from above
        they need what they do, but there is not all that they could do.
        """
        return self._graph([self._contracted.contracted(part, bound) for part in self.blocks])

    def _graph(self, tables: list[Contracted]) -> _native.CostGraph:
        graph = _native.CostGraph(AGGREGATES["kept"])
        ids = {node: self.steps.add_node(graph, node, "kept") for node in self.outer.inner}
        for link in self.outer.links:
            self.steps.add_link(graph, ids, link, "kept")
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

    def decode(self, assignments: IntArray, alternatives: IntArray, bound: Bound) -> Choices:
        """Turn answers of an outer graph into choices for every node and link.

        Blocks with the same table and the same configurations at their borders could be swapped
        without any change of costs. Of these the ones that are recomputed come first: they run
        backward last, when little else is saved any more.

        Parameters
        ----------
        assignments : (points, outer nodes) int array
        alternatives : (points, outer factors) int array
        bound : str
            Which graph it was.
        """
        if not len(assignments):
            return Choices({}, {}, np.zeros((0, len(self.graph.blocks)), bool))
        nodes = {node: np.asarray(assignments[:, i]) for node, i in self._outer_ids.items()}
        links: dict[Link, IntArray] = {
            link: np.asarray(alternatives[:, i], np.int64)
            for i, link in enumerate(self.outer.links)
        }
        recomputed = np.zeros((len(assignments), len(self.graph.blocks)), bool)
        tables = [self._contracted.contracted(part, bound) for part in self.blocks]
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

    def _parts(self) -> tuple[Part, list[Part]]:
        decisions = self.tables.decisions
        blocks = [Part([], [], []) for _ in self.graph.blocks]
        outer = Part([], [], [])
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


def _equal(tables: Sequence[Contracted]) -> list[list[int]]:
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
