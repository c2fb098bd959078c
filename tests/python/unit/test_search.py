"""The search as a whole, on models small enough to look at from every side."""

from __future__ import annotations

import numpy as np
import pytest

import tensoropt as to
from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.search.skyline import covered_within, skyline, thinned


def small(layers: int = 2, batch: int = 4) -> to.Graph:
    return to.examples.transformer(
        layers=layers, hidden=64, heads=4, vocabulary=128, sequence_length=32, batch_size=batch
    )


@pytest.fixture(scope="module")
def found() -> to.Frontier:
    return to.search(small(), to.Cluster.parse("4xA100-SXM-80GB"), max_axes=1, micro_batches=[1, 2])


def test_the_frontier_is_a_staircase_with_a_proven_factor(found: to.Frontier) -> None:
    assert np.all(np.diff(found.costs.time_s) > 0)
    assert np.all(np.diff(found.costs.memory_bound_bytes) < 0)
    assert found.status in ("optimal", "epsilon")
    assert 1.0 <= found.factor < 2.0


def test_every_strategy_costs_what_the_frontier_says(found: to.Frontier) -> None:
    # The evaluation of a strategy is code of its own, apart from the search's tables.
    for index in {0, len(found) // 2, len(found) - 1}:
        strategy = found[index]
        assert strategy.costs.time_s == pytest.approx(found.costs.time_s[index], rel=1e-9)
        assert strategy.costs.memory_bound_bytes == pytest.approx(
            found.costs.memory_bound_bytes[index], abs=2
        )


def test_no_named_scheme_beats_the_frontier(found: to.Frontier) -> None:
    assert {"data parallel", "ZeRO-3", "tensor parallel 4"} <= {s.scheme for s in found.schemes}
    for scheme in found.schemes:
        covered = (found.costs.time_s <= scheme.costs.time_s) & (
            found.costs.memory_bound_bytes <= scheme.costs.memory_bound_bytes
        )
        assert covered.any(), scheme.scheme


def test_the_result_does_not_depend_on_threads() -> None:
    cluster = to.Cluster.parse("2xA100-SXM-80GB")
    one, two = (to.search(small(), cluster, micro_batches=1, threads=n) for n in (1, 2))
    assert one.costs.time_s.tolist() == two.costs.time_s.tolist()
    assert [s.operators for s in one] == [s.operators for s in two]


def test_one_device_has_a_frontier() -> None:
    frontier = to.search(small(), to.Cluster.parse("A100-SXM-80GB"), micro_batches=1)
    assert not [c for s in frontier for c in s.collectives]


def test_a_cap_keeps_what_fits_and_names_what_does_not() -> None:
    cluster = to.Cluster.parse("2xA100-SXM-80GB")
    free = to.search(small(), cluster, micro_batches=1)
    middle = float(free.costs.device_bytes[len(free) // 2])
    capped = to.search(small(), cluster, micro_batches=1, memory_bytes=middle)
    assert capped.costs.device_bytes.max() <= middle
    with pytest.raises(InfeasibleError, match="least feasible device total") as error:
        to.search(small(), cluster, micro_batches=1, memory_bytes=1e9)
    assert error.value.least is not None
    assert error.value.least > 1e9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batches": 3}, "divide the batch of 4"),
        ({"micro_batches": "all"}, "expected a number"),
        ({"recompute": "some"}, "recompute is 'some'"),
        ({"epsilon": -1.0}, "epsilon is -1.0"),
        ({"memory_bytes": 0.0}, "memory_bytes is 0.0"),
        ({"threads": 0}, "threads is 0, expected an integer from 1 to 1024"),
        ({"threads": 1025}, "threads is 1025, expected an integer from 1 to 1024"),
        ({"meshes": []}, "meshes is empty"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        to.search(small(), to.Cluster.parse("2xA100-SXM-80GB"), **options)  # type: ignore[arg-type]


def test_the_skyline_is_what_a_quadratic_filter_leaves() -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        points = rng.integers(0, 12, (40, 2)).astype(float)
        kept = points[skyline(points[:, 0], points[:, 1])]
        naive = {
            tuple(p) for p in points if not any((q <= p).all() and (q < p).any() for q in points)
        }
        assert {tuple(p) for p in kept} == naive
        assert len(kept) == len(naive)


def test_thinning_covers_everything_within_its_tolerance() -> None:
    rng = np.random.default_rng(8)
    time = np.cumsum(rng.uniform(0.001, 0.02, 500)) + 1.0
    memory = np.cumsum(rng.uniform(0.001, 0.02, 500))[::-1] + 1.0
    kept = thinned(time, memory, 0.01)
    assert len(kept) < 400
    assert covered_within(time, memory, time[kept], memory[kept]) <= 1.01
    assert thinned(time, memory, 0.0).tolist() == list(range(500))


def test_more_micro_batches_of_a_recurrent_model_take_longer() -> None:
    """Each has as many steps that wait for each other, and each step reads the weights."""
    graph = to.examples.named("lstm", batch_size=64, sequence_length=32)
    cluster = to.Cluster.parse("1xA100-SXM-80GB")
    few, many = (
        to.search(graph, cluster, micro_batches=m, recompute="none").fastest().costs.compute_s
        for m in (1, 8)
    )
    assert many > 2 * few
