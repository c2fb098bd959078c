"""What a strategy has to decide for a graph: operators, shared tensors, parameters, and the links.

The graph of decisions is the same for every mesh. Its nodes:

- every operator that does work (constants are recomputed by whoever reads them);
- every tensor with several readers, and every tensor that crosses a repeated block's border: it
  is redistributed once, its readers read it there, and their gradients are summed there;
- every group of parameters with the same readers.

Its links say whose layouts must be reconciled: :class:`Conversion` for a tensor on its way from
producer to reader, :class:`Storage` for a parameter group and the one operator that reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tensoropt.errors import GraphError
from tensoropt.graph import Block, Graph, Operator

from .rule import Rule
from .rules import rule_for

__all__ = ["Conversion", "Decisions", "Node", "ParameterGroup", "Storage", "decisions"]


@dataclass(frozen=True, slots=True)
class Node:
    """One thing to decide.

    Parameters
    ----------
    kind : str
        ``operator``, ``tensor`` or ``parameter``.
    key : int or str
        Operator position, tensor name, or index of the parameter group.
    """

    kind: Literal["operator", "tensor", "parameter"]
    key: int | str


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that are read by exactly the same operators and are kept alike.

    Parameters
    ----------
    names : tuple of str
        The largest first.
    readers : tuple of (int, int)
        (operator position, operand position) pairs of the first name's uses.
    """

    names: tuple[str, ...]
    readers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Conversion:
    """A tensor on its way from where it is to where it is read.

    Parameters
    ----------
    tensor : str
    source, target : Node
    output : int
        Which result of a source operator; 0 for a tensor or parameter node.
    operand : int
        Which operand of a target operator; 0 for a tensor node.
    """

    tensor: str
    source: Node
    target: Node
    output: int = 0
    operand: int = 0


@dataclass(frozen=True, slots=True)
class Storage:
    """A parameter group and its one reader, whose sharding decides what is left to choose."""

    source: Node
    target: Node


Link = Conversion | Storage


@dataclass(frozen=True)
class Decisions:
    """The graph of decisions of a model.

    Attributes
    ----------
    graph : Graph
    rules : mapping of int to Rule
        For every operator that does work, by position.
    groups : tuple of ParameterGroup
    nodes : tuple of Node
        In the order of the graph.
    links : tuple of Link
    block_of : mapping of Node to int
        Position in ``graph.blocks`` of the block that a node lies inside; border tensors and
        everything outside the blocks are absent.
    """

    graph: Graph
    rules: Mapping[int, Rule]
    groups: tuple[ParameterGroup, ...]
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    block_of: Mapping[Node, int]

    def operator(self, node: Node) -> Operator:
        """The operator of an operator node."""
        assert isinstance(node.key, int)
        return self.graph.operators[node.key]

    def group(self, node: Node) -> ParameterGroup:
        """The parameters of a parameter node."""
        assert isinstance(node.key, int)
        return self.groups[node.key]

    def block_of_link(self, link: Link) -> int | None:
        """The block that a link belongs to: that of whichever end lies inside one."""
        for node in (link.source, link.target):
            if node in self.block_of:
                return self.block_of[node]
        return None


def decisions(graph: Graph) -> Decisions:
    """Build the graph of decisions.

    Raises
    ------
    ShardingError
        If the operands of an operator do not have the shapes that its family requires.
    GraphError
        If no operator does any work.
    """
    active = [
        p
        for p, operator in enumerate(graph.operators)
        if any(t.kind != "constant" for t in graph.results(operator))
    ]
    if not active:
        raise GraphError(f"graph '{graph.name}': every operator is constant, nothing to train")
    rules = {p: rule_for(graph, graph.operators[p]) for p in active}
    block_index = _block_index(graph.blocks)
    uses = graph.consumers()
    nodes: list[Node] = []
    links: list[Link] = []
    block_of: dict[Node, int] = {}
    readers_by_parameter: dict[str, tuple[tuple[int, int], ...]] = {}

    for position in active:
        operator = graph.operators[position]
        here = Node("operator", position)
        nodes.append(here)
        if position in block_index:
            block_of[here] = block_index[position]
        for output, name in enumerate(operator.outputs):
            readers = [(p, o) for p, o in uses[name] if p in rules]
            if not readers:
                continue
            inside = {block_index.get(p) for p, _ in readers} | {block_index.get(position)}
            if len(readers) == 1 and len(inside) == 1:
                reader, operand = readers[0]
                target = Node("operator", reader)
                links.append(Conversion(name, here, target, output, operand))
                continue
            shared = Node("tensor", name)
            nodes.append(shared)
            if len(inside) == 1 and None not in inside:
                block_of[shared] = block_index[position]
            links.append(Conversion(name, here, shared, output))
            for reader, operand in readers:
                links.append(Conversion(name, shared, Node("operator", reader), operand=operand))
    for tensor in graph.parameters:
        trained = tuple((p, o) for p, o in uses[tensor.name] if p in rules)
        if trained:
            readers_by_parameter[tensor.name] = trained
    groups = _groups(graph, readers_by_parameter)
    for index, group in enumerate(groups):
        node = Node("parameter", index)
        nodes.append(node)
        inside = {block_index.get(p) for p, _ in group.readers}
        if len(inside) == 1 and None not in inside:
            block_of[node] = block_index[group.readers[0][0]]
        if len(group.readers) == 1:
            links.append(Storage(node, Node("operator", group.readers[0][0])))
        else:
            links.extend(
                Conversion(group.names[0], node, Node("operator", p), operand=o)
                for p, o in group.readers
            )
    return Decisions(graph, rules, groups, tuple(nodes), tuple(links), block_of)


def _block_index(blocks: tuple[Block, ...]) -> dict[int, int]:
    return {p: i for i, block in enumerate(blocks) for p in range(block.start, block.stop)}


def _groups(
    graph: Graph, readers: Mapping[str, tuple[tuple[int, int], ...]]
) -> tuple[ParameterGroup, ...]:
    """Group parameters with one and the same reading operator; a tied parameter stands alone."""
    members: dict[object, list[str]] = defaultdict(list)
    for name, uses in readers.items():
        key: object = uses[0][0] if len(uses) == 1 else name
        members[key].append(name)
    groups = []
    for names in members.values():
        names.sort(key=lambda n: (-graph.tensors[n].size, n))
        groups.append(ParameterGroup(tuple(names), readers[names[0]]))
    groups.sort(key=lambda g: (g.readers[0], g.names))
    return tuple(groups)
