"""PyTorch models written the way people write them, for tests of importing and applying."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outputs = width * 4
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        return self.relu(y)


class ResNet(nn.Module):
    """ResNet with bottleneck blocks; (3, 4, 6, 3) is ResNet-50."""

    def __init__(
        self, layers: tuple[int, ...] = (3, 4, 6, 3), classes: int = 1000, width: int = 64
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1)
        stages, inputs = [], width
        for index, count in enumerate(layers):
            inner = width * 2**index
            blocks = []
            for block in range(count):
                blocks.append(Bottleneck(inputs, inner, 2 if index and not block else 1))
                inputs = inner * 4
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu_(self.bn1(self.conv1(x))))
        x = functional.adaptive_avg_pool2d(self.stages(x), 1)
        return self.fc(torch.flatten(x, 1))


class RecurrentLanguageModel(nn.Module):
    """Embedding, a stack of LSTM or GRU layers, and a projection to the vocabulary."""

    def __init__(
        self, vocabulary: int = 100, width: int = 16, layers: int = 2, cell: str = "LSTM"
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = getattr(nn, cell)(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        y, _ = self.rnn(self.embedding(ids))
        logits = self.head(y)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(2, outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Contracting path, expanding path, skips; trained to denoise."""

    def __init__(self, width: int = 8, depth: int = 2) -> None:
        super().__init__()
        sizes = [width * 2**d for d in range(depth + 1)]
        self.first = _double(3, width)
        self.down = nn.ModuleList(_double(a, b) for a, b in zip(sizes, sizes[1:], strict=False))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(sizes, sizes[1:], strict=False)
        )
        self.merge = nn.ModuleList(_double(2 * a, a) for a in sizes[:-1])
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips, y = [], self.first(x)
        for block in self.down:
            skips.append(y)
            y = block(functional.max_pool2d(y, 2))
        for index in reversed(range(len(self.up))):
            y = torch.cat([skips.pop(), self.up[index](y)], dim=1)
            y = self.merge[index](y)
        return functional.mse_loss(self.last(y), x)


class FusedAttention(nn.Module):
    """Attention as vision models write it: one projection, reshaped, permuted and unbound."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class BuiltInAttention(nn.Module):
    """torch's own attention and encoder layer, which merge batch and heads into one dim."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.plain = nn.MultiheadAttention(width, heads)
        self.layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.plain(x, x, x)
        return self.layer(y.transpose(0, 1)).square().mean()


class PatchClassifier(nn.Module):
    """A vision transformer with pre-normalisation and mean pooling."""

    def __init__(self, width: int = 16, heads: int = 4, layers: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(torch.zeros(1, 16, width))
        self.norm1 = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.attention = nn.ModuleList(FusedAttention(width, heads) for _ in range(layers))
        self.norm2 = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2) + self.position
        for n1, attention, n2, mlp in zip(
            self.norm1, self.attention, self.norm2, self.mlp, strict=True
        ):
            y = y + attention(n1(y))
            y = y + mlp(n2(y))
        return self.head(y.mean(1))


class FlatFeedForward(nn.Module):
    """A feed-forward layer that flattens tokens to rows, as much user code does."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, x.shape[-1])
        y = self.down(torch.tanh(self.up(flat))) + flat
        return self.norm(y).view(x.shape).square().mean()
