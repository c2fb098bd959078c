"""The search against a list of all strategies, on models small enough to have one.

The twin of the search: every configuration of every decision, every alternative of every link and
every choice of recomputed blocks are put together, added up from the tables, and filtered. Nothing
is left out for being worse, and nothing of the search is used. A sample of the list is checked
against the scalar evaluation, which does not read the tables either.

The search counts in whole nanoseconds and in steps of 512 bytes, rounding every table entry, so
answers are compared up to one step for each table.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

import tensoropt as to
from tensoropt.cost import Optimizer, Precision
from tensoropt.cost.assignment import from_tables
from tensoropt.cost.calibration import MemoryCalibration
from tensoropt.cost.evaluate import evaluate
from tensoropt.cost.model import CostModel
from tensoropt.cost.parts import Parts
from tensoropt.cost.tables import RECOMPUTE_TIME, RESIDENT, SAVED, TIME, TRANSIENT, Tables
from tensoropt.graph import Block, Graph, GraphBuilder
from tensoropt.sharding.decisions import Link, Node, decisions
from tensoropt.sharding.dims import micro_batch

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.int64]

CLUSTER = to.Cluster.parse("2xA100-SXM-80GB")
TIME_STEP_S, MEMORY_STEP_BYTES = 1e-9, 512
FLAGS = {"none": (False,), "full": (True,), "sweep": (False, True)}
SAMPLE = 10


# ---------------------------------------------------------------------------- models


def _finish(b: GraphBuilder, y: str, shape: tuple[int, ...]) -> Graph:
    loss = b.op("reduce", (y,), (), op="mean", dims=list(range(len(shape))), keepdim=False)
    return b.build(loss, batch_size=shape[0])


def perceptron() -> Graph:
    """Two linears around an activation; the batch is large enough for data parallelism."""
    b = GraphBuilder("perceptron")
    x = b.input("x", (4096, 1024))
    y = b.op("linear", (x, b.parameter("up", (4096, 1024))), (4096, 4096), weight="nk")
    y = b.op("elementwise", (y,), (4096, 4096), op="gelu")
    y = b.op("linear", (y, b.parameter("down", (1024, 4096))), (4096, 1024), weight="nk")
    return _finish(b, y, (4096, 1024))


def residual() -> Graph:
    """A tensor with two readers, one of which cannot be split along features."""
    shape = (8, 512, 1024)
    b = GraphBuilder("residual")
    x = b.input("x", shape)
    y = b.op("linear", (x, b.parameter("first", (1024, 1024))), shape, weight="nk")
    z = b.op("softmax", (y,), shape, dim=2, log=False)
    z = b.op("linear", (z, b.parameter("second", (1024, 1024))), shape, weight="nk")
    return _finish(b, b.op("elementwise", (z, y), shape, op="add"), shape)


def attention() -> Graph:
    """Attention of projected queries to a given memory, and a skip."""
    shape = (4, 8, 1024, 128)
    b = GraphBuilder("attention")
    x, key, value = (b.input(name, shape) for name in ("x", "key", "value"))
    y = b.op("linear", (x, b.parameter("query", (128, 128))), shape, weight="nk")
    z = b.op("attention", (y, key, value), shape, causal=True, scale=128**-0.5, dropout=0.0)
    return _finish(b, b.op("elementwise", (z, y), shape, op="add"), shape)


def tied_language_model() -> Graph:
    """Embedding and projection share a weight; no two devices divide the vocabulary."""
    words, batch, length, width = 8193, 8, 128, 1024
    b = GraphBuilder("tied")
    weight = b.parameter("embedding", (words, width), padded_dims=[0])
    tokens = b.input("tokens", (batch, length), "int64")
    labels = b.input("labels", (batch, length), "int64")
    y = b.op("embedding", (tokens, weight), (batch, length, width), padding_idx=None)
    y = b.op("linear", (y, weight), (batch, length, words), weight="nk", name="head")
    loss = b.op("cross_entropy", (y, labels), (), dim=2, reduction="mean", ignore_index=-100)
    return b.build(loss, batch_size=batch)


def layers(count: int, batch: int, width: int) -> Graph:
    """Equal layers, each a linear and an activation, marked as repeated blocks."""
    b = GraphBuilder(f"{count} layers of {width}")
    shape = (batch, width)
    y = b.input("x", shape)
    for i in range(count):
        y = b.op("linear", (y, b.parameter(f"w{i}", (width, width))), shape, weight="nk")
        y = b.op("elementwise", (y,), shape, op="gelu")
    graph = _finish(b, y, shape)
    return graph.with_blocks([Block(f"layer.{i}", 2 * i, 2 * i + 2, 0) for i in range(count)])


FLAT: dict[str, Callable[[], Graph]] = {
    "perceptron": perceptron,
    "residual": residual,
    "attention": attention,
    "tied": tied_language_model,
}
"""Models without repeated blocks: the search takes no shortcut, and 0 is exact."""

LAYERS: dict[str, Callable[[], Graph]] = {
    "wide": functools.partial(layers, 2, 2048, 2048),
    "tall": functools.partial(layers, 2, 16384, 512),
}
"""Models of two equal blocks, one ruled by its weights and one by what it saves."""


# ---------------------------------------------------------------------------- all strategies


@dataclass
class Plans:
    """Partial strategies, one a row: what is chosen, and what it costs so far.

    Attributes
    ----------
    chosen : dict of Node or Link to (n,) int array
    time_s, resident_bytes : (n,) float arrays
    saved, largest : (n, blocks + 1) float arrays
        Bytes kept for backward and largest transient need of each block, and of what is outside.
    """

    chosen: dict[Node | Link, npt.NDArray[np.int16]]
    time_s: FloatArray
    resident_bytes: FloatArray
    saved: FloatArray
    largest: FloatArray

    def __len__(self) -> int:
        return len(self.time_s)

    def take(self, rows: IntArray) -> None:
        """Keep some rows, or repeat them."""
        self.chosen = {key: values[rows] for key, values in self.chosen.items()}
        self.time_s, self.resident_bytes = self.time_s[rows], self.resident_bytes[rows]
        self.saved, self.largest = self.saved[rows], self.largest[rows]

    def branch(self, key: Node | Link, count: int) -> None:
        """Put every row together with each of a number of choices."""
        rows = len(self)
        self.take(np.repeat(np.arange(rows), count))
        self.chosen[key] = np.tile(np.arange(count, dtype=np.int16), rows)

    def add(self, costs: FloatArray, block: int, redo: bool) -> None:
        """Add table entries, one for each row; drop what is impossible."""
        self.time_s = self.time_s + costs[:, TIME] + redo * costs[:, RECOMPUTE_TIME]
        self.resident_bytes = self.resident_bytes + costs[:, RESIDENT]
        self.saved[:, block] += costs[:, SAVED]
        np.maximum(self.largest[:, block], costs[:, TRANSIENT], out=self.largest[:, block])
        self.take(np.nonzero(np.isfinite(self.time_s))[0])


def all_plans(tables: Tables, flags: tuple[bool, ...]) -> tuple[Plans, FloatArray]:
    """Every strategy in which just the flagged blocks are recomputed, and its peak bytes."""
    found = tables.decisions
    blocks = len(flags)
    redo = (*flags, False)
    plans = Plans(
        {}, np.zeros(1), np.zeros(1), np.zeros((1, blocks + 1)), np.zeros((1, blocks + 1))
    )
    left = list(found.links)
    for node in found.nodes:
        costs = tables.node(node).costs
        block = found.block_of.get(node, blocks)
        plans.branch(node, len(costs))
        plans.add(costs[plans.chosen[node]], block, redo[block])
        for link in [k for k in left if k.source in plans.chosen and k.target in plans.chosen]:
            left.remove(link)
            costs = tables.link(link).costs
            inside = found.block_of_link(link)
            block = blocks if inside is None else inside
            plans.branch(link, len(costs))
            ends = plans.chosen[link.source], plans.chosen[link.target]
            plans.add(costs[plans.chosen[link], *ends], block, redo[block])
    assert not left
    kept = np.where(redo, 0.0, plans.saved).sum(axis=1)
    transient = np.where(redo, plans.saved + plans.largest, plans.largest).max(axis=1)
    return plans, plans.resident_bytes + kept + transient


def check_sample(
    tables: Tables, parts: Parts, flags: tuple[bool, ...], plans: Plans, peak: FloatArray
) -> None:
    """A few strategies, by the scalar evaluation."""
    for row in np.random.default_rng(len(plans)).integers(0, len(plans), SAMPLE):
        nodes = {n: int(plans.chosen[n][row]) for n in tables.decisions.nodes}
        links = {k: int(plans.chosen[k][row]) for k in tables.decisions.links}
        cost = evaluate(parts, tables.decisions, from_tables(tables, nodes, links, flags))
        assert cost.time_s == pytest.approx(plans.time_s[row], rel=1e-9)
        assert cost.bound_bytes == pytest.approx(peak[row], rel=1e-9)


@dataclass(frozen=True)
class Staircase:
    """Points by rising time and falling memory; `count` is of all strategies looked at."""

    time_s: FloatArray
    peak_bytes: FloatArray
    tables: int
    count: int

    def up_to(self, peak_bytes: float) -> Staircase:
        fits = self.peak_bytes <= peak_bytes
        return Staircase(self.time_s[fits], self.peak_bytes[fits], self.tables, self.count)


def lowest(time_s: FloatArray, peak: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The staircase of a cloud of points."""
    order = np.lexsort((peak, time_s))
    before = np.minimum.accumulate(np.concatenate([[np.inf], peak[order][:-1]]))
    kept = order[peak[order] < before]
    return time_s[kept], peak[kept]


