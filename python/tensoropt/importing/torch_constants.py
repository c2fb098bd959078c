"""What a traced PyTorch graph computes from nothing but constants, and what those constants are.

A node is constant if no input of the model, no parameter and no random number reaches it:
position ids, rotary tables, masks. The importer turns each constant that the rest of the graph
reads into one ``constant`` operator; equal constants (every layer builds its own copy of a table)
become one. Attention masks are worked out in numbers, so that a causal mask is recognised for what
it is instead of being read as a large tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

__all__ = ["Constants", "MaskKind"]

MaskKind = Literal["causal", "full", "other"]

_RANDOM = (
    "rand", "randn", "randint", "randperm", "bernoulli", "dropout", "native_dropout", "normal",
    "rand_like", "randn_like", "randint_like", "multinomial", "exponential", "uniform",
)  # fmt: skip

_SHAPE_ONLY = (
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full",
    "new_empty", "fill", "zero",
)  # fmt: skip
"""Operators that read nothing but the shape and dtype of their first operand."""

_POINTWISE = ("__and__", "__or__", "__xor__", "_to_copy", "masked_fill", "rsub", "to", "where")
"""Operators that work element by element and that torch does not tag so."""

_SMALL = 1 << 12
"""Elements up to which buffers are compared by value."""

_LARGEST_VALUE = 1 << 26
"""Elements of the largest constant that is worked out as a whole; masks are taken by rows."""


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

        shape = tuple(node.meta["val"].shape)
        if len(shape) < 2:
            return "other"
        step = max(1, _LARGEST_VALUE // 4 // max(1, keys))
        full, causal = True, queries == keys and shape[-2:] == (queries, keys)
        columns = torch.arange(keys, device="cpu")
        for start in range(0, shape[-2], step):
            stop = min(start + step, shape[-2])
            rows = self._rows(node, start, stop)
            if rows is None:
                return "other"
            if rows.dtype != torch.bool:
                blocked = rows <= torch.finfo(rows.dtype).min / 2
                if not bool((blocked | (rows == 0)).all()):
                    return "other"
                rows = ~blocked
            full = full and bool(rows.all())
            seen = columns <= torch.arange(start, stop, device="cpu")[:, None]
            causal = causal and bool((rows == seen).all())
            if not full and not causal:
                return "other"
        return "full" if full else "causal"

    def _rows(self, node: Any, start: int, stop: int) -> Any | None:
        """Rows ``start:stop`` of a value's dim -2, with any other dim possibly left at 1."""
        import torch

        if len(node.meta["val"].shape) < 2:
            return self._value(node)
        if _name(node) == "expand":
            return self._rows(node.args[0], start, stop)
        if not _is_pointwise(node):
            value = self._value(node)
            if value is None:
                return None
            if value.shape[-2] > 1:
                value = value.narrow(-2, start, stop - start)
            return _narrowed(value)
        operands: dict[Any, Any] = {
            source: self._rows(source, start, stop) for source in node.all_input_nodes
        }
        if any(value is None for value in operands.values()):
            return None
        return _call(node, lambda source: operands[source], torch)

    def _key_of(self, node: Any) -> Any | None:
        if node.op == "placeholder":
            return self._leaf_key(node) if node in self._leaves else None
        if node.op != "call_function" or not hasattr(node.target, "__name__"):
            return None
        name = _name(node)
        if name in _RANDOM:
            return None
        if name in _SHAPE_ONLY:
            if any(source not in self._keys for source in node.all_input_nodes[1:]):
                return None
            value = node.meta["val"]
            rest = self._hashable((node.args[1:], node.kwargs))
            return (name, tuple(value.shape), str(value.dtype), rest)
        if any(source not in self._keys for source in node.all_input_nodes):
            return None
        return (str(node.target), self._hashable(node.args), self._hashable(node.kwargs))

    def _leaf_key(self, node: Any) -> Any:
        """By value where it is known and small: every layer may hold a copy of its own."""
        value = self._leaves[node]
        if value is None or value.is_meta or value.numel() > _SMALL:
            return ("leaf", node.target)
        return ("value", str(value.dtype), tuple(value.shape), tuple(value.flatten().tolist()))

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
        expected = node.meta.get("val")
        if not isinstance(expected, torch.Tensor):
            return None
        operands: dict[Any, Any] = {}
        for source in node.all_input_nodes:
            blank = _name(node) in _SHAPE_ONLY and source is node.args[0]
            known = _blank(source, torch) if blank else self._value(source)
            if known is None:
                return None
            operands[source] = _narrowed(known) if _is_pointwise(node) else known
        if _is_pointwise(node):
            shapes = [tuple(value.shape) for value in operands.values()]
            size = torch.broadcast_shapes(*shapes).numel()
        else:
            size = 0 if _name(node) == "expand" else expected.numel()
        if size > _LARGEST_VALUE:
            return None
        value = _call(node, lambda source: operands[source], torch)
        return None if value is None else _compressed(value).expand(tuple(expected.shape))


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target)).split(".")[0]


def _is_pointwise(node: Any) -> bool:
    import torch

    tagged = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return tagged or _name(node) in _POINTWISE


def _blank(node: Any, torch: Any) -> Any:
    like = node.meta["val"]
    return torch.empty(1, dtype=like.dtype, device="cpu").expand(tuple(like.shape))


def _call(node: Any, value_of: Callable[[Any], Any], torch: Any) -> Any | None:
    """What an operator makes of known operands on the CPU; ``None`` where it cannot run."""
    args = torch.fx.map_arg(node.args, value_of)
    kwargs = dict(torch.fx.map_arg(dict(node.kwargs), value_of))
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    try:
        with torch.device("cpu"):
            value = node.target(*args, **kwargs)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return value if isinstance(value, torch.Tensor) else None


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
