"""The repeated blocks of a model and what is outside them, as pieces that are priced alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from tensoropt.cost.assignment import Assignment, Gather, gather_of
from tensoropt.sharding.decisions import Conversion, Decisions, Node

__all__ = ["Keys", "Segment", "segments"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A repeated block, or all that is outside the blocks.

    Attributes
    ----------
    block : int or None
    shape : int
        Segments of equal shape cost the same when the same is chosen.
    positions : tuple of int
        Operators.
    links : tuple of int
        Positions in ``Parts.links``.
    groups : tuple of int
        Parameter groups.
    nodes, parameters : tuple of str
        Tensors with a node of their own that lie in it or at its border, and parameters.
    gathers : tuple of (str, int or None, int)
        For every link, what ``Assignment.regathered`` calls it.
    read, made : tuple of str
        Tensors at the border of a block that it reads, and that it makes.
    """

    block: int | None
    shape: int
    positions: tuple[int, ...]
    links: tuple[int, ...]
    groups: tuple[int, ...]
    nodes: tuple[str, ...]
    parameters: tuple[str, ...]
    gathers: tuple[Gather, ...]
    read: tuple[str, ...]
    made: tuple[str, ...]

    def choices(self, assignment: Assignment) -> Hashable:
        """All of an assignment that the costs of this segment depend on."""
        again = assignment.regathered
        return (
            self.shape,
            self.block is not None and assignment.recompute[self.block],
            tuple(map(assignment.operators.get, self.positions)),
            tuple(map(assignment.tensors.get, self.nodes)),
            tuple(map(assignment.schemes.get, self.parameters)),
            tuple(map(again.__contains__, self.gathers)) if again else (),
        )


@dataclass(frozen=True, slots=True)
class Keys:
    """What parts of a model are priced by.

    Attributes
    ----------
    operators : mapping of int to int
    links : sequence of hashable
    tensor : callable
        Key of a tensor, by name.
    number : callable
        A small integer for any key.
    """

    operators: Mapping[int, int]
    links: Sequence[Hashable]
    tensor: Callable[[str], int]
    number: Callable[[Hashable], int]


def segments(decisions: Decisions, links: Sequence[Conversion], keys: Keys) -> tuple[Segment, ...]:
    """Each repeated block in order, then what is outside.

    Parameters
    ----------
    decisions : Decisions
    links : sequence of Conversion
        All of them; segments name them by position.
    keys : Keys
    """
    inside = decisions.block_of
    blocks: list[int | None] = [*range(len(decisions.graph.blocks)), None]
    positions: dict[int | None, list[int]] = {block: [] for block in blocks}
    for position in decisions.rules:
        positions[inside.get(Node("operator", position))].append(position)
    conversions: dict[int | None, list[int]] = {block: [] for block in blocks}
    for index, link in enumerate(links):
        conversions[decisions.block_of_link(link)].append(index)
    groups: dict[int | None, list[int]] = {block: [] for block in blocks}
    for index in range(len(decisions.groups)):
        groups[inside.get(Node("parameter", index))].append(index)
    return tuple(
        _segment(decisions, links, keys, block, positions[block], conversions[block], groups[block])
        for block in blocks
    )


def _segment(
    decisions: Decisions,
    links: Sequence[Conversion],
    keys: Keys,
    block: int | None,
    positions: list[int],
    conversions: list[int],
    groups: list[int],
) -> Segment:
    own = [links[i] for i in conversions]
    place = {p: i for i, p in enumerate(positions)}
    nodes = dict.fromkeys(
        link.tensor for link in own if {link.source.kind, link.target.kind} != {"operator"}
    )
    names = [n for g in groups for n in decisions.groups[g].names]
    tied = dict.fromkeys(link.tensor for link in own if link.source.kind == "parameter")
    number = {name: i for i, name in enumerate(nodes)}

    def end(node: Node) -> Hashable:
        return place[int(node.key)] if node.kind == "operator" else node.kind

    shape = (
        tuple(keys.operators[p] for p in positions),
        tuple(
            (
                keys.links[index],
                number.get(link.tensor),
                end(link.source),
                end(link.target),
                link.output,
                link.operand,
            )
            for index, link in zip(conversions, own, strict=True)
        ),
        tuple(keys.tensor(n) for n in names),
        tuple(tuple((place.get(p), o) for p, o in decisions.groups[g].readers) for g in groups),
    )
    return Segment(
        block,
        keys.number(shape),
        tuple(positions),
        tuple(conversions),
        tuple(groups),
        tuple(nodes),
        (*names, *(name for name in tied if name not in names)),
        tuple(map(gather_of, own)),
        _border(decisions, block, [link.source for link in own]),
        _border(decisions, block, [link.target for link in own]),
    )


def _border(decisions: Decisions, block: int | None, ends: list[Node]) -> tuple[str, ...]:
    """Tensors outside a block among the ends of its links."""
    tensors = dict.fromkeys(str(n.key) for n in ends if n.kind == "tensor")
    inside = decisions.block_of
    return tuple(t for t in tensors if block is not None and Node("tensor", t) not in inside)
