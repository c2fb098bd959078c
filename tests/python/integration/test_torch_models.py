"""Well-known architectures from PyTorch: structure, sizes, and numbers where they are small."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import models  # noqa: E402
from interpret import compare  # noqa: E402
from tensoropt.importing.huggingface import import_huggingface  # noqa: E402
from tensoropt.importing.torch_export import import_torch  # noqa: E402
from tensoropt.sharding.rules import rule_for  # noqa: E402

# Real widths, few layers: names, parameters outside the layers, and parameters of one layer.
GPT2_XL = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 1600, "n_head": 25,
    "n_positions": 1024, "vocab_size": 50257,
}  # fmt: skip
LLAMA_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
BERT_LARGE = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 1024,
    "num_attention_heads": 16, "intermediate_size": 4096,
}  # fmt: skip
VIT_L = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 1024,
    "num_attention_heads": 16, "intermediate_size": 4096,
}  # fmt: skip
T5_BASE = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 768,
    "d_ff": 3072, "num_heads": 12,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 256,
    "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2,
    "vocab_size": 1000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip

# For each: the key that says how many layers, layers of the test, sequence, parameters of a layer,
# other parameters (both from the published architecture, not from the model).
ARCHITECTURES = {
    "gpt2-xl": (GPT2_XL, "n_layer", 64, 12 * 1600**2 + 13 * 1600,
                (50257 + 1024) * 1600 + 2 * 1600),
    "llama-3-8b": (LLAMA_8B, "num_hidden_layers", 64,
                   2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096,
                   2 * 128256 * 4096 + 4096),
    "bert-large": (BERT_LARGE, "num_hidden_layers", 64, 12 * 1024**2 + 13 * 1024,
                   (30522 + 512 + 2) * 1024 + 2 * 1024 + 1024**2 + 3 * 1024 + 30522),
    "vit-large": (VIT_L, "num_hidden_layers", None, 12 * 1024**2 + 13 * 1024,
                  (3 * 16**2 + 1) * 1024 + (197 + 1) * 1024 + 2 * 1024 + 2 * 1024 + 2),
    "t5-base": (T5_BASE, "num_layers", 48,
                4 * 768**2 + 2 * 768 * 3072 + 2 * 768 + 8 * 768**2 + 2 * 768 * 3072 + 3 * 768,
                32128 * 768 + 2 * 768 + 2 * 32 * 12),
    "mixtral": (MIXTRAL, "num_hidden_layers", 32,
                2 * 256**2 + 2 * 256 * 64 + 8 * 256 + 8 * 3 * 256 * 512 + 2 * 256,
                2 * 1000 * 256 + 256),
}  # fmt: skip


@pytest.fixture(scope="module", params=ARCHITECTURES)
def imported(request):
    config, key, sequence, layer, rest = ARCHITECTURES[request.param]
    graph = import_huggingface({**config, key: 3}, batch_size=2, sequence_length=sequence)
    return request.param, graph, layer, rest


def test_parameters_are_those_of_the_architecture(imported):
    name, graph, layer, rest = imported
    assert graph.parameter_count == 3 * layer + rest, name


def test_every_operator_has_a_rule_and_none_is_opaque(imported):
    name, graph, _, _ = imported
    assert [o.source for o in graph.operators if o.family == "opaque"] == [], name
    for operator in graph.operators:
        rule_for(graph, operator)


def test_layers_are_marked(imported):
    name, graph, _, _ = imported
    # T5's first layer holds the table of relative positions that the others read.
    kinds = sorted(block.kind for block in graph.blocks)
    assert kinds == ([0, 0, 1, 1] if name == "t5-base" else [0, 0, 0]), name


def test_projections_act_on_tokens_and_heads_can_be_sharded(imported):
    name, graph, _, _ = imported
    for operator in graph.operators:
        if operator.family == "attention":
            q, k, v = (graph.tensors[n].shape for n in operator.inputs[:3])
            assert k[1] == v[1]
            assert q[1] % k[1] == 0
        if operator.family == "linear" and "classifier" not in operator.name:
            assert len(graph.tensors[operator.inputs[0]].shape) == 3, (name, operator.name)
        assert operator.family != "split", (name, operator.name)


def test_decoders_are_causal_without_a_mask(imported):
    name, graph, _, _ = imported
    attention = [o for o in graph.operators if o.family == "attention"]
    if name in ("gpt2-xl", "llama-3-8b", "mixtral"):
        assert all(o.attributes["causal"] and len(o.inputs) == 3 for o in attention)
    elif name != "t5-base":
        assert not any(o.attributes["causal"] for o in attention)


def product_flops(graph):
    """Forward operations of all products, by the rules."""
    return sum(
        rule_for(graph, o).flops for o in graph.operators if o.family in ("linear", "matmul")
    )


def test_operations_of_gpt2_and_llama_equal_the_formula(imported):
    name, graph, _, _ = imported
    tokens = 2 * 64
    if name == "gpt2-xl":
        assert product_flops(graph) == 2 * tokens * (3 * 12 * 1600**2 + 1600 * 50257)
    elif name == "llama-3-8b":
        layer = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
        assert product_flops(graph) == 2 * tokens * (3 * layer + 4096 * 128256)
    elif name == "mixtral":
        attention = 2 * 256**2 + 2 * 256 * 64 + 8 * 256
        each = attention + 2 * 3 * 256 * 512
        assert product_flops(graph) == 2 * 64 * (3 * each) * 1 + 2 * 64 * 256 * 1000
    else:
        assert product_flops(graph) > 0


def test_mixture_of_experts_is_recognised():
    graph = import_huggingface({**MIXTRAL, "num_hidden_layers": 1}, batch_size=2, sequence_length=8)
    dispatch = next(o for o in graph.operators if o.family == "moe_dispatch")
    assert graph.tensors[dispatch.outputs[0]].shape == (8, 4, 256)
    experts = [t for t in graph.parameters if "experts" in t.name]
    assert [t.shape for t in experts] == [(8, 256, 512), (8, 256, 512), (8, 512, 256)]
    assert any("equally many tokens" in note for note in graph.notes)


def test_experts_implementation_is_restored():
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(
            transformers.MixtralConfig(
                hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
                num_key_value_heads=2, vocab_size=20, use_cache=False,
            )
        )  # fmt: skip
        ids = torch.zeros(2, 4, dtype=torch.long)
    before = model.config._experts_implementation
    graph = import_torch(model, {"input_ids": ids, "labels": ids})
    assert model.config._experts_implementation == before
    assert any(o.family == "moe_combine" for o in graph.operators)


def test_resnet50():
    with torch.device("meta"):
        model = models.ResNet()
    images, labels = torch.zeros(2, 3, 224, 224), torch.zeros(2, dtype=torch.long)
    loss = torch.nn.functional.cross_entropy
    graph = import_torch(model, images, loss=loss, targets=labels, name="resnet-50")
    assert graph.parameter_count == 25_557_032
    families = [o.family for o in graph.operators]
    assert families.count("convolution") == families.count("batch_norm") == 53
    assert "opaque" not in families
    # 4.09 billion multiply-adds for an image of 224 x 224.
    work = sum(
        rule_for(graph, o).flops for o in graph.operators if o.family in ("convolution", "linear")
    )
    assert work / 2 / 2 == pytest.approx(4.089e9, rel=1e-3)


def weights_and_names(model):
    """Random weights: the initial ones of some models hide mistakes (zeros, ones)."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def random_ids(high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(2))


