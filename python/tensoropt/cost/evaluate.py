"""Time and memory of one assignment, added up number by number.

The same contract as the search's tables, read by independent scalar code (``parts``): time is
compute plus exposed communication; resident bytes are weights, gradients, optimizer state, buffers
and what is saved for backward; transient bytes are the largest need of any one step; a recomputed
block turns what it saves into a transient need. Nothing here goes through the search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensoropt.cost.assignment import Assignment, State
from tensoropt.cost.model import CostModel
from tensoropt.cost.parts import ConversionPart, Move, OperatorPart, ParameterPart, Parts
from tensoropt.errors import ShardingError
from tensoropt.sharding.decisions import Conversion, Decisions, Node

__all__ = ["CollectiveUse", "Evaluation", "evaluate"]


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
    weight_bytes, gradient_bytes, optimizer_bytes, buffer_bytes : float
        Resident for the whole run.
    saved_bytes : float
        Kept for backward, gathered weights that are kept included, outside recomputed blocks.
    transient_bytes : float
        The largest need of one step, with all that a recomputed block saves while it runs backward.
    collectives : tuple of CollectiveUse
        Merged where all but the count is equal, in the order in which they are first issued.
    saved_by_tensor : dict of str to float
        Saved bytes by the tensor or operator that they belong to; what recomputed blocks save is
        left out.
    state_by_parameter : dict of str to float
        Weight, gradient and optimizer state of every parameter.
    """

    time_s: float
    compute_s: float
    communication_s: float
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    buffer_bytes: float
    saved_bytes: float
    transient_bytes: float
    collectives: tuple[CollectiveUse, ...]
    saved_by_tensor: dict[str, float]
    state_by_parameter: dict[str, float]

    @property
    def resident_bytes(self) -> float:
        """All that stays: the search's second objective."""
        states = self.weight_bytes + self.gradient_bytes + self.optimizer_bytes
        return states + self.buffer_bytes + self.saved_bytes

    @property
    def bound_bytes(self) -> float:
        """Resident plus transient."""
        return self.resident_bytes + self.transient_bytes


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
    return _Sum(model, assignment).result()


def operator_parts(parts: Parts, assignment: Assignment) -> dict[int, OperatorPart]:
    """Priced operators of an assignment, by position."""
    found = {}
    for position in parts.decisions.rules:
        labels = assignment.operators.get(position)
        if labels is None:
            name = parts.graph.operators[position].name
            raise ShardingError(f"operator '{name}' has no configuration")
        found[position] = parts.operator(position, labels)
    return found


def conversion_parts(
    parts: Parts, assignment: Assignment, operators: dict[int, OperatorPart]
) -> Iterator[tuple[Conversion, ConversionPart]]:
    """Priced conversions of an assignment, in the order of the decisions."""
    for link in parts.links:
        source, target = _ends(link, assignment, operators)
        position = int(link.target.key) if link.target.kind == "operator" else None
        again = (link.tensor, position) in assignment.regathered
        yield link, parts.conversion(link, source, target, again)


def parameter_parts(
    parts: Parts, assignment: Assignment, operators: dict[int, OperatorPart]
) -> Iterator[tuple[str, int | None, ParameterPart]]:
    """Priced parameters with the position of their only reader (``None`` if they are tied)."""
    for group in parts.decisions.groups:
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


def _ends(
    link: Conversion, assignment: Assignment, operators: dict[int, OperatorPart]
) -> tuple[State, State]:
    if link.source.kind == "operator":
        source = operators[int(link.source.key)].result_states[link.output]
    else:
        # A tensor's own node, or a tied parameter.
        source = assignment.tensors[link.tensor]
    if link.target.kind == "operator":
        return source, operators[int(link.target.key)].operand_states[link.operand]
    return source, assignment.tensors[link.tensor]