@functools.cache
def truth(build: Callable[[], Graph], counts: tuple[int, ...], recompute: str) -> Staircase:
    """The frontier by looking at every strategy of every number of micro-batches."""
    graph = build()
    time_s: FloatArray = np.zeros(0)
    peak: FloatArray = np.zeros(0)
    tables_used = total = 0
    for count in counts:
        (mesh,) = CLUSTER.meshes(1)
        model = CostModel(CLUSTER, mesh, Precision.named("bf16"), Optimizer.named("adamw"), count)
        found = decisions(micro_batch(graph, count))
        redo = recompute != "none"
        tables, parts = (
            Tables(model, found, recomputable=redo),
            Parts(model, found, recomputable=redo),
        )
        tables_used = len(found.nodes) + len(found.links)
        for flags in itertools.product(FLAGS[recompute], repeat=len(graph.blocks)):
            plans, bytes_of = all_plans(tables, flags)
            check_sample(tables, parts, flags, plans, bytes_of)
            total += len(plans)
            time_s, peak = lowest(
                np.concatenate([time_s, plans.time_s]), np.concatenate([peak, bytes_of])
            )
    return Staircase(time_s, peak, tables_used, total)


# ---------------------------------------------------------------------------- comparisons


def search(build: Callable[[], Graph], counts: tuple[int, ...], **options: object) -> to.Frontier:
    return to.search(build(), CLUSTER, micro_batches=counts, max_axes=1, **options)  # type: ignore[arg-type]


