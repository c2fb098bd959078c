"""Time and memory of one assignment, added up number by number.

The same contract as the search's tables, read by independent scalar code (``parts``): time is
compute plus exposed communication; resident bytes are weights, gradients, optimizer state, buffers,
what is saved for backward and what waiting gradients take beyond that; transient bytes are the
largest need of any one step; a recomputed block turns what it saves into a transient need. Nothing
here goes through the search.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tensoropt.cost.assignment import Assignment, gather_of
from tensoropt.cost.model import CostModel
from tensoropt.cost.parts import Parts
from tensoropt.cost.priced import ConversionPart, Move, OperatorPart, ParameterPart
from tensoropt.cost.segments import Segment
from tensoropt.errors import ShardingError
from tensoropt.sharding.decisions import Conversion, Decisions

__all__ = ["CollectiveUse", "Evaluation", "evaluate"]

SCATTERING = ("zero2", "zero3", "zero3_keep")
"""Schemes that scatter a gradient in every micro-batch."""


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """Communication that one iteration issues.

    Parameters
    ----------
    kind : str
    axis : int
        Position of the mesh axis.
    nbytes : int
        By the convention of ``cost.communication``.
    count : int
        Times in one iteration, micro-batches included.
    phase : str
        ``forward``, ``backward``, ``recompute`` or ``step``.
    subject : str
        The tensor, parameter or operator that it serves.
    why : str
        ``redistribution``, ``gradient sync``, ``parameter gather`` or ``inside operator``.
    seconds : float
        Of all of them, before overlap.
    """

    kind: str
    axis: int
    nbytes: int
    count: int
    phase: str
    subject: str
    why: str
    seconds: float


@dataclass(frozen=True)
class Evaluation:
    """What one assignment costs, per device and iteration.

    Attributes
    ----------
    time_s : float
        Compute plus exposed communication.
    compute_s, communication_s : float
        Busy times: kernels, accumulation and optimizer; all collectives before overlap.
    optimizer_s : float
        Of the compute time, that of the optimizer.
    weight_bytes, gradient_bytes, optimizer_bytes, buffer_bytes : float
        Resident for the whole run.
    saved_bytes : float
        Kept for backward, gathered weights that are kept included, outside recomputed blocks; and
        what gradients take beyond that (``held_bytes``).
    held_bytes : float
        Gradients take the place of what was kept for them, layout for layout. By how much those
        that wait (:meth:`Keepers.waits`) are larger, outside recomputed blocks.
    transient_bytes : float
        The largest need of one step, with all that a recomputed block saves while it runs backward.
    """

    time_s: float
    compute_s: float
    communication_s: float
    optimizer_s: float
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    buffer_bytes: float
    saved_bytes: float
    held_bytes: float
    transient_bytes: float
    parts: Parts = field(repr=False)
    assignment: Assignment = field(repr=False)

    @property
    def resident_bytes(self) -> float:
        """All that stays: the search's second objective."""
        states = self.weight_bytes + self.gradient_bytes + self.optimizer_bytes
        return states + self.buffer_bytes + self.saved_bytes

    @property
    def bound_bytes(self) -> float:
        """Resident plus transient."""
        return self.resident_bytes + self.transient_bytes

    @cached_property
    def collectives(self) -> tuple[CollectiveUse, ...]:
        """All communication, merged where all but the count is equal."""
        return _merged(_details(self.parts, self.assignment))

    @property
    def saved_by_tensor(self) -> dict[str, float]:
        """Saved bytes by tensor, operator or parameter, without what recomputed blocks save."""
        found: dict[str, float] = {}
        for details in _details(self.parts, self.assignment):
            for name, nbytes in details.saved.items():
                found[name] = found.get(name, 0.0) + nbytes
        return found

    @property
    def state_by_parameter(self) -> dict[str, float]:
        """Weight, gradient and optimizer state of every parameter."""
        found: dict[str, float] = {}
        for details in _details(self.parts, self.assignment):
            found.update(details.states)
        return found