class _Sum:
    """Running totals of one assignment."""

    def __init__(self, parts: Parts, assignment: Assignment) -> None:
        model = parts.model
        if assignment.mesh.shape != model.mesh_shape:
            raise ShardingError(
                f"the assignment is for mesh {assignment.mesh}, the cost model for {model.mesh}"
            )
        if assignment.micro_batches != model.micro_batches:
            raise ShardingError(
                f"the assignment has {assignment.micro_batches} micro-batches, the cost model "
                f"{model.micro_batches}"
            )
        self.parts = parts
        self.assignment = assignment
        self.m = model.micro_batches
        self.time = self.compute = self.communication = 0.0
        self.weight = self.gradient = self.optimizer = self.buffers = 0.0
        self.saved = self.transient = 0.0
        self.saved_by: dict[str, float] = {}
        self.state_by: dict[str, float] = {}
        blocks = len(parts.graph.blocks)
        self.block_saved = [0.0] * blocks
        self.block_transient = [0.0] * blocks
        self.uses: dict[tuple[str, int, int, str, str, str], list[float]] = {}

    def result(self) -> Evaluation:
        operators = operator_parts(self.parts, self.assignment)
        for position, part in operators.items():
            self._add_operator(position, part)
        for link, conversion in conversion_parts(self.parts, self.assignment, operators):
            self._add_conversion(link, conversion)
        need: dict[int, float] = {}
        redone = self._redone_parameters()
        for name, reader, parameter in parameter_parts(self.parts, self.assignment, operators):
            self._add_parameter(name, reader, parameter, need, name in redone)
        for position, extra in need.items():
            self._need(Node("operator", position), operators[position].working_bytes + extra)
        for redo, saved, transient in zip(
            self.assignment.recompute, self.block_saved, self.block_transient, strict=True
        ):
            if redo:
                self.transient = max(self.transient, saved + transient)
        return Evaluation(
            self.time,
            self.compute,
            self.communication,
            self.weight,
            self.gradient,
            self.optimizer,
            self.buffers,
            self.saved,
            self.transient,
            tuple(
                CollectiveUse(kind, axis, nbytes, int(count), phase, subject, why, seconds)
                for (kind, axis, nbytes, phase, subject, why), (count, seconds) in self.uses.items()
            ),
            self.saved_by,
            self.state_by,
        )

    def _add_operator(self, position: int, part: OperatorPart) -> None:
        node = Node("operator", position)
        name = self.parts.graph.operators[position].name
        redo = self._recomputed(node)
        runs = 2 if redo else 1
        seconds = self.m * (runs * part.forward_s + part.backward_s)
        self.compute += seconds
        self.time += seconds
        for phase, moves in (
            ("forward", part.forward_moves),
            ("recompute", part.forward_moves if redo else ()),
            ("backward", part.backward_moves),
        ):
            self.time += self._issue(moves, phase, name, "inside operator", self.m)
        self.buffers += part.buffer_bytes
        self._save(node, name, part.saved_bytes)
        self._need(node, part.working_bytes)

    def _add_conversion(self, link: Conversion, part: ConversionPart) -> None:
        node = self._place(link)
        # What reaches a border tensor is made and kept outside the block before it.
        redo = node is not None and self._recomputed(node)
        for phase, moves in (
            ("forward", part.forward),
            ("recompute", part.forward if redo else ()),
            ("backward", part.forward if part.regathered else ()),
            ("backward", part.backward),
        ):
            self.time += self._issue(moves, phase, link.tensor, "redistribution", self.m)
        if part.saved_bytes:
            self._save(node, link.tensor, part.saved_bytes)
        self._need(self._block_node(link), part.transient_bytes)

    def _add_parameter(
        self,
        name: str,
        position: int | None,
        part: ParameterPart,
        need: dict[int, float],
        redo: bool,
    ) -> None:
        self.weight += part.weight_bytes
        self.gradient += part.gradient_bytes
        self.optimizer += part.optimizer_bytes
        self.state_by[name] = part.weight_bytes + part.gradient_bytes + part.optimizer_bytes
        if part.kept_bytes:
            self._save(None, name, part.kept_bytes)
        own = part.accumulate_s + part.optimizer_s
        self.compute += own
        self.time += own + part.exposed_s + (part.again_s if redo else 0.0)
        for phase, moves, count in (
            ("forward", part.forward, self.m),
            ("recompute", part.again if redo else (), self.m),
            ("backward", part.backward, self.m),
            ("step", part.step_backward, 1),
            ("step", part.step_forward, 1),
        ):
            for move in moves:
                why = "parameter gather" if move.kind == "all_gather" else "gradient sync"
                self._issue((move,), phase, name, why, count)
        if position is None:
            self._need(None, part.transient_bytes)
        else:
            need[position] = need.get(position, 0.0) + part.transient_bytes

    def _issue(
        self, moves: tuple[Move, ...], phase: str, subject: str, why: str, count: int
    ) -> float:
        total = 0.0
        for move in moves:
            key = (move.kind, move.axis, round(move.nbytes), phase, subject, why)
            use = self.uses.setdefault(key, [0, 0.0])
            use[0] += count
            use[1] += count * move.seconds
            total += count * move.seconds
        self.communication += total
        return total

    # Blocks.

    def _place(self, link: Conversion) -> Node | None:
        """The node inside a block to which a conversion belongs, or ``None`` at a border."""
        if link.target.kind == "operator" or link.target in self.parts.decisions.block_of:
            return self._block_node(link)
        return None

    def _block_node(self, link: Conversion) -> Node | None:
        block_of = self.parts.decisions.block_of
        return next((n for n in (link.source, link.target) if n in block_of), None)

    def _redone_parameters(self) -> set[str]:
        """Parameters whose readers are all inside one recomputed block."""
        return {
            name
            for index, group in enumerate(self.parts.decisions.groups)
            if self._recomputed(Node("parameter", index))
            for name in group.names
        }

    def _recomputed(self, node: Node) -> bool:
        block = self.parts.decisions.block_of.get(node)
        return block is not None and self.assignment.recompute[block]

    def _save(self, node: Node | None, subject: str, nbytes: float) -> None:
        if node is not None and self._recomputed(node):
            self.block_saved[self.parts.decisions.block_of[node]] += nbytes
        elif nbytes:
            self.saved += nbytes
            self.saved_by[subject] = self.saved_by.get(subject, 0.0) + nbytes

    def _need(self, node: Node | None, nbytes: float) -> None:
        if node is not None and self._recomputed(node):
            block = self.parts.decisions.block_of[node]
            self.block_transient[block] = max(self.block_transient[block], nbytes)
        else:
            self.transient = max(self.transient, nbytes)
