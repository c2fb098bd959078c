"""Meshes with too many layouts are searched in part, honestly."""

from __future__ import annotations

import numpy as np
import pytest

import tensoropt as to
from tensoropt.frontier import Frontier

CLUSTER = to.Cluster.parse("2x4xA100-SXM-80GB")


def model() -> to.Graph:
    return to.examples.transformer(
        layers=2, hidden=256, heads=8, vocabulary=512, sequence_length=64, batch_size=16
    )


def searched(**options: object) -> Frontier:
    options = {"micro_batches": 1, "recompute": "none", "epsilon": 0.01, **options}
    return to.search(model(), CLUSTER, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def frontier() -> Frontier:
    return searched()


def test_the_mesh_of_three_axes_is_searched_and_the_result_says_how(frontier: Frontier) -> None:
    [note] = [note for note in frontier.notes if "too many layouts" in note]
    assert note.startswith("on mesh 2x2x2 ")
    assert "nothing is proven about the rest" in note


def test_more_axes_are_never_worse(frontier: Frontier) -> None:
    fewer = searched(max_axes=2)
    assert not any("too many layouts" in note for note in fewer.notes)
    time = np.array([point.costs.time_s for point in frontier])
    memory = np.array([point.costs.device_bytes for point in frontier], float)
    slack = frontier.factor
    for point in fewer:
        covered = (time <= point.costs.time_s * slack) & (
            memory <= point.costs.device_bytes * slack
        )
        assert covered.any()


def test_without_other_meshes_named_schemes_show_the_way() -> None:
    mesh = CLUSTER.meshes()[-1]
    alone = searched(meshes=[mesh])
    assert {str(point.mesh) for point in alone} == {str(mesh)}
    for point in alone:
        assert point.costs.memory_peak_bytes <= point.costs.memory_bound_bytes
    # Strategies are not kept, so those that were looked at above are built again.
    again = searched(meshes=[mesh], threads=1)
    assert [point.to_dict() for point in again] == [point.to_dict() for point in alone]
