"""What one device runs in one iteration under an assignment: events in order, and buffers.

The forward pass in the order of the graph, then the backward pass in reverse, with recomputed
blocks run forward once more before their backward pass; then the optimizer. Every kernel and every
collective is an event; every tensor that takes memory is a buffer, allocated at one event and freed
after its last use. ``liveness`` replays the buffers, ``schedule`` re-times the events.

One micro-batch is spelled out (events that happen once an iteration are marked). With several
micro-batches the program is that of a later one, whose gradients already lie there.

Who wants to know only some blocks may have others passed over: each is then one free event that
hands on what the block makes. What runs next to it is then not what would run in truth.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from tensoropt.cost.assignment import Assignment
from tensoropt.cost.evaluate import conversion_parts, operator_parts, parameter_parts
from tensoropt.cost.events import Buffer, Event, Mark, Program
from tensoropt.cost.liveness import replay
from tensoropt.cost.order import Step, backward_steps
from tensoropt.cost.parts import Parts
from tensoropt.cost.prefetch import Gathered, Point, Trace, early
from tensoropt.cost.priced import ConversionPart, Move, OperatorPart, ParameterPart
from tensoropt.cost.recorder import Again, Recorder, Value, Weights
from tensoropt.sharding.decisions import Conversion

__all__ = ["Buffer", "Event", "Mark", "Program", "build_program"]


def build_program(
    parts: Parts, assignment: Assignment, passed_over: Collection[int] = ()
) -> Program:
    """Walk the graph forward and backward under an assignment.

    Parameters
    ----------
    parts : Parts
        Prices; of the mesh and micro-batches of the assignment.
    assignment : Assignment
    passed_over : collection of int
        Repeated blocks, by number, that are not walked through. None of them may read a parameter
        that others read too.

    Raises
    ------
    ShardingError
        If the assignment is illegal.
    """
    walk = _Walk(parts, assignment, frozenset(passed_over), {})
    program = walk.program()
    if not walk.come_and_go:
        return program
    # Walked once more, with weights gathered as early as there is room for them.
    points = early(walk.trace, replay(program).timeline, walk.come_and_go)
    return _Walk(parts, assignment, frozenset(passed_over), points).program()


class _Walk(Recorder):
    """Emits events; remembers where every tensor lies.

    Weights are gathered at the last moment, or at the points that are given.
    """

    def __init__(
        self,
        parts: Parts,
        assignment: Assignment,
        passed_over: frozenset[int],
        points: Mapping[Point, Sequence[Step]],
    ) -> None:
        super().__init__()
        self.parts = parts
        self.graph = parts.graph
        self.rules = parts.decisions.rules
        self.assignment = assignment
        self.m = assignment.micro_batches
        self.passed_over = passed_over
        self.points = points
        self.trace = Trace()
        self.come_and_go: dict[Step, Gathered] = {}
        walked = [s for s in parts.segments if s.block not in passed_over]
        self.groups = sorted(itertools.chain.from_iterable(s.groups for s in walked))
        positions = sorted(itertools.chain.from_iterable(s.positions for s in walked))
        self.operators = operator_parts(parts, assignment, positions)
        self.marks: list[Mark] = []
        self.into: dict[int, list[tuple[Conversion, ConversionPart]]] = defaultdict(list)
        self.out_of: dict[int, list[tuple[Conversion, ConversionPart]]] = defaultdict(list)
        links = sorted(itertools.chain.from_iterable(s.links for s in walked))
        for link, part in conversion_parts(parts, assignment, self.operators, links):
            if link.target.kind == "operator":
                self.into[int(link.target.key)].append((link, part))
            if link.source.kind == "operator":
                self.out_of[int(link.source.key)].append((link, part))
        # What was made last is converted first, and its gradient last: all else waits anyway.
        origin = parts.keepers.routes.origin
        for arrivals in self.into.values():
            arrivals.sort(key=lambda entry: -origin(entry[0].source))
        # Where tensors lie: results as operators leave them, tensors at their own nodes, operands
        # as operators read them, what else an operator keeps; and their gradients.
        self.results: dict[tuple[int, int], Value] = {}
        self.nodes: dict[str, Value] = {}
        self.operands: dict[tuple[int, int], Value] = {}
        self.extras: dict[int, Value] = {}
        self.gradients: dict[tuple[int, int], Value] = {}
        self.node_gradients: dict[str, Value] = {}
        self.weights: dict[int, Weights] = defaultdict(Weights)
        self.readers_left: dict[str, int] = {}
        self.readers: dict[str, int] = {}
        self.updated: dict[str, tuple[int, ...]] = {}
        self.kept: dict[str, Value] = {}
        self.lasting: dict[str, Buffer | None] = {}
        self.complete: list[tuple[str, ParameterPart, int, float]] = []
        self.contributions: dict[str, list[int]] = defaultdict(list)

    def program(self) -> Program:
        self._load_parameters()
        order = list(self.rules)
        self._pass("forward", [("forward", p) for p in order])
        self._pass("backward", backward_steps(self.graph, self.assignment.recompute, order))
        self._complete()
        self.marks.append(Mark(len(self.events), "step", None))
        self._optimize()
        last = len(self.events) - 1
        for buffer in self.buffers:
            buffer.stop = last if buffer.stop < 0 else buffer.stop
        return Program(self.events, self.buffers, self.m, self.marks)

    def _pass(self, name: str, steps: Sequence[Step]) -> None:
        """Run steps; weights kept in pieces are gathered ahead of them."""
        self.trace.passes.append([])
        block_at = {p: i for i, b in enumerate(self.graph.blocks) for p in range(b.start, b.stop)}
        inside: int | None = -1
        for step in steps:
            phase, position = step
            if inside != block_at.get(position):
                inside = block_at.get(position)
                self.marks.append(Mark(len(self.events), name, inside))
                if inside in self.passed_over:
                    self._pass_over(name, inside)
            if inside in self.passed_over:
                continue
            self._reach(step, "begins")
            if phase == "backward":
                self._backward(position)
            else:
                self._forward(position, phase)
            self.weights[position].gathered = None

    def _pass_over(self, name: str, block: int) -> None:
        """Hand on what a block makes of what it reads, without running it."""
        event = self.emit("slice", name, self.graph.blocks[block].name, 0.0, ())
        segment = self.parts.segments[block]
        for tensor in segment.read:
            self.use(self.nodes[tensor], event)
        if name == "forward":
            self.nodes.update((tensor, self._handed_on(tensor, event)) for tensor in segment.made)
            return
        for tensor in segment.made:
            self.use(self.node_gradients.pop(tensor, Value()), event)
        for tensor in segment.read:
            if self.graph.tensors[tensor].requires_grad:
                before = self.node_gradients.get(tensor, Value())
                value = self._handed_on(tensor, event) if before.buffer is None else before
                self.use(value, event)
                self.node_gradients[tensor] = Value(value.buffer, (event,))

    def _handed_on(self, tensor: str, event: int) -> Value:
        """A tensor at its own node, or its gradient, that an event makes."""
        nbytes = self.parts.local_bytes(self.graph.tensors[tensor], self.assignment.tensors[tensor])
        return Value(self.allocate(tensor, "activation", nbytes, event), (event,))

    # Parameters.

    def _load_parameters(self) -> None:
        """Place what stays, and note who reads which parameter."""
        for position, operator in self.operators.items():
            name = self.graph.operators[position].name
            self.keep_on(name, "buffers", operator.buffer_bytes)
        tied = {g.names[0]: g.readers for g in self.parts.decisions.groups if len(g.readers) > 1}
        found = parameter_parts(self.parts, self.assignment, self.operators, self.groups)
        for name, reader, part in found:
            self.keep_on(name, "weight", part.weight_bytes)
            self.keep_on(name, "optimizer state", part.optimizer_bytes)
            if self.m > 1:
                self.lasting[name] = self.keep_on(name, "gradient", part.gradient_bytes)
            self.updated[name] = ()
            readers = [reader] if reader is not None else [p for p, _ in tied[name]]
            distinct = list(dict.fromkeys(readers))
            self.readers[name] = len(distinct)
            self.readers_left[name] = sum(self.operators[p].trained for p in distinct)
            for position in distinct:
                self.weights[position].entries.append((name, part))

    def _reach(self, step: Step, moment: str) -> None:
        """Gather what is to be gathered at this point, or must be now."""
        self.trace.points[*step, moment] = len(self.events)
        for phase, position in self.points.get((*step, moment), ()):
            self._gather(position, phase)
        phase, position = step
        weights = self.weights[position]
        if moment == "runs" and weights.gathered is None and self._has_gathers(phase, position):
            self._gather(position, phase)
            tied = self.assignment.tensors
            self.come_and_go[step] = Gathered.of(
                (() if part.kept_bytes else self._gathers(name, part, phase), name in tied)
                for name, part in weights.entries
            )
        if moment == "runs" and weights.entries:
            self.trace.passes[-1].append(step)

    def _has_gathers(self, phase: str, position: int) -> bool:
        return any(
            self._gathers(name, part, phase) or (phase == "forward" and part.step_forward)
            for name, part in self.weights[position].entries
        )

    def _gathers(self, name: str, part: ParameterPart, phase: str) -> Sequence[Move]:
        """Gathers that one reader issues in a phase."""
        if part.kept_bytes:
            return () if name in self.kept or phase != "forward" else part.forward
        moves = part.backward if phase == "backward" else part.forward
        gathers = [m for m in moves if m.kind == "all_gather"]
        return gathers[: len(gathers) // self.readers[name]]

    def _gather(self, position: int, phase: str) -> None:
        """Gather the weights of an operator that are kept in pieces."""
        weights = self.weights[position]
        weights.gathered = {}
        for name, part in weights.entries:
            if phase == "forward" and not self.updated[name]:
                self._gather_updated(name, part)
            needs: Sequence[int] = ()
            value = Value()
            for move in self._gathers(name, part, phase):
                event = self.collective(move, phase, name, "parameter gather", needs)
                self.use(value, event)
                buffer = self.allocate(name, "gathered weight", move.local_bytes, event)
                value = Value(buffer, (event,))
                needs = (event,)
            if value.ready:
                weights.gathered[name] = value
                if part.kept_bytes:
                    self.kept[name] = value

    def _gather_updated(self, name: str, part: ParameterPart) -> None:
        """Gather a weight that the last step updated in pieces, before its first use."""
        needs: tuple[int, ...] = ()
        for move in part.step_forward:
            needs = (self.collective(move, "step", name, "parameter gather", needs, "first"),)
        self.updated[name] = needs

    def _read_weights(self, position: int) -> list[Value]:
        """Weights of an operator as it reads them; waits for what the last step updated."""
        weights = self.weights[position]
        found = list((weights.gathered or {}).values())
        for name, _ in weights.entries:
            found.append(Value(None, self.updated[name]))
            if name in self.kept:
                found.append(self.kept[name])
        return found

    def _weight(self, position: int, name: str) -> Value:
        """One weight of an operator before it is converted, or viewed."""
        if name in self.kept:
            return self.kept[name]
        gathered = (self.weights[position].gathered or {}).get(name)
        if gathered is None:
            return Value(None, self.updated[name])
        return Value(gathered.buffer, gathered.ready, Again(name, reader=position))

    # Forward.

    def _forward(self, position: int, phase: str) -> None:
        part = self.operators[position]
        rule = self.rules[position]
        operator = self.graph.operators[position]
        arrivals = self.into[position]
        for link, conversion in arrivals:
            if link.source.kind != "parameter":
                self.operands[position, link.operand] = self._arrive(link, conversion, phase)
        self._reach((phase, position), "runs")
        for link, conversion in arrivals:
            if link.source.kind == "parameter":
                self.operands[position, link.operand] = self._arrive(link, conversion, phase)
        values = self._read_weights(position)
        values += [self.operands[position, link.operand] for link, _ in arrivals]
        if rule.alias:
            shared = self.operands.get((position, 0))
            if shared is None and self.weights[position].entries:
                shared = self._weight(position, operator.inputs[0])
            shared = shared or Value()
            for output in range(len(operator.outputs)):
                self.results[position, output] = shared
        else:
            self._kernel(position, part, values, phase)
        inside = self.parts.decisions.block_of
        for link, conversion in self.out_of[position]:
            if link.target.kind == "tensor":
                if phase == "recompute" and link.target not in inside:
                    continue
                self.nodes[link.tensor] = self._arrive(link, conversion, phase)

    def _kernel(
        self, position: int, part: OperatorPart, values: Sequence[Value], phase: str
    ) -> None:
        operator = self.graph.operators[position]
        needs = [e for v in values for e in v.ready]
        event = self.emit("kernel", phase, operator.name, part.forward_s, needs)
        self.trace.kernels[phase, position] = event
        for value in values:
            self.use(value, event)
        for operand, tensor in enumerate(self.graph.operands(operator)):
            if tensor is not None and tensor.kind == "input":
                self.allocate(tensor.name, "input", part.operand_bytes[operand], event)
        ready = event
        for move in part.forward_moves:
            ready = self.collective(move, phase, operator.name, "inside operator", (ready,))
        for output, name in enumerate(operator.outputs):
            buffer = self.allocate(name, "activation", part.result_bytes[output], event)
            self.results[position, output] = Value(buffer, (ready,))
        self._make_small(position, phase)
        if part.saved_bytes:
            buffer = self.allocate(operator.name, "saved for backward", part.saved_bytes, event)
            self.extras[position] = Value(buffer, (event,))

    def _arrive(self, link: Conversion, part: ConversionPart, phase: str) -> Value:
        """Bring a tensor to where it is read."""
        if link.source.kind == "operator":
            source = self.results[int(link.source.key), link.output]
        elif link.source.kind == "parameter":
            source = self._weight(int(link.target.key), link.tensor)
        else:
            source = self.nodes[link.tensor]
            if phase == "recompute" and link.source not in self.parts.decisions.block_of:
                # What a block starts from is gathered once more if only its shard was kept.
                source = self._saved(source)
        if part.same:
            return source
        if self._is_made_small(link, part) and not self._keeps_result(link):
            # Converted when it was made.
            return source
        sizes = (part.source_bytes, part.target_bytes)
        value = self.convert(part.forward, source, link.tensor, "activation", phase, sizes)
        if part.regathered:
            value.again = Again(link.tensor, source, part)
        return value

    def _is_made_small(self, link: Conversion, part: ConversionPart) -> bool:
        """Whether a tensor waits for its one reader as that reads it, since it is smaller so.

        And its gradient waits so for the producer.
        """
        ends = (link.source.kind, link.target.kind)
        if ends != ("operator", "operator") or self.rules[int(link.source.key)].alias:
            return False
        return not part.same and part.source_bytes > part.target_bytes

    def _make_small(self, position: int, phase: str) -> None:
        """Convert results that are smaller as they are read."""
        for link, part in self.out_of[position]:
            if self._is_made_small(link, part) and not self._keeps_result(link):
                place = position, link.output
                sizes = (part.source_bytes, part.target_bytes)
                self.results[place] = self.convert(
                    part.forward, self.results[place], link.tensor, "activation", phase, sizes
                )

    def _keeps_result(self, link: Conversion) -> bool:
        return self.parts.keepers.of(link).producer

    # Backward.

    def _backward(self, position: int) -> None:
        part = self.operators[position]
        rule = self.rules[position]
        operator = self.graph.operators[position]
        incoming = self._result_gradients(position)
        if rule.alias:
            self._reach(("backward", position), "runs")
            outgoing = self._view_gradients(position, incoming)
        else:
            values = self._kept_values(position)
            values += [self.extras.get(position, Value()), *incoming]
            values += self._read_weights(position)
            needs = [e for v in values for e in v.ready]
            event = self.emit("kernel", "backward", operator.name, part.backward_s, needs)
            self.trace.kernels["backward", position] = event
            for value in values:
                self.use(value, event)
            ready = event
            for move in part.backward_moves:
                ready = self.collective(
                    move, "backward", operator.name, "inside operator", (ready,)
                )
            outgoing = {}
            for link, _ in self.into[position]:
                wanted = self.graph.tensors[link.tensor].requires_grad
                if wanted and link.source.kind != "parameter":
                    nbytes = part.operand_bytes[link.operand]
                    buffer = self.allocate(link.tensor, "gradient", nbytes, event)
                    outgoing[link.operand] = Value(buffer, (ready,))
            self._weight_gradients(position, event)
        for link, conversion in reversed(self.into[position]):
            if link.operand in outgoing:
                self._send_back(link, conversion, outgoing[link.operand])

    def _kept_values(self, position: int) -> list[Value]:
        """What an operator kept, and its weights, as it needs them in its backward pass."""
        rule = self.rules[position]
        weights = {c.operand for c, _ in self.into[position] if c.source.kind == "parameter"}
        first = [o for o in rule.saved_inputs if o not in weights]
        found = [self._saved(self.operands.get((position, o))) for o in first]
        found += [self._saved(self.results.get((position, o))) for o in rule.saved_outputs]
        self._reach(("backward", position), "runs")
        last = [o for o in rule.saved_inputs if o in weights]
        return found + [self._saved(self.operands.get((position, o))) for o in last]

    def _saved(self, value: Value | None) -> Value:
        """What was kept for backward; gathered again if only its shard was."""
        if value is None:
            return Value()
        again = value.again
        if again is None:
            return value
        if again.found is None:
            if again.source is not None and again.part is not None:
                part = again.part
                sizes = (part.source_bytes, part.target_bytes)
                # Its source may itself be gathered again: views hand on what reached them.
                source = self._saved(again.source)
                name = again.tensor
                again.found = self.convert(
                    part.forward, source, name, "activation", "backward", sizes
                )
            else:
                if self.weights[again.reader].gathered is None:
                    self._gather(again.reader, "backward")
                again.found = self._weight(again.reader, again.tensor)
        return again.found

    def _result_gradients(self, position: int) -> list[Value]:
        """Gradients of an operator's results, as far as somebody asked for them."""
        for link, conversion in self.out_of[position]:
            place = position, link.output
            if link.target.kind == "tensor" and link.tensor in self.node_gradients:
                value = self.node_gradients.pop(link.tensor)
                self.gradients[place] = self._convert_back(link, conversion, value)
            elif place in self.gradients and self._is_made_small(link, conversion):
                value = self.gradients[place]
                self.gradients[place] = self._convert_back(link, conversion, value)
        outputs = range(len(self.graph.operators[position].outputs))
        found = [self.gradients.pop((position, o), None) for o in outputs]
        return [value for value in found if value is not None]

    def _view_gradients(self, position: int, incoming: Sequence[Value]) -> dict[int, Value]:
        """A view's gradient is a view; part of a tensor leaves zeros elsewhere."""
        part = self.operators[position]
        if not incoming:
            return {}
        weights = self.weights[position].entries
        same = len(incoming) == 1 and part.result_bytes[0] == part.operand_bytes[0]
        if same and not weights:
            return {0: incoming[0]}
        name = self.graph.operators[position].inputs[0]
        needs = [e for v in incoming for e in v.ready]
        event = self.emit("slice", "backward", name, 0.0, needs)
        for value in incoming:
            self.use(value, event)
        if weights:
            self._weight_gradients(position, event, incoming[0] if same else None)
            return {}
        return {0: Value(self.allocate(name, "gradient", part.operand_bytes[0], event), (event,))}

    def _convert_back(self, link: Conversion, part: ConversionPart, value: Value) -> Value:
        sizes = (part.target_bytes, part.source_bytes)
        return self.convert(part.backward, value, link.tensor, "gradient", "backward", sizes)

    def _send_back(self, link: Conversion, part: ConversionPart, value: Value) -> None:
        """Bring a gradient to where its tensor came from; gradients of several readers add up."""
        if not self._is_made_small(link, part):
            value = self._convert_back(link, part, value)
        if link.source.kind == "operator":
            self.gradients[int(link.source.key), link.output] = value
        elif link.source.kind == "tensor":
            before = self.node_gradients.get(link.tensor)
            if before is not None:
                event = self.emit(
                    "slice", "backward", link.tensor, 0.0, (*before.ready, *value.ready)
                )
                self.use(before, event)
                self.use(value, event)
                value = Value(before.buffer or value.buffer, (event,))
            self.node_gradients[link.tensor] = value

    # Gradients of parameters, and the step.

    def _weight_gradients(self, position: int, event: int, made: Value | None = None) -> None:
        """Scatter, add up and synchronize the gradients of an operator's parameters.

        What is scattered is added up one operator later, so as not to wait for it. A view may have
        the gradient `made` already.
        """
        self._complete()
        converted = self._converted_gradients(position, event, made)
        for name, part in self.weights[position].entries:
            if not self.graph.tensors[name].requires_grad:
                continue
            sharded = self.assignment.schemes[name].name in ("zero2", "zero3", "zero3_keep")
            scatters = [m for m in part.backward if m.kind == "reduce_scatter"]
            ready = max(converted[name].ready) if name in converted else event
            first = name not in self.lasting
            if sharded or not first:
                # The gradient of one micro-batch, in the dtype of the parameter.
                nbytes = part.local_bytes if self.m > 1 else part.whole_gradient_bytes
                whole = converted.get(name) or made
                if whole is None or whole.buffer is None:
                    buffer = self.allocate(name, "whole gradient", nbytes, event)
                    whole = Value(buffer, (event,))
                for move in scatters[: len(scatters) // self.readers[name]]:
                    ready = self.collective(move, "backward", name, "gradient sync", (ready,))
                    self.use(whole, ready)
            seconds = 0.0
            if first:
                self.lasting[name] = self.keep_on(name, "gradient", part.gradient_bytes, ready)
            else:
                seconds = part.accumulate_s / (self.m * self.readers[name])
            self.complete.append((name, part, ready, seconds))
            if not sharded:
                self._complete()

    def _converted_gradients(
        self, position: int, event: int, made: Value | None
    ) -> dict[str, Value]:
        """Gradients of tied parameters that are read in other layouts than they are kept in."""
        found: dict[str, Value] = {}
        part = self.operators[position]
        for link, conversion in self.into[position]:
            moved = conversion.backward or conversion.source_bytes != conversion.target_bytes
            if link.source.kind != "parameter" or not moved:
                continue
            if not self.graph.tensors[link.tensor].requires_grad:
                continue
            value = made
            if value is None:
                nbytes = part.operand_bytes[link.operand]
                value = Value(self.allocate(link.tensor, "gradient", nbytes, event), (event,))
            value = self._convert_back(link, conversion, value)
            if link.tensor in found:
                # An operator that reads it twice adds one to the other.
                self.use(found[link.tensor], max(value.ready))
            found[link.tensor] = value
        return found

    def _complete(self) -> None:
        """Add new gradients to those of earlier micro-batches; after the last one, reduce them."""
        for name, part, ready, seconds in self.complete:
            if seconds > 0:
                ready = self.emit("kernel", "backward", name, seconds, (ready,))
            self.contributions[name].append(ready)
            self.readers_left[name] -= 1
            if self.readers_left[name] == 0:
                needs: Sequence[int] = self.contributions[name]
                for move in part.step_backward:
                    needs = (self.collective(move, "step", name, "gradient sync", needs, "last"),)
                self.contributions[name] = list(needs)
        self.complete.clear()

    def _optimize(self) -> None:
        """One fused update of all parameters, when all gradients are complete."""
        found = [entry for w in self.weights.values() for entry in w.entries]
        seconds = sum(part.optimizer_s for part in dict(found).values())
        # All communication is waited for: the last on every axis.
        needs = {event.axis: i for i, event in enumerate(self.events) if event.axis >= 0}
        self.emit("kernel", "step", "optimizer", seconds, list(needs.values()), "after")
