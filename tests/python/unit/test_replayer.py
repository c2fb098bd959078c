"""Replays strung together from shared stretches say what replays of whole programs say."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from random_choices import random_choice
from tensoropt import examples
from tensoropt.cluster import Cluster
from tensoropt.cost import Optimizer, Precision, replayer
from tensoropt.cost.assignment import Assignment, from_tables
from tensoropt.cost.events import Program
from tensoropt.cost.liveness import replay
from tensoropt.cost.model import CostModel
from tensoropt.cost.parts import Parts
from tensoropt.cost.program import build_program
from tensoropt.cost.replayer import Replayer
from tensoropt.cost.schedule import iteration_time
from tensoropt.cost.tables import Tables
from tensoropt.schemes import named_schemes
from tensoropt.sharding.decisions import decisions
from tensoropt.sharding.dims import micro_batch

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"layers": 6, "sequence_length": 64},
    "llama-3-8b": {"layers": 9, "sequence_length": 64},
    "bert-base": {"layers": 9, "sequence_length": 64},
    "mixtral-8x7b": {"layers": 8, "sequence_length": 64},
    "resnet-18": {},
    "lstm": {"sequence_length": 16},
}


def prepare(name: str, cluster: str, m: int) -> tuple[Tables, Parts]:
    whole = Cluster.parse(cluster)
    graph = micro_batch(examples.named(name, batch_size=16, **MODELS[name]), m)
    model = CostModel(
        whole, whole.meshes()[-1], Precision.named("bf16"), Optimizer.named("adamw"), m
    )
    tables = Tables(model, decisions(graph), recomputable=True)
    return tables, Parts(model, tables.decisions, recomputable=True)


def assert_same(replayer: Replayer, assignment: Assignment) -> None:
    parts = replayer.parts
    program = build_program(parts, assignment)
    peak, seconds = replayer.peak_and_time(assignment)
    assert peak == pytest.approx(replay(program).peak_bytes, rel=1e-9)
    # Times of a backlog are rounded to picoseconds.
    assert seconds == pytest.approx(iteration_time(program, parts.model), rel=1e-7)


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_schemes_with_any_blocks_recomputed(name: str, m: int) -> None:
    tables, parts = prepare(name, "2x2xH100-SXM-80GB", m)
    rng = np.random.default_rng(m)
    shared = Replayer(parts)
    for _, assignment in named_schemes(tables, recompute=(False,)):
        blocks = len(assignment.recompute)
        for share in (0.0, 0.5, 1.0):
            redo = tuple(bool(flag) for flag in rng.random(blocks) < share)
            assert_same(shared, replace(assignment, recompute=redo))
    assert shared.regular


def test_random_choices() -> None:
    tables, parts = prepare("gpt2", "2x2xH100-SXM-80GB", 1)
    rng = np.random.default_rng(0)
    shared = Replayer(parts)
    for _ in range(6):
        assert_same(shared, from_tables(tables, *random_choice(tables, rng, 0.5)))


def test_known_stretches_are_not_walked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, parts = prepare("gpt2", "4xA100-SXM-80GB", 2)
    built: list[Assignment] = []

    def counted(parts: Parts, assignment: Assignment, passed_over: Collection[int]) -> Program:
        built.append(assignment)
        return build_program(parts, assignment, passed_over)

    monkeypatch.setattr(replayer, "build_program", counted)
    shared = Replayer(parts)
    assignment = dict(named_schemes(tables, recompute=(False,)))["tensor parallel 2 x data 2"]
    flags = [(True, True, True, False, False, False), (True, True, False, False, False, False)]
    first = shared.peak_and_time(replace(assignment, recompute=flags[0]))
    assert len(built) == 1
    assert shared.peak_and_time(replace(assignment, recompute=flags[0])) == first
    # Another border between recomputed and other blocks, but the same neighbourhoods.
    second = shared.peak_and_time(replace(assignment, recompute=flags[1]))
    assert len(built) == 1
    assert second[1] < first[1]


def test_only_what_is_new_is_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, parts = prepare("llama-3-8b", "4xA100-SXM-80GB", 1)
    _, assignment = named_schemes(tables, recompute=(False,))[0]
    walked: list[Program] = []

    def watched(parts: Parts, assignment: Assignment, passed_over: Collection[int]) -> Program:
        walked.append(build_program(parts, assignment, passed_over))
        return walked[-1]

    monkeypatch.setattr(replayer, "build_program", watched)
    monkeypatch.setattr(replayer, "WHOLE", 1)
    shared = Replayer(parts)
    assert_same(shared, assignment)
    assert_same(shared, replace(assignment, recompute=(True, *assignment.recompute[1:])))
    whole, part = (len(program.events) for program in walked)
    assert part < 0.8 * whole
    assert len(walked[0].marks) == len(walked[1].marks)


def test_stretches_that_only_look_alike_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should templates ever differ, every program is replayed by itself, and rightly."""
    tables, parts = prepare("gpt2", "4xA100-SXM-80GB", 1)
    shared = Replayer(parts)
    monkeypatch.setattr(Replayer, "_keys", lambda self, a: [0] * len(self._row) or [-1])
    for _, assignment in named_schemes(tables)[:3]:
        assert_same(shared, assignment)
    assert not shared.regular
