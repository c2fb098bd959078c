"""Which tensor dims of a whole model are one and the same: the batch, the sequence, a width.

Named dims tie the dims of an operator's operands and results together; tied over the whole graph
they form classes. The class of the batch tells how shapes shrink when the batch is cut into
micro-batches, and what a mesh axis is used for ("data", "sequence", "tensor").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensoropt.errors import GraphError, ShardingError
from tensoropt.graph import Graph, Tensor

from .rule import Rule
from .rules import rule_for

__all__ = ["DimClasses", "dim_classes", "micro_batch"]


@dataclass(frozen=True)
class DimClasses:
    """Classes of tied tensor dims.

    Attributes
    ----------
    of : mapping of (str, int) to int
        Class of a tensor's dim; dims that are never tied have classes of their own.
    batch : frozenset of int
        The classes of the leading dims of the batch inputs.
    sequence : frozenset of int
        The classes of the second dims of integer inputs (token positions), batch excluded.
    """

    of: Mapping[tuple[str, int], int]
    batch: frozenset[int]
    sequence: frozenset[int]

    def role(self, tensor: str, dim: int) -> str:
        """``data``, ``sequence`` or ``tensor``: what sharding this dim is called."""
        kind = self.of.get((tensor, dim))
        if kind in self.batch:
            return "data"
        return "sequence" if kind in self.sequence else "tensor"


def dim_classes(graph: Graph, rules: Mapping[int, Rule] | None = None) -> DimClasses:
    """Tie the dims of a graph by the named dims of its operators' rules.

    Parameters
    ----------
    graph : Graph
    rules : mapping of int to Rule, optional
        Rules already at hand, by operator position.
    """
    parent: dict[tuple[str, int], tuple[str, int]] = {}

    def find(item: tuple[str, int]) -> tuple[str, int]:
        root = item
        while parent.setdefault(root, root) != root:
            root = parent[root]
        while parent[item] != root:
            parent[item], item = root, parent[item]
        return root

    for position, operator in enumerate(graph.operators):
        rule = (rules or {}).get(position) or rule_for(graph, operator)
        first: dict[str, tuple[str, int]] = {}
        names = [*zip(operator.inputs, rule.inputs, strict=True)]
        names += zip(operator.outputs, rule.outputs, strict=True)
        for tensor_name, dims in names:
            for d, dim in enumerate(dims):
                item = (tensor_name, d)
                if dim is None:
                    continue
                if dim in first:
                    parent[find(item)] = find(first[dim])
                else:
                    first[dim] = item
                    find(item)
    roots: dict[tuple[str, int], int] = {}
    of: dict[tuple[str, int], int] = {}
    for name, tensor in graph.tensors.items():
        for d in range(len(tensor.shape)):
            of[name, d] = roots.setdefault(find((name, d)), len(roots))
    inputs = [t for t in graph.tensors.values() if t.kind == "input" and t.shape]
    batch = frozenset(of[t.name, 0] for t in inputs if t.shape[0] == graph.batch_size)
    sequence = frozenset(of[t.name, 1] for t in inputs if len(t.shape) >= 2 and not t.is_floating)
    return DimClasses(of, batch, sequence - batch)


def micro_batch(graph: Graph, count: int, classes: DimClasses | None = None) -> Graph:
    """The graph of one of `count` equal micro-batches.

    Raises
    ------
    GraphError
        If `count` does not divide the batch, or the batch cannot be followed through the graph
        (an operator without a rule stands in the way): use one micro-batch then.
    """
    if count == 1:
        return graph
    if count < 1 or graph.batch_size % count:
        raise GraphError(
            f"{count} micro-batches do not divide the batch of {graph.batch_size}: use a divisor"
        )
    classes = classes or dim_classes(graph)
    tensors: dict[str, Tensor] = {}
    for name, tensor in graph.tensors.items():
        shape = list(tensor.shape)
        for d in range(len(shape)):
            if classes.of[name, d] not in classes.batch:
                continue
            if tensor.kind in ("parameter", "buffer"):
                raise GraphError(
                    f"'{name}' has the size of the batch ({shape}): the batch cannot be cut"
                )
            if shape[d] % count:
                raise GraphError(f"{count} does not divide dim {d} of '{name}' {tensor.shape}")
            shape[d] //= count
        tensors[name] = replace(tensor, shape=tuple(shape))
    small = replace(graph, tensors=tensors, batch_size=graph.batch_size // count)
    try:
        for operator in small.operators:
            rule_for(small, operator)
    except ShardingError as error:
        raise GraphError(f"the batch cannot be cut into {count} micro-batches: {error}") from error
    return small
