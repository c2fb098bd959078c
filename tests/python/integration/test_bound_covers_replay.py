"""The bound on memory covers the replay of every strategy, and the fast replay is the plain one.

A search finds strategies whose bound is as small as it can be, so it also finds whatever the bound
forgets. The models here have small heads, and gradients of micro-batches take no room that was
reserved for them: nothing hides what is forgotten inside the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import tensoropt as to
from random_choices import random_choice
from tensoropt import examples
from tensoropt.cost.assignment import Assignment, Words, from_tables
from tensoropt.cost.evaluate import evaluate
from tensoropt.cost.liveness import replay
from tensoropt.cost.model import CostModel
from tensoropt.cost.parts import Parts
from tensoropt.cost.precision import Optimizer, Precision
from tensoropt.cost.program import build_program
from tensoropt.cost.replayer import Replayer
from tensoropt.cost.tables import Tables
from tensoropt.sharding.decisions import decisions
from tensoropt.sharding.dims import micro_batch

BATCH = {"batch_size": 8}
TOKENS = {"layers": 2, "hidden": 64, "heads": 8, "vocabulary": 8, "sequence_length": 32, **BATCH}
EXPERTS = {"experts": 4, "intermediate": 32}
IMAGES = {"image": 32, **BATCH}

MODELS: dict[str, Callable[[], to.Graph]] = {
    "tied": lambda: examples.transformer(**TOKENS),
    "untied": lambda: examples.transformer(**TOKENS, tied=False),
    # Residuals far wider than what the branches keep, heads far narrower.
    "narrow": lambda: examples.transformer(**{**TOKENS, "sequence_length": 128}, intermediate=16),
    "grouped": lambda: examples.transformer(
        **TOKENS, kv_heads=2, activation="swiglu", norm="rms", positions="rotary"
    ),
    "encoder": lambda: examples.encoder(**TOKENS),
    "experts": lambda: examples.mixture_of_experts(**TOKENS, **EXPERTS),
    "lstm": lambda: examples.lstm_language_model(
        layers=2, hidden=64, vocabulary=8, sequence_length=4, **BATCH
    ),
    "resnet": lambda: examples.resnet(depth=18, classes=8, **IMAGES),
    "large images": lambda: examples.resnet(depth=18, classes=8, batch_size=8, image=96),
    "unet": lambda: examples.unet(base=8, levels=2, **IMAGES),
}
EIGHT = ("narrow", "untied")
"""Searched on eight devices, where shards are smaller beside what is whole."""


def cluster_of(model: str) -> to.Cluster:
    return to.Cluster.parse("8xA100-SXM-80GB" if model in EIGHT else "4xA100-SXM-80GB")


def tables_of(
    graph: to.Graph, cluster: to.Cluster, mesh: to.Mesh, m: int, redo: bool
) -> tuple[Tables, Parts]:
    model = CostModel(cluster, mesh, Precision.named("bf16"), Optimizer.named("sgd"), m)
    found = decisions(micro_batch(graph, m))
    return Tables(model, found, recomputable=redo), Parts(model, found, recomputable=redo)


def assert_covered(
    model: str, axes: int, recompute: str, micro_batches: Sequence[int] = (1, 2)
) -> None:
    """Search; look at the peak of all points, and at whole programs of some."""
    graph, cluster = MODELS[model](), cluster_of(model)
    frontier = to.search(
        graph,
        cluster,
        optimizer="sgd",
        max_axes=axes,
        micro_batches=micro_batches,
        recompute=recompute,
    )
    strategies = [*frontier, *frontier.schemes]
    for strategy in strategies:
        costs = strategy.costs
        assert costs.memory_peak_bytes <= costs.memory_bound_bytes, strategy.description
    known: dict[tuple[to.Mesh, int], Parts] = {}
    for strategy in strategies[:: max(len(strategies) // 12, 1)]:
        m = strategy.micro_batches
        parts = known.get((strategy.mesh, m))
        if parts is None:
            _, parts = tables_of(graph, cluster, strategy.mesh, m, recompute != "none")
            known[strategy.mesh, m] = parts
        whole = replay(build_program(parts, assignment_of(strategy, parts)))
        assert math.ceil(whole.peak_bytes) == strategy.costs.memory_peak_bytes


def assignment_of(strategy: to.Strategy, parts: Parts) -> Assignment:
    words = Words(
        dict(strategy.operators),
        dict(strategy.tensors),
        {n: (p.layout, p.scheme, p.axes) for n, p in strategy.parameters.items()},
        frozenset(strategy.regathered),
        dict(strategy.recompute),
    )
    return Assignment.from_words(parts.decisions, strategy.mesh, strategy.micro_batches, words)


# A U-Net has no repeated blocks.
CASES = [(model, redo) for model in MODELS if model != "unet" for redo in ("full", "sweep")]


@pytest.mark.parametrize(("model", "recompute"), [*((model, "none") for model in MODELS), *CASES])
def test_every_point_of_a_frontier(model: str, recompute: str) -> None:
    assert_covered(model, 1, recompute)


@pytest.mark.parametrize("model", ["untied", "lstm"])
def test_every_point_of_a_frontier_on_two_axes(model: str) -> None:
    assert_covered(model, 2, "sweep")


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_random_assignments(model: str, m: int) -> None:
    graph, cluster = MODELS[model](), to.Cluster.parse("4xA100-SXM-80GB")
    for number, mesh in enumerate(cluster.meshes(2)):
        tables, parts = tables_of(graph, cluster, mesh, m, True)
        rng = np.random.default_rng([m, number, *model.encode()])
        shared = Replayer(parts)
        for share in (0.0, 0.5, 1.0) * 3:
            assignment = from_tables(tables, *random_choice(tables, rng, share))
            found = evaluate(parts, tables.decisions, assignment)
            peak = replay(build_program(parts, assignment)).peak_bytes
            assert peak <= found.bound_bytes
            assert shared.peak_and_time(assignment)[0] == pytest.approx(peak, rel=1e-9)
