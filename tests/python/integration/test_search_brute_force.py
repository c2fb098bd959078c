"""The search against a list of all strategies, on models small enough to have one.

The twin of the search: every configuration of every decision, every alternative of every link and
every choice of recomputed blocks are put together, added up from the tables, and filtered. Nothing
is left out for being worse, and nothing of the search is used. A sample of the list is checked
against the scalar evaluation, which does not read the tables either.

The search counts in whole steps, rounding every table entry: time to the nearest, memory upwards.
Two strategies that differ by less than a step for each table may therefore change places, and a
strategy that only just fits under a cap may seem not to. Up to that, the answer with an epsilon of
0 is the true staircase. The models are chosen so that no two of their points are that close.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

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
MOST_STEPS = 2**31
"""The search counts in the finest steps of which no sum has this many."""
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


def entered() -> Graph:
    """Two blocks of a linear behind an operator that belongs to none."""
    shape = (1024, 1024)
    b = GraphBuilder("entered")
    y = b.op("elementwise", (b.input("x", shape),), shape, op="scale")
    for name in ("first", "second"):
        y = b.op("linear", (y, b.parameter(name, (1024, 1024))), shape, weight="nk")
    graph = _finish(b, y, shape)
    return graph.with_blocks([Block(f"layer.{i}", 1 + i, 2 + i, 0) for i in range(2)])


FLAT: dict[str, Callable[[], Graph]] = {
    "perceptron": perceptron,
    "residual": residual,
    "attention": attention,
    "tied": tied_language_model,
}
"""Models without repeated blocks."""

LAYERS: dict[str, Callable[[], Graph]] = {
    "wide": functools.partial(layers, 2, 2048, 2048),
    "tall": functools.partial(layers, 2, 16384, 512),
    "entered": entered,
}
"""Models of two equal blocks: one ruled by its weights, one by what it saves, and one whose blocks
border on what is not recomputed."""

CASES = [(FLAT[name], "none") for name in FLAT] + [
    (LAYERS[name], recompute) for name in LAYERS for recompute in FLAGS
]
NAMES = [*FLAT, *(f"{name}-{recompute}" for name in LAYERS for recompute in FLAGS)]
every_case = pytest.mark.parametrize(("build", "recompute"), CASES, ids=NAMES)


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
    """Points by rising time and falling memory.

    Attributes
    ----------
    time_s, peak_bytes : (n,) float arrays
    rounding_s, rounding_bytes : float
        By how much counting in steps may put two strategies in the wrong order.
    count : int
        Of all strategies looked at.
    """

    time_s: FloatArray
    peak_bytes: FloatArray
    rounding_s: float
    rounding_bytes: float
    count: int

    def up_to(self, peak_bytes: float) -> Staircase:
        fits = self.peak_bytes <= peak_bytes
        return replace(self, time_s=self.time_s[fits], peak_bytes=self.peak_bytes[fits])


def rounding(tables: Tables) -> tuple[float, float]:
    """Seconds and bytes by which two sums of rounded table entries may be off."""
    found = tables.decisions
    every = [tables.node(n).costs for n in found.nodes] + [
        tables.link(k).costs for k in found.links
    ]
    largest = np.zeros(2)
    for costs in every:
        costs = costs[np.isfinite(costs[..., TIME])]
        memory = max((costs[:, RESIDENT] + costs[:, SAVED]).max(), costs[:, TRANSIENT].max())
        largest += (costs[:, TIME] + costs[:, RECOMPUTE_TIME]).max(), memory
    step_s, step_bytes = 2.0 * largest / MOST_STEPS
    # Half a step for each entry, at either of two strategies. What is saved is rounded on its own
    # in recomputed blocks, and there is one more for the transient need.
    memory = (2 * len(every) + 1) * step_bytes if step_bytes > 1.0 else 0.0
    return len(every) * max(step_s, 1e-12), memory


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
    rounded = (0.0, 0.0)
    total = 0
    for count in counts:
        (mesh,) = CLUSTER.meshes(1)
        model = CostModel(CLUSTER, mesh, Precision.named("bf16"), Optimizer.named("adamw"), count)
        found = decisions(micro_batch(graph, count))
        redo = recompute != "none"
        tables, parts = (
            Tables(model, found, recomputable=redo),
            Parts(model, found, recomputable=redo),
        )
        rounded = max(rounded, rounding(tables))
        for flags in itertools.product(FLAGS[recompute], repeat=len(graph.blocks)):
            plans, bytes_of = all_plans(tables, flags)
            check_sample(tables, parts, flags, plans, bytes_of)
            total += len(plans)
            time_s, peak = lowest(
                np.concatenate([time_s, plans.time_s]), np.concatenate([peak, bytes_of])
            )
    return Staircase(time_s, peak, *rounded, total)


# ---------------------------------------------------------------------------- comparisons


def search(
    build: Callable[[], Graph], counts: tuple[int, ...] = (1, 2), **options: object
) -> to.Frontier:
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
    time_s, peak = found.costs.time_s, found.costs.memory_bound_bytes
    for t, m in zip(time_s, peak, strict=True):
        if not ((true.time_s <= t * (1 + 1e-9)) & (true.peak_bytes <= m)).any():
            yield f"({t}, {m}) is better than every strategy"
        if m > cap_bytes:
            yield f"({t}, {m}) does not fit"
    within = true.up_to(cap_bytes - true.rounding_bytes)
    for t, m in zip(within.time_s, within.peak_bytes, strict=True):
        factor = np.maximum(time_s / t, peak / np.ceil(m)).min()
        if factor > found.factor:
            yield f"({t}, {m}) is covered within {factor}, not within {found.factor}"
        near = (time_s <= t + true.rounding_s) & (peak <= np.ceil(m) + true.rounding_bytes)
        if found.status == "optimal" and not near.any():
            yield f"({t}, {m}) is missing, and the status is optimal"


def assert_exact(found: to.Frontier, true: Staircase) -> None:
    """The same staircase, point by point, and the answer says so."""
    assert found.status == "optimal"
    assert 1.0 <= found.factor <= 1.0 + 1e-4
    assert len(found) == len(true.time_s)
    np.testing.assert_allclose(found.costs.time_s, true.time_s, rtol=1e-12)
    np.testing.assert_array_equal(found.costs.memory_bound_bytes, np.ceil(true.peak_bytes))


def caps(true: Staircase) -> list[float]:
    """Device totals at which just a point and the leaner ones fit; the largest first."""
    totals = MemoryCalibration().device_total(np.ceil(true.peak_bytes + true.rounding_bytes))
    return [math.floor(total) + 1.0 for total in totals]


def least_feasible(true: Staircase) -> int:
    return math.ceil(float(MemoryCalibration().device_total(np.ceil(true.peak_bytes[-1]))))


def allowed(cap: float) -> float:
    return float(MemoryCalibration().allocated_for(cap))


# ---------------------------------------------------------------------------- exact


@pytest.mark.parametrize("counts", [(1,), (2,), (1, 2)])
@every_case
def test_an_epsilon_of_zero_is_exact(
    build: Callable[[], Graph], recompute: str, counts: tuple[int, ...]
) -> None:
    true = truth(build, counts, recompute)
    assert_exact(search(build, counts, epsilon=0, recompute=recompute), true)


@every_case
def test_exact_under_every_cap(build: Callable[[], Graph], recompute: str) -> None:
    true = truth(build, (1, 2), recompute)
    for first, cap in enumerate(caps(true)):
        found = search(build, epsilon=0, recompute=recompute, memory_bytes=cap)
        assert found.costs.device_bytes.max() <= cap
        assert_exact(found, true.up_to(true.peak_bytes[first]))


@pytest.mark.parametrize("epsilon", [0.0, None, 0.05])
@every_case
def test_the_least_feasible_memory(
    build: Callable[[], Graph], recompute: str, epsilon: float | None
) -> None:
    """Where nothing fits, the memory named as the least that would do is the true least."""
    least = least_feasible(truth(build, (1, 2), recompute))
    with pytest.raises(to.errors.InfeasibleError) as error:
        search(build, epsilon=epsilon, recompute=recompute, memory_bytes=least - 2)
    promised = 1e-3 if epsilon is None else epsilon
    assert error.value.least is not None
    assert least <= error.value.least <= least * (1 + promised) + 1


def test_the_least_feasible_memory_is_enough() -> None:
    """A cap that is a whole number of bytes, and just what the leanest strategy takes."""
    least = least_feasible(truth(perceptron, (1, 2), "none"))
    found = search(perceptron, epsilon=0, recompute="none", memory_bytes=least)
    assert found.costs.device_bytes.tolist() == [least]


@pytest.mark.parametrize("recompute", ["full", "sweep"])
def test_recomputed_blocks_fit_into_what_they_need(recompute: str) -> None:
    """A cap just above the least memory of any strategy is no reason to give up.

    Recomputed blocks that are contracted without a look at their transient memory need more.
    """
    true = truth(LAYERS["wide"], (1, 2), recompute)
    assert least_feasible(true) == 1_595_441_388
    cap = 1_595_451_049
    found = search(LAYERS["wide"], epsilon=0, recompute=recompute, memory_bytes=cap)
    assert_exact(found, true.up_to(allowed(cap)))
    assert found.costs.device_bytes[-1] == 1_595_441_388


# ---------------------------------------------------------------------------- within a factor


@pytest.mark.parametrize("epsilon", [None, 0.05])
@every_case
def test_the_factor_is_honest_and_as_promised(
    build: Callable[[], Graph], recompute: str, epsilon: float | None
) -> None:
    true = truth(build, (1, 2), recompute)
    promised = 1.0 + (1e-3 if epsilon is None else epsilon)
    for cap in (None, *caps(true)):
        found = search(build, epsilon=epsilon, recompute=recompute, memory_bytes=cap)
        within = np.inf if cap is None else allowed(cap)
        assert list(problems(found, true, within)) == []
        assert found.factor <= promised + 1e-4


@pytest.fixture
def _inexact(monkeypatch: pytest.MonkeyPatch) -> None:
    """No recomputed block may be contracted exactly."""
    # By name: the package holds the function `search` in the place of its module.
    monkeypatch.setattr(importlib.import_module("tensoropt.search.blocks"), "MOST_WORK", 0)


@pytest.mark.usefixtures("_inexact")
@pytest.mark.parametrize("epsilon", [0.0, None, 0.05])
@pytest.mark.parametrize("recompute", ["full", "sweep"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_factor_is_honest_where_exact_is_too_much_work(
    name: str, recompute: str, epsilon: float | None
) -> None:
    """Between a bound from below and strategies that exist, the factor says what is not known."""
    true = truth(LAYERS[name], (1, 2), recompute)
    found = search(LAYERS[name], epsilon=epsilon, recompute=recompute)
    assert list(problems(found, true)) == []


@pytest.mark.usefixtures("_inexact")
@pytest.mark.parametrize("epsilon", [0.0, None])
@pytest.mark.parametrize("recompute", ["full", "sweep"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_factor_is_honest_where_the_closer_bound_is_looked_at(
    name: str, recompute: str, epsilon: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("tensoropt.search.answers"), "CLOSE", 1.0)
    true = truth(LAYERS[name], (1, 2), recompute)
    found = search(LAYERS[name], epsilon=epsilon, recompute=recompute)
    assert list(problems(found, true)) == []


@pytest.mark.usefixtures("_inexact")
@pytest.mark.parametrize("recompute", ["none", "full", "sweep"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_factor_is_honest_where_blocks_have_many_cells(
    name: str, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transient memory is then bounded, and tables are trimmed: both are part of the factor."""
    monkeypatch.setattr(importlib.import_module("tensoropt.search.blocks"), "MANY_CELLS", 1)
    true = truth(LAYERS[name], (1, 2), recompute)
    found = search(LAYERS[name], epsilon=0.05, recompute=recompute)
    assert list(problems(found, true)) == []