def problems(found: to.Frontier, true: Staircase, cap_bytes: float = np.inf) -> Iterator[str]:
    """What is wrong with an answer: a point that no strategy has, or too large a gap.

    Parameters
    ----------
    found : Frontier
    true : Staircase
    cap_bytes : float
        On resident plus transient bytes. Rounded up entry by entry, a strategy that only just fits
        may seem not to.
    """
    dt, dm = true.tables * TIME_STEP_S, true.tables * MEMORY_STEP_BYTES
    time_s, peak = found.costs.time_s, found.costs.memory_bound_bytes
    for t, m in zip(time_s, peak, strict=True):
        if not ((true.time_s <= t * (1 + 1e-9)) & (true.peak_bytes <= m)).any():
            yield f"({t}, {m}) is better than every strategy"
        if m > cap_bytes:
            yield f"({t}, {m}) does not fit"
    within = true.up_to(cap_bytes - dm)
    for t, m in zip(within.time_s, within.peak_bytes, strict=True):
        factor = np.maximum(time_s / (t + dt), peak / (m + dm)).min()
        if factor > found.factor:
            yield f"({t}, {m}) is covered within {factor}, not within {found.factor}"
        if factor > 1.0 and found.status == "optimal":
            yield f"({t}, {m}) is missing, and the status is optimal"


def assert_same(found: to.Frontier, true: Staircase) -> None:
    """Point by point the same staircase, up to the resolution."""
    dt, dm = true.tables * TIME_STEP_S, true.tables * MEMORY_STEP_BYTES
    assert len(found) == len(true.time_s)
    np.testing.assert_allclose(found.costs.time_s, true.time_s, rtol=0, atol=dt)
    np.testing.assert_allclose(found.costs.memory_bound_bytes, true.peak_bytes, rtol=0, atol=dm)


