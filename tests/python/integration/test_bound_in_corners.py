"""The bound on memory covers the replay where memory is easily forgotten.

Views between a tensor and who keeps it, gathers behind gathers, weights that are gathered ahead
beside small operators, parameters that are read in several layouts, pending sums that wait: on
small graphs with nothing else that would hide a gap. Choices climb to where the replayed peak comes
nearest to its bound.
"""

from __future__ import annotations

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
from tensoropt.sharding.decisions import decisions
from tensoropt.sharding.dims import micro_batch


def prepare(name: str, mesh: int, m: int) -> tuple[Tables, Parts]:
    cluster = to.Cluster.parse("2x2xA100-SXM-80GB")
    chosen = cluster.meshes(2)[mesh]
    model = CostModel(cluster, chosen, Precision.named("bf16"), Optimizer.named("sgd"), m)
    found = decisions(micro_batch(GRAPHS[name](), m))
    return Tables(model, found), Parts(model, found)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_climbing_to_the_bound(name: str, m: int) -> None:
    for number in range(len(to.Cluster.parse("2x2xA100-SXM-80GB").meshes(2))):
        tables, parts = prepare(name, number, m)

        def height(choice: Choice, tables: Tables = tables, parts: Parts = parts) -> float:
            assignment = from_tables(tables, *choice)
            result = evaluate(parts, tables.decisions, assignment)
            costs = (result.time_s, result.resident_bytes, result.transient_bytes)
            assert costs == pytest.approx(table_costs(tables, choice), rel=1e-9)
            return replay(build_program(parts, assignment)).peak_bytes / result.bound_bytes

        rng = np.random.default_rng([m, number, *name.encode()])
        for _ in range(3):
            heights = [h for _, h in climb(tables, rng, 80, height)]
            assert max(heights) <= 1.0 + 1e-12
            assert max(heights) > 0.6


def test_a_gather_behind_a_gather_keeps_the_first_shard_only() -> None:
    """Gathered again, it is gathered from what is itself gathered again."""
    tables, parts = prepare("chain of views", -1, 1)
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
