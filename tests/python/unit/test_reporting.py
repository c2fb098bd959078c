"""Units, tables, explanations, differences, pictures."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import tensoropt as to
from strategy_factory import CLUSTER, CURVE, frontier, points, strategy
from tensoropt import examples
from tensoropt.errors import ProblemError
from tensoropt.frontier import Sweep, SweepRow
from tensoropt.reporting import describe, format_table, parse_bytes, parse_seconds
from tensoropt.reporting.frontier_table import spread
from tensoropt.reporting.grouping import block_keys, group_names, ranges
from tensoropt.reporting.units import format_bytes, format_count, format_ratio, format_seconds
from tensoropt.strategy import ParameterPlacement

# ---------------------------------------------------------------------------- units


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("40GB", 40e9),
        ("40 gb", 40e9),
        ("40GiB", 40 * 2**30),
        ("1.5TB", 1.5e12),
        (".5MiB", 2**19),
        ("7B", 7.0),
        ("1e3kB", 1e6),
    ],
)
def test_bytes_are_read(text: str, value: float) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("250ms", 0.25), ("1.5s", 1.5), ("80us", 80e-6), ("80µs", 80e-6), ("2 min", 120.0)],
)
def test_seconds_are_read(text: str, value: float) -> None:
    assert parse_seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("40", "no unit: write e.g. 40GB or 40GiB"),
        ("40G", "unit 'G', expected one of B, kB"),
        ("GB", "not an amount of memory"),
        ("-1GB", "not an amount of memory"),
        ("0GB", "greater than zero"),
        ("1e999GB", "finite"),
        ("", "not an amount of memory"),
        ("nan GB", "not an amount of memory"),
    ],
)
def test_bad_bytes_are_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_bytes(text)


def test_times_are_no_memory() -> None:
    with pytest.raises(ValueError, match="unit 'GB', expected one of ns, us, ms"):
        parse_seconds("40GB")
    with pytest.raises(ValueError, match="unit 'ms'"):
        parse_bytes("250ms")


@hypothesis.given(st.floats(1, 1e15))
def test_printed_bytes_read_back(value: float) -> None:
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=0.01, abs=0.5)


@hypothesis.given(st.floats(1e-9, 1e4))
def test_printed_seconds_read_back(value: float) -> None:
    assert parse_seconds(format_seconds(value)) == pytest.approx(value, rel=0.01)


@pytest.mark.parametrize("value", [999.4e6, 999.6e6, 999.99e6, 1e9, 9.999e9, 99.96e9, 999.7e9])
def test_no_figure_has_four_digits(value: float) -> None:
    assert re.fullmatch(r"\d{1,3}(\.\d{1,2})? [MGT]B", format_bytes(value))


def test_more_digits() -> None:
    assert format_bytes(2.7654e9, 4) == "2.765 GB"
    assert format_bytes(99.996e9, 4) == "100.0 GB"
    assert format_bytes(99.96e9, 3) == "100 GB"
    assert format_seconds(0.0198765, 4) == "19.88 ms"


def test_special_figures() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(math.inf) == "inf"
    assert format_count(0) == "0"
    assert format_ratio(0.5) == "-50.0 %"


# ---------------------------------------------------------------------------- tables


def test_columns_are_aligned() -> None:
    lines = format_table(["a", "b", "c"], [["x", "yyy", ""], ["xxx", "y", "z"]], "<>>").split("\n")
    assert lines == ["  a      b  c", "  x    yyy", "  xxx    y  z"]


def test_ragged_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="2 columns"):
        format_table(["a", "b"], [["x"]], "<<")
    with pytest.raises(ValueError, match="2 columns"):
        format_table(["a", "b"], [["x", "y"]], "<")


def curve(count: int) -> list[tuple[float, float]]:
    return [(0.1 + i / count, 100e9 - 90e9 * (i / count) ** 0.5) for i in range(count)]


@pytest.mark.parametrize("rows", [2, 3, 20, 100, 1000])
def test_spread_keeps_ends_and_the_fastest_that_fits(rows: int) -> None:
    f = frontier(points=[strategy(*point) for point in curve(400)])
    chosen = spread(f, rows)
    assert len(chosen) <= max(rows, 3)
    assert chosen == sorted(set(chosen))
    assert {0, len(f) - 1, f.fastest_index()} <= set(chosen)
    if rows >= len(f):
        assert chosen == list(range(len(f)))
    if rows == 20:
        assert len(chosen) >= 18
        lengths = np.diff(np.log(f.costs.device_bytes[chosen]))
        assert lengths.min() > -1.0  # no part of the curve is left out


def test_table_says_what_it_left_out() -> None:
    f = frontier(points=[strategy(*point) for point in curve(400)])
    text = f.table(rows=10)
    assert re.search(r"\(\d+ of 400 points", text)
    assert "points, spread" not in frontier().table()


def test_near_points_get_another_digit() -> None:
    near = [strategy(0.2 + i / 5000, 50e9 - 3e7 * i) for i in range(4)]
    text = frontier(points=near, schemes=[]).table()
    assert [line.split()[3] for line in text.splitlines()[1:]] == [
        "50.00",
        "49.97",
        "49.94",
        "49.91",
    ]


def test_table_shows_points_and_schemes() -> None:
    f = frontier()
    text = f.table()
    body = text.split("\n\n")
    assert len(body[0].splitlines()) == 1 + len(f)
    assert "at risk" in body[0].splitlines()[2]
    assert [line.split()[0] for line in body[1].splitlines()[2:4]] == ["data", "ZeRO-3"]
    assert "+7.1 %" in text
    assert "tokens/s" in text
    assert (
        "samples/s"
        in frontier(graph_summary=replace(f.graph_summary, tokens_per_sample=None)).table()
    )
    assert "Named schemes" not in frontier(schemes=[]).table()


# ---------------------------------------------------------------------------- groups


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([2, 1, 0], "0-2"), ([1, 1, 3, 4, 9], "1,3-4,9")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_names_are_grouped_by_pattern_and_value() -> None:
    values = {"h.0.up": 1, "h.1.up": 1, "conv2d_3": 1, "conv2d_4": 1, "h.0.down.5": 1, "x": 1}
    labels = [g.label for g in group_names(values)]
    assert labels == ["h.{0-1}.up", "conv2d_{3-4}", "h.0.down.5", "x"]


def test_names_with_braces_are_left_alone() -> None:
    assert [g.label for g in group_names({"a{}.1": 1, "a{}.2": 1})] == ["a{}.1", "a{}.2"]


def test_every_name_is_in_exactly_one_group() -> None:
    graph = examples.named("gpt-125m")
    values = {o.name: i % 3 for i, o in enumerate(graph.operators)}
    for keys in (None, block_keys(graph)):
        names = [name for g in group_names(values, keys) for name in g.names]
        assert sorted(names) == sorted(values)
        assert all(values[name] == g.value for g in group_names(values, keys) for name in g.names)


def test_blocks_group_operators_whose_names_do_not() -> None:
    """Operators at one place of all layers belong together, whatever they are called."""
    graph = examples.named("gpt-125m")
    values = {operator.name: "m0" for operator in graph.operators}
    inside = [b for b in graph.blocks if b.kind == graph.blocks[0].kind]
    groups = {g.label: g for g in group_names(values, block_keys(graph))}
    size = inside[0].stop - inside[0].start
    assert sum(len(g.names) == len(inside) for g in groups.values()) == size


# ---------------------------------------------------------------------------- descriptions


def placements(layout: tuple[str, ...], scheme: str, axes: tuple[int, ...]) -> dict[str, Any]:
    return {f"w{i}": ParameterPlacement(layout, scheme, axes) for i in range(10)}


@pytest.mark.parametrize(
    ("states", "layout", "scheme", "axes", "text"),
    [
        (("S0", "S0"), ("R", "R"), "zero3", (0, 1), "data 8, ZeRO-3 on a0+a1"),
        (("S0", "R"), ("R", "S0"), "zero1", (0,), "data 2 x tensor 4, ZeRO-1 on a0"),
        (("S0", "S1"), ("R", "S0"), "ddp", (), "data 2 x tensor+sequence 4"),
        (("S1", "S0"), ("R", "R"), "ddp", (), "sequence 2 x data 4"),
        (("R", "R"), ("R", "R"), "ddp", (), "replicated 8"),
        (("R", "R"), ("S0", "S1"), "ddp", (), "tensor 8"),
    ],
)
def test_axes_are_named_by_what_they_split(
    states: tuple[str, ...], layout: tuple[str, ...], scheme: str, axes: tuple[int, ...], text: str
) -> None:
    mesh = strategy().mesh
    tensors = {f"t{i}": states for i in range(4)}
    assert describe(mesh, tensors, placements(layout, scheme, axes)) == text


def test_large_parameters_count_more() -> None:
    mesh = strategy().mesh
    kept = {
        "large": ParameterPlacement(("R", "R"), "zero3", (0, 1)),
        "small": ParameterPlacement(("R", "R"), "ddp", ()),
    }
    tensors = {"t": ("S0", "S0")}
    assert describe(mesh, tensors, kept, {"large": 99, "small": 1}) == "data 8, ZeRO-3 on a0+a1"
    assert describe(mesh, tensors, kept) == "data 8, ZeRO-3 on a0+a1 for 50 %"


def test_one_device() -> None:
    from tensoropt.cluster import Cluster

    mesh = Cluster.parse("1xL4").meshes()[0]
    kept = {"w": ParameterPlacement(("R",), "ddp", ())}
    assert describe(mesh, {"t": ("R",)}, kept) == "single device"


# ---------------------------------------------------------------------------- explanations


def test_links_are_compared_where_axes_have_different_ones() -> None:
    one, two = to.Cluster.parse("8xA100-SXM-80GB"), to.Cluster.parse("2x8xA100-SXM-80GB")
    alike, different = one.meshes(2)[-1], two.meshes(2)[-1]
    assert len(alike.axes) == len(different.axes) == 2
    assert "fastest link" not in strategy(mesh=alike).explain()
    assert "(the last has the fastest link)" in strategy(mesh=different).explain()


def test_explanation_says_everything() -> None:
    text = strategy().explain()
    for part in (
        "tiny-gpt on 8xA100-SXM-80GB: data 2 x tensor 4, ZeRO-1 on a0",
        "2x4: a0 of 2, a1 of 4",
        "64 samples in 2 micro-batches of 32",
        "1 of 4 blocks: layers.0",
        "layers.{0-3}.up",
        "ZeRO-1",
        "250 ms",
        "of which 25.0 ms hidden",
        "gradient sync",
        "optimizer state",
        "embedding.weight",
        "dropout masks are shared",
    ):
        assert part in text


def test_explanation_groups_by_the_blocks_of_a_graph() -> None:
    graph = examples.named("gpt-125m")
    s = strategy(operators={o.name: ("m0", "") for o in graph.operators})
    assert "layers.{0-11}.mlp.up" in s.explain(graph)


def test_long_explanations_say_what_they_leave_out() -> None:
    letters = [f"{a}{b}" for a in "abcdefgh" for b in "abcdefghij"]
    text = strategy(operators={f"op_{x}": ("m0", "") for x in letters}).explain()
    assert "and 40 smaller groups" in text


def test_collective_times_add_up() -> None:
    """The table by purpose accounts for every collective."""
    s = strategy()
    lines = s.explain().split("by purpose, before overlap\n")[1].split("\n  longest")[0]
    milliseconds = [float(line.split()[-2]) for line in lines.splitlines()[1:]]
    total = sum(c.seconds for c in s.collectives)
    assert sum(milliseconds) == pytest.approx(total * 1e3, rel=0.01)


def test_differences() -> None:
    one, two = points()[1:3]
    text = one.diff(two)
    assert "layers.1.up" in text
    assert "m0 k" in text
    assert "+20.0 %" in text
    assert "micro-batches" in text
    assert "layers.2.norm for layers.2.up" in text
    assert "They split everything alike" in one.diff(replace(one, costs=two.costs))


def test_differences_between_meshes() -> None:
    other = strategy(mesh=CLUSTER.meshes()[0], graph_fingerprint="0" * 64)
    text = strategy().diff(other)
    assert "The meshes differ" in text
    assert "different models" in text


# ---------------------------------------------------------------------------- pictures


@pytest.mark.parametrize("name", ["f.png", "f.svg", "f.pdf"])
def test_frontier_is_drawn_reproducibly(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    frontier().plot(tmp_path / name)
    first = (tmp_path / name).read_bytes()
    assert len(first) > 5000
    if name.endswith(".svg"):
        text = first.decode()
        for part in ("data parallel", "ZeRO-3 (FSDP)", "frontier (6 points)", "85.9 GB"):
            assert part in text
    frontier().plot(tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_extreme_frontiers_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    far = strategy(500.0, 9e12, scheme="far off")
    one = frontier(
        points=[strategy(0.001, 1e6)], schemes=[far], status="heuristic", factor=math.inf
    )
    one.plot(tmp_path / "one.svg")
    text = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert "far off (off: 9.00 TB, 500 s)" in text
    assert "85.9 GB" not in text  # a card ten thousand times larger would hide everything


def test_unknown_image_types_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ProblemError, match=r"f\.jpx"):
        frontier().plot(tmp_path / "f.jpx")


def sweep(price: float | None = 3.0) -> Sweep:
    rows = []
    for count, point in zip((1, 2, 4), [None, *CURVE[2:4]], strict=True):
        cluster = replace(CLUSTER, price=None) if price is None else CLUSTER.with_price(price)
        found = None if point is None else strategy(*point)
        rows.append(SweepRow(count, cluster, found, 10**11 // count, 7))
    return Sweep("tiny-gpt", "A100-SXM-80GB", rows, 85e9)


@pytest.mark.parametrize("price", [3.0, None])
def test_sweep_is_drawn_and_tabulated(tmp_path: Path, price: float | None) -> None:
    pytest.importorskip("matplotlib")
    s = sweep(price)
    s.plot(tmp_path / "s.svg")
    text = (tmp_path / "s.svg").read_text(encoding="utf-8")
    assert "nothing fits on 1" in text
    assert ("USD a step" in text) is (price is not None)
    lines = s.table().splitlines()
    assert len(lines) == 4
    assert "nothing fits" in lines[1]
    assert lines[2].split()[0] == "2"


def test_sweep_as_values() -> None:
    rows = sweep().to_dict()["rows"]
    assert [row["fits"] for row in rows] == [False, True, True]
    assert rows[0]["time_s"] is None
    assert rows[1]["samples_per_s_per_device"] == pytest.approx(64 / 0.3 / 2)
