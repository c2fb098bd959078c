"""Strategies built from assignments: descriptions, costs, and what is large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tensoropt import examples
from tensoropt.cluster import Cluster
from tensoropt.cost import MemoryCalibration, Optimizer, Precision
from tensoropt.cost.assignment import Assignment, Words
from tensoropt.cost.liveness import replay
from tensoropt.cost.model import CostModel
from tensoropt.cost.program import build_program
from tensoropt.cost.schedule import iteration_time
from tensoropt.cost.tables import Tables
from tensoropt.graph import Graph
from tensoropt.schemes import named_schemes
from tensoropt.search.strategies import StrategyBuilder
from tensoropt.sharding.decisions import decisions
from tensoropt.sharding.dims import dim_classes, micro_batch

SMALL: dict[str, Any] = {"batch_size": 16, "sequence_length": 64, "layers": 2}
CALIBRATION = MemoryCalibration(fixed_bytes=1e9, scale=1.1)


def builder(
    graph: Graph, cluster: str = "8xA100-SXM-80GB", mesh: int = 1, m: int = 1
) -> tuple[StrategyBuilder, dict[str, Assignment]]:
    whole = Cluster.parse(cluster)
    model = CostModel(
        whole, whole.meshes()[mesh], Precision.named("bf16"), Optimizer.named("adamw"), m
    )
    tables = Tables(model, decisions(micro_batch(graph, m)), recomputable=True)
    schemes = dict(named_schemes(tables, recompute=(False,)))
    found = StrategyBuilder(graph, tables, dim_classes(graph), CALIBRATION, ["assumed"])
    return found, schemes


def gpt() -> Graph:
    return examples.named("gpt2", heads=8, hidden=512, **SMALL)


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        ("tensor parallel 2 x data 4", "data 4 x tensor 2"),
        ("tensor parallel 4 x data 2, ZeRO-1", "data 2 x tensor 4, ZeRO-1 on a0"),
        ("tensor parallel 4 x data 2 with sequence parallel", "data 2 x tensor+sequence 4"),
    ],
)
def test_descriptions_of_named_schemes(scheme: str, text: str) -> None:
    found, schemes = builder(gpt())
    assert found.describe(schemes[scheme]) == text


def test_descriptions_merge_axes_used_alike() -> None:
    found, schemes = builder(gpt(), "2x4xA100-SXM-80GB", 0)
    assert found.describe(schemes["ZeRO-3"]) == "data 8, ZeRO-3 on a0+a1"
    assert found.describe(schemes["tensor parallel 8"]) == "tensor 8"


def test_descriptions_say_what_is_recomputed_and_cut() -> None:
    found, schemes = builder(gpt(), m=2)
    some = replace(schemes["tensor parallel 2 x data 4"], recompute=(True, False))
    assert found.describe(some) == ("data 4 x tensor 2, recompute 1/2 blocks, 2 micro-batches")


def test_one_device() -> None:
    found, schemes = builder(gpt(), "1xA100-SXM-80GB", 0)
    assert found.describe(schemes["data parallel"]) == "single device"


def test_experts_are_named() -> None:
    graph = examples.named("mixtral-8x7b", **SMALL)
    found, schemes = builder(graph, mesh=0)
    text = found.describe(schemes["data parallel with expert parallel"])
    assert text == "data+experts 8"


def test_strategy_says_what_the_parts_say() -> None:
    graph = gpt()
    found, schemes = builder(graph, m=2)
    assignment = replace(schemes["tensor parallel 4 x data 2, ZeRO-1"], recompute=(True, True))
    strategy = found.strategy(assignment, scheme="mine", notes=["said", "assumed"])
    sums = found.evaluate(assignment)
    program = build_program(found.parts, assignment)
    costs = strategy.costs
    assert costs.time_s == sums.time_s
    assert costs.memory_bound_bytes == pytest.approx(sums.bound_bytes, abs=1)
    assert costs.memory_peak_bytes == pytest.approx(replay(program).peak_bytes, abs=1)
    assert costs.memory_peak_bytes <= costs.memory_bound_bytes
    assert costs.device_bytes == pytest.approx(1e9 + 1.1 * costs.memory_bound_bytes, abs=1)
    assert costs.simulated_time_s == pytest.approx(
        iteration_time(program, found.tables.model), rel=1e-7
    )
    parts = costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes
    assert parts + costs.saved_bytes + costs.transient_bytes == pytest.approx(
        costs.memory_bound_bytes, abs=5
    )
    sent = sum(c.seconds for c in strategy.collectives)
    assert sent == pytest.approx(costs.communication_s)
    assert (strategy.scheme, strategy.notes) == ("mine", ("assumed", "said"))
    assert strategy.matches(graph)
    assert strategy.batch_size == 16
    assert strategy.micro_batches == 2
    assert strategy.recompute == {"layers.0": True, "layers.1": True}
    sizes = [entry.nbytes for entry in strategy.largest]
    assert sizes == sorted(sizes, reverse=True)
    assert strategy.largest[0].name in ("embeddings.token.weight", "loss")


def test_strategy_and_assignment_are_one() -> None:
    """All that a strategy says leads back to the assignment that it was made from."""
    found, schemes = builder(gpt())
    for assignment in schemes.values():
        s = found.strategy(assignment)
        words = Words(
            dict(s.operators),
            dict(s.tensors),
            {name: (p.layout, p.scheme, p.axes) for name, p in s.parameters.items()},
            s.regathered,
            dict(s.recompute),
        )
        decided = found.tables.decisions
        assert Assignment.from_words(decided, s.mesh, s.micro_batches, words) == assignment
