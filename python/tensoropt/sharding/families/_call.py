"""An operator together with its tensors, and the helpers that every family's rule is built from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from tensoropt.errors import ShardingError
from tensoropt.graph import Graph, Operator, Tensor
from tensoropt.sharding.rule import Extent, NamedDim, Role, Rule

__all__ = ["Call", "Dims", "Labels", "finish"]

Labels = tuple[str | None, ...]
"""For every dim of a tensor, the named dim whose sharding shards it."""

# Weights stay on the device anyway and constants are made again by whoever reads them: keeping
# either for the backward pass takes no memory of its own.
_CHARGED_WHEN_KEPT = frozenset({"activation", "input"})


class Call:
    """One operator with its operands and results looked up.

    Parameters
    ----------
    graph : Graph
    operator : Operator
    """

    __slots__ = ("attributes", "operands", "operator", "results")

    def __init__(self, graph: Graph, operator: Operator) -> None:
        self.operator = operator
        self.operands = graph.operands(operator)
        self.results = graph.results(operator)
        self.attributes: Mapping[str, Any] = operator.attributes

    def fail(self, text: str) -> NoReturn:
        """Raise a :class:`ShardingError` that names the operator and its family."""
        raise ShardingError(f"operator '{self.operator.name}' ({self.operator.family}): {text}")

    def count(self, least: int, most: int | None, results: int | None = 1) -> None:
        """Check the number of operands and results.

        Raises
        ------
        ShardingError
            If there are fewer or more than the family takes.
        """
        given = len(self.operands)
        if given < least or (most is not None and given > most):
            span = f"{least}" if most == least else f"{least} to {most if most else 'any number'}"
            self.fail(f"has {given} operands, expected {span}")
        if results is not None and len(self.results) != results:
            self.fail(f"has {len(self.results)} results, expected {results}")

    def has(self, position: int) -> bool:
        """Whether the optional operand is there."""
        return position < len(self.operands) and self.operands[position] is not None

    def operand(self, position: int, name: str = "") -> Tensor:
        """Return the operand at a position.

        Raises
        ------
        ShardingError
            If it is absent.
        """
        if not self.has(position):
            self.fail(f"operand {position}{f' ({name})' if name else ''} is missing")
        tensor = self.operands[position]
        assert tensor is not None
        return tensor

    def needs_grad(self, position: int) -> bool:
        """Whether a gradient must be computed for the operand."""
        if not self.has(position):
            return False
        tensor = self.operands[position]
        return tensor is not None and tensor.requires_grad and tensor.is_floating

    def any_grad(self, *positions: int) -> bool:
        """Whether any of these operands (all, if none is named) needs a gradient."""
        chosen: Iterable[int] = positions or range(len(self.operands))
        return any(self.needs_grad(p) for p in chosen)

    def kept(self, *positions: int) -> tuple[int, ...]:
        """Those of the operands that take memory when they are kept for backward, in order."""
        return tuple(
            p
            for p in sorted(set(positions))
            if self.has(p) and self.operand(p).kind in _CHARGED_WHEN_KEPT
        )

    def attribute(self, name: str) -> Any:
        """Return an attribute that the family requires.

        Raises
        ------
        ShardingError
            If it is absent.
        """
        if name not in self.attributes:
            self.fail(f"attribute '{name}' is missing, expected by the family")
        return self.attributes[name]

    def dim(self, value: Any, rank: int) -> int:
        """Check a dim attribute and count a negative one from the end.

        Raises
        ------
        ShardingError
            If there is no such dim.
        """
        if not isinstance(value, int) or not -rank <= value < rank:
            self.fail(f"has dim {value!r}, expected an integer in [{-rank}, {rank})")
        return value % rank

    def rank(self, position: int, least: int, meaning: str) -> Tensor:
        """Return the operand at a position, which must have at least so many dims."""
        tensor = self.operand(position)
        if len(tensor.shape) < least:
            self._shape_error("operand", position, tensor, f"{meaning} with rank >= {least}")
        return tensor

    def expect(self, position: int, shape: Sequence[int | None], meaning: str) -> Tensor:
        """Return the operand at a position, checked against a shape (``None``: any size).

        Raises
        ------
        ShardingError
            If it is absent or of another shape; the message names operand and expected shape.
        """
        tensor = self.operand(position)
        if not _matches(tensor.shape, shape):
            self._shape_error("operand", position, tensor, f"{meaning} = {_show(shape)}")
        return tensor

    def expect_result(self, position: int, shape: Sequence[int | None], meaning: str) -> Tensor:
        """Return the result at a position, checked against a shape (``None``: any size)."""
        tensor = self.results[position]
        if not _matches(tensor.shape, shape):
            self._shape_error("result", position, tensor, f"{meaning} = {_show(shape)}")
        return tensor

    def _shape_error(self, what: str, position: int, tensor: Tensor, expected: str) -> NoReturn:
        self.fail(
            f"{what} {position} '{tensor.name}' has shape {tensor.shape}, expected {expected}"
        )


def _matches(shape: Sequence[int], expected: Sequence[int | None]) -> bool:
    return len(shape) == len(expected) and all(
        e is None or e == s for s, e in zip(shape, expected, strict=True)
    )


def _show(shape: Sequence[int | None]) -> str:
    sizes = ", ".join("*" if s is None else str(s) for s in shape)
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"


class Dims:
    """Collects the named dims of a rule; dims of size 1 cannot be sharded and are left out."""

    __slots__ = ("_dims", "_maskable")

    def __init__(self) -> None:
        self._dims: dict[str, NamedDim] = {}
        self._maskable: set[str] = set()

    def add(
        self, name: str, size: int, role: Role = "free", *, maskable: bool = False
    ) -> str | None:
        """Add a named dim and return its name, or ``None`` if its size is at most 1.

        Parameters
        ----------
        name : str
        size : int
        role : str
        maskable : bool
            Whether the operator masks padding along a dim that it sums over. Free dims carry
            padding along without looking at it.
        """
        if size <= 1:
            return None
        self._dims[name] = NamedDim(name, size, role)
        if maskable or role == "free":
            self._maskable.add(name)
        return name

    def each(self, prefix: str, sizes: Sequence[int], role: Role = "free") -> Labels:
        """Add ``prefix0, prefix1, ...`` for every size, and return the labels."""
        return tuple(self.add(f"{prefix}{i}", size, role) for i, size in enumerate(sizes))

    def size(self, name: str) -> int:
        """Size of a named dim."""
        return self._dims[name].size

    def present(self, *names: str) -> tuple[str, ...]:
        """Those of the names that are shardable."""
        return tuple(n for n in names if n in self._dims)

    def extent(
        self,
        shape: Sequence[int],
        labels: Sequence[str | None],
        dtype: str = "activation",
        times: int = 1,
    ) -> Extent:
        """Count the elements of a tensor of that shape with those labels."""
        constant = times
        names = []
        for size, label in zip(shape, labels, strict=True):
            if label is None:
                constant *= size
            else:
                names.append(label)
                constant *= size // self.size(label)
        return Extent(tuple(names), constant, dtype)

    def padded(self, call: Call, inputs: Sequence[Labels], outputs: Sequence[Labels]) -> set[str]:
        """Named dims along which every tensor allows padding.

        Parameters take no part unless nothing else has the dim: they may be uneven in any case.
        """
        votes: dict[str, list[tuple[bool, bool]]] = {}
        pairs = [*zip(call.operands, inputs, strict=True), *zip(call.results, outputs, strict=True)]
        for tensor, labels in pairs:
            if tensor is None:
                continue
            for dim, label in enumerate(labels):
                if label in self._maskable:
                    whole = tensor.shape[dim] == self.size(label)
                    vote = (whole and dim in tensor.padded_dims, tensor.kind == "parameter")
                    votes.setdefault(label, []).append(vote)
        result = set()
        for label, cast in votes.items():
            binding = [yes for yes, parameter in cast if not parameter] or [yes for yes, _ in cast]
            if all(binding):
                result.add(label)
        return result

    def named(self, padded: set[str]) -> tuple[NamedDim, ...]:
        """All named dims, in the order in which they were added."""
        return tuple(
            NamedDim(d.name, d.size, d.role, d.name in padded) for d in self._dims.values()
        )


def finish(
    call: Call,
    dims: Dims,
    inputs: Sequence[Labels],
    outputs: Sequence[Labels],
    **facts: Any,
) -> Rule:
    """Put a rule together; absent operands get empty labels, padding follows from the tensors."""
    # Families list the labels of every operand that they know, optional ones too.
    labels = [inputs[i] if call.has(i) else () for i in range(len(call.operands))]
    padded = dims.padded(call, labels, outputs) if _may_pad(call) else set()
    return Rule(dims.named(padded), tuple(labels), tuple(outputs), **facts)


def _may_pad(call: Call) -> bool:
    return any(t is not None and t.padded_dims for t in (*call.operands, *call.results))
