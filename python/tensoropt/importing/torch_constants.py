"""What a traced PyTorch graph computes from nothing but constants, and what those constants are.

A node is constant if no input of the model, no parameter and no random number reaches it:
position ids, rotary tables, masks. The importer turns each constant that the rest of the graph
reads into one ``constant`` operator; equal constants (every layer builds its own copy of a table)
become one. Attention masks are worked out in numbers, so that a causal mask is recognised for what
it is instead of being read as a large tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

__all__ = ["Constants", "MaskKind"]

MaskKind = Literal["causal", "full", "other"]

_RANDOM = (
    "rand", "randn", "randint", "randperm", "bernoulli", "dropout", "native_dropout", "normal",
    "rand_like", "randn_like", "randint_like", "multinomial", "exponential", "uniform",
)  # fmt: skip

_SHAPE_ONLY = (
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full",
    "new_empty",
)  # fmt: skip
"""Operators that read nothing but the shape and dtype of their first operand."""

_LARGEST_VALUE = 1 << 28
"""Elements of the largest constant that is worked out; above it a mask stays an operand."""


class Constants:
    """Constant nodes of one traced graph.

    Parameters
    ----------
    nodes : iterable of torch.fx.Node
        All nodes, in order.
    leaves : mapping of torch.fx.Node to tensor or None
        Placeholders that no training step changes (buffers, lifted tensors), with their value
        where it is known (not on the meta device).
    """

    def __init__(self, nodes: Iterable[Any], leaves: Mapping[Any, Any]) -> None:
        self._leaves = leaves
        self._keys: dict[Any, int] = {}
        self._interned: dict[Any, int] = {}
        self._values: dict[int, Any] = {}
        for node in nodes:
            key = self._key_of(node)
            if key is not None:
                self._keys[node] = self._interned.setdefault(key, len(self._interned))

    def __contains__(self, node: Any) -> bool:
        return node in self._keys

    def key(self, node: Any) -> int:
        """A number that two constants share exactly if they are computed alike."""
        return self._keys[node]

    def mask_kind(self, node: Any, queries: int, keys: int) -> MaskKind:
        """What a constant attention mask lets through.

        Parameters
        ----------
        node : torch.fx.Node
            A constant node, boolean (True attends) or floating (added to the scores).
        queries, keys : int
            Sizes of the last two dims of the scores.

        Returns
        -------
        str
            ``causal`` (key not after query, as many queries as keys), ``full`` or ``other``.
        """
        import torch

        mask = self._value(node)
        if mask is None or mask.dim() < 2:
            return "other"
        if mask.dtype != torch.bool:
            blocked = mask <= torch.finfo(mask.dtype).min / 2
            if not bool((blocked | (mask == 0)).all()):
                return "other"
            mask = ~blocked
        if bool(mask.all()):
            return "full"
        if queries == keys and mask.shape[-2:] == (queries, keys):
            ones = torch.ones(queries, keys, dtype=torch.bool, device="cpu")
            if bool((mask == ones.tril()).all()):
                return "causal"
        return "other"

    def _key_of(self, node: Any) -> Any | None:
        if node.op == "placeholder":
            return ("leaf", node.target) if node in self._leaves else None
        if node.op != "call_function" or not hasattr(node.target, "__name__"):
            return None
        name = str(getattr(node.target, "__name__", "")).split(".")[0]
        if name in _RANDOM:
            return None
        if name in _SHAPE_ONLY:
            value = node.meta["val"]
            rest = self._hashable((node.args[1:], node.kwargs))
            return (name, tuple(value.shape), str(value.dtype), rest)
        if any(source not in self._keys for source in node.all_input_nodes):
            return None
        return (str(node.target), self._hashable(node.args), self._hashable(node.kwargs))

    def _hashable(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return tuple(self._hashable(v) for v in value)
        if isinstance(value, Mapping):
            return tuple(sorted((k, self._hashable(v)) for k, v in value.items()))
        if hasattr(value, "all_input_nodes"):
            return ("node", self._keys.get(value, value.name))
        return repr(value)

    def _value(self, node: Any) -> Any | None:
        """The value on the CPU, with repeated dims kept as stride 0; ``None`` if unknown."""
        key = self._keys.get(node)
        if key is None:
            return None
        if key not in self._values:
            self._values[key] = self._evaluate(node)
        return self._values[key]

    def _evaluate(self, node: Any) -> Any | None:
        import torch

        if node.op == "placeholder":
            value = self._leaves[node]
            return None if value is None or value.is_meta else value.detach().cpu()
        pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
        unknown = False
        name = str(getattr(node.target, "__name__", "")).split(".")[0]

        def operand(value: Any) -> Any:
            nonlocal unknown
            if name in _SHAPE_ONLY:
                like = value.meta["val"]
                return torch.empty(1, dtype=like.dtype, device="cpu").expand(tuple(like.shape))
            known = self._value(value)
            unknown = unknown or known is None
            return _narrowed(known) if pointwise and isinstance(known, torch.Tensor) else known

        args = torch.fx.map_arg(node.args, operand)
        kwargs = dict(torch.fx.map_arg(dict(node.kwargs), operand))
        expected = node.meta.get("val")
        if unknown or not isinstance(expected, torch.Tensor):
            return None
        if not pointwise and expected.numel() > _LARGEST_VALUE and not _is_view(node.target):
            return None
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        try:
            with torch.device("cpu"):
                value = node.target(*args, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError, MemoryError):
            return None
        if not isinstance(value, torch.Tensor):
            return None
        return _compressed(value).expand(tuple(expected.shape))


def _is_view(target: Any) -> bool:
    return any(getattr(target, "__name__", "").startswith(n) for n in ("expand", "view", "unsq"))


def _narrowed(value: Any) -> Any:
    """Keep one element of every repeated dim."""
    for dim in range(value.dim()):
        if value.stride(dim) == 0 and value.shape[dim] > 1:
            value = value.narrow(dim, 0, 1)
    return value


def _compressed(value: Any) -> Any:
    """One element of every dim along which all elements are equal (a batch of equal rows)."""
    value = _narrowed(value)
    if value.numel() > _LARGEST_VALUE:
        return value
    for dim in range(value.dim()):
        if value.shape[dim] > 1:
            first = value.narrow(dim, 0, 1)
            if bool((value == first).all()):
                value = first
    return value
