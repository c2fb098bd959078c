"""Who keeps a tensor for the backward pass, and what else of it lies there: for the tables.

The same on every mesh. ``keeping`` answers the same questions for the scalar evaluation.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property

from tensoropt.graph import Graph
from tensoropt.sharding.decisions import Conversion, Decisions, Node

from .conversions import Saving

__all__ = ["Savings", "Waiting"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a waiting tensor, or its gradient, takes beyond what is charged for it.

    Attributes
    ----------
    grows : bool
        By how much it is larger where it comes from.
    room : float or None
        All of it, if not ``None``, but for what there is room for elsewhere: so many elements on
        all ranks together, whatever the layouts, in what is kept of later tensors.
    """

    grows: bool
    room: float | None = None


class Savings:
    """Facts about the tensors of a graph that its tables depend on.

    Parameters
    ----------
    decisions : Decisions
    recomputable : bool
        Whether some block may be recomputed: its input is then kept, whoever reads it.
    """

    def __init__(self, decisions: Decisions, *, recomputable: bool) -> None:
        self.decisions = decisions
        self.rules = decisions.rules
        self.graph: Graph = decisions.graph
        self.recomputable = recomputable
        self._saved: dict[tuple[int, int], bool] = {}
        self._nodes = frozenset(decisions.nodes)
        self._borders = _borders(decisions)
        self._producers = {
            name: p for p in decisions.rules for name in self.graph.operators[p].outputs
        }
        self._readers: dict[str, list[tuple[int, int]]] = {}
        self._into: dict[tuple[int, int], Conversion] = {}
        self._out_of: dict[Node, list[Conversion]] = {}
        self._to_node: dict[str, Conversion] = {}
        for link in decisions.links:
            if not isinstance(link, Conversion):
                continue
            self._out_of.setdefault(link.source, []).append(link)
            if link.target.kind == "operator":
                reader = int(link.target.key)
                self._readers.setdefault(link.tensor, []).append((reader, link.operand))
                self._into[reader, link.operand] = link
            else:
                self._to_node[link.tensor] = link
        self._working = sorted(p for p, rule in self.rules.items() if not rule.alias)
        self._finals: dict[Conversion, frozenset[int]] = {}
        self._designated: dict[int, frozenset[Conversion]] = {}

    # Who keeps it.

    def of(self, link: Conversion) -> Saving:
        """Who keeps the tensor of a conversion for the backward pass."""
        if link.source.kind != "operator":
            # A parameter, like any tensor with a node of its own, is charged apart.
            return Saving(False, self._saves(int(link.target.key), link.operand), True)
        position = int(link.source.key)
        by_producer = link.output in self.rules[position].saved_outputs
        by_producer &= self._trained(position)
        if link.target.kind == "operator":
            by_reader = self._saves(int(link.target.key), link.operand)
            return Saving(by_producer, by_reader, self._is_view(position))
        readers = self._readers[link.tensor]
        by_reader = any(self._saves(p, o) for p, o in readers)
        border = self._is_border(link.target)
        # A recomputed block starts from its input, so that input is kept.
        inside = self.decisions.block_of
        starts = border and any(Node("operator", p) in inside for p, _ in readers)
        by_reader |= starts and self.recomputable
        return Saving(by_producer, by_reader, self._is_view(position) and not border)

    def _saves(self, position: int, operand: int) -> bool:
        """Whether an operator keeps what it reads, itself or through views of it.

        A view shares the storage of its operand, so whoever keeps a view keeps the operand; it is
        charged where the operand comes from, and there only.
        """
        found = self._saved.get((position, operand))
        if found is None:
            rule = self.rules[position]
            found = operand in rule.saved_inputs and self._trained(position)
            if rule.alias and operand == 0:
                found |= any(
                    self._saves(reader, slot)
                    for name in self.graph.operators[position].outputs
                    for reader, slot in self._readers.get(name, ())
                    if not self._is_border(Node("tensor", name))
                )
            self._saved[position, operand] = found
        return found

    def _is_view(self, position: int) -> bool:
        """Whether an operator's results share storage that is charged already."""
        if not self.rules[position].alias:
            return False
        return self.graph.tensors[self.graph.operators[position].inputs[0]].kind != "input"

    def _is_border(self, node: Node) -> bool:
        """Whether a tensor's own node stands between a block and what is outside it."""
        return node in self._borders

    def _trained(self, position: int) -> bool:
        results = self.graph.results(self.graph.operators[position])
        return any(t.requires_grad for t in results)

    # What is gathered again.

    def stays_whole(self, link: Conversion) -> bool:
        """Whether gathering again saves nothing: what is gathered lies there while others run.

        What a block starts from is gathered before all of it is recomputed. And of what is
        gathered before a part of it is taken, the whole lies there for that part.
        """
        if link.target.kind == "operator":
            if not self.rules[int(link.target.key)].alias:
                return False
            start = int(link.target.key)
        else:
            if self.recomputable and self._is_border(link.target):
                return True
            start = int(link.source.key)
        readers = self._real_readers(link)
        if self._takes_parts(link):
            return True
        return bool(readers) and self._others(start, max(readers), readers)

    def behind_view(self, link: Conversion) -> bool:
        """Whether an operator keeps what it reads through a view, and that may be gathered again.

        Then the choice is made where the view reads, but the gathered tensor lies there while this
        operator runs backward.
        """
        if link.source.kind != "operator" or link.target.kind != "operator":
            return False
        source, target = int(link.source.key), int(link.target.key)
        if not self._is_view(source) or self.rules[target].alias:
            return False
        return self._saves(target, link.operand)

    def lies_beside(self, link: Conversion) -> tuple[bool, bool]:
        """Of a tensor with a node of its own, what lies there while a reader runs backward.

        Its gradient, begun by readers behind this one; and, should it be gathered again for this
        one, the tensor itself.
        """
        if link.source.kind != "tensor" or not self.graph.tensors[link.tensor].requires_grad:
            return False, False
        position = int(link.target.key)
        begun = any(p > position for p, _ in self._readers[link.tensor])
        return begun, self._saves(position, link.operand)

    # What waits.

    def waiting(self, link: Conversion) -> Waiting:
        """What a tensor, or its gradient, takes while others run, beyond what is charged for it.

        A tensor lies there from its producer to its last reader, its gradient from that reader back
        to the producer. Whoever keeps it is charged for it, and its gradient then takes its place,
        layout for layout, unless some other keeps it longer. A tensor that nobody keeps takes the
        place of the result that it is added into, which is not yet there in the forward pass and no
        longer in the backward pass; there is room there for one operand.
        """
        grows = self._grows(link)
        if self.graph.tensors[link.tensor].kind != "activation" or link.source.kind != "operator":
            return Waiting(grows)
        passed = int(link.source.key) in self._passing
        if link in self._shares:
            return Waiting(link.target.kind == "tensor" and (grows or passed), self._shares[link])
        return Waiting(grows or passed or self._takes_over(link))

    def _takes_over(self, link: Conversion) -> bool:
        """Whether what waits behind views takes the place of a result, perhaps of a smaller one."""
        if link.target.kind != "operator" or not self.rules[int(link.source.key)].alias:
            return False
        root = self._root(link)
        return root is not None and any(root in self._takers(p) for p in self._real_readers(link))

    def _needs_own_room(self, link: Conversion) -> bool:
        """Whether something waits that takes no other's place."""
        view = self.rules[int(link.source.key)].alias
        readers = self._real_readers(link)
        if link.target.kind == "operator":
            # What views hand on is charged where its storage comes from.
            if view or not self._waits(link) or self._gives_way(link):
                return False
            return not any(link in self._takers(p) for p in readers)
        if self._waits_for_block(link):
            return True
        direct = {p for p, _ in self._readers[link.tensor] if not self.rules[p].alias}
        last = max(readers, default=-1)
        if not self._others(int(link.source.key), last, frozenset(direct)):
            return False
        if any(c.source == link.target for c in self._takers(last)):
            return False
        saving = self.of(link)
        if not (saving.reader or saving.producer):
            return not view
        longer = saving.producer or bool(self._keepers(link) - {last})
        return longer and self.graph.tensors[link.tensor].requires_grad

    def _waits_for_block(self, link: Conversion) -> bool:
        """Whether a gradient that takes no other's place lies there while a block is recomputed."""
        if not (self.recomputable and link.source in self.decisions.block_of):
            return False
        if not self._is_border(link.target) or not self.graph.tensors[link.tensor].requires_grad:
            return False
        saving = self.of(link)
        return not (saving.reader or saving.producer)

    def _keepers(self, link: Conversion) -> frozenset[int]:
        """Operators that keep what a conversion brings, itself or a view of it."""
        target = link.target
        if target.kind == "operator" and not self.rules[int(target.key)].alias:
            keeps = self._saves(int(target.key), link.operand)
            return frozenset([int(target.key)] if keeps else [])
        further = self._out_of.get(target, ())
        return frozenset().union(*(self._keepers(c) for c in further))

    @cached_property
    def _shares(self) -> dict[Conversion, float]:
        """Room that later tensors leave for those that wait in full, in elements.

        While an operator runs, what is made after it and kept is charged for, but not there: not
        yet, or no longer. So is what it makes itself, which counts among what it needs as well.
        However it is divided, on all ranks together that is all of it. What waits shares it. Blocks
        share nothing with others, as they may be recomputed.
        """
        wanting: dict[int | None, list[tuple[int, int, Conversion]]] = {}
        for links in self._out_of.values():
            for link in links:
                if link.source.kind != "operator":
                    continue
                if self.graph.tensors[link.tensor].kind != "activation":
                    continue
                if self._needs_own_room(link):
                    node = link.source if link.target.kind == "operator" else link.target
                    block = self.decisions.block_of.get(node)
                    wanting.setdefault(block, []).append((*self._span(link), link))
        shares: dict[Conversion, float] = {}
        for block, entries in wanting.items():
            kept = self._kept_elements(block)
            for start, end, link in entries:
                share = float("inf")
                for p in self._working[bisect_right(self._working, start) :]:
                    if p >= end:
                        break
                    room = sum(size for first, size in kept if first >= p)
                    asked = sum(self._elements(c) for a, b, c in entries if a < p < b)
                    share = min(share, room * self._elements(link) / asked)
                shares[link] = share
        return shares

    def _span(self, link: Conversion) -> tuple[int, int]:
        """Operators before and after those beside which something waits."""
        start = int(link.source.key)
        end = max(self._real_readers(link), default=start)
        if link.target.kind == "tensor" and self._waits_for_block(link):
            start = self.graph.blocks[self.decisions.block_of[link.source]].start - 1
        return start, end

    def _elements(self, link: Conversion) -> int:
        """Elements of a tensor; of integers, four times as many, as they are as much larger."""
        tensor = self.graph.tensors[link.tensor]
        return tensor.size * (1 if tensor.is_floating else 4)

    def _kept_elements(self, block: int | None) -> list[tuple[int, int]]:
        """Sizes of tensors that are kept, and whose place nobody takes.

        Each with the last operator beside which it is not there: the one that makes it or, if that
        keeps it for its own backward pass, any before.
        """
        found = []
        for position in self._working:
            node = Node("operator", position)
            if self.decisions.block_of.get(node) != block or position in self._passing:
                continue
            for link in self._out_of.get(node, []):
                border = link.target.kind == "tensor" and self._is_border(link.target)
                saving = self.of(link)
                floating = self.graph.tensors[link.tensor].is_floating
                if floating and not border and (saving.reader or saving.producer):
                    last = position - 1 if saving.producer else position
                    found.append((last, self.graph.tensors[link.tensor].size))
        return found

    def _grows(self, link: Conversion) -> bool:
        """Whether a gradient, once it came back over a conversion, waits beside other operators.

        It waits for those of other readers, if its reader is the last of several; or its producer
        makes gradients of several operands of it, of which one waits while the other's branch runs
        backward, and which do not replace those operands since they were not saved.
        """
        if not self.graph.tensors[link.tensor].requires_grad:
            return False
        if link.source.kind == "tensor":
            positions = {p for p, _ in self._readers[link.tensor]}
            return len(positions) > 1 and link.target == Node("operator", max(positions))
        position = int(link.source.key)
        while self.rules[position].alias:
            name = self.graph.operators[position].inputs[0]
            if self.graph.tensors[name].kind != "activation" or name not in self._producers:
                return False
            if Node("tensor", name) in self._nodes:
                return True
            position = self._producers[name]
        operator = self.graph.operators[position]
        branches = [
            operand
            for operand, read in enumerate(self.graph.operands(operator))
            if read is not None and read.requires_grad and read.kind != "parameter"
        ]
        saved = self.rules[position].saved_inputs
        return len(branches) >= 2 and any(operand not in saved for operand in branches)

    def _gives_way(self, link: Conversion) -> bool:
        """Whether a gradient takes the place of what its reader kept."""
        saving = self.of(link)
        return saving.reader and not saving.producer

    def _waits(self, link: Conversion) -> bool:
        """Whether others run between the producer of a tensor and its one reader."""
        start = self._made(link)
        if self._gives_way(link):
            return self._others(start, int(link.target.key), frozenset())
        readers = self._real_readers(link)
        return bool(readers) and self._others(start, max(readers), readers)

    def _others(self, start: int, stop: int, but: frozenset[int]) -> bool:
        """Whether operators that work run between two, apart from some of them."""
        first, last = bisect_right(self._working, start), bisect_left(self._working, stop)
        return any(p not in but for p in self._working[first:last])

    def _made(self, link: Conversion) -> int:
        """The operator that made what a conversion reads: views make nothing."""
        if link.source.kind == "tensor":
            before = self._to_node.get(link.tensor)
            return -1 if before is None else self._made(before)
        position = int(link.source.key)
        while self.rules[position].alias:
            before = self._into.get((position, 0))
            if before is None or before.source.kind == "parameter":
                return position
            if before.source.kind == "tensor":
                return self._made(before)
            position = int(before.source.key)
        return position

    def _real_readers(self, link: Conversion) -> frozenset[int]:
        """Operators that read what a conversion brings, directly or through views."""
        found = self._finals.get(link)
        if found is None:
            target = link.target
            if target.kind == "operator" and not self.rules[int(target.key)].alias:
                found = frozenset([int(target.key)])
            else:
                further = self._out_of.get(target, ())
                found = frozenset().union(*(self._real_readers(c) for c in further))
            self._finals[link] = found
        return found

    def _takes_parts(self, link: Conversion) -> bool:
        """Whether views behind a conversion are parts of what it brings."""
        target = link.target
        if target.kind == "operator":
            position = int(target.key)
            if not self.rules[position].alias:
                return False
            if not self._same_size(position):
                return True
        return any(self._takes_parts(c) for c in self._out_of.get(target, ()))

    def _same_size(self, position: int) -> bool:
        operator = self.graph.operators[position]
        sizes = {self.graph.tensors[n].size for n in (operator.inputs[0], *operator.outputs)}
        return len(operator.outputs) == 1 and len(sizes) == 1

    # Room for what waits.

    def _root(self, link: Conversion) -> Conversion | None:
        """Where the storage of an operand was made, through views that hand on all of it."""
        while link.source.kind == "operator" and self.rules[int(link.source.key)].alias:
            position = int(link.source.key)
            before = self._into.get((position, 0))
            if before is None or not self._same_size(position):
                return None
            if len(self._out_of[link.source]) > 1:
                return None
            link = before
        return link

    def _takers(self, position: int) -> frozenset[Conversion]:
        """Conversions of operands that take the place of an operator's result while they wait."""
        found = self._designated.get(position)
        if found is None:
            # Results come after operands, so this ends.
            found = self._designated[position] = self._choose(position)
        return found

    def _choose(self, position: int) -> frozenset[Conversion]:
        operator = self.graph.operators[position]
        candidates = []
        for operand, name in enumerate(operator.inputs):
            link = self._into.get((position, operand))
            if link is None or not name or self.graph.tensors[name].kind != "activation":
                continue
            root = self._root(link) if self._fits(position, operand) else None
            if root is None or not self._wants_room(root, position):
                continue
            unkept = root.source.kind != "tensor" or not self._kept_at_node(root.tensor)
            if self._has_room(position, unkept):
                candidates.append((root.source.kind != "tensor", self._made(root), operand, root))
        if operator.family == "concat":
            return frozenset(c[-1] for c in candidates)
        return frozenset([min(candidates, key=lambda c: c[:3])[-1]] if candidates else [])

    def _wants_room(self, root: Conversion, reader: int) -> bool:
        if root.source.kind == "operator":
            return self._waits(root) and not self._gives_way(root)
        if root.source.kind == "parameter" or root.tensor not in self._to_node:
            return False
        readers = self._real_readers(self._to_node[root.tensor])
        last = reader == max(readers)
        return last and self._others(self._made(root), reader, readers)

    def _kept_at_node(self, name: str) -> bool:
        saving = self.of(self._to_node[name])
        return saving.reader or saving.producer

    def _fits(self, position: int, operand: int) -> bool:
        """Whether the result is as large as the operand, however the operator is sharded."""
        operator = self.graph.operators[position]
        if self.rules[position].alias or len(operator.outputs) != 1:
            return False
        if operator.family == "concat":
            return True
        rule = self.rules[position]
        read, made = (self.graph.tensors[n] for n in (operator.inputs[operand], *operator.outputs))
        return (
            rule.inputs[operand] == rule.outputs[0]
            and read.shape == made.shape
            and read.dtype == made.dtype
        )

    def _has_room(self, position: int, unkept: bool) -> bool:
        """Whether memory is charged for an operator's result, before it is there and after."""
        links = self._out_of.get(Node("operator", position), [])
        if len(links) != 1:
            return False
        link = links[0]
        saving = self.of(link)
        if saving.reader or saving.producer:
            # While a block is recomputed, the gradient of its result lies there already.
            border = link.target.kind == "tensor" and self._is_border(link.target)
            return not (unkept and border and self.recomputable)
        if link.target.kind == "tensor":
            last = max(self._real_readers(link), default=-1)
            return any(c.source == link.target for c in self._takers(last)) if last >= 0 else False
        reader = int(link.target.key)
        if self.rules[reader].alias:
            return self._same_size(reader) and self._has_room(reader, unkept)
        takers = self._takers(reader)
        if takers:
            return any(self._root(c) == self._root(link) for c in takers)
        return self._fits(reader, link.operand) and self._has_room(reader, unkept)

    @cached_property
    def _passing(self) -> frozenset[int]:
        """Operators whose results' places operands take."""
        found: set[int] = set()
        for position, rule in self.rules.items():
            if not rule.alias and self._takers(position):
                found.add(position)
                continue
            # What takes the place of an operand's result may go on to take that of its reader's.
            for operand in range(len(rule.inputs)):
                link = self._into.get((position, operand))
                if link is None or link.source.kind != "operator":
                    continue
                saving = self.of(link)
                kept = saving.reader or saving.producer
                if int(link.source.key) in found and not kept:
                    found.add(position)
        return frozenset(found)


def _borders(decisions: Decisions) -> frozenset[Node]:
    """Tensor nodes outside all blocks that something inside a block reads or produces."""
    return frozenset(
        node
        for link in decisions.links
        if isinstance(link, Conversion)
        for node, other in ((link.source, link.target), (link.target, link.source))
        if node.kind == "tensor" and node not in decisions.block_of and other in decisions.block_of
    )
