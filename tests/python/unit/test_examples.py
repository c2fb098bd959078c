"""The example networks have the sizes of the published models and are well formed."""

import itertools
import math

import pytest

from tensoropt import examples
from tensoropt.errors import GraphError
from tensoropt.graph import Graph, signature

TINY = {"batch_size": 2, "sequence_length": 8, "hidden": 16, "layers": 3, "heads": 4}


# Figures as published with the models: torchvision's and transformers' own parameter counts.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "vit-b": 86_567_656,
    "vit-l": 304_326_632,
    "vit-h": 632_045_800,
    "resnet-18": 11_689_512,
    "resnet-34": 21_797_672,
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
    "resnet-152": 60_192_808,
    "wide-resnet-50": 68_883_240,
    "wide-resnet-101": 126_886_696,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_parameter_count_is_the_published_one(name, count):
    assert examples.named(name).parameter_count == count


@pytest.mark.parametrize(
    ("name", "layers", "hidden"),
    [
        ("gpt-125m", 12, 768),
        ("gpt-1.3b", 24, 2048),
        ("gpt-2.7b", 32, 2560),
        ("gpt-6.7b", 32, 4096),
        ("gpt-13b", 40, 5120),
        ("gpt-175b", 96, 12288),
    ],
)
def test_gpt_parameter_count_is_the_closed_formula(name, layers, hidden):
    graph = examples.named(name)
    layer = 12 * hidden**2 + 13 * hidden
    expected = layers * layer + (50304 + 2048) * hidden + 2 * hidden
    assert graph.parameter_count == expected
    assert len(graph.blocks) == layers
    assert graph.batch_size == 32
    assert graph.tokens_per_sample == 2048


def test_lstm_parameter_count_is_the_closed_formula():
    graph = examples.lstm_language_model(
        batch_size=2, sequence_length=8, hidden=16, layers=3, vocabulary=100, embedding=12
    )
    layer = 4 * 16 * (16 + 16 + 2)
    first = 4 * 16 * (12 + 16 + 2)
    assert graph.parameter_count == 100 * 12 + first + 2 * layer + 100 * 17


def test_unet_parameter_count_is_the_closed_formula():
    base, levels = 8, 3
    graph = examples.unet(batch_size=2, image=32, base=base, levels=levels, classes=5)

    def double(inner, outer):
        return 9 * inner * outer + 9 * outer * outer + 4 * outer

    widths = [base * 2**level for level in range(levels + 1)]
    down = sum(double(i, o) for i, o in itertools.pairwise([3, *widths]))
    up = sum(4 * 2 * w * w + w + double(2 * w, w) for w in widths[:-1])
    assert graph.parameter_count == down + up + base * 5 + 5


def all_examples() -> list[Graph]:
    return [examples.named(name) for name in examples.names()]


def test_every_example_is_well_formed():
    for graph in all_examples():
        uses = graph.consumers()
        produced = graph.producers()
        for name, tensor in graph.tensors.items():
            assert uses[name] or name == graph.loss or produced[name][1] > 0, (graph.name, name)
            assert tensor.kind != "activation" or name in produced
        for operator in graph.operators:
            assert operator.family != "opaque"
            check_shapes(graph, operator)


def check_shapes(graph, operator):
    x, *rest = graph.operands(operator) or (None,)
    y = graph.results(operator)[0]
    attributes = operator.attributes
    if operator.family == "linear":
        assert rest[0].shape == (y.shape[-1], x.shape[-1])
        assert x.shape[:-1] == y.shape[:-1]
    elif operator.family == "view":
        assert x.size == y.size
    elif operator.family == "transpose":
        assert sorted(attributes["perm"]) == list(range(len(x.shape)))
        assert y.shape == tuple(x.shape[d] for d in attributes["perm"])
    elif operator.family == "attention":
        key, value = rest[:2]
        assert key.shape == value.shape
        assert x.shape[1] % key.shape[1] == 0
        assert y.shape == x.shape
    elif operator.family == "matmul":
        assert x.shape[-1] == rest[0].shape[-2]
    elif operator.family == "moe_dispatch":
        assert y.shape[0] * y.shape[1] >= math.prod(rest[0].shape)


def test_blocks_are_copies_of_each_other():
    for graph in all_examples():
        kinds = {}
        for block in graph.blocks:
            operators = graph.operators[block.start : block.stop]
            form = tuple(signature(graph, o) for o in operators)
            assert kinds.setdefault(block.kind, form) == form, (graph.name, block.name)


def test_operator_counts_do_not_depend_on_the_sizes():
    small = examples.transformer(**TINY, vocabulary=50)
    large = examples.transformer(
        batch_size=4, sequence_length=32, hidden=64, layers=3, heads=8, vocabulary=500
    )
    assert [o.family for o in small.operators] == [o.family for o in large.operators]


