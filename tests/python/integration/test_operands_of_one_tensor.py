"""Operators that read one tensor as several operands: each operand has a layout of its own.

One of them may be gathered again in the backward pass while another is kept, or is read as it lies.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensoropt as to
from random_choices import Choice, random_choice, table_costs
from tensoropt.cost.assignment import Assignment, Words, from_tables, to_tables
from tensoropt.cost.evaluate import evaluate
from tensoropt.cost.liveness import replay
from tensoropt.cost.model import CostModel
from tensoropt.cost.parts import Parts
from tensoropt.cost.precision import Optimizer, Precision
from tensoropt.cost.program import build_program
from tensoropt.cost.replayer import Replayer
from tensoropt.cost.tables import Tables
from tensoropt.graph import Graph, GraphBuilder
from tensoropt.sharding.decisions import Conversion, Decisions, decisions
from tensoropt.sharding.dims import micro_batch


def graph_of(name: str, shape: tuple[int, ...], read: Callable[[GraphBuilder, str], str]) -> Graph:
    """A product, what reads its result several times, and the mean."""
    b = GraphBuilder(name)
    width = shape[-1]
    w = b.parameter("w", (width, width))
    y = b.op("linear", (b.input("x", shape), w), shape, name="y", weight="nk")
    z = read(b, y)
    dims = list(range(len(shape)))
    return b.build(b.op("reduce", (z,), (), op="mean", dims=dims, keepdim=False), batch_size=8)


def attention() -> Graph:
    shape = (8, 4, 32, 16)

    def read(b: GraphBuilder, y: str) -> str:
        return b.op("attention", (y, y, y), shape, name="z", causal=True, scale=1.0, dropout=0.0)

    return graph_of("attention", shape, read)


def square() -> Graph:
    def read(b: GraphBuilder, y: str) -> str:
        return b.op("elementwise", (y, y), (8, 32), name="z", op="mul")

    return graph_of("square", (8, 32), read)


def gram() -> Graph:
    """A product with itself: rows of one operand are summed over, of the other they stay."""

    def read(b: GraphBuilder, y: str) -> str:
        return b.op("matmul", (y, y), (8, 32, 32), name="z")

    return graph_of("gram", (8, 32, 32), read)


def gram_of_views() -> Graph:
    """The same with its transpose."""

    def read(b: GraphBuilder, y: str) -> str:
        turned = b.op("transpose", (y,), (8, 32, 32), name="turned", perm=[0, 2, 1])
        return b.op("matmul", (y, turned), (8, 32, 32), name="z")

    return graph_of("gram of views", (8, 32, 32), read)


def tied() -> Graph:
    """A parameter that one operator reads twice."""
    b = GraphBuilder("tied")
    w = b.parameter("w", (32, 32))
    p = b.op("matmul", (w, w), (32, 32), name="p")
    z = b.op("matmul", (b.input("x", (8, 32)), p), (8, 32), name="z")
    return b.build(b.op("reduce", (z,), (), op="mean", dims=[0, 1], keepdim=False), batch_size=8)


def projections() -> Graph:
    """Attention over three tensors."""
    b = GraphBuilder("projections")
    shape = (8, 4, 32, 16)
    x = b.input("x", shape)
    weights = [b.parameter(f"w{i}", (16, 16)) for i in range(3)]
    read = [b.op("linear", (x, w), shape, weight="nk") for w in weights]
    z = b.op("attention", read, shape, name="z", causal=True, scale=1.0, dropout=0.0)
    loss = b.op("reduce", (z,), (), op="mean", dims=[0, 1, 2, 3], keepdim=False)
    return b.build(loss, batch_size=8)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "attention": attention,
    "square": square,
    "gram": gram,
    "gram_of_views": gram_of_views,
    "tied": tied,
    "projections": projections,
}
TWICE = ("attention", "square", "gram")
CLUSTERS = ("2xA100-SXM-80GB", "2x2xH100-SXM-80GB")


def build(name: str, cluster: str, m: int) -> tuple[Tables, Parts]:
    whole = to.Cluster.parse(cluster)
    mesh = whole.meshes()[-1]
    model = CostModel(whole, mesh, Precision.named("bf16"), Optimizer.named("adamw"), m)
    found = decisions(micro_batch(GRAPHS[name](), m))
    return Tables(model, found, recomputable=False), Parts(model, found, recomputable=False)


def choices(tables: Tables, count: int) -> list[Choice]:
    rng = np.random.default_rng(0)
    return [random_choice(tables, rng) for _ in range(count)]


def is_mixed(found: Decisions, assignment: Assignment) -> bool:
    """Whether some operator gathers one operand again, and another of the same tensor not."""
    again = assignment.regathered
    reads = [
        (link.tensor, int(link.target.key), link.operand)
        for link in found.links
        if isinstance(link, Conversion) and link.target.kind == "operator"
    ]
    return any(
        a in again and b not in again for a in reads for b in reads if a[:2] == b[:2] and a != b
    )


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", GRAPHS)
def test_evaluation_is_what_the_tables_say(name: str, cluster: str, m: int) -> None:
    tables, parts = build(name, cluster, m)
    shared = Replayer(parts)
    mixed = 0
    for choice in choices(tables, 30):
        assignment = from_tables(tables, *choice)
        mixed += is_mixed(tables.decisions, assignment)
        found = evaluate(parts, tables.decisions, assignment)
        costs = (found.time_s, found.resident_bytes, found.transient_bytes)
        assert costs == pytest.approx(table_costs(tables, choice), rel=1e-9)
        peak = replay(build_program(parts, assignment)).peak_bytes
        assert shared.peak_and_time(assignment)[0] == pytest.approx(peak, rel=1e-9)
    assert (mixed > 0) == (name in TWICE)


@pytest.mark.parametrize("name", GRAPHS)
def test_words_and_table_entries_lead_back(name: str) -> None:
    tables, _ = build(name, CLUSTERS[1], 2)
    found, mesh = tables.decisions, tables.model.mesh
    for choice in choices(tables, 30):
        assignment = from_tables(tables, *choice)
        words = assignment.to_words(found)
        assert Assignment.from_words(found, mesh, 2, words) == assignment
        nodes, links = to_tables(tables, assignment)
        assert from_tables(tables, nodes, links, choice[2]) == assignment


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", [*TWICE, "projections"])
def test_the_bound_covers_several_operands_gathered_again(name: str, cluster: str, m: int) -> None:
    """They lie there at once while their reader runs backward, each beside its gradient."""
    tables, parts = build(name, cluster, m)
    several = 0
    for choice in choices(tables, 200):
        assignment = from_tables(tables, *choice)
        readers = [reader for _, reader, _ in assignment.regathered]
        if len(set(readers)) < len(readers):
            several += 1
            peak = replay(build_program(parts, assignment)).peak_bytes
            assert peak <= evaluate(parts, tables.decisions, assignment).bound_bytes
    assert several


def stack(layers: int) -> Graph:
    """Attention that reads one tensor three times, layer after layer."""
    b = GraphBuilder("stack")
    shape = (1, 1, 4096, 128)
    z = b.input("x", shape)
    for i in range(layers):
        y = b.op("linear", (z, b.parameter(f"w{i}", (128, 128))), shape, weight="nk")
        z = b.op("attention", (y, y, y), shape, causal=True, scale=1.0, dropout=0.0)
    loss = b.op("reduce", (z,), (), op="mean", dims=[0, 1, 2, 3], keepdim=False)
    return b.build(loss, batch_size=1)


def words_of(s: to.Strategy) -> Words:
    return Words(
        dict(s.operators),
        dict(s.tensors),
        {n: (p.layout, p.scheme, p.axes) for n, p in s.parameters.items()},
        s.regathered,
        dict(s.recompute),
    )


def test_all_points_of_a_search_are_built_and_saved(tmp_path: Path) -> None:
    """Gathering keys and values again, and reading queries where they lie, is on the frontier."""
    graph, cluster = stack(4), to.Cluster.parse(CLUSTERS[0])
    frontier = to.search(graph, cluster, micro_batches=1)
    found = decisions(graph)
    frontier.save(tmp_path / "f.json")
    loaded = to.Frontier.load(tmp_path / "f.json")
    mixed = 0
    for strategy, again in zip(frontier, loaded, strict=True):
        assert words_of(again) == words_of(strategy)
        strategy.save(tmp_path / "s.json")
        assert to.Strategy.load(tmp_path / "s.json") == strategy
        model = CostModel(
            cluster, strategy.mesh, Precision.named("bf16"), Optimizer.named("adamw"), 1
        )
        assignment = Assignment.from_words(found, strategy.mesh, 1, words_of(again))
        mixed += is_mixed(found, assignment)
        assert evaluate(model, found, assignment).time_s == strategy.costs.time_s
    assert mixed


def test_words_without_operands_stand_for_all_of_them() -> None:
    """Files of version 1 did not tell operands apart."""
    tables, _ = build("attention", CLUSTERS[0], 1)
    assignment = from_tables(tables, *choices(tables, 1)[0])
    words = assignment.to_words(tables.decisions)
    old = Words(
        words.operators,
        words.tensors,
        words.parameters,
        frozenset({("y", "z", -1), ("y", "", 0)}),
        {},
    )
    read = Assignment.from_words(tables.decisions, tables.model.mesh, 1, old)
    assert read.regathered == {("y", 1, 0), ("y", 1, 1), ("y", 1, 2), ("y", None, 0)}
