"""Every kind of operator, imported and run: loss and gradients equal those of the source."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from interpret import compare  # noqa: E402


class Function(nn.Module):
    """A function of an input and of trained tensors; the loss weighs every element differently."""

    def __init__(self, function, *shapes):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.p = nn.ParameterList(
            nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
            for shape in shapes
        )
        self.function = function

    def forward(self, x):
        y = self.function(x, *self.p)
        weights = torch.arange(1.0, y.numel() + 1, dtype=torch.float64).reshape(y.shape)
        return (y * (weights / y.numel())).sum()


def check(function, shape, *shapes):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    graph = compare(Function(function, *shapes), x)
    assert not [o for o in graph.operators if o.family == "opaque"]
    return [o.family for o in graph.operators]


SHAPED = {
    "permute, view and flatten": lambda x, w: (x * w).permute(2, 0, 1).reshape(4, -1).flatten(),
    "t, mT and movedim": lambda x, w: (x * w).mT.movedim(0, -1).transpose(0, 1) + 0.0,
    "squeeze and unsqueeze": lambda x, w: (x * w).unsqueeze(1).squeeze(1).unsqueeze(-1),
    "select and slices": lambda x, w: (x * w)[:, 1:, ::2][:, -1],
    "narrow": lambda x, w: (x * w).narrow(1, -2, 2),
    "split and concat": lambda x, w: torch.cat([p * 2 for p in (x * w).split([1, 2], 1)], 1),
    "chunk and stack": lambda x, w: torch.stack((x * w).chunk(2, -1), 1),
    "unbind": lambda x, w: sum(i * p for i, p in enumerate((x * w).unbind(1))),
    "expand and repeat": lambda x, w: (x * w).repeat(2, 1, 3) + w.expand(4, 3, 4).repeat(1, 1, 3),
    "repeat_interleave": lambda x, w: (x * w).repeat_interleave(3, 1),
    "roll": lambda x, w: torch.roll(x * w, (1, -1), (1, 2)),
    "flip": lambda x, w: (x * w).flip(1),
    "pad": lambda x, w: F.pad(x * w, (1, 2, 0, 1), value=3.0),
    "slice assignment": lambda x, w: _assign(x * w, w),
    "select assignment": lambda x, w: _assign_row(x * w, w),
    "gather": lambda x, w: (x * w).gather(1, torch.tensor([[[2, 0, 1, 1]], [[0, 1, 2, 0]]])),
    "index by a tensor": lambda x, w: (x * w)[:, torch.tensor([2, 0, 2, 1])],
    "index_select": lambda x, w: (x * w).index_select(2, torch.tensor([3, 0])),
    "scatter_add": lambda x, w: _scatter_add(x * w),
    "topk": lambda x, w: (x * w).topk(2, -1).values,
    "sort": lambda x, w: (x * w).sort(1).values,
    "scatter of a number": lambda x, w: (x * w).scatter(1, torch.tensor([[[0, 2]]]), 5.0),
    "cumsum": lambda x, w: (x * w).cumsum(1),
    "tensor of zeros": lambda x, w: torch.zeros_like(x) + x * w + x.new_ones(4),
}


def _assign(y, w):
    z = torch.zeros_like(y)
    z[:, 1:] = y[:, :-1]
    return z + w


def _assign_row(y, w):
    z = y.clone()
    z[:, 1] = w
    return z


def _scatter_add(y):
    index = torch.tensor([[[0, 1, 2, 0], [1, 1, 0, 2], [2, 0, 1, 1]]]).expand(2, 3, 4)
    return torch.zeros_like(y).scatter_add(1, index, y)


@pytest.mark.parametrize("name", SHAPED)
def test_moving_elements(name):
    check(SHAPED[name], (2, 3, 4), (4,))


POINTWISE = {
    "arithmetic": lambda x, w: (x * w - 2.5 * x + 1.0) / (w.abs() + 1) + torch.rsub(x, 1.0),
    "alpha": lambda x, w: torch.add(x, w, alpha=3) - torch.sub(x, w, alpha=2),
    "activations": lambda x, w: F.silu(x * w) + F.gelu(x) + F.gelu(w, approximate="tanh"),
    "relu in place": lambda x, w: F.relu(x * w, inplace=True) + F.leaky_relu(w, 0.2),
    "glu": lambda x, w: F.glu(x * w, -1),
    "powers": lambda x, w: (x * w).pow(2) + (x * x + 1).rsqrt() * w.abs().sqrt(),
    "comparisons": lambda x, w: torch.where(x > 0, x * w, w) + (x * w).masked_fill(x < 0, 2.0),
    "numbers in where": lambda x, w: torch.where(x > 0, 1.5, x * w) + torch.where(x > 0, w, 0.5),
    "clamp, maximum": lambda x, w: (x * w).clamp(-0.5, 0.5) + torch.maximum(x, w),
    "means": lambda x, w: (x * w).mean(-1, keepdim=True) + (x * w).sum((0, 1)),
    "extremes": lambda x, w: (x * w).max(1).values + (x * w).amin(1),
    "spread": lambda x, w: (x * w).var(-1) + (x * w).std(-1) + (x * w).logsumexp(-1),
    "norm": lambda x, w: torch.linalg.vector_norm(x * w, dim=-1),
    "softmax": lambda x, w: (x * w).softmax(1) + F.log_softmax(x + w, -1),
    "l1": lambda x, w: F.l1_loss(x * w, x),
    "mse of a sum": lambda x, w: F.mse_loss(x * w, x, reduction="sum"),
    "logits": lambda x, w: F.binary_cross_entropy_with_logits(x * w, (x > 0).double()),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_computing_elements(name):
    check(POINTWISE[name], (2, 3, 4), (4,))


def test_linear_layers_in_every_form():
    forms = {
        "linear": (lambda x, w, b: F.linear(x, w, b), (5, 4), (5,)),
        "matmul": (lambda x, w, b: x @ w + b, (4, 5), (5,)),
        "transposed": (lambda x, w, b: x @ w.t() + b, (5, 4), (5,)),
        "addmm": (lambda x, w, b: torch.addmm(b, x.view(-1, 4), w).view(2, 3, 5), (4, 5), (5,)),
    }
    for name, (function, *shapes) in forms.items():
        found = check(function, (2, 3, 4), *shapes)
        assert found.count("linear") == 1, name
        assert "matmul" not in found, name


def test_products_of_activations():
    check(lambda x, w: (x * w) @ x.mT, (2, 3, 4), (4,))
    check(lambda x, w: torch.bmm(x * w, x.transpose(1, 2)), (2, 3, 4), (4,))
    check(lambda x, w: torch.baddbmm(x @ x.mT, x * w, x.mT, beta=0.5, alpha=2), (2, 3, 4), (4,))
    check(lambda x, w: torch.einsum("bij,bkj->bik", x * w, x), (2, 3, 4), (4,))
    check(lambda x, w: x @ w, (2, 3, 4), (4,))


def test_attention_of_three_dims_and_with_a_mask():
    attend = F.scaled_dot_product_attention
    assert "attention" in check(lambda x, w: attend(x * w, x, x, is_causal=True), (2, 3, 4), (4,))
    check(lambda x, w: attend(x * w, x, x, attn_mask=x[:, :1, :, :3]), (2, 2, 3, 4), (4,))
    check(
        lambda x, w: attend(x * w, x[:, :1], x[:, :1], enable_gqa=True, scale=0.3),
        (2, 2, 3, 4),
        (4,),
    )


CONVOLUTIONS = {
    "one dim": (lambda x, w, b: F.conv1d(x[..., 0], w, b, 2, 1), (6, 4, 3), (6,)),
    "groups": (lambda x, w, b: F.conv2d(x, w, b, 1, 1, groups=2), (6, 2, 3, 3), (6,)),
    "same": (lambda x, w, b: F.conv2d(x, w, b, padding="same"), (6, 4, 3, 3), (6,)),
    "transposed": (lambda x, w, b: F.conv_transpose2d(x, w, b, 2), (4, 6, 2, 2), (6,)),
    "dilated": (lambda x, w, b: F.conv2d(x, w, b, dilation=2), (6, 4, 3, 3), (6,)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    function, *shapes = CONVOLUTIONS[name]
    assert "convolution" in check(function, (2, 4, 8, 8), *shapes)


SPATIAL = {
    "max": lambda x, w: F.max_pool2d(x * w, 3, 2, 1),
    "avg": lambda x, w: F.avg_pool2d(x * w, 2, ceil_mode=True),
    "global": lambda x, w: F.adaptive_avg_pool2d(x * w, 1),
    "adaptive": lambda x, w: F.adaptive_avg_pool2d(x * w, 4),
    "nearest": lambda x, w: F.interpolate(x * w, scale_factor=2, mode="nearest"),
    "bilinear": lambda x, w: F.interpolate(x * w, scale_factor=2, mode="bilinear"),
    "shuffle": lambda x, w: F.pixel_shuffle(F.pixel_unshuffle(x * w, 2), 2),
    "group norm": lambda x, w: F.group_norm(x * w, 2),
    "instance norm": lambda x, w: F.instance_norm(x * w),
    "batch norm": lambda x, w: F.batch_norm(x * w, None, None, training=True),
    "layer norm": lambda x, w: F.layer_norm(x * w, (8, 8)),
    "rms norm": lambda x, w: F.rms_norm(x * w, (8,), eps=1e-6),
}


@pytest.mark.parametrize("name", SPATIAL)
def test_spatial_operators(name):
    check(SPATIAL[name], (2, 4, 8, 8), (4, 1, 1))


CLASSES = torch.tensor([[0, 2, 1], [1, 1, 0]])
LOSSES = {
    "mean": lambda x, w: F.cross_entropy((x * w).flatten(0, 1), CLASSES.flatten()),
    "sum": lambda x, w: F.cross_entropy((x * w).mT, CLASSES, reduction="sum"),
    "ignored": lambda x, w: F.cross_entropy((x * w).mT, CLASSES, ignore_index=1),
    "each": lambda x, w: F.cross_entropy((x * w).mT, CLASSES, reduction="none"),
    "soft": lambda x, w: F.cross_entropy((x * w)[:, 0], x[:, 1].softmax(-1)),
    "nll": lambda x, w: F.nll_loss(F.log_softmax((x * w).mT, 1), CLASSES),
}


@pytest.mark.parametrize("name", LOSSES)
def test_classification_losses(name):
    found = check(LOSSES[name], (2, 3, 4), (4,))
    assert ("cross_entropy" in found) is (name not in ("each", "soft"))
