"""What axes are used for, and which rows over more axes follow from it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tensoropt.cluster import Cluster
from tensoropt.cost.axis_uses import Among, Uses
from tensoropt.cost.model import CostModel
from tensoropt.cost.precision import Optimizer, Precision
from tensoropt.cost.tables import Tables
from tensoropt.examples import transformer
from tensoropt.search.narrowing import too_many
from tensoropt.sharding.decisions import decisions


def rows(
    uses: Uses[str], known: Uses[str], values: str, axes: int, least_share: float = 0.0
) -> set[str]:
    allowed = uses.allowed("op", known, least_share)
    every = itertools.product(values, repeat=axes)
    return {"".join(row) for row in every if allowed(row)}


def test_of_whom_nothing_is_known_everything_is_allowed() -> None:
    assert len(rows(Uses(), Uses(), "bsh", 3)) == 27


def test_one_axis_tells_values() -> None:
    uses: Uses[str] = Uses()
    uses.add([("op", "b", 5), ("op", "h", 1), ("other", "s", 9)])
    assert rows(uses, Uses(), "bsh", 2) == {"bb", "bh", "hb", "hh"}


def test_two_axes_tell_what_goes_together_and_in_which_order() -> None:
    uses: Uses[str] = Uses()
    uses.add([("op", "b", 1)])
    uses.add([("op", "bs", 1), ("op", "bh", 1), ("op", "sh", 1)])
    # Any axis may be split in two; "bsh" is a mixture that nobody has seen.
    mixed = {"bbb", "sss", "hhh", "bbs", "bss", "bbh", "bhh", "ssh", "shh", "bsh"}
    assert rows(uses, Uses(), "bsh", 3) == mixed


def test_rare_uses_are_left_out() -> None:
    uses: Uses[str] = Uses()
    uses.add([("op", "bh", 98), ("op", "hb", 1), ("op", "bb", 1)])
    assert rows(uses, Uses(), "bh", 2) == {"bb", "bh", "hb", "hh"}
    assert rows(uses, Uses(), "bh", 2, 0.02) == {"bb", "bh", "hh"}
    # What is common on some mesh counts.
    uses.add([("op", "hb", 1)])
    assert rows(uses, Uses(), "bh", 2, 0.02) == {"bb", "bh", "hb", "hh"}


def test_what_schemes_do_is_added_but_not_mixed_with_single_values() -> None:
    answers: Uses[str] = Uses()
    answers.add([("op", "s", 1), ("op", "h", 1)])
    schemes: Uses[str] = Uses()
    schemes.add([("op", "bh", 1)])
    assert rows(answers, schemes, "bsh", 2) == {"ss", "sh", "hs", "hh", "bb", "bh"}


@pytest.fixture
def tables() -> Tables:
    cluster = Cluster.parse("8xA100-SXM-80GB")
    graph = transformer(
        layers=2, hidden=64, heads=8, vocabulary=128, sequence_length=32, batch_size=16
    )
    mesh = cluster.meshes()[-1]
    model = CostModel(cluster, mesh, Precision.named("bf16"), Optimizer.named("adamw"), 1)
    return Tables(model, decisions(graph))


def test_tables_are_held_to_what_is_allowed(tables: Tables) -> None:
    """Whatever the tables keep costs what it costs in the whole tables."""
    among = Among()
    linear = next(
        node
        for node in tables.decisions.nodes
        if node.kind == "operator" and tables.decisions.operator(node).family == "linear"
    )
    shared = next(node for node in tables.decisions.nodes if node.kind == "tensor")
    operator, tensor = (
        tables.operator_key(int(linear.key)),
        tables.tensor_signature(str(shared.key)),
    )
    among.answers.labels.add([(operator, ("m0", "n", "n"), 1)])
    among.answers.states.add([(tensor, (3, 4, 4), 1)])
    held = Tables(tables.model, tables.decisions, among=among)
    labels = held.configurations(int(linear.key)).labels
    assert set(labels) == {
        ("m0", "m0", "m0"),
        ("m0", "m0", "n"),
        ("m0", "n", "n"),
        ("n", "n", "n"),
    }
    assert held.configuration_count(linear) == held.size(linear) == 4
    whole = [tables.configurations(int(linear.key)).index(row) for row in labels]
    np.testing.assert_array_equal(held.node(linear).costs, tables.node(linear).costs[whole])
    states = held.tensor_states(str(shared.key)).tolist()
    assert states == [[3, 3, 3], [3, 3, 4], [3, 4, 4], [4, 4, 4]]
    assert tables.configuration_count(shared) > 4


def test_counts_are_those_of_the_tables(tables: Tables) -> None:
    for node in tables.decisions.nodes:
        assert tables.configuration_count(node) == tables.size(node)


def test_three_axes_are_too_many_and_two_are_not(tables: Tables) -> None:
    assert too_many(tables)
    cluster = tables.model.cluster
    mesh = cluster.meshes()[1]
    model = CostModel(cluster, mesh, Precision.named("bf16"), Optimizer.named("adamw"), 1)
    assert not too_many(Tables(model, tables.decisions))
