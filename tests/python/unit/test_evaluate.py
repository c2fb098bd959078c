"""Assignments and their evaluation on networks small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensoropt import examples
from tensoropt.cluster import Cluster, Mesh
from tensoropt.cost import Optimizer, Precision
from tensoropt.cost.assignment import Assignment, Words
from tensoropt.cost.evaluate import Evaluation, evaluate
from tensoropt.cost.keeping import Keepers
from tensoropt.cost.model import CostModel
from tensoropt.cost.parts import Parts
from tensoropt.cost.storage import Scheme
from tensoropt.errors import ShardingError
from tensoropt.graph import Block, Graph, GraphBuilder
from tensoropt.sharding.decisions import Decisions, decisions

ROWS, WIDTH = 64, 256
ACTIVATION = 2 * ROWS * WIDTH
CLUSTER = Cluster.parse("4xA100-SXM-80GB")
LINE, SQUARE = CLUSTER.meshes(2)
DDP = Scheme("ddp")


def model(mesh: Mesh = LINE, m: int = 1) -> CostModel:
    return CostModel(CLUSTER, mesh, Precision.named("bf16"), Optimizer.named("adamw"), m)


def two_linears(bias: bool = False) -> Graph:
    """Column and row: x w1 (and GELU) w2, mean of squares left out."""
    b = GraphBuilder("pair")
    x = b.input("x", (ROWS, WIDTH))
    operands = [x, b.parameter("w1", (4 * WIDTH, WIDTH))]
    operands += [b.parameter("b1", (4 * WIDTH,))] if bias else []
    y = b.op("linear", operands, (ROWS, 4 * WIDTH), name="up", weight="nk")
    y = b.op("elementwise", (y,), (ROWS, 4 * WIDTH), name="gelu", op="gelu")
    operands = [y, b.parameter("w2", (WIDTH, 4 * WIDTH))]
    operands += [b.parameter("b2", (WIDTH,))] if bias else []
    y = b.op("linear", operands, (ROWS, WIDTH), name="down", weight="nk")
    loss = b.op("reduce", (y,), (), name="loss", op="mean", dims=[0, 1], keepdim=False)
    return b.build(loss, batch_size=ROWS)


def assign(
    graph: Graph, labels: list[str], mesh: Mesh = LINE, **changes: object
) -> tuple[Decisions, Assignment]:
    """An assignment on a mesh of one axis, or with the same label on both axes."""
    found = decisions(graph)
    names = [n for g in found.groups for n in g.names]
    plain = Assignment(
        mesh,
        1,
        (False,) * len(graph.blocks),
        {p: (label,) * len(mesh.shape) for p, label in zip(found.rules, labels, strict=True)},
        {},
        dict.fromkeys(names, DDP),
    )
    return found, replace(plain, **changes)  # type: ignore[arg-type]


def traffic(found: Evaluation) -> list[tuple[str, str, str, int, int]]:
    return [(u.kind, u.phase, u.subject, u.nbytes, u.count) for u in found.collectives]


def test_megatron_pair() -> None:
    """Columns, then rows: one all-reduce forward of the result, none backward (x is an input)."""
    found, assignment = assign(two_linears(), ["n", "d1", "k", ""])
    result = evaluate(model(), found, assignment)
    assert traffic(result) == [("all_reduce", "forward", "down", ACTIVATION, 1)]
    weights = 2 * 4 * WIDTH * WIDTH
    assert result.weight_bytes == 2 * weights / 4
    assert result.optimizer_bytes == 6 * 2 * weights / 4
    # x whole, the operands of GELU and of the second product in four parts.
    assert result.saved_bytes == ACTIVATION + 2 * 4 * ACTIVATION / 4
    assert set(result.saved_by_tensor) == {"up", "gelu"}


def test_data_parallel_pair() -> None:
    found, assignment = assign(two_linears(), ["m0", "d0", "m0", "d0"])
    result = evaluate(model(), found, assignment)
    weight = 2 * 4 * WIDTH * WIDTH
    assert traffic(result) == [
        # The mean is a pending sum: its scalar is reduced, as reading it needs.
        ("all_reduce", "forward", "loss", 4, 1),
        ("all_reduce", "step", "w1", weight, 1),
        ("all_reduce", "step", "w2", weight, 1),
    ]
    assert result.saved_bytes == 9 * ACTIVATION / 4
    assert result.time_s < result.compute_s + result.communication_s


def test_a_row_parallel_bias_needs_no_sync() -> None:
    """Added on one rank to a pending sum, its gradient is whole on every rank."""
    found, assignment = assign(two_linears(bias=True), ["n", "d1", "k", ""])
    result = evaluate(model(), found, assignment)
    assert traffic(result) == [("all_reduce", "forward", "down", ACTIVATION, 1)]


def test_micro_batches_repeat_all_but_the_step() -> None:
    graph = two_linears()
    found, assignment = assign(graph, ["m0", "d0", "m0", "d0"])
    once = evaluate(model(), found, assignment)
    thrice = evaluate(model(m=3), found, replace(assignment, micro_batches=3))
    counts = {use.subject: use.count for use in thrice.collectives}
    assert counts == {"loss": 3, "w1": 1, "w2": 1}
    assert thrice.saved_bytes == once.saved_bytes
    assert thrice.compute_s > 2 * once.compute_s


def test_what_hides_is_what_runs_every_micro_batch() -> None:
    """ZeRO-2 over one axis leaves the other to the step; where nothing runs before, that hides."""
    graph = two_linears()
    found, assignment = assign(graph, ["m0", "d0", "m0", "d0"], SQUARE)
    parts = Parts(model(SQUARE), found)
    behind = (1.0, 1.0)
    state = (1, 1)
    ddp = parts.parameter("w1", state, DDP, *behind)
    split = parts.parameter("w1", state, Scheme("zero2", (1,)), *behind)
    replicated = parts.parameter("w1", (1, 0), Scheme("zero2", (1,)), *behind)
    kappa = parts.kappa

    def seconds(moves: tuple[object, ...]) -> float:
        return sum(move.seconds for move in moves)  # type: ignore[attr-defined]

    assert ddp.exposed_s == pytest.approx(kappa * seconds(ddp.step_backward))
    assert split.exposed_s == pytest.approx(
        kappa * seconds(split.backward)
        + seconds(split.step_backward)
        + kappa * seconds(split.step_forward)
    )
    # Along axis 1 the gradient is the same on all ranks: a slice, and nothing runs per micro-batch.
    assert replicated.backward == ()
    assert replicated.exposed_s == pytest.approx(
        kappa * seconds(replicated.step_backward) + kappa * seconds(replicated.step_forward)
    )
    assert evaluate(parts, found, assignment).time_s > 0


@pytest.mark.parametrize("scheme", ["zero2", "zero3", "zero3_keep"])
def test_a_tied_weight_moves_once_for_each_reader(scheme: str) -> None:
    graph = two_linears()
    parts = Parts(model(), decisions(graph))
    one = parts.parameter("w1", (1,), Scheme(scheme, (0,)))
    two = parts.parameter("w1", (1,), Scheme(scheme, (0,)), readers=2)
    assert len(two.backward) == 2 * len(one.backward)
    # What is kept is gathered once.
    assert len(two.forward) == len(one.forward) * (1 if scheme == "zero3_keep" else 2)


def test_zero3_gathers_again_where_a_block_is_recomputed() -> None:
    graph = replace(two_linears(), blocks=(Block("b", 0, 3, 0),))
    names = {"w1": Scheme("zero3", (0,)), "w2": Scheme("zero3_keep", (0,))}
    found, assignment = assign(graph, ["m0", "d0", "m0", "d0"], schemes=names)
    assignment = replace(assignment, tensors={"down": (3,)})
    kept = evaluate(model(), found, assignment, recomputable=True)
    redone = evaluate(model(), found, replace(assignment, recompute=(True,)))
    again = [u.subject for u in redone.collectives if u.phase == "recompute"]
    assert again == ["w1"]
    assert [u.subject for u in kept.collectives if u.phase == "recompute"] == []
    # Without a block's own tensors, only what crosses its border stays.
    assert redone.saved_bytes < kept.saved_bytes
    assert redone.transient_bytes > kept.transient_bytes


# Who keeps what.


def attention_then_linear() -> Graph:
    b = GraphBuilder("views")
    shape = (4, 8, 16, 32)
    q, k, v = (
        b.op("elementwise", (b.input(n, shape), b.parameter(f"s{n}", (1,))), shape, op="mul")
        for n in "qkv"
    )
    y = b.op("attention", (q, k, v), shape, name="attention", causal=False, scale=1.0)
    y = b.op("transpose", (y,), (4, 16, 8, 32), name="turn", perm=[0, 2, 1, 3])
    y = b.op("view", (y,), (4, 16, 256), name="join")
    y = b.op("linear", (y, b.parameter("w", (256, 256))), (4, 16, 256), name="out", weight="nk")
    loss = b.op("reduce", (y,), (), name="loss", op="mean", dims=[0, 1, 2], keepdim=False)
    return b.build(loss, batch_size=4)


def test_a_view_is_not_kept_twice() -> None:
    """Attention keeps its result and the linear its operand: through views, one tensor."""
    graph = attention_then_linear()
    found = decisions(graph)
    labels = [""] * len(found.rules)
    _, assignment = assign(graph, labels)
    result = evaluate(model(), found, assignment)
    size = 2 * graph.tensors["attention"].size
    assert result.saved_by_tensor["attention"] == size + 4 * 4 * 8 * 16
    assert "join" not in result.saved_by_tensor
    assert "turn" not in result.saved_by_tensor


def test_a_view_gathered_on_its_way_is_a_copy() -> None:
    graph = attention_then_linear()
    found = decisions(graph)
    place = {o.name: p for p, o in enumerate(graph.operators)}
    labels = dict.fromkeys(found.rules, "")
    labels[place["attention"]] = "b"
    labels[place["turn"]] = "d0"
    labels[place["join"]] = "d0"
    _, assignment = assign(graph, list(labels.values()))
    result = evaluate(model(), found, assignment)
    size = 2 * graph.tensors["attention"].size
    assert result.saved_by_tensor["attention"] == size / 4 + 4 * 4 * 8 * 16 / 4
    assert result.saved_by_tensor["join"] == size
    again = replace(assignment, regathered=frozenset({("join", place["out"], 0)}))
    assert "join" not in evaluate(model(), found, again).saved_by_tensor


def residual() -> Graph:
    """A product, a branch of two products that is added to it, and the mean."""
    b = GraphBuilder("residual")
    shape = (ROWS, WIDTH)
    x = b.op("linear", (b.input("x", shape), b.parameter("w0", (WIDTH, WIDTH))), shape, name="in")
    y = b.op("linear", (x, b.parameter("w1", (WIDTH, WIDTH))), shape, name="up")
    y = b.op("linear", (y, b.parameter("w2", (WIDTH, WIDTH))), shape, name="down")
    y = b.op("elementwise", (x, y), shape, name="add", op="add")
    loss = b.op("reduce", (y,), (), name="loss", op="mean", dims=[0, 1], keepdim=False)
    return b.build(loss, batch_size=ROWS)


def test_a_gradient_that_waits_in_a_larger_layout_is_held() -> None:
    """The sum is made in four parts, but the tensor before the branch is whole on every rank.

    Its gradient waits while the branch runs backward, for which it is kept itself; nobody keeps the
    sum, whose place the gradient might take.
    """
    labels = ["", "n", "k", "d0", "d0"]
    found, assignment = assign(residual(), labels, tensors={"in": (1,)})
    result = evaluate(model(), found, assignment)
    assert result.held_bytes == 3 * ACTIVATION / 4 + ACTIVATION
    # The inputs of all three products; what is held is no tensor of the forward pass.
    kept = sum(result.saved_by_tensor.values())
    assert kept == (1 + 1 + 1 / 4) * ACTIVATION
    assert result.saved_bytes == kept + result.held_bytes
    labels[3:] = ["", ""]
    found, assignment = assign(residual(), labels, tensors={"in": (1,)})
    assert evaluate(model(), found, assignment).held_bytes == ACTIVATION


def test_readers_of_one_tensor_add_to_a_gradient_that_lies_there() -> None:
    """What the branch's first product needs, beside the gradient of the sum.

    And beside its operand, should that be gathered again; not so where all axes shard it.
    """
    found, assignment = assign(residual(), ["n", "n", "k", "", ""], tensors={"in": (1,)})
    weight = 2 * WIDTH * WIDTH
    up = ACTIVATION + ACTIVATION / 4 + weight / 4
    assert evaluate(model(), found, assignment).transient_bytes == up + 2 * ACTIVATION
    labels = ["m0", "m0", "m0", "d0", "d0"]
    found, assignment = assign(residual(), labels, tensors={"in": (3,)})
    up = 2 * ACTIVATION / 4 + weight
    assert evaluate(model(), found, assignment).transient_bytes == up + ACTIVATION / 4


def saved_with_and_without(
    graph: Graph, labels: list[str], tensors: dict[str, tuple[int, ...]], redo: bool
) -> tuple[float, float]:
    """Saved bytes if the first tensor is kept as gathered, and if it is gathered again."""
    found, assignment = assign(graph, labels, tensors=tensors)
    again = replace(assignment, regathered=frozenset({(next(iter(tensors)), None, 0)}))
    kept, gathered = (
        evaluate(model(), found, each, recomputable=redo).saved_bytes
        for each in (assignment, again)
    )
    return kept, gathered


def test_gathering_again_saves_nothing_before_a_block_that_may_be_recomputed() -> None:
    """It is done before the block runs forward once more, and for all of its backward pass.

    What it is gathered from is kept as well.
    """
    graph = replace(two_linears(), blocks=(Block("b", 1, 3, 0),))
    labels, tensors = ["m0", "", "", ""], {"up": (1,), "down": (1,)}
    kept, again = saved_with_and_without(graph, labels, tensors, False)
    assert kept - again == 4 * ACTIVATION - ACTIVATION
    kept, again = saved_with_and_without(graph, labels, tensors, True)
    assert again == kept + ACTIVATION


def test_gathering_again_saves_nothing_if_others_run_between_the_readers() -> None:
    labels = ["m0", "n", "k", "", ""]
    kept, again = saved_with_and_without(residual(), labels, {"in": (1,)}, False)
    assert again == kept + ACTIVATION / 4


def test_indices_are_kept_though_they_carry_no_gradient() -> None:
    b = GraphBuilder("topk")
    x = b.op("elementwise", (b.input("x", (8, 16)), b.parameter("s", (16,))), (8, 16), op="mul")
    values, indices = b.ops(
        "topk", (x,), [(8, 2), (8, 2)], name="top", dtypes=["float32", "int64"], k=2, dim=1
    )
    y = b.op("elementwise", (indices,), (8, 2), name="cast", dtype="float32", op="cast")
    y = b.op("elementwise", (values, y), (8, 2), name="add", op="add")
    graph = b.build(b.op("reduce", (y,), (), name="loss", op="mean", dims=[0, 1], keepdim=False), 8)
    found, assignment = assign(graph, [""] * len(graph.operators))
    result = evaluate(model(), found, assignment)
    assert result.saved_by_tensor["top:1"] == 8 * 8 * 2


def test_only_tensors_that_start_a_block_are_kept_for_it() -> None:
    """Sums keep nothing; recomputing blocks of them keeps the inputs, not the last result."""
    b = GraphBuilder("sums")
    x = b.op("elementwise", (b.input("x", (8, 4)), b.parameter("s", (4,))), (8, 4), op="mul")
    first = x
    for i in range(4):
        x = b.op("elementwise", (x, b.parameter(f"b{i}", (4,))), (8, 4), name=f"a{i}", op="add")
    loss = b.op("reduce", (x,), (), name="loss", op="mean", dims=[0, 1], keepdim=False)
    graph = b.build(loss, batch_size=8, blocks=[Block("b0", 1, 3, 0), Block("b1", 3, 5, 0)])
    found = decisions(graph)
    kept = {}
    for recomputable in (False, True):
        keepers = Keepers(found, recomputable=recomputable)
        links = Parts(model(), found).links
        kept[recomputable] = {link.tensor for link in links if keepers.of(link).reader}
    assert kept == {False: set(), True: {first, "a1"}}


# Illegal assignments.


def test_illegal_assignments_are_named() -> None:
    graph = two_linears()
    found, good = assign(graph, ["m0", "d0", "m0", "d0"])

    def fails(text: str, **changes: object) -> None:
        bad = replace(good, **changes)  # type: ignore[arg-type]
        with pytest.raises(ShardingError, match=text):
            evaluate(model(), found, bad)

    fails("'up' has label 'q'", operators={**good.operators, 0: ("q",)})
    fails("'up' has labels .* expected one for each of the 1", operators={0: ("", "")})
    fails("micro-batches, the cost model", micro_batches=2)
    fails("for mesh 2x2, the cost model for 4", mesh=SQUARE)
    fails(
        "'w1': zero1 over axes",
        operators={**good.operators, 0: ("n",)},
        schemes={"w1": Scheme("zero1", (0,)), "w2": DDP},
    )
    fails("gathered again for operator 'gelu'", regathered=frozenset({("up", 1, 0)}))
    # The mean is asked to pass a pending sum on, but gets rows: nothing becomes a pending sum.
    fails(r"'down' cannot go from \[S0\] to \[P\]", operators={**good.operators, 3: ("~0",)})
    fails("operator 'down' has no configuration", operators={0: ("",), 1: ("",), 3: ("",)})


def test_sizes_that_do_not_divide_are_named() -> None:
    b = GraphBuilder("odd")
    x = b.input("x", (6, 10))
    y = b.op("linear", (x, b.parameter("w", (10, 10))), (6, 10), name="up", weight="nk")
    loss = b.op("reduce", (y,), (), name="loss", op="mean", dims=[0, 1], keepdim=False)
    found, bad = assign(b.build(loss, batch_size=6), ["m0", ""])
    with pytest.raises(ShardingError, match="dim 'm0' of size 6 cannot be split 4 ways"):
        evaluate(model(), found, bad)
    with pytest.raises(ShardingError, match="dim 'm0' of size 6 cannot be split 4 ways"):
        bad.check(found)


def words(**changes: object) -> Words:
    found, good = assign(two_linears(), ["m0", "d0", "m0", "d0"])
    return replace(good.to_words(found), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"operators": {"up": ("m0",)}}, "operator 'gelu' of the graph is missing"),
        ({"tensors": {"up": ("R",)}}, "tensor 'up' of the strategy is not in the graph"),
        ({"parameters": {}}, "parameter 'w1' of the graph is missing"),
        ({"recompute": {"b0": True}}, "block 'b0' of the strategy is not in the graph"),
        ({"regathered": frozenset({("up", "nobody", 0)})}, "no operator 'nobody'"),
        ({"regathered": frozenset({("up", "gelu", 1)})}, "'up' as operand 0, not as 1"),
        ({"regathered": frozenset({("up", "down", 0)})}, "'up' as operand none, not as 0"),
        (
            {"parameters": {"w1": (("R",), "zero9", ()), "w2": (("R",), "ddp", ())}},
            "scheme 'zero9', expected one of ddp",
        ),
    ],
)
def test_wrong_words_are_named(changes: dict[str, object], text: str) -> None:
    found = decisions(two_linears())
    with pytest.raises(ShardingError, match=text):
        Assignment.from_words(found, LINE, 1, words(**changes))


def test_states_in_words() -> None:
    graph = examples.named("gpt2", layers=1, batch_size=4, sequence_length=32)
    found = decisions(graph)
    operators = dict.fromkeys(found.rules, ("",))
    shared = {str(n.key): (0,) for n in found.nodes if n.kind == "tensor"}
    tied = {g.names[0]: (1,) for g in found.groups if len(g.readers) > 1}
    assert tied
    names = [n for g in found.groups for n in g.names]
    blocks = (False,) * len(graph.blocks)
    assignment = Assignment(LINE, 1, blocks, operators, shared | tied, dict.fromkeys(names, DDP))
    said = assignment.to_words(found)
    assert said.tensors["embeddings.token.weight"] == ("R/P",)
    assert said.parameters["embeddings.token.weight"] == (("R",), "ddp", ())
    assert Assignment.from_words(found, LINE, 1, said) == assignment
    for wrong in ("P", "S", "Sx", "S7"):
        tensors = {**said.tensors, "embeddings.token.weight": (wrong,)}
        with pytest.raises(ShardingError, match=r"embeddings\.token\.weight"):
            Assignment.from_words(found, LINE, 1, replace(said, tensors=tensors))
