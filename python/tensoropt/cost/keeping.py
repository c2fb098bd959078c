"""Facts about tensors that hold on every mesh.

Who keeps which for the backward pass, whose gradients wait, and which dims may be split.
"""

from __future__ import annotations

from collections.abc import Callable

from tensoropt.cost.model import CostModel
from tensoropt.cost.room import Keeping, Room, Routes, Waiting
from tensoropt.sharding.decisions import Conversion, Decisions, Node
from tensoropt.sharding.rule import Rule

__all__ = ["Keepers", "Keeping", "ShardableDims"]


class Keepers:
    """Who keeps which tensor for the backward pass; the same on every mesh.

    Parameters
    ----------
    decisions : Decisions
    recomputable : bool
        Whether some block may be recomputed: its input is then kept, whoever reads it.
    """

    def __init__(self, decisions: Decisions, *, recomputable: bool) -> None:
        self.decisions = decisions
        self.graph = decisions.graph
        self.recomputable = recomputable
        self._readers, self._borders = _tensor_nodes(decisions)
        shared = [c for c in decisions.links if isinstance(c, Conversion)]
        self._producers = {
            (int(c.target.key), c.operand): c for c in shared if c.target.kind == "operator"
        }
        self.routes = Routes(decisions)
        self._room = Room(
            self.routes, self.of, self._keeps, self._returns, self._borders, recomputable
        )

    def of(self, link: Conversion) -> Keeping:
        """Who keeps the tensor of a conversion for the backward pass.

        A tensor with a node of its own is charged where it is produced, once, if any of its readers
        keeps it, or a block that may be recomputed starts from it.
        """
        tensor = self.graph.tensors[link.tensor]
        if tensor.kind == "parameter" or link.source.kind == "tensor":
            return Keeping(False, self._keeps(int(link.target.key), link.operand), True)
        producer = int(link.source.key)
        by_producer = link.output in self.decisions.rules[producer].saved_outputs
        by_producer &= self._trained(producer)
        view = self._is_view(producer)
        if link.target.kind == "operator":
            return Keeping(by_producer, self._keeps(int(link.target.key), link.operand), view)
        readers = self._readers[link.tensor]
        border = link.target in self._borders
        inside = self.decisions.block_of
        starts = border and any(Node("operator", p) in inside for p, _ in readers)
        by_reader = (starts and self.recomputable) or any(self._keeps(p, o) for p, o in readers)
        return Keeping(by_producer, by_reader, view and not border)

    def stays_whole(self, link: Conversion) -> bool:
        """Whether what is gathered again counts like what is kept.

        It does at the border of a block that may be recomputed: gathered before the block runs
        forward once more, it lies there until the block has run backward. All borders are alike,
        also one from which no block starts. And it does where others run before the last of its
        readers, views not counted, or where a view behind it takes a part of it.
        """
        routes = self.routes
        if link.target.kind == "tensor":
            if self.recomputable and link.target in self._borders:
                return True
        elif not routes.is_view(link.target):
            return False
        arrived = link.target if link.target.kind == "operator" else link.source
        ends, parts = routes.ends(link)
        return parts or routes.others_between(int(arrived.key), ends)

    def through_view(self, link: Conversion) -> bool:
        """Whether what an operator keeps reached it through a view.

        Whether it is gathered again is then decided where the view reads.
        """
        ends = (link.source.kind, link.target.kind)
        if ends != ("operator", "operator") or self.routes.is_view(link.target):
            return False
        source = int(link.source.key)
        return self._is_view(source) and self._keeps(int(link.target.key), link.operand)

    def beside(self, link: Conversion) -> tuple[bool, bool]:
        """Whether more of a tensor lies there while one of its readers runs backward.

        Returns
        -------
        tuple of bool
            The gradient so far, made by later readers; and, where not all axes shard the tensor,
            perhaps the tensor, gathered again.
        """
        tensor = self.graph.tensors[link.tensor]
        if link.source.kind != "tensor" or not tensor.requires_grad:
            return False, False
        reader = int(link.target.key)
        later = reader < max(p for p, _ in self._readers[link.tensor])
        return later, self._keeps(reader, link.operand)

    def waits(self, link: Conversion) -> Waiting:
        """How much of a tensor and its gradient lies there, uncharged, while others are worked on.

        See :class:`Room` for tensors, :meth:`_returns_larger` for gradients.
        """
        larger = self._returns_larger(link)
        if self.graph.tensors[link.tensor].kind != "activation":
            return Waiting(larger)
        return self._room.wait(link, larger)

    def _returns(self, link: Conversion) -> bool:
        """Whether a gradient takes the place of what the reader of its tensor kept."""
        keeping = self.of(link)
        return keeping.reader and not keeping.producer

    def _returns_larger(self, link: Conversion) -> bool:
        """Whether the gradient that a conversion brings back lies there while others are worked on.

        Gradients take the place of what was kept for them, layout for layout. One that grows on its
        way back needs memory beyond that, unless the operator that it is brought to is the next to
        run and drops it. It waits where a tensor has several readers, from the last of them to the
        first, and behind an operator that hands it on to several operands without having kept them,
        an addition say.
        """
        tensor = self.graph.tensors[link.tensor]
        if tensor.kind == "parameter" or not tensor.requires_grad:
            return False
        if link.source.kind == "operator":
            return self._hands_on(int(link.source.key))
        readers = [p for p, _ in self._readers[link.tensor]]
        return len(set(readers)) > 1 and int(link.target.key) == max(readers)

    def _hands_on(self, position: int) -> bool:
        """Whether an operator's gradient lives on in gradients of operands that it did not keep."""
        operands = self.graph.operands(self.graph.operators[position])
        rule = self.decisions.rules[position]
        if rule.alias:
            origin = self._producers.get((position, 0))
            if origin is None or origin.source.kind == "parameter":
                return False
            return origin.source.kind == "tensor" or self._hands_on(int(origin.source.key))
        wanted = [
            o
            for o, tensor in enumerate(operands)
            if tensor is not None and tensor.requires_grad and tensor.kind != "parameter"
        ]
        return len(wanted) > 1 and not set(wanted) <= set(rule.saved_inputs)

    def _keeps(self, position: int, operand: int) -> bool:
        """Whether an operator keeps an operand, itself or because a view of it is kept.

        A view across the border of a block is not followed: what lies there is charged apart, since
        it stays where the block is recomputed.
        """
        rule = self.decisions.rules[position]
        if operand in rule.saved_inputs and self._trained(position):
            return True
        return (
            rule.alias
            and operand == 0
            and any(
                self._keeps(reader, slot)
                for name in self.graph.operators[position].outputs
                if Node("tensor", name) not in self._borders
                for reader, slot in self._readers.get(name, ())
            )
        )

    def _is_view(self, position: int) -> bool:
        """Whether results share the storage of an operand that is charged where it comes from."""
        first = self.graph.operators[position].inputs[:1]
        kinds = {self.graph.tensors[name].kind for name in first if name}
        return self.decisions.rules[position].alias and "input" not in kinds

    def _trained(self, position: int) -> bool:
        return any(t.requires_grad for t in self.graph.results(self.graph.operators[position]))


