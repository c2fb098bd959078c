"""Instances of the ASPLOS / EuroSys 2025 contest: rules, conversion, and bad files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensoropt._native import IopddlProblem, solve
from tensoropt.errors import FileFormatError, ProblemError

BIG = 10**18


def document(**changes: Any) -> dict[str, Any]:
    """Three nodes in a triangle, one edge twice and one of them the other way round."""
    problem = {
        "name": "triangle",
        "usage_limit": 60,
        "nodes": {
            "intervals": [[0, 9], [3, 5], [5, 5]],
            "costs": [[15, 3], [10, 1], [2, 4]],
            "usages": [[30, 50], [20, 40], [99, 99]],
        },
        "edges": {
            "nodes": [[0, 1], [1, 2], [1, 0]],
            "costs": [[0, 5, BIG, 1], [7, 0, 0, 7], [1, 2, 3, 4]],
        },
    }
    return {"problem": problem | changes}


def load(tmp_path: Path, content: dict[str, Any]) -> IopddlProblem:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(content))
    return IopddlProblem.load(path)


def by_the_rules(content: dict[str, Any], chosen: tuple[int, ...]) -> tuple[int, list[int]]:
    """Sum costs, and usages at every point of time, word by word."""
    nodes, edges = content["problem"]["nodes"], content["problem"]["edges"]
    cost = sum(costs[k] for costs, k in zip(nodes["costs"], chosen, strict=True))
    for (u, v), costs in zip(edges["nodes"], edges["costs"], strict=True):
        cost += np.reshape(costs, (2, 2))[chosen[u], chosen[v]]
    usage = [
        sum(
            usages[k]
            for (lower, upper), usages, k in zip(
                nodes["intervals"], nodes["usages"], chosen, strict=True
            )
            if lower <= time < upper
        )
        for time in range(10)
    ]
    return int(cost), usage


def test_every_assignment_costs_what_the_rules_say(tmp_path: Path) -> None:
    content = document()
    problem = load(tmp_path, content)
    for chosen in itertools.product(range(2), repeat=3):
        cost, usage = by_the_rules(content, chosen)
        found = problem.evaluate(chosen)
        assert (found.cost, found.peak_usage) == (cost, max(usage))
        assert found.peak_time == usage.index(max(usage))
        assert found.within_limit == (max(usage) <= 60)
        assert found.impossible == ("edge 0" if chosen[:2] == (1, 0) else None)
        assert found.feasible == (found.within_limit and found.impossible is None)
        steps = dict(problem.usage_profile(np.array(chosen)))
        assert [steps[0], steps[3], steps[5], steps[9]] == [usage[0], usage[3], usage[5], 0]


def test_without_the_limit_the_least_cost_is_found(tmp_path: Path) -> None:
    content = document()
    problem = load(tmp_path, content)
    plans = list(itertools.product(range(2), repeat=3))
    least = min(by_the_rules(content, plan)[0] for plan in plans)
    solution = solve(problem.cost_graph())
    assert solution.costs.tolist() == [[least]]
    assert problem.evaluate(solution.assignments[0]).cost == least
    # With the usage at one time: the cheapest that fits then.
    fits = [by_the_rules(content, plan) for plan in plans]
    capped = solve(problem.cost_graph(times=[4]), caps=(None, 60))
    assert capped.costs[0, 0] == min(cost for cost, usage in fits if usage[4] <= 60)


def test_an_instance_says_what_it_holds(tmp_path: Path) -> None:
    problem = load(tmp_path, document())
    assert repr(problem) == "<IopddlProblem: 'triangle', 3 nodes, 3 edges, usage limit 60>"
    assert (problem.name, problem.usage_limit) == ("triangle", 60)
    assert (problem.num_nodes, problem.num_edges) == (3, 3)
    assert problem.costs(1).tolist() == [10, 1]
    assert problem.usages(2).tolist() == [99, 99]
    assert problem.interval(1) == (3, 5)
    assert problem.scope(2) == (1, 0)
    assert problem.edge_costs(0).tolist() == [[0, 5], [BIG, 1]]
    part = problem.cost_graph(nodes=[2, 1])
    assert (part.num_nodes, part.num_factors) == (2, 1)
    assert repr(problem.evaluate([0, 1, 0])).endswith("peak usage 70 at 3, over the limit>")
    assert repr(problem.evaluate([1, 0, 0])).endswith("edge 0 is impossible>")
    free = load(tmp_path, document(usage_limit=None))
    assert free.usage_limit is None
    assert free.evaluate([0, 1, 0]).feasible


def test_bad_requests_are_named(tmp_path: Path) -> None:
    problem = load(tmp_path, document())
    for message, call in [
        (r"there is no node 3: the problem has 3", lambda: problem.costs(3)),
        (r"there is no node -1", lambda: problem.interval(-1)),
        (r"there is no edge 9", lambda: problem.scope(9)),
        (r"bad assignment: it has 2 entries", lambda: problem.evaluate([0, 0])),
        (r"node 2 has no strategy 2, it has 2", lambda: problem.usage_profile([0, 0, 2])),
        (r"assignment\[1\] is -1", lambda: problem.evaluate([0, -1, 0])),
        (r"nodes: node 1 is named twice", lambda: problem.cost_graph([1, 1])),
        (r"1 to 4 objectives, got 5", lambda: problem.cost_graph(times=[1, 2, 3, 4])),
    ]:
        with pytest.raises(ProblemError, match=message):
            call()


@pytest.mark.parametrize(
    ("part", "field", "value", "message"),
    [
        ("nodes", "costs", [[1, 2], [], [1, 2]], r"problem\.nodes\.costs\[1\]: no strategy"),
        ("nodes", "usages", [[1, 2]], r"problem\.nodes\.usages: 1 entries, expected one per node"),
        ("nodes", "intervals", [[0, 9], [5, 3], [0, 0]], r"intervals\[1\]: \[5, 3\] ends before"),
        ("edges", "nodes", [[0, 1], [1, 2], [1, 3]], r"edges\.nodes\[2\]\[1\]: there is no node 3"),
        ("edges", "costs", [[0], [0], [0]], r"edges\.costs\[0\]: 1 entries, expected 4"),
        ("edges", "costs", "x", r"problem\.edges\.costs: .*expected a list of lists"),
    ],
)
def test_bad_files_are_named(
    tmp_path: Path, part: str, field: str, value: Any, message: str
) -> None:
    content = document()
    content["problem"][part][field] = value
    with pytest.raises(FileFormatError, match=message):
        load(tmp_path, content)


# Nodes, edges, and cost and peak of the first strategies, by a program that is not ours.
PUBLISHED = {
    "A": (34_932, 54_801, 6_916_000_000_020_231_139_720, 2_149_598_636),
    "G": (816, 1_023, 9_000_000_002_307_013_723, 80_075_852),
    "M": (32_894, 47_067, 5_504_860_803_348, 94_764_750_072),
    "S": (28_526, 38_826, 664_000_000_021_762_841_437, 2_192_810_580),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_instances(shared_data: Path, name: str) -> None:
    problem = IopddlProblem.load(shared_data / "iopddl" / f"asplos-2025-iopddl-{name}.json.gz")
    found = problem.evaluate(np.zeros(problem.num_nodes, dtype=np.int64))
    sizes = (problem.num_nodes, problem.num_edges)
    assert (*sizes, found.cost, found.peak_usage) == PUBLISHED[name]
    graph = problem.cost_graph()
    assert (graph.num_nodes, graph.num_factors) == sizes
