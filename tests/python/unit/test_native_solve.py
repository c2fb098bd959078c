"""`solve` and `contract`: options, results, interruption, threads."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brute_force import Costs, evaluate, frontier, plan_costs
from tensoropt._native import CostGraph, contract, solve
from tensoropt.errors import LimitError, ProblemError

SUMS = ("sum", "sum")


def chain(length: int, size: int, seed: int = 0, top: int = 50) -> CostGraph:
    """Return a chain of random costs, anti-correlated so that frontiers are long."""
    rng = np.random.default_rng(seed)

    def costs(*shape: int) -> np.ndarray:
        first = rng.integers(0, top, shape)
        return np.stack([first, np.maximum(top - first + rng.integers(-5, 5, shape), 0)], axis=-1)

    return CostGraph.from_arrays(
        [costs(size) for _ in range(length)],
        [(i, i + 1, costs(size, size)) for i in range(length - 1)],
    )


def cycle(length: int, size: int, seed: int = 0) -> tuple[list[Costs], list[Any]]:
    rng = np.random.default_rng(seed)
    nodes = [rng.integers(0, 20, (size, 2)).astype(float) for _ in range(length)]
    edges = [
        (i, (i + 1) % length, rng.integers(0, 20, (size, size, 2)).astype(float))
        for i in range(length)
    ]
    return nodes, edges


def test_frontier_and_plans_of_a_cycle() -> None:
    nodes, edges = cycle(5, 3)
    solution = solve(CostGraph.from_arrays(nodes, edges))
    assert (solution.status, solution.factor) == ("optimal", 1.0)
    assert solution.costs.tolist() == frontier(plan_costs(nodes, edges, SUMS)).tolist()
    assert solution.assignments.dtype == np.int32
    assert solution.assignments.shape == (len(solution), 5)
    for cost, assignment in zip(solution.costs, solution.assignments, strict=True):
        assert evaluate(nodes, edges, SUMS, assignment).tolist() == cost.tolist()


def test_results_are_made_once_and_cannot_be_written_to() -> None:
    solution = solve(chain(4, 3))
    for name in ("costs", "assignments", "node_alternatives", "alternatives"):
        array = getattr(solution, name)
        assert getattr(solution, name) is array
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1


def test_one_plan_is_a_row_of_all_plans() -> None:
    solution = solve(chain(6, 4))
    for point in range(len(solution)):
        assignment, node_alternatives, alternatives = solution.plan(point)
        assert assignment.tolist() == solution.assignments[point].tolist()
        assert node_alternatives.tolist() == solution.node_alternatives[point].tolist()
        assert alternatives.tolist() == solution.alternatives[point].tolist()
    for point in (len(solution), -1):
        with pytest.raises(ProblemError, match=f"no point {point}: the solution has"):
            solution.plan(point)


def test_same_bytes_for_any_number_of_threads() -> None:
    graph = chain(30, 6)
    one, two, four = (solve(graph, threads=threads) for threads in (1, 2, 4))
    for other in (two, four):
        assert one.costs.tobytes() == other.costs.tobytes()
        assert one.assignments.tobytes() == other.assignments.tobytes()


def test_alternatives_are_those_of_the_caller() -> None:
    graph = CostGraph()
    free = graph.add_table([[0, 0]])
    # Position 0 is dominated, 1 and 2 are not.
    edge = graph.add_table_with_alternatives((1, 1), [0, 3], [[5, 5], [5, 1], [1, 5]])
    graph.add_factor([graph.add_node(free), graph.add_node(free)], edge)
    choice = graph.add_table_with_alternatives((2,), [0, 0, 1], [[2, 2]])
    graph.add_node(choice)
    solution = solve(graph)
    assert solution.costs.tolist() == [[3, 7], [7, 3]]
    assert solution.alternatives.tolist() == [[2], [1]]
    assert solution.assignments.tolist() == [[0, 0, 1]] * 2
    assert solution.node_alternatives.tolist() == [[0, 0, 0]] * 2


def test_caps_are_inclusive_and_in_units() -> None:
    graph = CostGraph.from_arrays(
        [[[1e-3, 2048], [2e-3, 1024], [3e-3, 512]]], resolution=(1e-9, 512)
    )
    assert solve(graph, caps=(2e-3, None)).costs[:, 1].tolist() == [2048, 1024]
    assert solve(graph, caps=(None, 1024.0)).costs[:, 1].tolist() == [1024, 512]
    assert solve(graph, caps=(np.inf, None)).costs.shape == (3, 2)
    whole = CostGraph.from_arrays([[[1, 3], [2, 2]]])
    assert solve(whole, caps=(1.5, None)).costs.tolist() == [[1, 3]]


def test_infeasible_is_a_status_with_what_could_be_reached() -> None:
    graph = CostGraph.from_arrays([[[3, 8], [5, 4]]] * 2)
    solution = solve(graph, caps=(None, 7))
    assert (solution.status, len(solution)) == ("infeasible", 0)
    assert solution.costs.shape == (0, 2)
    assert solution.assignments.shape == (0, 2)
    assert solution.least == [(1, 7, 8)]
    assert solve(graph).least == []


def test_no_plan_at_all() -> None:
    impossible = np.full((2, 2, 2), np.inf)
    solution = solve(CostGraph.from_arrays([[[0, 0]] * 2] * 2, [(0, 1, impossible)]), caps=(1, 1))
    assert solution.status == "infeasible"
    assert solution.least == [(0, 1, None), (1, 1, None)]


def test_an_empty_graph_has_one_plan() -> None:
    solution = solve(CostGraph())
    assert (solution.status, solution.costs.tolist()) == ("optimal", [[0, 0]])
    assert solution.assignments.shape == (1, 0)


@pytest.mark.parametrize("resolution", [None, (1e-9, 512, 512)])
def test_peak_is_resident_plus_transient(resolution: Any) -> None:
    scale = np.array(resolution or (1, 1, 1))
    rng = np.random.default_rng(3)
    aggregate = ("sum", "sum", "max")
    nodes = [rng.integers(0, 30, (4, 3)).astype(float) for _ in range(5)]
    edges = [(i, i + 1, rng.integers(0, 9, (4, 4, 3)).astype(float)) for i in range(4)]
    graph = CostGraph.from_arrays(
        [costs * scale for costs in nodes],
        [(u, v, costs * scale) for u, v, costs in edges],
        aggregate,
        resolution,
    )
    plans = plan_costs(nodes, edges, aggregate).reshape(-1, 3)
    expected = frontier(np.stack([plans[:, 0], plans[:, 1] + plans[:, 2]], axis=-1))
    solution = solve(graph, peak=(1, 2))
    assert solution.peak is not None
    found = np.stack([solution.costs[:, 0] / scale[0], solution.peak / scale[1]], axis=-1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert solve(graph).peak is None

    cap = float(expected[:, 1].min())
    capped = solve(graph, peak=(1, 2, cap * scale[1]))
    assert capped.peak is not None
    assert capped.peak.tolist() == [cap * scale[1]]
    nothing = solve(graph, peak=(1, 2, (cap - 1) * scale[1]))
    assert nothing.status == "infeasible"
    assert nothing.least == [("peak", (cap - 1) * scale[1], cap * scale[1])]


class TestKnown:
    def test_what_is_known_is_not_returned(self) -> None:
        graph = CostGraph.from_arrays([[[1, 8], [4, 2]], [[0, 3], [1, 1]]])
        assert solve(graph).costs.tolist() == [[1, 11], [2, 9], [4, 5], [5, 3]]
        solution = solve(graph, known=np.array([[2.0, 9.0], [4.0, 4.0]]))
        assert (solution.status, solution.factor) == ("optimal", 1.0)
        assert solution.costs.tolist() == [[1, 11], [5, 3]]
        assert len(solve(graph, known=np.empty((0, 2)))) == 4

    def test_everything_known_is_no_infeasibility(self) -> None:
        solution = solve(chain(8, 4), known=np.zeros((1, 2)))
        assert (solution.status, len(solution), solution.least) == ("optimal", 0, [])
        assert solution.assignments.shape == (0, 8)

    def test_an_infinite_cost_says_nothing(self) -> None:
        graph = CostGraph.from_arrays([[[1, 8], [4, 2]]])
        known = np.array([[0, np.inf], [np.inf, np.inf]])
        assert solve(graph, known=known).costs.tolist() == [[1, 8], [4, 2]]

    def test_in_the_units_of_the_costs(self) -> None:
        graph = CostGraph.from_arrays(
            [[[1e-3, 2048], [2e-3, 1024], [3e-3, 512]]], resolution=(1e-9, 512)
        )
        found = solve(graph, known=np.array([[2e-3, 1024.0], [5.0, 0.0]])).costs
        assert found[:, 1].tolist() == [2048, 512]

    def test_beyond_a_cap_it_counts_for_nothing(self) -> None:
        graph = CostGraph.from_arrays([[[1, 8], [4, 2]]])
        known = np.array([[0.0, 3.0], [5.0, 0.0]])
        assert solve(graph, known=known).costs.tolist() == [[4, 2]]
        assert solve(graph, caps=(4, 2), known=known).costs.tolist() == [[4, 2]]

    def test_with_a_peak_it_has_the_peak_in_the_place_of_the_resident_part(self) -> None:
        graph = CostGraph.from_arrays(
            [[[1, 9, 3], [2, 5, 4], [3, 5, 1]]], aggregate=("sum", "sum", "max")
        )
        assert solve(graph, peak=(1, 2)).costs.tolist() == [[1, 9, 3], [2, 5, 4], [3, 5, 1]]
        solution = solve(graph, peak=(1, 2), known=np.array([[2.0, 9.0]]))
        assert (solution.status, solution.costs.tolist()) == ("optimal", [[1, 9, 3], [3, 5, 1]])
        with pytest.raises(ProblemError, match=r"known: expected 2 entries .* row 0 has 3"):
            solve(graph, peak=(1, 2), known=np.ones((1, 3)))

    @pytest.mark.parametrize(
        ("message", "known"),
        [
            (r"known: expected 2 entries in every row, row 0 has 1", [[1.0]]),
            (r"row 0 has 3|known\[0, 2\]: there are only 2 objectives", [[1.0, 2.0, 3.0]]),
            (r"known\[1, 0\]: -3 is no cost", [[1.0, 2.0], [-3.0, 1.0]]),
            (r"known\[0, 1\]: NaN is no cost", [[1.0, np.nan]]),
        ],
    )
    @pytest.mark.parametrize("resolution", [None, (1.0, 0.5)])
    def test_what_does_not_fit_is_named(self, message: str, known: Any, resolution: Any) -> None:
        graph = CostGraph.from_arrays([[[1, 8], [4, 2]]], resolution=resolution)
        with pytest.raises(ProblemError, match=message):
            solve(graph, known=np.array(known))

    def test_only_a_matrix_is_taken(self) -> None:
        known: Any = np.ones(2)
        with pytest.raises(TypeError, match="known"):
            solve(chain(2, 2), known=known)


class TestFactorOfATable:
    def test_it_is_part_of_the_solution(self) -> None:
        graph = CostGraph()
        table = graph.add_table_with_alternatives((1,), [0, 2], [[1, 8], [4, 2]], factor=1.25)
        graph.add_node(table)
        graph.add_node(graph.add_table([[1, 1]]))
        solution = solve(graph)
        assert (solution.status, solution.factor) == ("epsilon", 1.25)
        assert solution.costs.tolist() == [[2, 9], [5, 3]]

    def test_one_is_exact(self) -> None:
        graph = CostGraph()
        graph.add_node(graph.add_table_with_alternatives((1,), [0, 1], [[1, 8]], factor=1.0))
        assert (solve(graph).status, solve(graph).factor) == ("optimal", 1.0)

    @pytest.mark.parametrize("factor", [0.5, 0.0, -1.0, np.nan, np.inf])
    def test_below_one_or_not_finite_is_refused(self, factor: float) -> None:
        with pytest.raises(ProblemError, match=r"factor is .*, expected a finite number >= 1"):
            CostGraph().add_table_with_alternatives((1,), [0, 1], [[1, 8]], factor=factor)


def test_epsilon_covers_the_frontier_within_its_factor() -> None:
    graph = chain(20, 8, top=1000)
    exact = solve(graph)
    rough = solve(graph, epsilon=0.05)
    assert rough.status in {"optimal", "epsilon"}
    assert 1.0 <= rough.factor <= 1.05
    covered = (rough.costs[None] <= rough.factor * exact.costs[:, None]).all(axis=2).any(axis=1)
    assert covered.all()


def test_at_most_max_points() -> None:
    solution = solve(chain(20, 6), max_points=5)
    assert 1 <= len(solution) <= 5
    assert solution.factor > 1.0


@pytest.mark.parametrize("most", [8, 16])
def test_max_points_holds_with_a_peak_too(most: int) -> None:
    rng = np.random.default_rng(5)
    graph = CostGraph.from_arrays(
        [rng.integers(0, 3000, (6, 3)) for _ in range(9)], aggregate=("sum", "sum", "max")
    )
    exact = solve(graph, peak=(1, 2))
    assert len(exact) > most
    few = solve(graph, peak=(1, 2), max_points=most)
    assert 1 <= len(few) <= most
    assert few.factor > 1.0
    assert few.status == "epsilon"


def test_the_transient_part_of_a_peak_may_have_a_cap() -> None:
    costs = [[1, 5, 9], [2, 5, 4], [3, 5, 0]]
    graph = CostGraph.from_arrays([costs], aggregate=("sum", "sum", "max"))
    assert solve(graph, peak=(1, 2), caps=(None, None, 4)).costs.tolist() == costs[1:]
    above = CostGraph.from_arrays([costs[:2]], aggregate=("sum", "sum", "max"))
    nothing = solve(above, peak=(1, 2), caps=(None, None, 3))
    assert nothing.status == "infeasible"
    assert nothing.least == [(2, 3, 4)]


def test_work_limit_is_deterministic_and_said() -> None:
    graph = chain(60, 8, top=1000)
    first, second = (solve(graph, work_limit=10_000, threads=threads) for threads in (1, 2))
    assert first.status == second.status == "work_limit"
    assert first.costs.tobytes() == second.costs.tobytes()


def test_time_limit_is_a_status() -> None:
    solution = solve(chain(200, 16, top=10_000), time_limit_s=0.0)
    assert solution.status in {"time_limit", "optimal"}


def test_counters_say_what_was_done() -> None:
    graph = chain(10, 4)
    counters = solve(graph, threads=1).counters
    assert counters["pairs"] > 0
    assert counters["visited"] > 0
    assert counters["largest"] >= 1
    assert all(type(value) is int for value in counters.values())
    again = solve(graph, threads=2).counters
    assert {k: v for k, v in again.items() if "bytes" not in k} == {
        k: v for k, v in counters.items() if "bytes" not in k
    }


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    (r"epsilon: expected a finite number >= 0, got -1", {"epsilon": -1.0}),
    (r"epsilon: expected a finite number >= 0, got NaN", {"epsilon": np.nan}),
    (r"threads: expected at least 1, got 0", {"threads": 0}),
    (r"threads: expected at least 0, got -2", {"threads": -2}),
    (r"caps: expected one entry per objective \(2\), got 1", {"caps": (3,)}),
    (r"caps\[0\]: NaN is no cost", {"caps": (np.nan, None)}),
    (r"caps\[1\]: -3 is no cost", {"caps": (None, -3)}),
    (r"time_limit_s: expected a number of seconds >= 0, got -1", {"time_limit_s": -1}),
    (r"work_limit: expected at least 0, got -1", {"work_limit": -1}),
    (r"max_points: expected at least 1, got 0", {"max_points": 0}),
    (r"max_table_cells: expected at least 1, got 0", {"max_table_cells": 0}),
    (r"max_bytes: expected at least 0, got -1", {"max_bytes": -1}),
    (r"peak: transient must be a Max objective, 1 is Sum", {"peak": (0, 1)}),
    (r"peak: resident is objective 5, there are 2", {"peak": (5, 1)}),
]


@pytest.mark.parametrize(("message", "options"), OPTIONS, ids=[message for message, _ in OPTIONS])
def test_bad_options_are_named(message: str, options: dict[str, Any]) -> None:
    with pytest.raises(ProblemError, match=message):
        solve(chain(2, 2), **options)


def test_peak_needs_one_unit() -> None:
    graph = CostGraph.from_arrays([[[1, 1]]], aggregate=("sum", "max"), resolution=(1, 512))
    with pytest.raises(ProblemError, match="different resolutions: give them the same"):
        solve(graph, peak=(0, 1))


def clique() -> CostGraph:
    nodes = [np.zeros((8, 2), dtype=int)] * 6
    edge = np.random.default_rng(0).integers(1, 99, (8, 8, 2))
    edges = [(u, v, edge) for u in range(6) for v in range(u + 1, 6)]
    return CostGraph.from_arrays(nodes, edges)


def test_a_dense_graph_names_the_nodes_that_cause_it() -> None:
    with pytest.raises(LimitError, match=r"node 0.*max_table_cells = 100") as caught:
        solve(clique(), max_table_cells=100, heuristic=False)
    assert isinstance(caught.value, RuntimeError)


def test_a_dense_graph_has_a_heuristic_answer_with_an_honest_factor() -> None:
    exact = solve(clique())
    near = solve(clique(), max_table_cells=100)
    assert (exact.status, near.status) == ("optimal", "heuristic")
    assert near.assignments.shape == (len(near), 6)
    within = (near.costs[None] / exact.costs[:, None]).max(axis=2).min(axis=1).max()
    assert 1.0 <= within <= near.factor < np.inf
    # No plan is better than the best.
    covered = (exact.costs[None] <= near.costs[:, None]).all(axis=2).any(axis=1)
    assert covered.all()


def test_threads_solve_at_once_and_agree() -> None:
    graph = chain(40, 8)
    expected = solve(graph).costs.tobytes()
    found: list[bytes] = []

    def search() -> None:
        for _ in range(3):
            found.append(solve(graph, threads=2).costs.tobytes())

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 12


def test_progress_reports_and_may_stop() -> None:
    graph = slow_chain()
    reports: list[dict[str, Any]] = []

    class EnoughError(Exception):
        pass

    def stop_at_third(report: dict[str, Any]) -> None:
        reports.append(report)
        if len(reports) == 3:
            raise EnoughError

    with pytest.raises(EnoughError):
        solve(graph, progress=stop_at_third)
    assert len(reports) == 3
    assert set(reports[0]) == {"passes", "fraction", "pairs", "points", "bytes"}
    assert 0.0 <= reports[0]["fraction"] <= 1.0


def slow_chain() -> CostGraph:
    """Return a chain whose exact frontier takes many seconds: it has three objectives."""
    rng = np.random.default_rng(0)
    length, size = 60, 12
    return CostGraph.from_arrays(
        [rng.integers(0, 10**6, (size, 3)) for _ in range(length)],
        [(i, i + 1, rng.integers(0, 10**6, (size, size, 3))) for i in range(length - 1)],
        aggregate=("sum",) * 3,
    )


CHILD = """
import sys
sys.path[:0] = {paths!r}
from test_native_solve import slow_chain
from tensoropt._native import solve

