"""Replays of memory: of programs by hand, and of small networks counted by hand."""

from __future__ import annotations

import pytest

from tensoropt.cluster import Cluster
from tensoropt.cost import Optimizer, Precision
from tensoropt.cost.assignment import Assignment
from tensoropt.cost.evaluate import evaluate
from tensoropt.cost.events import Buffer, Event, Program
from tensoropt.cost.liveness import Replay, replay
from tensoropt.cost.model import CostModel
from tensoropt.cost.parts import Parts
from tensoropt.cost.program import build_program
from tensoropt.cost.storage import Scheme
from tensoropt.graph import Block, Graph, GraphBuilder
from tensoropt.schemes import SchemeBuilder
from tensoropt.sharding.decisions import decisions

ROWS, WIDTH = 64, 1024
ACTIVATION = 2 * ROWS * WIDTH
WEIGHT = 2 * WIDTH * WIDTH
STATE = 12 * WIDTH * WIDTH


def chain(layers: int) -> Graph:
    """Linears without bias in a row, and the mean of the result."""
    b = GraphBuilder("chain")
    x = b.input("x", (ROWS, WIDTH))
    for i in range(layers):
        weight = b.parameter(f"w{i}", (WIDTH, WIDTH))
        x = b.op("linear", (x, weight), (ROWS, WIDTH), name=f"l{i}", weight="nk")
    loss = b.op("reduce", (x,), (), name="loss", op="mean", dims=[0, 1], keepdim=False)
    return b.build(loss, batch_size=ROWS)


def replayed(graph: Graph, cluster: str, title: str, redo: bool = False) -> tuple[Replay, float]:
    """Replay of a named scheme on the first mesh, and its bound."""
    whole = Cluster.parse(cluster)
    mesh = whole.meshes()[0]
    found = decisions(graph)
    model = CostModel(whole, mesh, Precision.named("bf16"), Optimizer.named("adamw"))
    parts = Parts(model, found, recomputable=redo)
    schemes = {s.name: s.assignment for s in SchemeBuilder(found, 1).on(mesh, (redo,)).schemes}
    assignment = schemes[title]
    bound = evaluate(parts, found, assignment).bound_bytes
    return replay(build_program(parts, assignment)), bound


def test_buffers_count_while_they_lie_there() -> None:
    events = [Event("kernel", "forward", f"op{i}", 1.0) for i in range(4)]
    buffers = [
        Buffer("a", "activation", 10.0, 0, 1),
        Buffer("b", "activation", 5.0, 1, 3),
        Buffer("w", "weight", 100.0, 0, 3),
    ]
    found = replay(Program(events, buffers, 1))
    assert found.timeline.tolist() == [110.0, 115.0, 105.0, 105.0]
    assert (found.peak_bytes, found.peak_event) == (115.0, 1)
    assert [b.name for b in found.live(1)] == ["w", "a", "b"]
    assert [b.name for b in found.live(3)] == ["w", "b"]


def test_a_chain_counted_by_hand() -> None:
    """Three linears on one device: the inputs of all are kept, gradients appear in reverse."""
    found, bound = replayed(chain(3), "1xA100-SXM-80GB", "data parallel")
    kernels = [e.subject for e in found.program.events]
    assert kernels == ["l0", "l1", "l2", "loss", "loss", "l2", "l1", "l0", "optimizer"]
    fixed = 3 * (WEIGHT + STATE)
    # x is a batch input that l0 keeps; what l2 makes is read by a mean, which keeps nothing.
    kept = [ACTIVATION, 2 * ACTIVATION, 3 * ACTIVATION]
    loss = 2
    expected = [
        fixed + kept[0] + ACTIVATION + ACTIVATION,  # l0: x as loaded, x as kept, its result
        fixed + kept[1] + ACTIVATION,
        fixed + kept[2] + ACTIVATION,
        fixed + kept[2] + ACTIVATION + loss,
        fixed + kept[2] + ACTIVATION,  # the gradient of l2's result
        fixed + kept[2] + 2 * ACTIVATION + WEIGHT,
        fixed + kept[1] + 2 * ACTIVATION + 2 * WEIGHT,
        fixed + kept[0] + ACTIVATION + 3 * WEIGHT,
        fixed + 3 * WEIGHT,
    ]
    assert found.timeline.tolist() == expected
    assert found.peak_bytes <= bound


def test_recomputed_blocks_keep_their_input_only() -> None:
    """Of four blocks of linear and GELU, what lies between the two is not there at the loss."""
    b = GraphBuilder("blocks")
    x = b.input("x", (ROWS, WIDTH))
    x = b.op("elementwise", (x, b.parameter("scale", (WIDTH,))), (ROWS, WIDTH), op="mul")
    for i in range(4):
        weight = b.parameter(f"w{i}", (WIDTH, WIDTH))
        x = b.op("linear", (x, weight), (ROWS, WIDTH), name=f"l{i}", weight="nk")
        x = b.op("elementwise", (x,), (ROWS, WIDTH), name=f"g{i}", op="gelu")
    loss = b.op("reduce", (x,), (), name="loss", op="mean", dims=[0, 1], keepdim=False)
    marks = [Block(f"b{i}", 1 + 2 * i, 3 + 2 * i, 0) for i in range(4)]
    graph = b.build(loss, batch_size=ROWS, blocks=marks)
    at_loss = []
    for redo in (False, True):
        found, bound = replayed(graph, "1xA100-SXM-80GB", "data parallel", redo)
        events = [(e.phase, e.subject) for e in found.program.events]
        at_loss.append(found.timeline[events.index(("forward", "loss"))])
        assert found.peak_bytes <= bound
        again = [subject for phase, subject in events if phase == "recompute"]
        assert again == (["l3", "g3", "l2", "g2", "l1", "g1", "l0", "g0"] if redo else [])
    assert at_loss[0] - at_loss[1] == 4 * ACTIVATION