def evaluate(
    model: CostModel | Parts,
    decisions: Decisions,
    assignment: Assignment,
    *,
    recomputable: bool | None = None,
) -> Evaluation:
    """Add up what an assignment costs.

    Parameters
    ----------
    model : CostModel or Parts
        A :class:`Parts` keeps what it priced: give one where many assignments are evaluated.
    decisions : Decisions
        Of the graph of one micro-batch.
    assignment : Assignment
    recomputable : bool, optional
        Whether some block may be recomputed (its input is then kept, whoever reads it); default:
        whether the assignment recomputes one. Ignored if a :class:`Parts` is given.

    Raises
    ------
    ShardingError
        If the assignment is for another mesh or number of micro-batches, a part of it is illegal,
        or a tensor cannot get from where it is to where it is read.
    """
    if isinstance(model, CostModel):
        redo = any(assignment.recompute) if recomputable is None else recomputable
        model = Parts(model, decisions, recomputable=redo)
    if assignment.mesh.shape != model.model.mesh_shape:
        raise ShardingError(
            f"the assignment is for mesh {assignment.mesh}, the cost model for {model.model.mesh}"
        )
    if assignment.micro_batches != model.model.micro_batches:
        raise ShardingError(
            f"the assignment has {assignment.micro_batches} micro-batches, the cost model "
            f"{model.model.micro_batches}"
        )
    total = _total(model, assignment)
    return Evaluation(
        total.time,
        total.compute,
        total.communication,
        total.stepping,
        total.weight,
        total.gradient,
        total.optimizer,
        total.buffers,
        total.saved + total.held,
        total.held,
        total.transient,
        model,
        assignment,
    )


def operator_parts(
    parts: Parts, assignment: Assignment, positions: Iterable[int] | None = None
) -> dict[int, OperatorPart]:
    """Priced operators of an assignment, by position; all of them, or some."""
    found = {}
    for position in parts.decisions.rules if positions is None else positions:
        labels = assignment.operators.get(position)
        if labels is None:
            name = parts.graph.operators[position].name
            raise ShardingError(f"operator '{name}' has no configuration")
        found[position] = parts.operator(position, labels)
    return found


def conversion_parts(
    parts: Parts,
    assignment: Assignment,
    operators: Mapping[int, OperatorPart],
    links: Iterable[int] | None = None,
) -> Iterator[tuple[Conversion, ConversionPart]]:
    """Priced conversions of an assignment, in the order of the decisions; all, or some."""
    for index in range(len(parts.links)) if links is None else links:
        link = parts.links[index]
        if link.source.kind == "operator":
            source = operators[int(link.source.key)].result_states[link.output]
        else:
            # A tensor's own node, or a tied parameter.
            source = assignment.tensors[link.tensor]
        if link.target.kind == "operator":
            target = operators[int(link.target.key)].operand_states[link.operand]
        else:
            target = assignment.tensors[link.tensor]
        again = gather_of(link) in assignment.regathered
        yield link, parts.conversion(index, source, target, again)


def parameter_parts(
    parts: Parts,
    assignment: Assignment,
    operators: Mapping[int, OperatorPart],
    groups: Iterable[int] | None = None,
) -> Iterator[tuple[str, int | None, ParameterPart]]:
    """Priced parameters with the position of their only reader (``None`` if they are tied)."""
    for index in range(len(parts.decisions.groups)) if groups is None else groups:
        group = parts.decisions.groups[index]
        if len(group.readers) > 1:
            name = group.names[0]
            state, scheme = assignment.tensors[name], assignment.schemes[name]
            readers = len({p for p, _ in group.readers})
            yield name, None, parts.parameter(name, state, scheme, readers=readers)
            continue
        position = group.readers[0][0]
        reader = operators[position]
        inputs = parts.graph.operators[position].inputs
        for rank, name in enumerate(group.names):
            state = reader.operand_states[inputs.index(name)]
            # A kernel hides once: the largest parameter of its operator takes it.
            behind = (reader.forward_s, reader.backward_s) if rank == 0 else (0.0, 0.0)
            scheme = assignment.schemes[name]
            yield name, position, parts.parameter(name, state, scheme, *behind)


@dataclass(slots=True)
class Totals:
    """Running totals of a segment."""

    time: float = 0.0
    compute: float = 0.0
    communication: float = 0.0
    stepping: float = 0.0
    weight: float = 0.0
    gradient: float = 0.0
    optimizer: float = 0.0
    buffers: float = 0.0
    saved: float = 0.0
    held: float = 0.0
    """What waiting gradients take beyond what was saved."""
    dropped: float = 0.0
    """Saved and held while a recomputed block runs backward."""
    transient: float = 0.0

    def add(self, other: Totals) -> None:
        """Add a segment: all but transient bytes, of which the most counts."""
        self.time += other.time
        self.compute += other.compute
        self.communication += other.communication
        self.stepping += other.stepping
        self.weight += other.weight
        self.gradient += other.gradient
        self.optimizer += other.optimizer
        self.buffers += other.buffers
        self.saved += other.saved
        self.held += other.held
        self.transient = max(self.transient, other.transient + other.dropped)


