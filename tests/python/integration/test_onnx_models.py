"""Whole ONNX networks import: those the onnx package carries, and exports of torch."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from onnx_models import Imported, light  # noqa: E402
from tensoropt.importing.onnx import import_onnx  # noqa: E402
from tensoropt.sharding.rules import rule_for  # noqa: E402

# Parameters, layers that repeat, families that must occur.
NETWORKS = {
    "light_bvlc_alexnet": (60_965_224, 0, {"convolution", "linear", "dropout"}),
    "light_densenet121": (None, 0, {"convolution", "batch_norm", "concat"}),
    "light_inception_v1": (6_998_552, 0, {"convolution", "concat", "pool"}),
    "light_inception_v2": (None, 0, {"convolution", "batch_norm", "concat"}),
    "light_resnet50": (25_557_032, 12, {"convolution", "batch_norm", "linear"}),
    "light_shufflenet": (None, 13, {"convolution", "transpose", "view"}),
    "light_squeezenet": (1_235_496, 0, {"convolution", "concat", "dropout"}),
    "light_vgg19": (143_667_240, 10, {"convolution", "linear", "pool"}),
    "light_zfnet512": (87_250_536, 2, {"convolution", "linear"}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_network_of_the_onnx_package(name):
    if name not in light():
        pytest.skip(f"this onnx package does not carry {name}")
    parameters, blocks, families = NETWORKS[name]
    single, graph = import_onnx(light()[name]), import_onnx(light()[name], batch_size=16)
    found = {o.family for o in graph.operators}
    assert families <= found
    assert "opaque" not in found
    assert [o.family for o in single.operators] == [o.family for o in graph.operators]
    assert graph.parameter_count == single.parameter_count
    assert parameters in (None, graph.parameter_count)
    assert len(graph.blocks) == blocks
    assert graph.batch_size == 16
    for before, after in zip(single.operators, graph.operators, strict=True):
        if after.outputs[0] != graph.loss:
            old, new = single.results(before)[0].shape, graph.results(after)[0].shape
            # A dim that holds the batch and something else is taken apart where the batch is not 1.
            assert new in ((old[0] * 16, *old[1:]), (16, *old))
        rule_for(graph, after)
    assert any("fixed batch of 1" in note for note in graph.notes)


def _gpt(torch):
    """A small GPT with a tied head and its loss."""
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
            self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

        def forward(self, x):
            parts = self.qkv(self.norm1(x)).split(32, -1)
            q, k, v = (p.view(2, 12, 4, 8).transpose(1, 2) for p in parts)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(2, 12, 32))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(50, 32), nn.Embedding(12, 32)
            self.layers = nn.ModuleList(Layer() for _ in range(3))
            self.head = nn.Linear(32, 50, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, ids, targets):
            x = self.tokens(ids) + self.positions(torch.arange(12))
            for layer in self.layers:
                x = layer(x)
            return functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())

    torch.manual_seed(0)
    model = Gpt()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    ids = torch.zeros(2, 12, dtype=torch.long)
    return model, (ids, ids.clone())


def _convolutional(torch):
    """Batch norm as in training, groups, a transposed convolution."""
    nn = torch.nn
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.SiLU(), nn.MaxPool2d(2),
        nn.ConvTranspose2d(8, 8, 2, 2), nn.GroupNorm(2, 8), nn.Dropout(0.1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    ), (torch.zeros(4, 3, 32, 32),)  # fmt: skip


def _recurrent(torch):
    nn = torch.nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.head = nn.Embedding(50, 16), nn.Linear(24, 50)
            self.lstm = nn.LSTM(16, 24, 2, batch_first=True)

        def forward(self, ids):
            return self.head(self.lstm(self.tokens(ids))[0])

    return Model(), (torch.zeros(2, 12, dtype=torch.long),)


def _export(make, tmp_path, **options):
    torch = pytest.importorskip("torch", reason="torch exports the model")
    pytest.importorskip("onnxscript", reason="torch exports through onnxscript")
    model, inputs = make(torch)
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        model, inputs, str(path), dynamo=True, external_data=False, verbose=False, **options
    )
    return path, model, inputs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("opset", "optimize"), [(20, True), (20, False), (23, False)])
def test_exported_gpt_computes_the_same(opset, optimize, tmp_path, monkeypatch):
    import torch

    path, model, _ = _export(_gpt, tmp_path, opset_version=opset, optimize=optimize)
    imported = Imported(monkeypatch, path)
    graph = imported.graph
    families = [o.family for o in graph.operators]
    assert families.count("attention") == 3
    assert families.count("cross_entropy") == 1
    assert not {"opaque", "matmul", "softmax"} & set(families)
    assert all(o.attributes["causal"] for o in graph.operators if o.family == "attention")
    assert len(graph.blocks) == 3
    for operator in graph.operators:
        rule_for(graph, operator)
    rng = np.random.default_rng(0)
    ids, targets = (rng.integers(0, 50, (2, 12)) for _ in range(2))
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids), torch.from_numpy(targets)).item()
    found = imported.output({"ids": ids, "targets": targets})
    assert found == pytest.approx(wanted, rel=1e-5)
    if not optimize:  # The optimiser unties the head.
        assert graph.parameter_count == sum(p.numel() for p in model.parameters())
        grown = import_onnx(path, batch_size=16)
        assert [o.family for o in grown.operators] == families
        assert grown.tensors["ids"].shape == (16, 12)


@pytest.mark.filterwarnings("ignore")
def test_exported_convolutions_are_read_as_in_training(tmp_path, monkeypatch):
    import torch

    path, model, inputs = _export(_convolutional, tmp_path, optimize=False)
    imported = Imported(monkeypatch, path)
    graph = imported.graph
    assert graph.parameter_count == sum(p.numel() for p in model.parameters())
    assert {"batch_norm", "dropout", "group_norm"} <= {o.family for o in graph.operators}
    x = np.random.default_rng(0).normal(size=inputs[0].shape).astype(np.float32)
    name = next(t.name for t in graph.tensors.values() if t.kind == "input")
    model[8] = torch.nn.Identity()  # Dropout is random; the graph is run without it.
    with torch.no_grad():
        wanted = model.train()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(imported.output({name: x}), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_exported_recurrent_layers_stay_whole(tmp_path):
    path, model, _ = _export(_recurrent, tmp_path, optimize=False)
    graph = import_onnx(path, batch_size=8)
    families = [o.family for o in graph.operators]
    assert families.count("lstm") == 2
    assert not {"slice", "concat", "opaque"} & set(families)
    assert graph.parameter_count == sum(p.numel() for p in model.parameters())
    for operator in graph.operators:
        rule_for(graph, operator)
