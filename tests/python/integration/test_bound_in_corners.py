"""The bound on memory covers the replay where memory is easily forgotten.

Views between a tensor and who keeps it, gathers behind gathers, weights that are gathered ahead
beside small operators, parameters that are read in several layouts, pending sums that wait: on
small graphs with nothing else that would hide a gap. Choices climb to where the replayed peak comes
nearest to its bound.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tensoropt as to
from corner_graphs import GRAPHS, climb
from random_choices import Choice, random_choice, table_costs
from tensoropt.cost.assignment import from_tables
from tensoropt.cost.evaluate import evaluate
from tensoropt.cost.liveness import replay
from tensoropt.cost.model import CostModel
from tensoropt.cost.parts import Parts
from tensoropt.cost.precision import Optimizer, Precision
from tensoropt.cost.program import build_program
from tensoropt.cost.tables import Tables
from tensoropt.graph import Block
from tensoropt.sharding.decisions import decisions
from tensoropt.sharding.dims import micro_batch

MESHES = to.Cluster.parse("2x2xA100-SXM-80GB").meshes(2)


def prepare(graph: to.Graph, mesh: int, m: int, redo: bool = False) -> tuple[Tables, Parts]:
    cluster = to.Cluster.parse("2x2xA100-SXM-80GB")
    optimizer = Optimizer.named("sgd")
    model = CostModel(cluster, MESHES[mesh], Precision.named("bf16"), optimizer, m)
    found = decisions(micro_batch(graph, m))
    return Tables(model, found, recomputable=redo), Parts(model, found, recomputable=redo)


def heights(tables: Tables, parts: Parts, seed: list[int], steps: int, redo: float) -> list[float]:
    """Replayed peaks over bounds along a climb; costs are read twice, and must agree."""

    def height(choice: Choice) -> float:
        assignment = from_tables(tables, *choice)
        result = evaluate(parts, tables.decisions, assignment)
        costs = (result.time_s, result.resident_bytes, result.transient_bytes)
        assert costs == pytest.approx(table_costs(tables, choice), rel=1e-9)
        return replay(build_program(parts, assignment)).peak_bytes / result.bound_bytes

    rng = np.random.default_rng(seed)
    return [found for _, found in climb(tables, rng, steps, height, redo)]


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_climbing_to_the_bound(name: str, m: int) -> None:
    for mesh in range(len(MESHES)):
        tables, parts = prepare(GRAPHS[name](), mesh, m)
        for number in range(3):
            found = heights(tables, parts, [number, m, mesh, *name.encode()], 80, 0.0)
            assert 0.6 < max(found) <= 1.0 + 1e-12


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_climbing_with_a_block_that_may_be_recomputed(name: str, m: int) -> None:
    """All but the first operator and the last two: nobody keeps what the block makes."""
    graph = GRAPHS[name]()
    graph = replace(graph, blocks=(Block("b", 1, max(len(graph.operators) - 2, 2), 0),))
    for mesh in range(len(MESHES)):
        tables, parts = prepare(graph, mesh, m, True)
        found = heights(tables, parts, [m, mesh, *name.encode()], 80, 0.7)
        assert 0.5 < max(found) <= 1.0 + 1e-12


def test_a_gather_behind_a_gather_keeps_the_first_shard_only() -> None:
    """Gathered again, it is gathered from what is itself gathered again."""
    tables, parts = prepare(GRAPHS["chain of views"](), -1, 1)
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(2000):
        assignment = from_tables(tables, *random_choice(tables, rng))
        if not {("linear1", 1, 0), ("view2", 2, 0)} <= assignment.regathered:
            continue
        seen += 1
        program = build_program(parts, assignment)
        turn = next(i for i, event in enumerate(program.events) if event.phase == "backward")
        kept = sum(
            buffer.nbytes
            for buffer in program.buffers
            if buffer.part == "activation"
            and buffer.name in ("linear1", "view2")
            and buffer.start < turn - 1 < turn < buffer.stop
        )
        whole = tables.graph.tensors["linear1"].size * 2
        assert kept == whole / 4
    assert seen
