"""Wrong arguments and damaged files end in the package's own errors, which name the place."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tensoropt as to
from tensoropt.errors import ProblemError, TensorOptError

GRAPH = to.examples.transformer(
    layers=2, hidden=32, heads=4, vocabulary=64, sequence_length=16, batch_size=4
)
CLUSTER = to.Cluster.parse("2xL4")


@pytest.fixture(scope="module")
def frontier() -> to.Frontier:
    return to.search(GRAPH, CLUSTER, micro_batches=1)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((None, CLUSTER), {}, "graph is of type NoneType, expected a Graph"),
        ((GRAPH, "2xL4"), {}, "cluster is of type str, expected a Cluster"),
        ((GRAPH, CLUSTER), {"micro_batches": 1.0}, "micro_batches is of type float"),
        ((GRAPH, CLUSTER), {"micro_batches": None}, "micro_batches is of type NoneType"),
        ((GRAPH, CLUSTER), {"micro_batches": [1.5]}, "1.5 micro-batches do not divide"),
        ((GRAPH, CLUSTER), {"memory_bytes": "40GB"}, "memory_bytes is '40GB', expected a number"),
        ((GRAPH, CLUSTER), {"memory_bytes": float("nan")}, "memory_bytes is nan"),
        ((GRAPH, CLUSTER), {"epsilon": "x"}, "epsilon is 'x'"),
        ((GRAPH, CLUSTER), {"meshes": ["2"]}, "an entry of meshes is of type str"),
        ((GRAPH, CLUSTER), {"max_axes": "x"}, "max_axes is 'x'"),
        ((GRAPH, CLUSTER), {"threads": 1.5}, "threads is 1.5"),
        ((GRAPH, CLUSTER), {"recompute": None}, "recompute is None"),
        ((GRAPH, CLUSTER), {"progress": 3}, "progress is 3, expected a callable"),
    ],
)
def test_options_of_a_search_are_named(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProblemError, match=message):
        to.search(*arguments, **options)


@pytest.mark.parametrize(
    ("graph", "counts", "message"),
    [
        (GRAPH, 2, "counts is of type int, expected a sequence"),
        (GRAPH, [1.5], "counts is .1.5., expected one or more positive integers"),
        (GRAPH, "12", "expected one or more positive integers"),
        (None, [1], "graph is of type NoneType, expected a Graph"),
    ],
)
def test_counts_of_a_sweep_are_checked(graph: Any, counts: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        to.sweep(graph, "L4", counts)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda f: f.fastest(memory_bytes="4GB"), ProblemError, "memory_bytes is '4GB'"),
        (lambda f: f.fastest(memory_bytes=float("nan")), ProblemError, "memory_bytes is nan"),
        (lambda f: f.leanest(time_s="x"), ProblemError, "time_s is 'x'"),
        (lambda f: f.leanest(time_s=True), ProblemError, "time_s is True"),
        (lambda f: f[10**6], IndexError, "no point 1000000: the frontier has"),
        (lambda f: f[0].diff(None), ProblemError, "other is of type NoneType"),
    ],
)
def test_questions_to_a_frontier_are_checked(
    frontier: to.Frontier, ask: Callable[[to.Frontier], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ask(frontier)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from places(entry, (*path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value[:3]):
            yield from places(entry, (*path, index))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    other = copy.deepcopy(document)
    inner = other
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return other


@pytest.mark.parametrize("kind", ["frontier", "strategy"])
def test_no_changed_file_ends_in_an_error_of_its_own(
    frontier: to.Frontier, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "it.json"
    (frontier if kind == "frontier" else frontier[0]).save(path)
    document = json.loads(path.read_text())
    rng = random.Random(0)
    everywhere = sorted(places(document), key=repr)
    texts = []
    for where in rng.sample(everywhere, min(len(everywhere), 250)):
        value = rng.choice([None, -1, 10**30, 0.5, "x", [], {}, [[]], True, 1e308])
        path.write_text(json.dumps(changed(document, where, value)))
        try:
            if kind == "frontier":
                list(to.Frontier.load(path))
            else:
                to.Strategy.load(path)
        except TensorOptError as error:
            texts.append(str(error))
    assert len(texts) > 100
    assert all("it.json" in text for text in texts)


def test_a_damaged_number_is_named(frontier: to.Frontier, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    frontier.save(path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(changed(document, ("strategies", 0, "costs", 4), 10**30)))
    with pytest.raises(TensorOptError, match=r"f\.json"):
        to.Frontier.load(path)