def test_choices_of_a_transformer_change_what_they_name():
    def count(**choices):
        return examples.transformer(**TINY, vocabulary=50, **choices).parameter_count

    base = count()
    assert count(tied=False) == base + 50 * 16
    assert count(positions="rotary") == base - 8 * 16
    assert count(max_positions=20) == base + 12 * 16
    assert count(kv_heads=2) == base - 3 * 2 * (16 * 8 + 8)
    assert count(norm="rms", bias=True) == base - 7 * 16
    assert count(activation="swiglu") == base + 3 * (16 * 64 + 64)
    assert count(intermediate=32) == base - 3 * (2 * 16 * 32 + 32)
    assert count(head_dim=8) == base + 3 * (3 * (16 * 16 + 16) + 16 * 16)

    families = [
        o.family for o in examples.transformer(**TINY, vocabulary=50, dropout=0.1).operators
    ]
    assert families.count("dropout") == 1 + 2 * 3
    plain = [o.family for o in examples.transformer(**TINY, vocabulary=50).operators]
    assert "dropout" not in plain


def test_tied_embedding_is_one_tensor_with_two_uses():
    graph = examples.transformer(**TINY, vocabulary=50)
    families = [graph.operators[p].family for p, _ in graph.consumers()["embeddings.token.weight"]]
    assert families == ["embedding", "linear"]


def test_vocabulary_dims_may_be_padded():
    graph = examples.transformer(**TINY, vocabulary=50, tied=False)
    padded = {name: t.padded_dims for name, t in graph.tensors.items() if t.padded_dims}
    assert padded == {"embeddings.token.weight": (0,), "head.weight": (0,), "head": (2,)}


def test_rotary_tables_are_constants_without_gradient():
    graph = examples.transformer(**TINY, vocabulary=50, positions="rotary")
    for name in ("rotary.cosine", "rotary.sine"):
        assert graph.tensors[name].kind == "constant"
        assert not graph.tensors[name].requires_grad
        assert graph.tensors[name].shape == (8, 4)


def test_experts_see_every_token_the_chosen_number_of_times():
    graph = examples.mixture_of_experts(
        **TINY, vocabulary=50, experts=4, experts_per_token=2, intermediate=24
    )
    dispatched = graph.tensors["layers.0.moe.moe_dispatch"].shape
    assert dispatched == (4, 2 * 8 * 2 // 4, 16)
    assert not graph.tensors["layers.0.moe.topk:1"].requires_grad
    assert graph.tensors["layers.0.moe.topk:0"].requires_grad


def test_named_models_take_overrides():
    graph = examples.named("GPT-2.7B", batch_size=8, sequence_length=128, layers=2)
    assert graph.batch_size == 8
    assert graph.tensors["ids"].shape == (8, 128)
    assert len(graph.blocks) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: examples.named("gpt-2.8b"), "unknown example 'gpt-2.8b': did you mean 'gpt-2.7b'"),
        (lambda: examples.named("q"), "'tensoropt examples'"),
        (
            lambda: examples.named("resnet-50", sequence_length=8),
            "takes no argument sequence_length",
        ),
        (
            lambda: examples.named("gpt2", sequence_length=2048),
            "exceeds the 1024 learned positions",
        ),
        (lambda: examples.named("gpt2", heads=7), "heads 7 does not divide hidden 768"),
        (lambda: examples.named("gpt2", kv_heads=5), "kv_heads 5 does not divide heads 12"),
        (lambda: examples.named("gpt2", layers=0), "layers is 0, expected a positive integer"),
        (lambda: examples.named("gpt2", batch_size=1.5), "batch_size is 1.5"),
        (lambda: examples.named("gpt2", activation="tan"), "activation is 'tan'"),
        (lambda: examples.named("gpt2", norm="batch"), "norm is 'batch'"),
        (lambda: examples.named("gpt2", positions="none"), "positions is 'none'"),
        (lambda: examples.named("gpt2", dropout=1.0), "dropout is 1.0"),
        (lambda: examples.named("gpt2", positions="rotary", head_dim=5), "even head_dim"),
        (lambda: examples.named("mixtral-8x7b", experts_per_token=9), "expected at most experts=8"),
        (lambda: examples.named("vit-h", patch=15), "patch 15 does not divide image 224"),
        (lambda: examples.resnet(batch_size=1, depth=51), "depth is 51, expected one of"),
        (lambda: examples.resnet(batch_size=1, depth=18, width=2), "has no bottleneck"),
        (lambda: examples.resnet(batch_size=1, image=100), "multiple of 32"),
        (lambda: examples.unet(batch_size=1, image=100), "multiple of 16"),
        (lambda: examples.named("lstm", tied=True, embedding=8), "a tied head needs"),
    ],
)
def test_bad_sizes_are_named(call, message):
    with pytest.raises(GraphError, match=message.replace("(", r"\(")):
        call()


def test_a_graph_in_one_line() -> None:
    graph = examples.named("gpt2-xl")
    expected = f"<Graph gpt2-xl: {len(graph.operators):,} operators, 1,557,611,200 parameters, "
    assert repr(graph) == f"{expected}batch 32>"
