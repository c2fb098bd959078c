"""The search's tables, added up at any choice, are what the scalar evaluation says.

Two readings of the same contract: arrays over all configurations against plain arithmetic on one.
Random legal choices on example networks of every family and all named schemes, meshes of one to
three axes, with and without micro-batches and recomputation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from random_choices import random_choice, table_costs
from tensoropt import examples
from tensoropt.cluster import Cluster
from tensoropt.cost import Optimizer, Precision
from tensoropt.cost.assignment import Assignment, from_tables, to_tables
from tensoropt.cost.evaluate import Evaluation, evaluate
from tensoropt.cost.liveness import replay
from tensoropt.cost.model import CostModel
from tensoropt.cost.parts import Parts
from tensoropt.cost.program import build_program
from tensoropt.cost.tables import Tables
from tensoropt.schemes import named_schemes
from tensoropt.sharding.decisions import decisions
from tensoropt.sharding.dims import micro_batch

SMALL = {"batch_size": 8, "sequence_length": 64, "layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": SMALL,  # tied embedding, padded vocabulary
    "llama-3-8b": SMALL,  # rotary positions, grouped queries
    "bert-base": SMALL,  # post-norm, dropout
    "mixtral-8x7b": SMALL,  # experts
    "vit-b": {"batch_size": 8, "layers": 2},
    "resnet-18": {"batch_size": 8},
    "unet": {"batch_size": 8},
    "lstm": {"batch_size": 8, "sequence_length": 16},
}
CLUSTERS = ["4xA100-SXM-80GB", "2x2xH100-SXM-80GB"]


def build(name: str, cluster: str, mesh: int, m: int, recomputable: bool) -> tuple[Tables, Parts]:
    whole = Cluster.parse(cluster)
    graph = micro_batch(examples.named(name, **MODELS[name]), m)
    chosen = whole.meshes()[mesh]
    model = CostModel(whole, chosen, Precision.named("bf16"), Optimizer.named("adamw"), m)
    found = decisions(graph)
    return (
        Tables(model, found, recomputable=recomputable),
        Parts(model, found, recomputable=recomputable),
    )


def assert_equal(tables: Tables, parts: Parts, rng: np.random.Generator, redo: float) -> None:
    choice = random_choice(tables, rng, redo)
    assignment = from_tables(tables, *choice)
    time, resident, transient = table_costs(tables, choice)
    found = evaluate(parts, tables.decisions, assignment)
    assert found.time_s == pytest.approx(time, rel=1e-9)
    assert found.resident_bytes == pytest.approx(resident, rel=1e-9)
    assert found.transient_bytes == pytest.approx(transient, rel=1e-9)
    # What is gathered twice by the tables may turn out not to be needed the second time.
    assert_replayed(parts, assignment, found, least=0.95)


def assert_replayed(
    parts: Parts, assignment: Assignment, found: Evaluation, least: float = 1.0
) -> None:
    """The program does the work that was priced, and its memory stays below the bound."""
    program = build_program(parts, assignment)
    busy = sum(
        event.seconds * (program.micro_batches if event.when == "every" else 1)
        for event in program.events
    )
    priced = found.compute_s + found.communication_s
    assert least * priced * (1 - 1e-9) <= busy <= priced * (1 + 1e-9)
    assert 0.5 * found.bound_bytes < replay(program).peak_bytes <= found.bound_bytes


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", MODELS)
def test_random_choices(name: str, cluster: str, m: int) -> None:
    rng = np.random.default_rng([m, len(name), CLUSTERS.index(cluster)])
    redo = 0.5 if (cluster == CLUSTERS[0]) == (m == 1) else 0.0
    tables, parts = build(name, cluster, -1, m, redo > 0)
    for _ in range(3):
        assert_equal(tables, parts, rng, redo)


@pytest.mark.parametrize("name", MODELS)
def test_named_schemes_are_points_of_the_space(name: str) -> None:
    """Every named scheme is found in the tables, which say of it what evaluation says."""
    for mesh in (0, 1):
        tables, parts = build(name, CLUSTERS[0], mesh, 2, True)
        schemes = named_schemes(tables)
        assert {"tensor parallel 2 x data 2", "ZeRO-3"} & {title for title, _ in schemes}
        for title, assignment in schemes:
            nodes, links = to_tables(tables, assignment)
            costs = table_costs(tables, (nodes, links, list(assignment.recompute)))
            found = evaluate(parts, tables.decisions, assignment)
            got = (found.time_s, found.resident_bytes, found.transient_bytes)
            assert got == pytest.approx(costs, rel=1e-9), title
            assert_replayed(parts, assignment, found)


def test_three_axes() -> None:
    rng = np.random.default_rng(3)
    tables, parts = build("gpt2", "2x4xH100-SXM-80GB", -1, 2, True)
    assert len(tables.model.mesh_shape) == 3
    for _ in range(5):
        assert_equal(tables, parts, rng, 0.5)


def test_a_wrong_entry_is_seen() -> None:
    """The comparison can fail: a table that is off by one byte is not equal."""
    rng = np.random.default_rng(0)
    tables, parts = build("gpt2", "4xA100-SXM-80GB", 0, 1, False)
    choice = random_choice(tables, rng)
    _, resident, _ = table_costs(tables, choice)
    found = evaluate(parts, tables.decisions, from_tables(tables, *choice))
    assert found.resident_bytes == resident
    tables.link(next(iter(choice[1]))).costs[..., 2] += 1.0
    assert found.resident_bytes != table_costs(tables, choice)[1]


@pytest.mark.parametrize("name", ["gpt2", "mixtral-8x7b"])
def test_words_hold_everything(name: str) -> None:
    """Saved as words and read back, a choice is the same, in assignment and in table entries."""
    rng = np.random.default_rng(1)
    tables, _ = build(name, "2x4xH100-SXM-80GB", 0, 2, True)
    for _ in range(3):
        choice = random_choice(tables, rng, 0.5)
        assignment = from_tables(tables, *choice)
        words = assignment.to_words(tables.decisions)
        mesh = tables.model.mesh
        again = Assignment.from_words(tables.decisions, mesh, 2, words)
        assert again == assignment
        nodes, links = to_tables(tables, again)
        assert nodes == choice[0]
        assert from_tables(tables, nodes, links, choice[2]) == assignment
