"""Strategies: derived figures, saving, and complaints about damaged files."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategy_factory import CLUSTER, strategy
from tensoropt.errors import ClusterError, FileFormatError
from tensoropt.graph import GraphBuilder
from tensoropt.strategy import Strategy


def test_throughput_is_batch_over_time() -> None:
    s = strategy(time_s=0.25)
    assert s.throughput == 256
    assert s.tokens_per_s == 256 * 1024
    assert replace(s, tokens_per_sample=None).tokens_per_s is None


@pytest.mark.parametrize(
    ("share", "fits", "at_risk"),
    [
        (0.5, True, False),
        (0.9, True, False),
        (0.95, True, True),
        (1.0, True, True),
        (1.01, False, False),
    ],
)
def test_fitting(share: float, fits: bool, at_risk: bool) -> None:
    s = strategy(device_bytes=1000 * share)
    assert s.fits(1000.0) is fits
    assert s.at_risk(1000.0) is at_risk


def test_fitting_takes_clusters_devices_and_bytes() -> None:
    memory = CLUSTER.device.memory_bytes
    s = strategy(device_bytes=memory)
    assert s.fits(CLUSTER)
    assert s.fits(CLUSTER.device)
    assert not s.fits(memory - 1)
    with pytest.raises(ClusterError, match="positive bytes"):
        s.fits(0.0)


@pytest.mark.parametrize("name", ["s.json", "s.json.gz"])
def test_save_and_load(tmp_path: Path, name: str) -> None:
    s = strategy()
    s.save(tmp_path / name)
    assert Strategy.load(tmp_path / name) == s
    first = (tmp_path / name).read_bytes()
    s.save(tmp_path / name)
    assert (tmp_path / name).read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [name]  # no temporary file is left


def test_numpy_numbers_are_saved_as_plain_ones(tmp_path: Path) -> None:
    s = strategy()
    costs = replace(s.costs, time_s=np.float64(0.25), device_bytes=np.int64(7))
    replace(s, costs=costs).save(tmp_path / "s.json")
    assert Strategy.load(tmp_path / "s.json").costs.device_bytes == 7


def test_version_1_did_not_tell_operands_apart(tmp_path: Path) -> None:
    data = strategy().to_dict() | {"version": 1, "regathered": [["a", "b"], ["a", ""]]}
    (tmp_path / "old.json").write_text(json.dumps(data), encoding="utf-8")
    old = Strategy.load(tmp_path / "old.json")
    assert old == strategy(regathered=frozenset({("a", "b", -1), ("a", "", 0)}))
    old.save(tmp_path / "new.json")
    assert Strategy.load(tmp_path / "new.json") == old


def test_compressed_by_name_recognised_by_content(tmp_path: Path) -> None:
    strategy().save(tmp_path / "s.gz")
    assert (tmp_path / "s.gz").read_bytes()[:2] == b"\x1f\x8b"
    (tmp_path / "renamed.json").write_bytes((tmp_path / "s.gz").read_bytes())
    assert Strategy.load(tmp_path / "renamed.json") == strategy()


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    s = strategy()
    path = tmp_path / "s.json"
    s.save(path)
    bad = replace(s, costs=replace(s.costs, time_s=float("nan")))
    with pytest.raises(ValueError, match="JSON"):
        bad.save(path)
    assert Strategy.load(path) == s
    with pytest.raises(FileNotFoundError):
        s.save(tmp_path / "missing" / "s.json")


def damage(keys: list[Any], value: Any) -> dict[str, Any]:
    """Return a saved strategy with one field replaced, or dropped for ``...``."""
    data: Any = json.loads(json.dumps(strategy().to_dict()))
    place = data
    for key in keys[:-1]:
        place = place[key]
    if value is ...:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return data


@pytest.mark.parametrize(
    ("keys", "value", "complaint"),
    [
        (["model"], ..., "field 'model' is missing, expected a string"),
        (["model"], 3, "field 'model' is 3"),
        (["batch_size"], 0, "field 'batch_size' is 0, expected an integer >= 1"),
        (["batch_size"], True, "field 'batch_size' is True"),
        (["tokens_per_sample"], "x", "field 'tokens_per_sample' is 'x'"),
        (["mesh"], [["a0", 2]], "mesh: expected a list of"),
        (["mesh"], [], "mesh"),
        (["costs", "time_s"], 0.0, "greater than zero"),
        (["costs", "time_s"], None, "field 'time_s' is null"),
        (["costs", "saved_bytes"], 1.5, "field 'saved_bytes' is 1.5"),
        (["costs"], [1], "field 'costs' is a list"),
        (["operators", "loss"], ["m0"], r"operators\['loss'\] must be a list of 2 strings"),
        (["tensors", "layers.0.norm"], "S0", "tensors"),
        (["recompute", "layers.0"], 1, "true or false"),
        (["parameters", "norm.weight", "scheme"], "zero9", "'zero9', expected one of ddp"),
        (["parameters", "norm.weight", "layout"], ["R"], "one entry for each of the 2 mesh axes"),
        (["parameters", "norm.weight", "axes"], [2], "a list of mesh axes, 0 to 1"),
        (["regathered"], [["a"]], r"a list of \(tensor, consumer, operand\)"),
        (["regathered"], [["a", "b", -2]], "a list of"),
        (["regathered"], [["a", "b", True]], "a list of"),
        (["collectives", 0, "kind"], "broadcast", r"collectives\[0\]: field 'kind' is 'broadcast'"),
        (["collectives", 0, "axis"], 2, "a mesh axis, 0 to 1"),
        (["collectives", 0, "phase"], "lunch", "forward, backward"),
        (["collectives", 0], 1, "expected an object"),
        (["largest", 0, "nbytes"], -1, "field 'nbytes' is -1"),
        (["notes"], [1], "a list of strings"),
        (["format"], "tensoropt-frontier", "expected a 'tensoropt-strategy' file"),
        (["format"], ..., "some other JSON"),
        (["version"], 99, "use a newer release"),
    ],
)
def test_damage_is_named(tmp_path: Path, keys: list[Any], value: Any, complaint: str) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(damage(keys, value)), encoding="utf-8")
    with pytest.raises(FileFormatError, match=complaint) as caught:
        Strategy.load(path)
    assert "damaged.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "some other JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (gzip.compress(b"{}")[:10], "truncated gzip"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=complaint):
        Strategy.load(path)


def test_matches_the_graph_it_was_made_for() -> None:
    def build(columns: int) -> Any:
        b = GraphBuilder("tiny")
        x, w = b.input("x", (8, 4)), b.parameter("w", (columns, 4))
        y = b.op("linear", (x, w), (8, columns), weight="nk")
        loss = b.op("reduce", (y,), (), op="mean", dims=[0, 1], keepdim=False)
        return b.build(loss, batch_size=8)

    s = replace(strategy(), graph_fingerprint=build(2).fingerprint())
    assert s.matches(build(2))
    assert not s.matches(build(3))


def test_a_strategy_in_one_line() -> None:
    text = repr(strategy())
    assert text.startswith("<Strategy of tiny-gpt on 8xA100-SXM-80GB: ")
    assert text.endswith(", mesh 2x4, 250 ms, 40.0 GB>")
    assert "\n" not in text
