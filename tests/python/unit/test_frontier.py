"""Frontiers: picking, distances, lazy points, the file format."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategy_factory import CLUSTER, CURVE, SUMMARY, frontier, points, schemes, strategy
from tensoropt.errors import FileFormatError, InfeasibleError, MissingExtraError, ProblemError
from tensoropt.frontier import Frontier, FrontierCosts, GraphSummary, LazyPoints, Sweep, SweepRow


def test_is_a_sequence() -> None:
    f = frontier()
    assert len(f) == len(CURVE)
    assert f[0].costs.time_s == 0.20
    assert f[-1] == f[len(f) - 1]
    assert [s.costs.time_s for s in f] == [time_s for time_s, _ in CURVE]
    assert f[1:3] == (f[1], f[2])
    with pytest.raises(IndexError):
        f[len(f)]


@pytest.mark.parametrize(
    ("cap", "index"),
    [(None, 1), (math.inf, 0), (120e9, 0), (119e9, 1), (41e9, 3), (40.9e9, 4), (24e9, 5)],
)
def test_fastest_within_memory(cap: float | None, index: int) -> None:
    f = frontier()
    assert f.fastest_index(cap) == index
    assert f.fastest(cap) == f[index]


@pytest.mark.parametrize(
    ("cap", "index"), [(None, 5), (math.inf, 5), (0.2, 0), (0.42, 3), (0.419, 2), (10.0, 5)]
)
def test_leanest_within_time(cap: float | None, index: int) -> None:
    f = frontier()
    assert f.leanest_index(cap) == index
    assert f.leanest(cap) == f[index]


def test_picks_agree_with_looking_at_every_point() -> None:
    f = frontier()
    for cap in np.linspace(20e9, 130e9, 45):
        fitting = [i for i, s in enumerate(f) if s.costs.device_bytes <= cap]
        if fitting:
            assert f.fastest_index(cap) == min(fitting, key=lambda i: f[i].costs.time_s)
    for cap in np.linspace(0.2, 1.0, 45):
        quick = [i for i, s in enumerate(f) if s.costs.time_s <= cap]
        assert f.leanest_index(cap) == min(quick, key=lambda i: f[i].costs.device_bytes)


def test_infeasible_memory_names_the_least_and_what_takes_it() -> None:
    with pytest.raises(InfeasibleError) as caught:
        frontier().fastest(10e9)
    text = str(caught.value)
    assert caught.value.least == 24e9
    for part in ("10.0 GB", "24.0 GB", "embedding.weight", "logits", "layers.0.up"):
        assert part in text
    assert "\n" not in text


def test_infeasible_memory_falls_back_to_parts() -> None:
    f = frontier(points=[strategy(1.0, 200e9, largest=())])
    with pytest.raises(InfeasibleError, match=r"optimizer state.*saved for backward") as caught:
        f.fastest()
    assert CLUSTER.device.name in str(caught.value)


def test_infeasible_time_names_the_least() -> None:
    with pytest.raises(InfeasibleError, match="the fastest takes 200 ms") as caught:
        frontier().leanest(0.1)
    assert caught.value.least == 0.2


@pytest.mark.parametrize("cap", [0.0, -1.0, math.nan])
def test_limits_must_be_positive(cap: float) -> None:
    with pytest.raises(ProblemError, match="memory_bytes"):
        frontier().fastest(cap)
    with pytest.raises(ProblemError, match="time_s"):
        frontier().leanest(cap)


def test_distance_in_time_and_memory() -> None:
    d = frontier().distance(schemes()[0])  # 0.45 s, 55 GB; the frontier has 0.42 s at 41 GB
    assert d.faster == d.leaner == 3
    assert d.time_ratio == pytest.approx(0.45 / 0.42)
    assert d.memory_ratio == pytest.approx(55 / 41)
    assert d.is_dominated


def test_points_have_no_distance() -> None:
    f = frontier()
    for s in f:
        d = f.distance(s)
        assert (d.time_ratio, d.memory_ratio, d.is_dominated) == (1.0, 1.0, False)


def test_distance_beyond_the_frontier() -> None:
    d = frontier().distance(strategy(0.1, 10e9))
    assert (d.time_ratio, d.memory_ratio, d.is_dominated) == (None, None, False)


def test_price_follows_time() -> None:
    f = frontier(cluster=CLUSTER.with_price(36.0))
    assert f.price_per_step(f[0]) == pytest.approx(36 * 0.2 / 3600)
    unknown = replace(CLUSTER, price=None)
    assert frontier(cluster=unknown).price_per_step(f[0]) is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"points": []}, "at least one point"),
        ({"points": points()[::-1]}, "ascending time"),
        ({"points": [strategy(0.1, 1e9), strategy(0.2, 2e9)]}, "descending memory"),
        ({"points": [strategy(0.0, 1e9)]}, "greater than zero"),
        ({"factor": 0.9}, "at least 1"),
        ({"factor": math.nan}, "at least 1"),
        (
            {"costs": FrontierCosts(np.ones(2), np.ones(6, np.int64), np.ones(6, np.int64))},
            "costs.time_s has shape",
        ),
    ],
)
def test_impossible_frontiers_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ProblemError, match=complaint):
        frontier(**changes)


def test_costs_cannot_be_changed_by_accident() -> None:
    with pytest.raises(ValueError, match="read-only"):
        frontier().costs.time_s[0] = 1.0


# ---------------------------------------------------------------------------- lazy points


def test_lazy_points_are_built_on_demand_and_kept() -> None:
    made: list[int] = []
    known = points()

    def build(index: int) -> Any:
        made.append(index)
        return known[index]

    lazy = LazyPoints(len(known), build)
    costs = frontier().costs
    f = frontier(points=lazy, costs=costs)
    assert made == []
    assert f.fastest(41e9) == known[3]
    assert f[3] == f[-3] == known[3]
    assert made == [3]
    assert lazy[1:3] == (known[1], known[2])
    with pytest.raises(IndexError):
        lazy[6]


def test_lazy_points_forget_the_oldest() -> None:
    made: list[int] = []

    def build(index: int) -> Any:
        made.append(index)
        return strategy(1.0 + index)

    lazy = LazyPoints(1000, build)
    for index in [*range(200), 199, 0]:
        assert lazy[index].costs.time_s == 1.0 + index
    assert made == [*range(200), 0]


# ---------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["f.json", "f.json.gz"])
def test_nothing_is_lost(tmp_path: Path, name: str) -> None:
    f = frontier()
    seen: list[float] = []
    f.save(tmp_path / name, seen.append)
    g = Frontier.load(tmp_path / name)
    assert list(g) == list(f)
    assert g.schemes == f.schemes
    for field in ("graph_summary", "cluster", "model", "status", "factor", "notes", "settings"):
        assert getattr(g, field) == getattr(f, field), field
    for a, b in zip(g.costs, f.costs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_equal_frontiers_give_equal_bytes(tmp_path: Path) -> None:
    frontier().save(tmp_path / "a.json")
    frontier(seconds={"solve": 99.0}).save(tmp_path / "b.json")
    Frontier.load(tmp_path / "a.json").save(tmp_path / "c.json")
    first = (tmp_path / "a.json").read_bytes()
    assert (tmp_path / "b.json").read_bytes() == first
    assert (tmp_path / "c.json").read_bytes() == first


def test_version_1_did_not_tell_operands_apart(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    frontier().save(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    columns = document["columns"]
    columns["regathered"] = [gather[:2] for gather in columns["regathered"]]
    path.write_text(json.dumps(document | {"version": 1}), encoding="utf-8")
    for old, new in zip(Frontier.load(path), frontier(), strict=True):
        gathers = {(t, c, -1 if c else 0) for t, c, _ in new.regathered}
        assert old == replace(new, regathered=frozenset(gathers))


def test_an_unproven_factor_survives(tmp_path: Path) -> None:
    frontier(status="heuristic", factor=math.inf).save(tmp_path / "f.json")
    g = Frontier.load(tmp_path / "f.json")
    assert (g.status, g.factor) == ("heuristic", math.inf)


def test_strategies_on_different_meshes_and_with_different_parts(tmp_path: Path) -> None:
    """Rows of one file may lack columns of others, and be as wide as their own mesh."""
    mesh = CLUSTER.meshes()[0]
    one_axis = strategy(
        0.5,
        20e9,
        mesh=mesh,
        operators={"other": ("m0",)},
        tensors={},
        parameters={},
        recompute={},
        regathered=frozenset(),
        collectives=(),
        largest=(),
        notes=(),
    )
    f = frontier(points=[*points()[:4], one_axis])
    f.save(tmp_path / "f.json")
    assert list(Frontier.load(tmp_path / "f.json")) == list(f)


def test_neighbours_share_their_rows(tmp_path: Path) -> None:
    """A thousand points that differ in one operator take little more than their costs."""
    layers = {f"layers.{i}.up": ("m0", "n") for i in range(1000)}
    many = [
        strategy(1 + i / 1000, 50e9 - i, operators=layers | {f"layers.{i}.up": ("m0", "k")})
        for i in range(300)
    ]
    frontier(points=many, schemes=[]).save(tmp_path / "f.json")
    assert (tmp_path / "f.json").stat().st_size < 300 * 600 + 100_000
    assert list(Frontier.load(tmp_path / "f.json")) == many


def test_strategies_must_be_of_one_model(tmp_path: Path) -> None:
    f = frontier(schemes=[strategy(0.3, 60e9, precision="fp16")])
    with pytest.raises(ProblemError, match="agree in precision"):
        f.save(tmp_path / "f.json")
    assert list(tmp_path.iterdir()) == []


def set_in(*keys: Any) -> Callable[[Any, Any], None]:
    def change(document: Any, value: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "value", "complaint"),
    [
        (set_in("format"), "tensoropt-strategy", "a 'tensoropt-strategy' file, expected"),
        (set_in("version"), 3, "version 3.*newer release"),
        (set_in("version"), None, "field 'version' is null"),
        (set_in("points"), 0, "field 'points' is 0"),
        (set_in("points"), 99, "at most the 8 strategies"),
        (set_in("points"), 8, "ascending time"),
        (set_in("factor"), 0.5, "at least 1"),
        (set_in("graph", "batch_size"), 0, "graph: field 'batch_size'"),
        (set_in("cluster"), {}, "'device' is missing"),
        (set_in("common", "precision"), 1, "common: field 'precision'"),
        (set_in("meshes", 0), [["a0", 0, 0]], r"meshes\[0\]"),
        (set_in("labels", 0), "n", r"labels\[0\]: expected a list of strings"),
        (set_in("labels", 0), ["m0"], r"strategies\[0\]: operators .* no choice on its mesh"),
        (set_in("placements", 0, "scheme"), "zero4", r"placements\[0\]: field 'scheme'"),
        (set_in("placements", 0), {"layout": ["R"], "scheme": "ddp", "axes": []}, "parameters of"),
        (set_in("collectives", 0, 0, 0), "scatter", r"collectives\[0\]: field 'kind'"),
        (set_in("collectives", 0, 0, 1), 7, "collectives of .* no choice on its mesh"),
        (set_in("collectives", 0), [], "expected a list of collectives"),
        (set_in("columns", "collectives", 0), ["lunch", "x"], "pairs of a phase"),
        (set_in("columns", "regathered", 0), ["x"], r"a list of \(tensor, consumer, operand\)"),
        (set_in("columns", "operators"), "x", "columns: field 'operators'"),
        (set_in("cost_names"), ["time_s"], r"strategies\[0\]: field 'costs'"),
        (set_in("strategies", 0, "costs", 0), -1, "costs: field 'time_s'"),
        (set_in("strategies", 0, "base"), 0, r"strategies\[0\]: field 'base'"),
        (set_in("strategies", 2, "base"), True, "field 'base'"),
        (set_in("strategies", 0, "mesh"), 5, "an index below 1"),
        (set_in("strategies", 0, "changes"), [0], "pairs of a column"),
        (set_in("strategies", 0, "changes"), [0, 1.5], "pairs of a column"),
        (set_in("strategies", 0, "changes"), [[0, 1], 2], "pairs of a column"),
        (set_in("strategies", 0, "changes"), [0, 2**40], "pairs of a column"),
        (set_in("strategies", 0, "changes"), [10**30, 0], "pairs of a column"),
        (set_in("strategies", 0, "changes"), [10**6, 0], "pairs of a column"),
        (set_in("strategies", 0, "changes"), [0, -7], "no choice on its mesh"),
        (set_in("strategies", 0, "changes", 1), 999, "operators of 'layers.0.up' is 999"),
        (set_in("strategies", 0, "largest"), [["x", "y"]], "field 'largest'"),
        (set_in("strategies", 0), [], r"strategies\[0\]: expected an object"),
    ],
)
def test_damage_is_named(
    tmp_path: Path, change: Callable[[Any, Any], None], value: Any, complaint: str
) -> None:
    path = tmp_path / "damaged.json"
    frontier().save(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document, value)
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(FileFormatError, match=complaint) as caught:
        Frontier.load(path)
    assert "damaged.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["points", "strategies", "columns", "labels", "graph", "status"])
def test_missing_fields_are_named(tmp_path: Path, field: str) -> None:
    path = tmp_path / "damaged.json"
    frontier().save(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    del document[field]
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(FileFormatError, match=f"field '{field}' is missing"):
        Frontier.load(path)


def test_any_truncation_is_refused(tmp_path: Path) -> None:
    frontier().save(tmp_path / "whole.json.gz")
    data = (tmp_path / "whole.json.gz").read_bytes()
    path = tmp_path / "cut.json.gz"
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        with pytest.raises(FileFormatError):
            Frontier.load(path)


# ---------------------------------------------------------------------------- other forms


def test_dataframe() -> None:
    pandas = pytest.importorskip("pandas")
    f = frontier()
    frame = f.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == len(f) + len(f.schemes)
    assert frame["time_s"].tolist()[: len(f)] == f.costs.time_s.tolist()
    assert frame["point"].isna().sum() == len(f.schemes)
    assert frame["fits"].tolist()[:2] == [False, True]
    assert frame.loc[frame["scheme"] == "data parallel", "time_over_frontier"].item() == (
        f.distance(f.schemes[1]).time_ratio
    )


@pytest.mark.parametrize(
    ("module", "extra", "use"),
    [
        ("pandas", "pandas", lambda f, path: f.to_dataframe()),
        ("matplotlib.figure", "plot", lambda f, path: f.plot(path)),
    ],
)
def test_missing_extras_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, extra: str, use: Any
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=extra):
        use(frontier(), tmp_path / "f.png")


def test_summary_of_a_graph() -> None:
    from tensoropt import examples

    graph = examples.named("gpt-125m", batch_size=2)
    summary = GraphSummary.of(graph)
    assert summary.batch_size == 2
    assert summary.parameter_count == graph.parameter_count
    assert summary.fingerprint == graph.fingerprint()


# ---------------------------------------------------------------------------- sweeps


def sweep(*fitting: bool) -> Sweep:
    rows = []
    for position, fits in enumerate(fitting):
        count = 2**position
        s = strategy(1.0 / count, 50e9) if fits else None
        least = None if position % 2 else int(100e9 / count)
        reason = "" if fits else "the leanest is too large"
        rows.append(SweepRow(count, CLUSTER.with_price(3.6 * count), s, least, 5, reason=reason))
    return Sweep(SUMMARY.name, CLUSTER.device.name, rows, 80e9)


def test_fewest_is_the_first_that_fits() -> None:
    assert sweep(False, False, True, True).fewest.count == 4
    with pytest.raises(InfeasibleError, match="up to 4") as caught:
        _ = sweep(False, False, False).fewest
    assert caught.value.least == 25e9
    with pytest.raises(InfeasibleError, match="the leanest is too large"):
        _ = sweep(False, False).fewest


def test_sweep_figures() -> None:
    row = sweep(False, True).rows[1]
    assert row.throughput == 128
    assert row.throughput_per_device == 64
    assert row.price_per_step == pytest.approx(7.2 * 0.5 / 3600)
    empty = sweep(False).rows[0]
    assert not empty.fits
    assert (empty.throughput, empty.throughput_per_device, empty.price_per_step) == (None,) * 3


def test_sweep_counts_must_ascend() -> None:
    rows = sweep(True, True).rows
    with pytest.raises(ProblemError, match="ascending counts"):
        Sweep("m", "d", [rows[1], rows[0]], 1e9)
    with pytest.raises(ProblemError, match="ascending counts"):
        Sweep("m", "d", [], 1e9)
