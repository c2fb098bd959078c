"""Repeated layers are found by structure, and what is marked is a copy."""

import dataclasses
import itertools
import random

import pytest

from tensoropt import examples
from tensoropt.graph import Graph, GraphBuilder, signature
from tensoropt.importing.repeats import mark_repeats

WIDTH = 8


def without_names(graph: Graph) -> Graph:
    """The graph with no module path, so that structure is all there is."""
    operators = tuple(
        dataclasses.replace(o, name=f"op{i}", source="") for i, o in enumerate(graph.operators)
    )
    return dataclasses.replace(graph, operators=operators, blocks=())


def ranges(graph: Graph):
    return [(b.start, b.stop, b.kind) for b in graph.blocks]


def kinds(graph: Graph):
    """(length, number of blocks) of every kind, in order of kind."""
    found = {}
    for block in graph.blocks:
        found.setdefault(block.kind, []).append(block.stop - block.start)
    assert all(len(set(lengths)) == 1 for lengths in found.values())
    return [(lengths[0], len(lengths)) for _, lengths in sorted(found.items())]


def check_copies(graph: Graph):
    """Adjacent blocks of a kind map onto each other, tensor by tensor, and touch nothing else."""
    makers = graph.producers()
    uses = graph.consumers()
    for one, two in itertools.pairwise(graph.blocks):
        if one.kind != two.kind or one.stop != two.start:
            continue
        image: dict[str, str] = {}
        for a, b in zip(
            graph.operators[one.start : one.stop],
            graph.operators[two.start : two.stop],
            strict=True,
        ):
            assert signature(graph, a) == signature(graph, b)
            for x, y in zip((*a.inputs, *a.outputs), (*b.inputs, *b.outputs), strict=True):
                assert image.setdefault(x, y) == y, (x, y)
        assert len(set(image.values())) == len(image)
        for x, y in image.items():
            if y not in makers or x == y:
                continue
            position = makers[y][0]
            if graph.tensors[y].kind != "constant":
                assert one.start <= position < two.stop, (x, y)
        for operator in graph.operators[one.start : one.stop]:
            for name in operator.outputs:
                if graph.tensors[name].kind != "constant":
                    assert all(p < two.stop for p, _ in uses[name]), name


def layer(b: GraphBuilder, x: str, name: str, op: str = "relu", weight: str | None = None) -> str:
    w = weight or b.parameter(f"{name}.w", (WIDTH, WIDTH))
    y = b.op("linear", (x, w), (4, WIDTH), weight="nk")
    y = b.op("elementwise", (y,), (4, WIDTH), op=op)
    return b.op("elementwise", (x, y), (4, WIDTH), op="add")


def finish(b: GraphBuilder, x: str) -> Graph:
    return b.build(b.op("reduce", (x,), (), op="mean", dims=[0, 1], keepdim=False), 4)


def start() -> tuple[GraphBuilder, str]:
    b = GraphBuilder("test")
    x = b.input("x", (4, WIDTH))
    w = b.parameter("stem.w", (WIDTH, WIDTH))
    return b, b.op("linear", (x, w), (4, WIDTH), weight="nk")


@pytest.mark.parametrize("name", examples.names())
def test_examples_get_the_blocks_they_were_built_with(name):
    built = examples.named(name)
    found = mark_repeats(built.with_blocks(()))
    assert [(b.name, *r) for b, r in zip(found.blocks, ranges(found), strict=True)] == [
        (b.name, *r) for b, r in zip(built.blocks, ranges(built), strict=True)
    ]
    check_copies(found)


@pytest.mark.parametrize(
    "name", ["gpt-125m", "gpt2", "llama-3-8b", "mixtral-8x7b", "bert-base", "vit-b", "resnet-152"]
)
def test_structure_alone_is_enough(name):
    built = examples.named(name)
    found = mark_repeats(without_names(built))
    assert kinds(found) == kinds(built)
    assert len({b.name for b in found.blocks}) == len(found.blocks)
    check_copies(found)


def test_result_is_the_same_each_time():
    graph = without_names(examples.named("resnet-50"))
    assert ranges(mark_repeats(graph)) == ranges(mark_repeats(graph))


@pytest.mark.parametrize("count", [0, 1])
def test_what_occurs_once_is_no_repeat(count):
    b, x = start()
    for index in range(count):
        x = layer(b, x, f"l{index}", "gelu")
    assert mark_repeats(finish(b, x)).blocks == ()


