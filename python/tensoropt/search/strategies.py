"""From an assignment to the :class:`Strategy` that users hold: costs, traffic, words."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from tensoropt.cost.assignment import Assignment
from tensoropt.cost.calibration import MemoryCalibration
from tensoropt.cost.evaluate import Evaluation, evaluate
from tensoropt.cost.parts import Parts
from tensoropt.cost.replayer import Replayer
from tensoropt.cost.storage import Scheme
from tensoropt.cost.tables import Tables
from tensoropt.graph import Graph
from tensoropt.reporting.describe import SCHEME_NAMES
from tensoropt.sharding.dims import DimClasses
from tensoropt.strategy import Collective, Costs, LargeTensor, ParameterPlacement, Strategy

__all__ = ["StrategyBuilder"]

ROLES = ("data", "experts", "tensor", "sequence", "replicated")
"""What an axis may be used for, in the order of a description."""

LARGEST = 8
"""How many tensors a strategy lists as its largest."""

MAINLY = 0.9
"""Share of the work from which an axis is said to serve one purpose only."""

PARTLY = 0.15
"""Share of the work, or of the parameters, below which something is not worth a word."""


class StrategyBuilder:
    """Turns assignments of one mesh and one number of micro-batches into strategies.

    Parameters
    ----------
    graph : Graph
        The whole model, all micro-batches together.
    tables : Tables
        Of the mesh and the graph of one micro-batch.
    classes : DimClasses
        Of the model.
    calibration : MemoryCalibration
    notes : sequence of str
        What every strategy says about itself.
    """

    def __init__(
        self,
        graph: Graph,
        tables: Tables,
        classes: DimClasses,
        calibration: MemoryCalibration,
        notes: Sequence[str] = (),
    ) -> None:
        self.graph = graph
        self.tables = tables
        self.classes = classes
        self.calibration = calibration
        self.notes = tuple(notes)
        self._shares: dict[int, tuple[list[Counter[str]], list[Counter[str]]]] = {}

    @cached_property
    def parts(self) -> Parts:
        """Prices, kept from one strategy to the next."""
        recomputable = self.tables.recomputable
        return Parts(self.tables.model, self.tables.decisions, recomputable=recomputable)

    @cached_property
    def _fingerprint(self) -> str:
        return self.graph.fingerprint()

    @cached_property
    def _replayer(self) -> Replayer:
        return Replayer(self.parts)

    def evaluate(self, assignment: Assignment) -> Evaluation:
        """Time and memory of an assignment, not by the tables.

        Raises
        ------
        ShardingError
            If the assignment is illegal.
        """
        return evaluate(self.parts, self.tables.decisions, assignment)

    def strategy(
        self, assignment: Assignment, *, scheme: str = "", notes: Iterable[str] = ()
    ) -> Strategy:
        """Build the record of an assignment: costs by sum, by liveness and by simulation.

        Parameters
        ----------
        assignment : Assignment
        scheme : str
            Name of the named scheme that it is, or empty.
        notes : iterable of str
            Beside those of the builder.

        Raises
        ------
        ShardingError
            If the assignment is illegal.
        """
        decisions = self.tables.decisions
        model = self.tables.model
        found = self.evaluate(assignment)
        words = assignment.to_words(decisions)
        return Strategy(
            model=self.graph.name,
            cluster=model.cluster.name,
            graph_fingerprint=self._fingerprint,
            mesh=assignment.mesh,
            batch_size=self.graph.batch_size,
            micro_batches=assignment.micro_batches,
            precision=model.precision.name,
            optimizer=model.optimizer.name,
            recompute=words.recompute,
            operators=words.operators,
            tensors=words.tensors,
            parameters={
                name: ParameterPlacement(layout, kept, axes)
                for name, (layout, kept, axes) in words.parameters.items()
            },
            regathered=words.regathered,
            costs=self._costs(assignment, found),
            collectives=tuple(
                Collective(
                    use.kind,
                    use.axis,
                    use.nbytes,
                    use.count,
                    use.phase,
                    use.subject,
                    use.why,
                    use.seconds,
                )
                for use in found.collectives
            ),
            description=self.describe(assignment),
            scheme=scheme,
            notes=tuple(dict.fromkeys([*self.notes, *notes])),
            tokens_per_sample=self.graph.tokens_per_sample,
            largest=self._largest(found),
        )

    def describe(self, assignment: Assignment) -> str:
        """One line: what the axes are used for, how parameters are kept, what is recomputed."""
        mesh = assignment.mesh
        roles = self._roles(assignment)
        merged: dict[str, int] = {}
        for role, size in zip(roles, mesh.shape, strict=True):
            if size > 1:
                merged[role] = merged.get(role, 1) * size
        ranked = sorted(merged.items(), key=lambda item: ROLES.index(item[0].split("+")[0]))
        words = [" x ".join(f"{role} {size}" for role, size in ranked) or "single device"]
        words += self._split_words(assignment, roles)
        words += self._storage_words(assignment)
        blocks = len(assignment.recompute)
        if any(assignment.recompute):
            words.append(f"recompute {sum(assignment.recompute)}/{blocks} blocks")
        if assignment.micro_batches > 1:
            words.append(f"{assignment.micro_batches} micro-batches")
        return ", ".join(words)

    # Costs.

    def _costs(self, assignment: Assignment, found: Evaluation) -> Costs:
        peak, simulated = self._replayer.peak_and_time(assignment)
        bound = math.ceil(found.bound_bytes)
        return Costs(
            time_s=found.time_s,
            simulated_time_s=simulated,
            memory_bound_bytes=bound,
            memory_peak_bytes=math.ceil(peak),
            device_bytes=math.ceil(float(self.calibration.device_total(bound))),
            compute_s=found.compute_s,
            communication_s=found.communication_s,
            weight_bytes=math.ceil(found.weight_bytes + found.buffer_bytes),
            gradient_bytes=math.ceil(found.gradient_bytes),
            optimizer_bytes=math.ceil(found.optimizer_bytes),
            saved_bytes=math.ceil(found.saved_bytes),
            transient_bytes=math.ceil(found.transient_bytes),
        )

    @staticmethod
    def _largest(found: Evaluation) -> tuple[LargeTensor, ...]:
        entries = [
            (size, name, "saved for backward") for name, size in found.saved_by_tensor.items()
        ]
        entries += [
            (size, name, "weights, gradients, optimizer")
            for name, size in found.state_by_parameter.items()
        ]
        entries.sort(key=lambda entry: (-entry[0], entry[1]))
        return tuple(LargeTensor(name, part, math.ceil(n)) for n, name, part in entries[:LARGEST])

    # Words.

    def _roles(self, assignment: Assignment) -> list[str]:
        """What every axis is used for, judged by the work of the operators."""
        axes = range(len(assignment.mesh.shape))
        heavy: list[Counter[str]] = [Counter() for _ in axes]
        light: list[Counter[str]] = [Counter() for _ in axes]
        numbers = self.parts.choices(assignment)
        for segment, number in zip(self.parts.segments, numbers, strict=True):
            shares = self._shares.get(number)
            if shares is None:
                shares = self._shares[number] = self._work(segment.positions, assignment)
            for axis in axes:
                heavy[axis].update(shares[0][axis])
                light[axis].update(shares[1][axis])
        return [self._role(heavy[axis], light[axis]) for axis in axes]

    def _work(
        self, positions: Iterable[int], assignment: Assignment
    ) -> tuple[list[Counter[str]], list[Counter[str]]]:
        """Work of products and number of other operators, for every axis by what it is used for."""
        axes = range(len(assignment.mesh.shape))
        heavy: list[Counter[str]] = [Counter() for _ in axes]
        light: list[Counter[str]] = [Counter() for _ in axes]
        for position in positions:
            rule = self.tables.decisions.rules[position]
            product = rule.compute in ("matmul", "convolution", "attention")
            weight = round(rule.flops + rule.backward_flops) if product else 1
            for axis, label in enumerate(assignment.operators[position]):
                # Passing a pending sum on says nothing about an axis.
                if not label.startswith("~"):
                    (heavy if product else light)[axis][self._use(position, label)] += weight
        return heavy, light

    @staticmethod
    def _role(work: Counter[str], light: Counter[str]) -> str:
        shares = work if sum(work.values()) > 0 else light
        total = sum(shares.values()) or 1.0
        if not shares:
            return "replicated"
        role, most = shares.most_common(1)[0]
        if most < MAINLY * total:
            found = [use for use in ROLES if shares[use] >= PARTLY * total]
            role = "+".join(found) or role
        if role == "tensor" and light["sequence"] > light["replicated"]:
            role = "tensor+sequence"
        return role

    def _use(self, position: int, label: str) -> str:
        """``data``, ``sequence``, ``experts``, ``tensor`` or ``replicated``."""
        if not label:
            return "replicated"
        rule = self.tables.decisions.rules[position]
        operator = self.tables.graph.operators[position]
        ends = [
            *zip(operator.outputs, rule.outputs, strict=True),
            *zip(operator.inputs, rule.inputs, strict=True),
        ]
        for tensor, names in ends:
            if label in names:
                kind = self.classes.of[tensor, names.index(label)]
                if kind in self.classes.batch:
                    return "data"
                if kind in self.classes.sequence:
                    return "sequence"
                if kind in self._expert_classes:
                    return "experts"
        return "tensor"

    @cached_property
    def _expert_classes(self) -> frozenset[int]:
        return frozenset(
            self.classes.of[operator.outputs[0], 0]
            for operator in self.graph.operators
            if operator.family == "moe_dispatch"
        )

    def _split_words(self, assignment: Assignment, roles: Sequence[str]) -> list[str]:
        """Say if weights are split along axes that serve something else.

        Few operators with little work may hold most of them.
        """
        whole = [axis for axis, role in enumerate(roles) if role in ("data", "sequence")]
        tensors = self.tables.graph.tensors
        states = assignment.parameter_states(self.tables.decisions)
        total = sum(tensors[name].size for name in states) or 1
        split = sum(
            tensors[name].size
            for name, state in states.items()
            if any(state[axis] >= 3 for axis in whole)
        )
        share = split / total
        return [f"{share:.0%} of the weights split".replace("%", " %")] if share >= PARTLY else []

    def _storage_words(self, assignment: Assignment) -> list[str]:
        """How parameters are kept, by share of the elements; replication goes without saying."""
        tensors = self.tables.graph.tensors
        sizes: dict[Scheme, float] = defaultdict(float)
        for name, scheme in assignment.schemes.items():
            sizes[scheme] += tensors[name].size
        total = sum(sizes.values()) or 1.0
        shares = {s: n / total for s, n in sizes.items() if s.axes and n >= PARTLY * total}
        ranked = sorted(shares.items(), key=lambda item: -item[1])
        names = {scheme: self._scheme_name(assignment, scheme) for scheme in shares}
        if len(ranked) == 1 and ranked[0][1] >= 1 - PARTLY:
            return [names[ranked[0][0]]]
        return [f"{names[scheme]} for {share:.0%}".replace("%", " %") for scheme, share in ranked]

    @staticmethod
    def _scheme_name(assignment: Assignment, scheme: Scheme) -> str:
        axes: Mapping[int, str] = {i: axis.name for i, axis in enumerate(assignment.mesh.axes)}
        return f"{SCHEME_NAMES[scheme.name]} on {'+'.join(axes[a] for a in scheme.axes)}"