def _total(parts: Parts, assignment: Assignment) -> Totals:
    """Add up all segments; equal ones are priced once."""
    total = Totals()
    for segment, choice in zip(parts.segments, parts.choices(assignment), strict=True):
        key = ("totals", choice)
        found = parts.kept.get(key)
        if found is None:
            found = parts.kept[key] = _Sum(parts, assignment, segment).totals
        assert isinstance(found, Totals)
        total.add(found)
    return total


class _Sum:
    """Prices one segment."""

    def __init__(
        self,
        parts: Parts,
        assignment: Assignment,
        segment: Segment,
        details: _Details | None = None,
    ) -> None:
        self.parts = parts
        self.m = assignment.micro_batches
        self.redo = segment.block is not None and assignment.recompute[segment.block]
        self.totals = Totals()
        self.details = details
        operators = operator_parts(parts, assignment, segment.positions)
        need = {p: max(part.working_bytes, part.copied_bytes) for p, part in operators.items()}
        scatters: set[int] = set()
        for position, part in operators.items():
            self._add_operator(parts.graph.operators[position].name, part)
        found = conversion_parts(parts, assignment, operators, segment.links)
        for index, (link, conversion) in zip(segment.links, found, strict=True):
            self._add_conversion(link, conversion)
            moving = conversion.transient_bytes
            if link.target.kind == "operator":
                by = operators[int(link.target.key)]
                self._need(parts.reading_bytes(index, conversion, by))
                if link.source.kind == "parameter":
                    self._need_tied(assignment, link, conversion, by)
                moving += parts.other_bytes(link, conversion, by) if moving else 0.0
            self._need(moving)
            self._hold_waiting(index, conversion)
        for name, reader, parameter in parameter_parts(
            parts, assignment, operators, segment.groups
        ):
            self._add_parameter(name, parameter)
            if reader is None:
                self._need(parameter.transient_bytes)
            else:
                need[reader] += parameter.transient_bytes
                if assignment.schemes[name].name in SCATTERING:
                    scatters.add(reader)
        for position, nbytes in need.items():
            # Gradients to be scattered lie beside what is gathered again for their operator.
            again = operators[position].again_bytes if position in scatters else 0.0
            self._need(nbytes + again)

    def _need_tied(
        self, assignment: Assignment, link: Conversion, part: ConversionPart, by: OperatorPart
    ) -> None:
        """A reader of a tied parameter needs the gathered weight, and makes a whole gradient."""
        tied = self.parts.parameter(link.tensor, part.source, assignment.schemes[link.tensor])
        need = max(by.working_bytes, by.copied_bytes)
        if tied.scattered_bytes:
            need += by.again_bytes
        # A weight that is not gathered is counted twice: with its state, and as it is read.
        twice = not tied.gathered_bytes and not self.parts.keepers.routes.is_view(link.target)
        need += max(tied.scattered_bytes - (part.target_bytes if twice else 0.0), 0.0)
        self._need(need if part.same else need + tied.gathered_bytes)

    def _hold_waiting(self, index: int, part: ConversionPart) -> None:
        """What a tensor or its gradient takes, while others run, that is not charged elsewhere."""
        parts, link, waits = self.parts, self.parts.links[index], self.parts.waits[index]
        if waits.excess:
            self._hold(part.source_bytes - part.target_bytes, self.redo)
        if waits.room is not None:
            # In the smaller layout, or as a view of the other, or at the tensor's own node.
            stays = link.target.kind == "tensor" or parts.keepers.routes.is_view(link.target)
            least = part.target_bytes if stays else min(part.source_bytes, part.target_bytes)
            each = parts.model.itemsize(parts.graph.tensors[link.tensor])
            room = waits.room * each / math.prod(parts.model.mesh_shape)
            self._hold(least - room, self.redo and parts.is_inner(link))

    def _add_operator(self, name: str, part: OperatorPart) -> None:
        runs = 2 if self.redo else 1
        seconds = self.m * (runs * part.forward_s + part.backward_s)
        self.totals.compute += seconds
        self.totals.time += seconds
        for phase, moves in (
            ("forward", part.forward_moves),
            ("recompute", part.forward_moves if self.redo else ()),
            ("backward", part.backward_moves),
        ):
            if moves:
                self.totals.time += self._issue(moves, phase, name, "inside operator", self.m)
        self.totals.buffers += part.buffer_bytes
        self._save(name, part.saved_bytes, self.redo)

    def _add_conversion(self, link: Conversion, part: ConversionPart) -> None:
        redo = self.redo and self.parts.is_inner(link)
        for phase, moves in (
            ("forward", part.forward),
            ("recompute", part.forward if redo else ()),
            ("backward", part.forward if part.regathered else ()),
            ("backward", part.backward),
        ):
            if moves:
                why = "redistribution"
                self.totals.time += self._issue(moves, phase, link.tensor, why, self.m)
        self._save(link.tensor, part.saved_bytes, redo)

    def _add_parameter(self, name: str, part: ParameterPart) -> None:
        totals = self.totals
        totals.stepping += part.optimizer_s
        totals.weight += part.weight_bytes
        totals.gradient += part.gradient_bytes
        totals.optimizer += part.optimizer_bytes
        self._save(name, part.kept_bytes, False)
        own = part.accumulate_s + part.optimizer_s
        totals.compute += own
        totals.time += own + part.exposed_s + (part.again_s if self.redo else 0.0)
        for phase, moves, count in (
            ("forward", part.forward, self.m),
            ("recompute", part.again if self.redo else (), self.m),
            ("backward", part.backward, self.m),
            ("step", part.step_backward, 1),
            ("step", part.step_forward, 1),
        ):
            for move in moves:
                why = "parameter gather" if move.kind == "all_gather" else "gradient sync"
                self._issue((move,), phase, name, why, count)
        if self.details is not None:
            state = part.weight_bytes + part.gradient_bytes + part.optimizer_bytes
            self.details.states[name] = state

    def _issue(
        self, moves: tuple[Move, ...], phase: str, subject: str, why: str, count: int
    ) -> float:
        total = 0.0
        for move in moves:
            total += count * move.seconds
            if self.details is not None:
                self.details.issue(move, phase, subject, why, count)
        self.totals.communication += total
        return total

    def _save(self, subject: str, nbytes: float, redo: bool) -> None:
        if redo:
            self.totals.dropped += nbytes
        elif nbytes:
            self.totals.saved += nbytes
            if self.details is not None:
                saved = self.details.saved
                saved[subject] = saved.get(subject, 0.0) + nbytes

    def _hold(self, nbytes: float, redo: bool) -> None:
        """A tensor or a gradient waits that takes so much more than was charged for it."""
        if redo:
            self.totals.dropped += max(nbytes, 0.0)
        else:
            self.totals.held += max(nbytes, 0.0)

    def _need(self, nbytes: float) -> None:
        self.totals.transient = max(self.totals.transient, nbytes)


