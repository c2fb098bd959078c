"""Layers: what the example networks are made of, on top of :class:`GraphBuilder`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tensoropt.errors import GraphError
from tensoropt.graph import Block, Graph, GraphBuilder

__all__ = ["Network", "require", "require_positive"]


def require(condition: bool, message: str) -> None:
    """Raise a :class:`GraphError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise GraphError(message)


def require_positive(**sizes: int) -> None:
    """Raise a :class:`GraphError` that names the first size that is not a positive integer."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise GraphError(f"{name} is {size!r}, expected a positive integer")


class Network:
    """A graph under construction, whose operators are named by their module path.

    Parameters
    ----------
    name : str
        Name of the graph.
    dtype : str
        Dtype of parameters and activations.
    """

    def __init__(self, name: str, dtype: str = "float32") -> None:
        self.builder = GraphBuilder(name)
        self.dtype = dtype
        self._blocks: list[tuple[str, int, int, Any]] = []

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Shape of a tensor that was already added."""
        return self.builder.tensors[tensor].shape

    @contextmanager
    def block(self, name: str, key: Any) -> Iterator[None]:
        """Mark what is added inside as one layer; layers of equal ``key`` must be equal."""
        start = len(self.builder.operators)
        yield
        self._blocks.append((name, start, len(self.builder.operators), key))

    def finish(self, loss: str, batch_size: int, tokens_per_sample: int | None = None) -> Graph:
        """Build the graph; layers that occur once are not marked as repeated."""
        keys = [key for *_, key in self._blocks]
        repeated = list(dict.fromkeys(key for key in keys if keys.count(key) > 1))
        blocks = [
            Block(name, start, stop, repeated.index(key))
            for name, start, stop, key in self._blocks
            if key in repeated
        ]
        return self.builder.build(loss, batch_size, tokens_per_sample, blocks)

    def op(
        self, family: str, inputs: Iterable[str], shape: Iterable[int], path: str, **rest: Any
    ) -> str:
        """Add an operator of the module ``path``, named after the module and what it does."""
        label = str(rest.get("op", family)) if family in ("elementwise", "reduce") else family
        name = rest.pop("name", f"{path}.{label}" if path else label)
        return self.builder.op(family, inputs, shape, name=name, source=path, **rest)

    def parameter(self, name: str, shape: Iterable[int], padded_dims: Iterable[int] = ()) -> str:
        """Add a trained tensor of the network's dtype."""
        return self.builder.parameter(name, shape, self.dtype, padded_dims=padded_dims)

    # Layers with parameters. `path` is the module path; parameters get torch's names below it.

    def linear(
        self,
        x: str,
        features: int,
        path: str,
        *,
        bias: bool = True,
        weight: str | None = None,
        padded: bool = False,
    ) -> str:
        """``x[..., k] -> y[..., features]``; ``weight`` shares an existing ``[features, k]``."""
        *leading, inner = self.shape(x)
        padded_dims = (0,) if padded else ()
        if weight is None:
            weight = self.parameter(f"{path}.weight", (features, inner), padded_dims)
        operands = [x, weight]
        if bias:
            operands.append(self.parameter(f"{path}.bias", (features,), padded_dims))
        return self.op(
            "linear",
            operands,
            (*leading, features),
            path,
            name=path,
            weight="nk",
            padded_dims=(len(leading),) if padded else (),
        )

    def norm(self, x: str, path: str, kind: str, eps: float = 1e-5) -> str:
        """Layer norm (``kind='layer'``, with bias) or RMS norm (``'rms'``) over the last dim."""
        size = self.shape(x)[-1]
        operands = [x, self.parameter(f"{path}.weight", (size,))]
        if kind == "layer":
            operands.append(self.parameter(f"{path}.bias", (size,)))
        return self.op(
            "layer_norm", operands, self.shape(x), path, name=path, dims=1, eps=eps, kind=kind
        )

    def embedding(
        self, ids: str, rows: int, features: int, path: str, *, padded: bool = False
    ) -> tuple[str, str]:
        """Look rows of a table up; returns the result and the table's name."""
        table = self.parameter(f"{path}.weight", (rows, features), (0,) if padded else ())
        shape = (*self.shape(ids), features)
        y = self.op("embedding", (ids, table), shape, path, name=path, padding_idx=None)
        return y, table

    def convolution(
        self,
        x: str,
        channels: int,
        kernel: int,
        path: str,
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool = False,
        transposed: bool = False,
    ) -> str:
        """Convolve images; ``transposed`` multiplies the image by the stride."""
        batch, inner, *image = self.shape(x)
        if transposed:
            weight_shape = (inner, channels, kernel, kernel)
            sizes = [(s - 1) * stride - 2 * padding + kernel for s in image]
        else:
            weight_shape = (channels, inner, kernel, kernel)
            sizes = [(s + 2 * padding - kernel) // stride + 1 for s in image]
        operands = [x, self.parameter(f"{path}.weight", weight_shape)]
        if bias:
            operands.append(self.parameter(f"{path}.bias", (channels,)))
        return self.op(
            "convolution",
            operands,
            (batch, channels, *sizes),
            path,
            name=path,
            stride=[stride, stride],
            padding=[padding, padding],
            dilation=[1, 1],
            groups=1,
            transposed=transposed,
        )

    def batch_norm(self, x: str, path: str) -> str:
        """Batch norm over channels, as in training, with its running statistics."""
        channels = self.shape(x)[1]
        operands = [
            x,
            self.parameter(f"{path}.weight", (channels,)),
            self.parameter(f"{path}.bias", (channels,)),
            self.builder.buffer(f"{path}.running_mean", (channels,), self.dtype),
            self.builder.buffer(f"{path}.running_var", (channels,), self.dtype),
        ]
        return self.op("batch_norm", operands, self.shape(x), path, name=path, eps=1e-5)

    # Layers without parameters.

    def pool(
        self,
        x: str,
        path: str,
        *,
        mode: str,
        kernel: int | None = None,
        stride: int = 1,
        padding: int = 0,
    ) -> str:
        """Pooling over windows of ``kernel``, or over the whole image if that is ``None``."""
        batch, channels, *image = self.shape(x)
        if kernel is None:
            sizes, window = [1] * len(image), list(image)
            steps = list(image)
        else:
            sizes = [(s + 2 * padding - kernel) // stride + 1 for s in image]
            window, steps = [kernel] * len(image), [stride] * len(image)
        return self.op(
            "pool",
            (x,),
            (batch, channels, *sizes),
            path,
            mode=mode,
            kernel=window,
            stride=steps,
            padding=[padding] * len(image),
            ceil_mode=False,
            **({"global": True} if kernel is None else {}),
        )

    def elementwise(self, op: str, inputs: Iterable[str], path: str, **rest: Any) -> str:
        """Apply an elementwise operator; its operands broadcast."""
        inputs = tuple(inputs)
        rank = max(len(self.shape(i)) for i in inputs)
        padded = [(1,) * (rank - len(self.shape(i))) + self.shape(i) for i in inputs]
        shape = tuple(max(sizes) for sizes in zip(*padded, strict=True))
        return self.op("elementwise", inputs, shape, path, op=op, **rest)

    def dropout(self, x: str, p: float, path: str) -> str:
        """Dropout; no operator at all where nothing is dropped."""
        return self.op("dropout", (x,), self.shape(x), path, p=p) if p else x

    def view(self, x: str, shape: Iterable[int], path: str) -> str:
        """Reshape."""
        return self.op("view", (x,), shape, path)

    def transpose(self, x: str, perm: list[int], path: str) -> str:
        """Permute the dims: dim i of the result is dim ``perm[i]`` of ``x``."""
        shape = tuple(self.shape(x)[d] for d in perm)
        return self.op("transpose", (x,), shape, path, perm=perm)

    def slice(self, x: str, dim: int, start: int, stop: int, path: str) -> str:
        """``x[..., start:stop, ...]`` along ``dim``."""
        shape = list(self.shape(x))
        shape[dim] = stop - start
        return self.op("slice", (x,), shape, path, dim=dim, start=start, stop=stop, step=1)

    def concat(self, inputs: Iterable[str], dim: int, path: str) -> str:
        """Concatenate along ``dim``."""
        inputs = tuple(inputs)
        shape = list(self.shape(inputs[0]))
        shape[dim] = sum(self.shape(i)[dim] for i in inputs)
        return self.op("concat", inputs, shape, path, dim=dim)

    def constant(self, op: str, shape: Iterable[int], path: str, dtype: str | None = None) -> str:
        """Add a tensor that no training step changes."""
        return self.op("constant", (), shape, path, name=path, op=op, dtype=dtype or self.dtype)

    def cross_entropy(self, logits: str, dim: int) -> str:
        """Mean cross-entropy against an input ``targets`` of integer classes."""
        shape = list(self.shape(logits))
        del shape[dim]
        targets = self.builder.input("targets", shape, "int64")
        return self.op(
            "cross_entropy",
            (logits, targets),
            (),
            "loss",
            name="loss",
            dim=dim,
            reduction="mean",
            ignore_index=-100,
        )
