"""Find the repeated layers of a graph.

A model is mostly one layer written many times. Marking the copies lets the search contract a layer
once and lets it choose recomputation block by block. Copies are recognised by structure alone,
names only break ties:

1. Operators of equal :func:`~tensoropt.graph.signature` get equal tokens; a repeated layer is a
   run of the token sequence with a period (:func:`_periods`, :func:`_stretches`).
2. A run can be cut in as many phases as its period is long. The best phase has the fewest tensors
   across its cuts, then follows the borders of numbered modules (:func:`_phases`).
3. Of the blocks so cut, consecutive ones that are wired alike are copies (:class:`_Wiring`).
4. Disjoint runs are taken greedily (:func:`_select`), so that as many operators as possible are
   copies of others.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensoropt.graph import Block, Graph, signature

__all__ = ["mark_repeats"]

_MOST_PERIODS = 256  # Periods that are examined, the most frequent ones.
_MOST_PHASES = 16  # Cuts of one run that are compared, those with the fewest crossing tensors.

_Operand = tuple[object, ...]  # Where an operand comes from, see `_Wiring.form`.
_Form = tuple[_Operand | None, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive copies: ``count`` blocks of ``period`` operators from ``start`` on."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.count


def mark_repeats(graph: Graph) -> Graph:
    """Mark the repeated layers of a graph, replacing any blocks it has.

    Blocks of one kind are exact structural copies: equal signatures, equal wiring inside, equal
    tensors read from elsewhere (a mask, an encoder's output), and otherwise only tensors that the
    previous copy made. What a block makes is read in the block, in the next one, or, of the last
    block, by what follows. A block reads at least one parameter. Networks whose blocks read much
    older ones (DenseNet) or whose shapes change from layer to layer have no repeats.

    Parameters
    ----------
    graph : Graph

    Returns
    -------
    Graph
        The same graph with other ``blocks``; without any if nothing repeats.

    Notes
    -----
    Time is O(n log n + n * periods) for n operators, where the few hundred periods at most are
    compared by vectorised code. The result depends on nothing but the graph.
    """
    tokens = _tokens(graph)
    wiring = _Wiring(graph)
    stretches = [(p, *s) for p in _periods(tokens) for s in _stretches(tokens, p)]
    # Five layers and another one, repeated, are best marked as blocks of six if that occurs often,
    # and as blocks of one layer if it occurs twice. Whole layers win unless pieces save much more.
    large, small = (
        _blocks(graph, wiring, _select(wiring, stretches, by_copies=by_copies))
        for by_copies in (True, False)
    )
    return graph.with_blocks(small if _copies(small) > 1.25 * _copies(large) else large)


def _copies(blocks: Sequence[Block]) -> int:
    """Operators in blocks, beyond the first block of every kind."""
    lengths = {block.kind: block.stop - block.start for block in blocks}
    return sum(block.stop - block.start for block in blocks) - sum(lengths.values())


def _select(
    wiring: _Wiring, stretches: Sequence[tuple[int, int, int]], *, by_copies: bool
) -> list[_Run]:
    """Take disjoint runs greedily, those with most copies first or those of least period first."""
    # Entries: (rank, period, start, stop, run or None while only bounded).
    heap: list[tuple[int, int, int, int, int, _Run | None]] = []

    def push(period: int, start: int, stop: int, run: _Run | None = None) -> None:
        count = (stop - start) // period if run is None else run.count
        if count > 1:
            copies = (count - 1) * period
            order = (-copies, period) if by_copies else (period, -copies)
            heapq.heappush(heap, (*order, start, stop, period, run))

    for stretch in stretches:
        push(*stretch)
    taken: list[_Run] = []
    while heap:
        *_, start, stop, period, run = heapq.heappop(heap)
        hit = next((t for t in taken if t.start < stop and start < t.stop), None)
        if hit is not None:
            push(period, start, min(stop, hit.start))
            push(period, max(start, hit.stop), stop)
        elif run is None:
            run = wiring.best_run(period, start, stop)
            if run is not None:
                push(period, start, stop, run)
        else:
            taken.append(run)
            push(period, start, run.start)
            push(period, run.stop, stop)
    return sorted(taken, key=lambda r: r.start)


def _tokens(graph: Graph) -> NDArray[np.int64]:
    ids: dict[object, int] = {}
    return np.array(
        [ids.setdefault(signature(graph, o), len(ids)) for o in graph.operators], dtype=np.int64
    )


def _periods(tokens: NDArray[np.int64]) -> list[int]:
    """Distances between equal windows of tokens, for windows of 1, 2, 4, ... operators.

    Windows as long as a layer occur once in it, so that their distance is the period even where
    every single operator occurs several times in a layer.
    """
    count = len(tokens)
    found: Counter[int] = Counter()
    ranks, width = tokens, 1
    while width <= count // 2:
        order = np.argsort(ranks, kind="stable")
        gaps = np.diff(order)[np.diff(ranks[order]) == 0]
        if not len(gaps):
            break
        found.update(Counter(int(gap) for gap in gaps if gap <= count // 2))
        # Rank of a window of twice the width: the pair of ranks of its halves.
        pairs = ranks[:-width] * (int(ranks.max()) + 1) + ranks[width:]
        ranks = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
        width *= 2
    frequent = sorted(found, key=lambda gap: (-found[gap] * gap, gap))
    return sorted(frequent[:_MOST_PERIODS])


def _stretches(tokens: NDArray[np.int64], period: int) -> Iterator[tuple[int, int]]:
    """Maximal ranges of at least two periods in which every token equals that a period later."""
    equal = np.concatenate(([0], tokens[:-period] == tokens[period:], [0])).astype(np.int8)
    edges = np.flatnonzero(np.diff(equal))
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        if stop - start >= period:
            yield int(start), int(stop) + period


class _Wiring:
    """Who reads what, prepared for the comparison of blocks."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = graph.producers()
        uses = {name: [p for p, _ in found] for name, found in graph.consumers().items()}
        self.span = {name: (p[0], p[-1]) for name, p in uses.items() if p}
        self.readers = uses
        self.constants = {n for n, t in graph.tensors.items() if t.kind == "constant"}
        self.parameters = {n for n, t in graph.tensors.items() if t.kind == "parameter"}
        prefixes = [_numbered_prefixes(o.source) for o in graph.operators]
        # A number that only one operator bears (`MatMul_17`) is no module.
        bearers = Counter(prefix for found in prefixes for prefix in found)
        self.prefixes = [tuple(p for p in found if bearers[p] > 1) for found in prefixes]

    def best_run(self, period: int, start: int, stop: int) -> _Run | None:
        """Find the longest run of copies in a stretch, cut in its best phase."""
        runs: list[tuple[float, float, int, _Run]] = []
        most = (stop - start) // period
        for crossing, border, offset in self._phases(period, start, stop)[:_MOST_PHASES]:
            run = self._longest_run(period, start + offset, stop)
            if run is not None:
                runs.append((crossing, border, offset, run))
                if len(runs) == 1 and run.count == most:
                    break
        # A better cut may cost the incomplete block at one end, but no more than that.
        longest = max((run.count for *_, run in runs), default=0)
        kept = [entry for entry in runs if entry[3].count >= longest - 1]
        kept.sort(key=lambda entry: (entry[0], entry[1], -entry[3].count, entry[2]))
        return kept[0][3] if kept else None

    def _phases(self, period: int, start: int, stop: int) -> list[tuple[float, float, int]]:
        """For every offset that leaves two blocks: mean crossing tensors, mean border level."""
        change = np.zeros(stop - start + 1, dtype=np.int64)
        for position in range(start, stop):
            for name in self.graph.operators[position].outputs:
                if name in self.span and name not in self.constants:
                    last = min(self.span[name][1], stop - 1)
                    change[position - start + 1] += 1
                    change[last - start + 1] -= 1
        crossing = np.cumsum(change)
        phases = []
        for offset in range(min(period, stop - start - 2 * period + 1)):
            last = start + offset + (stop - start - offset) // period * period
            cuts = range(start + offset + period, last, period)
            tensors = float(np.mean([crossing[cut - start] for cut in cuts]))
            outer = (start + offset, *cuts)
            border = float(np.mean([self._border(cut) for cut in outer]))
            phases.append((tensors, border, offset))
        return sorted(phases)

    def _border(self, cut: int) -> int:
        """How deep the first numbered module lies that changes at a cut; deep if none does."""
        before = self.prefixes[cut - 1] if cut else ()
        after = self.prefixes[cut]
        for level, (left, right) in enumerate(itertools.zip_longest(before, after)):
            if left != right:
                return level
        return 100

    def _longest_run(self, period: int, start: int, stop: int) -> _Run | None:
        """Find the longest run of copies among blocks from ``start`` on; the earliest of equals."""
        starts = list(range(start, stop - period + 1, period))
        forms = [self.form(s, period) for s in starts]
        ahead = [self._reach(s, period) for s in starts]
        best: _Run | None = None
        first = 0
        while first + 1 < len(starts):
            last = first
            # Block `last + 1` joins if `last` feeds nobody else and both are wired alike. The
            # first block of a run reads what no copy made, so it is compared by a mapping.
            while last + 1 < len(starts) and ahead[last] <= starts[last] + 2 * period:
                alike = (
                    self._precedes(starts[last], period, forms[last + 1])
                    if last == first
                    else forms[last] == forms[last + 1]
                )
                if not alike or self.exports(starts[last], period) != self.exports(
                    starts[last + 1], period
                ):
                    break
                last += 1
            count = last - first + 1
            if count > 1 and self._reads_parameter(starts[first], period):
                run = _Run(starts[first], period, count)
                if best is None or run.count > best.count:
                    best = run
            first = max(last, first + 1)
        return best

    def form(self, start: int, period: int) -> _Form:
        """How each operand of a block is wired, the block before it being its predecessor.

        Operands are ``('own', number)`` for tensors from outside that nobody else reads
        (parameters, buffers), ``('inside', operator, output)``, ``('before', operator, output)``
        for what the previous block made, and ``('global', name)``.
        """
        own: dict[str, int] = {}
        form: list[_Operand | None] = []
        for operator in self.graph.operators[start : start + period]:
            for name in operator.inputs:
                form.append(self._operand(name, start, period, own) if name else None)
        return tuple(form)

    def _operand(self, name: str, start: int, period: int, own: dict[str, int]) -> _Operand:
        producer = self.producers.get(name)
        if producer is None:
            first, last = self.span[name]
            if start <= first and last < start + period:
                return "own", own.setdefault(name, len(own))
            return "global", name
        position, output = producer
        if position >= start:
            return "inside", position - start, output
        if position >= start - period and name not in self.constants:
            return "before", position - start + period, output
        return "global", name

    def _precedes(self, start: int, period: int, following: _Form) -> bool:
        """Whether a block may be the first of a run whose second block has form ``following``."""
        names = [n for o in self.graph.operators[start : start + period] for n in o.inputs]
        form = self.form(start, period)
        if len(form) != len(following):
            return False
        slots: dict[object, str] = {}
        fixed = set()
        for name, mine, theirs in zip(names, form, following, strict=True):
            outside = mine is not None and mine[0] in ("before", "global")
            if theirs is not None and theirs[0] == "before":
                if not outside or slots.setdefault(theirs, name) != name:
                    return False
            elif theirs is not None and theirs[0] == "global":
                if not outside or name != theirs[1]:
                    return False
                fixed.add(name)
            elif mine != theirs:
                return False
        return len(set(slots.values())) == len(slots) and fixed.isdisjoint(slots.values())

    def _reach(self, start: int, period: int) -> int:
        """One past the last operator that reads what a block makes."""
        return 1 + max(
            (
                self.span[name][1]
                for operator in self.graph.operators[start : start + period]
                for name in operator.outputs
                if name in self.span and name not in self.constants
            ),
            default=start,
        )

    def exports(self, start: int, period: int) -> tuple[tuple[int, int], ...]:
        """Which outputs of a block are read after it."""
        return tuple(
            (offset, output)
            for offset, operator in enumerate(self.graph.operators[start : start + period])
            for output, name in enumerate(operator.outputs)
            if name in self.span
            and name not in self.constants
            and self.span[name][1] >= start + period
        )

    def _reads_parameter(self, start: int, period: int) -> bool:
        operators = self.graph.operators[start : start + period]
        return any(name in self.parameters for o in operators for name in o.inputs)


def _numbered_prefixes(source: str) -> tuple[str, ...]:
    """Give the prefixes of a module path that end in a number: ``a.0.b.1.c -> (a.0, a.0.b.1)``."""
    found = re.finditer(r"(?:^|[./_])\d+(?=[./_]|$)", source)
    return tuple(source[: match.end()] for match in found)


def _blocks(graph: Graph, wiring: _Wiring, runs: Sequence[_Run]) -> list[Block]:
    kinds: dict[object, int] = {}
    blocks: list[Block] = []
    names: Counter[str] = Counter()
    for run in runs:
        operators = graph.operators[run.start : run.start + run.period]
        # The second block, because the first one has no predecessor to read from.
        key = (
            tuple(signature(graph, o) for o in operators),
            wiring.form(run.start + run.period, run.period),
            wiring.exports(run.start, run.period),
        )
        kind = kinds.setdefault(key, len(kinds))
        for index in range(run.count):
            start = run.start + index * run.period
            name = _name(wiring, start, run.period) or f"block.{kind}.{index}"
            names[name] += 1
            if names[name] > 1:
                name = f"{name}#{names[name]}"
            blocks.append(Block(name, start, start + run.period, kind))
    return blocks


def _name(wiring: _Wiring, start: int, period: int) -> str:
    """Give the innermost numbered module that all operators of a block share, or nothing."""
    common: tuple[str, ...] | None = None
    for prefixes in wiring.prefixes[start : start + period]:
        if common is None:
            common = prefixes
        else:
            pairs = zip(common, prefixes, strict=False)
            common = tuple(a for a, _ in itertools.takewhile(lambda p: p[0] == p[1], pairs))
    return common[-1] if common else ""