def test_two_layers_are_two_blocks():
    b, x = start()
    x = layer(b, layer(b, x, "l0"), "l1")
    assert ranges(mark_repeats(finish(b, x))) == [(1, 4, 0), (4, 7, 0)]


def test_single_layer_models_have_no_blocks():
    graph = examples.named("gpt-2.7b", layers=1)
    assert mark_repeats(graph).blocks == ()


def test_unet_has_no_repeats():
    assert mark_repeats(examples.named("unet")).blocks == ()


def test_resnet_stages_are_kinds_of_their_own():
    assert kinds(mark_repeats(examples.named("resnet-50"))) == [(10, 2), (10, 3), (10, 5), (10, 2)]


def test_alternating_layers_repeat_as_pairs():
    b, x = start()
    for index in range(8):
        x = layer(b, x, f"l{index}", "relu" if index % 2 else "gelu")
    assert kinds(mark_repeats(finish(b, x))) == [(6, 4)]


def test_interleaved_towers_repeat_together():
    b, x = start()
    y = b.op("elementwise", (x,), (4, WIDTH), op="tanh")
    for index in range(5):
        x, y = layer(b, x, f"a{index}", "relu"), layer(b, y, f"b{index}", "gelu")
    found = mark_repeats(finish(b, b.op("elementwise", (x, y), (4, WIDTH), op="add")))
    assert kinds(found) == [(6, 5)]
    check_copies(found)


def test_encoder_and_decoder_are_two_kinds():
    b, x = start()
    for index in range(3):
        x = layer(b, x, f"encoder.{index}")
    memory = b.op("elementwise", (x,), (4, WIDTH), op="tanh")
    y = b.op("elementwise", (memory,), (4, WIDTH), op="sin")
    for index in range(4):
        y = b.op("elementwise", (y, memory), (4, WIDTH), op="mul")
        y = layer(b, y, f"decoder.{index}")
    found = mark_repeats(finish(b, y))
    assert kinds(found) == [(3, 3), (4, 4)]
    check_copies(found)


def test_equal_runs_apart_share_a_kind():
    b, x = start()
    for part, count in enumerate((4, 3)):
        for index in range(count):
            x = layer(b, x, f"{part}.{index}")
        x = b.op("elementwise", (x,), (4, WIDTH), op="tanh")
    assert kinds(mark_repeats(finish(b, x))) == [(3, 7)]


def test_outputs_read_after_the_run_are_no_copies():
    b, x = start()
    kept = []
    for index in range(6):
        x = layer(b, x, f"l{index}")
        kept.append(x)
    total = b.op("concat", kept, (4, 6 * WIDTH), dim=1)
    assert mark_repeats(finish(b, total)).blocks == ()


def test_an_output_read_later_splits_a_run():
    b, x = start()
    for index in range(6):
        x = layer(b, x, f"l{index}")
        if index == 2:
            kept = x
    x = b.op("elementwise", (x, kept), (4, WIDTH), op="mul")
    found = mark_repeats(finish(b, x))
    assert ranges(found) == [(1 + 3 * i, 4 + 3 * i, 0) for i in range(6)]


def test_skips_over_several_layers_are_no_repeat():
    b, x = start()
    history = [x]
    for index in range(8):
        wide = b.op("concat", [history[0], history[-1]], (4, 2 * WIDTH), dim=1)
        w = b.parameter(f"l{index}.w", (WIDTH, 2 * WIDTH))
        history = [*history[-3:], b.op("linear", (wide, w), (4, WIDTH), weight="nk")]
    # Layer i reads layers i - 1 and i - 4: only blocks of four layers look one block back.
    found = mark_repeats(finish(b, history[-1]))
    assert all(b.stop - b.start >= 8 for b in found.blocks)
    check_copies(found)


def test_different_outside_tensors_are_no_copies():
    b, x = start()
    skips = [b.op("elementwise", (x,), (4, WIDTH), op=f"act{i}") for i in range(4)]
    for index in range(4):
        x = b.op("elementwise", (x, skips[index]), (4, WIDTH), op="mul")
        x = layer(b, x, f"l{index}")
    assert mark_repeats(finish(b, x)).blocks == ()


