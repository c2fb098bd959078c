"""What one operator, one conversion, one parameter costs under one choice, number by number.

The search prices all configurations at once, in arrays (``operators``, ``conversions``,
``storage``). Here the same contract is read a second time for a single choice, in plain arithmetic
and with every collective spelled out: what ``evaluate`` adds up and ``program`` puts in order. That
both readings agree is a test.

A :class:`Parts` keeps what it priced by (operator signature, labels) and the like, so that the
thousands of strategies of a frontier, and the equal layers of each, share most of the work.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from tensoropt.cost.assignment import (
    Assignment,
    Labels,
    State,
    check_labels,
    operand_state,
    result_state,
)
from tensoropt.cost.keeping import Keepers, ShardableDims
from tensoropt.cost.model import CostModel
from tensoropt.cost.operators import LOSS_BYTES
from tensoropt.cost.priced import ConversionPart, Move, OperatorPart, ParameterPart
from tensoropt.cost.segments import Keys, segments
from tensoropt.cost.storage import Scheme
from tensoropt.errors import ShardingError
from tensoropt.graph import Graph, Tensor, signature
from tensoropt.sharding.decisions import Conversion, Decisions
from tensoropt.sharding.layouts import PARTIAL, REPLICATE, STATE_PR, STATE_RP, layout_text
from tensoropt.sharding.rule import Rule

__all__ = ["ConversionPart", "Move", "OperatorPart", "ParameterPart", "Parts"]


class Parts:
    """Prices parts of assignments under one cost model, and keeps them.

    Parameters
    ----------
    model : CostModel
    decisions : Decisions
        Of the graph of one micro-batch.
    recomputable : bool
        Whether some block may be recomputed: its input is then kept, whoever reads it.

    Attributes
    ----------
    links : list of Conversion
    waits : list of Waiting
        For every link, how much of its tensor and gradient lies there while others are worked on.
    segments : tuple of Segment
        The repeated blocks in order, then what is outside.
    kept : dict
        For whoever adds parts up: sums worth keeping as long as the prices.
    """

    def __init__(
        self, model: CostModel, decisions: Decisions, *, recomputable: bool = False
    ) -> None:
        self.model = model
        self.decisions = decisions
        self.graph: Graph = decisions.graph
        self._operators: dict[Hashable, OperatorPart] = {}
        self._conversions: dict[Hashable, ConversionPart] = {}
        self._parameters: dict[Hashable, ParameterPart] = {}
        self._seconds: dict[tuple[str, int, float], float] = {}
        self.kept: dict[Hashable, object] = {}
        self._last: tuple[Assignment | None, tuple[int, ...]] = (None, ())
        self._numbers: dict[Hashable, int] = {}
        self.key_of_operator = {p: self._operator_key(p) for p in decisions.rules}
        self.keepers = Keepers(decisions, recomputable=recomputable)
        self._dims = ShardableDims(model, decisions, self._tensor_key)
        self.links = [c for c in decisions.links if isinstance(c, Conversion)]
        self._link_keys = [
            self._number(
                (
                    self._tensor_key(link.tensor),
                    self._dims.of(link),
                    self.keepers.of(link),
                    self.keepers.stays_whole(link),
                    link.source.kind,
                )
            )
            for link in self.links
        ]
        self.waits = [self.keepers.waits(link) for link in self.links]
        self._beside = [self.keepers.beside(link) for link in self.links]
        self._through_view = [self.keepers.through_view(link) for link in self.links]
        facts = zip(self._link_keys, self.waits, self._beside, self._through_view, strict=True)
        link_keys = [
            (*known, self.is_inner(link)) for known, link in zip(facts, self.links, strict=True)
        ]
        keys = Keys(self.key_of_operator, link_keys, self._tensor_key, self._number)
        self.segments = segments(decisions, self.links, keys)

    # Segments.

    def is_inner(self, link: Conversion) -> bool:
        """Whether a conversion is redone, and what it keeps dropped, with the block it lies in.

        What reaches a tensor at a block's border is made and kept outside.
        """
        return link.target.kind == "operator" or link.target in self.decisions.block_of

    def choices(self, assignment: Assignment) -> tuple[int, ...]:
        """For every segment a number; equal numbers, equal costs."""
        last, numbers = self._last
        if last is not assignment:
            numbers = tuple(self._number(s.choices(assignment)) for s in self.segments)
            self._last = (assignment, numbers)
        return numbers

    # Operators.

    def operator(self, position: int, labels: Labels) -> OperatorPart:
        """Price an operator.

        Raises
        ------
        ShardingError
            If the labels are no legal configuration of it.
        """
        key = (self.key_of_operator[position], labels)
        found = self._operators.get(key)
        if found is None:
            found = self._operators[key] = self._operator(position, labels)
        return found

    def _operator(self, position: int, labels: Labels) -> OperatorPart:
        operator = self.graph.operators[position]
        rule = self.decisions.rules[position]
        mesh = self.model.mesh_shape
        check_labels(rule, labels, mesh, operator.name)
        local = local_sizes(rule, labels, mesh)
        operands = self.graph.operands(operator)
        results = self.graph.results(operator)
        trained = any(t.requires_grad for t in results)
        in_states: list[State] = []
        in_bytes: list[float] = []
        gradient_bytes = saved = again = buffers = 0.0
        for operand, tensor in enumerate(operands):
            if tensor is None or tensor.kind == "constant":
                in_states.append(())
                in_bytes.append(0.0)
                continue
            state = operand_state(rule, operand, labels, tensor.requires_grad)
            size = self.local_bytes(tensor, state)
            in_states.append(state)
            in_bytes.append(size)
            gradient_bytes += size if tensor.requires_grad else 0.0
            buffers += size if tensor.kind == "buffer" else 0.0
            if operand in rule.saved_inputs:
                saved += size if tensor.kind == "input" else 0.0
                gathered = tensor.kind == "activation" and self._is_repeated(state)
                again += size if gathered else 0.0
        out_states = [result_state(rule, i, labels) for i in range(len(results))]
        out_bytes = [self.local_bytes(t, s) for t, s in zip(results, out_states, strict=True)]
        for extent in rule.saved_extra:
            saved += extent.elements(local) * self.model.dtype_bytes(extent.dtype)
        moved = sum(in_bytes) + sum(out_bytes)
        working = 0.0 if rule.alias else moved
        parts = rule.alias and [t.size for t in results] != [t.size for t in operands[:1] if t]
        split = math.prod(n for n, label in zip(mesh, labels, strict=True) if _is_dim(label))
        backward_s = 0.0
        if trained:
            traffic = working + (0.0 if rule.alias else gradient_bytes)
            backward_s = self._kernels(rule, rule.backward_flops, split, traffic)
        inside = self._inside(rule, labels, local)
        forward_moves = inside["forward"]
        if self.graph.loss in operator.outputs:
            state = out_states[operator.outputs.index(self.graph.loss)]
            forward_moves += [
                self.move("all_reduce", axis, LOSS_BYTES, LOSS_BYTES)
                for axis, digit in enumerate(state)
                if digit == STATE_PR
            ]
        return OperatorPart(
            self._kernels(rule, rule.flops, split, working),
            backward_s,
            tuple(forward_moves),
            tuple(inside["backward"]) if trained else (),
            saved if trained else 0.0,
            working,
            moved if parts and trained else 0.0,
            again,
            buffers,
            tuple(in_states),
            tuple(out_states),
            tuple(in_bytes),
            tuple(out_bytes),
            trained,
        )

    def _inside(self, rule: Rule, labels: Labels, local: dict[str, int]) -> dict[str, list[Move]]:
        moves: dict[str, list[Move]] = {"forward": [], "backward": []}
        for collective in rule.collectives:
            extent = collective.extent
            nbytes = extent.elements(local) * self.model.dtype_bytes(extent.dtype)
            for axis, label in enumerate(labels):
                if label == collective.dim:
                    move = self.move(collective.kind, axis, nbytes, nbytes)
                    moves[collective.phase] += [move] * collective.count
        return moves

    # Conversions.

    def conversion(
        self, index: int, source: State, target: State, regathered: bool
    ) -> ConversionPart:
        """Price the way of a tensor from one state to another, and of its gradient back.

        Parameters
        ----------
        index : int
            Position in :attr:`links`.
        source, target : tuple of int
            State digits.
        regathered : bool
            Whether what is gathered is not kept for the backward pass.

        Raises
        ------
        ShardingError
            If there is no way, or gathering again is asked for where nothing is gathered.
        """
        key = (self._link_keys[index], source, target, regathered)
        found = self._conversions.get(key)
        if found is None:
            found = self._conversions[key] = self._conversion(
                self.links[index], source, target, regathered
            )
        return found

    def _conversion(
        self, link: Conversion, source: State, target: State, regathered: bool
    ) -> ConversionPart:
        tensor = self.graph.tensors[link.tensor]
        keeping = self.keepers.of(link)
        dims = self._dims.of(link)
        forward, beside = self._path(link, dims, _layout(source), _layout(target), shared=False)
        backward: list[Move] = []
        need_back = 0.0
        if tensor.requires_grad:
            shared = link.source.kind != "operator"
            ends = _gradient_layout(target), _gradient_layout(source)
            backward, beside_back = self._path(link, dims, *ends, shared=shared)
            if ends[0] != ends[1]:
                need_back = self.local_bytes(tensor, target) + beside_back
        here, there = self.local_bytes(tensor, source), self.local_bytes(tensor, target)
        same = _layout(source) == _layout(target)
        gathers = not same and here < there and STATE_PR not in source and keeping.reader
        if regathered and not gathers:
            raise ShardingError(
                f"'{link.tensor}' is to be gathered again for {_target_name(self.graph, link)}, "
                "but is not gathered there, or nobody keeps it for the backward pass"
            )
        saved = 0.0
        if not keeping.charged and (keeping.producer or regathered or (same and keeping.reader)):
            saved += here
        if keeping.reader and not same and not regathered:
            saved += there
        if regathered and self.keepers.stays_whole(link):
            saved += there
        need = 0.0 if same else here + beside * (2.0 if regathered else 1.0)
        return ConversionPart(
            source,
            tuple(forward),
            tuple(backward),
            sum(m.seconds for m in forward),
            sum(m.seconds for m in backward),
            same,
            here,
            there,
            max(need, need_back),
            saved,
            regathered,
        )

    def _path(
        self, link: Conversion, dims: tuple[int, ...], source: State, target: State, *, shared: bool
    ) -> tuple[list[Move], float]:
        """Collectives of the cheapest way between layouts, and what it takes beside its source."""
        tensor = self.graph.tensors[link.tensor]
        ways = self.model.redistribution(tensor, dims, into_partial=shared)
        ends = ways.space.positions(np.array([source, target], np.int64))
        if ends.min() < 0 or not np.isfinite(ways.seconds[ends[0], ends[1]]):
            raise ShardingError(
                f"'{link.tensor}' cannot go from {layout_text(source)} to {layout_text(target)} "
                f"for {_target_name(self.graph, link)}"
            )
        moves = []
        beside = self._layout_bytes(tensor, target)
        for number, step in enumerate(ways.steps(int(ends[0]), int(ends[1]))):
            before, after = (self._layout_bytes(tensor, x) for x in (step.source, step.target))
            beside = max(beside, after + (before if number else 0.0))
            if step.kind not in ("slice", "to_partial"):
                moves.append(self.move(step.kind, step.axis, step.nbytes, after))
        return moves, beside

    def reading_bytes(self, index: int, conversion: ConversionPart, reader: OperatorPart) -> float:
        """What an operator needs that shares an operand with others, or gathers it again.

        Parameters
        ----------
        index : int
            Position in :attr:`links`, of a link to an operator.
        conversion : ConversionPart
            The operand's way to the operator.
        reader : OperatorPart
        """
        link = self.links[index]
        repeated = self._is_repeated(conversion.source)
        need = 0.0
        if link.source.kind == "tensor":
            beside = sum(reader.result_bytes) + reader.operand_bytes[link.operand]
            need = max(reader.working_bytes, beside)
            summed, again = self._beside[index]
            need += conversion.source_bytes if summed else 0.0
            if again and repeated:
                need += max(conversion.source_bytes, reader.again_bytes)
        elif self._through_view[index] and conversion.same and repeated:
            need = reader.working_bytes + reader.again_bytes
        if conversion.regathered:
            # Beside the gradient of the operand, which took the place of what was kept; other
            # operands may be gathered again too, and so may what this one is gathered from.
            others = reader.again_bytes
            whole = conversion.target_bytes
            held = whole + others if link.source.kind == "parameter" else max(whole, others)
            chained = link.source.kind == "tensor" or self.keepers.routes.is_view(link.source)
            held += conversion.source_bytes if chained and repeated else 0.0
            need = max(need, held + reader.working_bytes)
        return need

    def other_bytes(
        self, link: Conversion, conversion: ConversionPart, reader: OperatorPart
    ) -> float:
        """What an operator's other operands take, which may lie there while one is converted.

        Gradients of a parameter that it reads twice are added up where the parameter is kept.
        """
        operands = self.graph.operands(self.graph.operators[int(link.target.key)])
        found = 0.0
        for operand, (tensor, nbytes) in enumerate(
            zip(operands, reader.operand_bytes, strict=True)
        ):
            if tensor is None or operand == link.operand:
                continue
            if tensor.kind == "activation":
                found += nbytes
            elif tensor.name == link.tensor and tensor.kind == "parameter":
                found += max(nbytes, conversion.source_bytes)
        return found

    def _is_repeated(self, state: State) -> bool:
        """Whether some ranks hold the same part."""
        sizes = zip(state, self.model.mesh_shape, strict=True)
        return any(digit < 3 and size > 1 for digit, size in sizes)

    # Parameters.

    def parameter(
        self,
        name: str,
        state: State,
        scheme: Scheme,
        behind_forward_s: float = 0.0,
        behind_backward_s: float = 0.0,
        readers: int = 1,
    ) -> ParameterPart:
        """Price a way to keep a parameter.

        Parameters
        ----------
        name : str
        state : tuple of int
            As its readers take it.
        scheme : Scheme
        behind_forward_s, behind_backward_s : float
            Kernel times behind which its communication may hide.
        readers : int
            Number of operators that read it, each of which gathers and scatters it.

        Raises
        ------
        ShardingError
            If the scheme shards over an axis on which the parameter is sharded already.
        """
        tensor = self.graph.tensors[name]
        behind = (behind_forward_s, behind_backward_s)
        key = (self._tensor_key(name), state, scheme, behind, readers)
        found = self._parameters.get(key)
        if found is None:
            if any(state[axis] >= 3 for axis in scheme.axes):
                raise ShardingError(
                    f"parameter '{name}': {scheme.name} over axes {scheme.axes}, but operators "
                    "shard it on one of them already"
                )
            found = self._parameters[key] = self._parameter(tensor, state, scheme, behind, readers)
        return found

    def _parameter(
        self,
        tensor: Tensor,
        state: State,
        scheme: Scheme,
        behind: tuple[float, float],
        readers: int,
    ) -> ParameterPart:
        precision, optimizer = self.model.precision, self.model.optimizer
        mesh, m = self.model.mesh_shape, self.model.micro_batches
        elements = self.local_elements(tensor, state)
        ranks = math.prod(mesh[a] for a in scheme.axes)
        shard = math.ceil(elements / ranks)
        trained = tensor.requires_grad
        gather, scatter, rest = self._parameter_moves(tensor, state, scheme)
        forward, backward, once, update = {
            "ddp": ([], [], rest, []),
            "zero1": ([], [], scatter + rest, gather),
            "zero2": ([], scatter * readers, rest, gather),
            "zero3": (gather * readers, (gather + scatter) * readers, rest, []),
            "zero3_keep": (gather, scatter * readers, rest, []),
        }[scheme.name]
        behind_forward_s, behind_backward_s = behind
        # An operator's compute hides once: what runs every micro-batch goes first.
        exposed = m * self._exposed(behind_forward_s, forward)
        exposed += m * self._exposed(behind_backward_s, backward)
        exposed += self._exposed(0.0 if forward else behind_forward_s, update)
        exposed += self._exposed(0.0 if backward else behind_backward_s, once)
        again = forward if scheme.name == "zero3" else []
        sharded = {"weight": scheme.name in ("zero3", "zero3_keep")}
        sharded["gradient"] = sharded["weight"] or scheme.name == "zero2"
        sharded["optimizer"] = scheme.name != "ddp"
        held = {part: float(shard if yes else elements) for part, yes in sharded.items()}
        accumulate = stepped = 0.0
        if trained:
            stepped = float(
                self.model.compute.optimizer_time(held["optimizer"], optimizer, precision)
            )
            if m > 1:
                each = self.model.compute.accumulate_time(held["gradient"], precision)
                accumulate = m * float(each)
        whole = elements * float(precision.parameter_bytes)
        gradient = elements * float(precision.gradient_bytes) if trained else 0.0
        gathered = whole if scheme.name == "zero3" else 0.0
        scattered = gradient if sharded["gradient"] else 0.0
        state_bytes = float(optimizer.bytes_per_parameter(precision)) if trained else 0.0
        return ParameterPart(
            tuple(forward),
            tuple(backward),
            tuple(once),
            tuple(update),
            exposed,
            tuple(again),
            m * self._exposed(behind_forward_s, again),
            accumulate,
            stepped,
            held["weight"] * precision.parameter_bytes,
            held["gradient"] * precision.gradient_bytes if trained else 0.0,
            held["optimizer"] * state_bytes,
            whole if scheme.name == "zero3_keep" else 0.0,
            gathered,
            scattered,
            whole,
            gradient,
        )

    def _parameter_moves(
        self, tensor: Tensor, state: State, scheme: Scheme
    ) -> tuple[list[Move], list[Move], list[Move]]:
        """Gathers of the weight, scatters of the gradient, and what the scheme leaves to reduce."""
        mesh = self.model.mesh_shape
        precision = self.model.precision
        elements = float(self.local_elements(tensor, state))
        left = elements * precision.reduction_bytes
        scatter, rest, gather = [], [], []
        for axis in scheme.axes:
            after = left / mesh[axis]
            if state[axis] == STATE_RP and mesh[axis] > 1:
                scatter.append(self.move("reduce_scatter", axis, left, after))
            left = after
        for axis, size in enumerate(mesh):
            if axis not in scheme.axes and size > 1 and state[axis] == STATE_RP:
                rest.append(self.move("all_reduce", axis, left, left))
        grown = elements * precision.parameter_bytes / math.prod(mesh[a] for a in scheme.axes)
        for axis in reversed(scheme.axes):
            grown *= mesh[axis]
            gather.append(self.move("all_gather", axis, grown, grown))
        return gather, *((scatter, rest) if tensor.requires_grad else ([], []))

    def _exposed(self, compute_s: float, moves: Sequence[Move]) -> float:
        """What collectives add to the computation behind which they hide."""
        seconds = sum(m.seconds for m in moves)
        longer, shorter = max(compute_s, seconds), min(compute_s, seconds)
        return max(longer + self.kappa * shorter - compute_s, 0.0)

    @property
    def kappa(self) -> float:
        """Interference of collectives with kernels: that of the worst axis."""
        sizes = enumerate(self.model.mesh_shape)
        return max((self.model.communication.kappa(a) for a, n in sizes if n > 1), default=1.0)

    # Sizes and times.

    def local_elements(self, tensor: Tensor, state: State) -> int:
        """Elements of the largest shard."""
        count = 1
        for d, size in enumerate(tensor.shape):
            parts = 1
            for digit, axis_size in zip(state, self.model.mesh_shape, strict=True):
                parts *= axis_size if digit == 3 + d else 1
            count *= -(-size // parts)
        return count

    def local_bytes(self, tensor: Tensor, state: State) -> float:
        """Bytes of the largest shard."""
        return float(self.local_elements(tensor, state) * self.model.itemsize(tensor))

    def _layout_bytes(self, tensor: Tensor, layout: Sequence[int]) -> float:
        return self.local_bytes(tensor, tuple(d + 1 if d >= 2 else 0 for d in layout))

    def move(self, kind: str, axis: int, nbytes: float, local_bytes: float) -> Move:
        """A collective with its time."""
        key = (kind, axis, nbytes)
        seconds = self._seconds.get(key)
        if seconds is None:
            found = self.model.collective_time(kind, axis, np.array([nbytes], np.float64))
            seconds = self._seconds[key] = float(found[0])
        return Move(kind, axis, nbytes, seconds, local_bytes)

    def _kernels(self, rule: Rule, flops: float, split: int, nbytes: float) -> float:
        """Seconds of a pass of an operator, of which some work may be done step after step."""
        serial = rule.serial
        if serial is None:
            return self._kernel(rule.compute, flops / split, nbytes)
        weights = float(serial.elements * self.model.dtype_bytes("activation"))
        step = self._kernel(rule.compute, serial.flops / serial.steps / split, weights)
        at_once = self._kernel(rule.compute, (flops - serial.flops) / split, nbytes)
        return at_once + serial.steps * step

    def _kernel(self, kind: str, flops: float, nbytes: float) -> float:
        return float(self.model.kernel_time(kind, np.array([flops]), np.array([nbytes]))[0])

    # Keys.

    def _number(self, key: Hashable) -> int:
        """A small integer for an unwieldy key."""
        return self._numbers.setdefault(key, len(self._numbers))

    def _operator_key(self, position: int) -> int:
        operator = self.graph.operators[position]
        is_loss = self.graph.loss in operator.outputs
        return self._number((signature(self.graph, operator), is_loss))

    def _tensor_key(self, name: str) -> int:
        t = self.graph.tensors[name]
        return self._number((t.shape, t.dtype, t.kind, t.requires_grad, t.padded_dims))


def local_sizes(rule: Rule, labels: Labels, mesh_shape: Sequence[int]) -> dict[str, int]:
    """Local size (the largest) of every named dim."""
    sizes = {}
    for dim in rule.dims:
        parts = math.prod(
            n for n, label in zip(mesh_shape, labels, strict=True) if label == dim.name
        )
        sizes[dim.name] = -(-dim.size // parts)
    return sizes


def _is_dim(label: str) -> bool:
    return bool(label) and not label.startswith("~")


def _layout(state: State) -> State:
    return tuple(d - 1 if d >= 3 else PARTIAL if d == STATE_PR else REPLICATE for d in state)


def _gradient_layout(state: State) -> State:
    return tuple(d - 1 if d >= 3 else PARTIAL if d == STATE_RP else REPLICATE for d in state)


def _target_name(graph: Graph, link: Conversion) -> str:
    if link.target.kind == "operator":
        return f"operator '{graph.operators[int(link.target.key)].name}'"
    return "its readers"
