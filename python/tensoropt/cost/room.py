"""Where tensors wait between the operator that makes them and those that read them.

Read from the graph in one sweep each way; ``saving`` answers the same questions for the tables, by
other means. Positions are those of operators in the order of execution.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tensoropt.sharding.decisions import Conversion, Decisions, Node

__all__ = ["Keeping", "Room", "Routes", "Waiting"]


@dataclass(frozen=True, slots=True)
class Keeping:
    """Who keeps the tensor of a conversion for the backward pass (see ``Keepers.of``)."""

    producer: bool
    reader: bool
    charged: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """What lies there uncharged while others run.

    Attributes
    ----------
    excess : bool
        By how much a tensor is larger at its source.
    room : float or None
        All of it, if not ``None``, but for so many elements on all ranks together.
    """

    excess: bool
    room: float | None = None


class Routes:
    """Ways of tensors from operators that make them, through views, to operators that read them.

    Parameters
    ----------
    decisions : Decisions
    """

    def __init__(self, decisions: Decisions) -> None:
        self.decisions = decisions
        self.graph = decisions.graph
        self.rules = decisions.rules
        links = [c for c in decisions.links if isinstance(c, Conversion)]
        self.links = links
        self.leaving: dict[Node, list[Conversion]] = defaultdict(list)
        self.arriving: dict[Node, list[Conversion]] = defaultdict(list)
        for link in links:
            self.leaving[link.source].append(link)
            self.arriving[link.target].append(link)
        self.works = [
            p in self.rules and not self.rules[p].alias for p in range(len(self.graph.operators))
        ]
        self._kernels_before = [0, *itertools.accumulate(self.works)]
        self._origins: dict[Node, int] = {}
        self._ends: dict[Node, tuple[frozenset[int], bool]] = {}

    def is_view(self, node: Node) -> bool:
        """Whether a node is an operator that shares the storage of its operand."""
        return node.kind == "operator" and self.rules[int(node.key)].alias

    def others_between(self, start: int, readers: Collection[int]) -> bool:
        """Whether operators other than the readers run after one and before the last reader."""
        if not readers:
            return False
        last = max(readers)
        between = self._kernels_before[last] - self._kernels_before[start + 1]
        return between > sum(start < p < last for p in readers)

    def origin(self, node: Node) -> int:
        """The operator that filled the storage of what a node hands on; -1 if none did."""
        found = self._origins.get(node)
        if found is None:
            found = int(node.key) if node.kind == "operator" else -1
            before = [c for c in self.arriving[node] if c.operand == 0]
            if node.kind == "tensor" or (self.is_view(node) and before):
                source = before[0].source if before else None
                if source is not None and source.kind != "parameter":
                    found = self.origin(source)
            self._origins[node] = found
        return found

    def ends(self, link: Conversion) -> tuple[frozenset[int], bool]:
        """Operators that read what arrives, views looked through, and whether only parts of it."""
        node = link.target
        found = self._ends.get(node)
        if found is None:
            if node.kind == "operator" and not self.is_view(node):
                found = frozenset([int(node.key)]), False
            else:
                beyond = [self.ends(c) for c in self.leaving[node]]
                parts = node.kind == "operator" and not self.hands_on_all(int(node.key))
                found = (
                    frozenset(itertools.chain.from_iterable(e for e, _ in beyond)),
                    parts or any(p for _, p in beyond),
                )
            self._ends[node] = found
        return found

    def hands_on_all(self, position: int) -> bool:
        """Whether a view has one result with as many elements as its operand."""
        operator = self.graph.operators[position]
        made = [t.size for t in self.graph.results(operator)]
        return made == [self.graph.tensors[operator.inputs[0]].size]

    def storage(self, link: Conversion) -> Conversion | None:
        """The conversion that begins a way of which views hand on all, to one reader; if any."""
        while self.is_view(link.source):
            alone = len(self.leaving[link.source]) == 1
            before = [c for c in self.arriving[link.source] if c.operand == 0]
            if not (alone and before and self.hands_on_all(int(link.source.key))):
                return None
            link = before[0]
        return link


class Room:
    """Which waiting tensors have memory charged for something else that is not there meanwhile.

    What an operator keeps makes room for the gradient of it, and a result that is kept makes room,
    before it is made and once its gradient was used, for one operand that it is made of, element
    for element (a concatenation: for all of them). Whatever else waits needs memory of its own.

    Parameters
    ----------
    routes : Routes
    keeping : callable
        Who keeps the tensor of a conversion.
    keeps : callable
        Whether an operator, by position, keeps an operand, or a view of it is kept.
    returns : callable
        Whether a gradient takes the place of what the reader of its tensor kept.
    borders : frozenset of Node
        Tensors at the borders of blocks.
    recomputable : bool
        Whether some block may be recomputed: the gradient of its result lies there meanwhile.
    """

    def __init__(
        self,
        routes: Routes,
        keeping: Callable[[Conversion], Keeping],
        keeps: Callable[[int, int], bool],
        returns: Callable[[Conversion], bool],
        borders: frozenset[Node],
        recomputable: bool,
    ) -> None:
        self.routes = routes
        self._keeping = keeping
        self._keeps = keeps
        self._returns = returns
        self._borders = borders
        self._recomputable = recomputable
        # For every operator: whether its result makes room for gradients, and for tensors that
        # nobody keeps; the ways whose tensors use it; and whether it is used.
        self._rooms: dict[int, tuple[bool, bool]] = {}
        self._guests: dict[int, frozenset[Conversion]] = {}
        positions = sorted(routes.rules)
        for position in reversed(positions):
            self._rooms[position] = self._room(position)
            self._guests[position] = self._invite(position)
        self._used: set[int] = set()
        for position in positions:
            if self._is_used(position):
                self._used.add(position)
        self._alone = self._share_later()

    def wait(self, link: Conversion, returns_larger: bool) -> Waiting:
        """What of a conversion's tensor, and its gradient, has no room of its own.

        Parameters
        ----------
        link : Conversion
        returns_larger : bool
            Whether the gradient that it brings back is handed on, or waits for others.
        """
        routes = self.routes
        if link.source.kind != "operator":
            return Waiting(returns_larger)
        handed_on = returns_larger or int(link.source.key) in self._used
        if link in self._alone:
            return Waiting(handed_on and link.target.kind == "tensor", self._alone[link])
        if link.target.kind == "operator" and routes.is_view(link.source):
            storage = routes.storage(link)
            handed_on |= any(storage in self._guests[p] for p in routes.ends(link)[0])
        return Waiting(handed_on)

    def _finds_none(self, link: Conversion) -> range | None:
        """Between which operators a tensor waits, if it uses no other's room."""
        routes = self.routes
        start = int(link.source.key)
        ends = routes.ends(link)[0]
        if link.target.kind == "operator":
            if routes.is_view(link.source) or not self._waits(link) or self._returns(link):
                return None
            found = any(link in self._guests[p] for p in ends)
            return None if found else range(start + 1, max(ends))
        keeping = self._keeping(link)
        unkept = not keeping.reader and not keeping.producer
        trained = routes.graph.tensors[link.tensor].requires_grad
        last = max(ends, default=start)
        block = routes.decisions.block_of.get(link.source)
        recomputed = self._recomputable and block is not None and link.target in self._borders
        if recomputed and unkept and trained:
            # The gradient of a block's result lies there while the block runs forward once more.
            return range(routes.graph.blocks[block or 0].start, last)
        # Beside readers of the node itself there is room for its gradient.
        readers = {int(c.target.key) for c in routes.leaving[link.target]}
        beside = {p for p in readers if not routes.rules[p].alias}
        between = range(start + 1, last)
        if not any(routes.works[p] and p not in beside for p in between):
            return None
        if any(way.source == link.target for way in self._guests[last]):
            return None
        if unkept:
            # Behind a view, its storage is charged where it comes from.
            return None if routes.is_view(link.source) else between
        alone = not keeping.producer and self._kept_by(link) <= {last}
        return between if trained and not alone else None

    def _kept_by(self, link: Conversion) -> set[int]:
        """Operators that keep what arrives, views looked through."""
        node = link.target
        if node.kind == "operator" and not self.routes.is_view(node):
            return {int(node.key)} if self._keeps(int(node.key), link.operand) else set()
        return set().union(*(self._kept_by(c) for c in self.routes.leaving[node]))

    def _share_later(self) -> dict[Conversion, float]:
        """Ways whose tensors find no room, with elements of later tensors that leave some.

        What is kept of tensors made after an operator is not there while it runs, in neither pass,
        and what others keep of its own results is charged twice. All ranks together hold at least
        all of it, which those that wait meanwhile share by size; within a block, or outside all.
        """
        routes = self.routes
        inside = routes.decisions.block_of
        spans: dict[Conversion, range] = {}
        place: dict[Conversion, int | None] = {}
        for link in routes.links:
            activation = routes.graph.tensors[link.tensor].kind == "activation"
            span = None
            if activation and link.source.kind == "operator":
                span = self._finds_none(link)
            if span is not None:
                spans[link] = span
                place[link] = inside.get(
                    link.target if link.target.kind == "tensor" else link.source
                )
        later = self._kept_later() if spans else {}
        shares = dict.fromkeys(spans, math.inf)
        for position, rule in routes.rules.items():
            for block in dict.fromkeys(place.values()):
                waiting = {
                    link: self._size(link)
                    for link, span in spans.items()
                    if position in span and place[link] == block
                }
                if rule.alias or not waiting:
                    continue
                room = later[block][position]
                total = sum(waiting.values())
                for link, size in waiting.items():
                    shares[link] = min(shares[link], room * size / total)
        return shares

    def _kept_later(self) -> dict[int | None, dict[int, int]]:
        """Kept elements that are not there beside each operator, in each block and outside."""
        routes = self.routes
        inside = routes.decisions.block_of
        blocks = {inside.get(Node("operator", p)) for p in routes.rules}
        found: dict[int | None, dict[int, int]] = {block: {} for block in blocks}
        sums = dict.fromkeys(blocks, 0)
        for position in sorted(routes.rules, reverse=True):
            node = Node("operator", position)
            own = until_later = 0
            if position not in self._used and not routes.is_view(node):
                for link in routes.leaving[node]:
                    keeping = self._keeping(link)
                    tensor = routes.graph.tensors[link.tensor]
                    if link.target in self._borders or not tensor.is_floating:
                        continue
                    if keeping.producer:
                        until_later += tensor.size
                    elif keeping.reader:
                        own += tensor.size
            sums[inside.get(node)] += own
            for block in blocks:
                found[block][position] = sums[block]
            sums[inside.get(node)] += until_later
        return found

    def _size(self, link: Conversion) -> int:
        """Elements; integers count four times."""
        tensor = self.routes.graph.tensors[link.tensor]
        return tensor.size if tensor.is_floating else 4 * tensor.size

    def _waits(self, link: Conversion) -> bool:
        """Whether others run between the producer of a tensor and its one reader."""
        start = self.routes.origin(link.source)
        if self._returns(link):
            # A view that is kept, or the copy that it is made of, is charged from there on.
            return self.routes.others_between(start, [int(link.target.key)])
        return self.routes.others_between(start, self.routes.ends(link)[0])

    def _room(self, position: int) -> tuple[bool, bool]:
        routes = self.routes
        leaving = routes.leaving[Node("operator", position)]
        if len(leaving) != 1:
            return False, False
        link = leaving[0]
        keeping = self._keeping(link)
        if keeping.reader or keeping.producer:
            return True, not (self._recomputable and link.target in self._borders)
        if link.target.kind == "tensor":
            last = max(routes.ends(link)[0], default=-1)
            found = any(c.source == link.target for c in self._guests.get(last, ()))
            return found, found
        reader = int(link.target.key)
        if routes.is_view(link.target):
            return self._rooms[reader] if routes.hands_on_all(reader) else (False, False)
        if self._guests[reader]:
            found = routes.storage(link) in self._guests[reader]
            return found, found
        return self._rooms[reader] if self._covers(reader, link.operand) else (False, False)

    def _covers(self, position: int, operand: int) -> bool:
        """Whether a result is never smaller than an operand, however the operator is sharded."""
        operator, rule = self.routes.graph.operators[position], self.routes.rules[position]
        results = self.routes.graph.results(operator)
        if rule.alias or len(results) > 1:
            return False
        read = self.routes.graph.operands(operator)[operand]
        alike = read is not None and (read.shape, read.dtype) == (
            results[0].shape,
            results[0].dtype,
        )
        return operator.family == "concat" or (alike and rule.inputs[operand] == rule.outputs[0])

    def _invite(self, position: int) -> frozenset[Conversion]:
        """Ways of operands that use the room of a result while they wait."""
        gradients, tensors = self._rooms[position]
        found = []
        for link in sorted(
            self.routes.arriving[Node("operator", position)], key=lambda c: c.operand
        ):
            way = self.routes.storage(link) if self._covers(position, link.operand) else None
            if way is None or way.source.kind == "parameter":
                continue
            shared = way.source.kind == "tensor"
            if shared and self._last_of_several(way, position):
                if gradients if self._kept(way.source) else tensors:
                    found.append((0, self.routes.origin(way.source), way))
            elif not shared and self._waits(way) and not self._returns(way) and tensors:
                found.append((1, self.routes.origin(way.source), way))
        if self.routes.graph.operators[position].family != "concat":
            found = sorted(found, key=lambda entry: entry[:2])[:1]
        return frozenset(way for *_, way in found)

    def _last_of_several(self, way: Conversion, reader: int) -> bool:
        """Whether a gradient begins here that waits for those of other readers."""
        made = self.routes.arriving[way.source]
        if not made:
            return False
        ends, _ = self.routes.ends(made[0])
        start = self.routes.origin(way.source)
        return reader == max(ends) and self.routes.others_between(start, ends)

    def _kept(self, node: Node) -> bool:
        keeping = self._keeping(self.routes.arriving[node][0])
        return keeping.reader or keeping.producer

    def _is_used(self, position: int) -> bool:
        """Whether the room of a result is used, perhaps by what used that of an operand before."""
        if self._guests[position]:
            return True
        for link in self.routes.arriving[Node("operator", position)]:
            keeping = self._keeping(link)
            handed_on = link.source.kind == "operator" and int(link.source.key) in self._used
            if handed_on and not (keeping.reader or keeping.producer):
                return True
        return False
