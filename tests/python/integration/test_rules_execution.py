"""Sharding rules against torch: operators run on shards, in child processes."""

from __future__ import annotations

import functools
import importlib.util

import pytest

from execution.worker import Report, in_child
from tensoropt.graph import FAMILIES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)

# These are replicated everywhere.
NEVER_SHARDED = {"constant", "opaque"}


@functools.cache
def reports(family: str) -> dict[str, Report]:
    """All checks of a family, made once: a child process costs more than what it checks."""
    return in_child(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_configuration_computes_what_the_whole_operator_does(family: str) -> None:
    report = reports(family)["hold"]
    assert report.cases > 0, f"no case for family '{family}' in execution.cases"
    assert report.failures == []
    assert (report.sharded > 0) == (family not in NEVER_SHARDED)


@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_rules_are_refused(family: str) -> None:
    report = reports(family)["refuse"]
    assert report.failures == []
    # What shards every dim, or has none, leaves nothing to get wrong.
    if family in {"softmax", "layer_norm", "batch_norm", "cross_entropy", "linear", "reduce"}:
        assert report.tried > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_bytes_are_what_autograd_keeps(family: str) -> None:
    assert reports(family)["keep"].failures == []


def test_a_child_that_dies_is_reported() -> None:
    with pytest.raises(RuntimeError, match=r"child for family 'view' died with exit code -6"):
        in_child("view", ("abort",))