def random_images(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "vocab_size": 97,
         "intermediate_size": 24, "use_cache": False}  # fmt: skip
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LANGUAGE = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=2, n_embd=20, n_head=5, n_positions=32, vocab_size=97, attn_pdrop=0.0,
            embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=1, eos_token_id=2, use_cache=False,
        )
    ).double(),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(num_key_value_heads=2, **SMALL)
    ).double(),
    # torch's grouped product, which the source model uses, knows no float64.
    "mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(num_key_value_heads=2, num_local_experts=4, **SMALL)
    ),
    "bert": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(**{**SMALL, **DRY, "use_cache": True})
    ).double(),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            num_layers=2, d_model=16, d_kv=4, num_heads=4, d_ff=24, vocab_size=97,
            dropout_rate=0.0, use_cache=False, decoder_start_token_id=0,
        )
    ).double(),
    "gpt-neox": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(attention_dropout=0.0, hidden_dropout=0.0, **SMALL)
    ).double(),
    "phi3": lambda: transformers.Phi3ForCausalLM(
        transformers.Phi3Config(num_key_value_heads=2, pad_token_id=0, resid_pdrop=0.0, **SMALL)
    ).double(),
}  # fmt: skip


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models_compute_the_same(name):
    model = weights_and_names(LANGUAGE[name]())
    inputs = {"input_ids": random_ids(90, 2, 16), "labels": random_ids(80, 2, 16)}
    # These models cast to float32 inside.
    graph = compare(model, inputs, rtol=2e-4)
    assert graph.parameter_count == sum(p.numel() for p in model.parameters())


def test_vision_models_compute_the_same():
    loss = torch.nn.functional.cross_entropy
    classes = random_ids(10, 4)
    compare(models.ResNet((1, 2), 10, 8).double(), random_images(4, 3, 32, 32), loss=loss,
            targets=classes, rtol=1e-7)  # fmt: skip
    compare(models.UNet().double(), random_images(2, 3, 16, 16), rtol=1e-7)
    graph = compare(models.PatchClassifier().double(), random_images(4, 3, 16, 16), loss=loss,
                    targets=classes)  # fmt: skip
    assert "attention.0.qkv.weight[0:16]" in graph.tensors


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_recurrent_models_compute_the_same(cell):
    model = weights_and_names(models.RecurrentLanguageModel(cell=cell).double())
    inputs = {"ids": random_ids(90, 3, 7), "labels": random_ids(80, 3, 7)}
    graph = compare(model, inputs)
    assert [o.family for o in graph.operators] == ["embedding", "lstm", "linear", "cross_entropy"]


def test_attention_of_torch_computes_the_same_and_shards_by_heads():
    model = weights_and_names(models.BuiltInAttention().double())
    graph = compare(model, random_images(5, 3, 8))
    assert graph.tensors["plain.in_proj_weight[8:16]"].shape == (8, 8)
    for operator in graph.operators:
        if operator.family in ("attention", "matmul", "softmax"):
            for name in operator.inputs:
                assert graph.tensors[name].shape[:2] == (3, 2), operator.name


def test_flattened_tokens_compute_the_same():
    graph = compare(models.FlatFeedForward().double(), random_images(2, 3, 8))
    assert "view" not in [o.family for o in graph.operators]
