"""Costs as the native core counts them: which objectives a graph has, in whole steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tensoropt import _native
from tensoropt.cost.tables import RECOMPUTE_TIME, RESIDENT, SAVED, TIME, TRANSIENT, Tables
from tensoropt.sharding.decisions import Link, Node

from .cells import largest_costs, least_transient, most_rounded_up, with_alternatives

__all__ = ["AGGREGATES", "Kind", "Resolution", "Steps"]

FloatArray = npt.NDArray[np.floating]

Kind = Literal["kept", "plain", "redone", "saving", "fast", "lean", "saved", "largest"]
"""Objectives of a graph: see :data:`AGGREGATES`."""

AGGREGATES: dict[Kind, tuple[str, ...]] = {
    "kept": ("sum", "sum", "max"),
    "plain": ("sum", "sum"),
    "redone": ("sum", "sum", "sum", "max"),
    "saving": ("sum", "sum", "sum"),
    "fast": ("sum", "sum"),
    "lean": ("sum", "sum"),
    "saved": ("sum",),
    "largest": ("max",),
}
"""Time and resident bytes, and with them: transient bytes (``kept``) or nothing (``plain``) where
nothing is recomputed; in a recomputed block saved bytes and the largest operator (``redone``),
saved bytes only (``saving``), or nothing (``fast``). ``lean`` adds the saved bytes of a recomputed
block to the resident ones. ``saved`` and ``largest`` are those bytes alone."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Size of one integer step: seconds and bytes."""

    time_s: float
    memory_bytes: int


_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "kept": ("time", "both", "transient"),
    "plain": ("time", "both"),
    "redone": ("time", "resident", "saved", "largest"),
    "saving": ("time", "resident", "saved"),
    "fast": ("time", "resident"),
    "lean": ("time", "both"),
    "saved": ("saved",),
    "largest": ("largest",),
}
"""What the objectives are."""

_BYTES: dict[str, tuple[int, ...]] = {
    "resident": (RESIDENT,),
    "both": (RESIDENT, SAVED),
    "saved": (SAVED,),
    "largest": (TRANSIENT,),
    "transient": (TRANSIENT,),
}
"""Columns of the cost tables that add up to them."""


class Steps:
    """Turns the tables of a mesh into native ones.

    Parameters
    ----------
    tables : Tables

    Attributes
    ----------
    resolution : Resolution
    floor : int
        Transient memory that every plan needs, in steps.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.resolution = self._resolution()
        self.floor = self._floor()

    def columns(self, costs: FloatArray, kind: Kind) -> FloatArray:
        """Objectives of a table in steps; ``inf`` everywhere marks the impossible."""
        redo = kind not in ("kept", "plain")
        again = costs[..., RECOMPUTE_TIME] if redo else 0.0
        steps = np.empty((*costs.shape[:-1], len(AGGREGATES[kind])))
        for column, what in enumerate(_COLUMNS[kind]):
            if what == "time":
                steps[..., column] = np.rint((costs[..., TIME] + again) / self.resolution.time_s)
                continue
            nbytes = sum(costs[..., part] for part in _BYTES[what])
            # Memory is rounded up: what fits in the answer fits on the device.
            steps[..., column] = np.ceil(nbytes / self.resolution.memory_bytes)
            if what == "transient":
                np.maximum(steps[..., column], self.floor, out=steps[..., column])
        steps[~np.isfinite(costs[..., TIME])] = np.inf
        return steps

    def add_node(self, graph: _native.CostGraph, node: Node, kind: Kind) -> int:
        """Add a node with its own table."""
        return graph.add_node(graph.add_table(self.columns(self.tables.node(node).costs, kind)))

    def add_link(
        self, graph: _native.CostGraph, ids: dict[Node, int], link: Link, kind: Kind
    ) -> None:
        """Add a link between two nodes, with all its alternatives."""
        steps = self.columns(self.tables.link(link).costs, kind)
        if len(steps) == 1:
            table = graph.add_table(steps[0])
        else:
            shape, offsets, costs = with_alternatives(steps)
            table = graph.add_table_with_alternatives(list(shape), offsets, costs)
        graph.add_factor([ids[link.source], ids[link.target]], table)

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

    def _floor(self) -> int:
        """Transient memory that every plan needs, in steps: no node or link can do with less."""
        least = max(least_transient(costs) for costs, _ in self._different())
        return math.ceil(least / self.resolution.memory_bytes)

    def _different(self) -> list[tuple[FloatArray, int]]:
        """The costs of each different table, and how often it occurs."""
        decisions = self.tables.decisions
        tables = [self.tables.node(node).costs for node in decisions.nodes]
        tables += [self.tables.link(link).costs for link in decisions.links]
        found: dict[int, tuple[FloatArray, int]] = {}
        for costs in tables:
            found[id(costs)] = (costs, found.get(id(costs), (costs, 0))[1] + 1)
        return list(found.values())