begun = False

def progress(report):
    global begun
    if not begun:
        begun = True
        print("searching", flush=True)

try:
    solve(slow_chain(), progress=progress)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on POSIX")
def test_ctrl_c_interrupts_a_search() -> None:
    here = Path(__file__).resolve()
    program = CHILD.format(paths=[str(here.parent), str(here.parents[1])])
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "searching\n"
    sent = time.perf_counter()
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=120)
    print(f"interrupted after {(time.perf_counter() - sent) * 1e3:.0f} ms")
    assert (output, errors, child.returncode) == ("interrupted\n", "", 0)


class TestContract:
    def test_block_in_a_larger_graph_is_the_whole(self) -> None:
        nodes, edges = cycle(4, 3)
        inner = CostGraph.from_arrays(nodes, edges)
        block = contract(inner, keep=[3, 1])
        assert (block.keep, block.shape, block.factor) == ((3, 1), (3, 3), 1.0)
        assert block.offsets.shape == (10,)
        assert block.costs.shape == (block.offsets[-1], 2)
        outer = CostGraph.from_arrays([nodes[3], nodes[1]])
        outer.add_factor([0, 1], outer.add_contraction(block))
        whole, parts = solve(inner), solve(outer)
        assert parts.costs.tolist() == whole.costs.tolist()

        cells = np.ravel_multi_index(tuple(parts.assignments.T), block.shape)
        inside, _, alternatives = block.expand(cells, parts.alternatives[:, 0])
        assert inside.shape == (len(parts), 4)
        assert alternatives.shape == (len(parts), 4)
        assert (inside[:, [3, 1]] == parts.assignments).all()
        for cost, assignment in zip(parts.costs, inside, strict=True):
            assert evaluate(nodes, edges, SUMS, assignment).tolist() == cost.tolist()

    def test_the_same_table_by_its_parts(self) -> None:
        nodes, edges = cycle(4, 3)
        block = contract(CostGraph.from_arrays(nodes, edges), keep=[0, 2])
        graph = CostGraph()
        assert graph.add_contraction(block) == graph.add_table_with_alternatives(
            block.shape, block.offsets, block.costs
        )

    def test_kept_costs_are_not_included(self) -> None:
        graph = CostGraph.from_arrays(
            [[[7, 7]], [[1, 2]], [[9, 9]]],
            [(0, 1, [[[10, 10]]]), (1, 2, [[[20, 20]]]), (0, 2, [[[40, 40]]])],
        )
        block = contract(graph, keep=[0, 2])
        assert block.costs.tolist() == [[31, 32]]
        assignments, node_alternatives, alternatives = block.expand([0], [0])
        assert assignments.tolist() == [[0, 0, 0]]
        assert node_alternatives.tolist() == [[-1, 0, -1]]
        assert alternatives.tolist() == [[0, 0, -1]]

    def test_units_are_kept(self) -> None:
        graph = CostGraph.from_arrays([[[0.5, 1024]]] * 2, resolution=(0.25, 512))
        block = contract(graph, keep=[0])
        assert block.costs.tolist() == [[0.5, 1024.0]]
        with pytest.raises(ProblemError, match="give both the same"):
            CostGraph().add_contraction(block)

    @pytest.mark.parametrize(
        ("message", "keep"),
        [("no node 9", [9]), ("node 1 is named twice", [1, 1]), ("keep: index -1", [-1])],
    )
    def test_bad_boundary_is_named(self, message: str, keep: list[int]) -> None:
        with pytest.raises(ProblemError, match=message):
            contract(chain(3, 2), keep=keep)

    def test_bad_expansion_is_named(self) -> None:
        block = contract(chain(3, 2), keep=[0])
        with pytest.raises(ProblemError, match="no alternative 999 in cell 0"):
            block.expand([0], [999])
        with pytest.raises(ProblemError, match="no alternative 0 in cell 2"):
            block.expand([2], [0])
        with pytest.raises(ProblemError, match="cells has length 1, alternatives 2"):
            block.expand([0], [0, 1])

    def test_half_a_block_is_an_error(self) -> None:
        with pytest.raises(LimitError, match="work_limit"):
            contract(chain(60, 8, top=1000), keep=[0], work_limit=100)