def caps(true: Staircase) -> list[float]:
    """Device totals at which just this point and the leaner ones fit."""
    room = true.peak_bytes + true.tables * MEMORY_STEP_BYTES
    return [float(c) for c in MemoryCalibration().device_total(room)]


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("counts", [(1,), (2,), (1, 2)])
def test_exact_without_blocks(name: str, counts: tuple[int, ...]) -> None:
    true = truth(FLAT[name], counts, "none")
    found = search(FLAT[name], counts, epsilon=0)
    assert list(problems(found, true)) == []
    assert_same(found, true)


@pytest.mark.parametrize("name", FLAT)
def test_exact_under_every_cap(name: str) -> None:
    true = truth(FLAT[name], (1, 2), "none")
    for points, cap in zip(range(len(true.time_s), 0, -1), caps(true), strict=True):
        found = search(FLAT[name], (1, 2), epsilon=0, memory_bytes=cap)
        assert found.costs.device_bytes.max() <= cap
        assert_same(found, true.up_to(true.peak_bytes[-points]))


@pytest.mark.parametrize("name", FLAT)
def test_the_least_feasible_memory(name: str) -> None:
    """Where nothing fits, the memory named as the least that would do is the true least."""
    true = truth(FLAT[name], (1, 2), "none")
    least = float(MemoryCalibration().device_total(true.peak_bytes[-1]))
    slack = true.tables * MEMORY_STEP_BYTES
    with pytest.raises(to.errors.InfeasibleError) as error:
        search(FLAT[name], (1, 2), epsilon=0, memory_bytes=least - 2 * slack)
    assert error.value.least == pytest.approx(least, abs=2 * slack)


@pytest.mark.parametrize("epsilon", [None, 0.05])
@pytest.mark.parametrize("name", FLAT)
def test_the_factor_is_honest(name: str, epsilon: float | None) -> None:
    true = truth(FLAT[name], (1, 2), "none")
    assert list(problems(search(FLAT[name], (1, 2), epsilon=epsilon), true)) == []
    for cap in caps(true):
        found = search(FLAT[name], (1, 2), epsilon=epsilon, memory_bytes=cap)
        within = float(MemoryCalibration().allocated_for(cap))
        assert list(problems(found, true, within)) == []


@pytest.mark.parametrize("epsilon", [0.0, None, 0.05])
@pytest.mark.parametrize("recompute", FLAGS)
@pytest.mark.parametrize("name", LAYERS)
def test_the_factor_is_honest_with_blocks(name: str, recompute: str, epsilon: float | None) -> None:
    """Blocks contracted once for all, kept or recomputed one by one, are within the factor."""
    true = truth(LAYERS[name], (1, 2), recompute)
    found = search(LAYERS[name], (1, 2), recompute=recompute, epsilon=epsilon)
    assert list(problems(found, true)) == []
    if recompute == "none" and epsilon == 0:
        assert_same(found, true)


@pytest.mark.parametrize("name", LAYERS)
def test_the_factor_is_honest_with_blocks_under_a_cap(name: str) -> None:
    true = truth(LAYERS[name], (1, 2), "sweep")
    for cap in caps(true)[: len(true.time_s) // 2]:
        found = search(LAYERS[name], (1, 2), recompute="sweep", epsilon=0, memory_bytes=cap)
        within = float(MemoryCalibration().allocated_for(cap))
        assert list(problems(found, true, within)) == []


def test_the_lists_are_worth_comparing_with() -> None:
    """Hundreds of thousands of strategies, several points, recomputation among them."""
    swept = truth(LAYERS["tall"], (1, 2), "sweep")
    assert swept.count > 1_000_000
    assert len(swept.time_s) > len(truth(LAYERS["tall"], (1, 2), "none").time_s) > 1
    assert all(len(truth(build, (1, 2), "none").time_s) > 1 for build in FLAT.values())


def test_the_comparison_sees_what_is_wrong() -> None:
    true = truth(FLAT["residual"], (1, 2), "none")
    found = search(FLAT["residual"], (1, 2), epsilon=0)

    def changed(time_s: FloatArray, peak: FloatArray) -> Staircase:
        return Staircase(time_s, peak, true.tables, true.count)

    # A strategy that is not there, and one that the answer has missed.
    slower = changed(true.time_s * 1.001, true.peak_bytes)
    assert any("better than every" in text for text in problems(found, slower))
    faster = changed(true.time_s / (1.01 * found.factor), true.peak_bytes)
    assert any("not within" in text for text in problems(found, faster))
    assert any("does not fit" in text for text in problems(found, true, true.peak_bytes[1]))
    with pytest.raises(AssertionError):
        assert_same(found, true.up_to(true.peak_bytes[1]))