def test_a_recomputed_block_gathers_its_input_anew() -> None:
    """Between the passes only a part of it lies there; then it is gathered once, for both."""
    b = GraphBuilder("block")
    x = b.input("x", (ROWS, WIDTH))
    for name in ("first", "second"):
        weight = b.parameter(f"{name}.w", (WIDTH, WIDTH))
        x = b.op("linear", (x, weight), (ROWS, WIDTH), name=name, weight="nk")
    loss = b.op("reduce", (x,), (), name="loss", op="mean", dims=[0, 1], keepdim=False)
    graph = b.build(loss, batch_size=ROWS, blocks=[Block("b", 1, 2, 0)])
    whole = Cluster.parse("4xA100-SXM-80GB")
    mesh = whole.meshes()[0]
    found = decisions(graph)
    model = CostModel(whole, mesh, Precision.named("bf16"), Optimizer.named("adamw"))
    parts = Parts(model, found, recomputable=True)
    assignment = Assignment(
        mesh,
        1,
        (True,),
        {0: ("m0",), 1: ("n",), 2: ("d1",)},
        {"first": (1,), "second": (4,)},
        {"first.w": Scheme("ddp"), "second.w": Scheme("ddp")},
        frozenset({("first", None, 0)}),
    )
    timeline = replay(build_program(parts, assignment))
    events = timeline.program.events
    gathers = [i for i, e in enumerate(events) if (e.kind, e.subject) == ("all_gather", "first")]
    forward, anew = gathers
    again = next(i for i, e in enumerate(events) if e.phase == "recompute")
    backward = next(
        i
        for i, e in enumerate(events)
        if (e.phase, e.subject) == ("backward", "second") and e.kind == "kernel"
    )
    assert forward < anew < again < backward
    at_loss = next(i for i, e in enumerate(events) if e.subject == "loss")
    sizes = {
        event: sum(
            b.nbytes for b in timeline.live(event) if (b.name, b.part) == ("first", "activation")
        )
        for event in (at_loss, again, backward)
    }
    assert sizes == {at_loss: ACTIVATION / 4, again: ACTIVATION, backward: ACTIVATION}
    assert timeline.peak_bytes <= evaluate(parts, found, assignment).bound_bytes


def test_weights_in_pieces_are_whole_for_one_operator_and_the_next() -> None:
    found, bound = replayed(chain(4), "4xA100-SXM-80GB", "ZeRO-3")
    program = found.program
    gathered = [b for b in program.buffers if b.part == "gathered weight"]
    assert len(gathered) == 8
    assert all(b.nbytes == WEIGHT for b in gathered)
    alive = [sum(b.start <= e <= b.stop for b in gathered) for e in range(len(program.events))]
    assert max(alive) == 2
    resident = [b for b in program.buffers if b.part == "weight"]
    assert sum(b.nbytes for b in resident) == 4 * WEIGHT / 4
    assert found.peak_bytes <= bound


def test_gradients_lie_there_from_the_start_with_several_micro_batches() -> None:
    graph = chain(2)
    whole = Cluster.parse("1xA100-SXM-80GB")
    found = decisions(graph)
    peaks = []
    for m in (1, 2):
        model = CostModel(
            whole, whole.meshes()[0], Precision.named("bf16"), Optimizer.named("sgd"), m
        )
        assignment = Assignment(
            whole.meshes()[0],
            m,
            (),
            {0: ("",), 1: ("",), 2: ("",)},
            {},
            {"w0": Scheme("ddp"), "w1": Scheme("ddp")},
        )
        timeline = replay(build_program(Parts(model, found), assignment)).timeline
        peaks.append(timeline[0])
    assert peaks[1] - peaks[0] == 2 * WEIGHT


def test_views_take_no_memory() -> None:
    b = GraphBuilder("views")
    x = b.input("x", (ROWS, WIDTH))
    w = b.parameter("w", (WIDTH, WIDTH))
    y = b.op("linear", (x, w), (ROWS, WIDTH), name="first", weight="nk")
    y = b.op("view", (y,), (ROWS, 4, WIDTH // 4), name="view")
    y = b.op("transpose", (y,), (4, ROWS, WIDTH // 4), name="turn", perm=[1, 0, 2])
    y = b.op("elementwise", (y,), (4, ROWS, WIDTH // 4), name="gelu", op="gelu")
    graph = b.build(
        b.op("reduce", (y,), (), name="loss", op="mean", dims=[0, 1, 2], keepdim=False), ROWS
    )
    found, bound = replayed(graph, "1xA100-SXM-80GB", "data parallel")
    names = {b.name for b in found.program.buffers if b.part == "activation"}
    assert names == {"first", "gelu", "loss"}
    assert "view" not in {e.subject for e in found.program.events}
    assert found.peak_bytes <= bound


@pytest.mark.parametrize("title", ["data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3"])
def test_every_buffer_is_inside_the_program(title: str) -> None:
    found, _ = replayed(chain(3), "4xA100-SXM-80GB", title)
    last = len(found.program.events) - 1
    assert all(0 <= b.start <= b.stop <= last for b in found.program.buffers)
    assert all(n < i for i, e in enumerate(found.program.events) for n in e.needs)
