"""The Python boundary against brute force: random small problems of any shape."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, note
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from brute_force import Costs, Edge, evaluate, frontier, plan_costs
from tensoropt._native import CostGraph, Solution, contract, solve

# Small numbers, so that ties and zeros are common.
COST = st.one_of(st.integers(0, 6).map(float), st.just(float("inf")))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Costs], list[Edge], tuple[str, ...]]:
    """Draw nodes, edges and aggregates; any graph of at most five nodes, parallel edges too."""
    aggregate = tuple(draw(st.lists(st.sampled_from(["sum", "max"]), min_size=1, max_size=4)))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))

    def costs(*shape: int) -> Costs:
        return draw(hnp.arrays(np.float64, (*shape, len(aggregate)), elements=COST))

    nodes = [costs(size) for size in sizes]
    pairs = [(u, v) for u in range(len(sizes)) for v in range(len(sizes)) if u != v]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=6)) if pairs else []
    return nodes, [(u, v, costs(sizes[u], sizes[v])) for u, v in chosen], aggregate


def check_plans(
    solution: Solution, nodes: list[Costs], edges: list[Edge], aggregate: tuple[str, ...]
) -> None:
    """Add every plan up from the raw arrays."""
    assert solution.assignments.shape == (len(solution), len(nodes))
    for cost, assignment in zip(solution.costs, solution.assignments, strict=True):
        assert evaluate(nodes, edges, aggregate, assignment).tolist() == cost.tolist()


@given(problems())
def test_frontier_is_that_of_all_plans(problem: Any) -> None:
    nodes, edges, aggregate = problem
    solution = solve(CostGraph.from_arrays(nodes, edges, aggregate))
    expected = frontier(plan_costs(nodes, edges, aggregate))
    assert solution.costs.tolist() == expected.tolist()
    assert solution.status == ("optimal" if len(expected) else "infeasible")
    check_plans(solution, nodes, edges, aggregate)


@given(problems(), st.lists(st.one_of(st.none(), st.integers(0, 20)), min_size=4, max_size=4))
def test_caps_are_a_filter(problem: Any, caps: list[int | None]) -> None:
    nodes, edges, aggregate = problem
    caps = caps[: len(aggregate)]
    solution = solve(CostGraph.from_arrays(nodes, edges, aggregate), caps=caps)
    whole = frontier(plan_costs(nodes, edges, aggregate))
    limits = np.array([np.inf if cap is None else cap for cap in caps])
    assert solution.costs.tolist() == whole[(whole <= limits).all(axis=1)].tolist()
    check_plans(solution, nodes, edges, aggregate)


@given(problems(), st.floats(0.0, 1.0))
def test_epsilon_covers_everything_within_its_factor(problem: Any, epsilon: float) -> None:
    nodes, edges, aggregate = problem
    solution = solve(CostGraph.from_arrays(nodes, edges, aggregate), epsilon=epsilon)
    whole = frontier(plan_costs(nodes, edges, aggregate))
    note(f"factor {solution.factor}, {len(solution)} of {len(whole)} points")
    assert 1.0 <= solution.factor <= 1.0 + epsilon
    within = solution.costs[None] <= solution.factor * whole[:, None] * (1 + 1e-12)
    assert within.all(axis=2).any(axis=1).all()
    check_plans(solution, nodes, edges, aggregate)


@given(problems(), st.data())
def test_contracting_a_part_changes_nothing(problem: Any, data: st.DataObject) -> None:
    nodes, edges, aggregate = problem
    keep = data.draw(st.lists(st.integers(0, len(nodes) - 1), unique=True))
    whole = CostGraph.from_arrays(nodes, edges, aggregate)
    block = contract(whole, keep)
    outer = CostGraph.from_arrays([nodes[node] for node in keep], None, aggregate)
    for u, v, costs in edges:
        if u in keep and v in keep:
            outer.add_factor([keep.index(u), keep.index(v)], outer.add_table(costs))
    # A block without boundary is a constant: a node with one cell stands for it.
    if keep:
        outer.add_factor(range(len(keep)), outer.add_contraction(block))
    else:
        outer.add_node(outer.add_table_with_alternatives((1,), block.offsets, block.costs))
    parts = solve(outer)
    assert parts.costs.tolist() == solve(whole).costs.tolist()

    kept = tuple(parts.assignments[:, : len(keep)].T)
    shape = block.shape or (1,)
    cells = np.ravel_multi_index(kept, shape) if keep else np.zeros(len(parts), dtype=int)
    chosen = parts.alternatives[:, -1] if keep else parts.node_alternatives[:, 0]
    inside, _, _ = block.expand(cells, chosen)
    for cost, assignment in zip(parts.costs, inside, strict=True):
        assert evaluate(nodes, edges, aggregate, assignment).tolist() == cost.tolist()


@given(problems(), st.integers(1, 4))
def test_threads_and_dtypes_give_the_same_bytes(problem: Any, threads: int) -> None:
    nodes, edges, aggregate = problem
    floats = solve(CostGraph.from_arrays(nodes, edges, aggregate), threads=1)
    graph = CostGraph(aggregate)
    for costs in nodes:
        graph.add_node(integers(graph, costs))
    for u, v, costs in edges:
        graph.add_factor([u, v], integers(graph, costs))
    masked = solve(graph, threads=threads)
    assert masked.costs.tobytes() == floats.costs.tobytes()
    assert masked.assignments.tobytes() == floats.assignments.tobytes()


def integers(graph: CostGraph, costs: Costs) -> int:
    """Add an array as integers with a mask; masked entries hold rubbish."""
    impossible = np.isinf(costs).any(axis=-1)
    return graph.add_table(np.where(np.isinf(costs), -1, costs).astype(np.int64), impossible)


@given(problems(), st.floats(0.0, 0.5), st.sampled_from(["", ".gz"]))
def test_files_hold_problems_and_solutions(problem: Any, epsilon: float, suffix: str) -> None:
    nodes, edges, aggregate = problem
    graph = CostGraph.from_arrays(nodes, edges, aggregate)
    solution = solve(graph, epsilon=epsilon)
    with tempfile.TemporaryDirectory() as folder:
        one, two = (Path(folder) / f"{name}.json{suffix}" for name in ("one", "two"))
        graph.save(one)
        back = CostGraph.load(one)
        back.save(two)
        assert one.read_bytes() == two.read_bytes()
        solution.save(one)
        read = Solution.load(one)
        solve(back, epsilon=epsilon, threads=2).save(two)
        assert one.read_bytes() == two.read_bytes()
    assert (read.status, read.factor) == (solution.status, solution.factor)
    assert read.costs.tolist() == solution.costs.tolist()
    assert read.assignments.tolist() == solution.assignments.tolist()
    check_plans(read, nodes, edges, aggregate)


@given(problems(), st.sampled_from([1e-9, 0.25, 512.0]))
def test_a_resolution_scales_and_nothing_else(problem: Any, step: float) -> None:
    nodes, edges, aggregate = problem
    whole = solve(CostGraph.from_arrays(nodes, edges, aggregate))
    scaled = solve(
        CostGraph.from_arrays(
            [costs * step for costs in nodes],
            [(u, v, costs * step) for u, v, costs in edges],
            aggregate,
            (step,) * len(aggregate),
        )
    )
    assert scaled.costs.dtype == np.float64
    assert scaled.costs.tolist() == (whole.costs * step).tolist()
    assert scaled.assignments.tolist() == whole.assignments.tolist()
