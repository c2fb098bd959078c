"""The frontier of a small cost graph by looking at every plan: the twin of the solver's boundary.

Costs are float arrays with `inf` for impossible, as `CostGraph.from_arrays` takes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]
Edge = tuple[int, int, Costs]

COMBINE = {"sum": np.add, "max": np.maximum}


def combine(a: Costs, b: Costs, aggregate: Sequence[str]) -> Costs:
    """Add two broadcastable arrays of cost vectors up, objective by objective."""
    parts = [COMBINE[how](a[..., d], b[..., d]) for d, how in enumerate(aggregate)]
    # One impossible objective makes the whole entry impossible.
    total = np.stack(parts, axis=-1)
    total[np.isinf(total).any(axis=-1)] = np.inf
    return total


def plan_costs(nodes: Sequence[Costs], edges: Sequence[Edge], aggregate: Sequence[str]) -> Costs:
    """Return the costs of all plans, shape (K_1, ..., K_n, D)."""
    sizes = [len(costs) for costs in nodes]
    total = np.zeros((*sizes, len(aggregate)))
    for node, costs in enumerate(nodes):
        shape = [1] * len(sizes)
        shape[node] = sizes[node]
        total = combine(total, np.broadcast_to(costs.reshape(*shape, -1), total.shape), aggregate)
    for u, v, costs in edges:
        shape = [1] * len(sizes)
        shape[u], shape[v] = sizes[u], sizes[v]
        ordered = costs if u < v else costs.swapaxes(0, 1)
        total = combine(total, np.broadcast_to(ordered.reshape(*shape, -1), total.shape), aggregate)
    return total


def frontier(costs: Costs) -> Costs:
    """Return the distinct nondominated finite rows, in lexicographic order."""
    rows = costs.reshape(-1, costs.shape[-1])
    rows = np.unique(rows[np.isfinite(rows).all(axis=1)], axis=0)
    dominated = [
        any((other <= row).all() and (other < row).any() for other in rows) for row in rows
    ]
    return rows[~np.array(dominated, dtype=bool)]


def evaluate(
    nodes: Sequence[Costs],
    edges: Sequence[Edge],
    aggregate: Sequence[str],
    assignment: Sequence[int],
) -> Costs:
    """Return the cost vector of one plan, added up from the raw arrays."""
    total = np.zeros(len(aggregate))
    for costs in itertools.chain(
        (costs[k] for costs, k in zip(nodes, assignment, strict=True)),
        (costs[assignment[u], assignment[v]] for u, v, costs in edges),
    ):
        total = combine(total, costs, aggregate)
    return total
