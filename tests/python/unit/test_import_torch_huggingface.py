"""Hugging Face configurations: what they become, and what is refused."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tensoropt.errors import ImportModelError, MissingExtraError
from tensoropt.importing.huggingface import import_huggingface

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 99,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8"},
}


def import_llama(**changes):
    return import_huggingface({**LLAMA, **changes}, batch_size=2, sequence_length=32)


def test_a_file_a_folder_and_a_dict_are_the_same(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    graphs = [
        import_huggingface(source, batch_size=2, sequence_length=32)
        for source in (LLAMA, path, str(tmp_path))
    ]
    assert len({g.fingerprint() for g in graphs}) == 1
    assert graphs[0].name == "llama"
    assert (graphs[0].batch_size, graphs[0].tokens_per_sample) == (2, 32)
    assert graphs[0].tensors["lm_head.weight"].dtype == "float32"
    assert len(graphs[0].blocks) == 2


@pytest.mark.parametrize(
    ("config", "classes"),
    [
        ({"model_type": "bert", "num_hidden_layers": 1}, 30522),
        ({"model_type": "bert", "architectures": ["BertForPreTraining"]}, 30522),
        ({"model_type": "bert", "architectures": ["BertForSequenceClassification"]}, 2),
        ({"model_type": "bert", "architectures": ["BertForTokenClassification"]}, 2),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"], "is_decoder": True}, 30522),
    ],
)
def test_architecture_decides_the_loss(config, classes):
    config = {"num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 2, **config}
    graph = import_huggingface(config, batch_size=2, sequence_length=16)
    loss = next(o for o in graph.operators if o.family == "cross_entropy")
    logits = graph.tensors[loss.inputs[0]].shape
    assert logits[loss.attributes["dim"]] == classes


def test_image_models_need_no_sequence():
    config = {
        "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 24,
        "num_attention_heads": 2, "num_hidden_layers": 1, "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    graph = import_huggingface(config, batch_size=3)
    assert graph.tensors["pixel_values"].shape == (3, 3, 32, 32)
    assert graph.tokens_per_sample is None


def test_sequence_longer_than_the_positions_is_refused():
    with pytest.raises(ImportModelError, match="sequence_length is 129, the model has 128"):
        import_huggingface(LLAMA, batch_size=2, sequence_length=129)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"hidden_size": 4}, {}, "no 'model_type'"),
        ({"model_type": None}, {}, "has 'model_type' None, expected a name"),
        ({"model_type": 3}, {}, "has 'model_type' 3, expected a name"),
        ({"model_type": "lama"}, {}, "did you mean llama"),
        ({**LLAMA, "num_hidden_layers": 0}, {}, "num_hidden_layers is 0, expected at least 1"),
        ({**LLAMA, "num_hidden_layers": -1}, {}, "num_hidden_layers is -1, expected at least 1"),
        ({"model_type": "gpt2", "n_layer": 0}, {}, "n_layer is 0, expected at least 1"),
        ({"model_type": "t5", "num_decoder_layers": -1}, {}, "num_decoder_layers is -1"),
        ({"model_type": "wav2vec2"}, {}, "has no loss that can be imported"),
        ({**LLAMA, "hidden_size": "wide"}, {}, "not valid"),
        ({**LLAMA, "num_attention_heads": 5}, {}, "multiple of the number of attention heads"),
        (LLAMA, {"sequence_length": None}, "pass sequence_length"),
        (LLAMA, {"sequence_length": 0}, "sequence_length is 0"),
        (LLAMA, {"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_bad_configurations_say_what_to_do(config, options, message):
    with pytest.raises(ImportModelError, match=message) as caught:
        import_huggingface(config, **{"batch_size": 2, "sequence_length": 16, **options})
    assert "\n" not in str(caught.value)


def test_bad_files_say_what_is_wrong(tmp_path):
    missing = tmp_path / "none.json"
    with pytest.raises(ImportModelError, match=r"none\.json' does not exist"):
        import_huggingface(missing, batch_size=1, sequence_length=8)
    for text, message in (("{", "is not JSON"), ("[1]", "is not a Hugging Face configuration")):
        path = tmp_path / "config.json"
        path.write_text(text)
        with pytest.raises(ImportModelError, match=message):
            import_huggingface(path, batch_size=1, sequence_length=8)


@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_missing_packages_name_the_extra(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{module} is needed.*'tensoropt\[torch\]'"):
        import_huggingface(LLAMA, batch_size=2, sequence_length=32)