@pytest.mark.usefixtures("_inexact")
@pytest.mark.parametrize("recompute", ["full", "sweep"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_factor_is_honest_under_a_cap_where_exact_is_too_much_work(
    name: str, recompute: str
) -> None:
    true = truth(LAYERS[name], (1, 2), recompute)
    for cap in caps(true)[:-1]:
        found = search(LAYERS[name], epsilon=0, recompute=recompute, memory_bytes=cap)
        assert list(problems(found, true, allowed(cap))) == []


@pytest.mark.usefixtures("_inexact")
def test_what_fits_is_found_where_exact_is_too_much_work() -> None:
    true = truth(LAYERS["wide"], (1, 2), "full")
    search(LAYERS["wide"], epsilon=0, recompute="full", memory_bytes=caps(true)[-1])


@pytest.mark.usefixtures("_inexact")
@pytest.mark.parametrize("recompute", ["full", "sweep"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_memory_named_as_least_where_exact_is_too_much_work(name: str, recompute: str) -> None:
    """Not less than any strategy needs, and not more than one that a search finds."""
    least = least_feasible(truth(LAYERS[name], (1, 2), recompute))
    with pytest.raises(to.errors.InfeasibleError) as error:
        search(LAYERS[name], epsilon=0, recompute=recompute, memory_bytes=least - 2)
    leanest = search(LAYERS[name], epsilon=0, recompute=recompute).costs.device_bytes[-1]
    assert error.value.least is not None
    assert least <= error.value.least <= leanest


# ---------------------------------------------------------------------------- near a cap


def normed() -> Graph:
    """Has two strategies that differ by a thousandth in memory, and by a fifth in time."""
    shape = (128, 1024)
    b = GraphBuilder("normed")
    x = b.input("x", shape)
    y = b.op("layer_norm", (x, b.parameter("gain", (1024,))), shape, dims=1, eps=1e-5, kind="rms")
    z = b.op("softmax", (y,), shape, dim=1, log=False)
    y = b.op("elementwise", (z, y), shape, op="add")
    y = b.op("linear", (y, b.parameter("weight", (1024, 1024))), shape, weight="nk")
    return _finish(b, b.op("elementwise", (y,), shape, op="gelu"), shape)


def test_what_just_fits_is_covered() -> None:
    """A strategy just beyond a cap may not stand for one within it."""
    true = truth(normed, (2,), "none")
    for cap in caps(true):
        found = search(normed, (2,), epsilon=0.05, recompute="none", memory_bytes=cap)
        assert list(problems(found, true, allowed(cap))) == []


# ---------------------------------------------------------------------------- the comparison


def test_the_lists_are_worth_comparing_with() -> None:
    """Hundreds of thousands of strategies, several points, recomputation among them."""
    swept = truth(LAYERS["tall"], (1, 2), "sweep")
    assert swept.count > 1_000_000
    assert len(swept.time_s) > len(truth(LAYERS["tall"], (1, 2), "none").time_s) > 1


@every_case
def test_no_two_points_are_within_the_rounding(build: Callable[[], Graph], recompute: str) -> None:
    true = truth(build, (1, 2), recompute)
    assert len(true.time_s) > 1
    assert np.diff(true.time_s).min() > true.rounding_s
    assert -np.diff(true.peak_bytes).max() > true.rounding_bytes


@pytest.mark.usefixtures("_inexact")
def test_some_answers_are_not_exact() -> None:
    found = search(LAYERS["tall"], epsilon=0, recompute="full")
    with pytest.raises(AssertionError):
        assert_exact(found, truth(LAYERS["tall"], (1, 2), "full"))


def test_the_comparison_sees_what_is_wrong() -> None:
    true = truth(FLAT["residual"], (1, 2), "none")
    found = search(FLAT["residual"], epsilon=0)
    # A strategy that is not there, and one that the answer has missed.
    slower = replace(true, time_s=true.time_s * 1.001)
    assert any("better than every" in text for text in problems(found, slower))
    faster = replace(true, time_s=true.time_s / (1.01 * found.factor))
    assert any("not within" in text for text in problems(found, faster))
    assert any("is optimal" in text for text in problems(found, faster))
    assert any("does not fit" in text for text in problems(found, true, true.peak_bytes[1]))
    with pytest.raises(AssertionError):
        assert_exact(found, true.up_to(true.peak_bytes[1]))
