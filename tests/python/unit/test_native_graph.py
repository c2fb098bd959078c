"""`CostGraph`: what it takes, and what it says to what it does not take."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tensoropt._native import CostGraph, solve
from tensoropt.errors import ProblemError, TensorOptError

ZEROS = np.zeros((2, 2), dtype=np.int64)
EDGE = np.zeros((2, 2, 2), dtype=np.int64)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64, np.int32, np.uint8, np.float32])
def test_dtypes_mean_the_same(dtype: Any) -> None:
    node = np.array([[3, 1], [1, 3], [2, 4]], dtype=dtype)
    edge = np.array([[[0, 5], [1, 1], [7, 0]]] * 3, dtype=dtype)
    graph = CostGraph.from_arrays([node, node], [(0, 1, edge)])
    solution = solve(graph)
    assert solution.costs.tolist() == [[3, 7], [5, 5]]
    assert solution.costs.dtype == np.int64


def test_layouts_of_memory_mean_the_same() -> None:
    node = np.arange(8).reshape(2, 4)[:, ::2]
    edge = np.asfortranarray(np.arange(8).reshape(2, 2, 2))
    graph = CostGraph.from_arrays([node, node], [(0, 1, edge)])
    same = CostGraph.from_arrays([node.copy(), node.copy()], [(0, 1, np.ascontiguousarray(edge))])
    assert solve(graph).costs.tolist() == solve(same).costs.tolist()


def test_sizes_and_repr() -> None:
    graph = CostGraph.from_arrays(
        [ZEROS, np.zeros((3, 2))],
        [(0, 1, np.zeros((2, 3, 2))), (1, 0, np.zeros((3, 2, 2)))],
        aggregate=("sum", "max"),
        resolution=(1e-9, 512),
    )
    assert (graph.num_nodes, graph.num_factors, graph.num_tables) == (2, 2, 4)
    assert (graph.configurations(0), graph.configurations(1)) == (2, 3)
    assert (graph.scope(0), graph.scope(1)) == ((0, 1), (1, 0))
    assert graph.aggregate == ("sum", "max")
    assert graph.resolution == (1e-9, 512.0)
    assert repr(graph) == "<CostGraph: 2 nodes, 2 factors, 4 tables, 2 objectives>"


def test_equal_tables_are_held_once() -> None:
    graph = CostGraph.from_arrays([ZEROS] * 1000, [(i, i + 1, EDGE) for i in range(999)])
    assert (graph.num_nodes, graph.num_factors, graph.num_tables) == (1000, 999, 2)


def test_building_step_by_step_is_the_same() -> None:
    rng = np.random.default_rng(1)
    nodes = [rng.integers(0, 9, (3, 2)) for _ in range(3)]
    edge = rng.integers(0, 9, (3, 3, 2))
    graph = CostGraph()
    for costs in nodes:
        graph.add_node(graph.add_table(costs))
    table = graph.add_table(edge)
    assert graph.add_table(edge) == table
    assert [graph.add_factor([0, 1], table), graph.add_factor([2, 1], table)] == [0, 1]
    whole = CostGraph.from_arrays(nodes, [(0, 1, edge), (2, 1, edge)])
    assert solve(graph).costs.tolist() == solve(whole).costs.tolist()


def test_impossible_by_mask_and_by_infinity() -> None:
    costs = np.array([[1, 1], [2, 2]])
    masked = CostGraph()
    table = masked.add_table(np.where([[True], [False]], -7, costs), impossible=[True, False])
    masked.add_node(table)
    infinite = CostGraph.from_arrays([np.array([[1, np.inf], [2, 2]])])
    assert solve(masked).costs.tolist() == solve(infinite).costs.tolist() == [[2, 2]]


def test_resolution_rounds_to_the_nearest_step() -> None:
    graph = CostGraph.from_arrays(
        [np.array([[1.4e-9, 700], [0.2e-9, 1200]])], resolution=(1e-9, 512)
    )
    assert solve(graph).costs.tolist() == [[0.0, 1024.0], [1e-9, 512.0]]


def test_integers_are_in_the_same_units_as_floats() -> None:
    graph = CostGraph.from_arrays([np.array([[3, 1024]])], resolution=(0.5, 512))
    assert solve(graph).costs.tolist() == [[3.0, 1024.0]]


NAN = np.array([[[1, 0], [0, 0]], [[0, 0], [0, np.nan]]])

BAD: list[tuple[str, dict[str, Any]]] = [
    (r"nodes\[0\] has shape \[2, 3\], expected one axis", {"nodes": [np.zeros((2, 3))]}),
    (r"nodes\[0\] has shape \[2\], expected one axis", {"nodes": [np.zeros(2)]}),
    (r"nodes\[1\]\[0, 1\]: 0.5 is not a whole number: give", {"nodes": [ZEROS, [[1, 0.5]]]}),
    (r"nodes\[0\]\[1, 0\]: NaN is no cost", {"nodes": [[[0, 0], [np.nan, 0]]]}),
    (r"nodes\[0\]\[0, 1\]: -1 is negative", {"nodes": [[[0, -1]]]}),
    (r"nodes\[0\]\[0, 1\]: -1.5 is no cost", {"nodes": [[[0, -1.5]]], "resolution": (1, 1)}),
    (r"nodes\[0\]\[0, 0\]: -inf is no cost", {"nodes": [[[-np.inf, 0]]]}),
    (r"nodes\[0\] has dtype <U1, expected int64", {"nodes": [[["a", "b"]]]}),
    (r"nodes\[0\] has dtype complex128", {"nodes": [[[1j, 0]]]}),
    (r"nodes\[0\] is no array", {"nodes": [[[1, 2], [3]]]}),
    (r"nodes\[0\]: .* axis 0 of \[0\] is empty", {"nodes": [np.zeros((0, 2))]}),
    (r"nodes\[0\]\[0, 0\]: 1.* is more than 64 bits", {"nodes": [[[1e30, 0]]]}),
    (
        r"nodes\[1\]: objective 0 could add up to .* beyond 64 bits",
        {"nodes": [np.array([[2**63, 0]], dtype=np.uint64)] * 2},
    ),
    (r"edges\[0\]\[1, 1, 1\]: NaN is no cost", {"edges": [(0, 1, NAN)]}),
    (r"edges\[1\]: there is no node 2", {"edges": [(0, 1, EDGE), (0, 2, EDGE)]}),
    (r"edges\[0\]: index -1 is not from 0", {"edges": [(0, -1, EDGE)]}),
    (r"edges\[0\]: .* names node 1 twice", {"edges": [(1, 1, EDGE)]}),
    (r"edges\[0\]: expected \(u, v, array\)", {"edges": [(0, 1)]}),
    (r"edges\[0\]: .* with axes \[2, 3\]: expected", {"edges": [(0, 1, np.zeros((2, 3, 2)))]}),
    (r"aggregate \"min\" is unknown", {"aggregate": ("sum", "min")}),
    (r"1 to 4 objectives, got 5", {"aggregate": ("sum",) * 5}),
    (r"1 to 4 objectives, got 0", {"aggregate": ()}),
    (r"resolution has 1 entries, expected one per objective \(2\)", {"resolution": (1,)}),
    (r"resolution: expected a positive finite number, got 0", {"resolution": (1, 0)}),
    (r"resolution: expected a positive finite number, got NaN", {"resolution": (1, np.nan)}),
]


@pytest.mark.parametrize(("message", "arguments"), BAD, ids=[message for message, _ in BAD])
def test_bad_input_is_named(message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ProblemError, match=message) as caught:
        CostGraph.from_arrays(**{"nodes": [ZEROS, ZEROS], **arguments})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TensorOptError)
    assert "\n" not in str(caught.value) or "is no array" in str(caught.value)


def test_bad_steps_are_named() -> None:
    graph = CostGraph()
    table = graph.add_table(ZEROS)
    edge = graph.add_table(EDGE)
    graph.add_node(table)
    for message, call in [
        (r"table 7 in this graph", lambda: graph.add_node(7)),
        (r"table: index -1", lambda: graph.add_node(-1)),
        (r"needs a table with one axis", lambda: graph.add_node(edge)),
        (r"no node 3", lambda: graph.add_factor([0, 3], edge)),
        (r"names no node", lambda: graph.add_factor([], edge)),
        (r"impossible has dtype bool and shape \[3\]", lambda: graph.add_table(ZEROS, [True] * 3)),
        (r"impossible has dtype int64", lambda: graph.add_table(ZEROS, [1, 0])),
        (r"no node 5", lambda: graph.configurations(5)),
        (r"no factor 5", lambda: graph.scope(5)),
    ]:
        with pytest.raises(ProblemError, match=message):
            call()
    assert (graph.num_nodes, graph.num_factors, graph.num_tables) == (1, 0, 2)


@pytest.mark.parametrize(
    ("message", "offsets", "costs"),
    [
        (r"offsets has length 2, expected 3", [0, 1], [[0, 0]]),
        (r"offsets begin with 1", [1, 1, 1], [[0, 0]]),
        (r"offsets fall after cell 1", [0, 2, 1], [[0, 0], [1, 1]]),
        (r"offsets\[1\] is -1", [0, -1, 1], [[0, 0]]),
        (r"offsets has dtype float64", [0.0, 1.0, 1.0], [[0, 0]]),
        (r"costs has shape \[1, 3\]", [0, 1, 1], [[0, 0, 0]]),
        (r"costs has length 2, expected 4", [0, 1, 2], [[0, 0]]),
        (r"costs\[0, 1\]: NaN", [0, 1, 1], [[0, np.nan]]),
        (r"costs\[1\] is infinite: leave", [0, 1, 2], [[0, 0], [0, np.inf]]),
    ],
)
def test_bad_alternatives_are_named(message: str, offsets: Any, costs: Any) -> None:
    with pytest.raises(ProblemError, match=message):
        CostGraph().add_table_with_alternatives((2,), offsets, costs)


def test_a_graph_may_grow_while_it_is_solved() -> None:
    """A search works on the graph as it was when it began."""
    rng = np.random.default_rng(5)
    nodes = [rng.integers(0, 50, (4, 2)) for _ in range(12)]
    edges = [(i, i + 1, rng.integers(0, 50, (4, 4, 2))) for i in range(11)]
    graph = CostGraph.from_arrays(nodes, edges)
    before = solve(graph).costs.tolist()
    results: list[Any] = []

    def search() -> None:
        results.append(solve(graph))

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    graph.add_node(graph.add_table([[1000, 1000]]))
    assert [r.costs.tolist() for r in results] == [before, before]
    assert solve(graph).assignments.shape[1] == 13