def test_shared_weights_are_read_from_outside():
    b, x = start()
    shared = b.parameter("shared.w", (WIDTH, WIDTH))
    for index in range(4):
        x = layer(b, x, f"l{index}", weight=shared)
    assert kinds(mark_repeats(finish(b, x))) == [(3, 4)]


def test_a_weight_tied_across_some_layers_only_breaks_the_run():
    b, x = start()
    shared = b.parameter("shared.w", (WIDTH, WIDTH))
    for index in range(6):
        x = layer(b, x, f"l{index}", weight=shared if index in (2, 4) else None)
    check_copies(mark_repeats(finish(b, x)))
    found = mark_repeats(finish(b, x))
    assert ranges(found) == [(1, 4, 0), (4, 7, 0)]


def test_swapped_wiring_is_no_copy():
    b, x = start()
    for index in range(6):
        w = b.parameter(f"l{index}.w", (WIDTH, WIDTH))
        y = b.op("linear", (x, w), (4, WIDTH), weight="nk")
        pair = (x, y) if index < 3 else (y, x)
        x = b.op("elementwise", pair, (4, WIDTH), op="sub")
    assert ranges(mark_repeats(finish(b, x))) == [
        (start, start + 2, int(start >= 7)) for start in range(1, 13, 2)
    ]


def test_layers_without_parameters_are_not_marked():
    b, x = start()
    for _ in range(6):
        x = b.op("elementwise", (x,), (4, WIDTH), op="tanh")
    assert mark_repeats(finish(b, x)).blocks == ()


def test_module_paths_decide_between_equal_cuts():
    b, x = start()
    # Each module is (linear, add, act, linear, add): two cuts cross one tensor only.
    for index in range(4):
        for part in ("first", "second"):
            source = f"layers.{index}.{part}"
            w = b.parameter(f"{source}.w", (WIDTH, WIDTH))
            y = b.op("linear", (x, w), (4, WIDTH), weight="nk", source=source)
            x = b.op("elementwise", (x, y), (4, WIDTH), op="add", source=source)
            if part == "first":
                x = b.op("elementwise", (x,), (4, WIDTH), op="relu", source=source)
    found = mark_repeats(finish(b, x))
    assert [b.name for b in found.blocks] == [f"layers.{i}" for i in range(4)]
    assert ranges(found) == [(1 + 5 * i, 6 + 5 * i, 0) for i in range(4)]


def test_operators_that_all_occur_twice_in_a_layer():
    b, x = start()
    for index in range(5):
        for op in ("relu", "relu", "tanh", "tanh"):
            name = f"{index}.{len(b.operators)}"
            w = b.parameter(f"{name}.w", (WIDTH, WIDTH))
            x = b.op("linear", (x, w), (4, WIDTH), weight="nk")
            x = b.op("elementwise", (x,), (4, WIDTH), op=op)
    found = mark_repeats(finish(b, x))
    check_copies(found)
    assert kinds(found) == [(8, 5)]


@pytest.mark.parametrize("seed", range(60))
def test_random_stacks_are_marked_with_true_copies(seed):
    draw = random.Random(seed)
    b, x = start()
    memory = b.op("elementwise", (x,), (4, WIDTH), op="memory")
    longest = 0
    for part in range(draw.randint(1, 4)):
        ops = [draw.choice(["relu", "gelu", "tanh"]) for _ in range(draw.randint(1, 4))]
        mixes = [draw.random() < 0.3 for _ in ops]
        repeats = draw.randint(1, 6)
        for index in range(repeats):
            for number, (op, mix) in enumerate(zip(ops, mixes, strict=True)):
                if mix:
                    x = b.op("elementwise", (x, memory), (4, WIDTH), op="mul")
                x = layer(b, x, f"{part}.{index}.{number}", op)
        if repeats > 1:
            longest = max(longest, (repeats - 1) * sum(3 + mix for mix in mixes))
        x = b.op("elementwise", (x,), (4, WIDTH), op=f"end{part}")
        if draw.random() < 0.5:
            memory = b.op("elementwise", (x,), (4, WIDTH), op="memory")
    found = mark_repeats(finish(b, x))
    check_copies(found)
    # The part with the most copies is found, or something that saves as much.
    saved = sum(length * (count - 1) for length, count in kinds(found))
    assert saved >= longest