class _Details:
    """Who communicates and who holds what in one segment."""

    def __init__(self, parts: Parts, assignment: Assignment, segment: Segment) -> None:
        self.saved: dict[str, float] = {}
        self.states: dict[str, float] = {}
        self._uses: dict[tuple[str, int, int, str, str, str], list[float]] = {}
        _Sum(parts, assignment, segment, self)
        self.collectives = tuple(
            CollectiveUse(kind, axis, nbytes, int(count), phase, subject, why, seconds)
            for (kind, axis, nbytes, phase, subject, why), (count, seconds) in self._uses.items()
        )

    def issue(self, move: Move, phase: str, subject: str, why: str, count: int) -> None:
        key = (move.kind, move.axis, round(move.nbytes), phase, subject, why)
        use = self._uses.setdefault(key, [0, 0.0])
        use[0] += count
        use[1] += count * move.seconds


def _details(parts: Parts, assignment: Assignment) -> list[_Details]:
    """Details of all segments; what is outside the blocks comes first."""
    found = []
    pairs = [*zip(parts.segments, parts.choices(assignment), strict=True)]
    for segment, choice in (pairs[-1], *pairs[:-1]):
        key = ("details", segment.block, choice)
        known = parts.kept.get(key)
        if known is None:
            known = parts.kept[key] = _Details(parts, assignment, segment)
        assert isinstance(known, _Details)
        found.append(known)
    return found


def _merged(details: Iterable[_Details]) -> tuple[CollectiveUse, ...]:
    """Collectives of all segments; tensors at borders may be on their way in two of them."""
    place: dict[tuple[str, int, int, str, str, str], int] = {}
    found: list[CollectiveUse] = []
    for use in itertools.chain.from_iterable(d.collectives for d in details):
        key = (use.kind, use.axis, use.nbytes, use.phase, use.subject, use.why)
        known = place.setdefault(key, len(found))
        if known == len(found):
            found.append(use)
        else:
            before = found[known]
            found[known] = replace(
                before, count=before.count + use.count, seconds=before.seconds + use.seconds
            )
    return tuple(found)