class ShardableDims:
    """Dims that some configuration at either end of a conversion shards.

    The cheapest way between two layouts may lead through others, so which layouts are looked at is
    part of the contract: those over the dims that may be sharded at the two ends.
    """

    def __init__(
        self, model: CostModel, decisions: Decisions, tensor_key: Callable[[str], int]
    ) -> None:
        self._mesh = model.mesh_shape
        self._decisions = decisions
        own: dict[str, set[int]] = {}
        by_kind: dict[int, set[int]] = {}
        shared = [c for c in decisions.links if isinstance(c, Conversion)]
        for link in shared:
            ends = (link.source.kind, link.target.kind)
            if ends != ("operator", "operator"):
                own.setdefault(link.tensor, set()).update(self._at_operator(link))
        inside = {str(n.key) for n in decisions.block_of if n.kind == "tensor"}
        for name, dims in own.items():
            if name not in inside:
                by_kind.setdefault(tensor_key(name), set()).update(dims)
        # Border tensors of one shape share one answer, so that equal layers have equal borders.
        self._of_node = {
            name: dims if name in inside else by_kind[tensor_key(name)]
            for name, dims in own.items()
        }

    def of(self, link: Conversion) -> tuple[int, ...]:
        """Dims of a conversion's tensor, in order."""
        dims = set(self._of_node.get(link.tensor, ()))
        if {link.source.kind, link.target.kind} != {"operator"}:
            return tuple(sorted(dims | self._at_operator(link)))
        return tuple(sorted(self._at_operator(link)))

    def of_node(self, name: str) -> tuple[int, ...]:
        """Dims of a tensor that has a node of its own."""
        return tuple(sorted(self._of_node[name]))

    def _at_operator(self, link: Conversion) -> set[int]:
        dims: set[int] = set()
        for node, slot, table in (
            (link.source, link.output, "outputs"),
            (link.target, link.operand, "inputs"),
        ):
            if node.kind == "operator":
                rule = self._decisions.rules[int(node.key)]
                names = getattr(rule, table)[slot]
                dims |= {d for d, n in enumerate(names) if n and self._can_split(rule, n)}
        return dims

    def _can_split(self, rule: Rule, name: str) -> bool:
        dim = rule.dim(name)
        return any(
            n > 1 and (n <= dim.size if dim.padded else dim.size % n == 0) for n in self._mesh
        )


def _tensor_nodes(
    decisions: Decisions,
) -> tuple[dict[str, list[tuple[int, int]]], frozenset[Node]]:
    """Readers of every tensor as (operator, operand), and which nodes stand at a block's border."""
    readers: dict[str, list[tuple[int, int]]] = {}
    borders = set()
    inside = decisions.block_of
    for link in decisions.links:
        if not isinstance(link, Conversion):
            continue
        if link.target.kind == "operator":
            readers.setdefault(link.tensor, []).append((int(link.target.key), link.operand))
        for node, other in ((link.source, link.target), (link.target, link.source)):
            if node.kind == "tensor" and node not in inside and other in inside:
                borders.add(node)
    return readers, frozenset(borders)
