"""Sizes that devices do not divide, and meshes that were left out, are said."""

from __future__ import annotations

import pytest

import tensoropt as to
from tensoropt.cluster import Cluster
from tensoropt.search.remarks import division_remarks, mesh_remark, rule_remarks
from tensoropt.sharding.decisions import decisions


def remarks(cluster: str, batch_size: int = 16, **sizes: int) -> tuple[str, ...]:
    graph = to.examples.transformer(
        layers=1, sequence_length=32, batch_size=batch_size, **{"vocabulary": 128, **sizes}
    )
    return division_remarks(decisions(graph), batch_size, Cluster.parse(cluster).meshes(2))


def test_what_divides_is_not_worth_a_word() -> None:
    assert remarks("8xA100-SXM-80GB", hidden=64, heads=8) == ()


def test_heads_and_vocabulary_that_do_not_divide() -> None:
    texts = remarks("8xA100-SXM-80GB", hidden=60, heads=5, vocabulary=127)
    [heads] = [text for text in texts if text.startswith("5 heads of")]
    [vocabulary] = [text for text in texts if text.startswith("127 entries of")]
    assert heads.endswith("cannot be split over 2, 4 or 8 devices, and are not")
    assert "are padded where 2, 4 or 8 devices share them" in vocabulary


@pytest.mark.parametrize(("batch", "ways"), [(7, "2, 4 or 8"), (12, "8")])
def test_a_batch_that_does_not_divide(batch: int, ways: str) -> None:
    [text] = remarks("8xA100-SXM-80GB", batch_size=batch, hidden=64, heads=8)
    assert text.startswith(f"a batch of {batch} cannot be split over {ways} devices")
    assert text.endswith("take a multiple of 8")


def test_remarks_reach_the_frontier() -> None:
    graph = to.examples.transformer(
        layers=1, hidden=64, heads=8, vocabulary=128, sequence_length=32, batch_size=12
    )
    cluster = Cluster.parse("8xL4")
    frontier = to.search(graph, cluster, micro_batches=1, recompute="none", max_axes=2)
    assert any("a batch of 12 cannot be split over 8" in note for note in frontier.notes)
    assert any("max_axes=3 adds those of more axes (2x2x2)" in note for note in frontier.notes)


def test_nothing_is_said_of_meshes_if_all_were_searched() -> None:
    meshes = Cluster.parse("8xL4").meshes()
    assert mesh_remark(meshes, meshes) == ()
    assert mesh_remark(meshes[:2], meshes) != ()
    # The user's own choice.
    assert mesh_remark(meshes[1:], meshes) == ()


def test_what_rules_assume_is_said_once_and_reaches_the_reports() -> None:
    graph = to.examples.transformer(
        layers=2, hidden=32, heads=4, vocabulary=32, sequence_length=8, batch_size=4
    )
    [causal] = rule_remarks(decisions(graph))
    assert "sharded over queries" in causal
    frontier = to.search(graph, Cluster.parse("2xA100-SXM-80GB"), micro_batches=1)
    assert frontier.notes.count(causal) == 1
    assert causal in frontier[0].explain()
