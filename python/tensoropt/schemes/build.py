"""From labels to whole assignments, and the list of schemes that a cluster allows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tensoropt.cluster import Mesh
from tensoropt.cost.assignment import (
    Assignment,
    Gather,
    Labels,
    State,
    check_labels,
    gather_of,
    operand_state,
    result_state,
)
from tensoropt.cost.keeping import Keepers
from tensoropt.cost.storage import Scheme
from tensoropt.cost.tables import Tables
from tensoropt.errors import ShardingError
from tensoropt.graph import Graph
from tensoropt.schemes.labels import (
    GroupLabels,
    data_labels,
    expert_labels,
    sequence_labels,
    tensor_labels,
)
from tensoropt.sharding.decisions import Conversion, Decisions
from tensoropt.sharding.dims import DimClasses, dim_classes
from tensoropt.sharding.layouts import STATE_PR, STATE_RP, STATE_RR

__all__ = ["LeftOut", "NamedScheme", "SchemeBuilder", "Schemes", "named_schemes"]

_Split = tuple[dict[int, Labels], dict[str, State], frozenset[Gather]]

ZERO = {"": "ddp", "ZeRO-1": "zero1", "ZeRO-2": "zero2", "ZeRO-3": "zero3"}


@dataclass(frozen=True)
class NamedScheme:
    """A well-known way to train a model, as one assignment.

    Attributes
    ----------
    name : str
        E.g. ``data parallel``, ``ZeRO-3``, ``tensor parallel 4 x data 2, ZeRO-1`` or ``tensor
        parallel 8 with sequence parallel``.
    assignment : Assignment
    notes : tuple of str
        What had to stay replicated.
    """

    name: str
    assignment: Assignment
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A scheme that cannot be had, and why."""

    name: str
    mesh: Mesh
    micro_batches: int
    reason: str


@dataclass(frozen=True)
class Schemes:
    """All schemes of one search.

    Attributes
    ----------
    schemes : tuple of NamedScheme
    left_out : tuple of LeftOut
    """

    schemes: tuple[NamedScheme, ...]
    left_out: tuple[LeftOut, ...]


def named_schemes(
    tables: Tables, classes: DimClasses | None = None, *, recompute: Sequence[bool] | None = None
) -> list[tuple[str, Assignment]]:
    """Build every named scheme on the mesh of some tables, which are not otherwise looked at.

    Parameters
    ----------
    tables : Tables
    classes : DimClasses, optional
        Of the graph; found if not given.
    recompute : sequence of bool, optional
        Whether to recompute no block, all blocks, or both; default: no block, and all blocks too if
        the tables allow it.

    Returns
    -------
    list of (str, Assignment)
    """
    if recompute is None:
        recompute = (False, True) if tables.recomputable else (False,)
    builder = SchemeBuilder(tables.decisions, tables.model.micro_batches, classes)
    found = builder.on(tables.model.mesh, recompute).schemes
    return [(scheme.name, scheme.assignment) for scheme in found]


@dataclass(frozen=True, slots=True)
class _Axes:
    """What the axes of a mesh are used for; experts lie on data axes."""

    data: tuple[int, ...]
    tensor: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Option:
    """What can be chosen besides the use of the axes."""

    zero: str = ""
    sequence: bool = False
    experts: tuple[int, ...] = ()

    def title(self, name: str) -> str:
        name += " with sequence parallel" if self.sequence else ""
        name += " with expert parallel" if self.experts else ""
        if name == "data parallel" and self.zero:
            return self.zero
        return f"{name}, {self.zero}" if self.zero else name


def _divisions(mesh: Mesh) -> Iterator[tuple[str, _Axes]]:
    """Uses of a mesh's axes: at most one axis of each kind on a level, fast levels for tensors."""
    axes = [a for a, size in enumerate(mesh.shape) if size > 1]
    for count in range(len(axes) + 1):
        for tensor in itertools.combinations(axes, count):
            data = tuple(a for a in axes if a not in tensor)
            levels = [mesh.axes[a].level for a in tensor]
            outermost = min(levels, default=math.inf)
            if any(mesh.axes[a].level > outermost for a in data):
                continue
            if len(set(levels)) < len(levels):
                continue
            if len({mesh.axes[a].level for a in data}) < len(data):
                continue
            ways = math.prod(mesh.shape[a] for a in tensor)
            name = f"tensor parallel {ways}" if tensor else "data parallel"
            if tensor and data:
                name += f" x data {math.prod(mesh.shape[a] for a in data)}"
            yield name, _Axes(data, tensor)


class SchemeBuilder:
    """Builds the named schemes of one graph; what does not depend on the mesh is found once.

    Data parallel with ZeRO-1, 2 and 3; Megatron tensor parallel of every size the mesh offers, the
    fast links first, with data parallel on the other axes, with and without sequence parallel, and
    with and without ZeRO-1 over the data axes; expert parallel where experts are dispatched. A
    scheme that treats two axes of one level alike is built on meshes that have them as one axis
    only: the same division of the work, with fewer and larger collectives.

    Parameters
    ----------
    decisions : Decisions
        Of the graph of one micro-batch.
    micro_batches : int
    classes : DimClasses, optional
        Of the graph; found if not given.
    """

    def __init__(
        self, decisions: Decisions, micro_batches: int, classes: DimClasses | None = None
    ) -> None:
        self.decisions = decisions
        self.graph: Graph = decisions.graph
        self.micro_batches = micro_batches
        self.classes = classes or dim_classes(self.graph, decisions.rules)
        keepers = Keepers(decisions, recomputable=False)
        self._kept = {
            link
            for link in decisions.links
            if isinstance(link, Conversion)
            and self.graph.tensors[link.tensor].kind != "parameter"
            and keepers.of(link).reader
            and not keepers.stays_whole(link)
        }
        self.has_experts = any(o.family == "moe_dispatch" for o in self.graph.operators)
        self._labels: dict[tuple[str, int], GroupLabels] = {}
        self._splits: dict[object, _Split] = {}

    def on(self, mesh: Mesh, recompute: Sequence[bool] = (False,)) -> Schemes:
        """Build every scheme that a mesh serves best.

        Parameters
        ----------
        mesh : Mesh
        recompute : sequence of bool
            Whether to recompute no block, all blocks, or both variants.

        Returns
        -------
        Schemes
            In a fixed order.
        """
        schemes: list[NamedScheme] = []
        left_out: list[LeftOut] = []
        blocks = len(self.graph.blocks)
        for name, axes in _divisions(mesh):
            for option in self._options(axes):
                title = option.title(name)
                try:
                    assignment, notes = self._build(mesh, axes, option)
                except ShardingError as error:
                    left_out.append(LeftOut(title, mesh, self.micro_batches, str(error)))
                    continue
                for redo in recompute if blocks else recompute[:1]:
                    chosen = replace(assignment, recompute=(redo,) * blocks)
                    schemes.append(NamedScheme(title, chosen, notes))
        return Schemes(tuple(schemes), tuple(left_out))

    def _options(self, axes: _Axes) -> Iterator[_Option]:
        if not axes.tensor:
            for zero in ZERO if axes.data else [""]:
                yield _Option(zero)
                if self.has_experts and zero != "ZeRO-2":
                    for first in range(len(axes.data)):
                        yield _Option(zero, experts=axes.data[first:])
            return
        for sequence in (False, True):
            for zero in ("", "ZeRO-1") if axes.data else ("",):
                yield _Option(zero, sequence)

    def _build(
        self, mesh: Mesh, axes: _Axes, option: _Option
    ) -> tuple[Assignment, tuple[str, ...]]:
        """Make an assignment and say what fell back to replicated.

        Raises
        ------
        ShardingError
            If the batch, the sequence or the experts cannot be split at all.
        """
        groups: list[tuple[tuple[int, ...], GroupLabels]] = []
        plain = tuple(a for a in axes.data if a not in option.experts)
        ways = math.prod(mesh.shape[a] for a in axes.data)
        if axes.data:
            if self.graph.batch_size % ways:
                # With what is left replicated it would not be what its name says.
                raise ShardingError(
                    f"the batch of a micro-batch of {self.graph.batch_size} does not split "
                    f"{ways} ways"
                )
            data = self._group("data", ways)
            self._require(data, "batch of a micro-batch", self.graph.batch_size, ways)
            groups.append((plain, data))
        if option.experts:
            size = math.prod(mesh.shape[a] for a in option.experts)
            experts = self._experts(data, ways, size)
            if experts.labels == data.labels:
                raise ShardingError(f"no experts that split {size} ways")
            groups.append((option.experts, experts))
        if axes.tensor:
            size = math.prod(mesh.shape[a] for a in axes.tensor)
            tensor = self._group("tensor", size)
            self._require(tensor, "model: no matrix product", None, size)
            if option.sequence:
                base = tensor
                tensor = self._group("sequence", size)
                if self.graph.tokens_per_sample is None or tensor.labels == base.labels:
                    raise ShardingError(f"no sequence that splits {size} ways")
            groups.append((axes.tensor, tensor))
        operators, tensors, regathered = self._split(mesh, groups, option.sequence)
        assignment = Assignment(
            mesh,
            self.micro_batches,
            (False,) * len(self.graph.blocks),
            operators,
            tensors,
            self._schemes(mesh, axes.data, ZERO[option.zero], operators, tensors),
            regathered,
        )
        notes = [note for _, group in groups for note in group.notes]
        return assignment, tuple(dict.fromkeys(notes))

    def _split(
        self, mesh: Mesh, groups: Sequence[tuple[tuple[int, ...], GroupLabels]], sequence: bool
    ) -> _Split:
        """All but how parameters are kept, which is found once for all ZeRO variants."""
        key = (mesh, tuple((axes, id(group)) for axes, group in groups), sequence)
        found = self._splits.get(key)
        if found is None:
            operators = self._operators(mesh, groups)
            tensors = self._tensors(mesh, operators)
            again = self._regathered(mesh, operators, tensors) if sequence else frozenset()
            found = self._splits[key] = (operators, tensors, again)
        return found

    def _group(self, kind: str, ways: int) -> GroupLabels:
        found = self._labels.get((kind, ways))
        if found is None:
            if kind == "data":
                found = data_labels(self.decisions, self.classes, ways)
            elif kind == "tensor":
                found = tensor_labels(self.decisions, ways)
            else:
                base = self._group("tensor", ways)
                found = sequence_labels(self.decisions, self.classes, base, ways)
            self._labels[kind, ways] = found
        return found

    def _experts(self, data: GroupLabels, ways: int, size: int) -> GroupLabels:
        found = self._labels.get((f"experts in data {ways}", size))
        if found is None:
            found = expert_labels(self.decisions, self.classes, data, size)
            self._labels[f"experts in data {ways}", size] = found
        return found

    def _require(self, group: GroupLabels, what: str, size: int | None, ways: int) -> None:
        if not any(group.labels.values()):
            of_size = "" if size is None else f" of {size}"
            raise ShardingError(f"the {what}{of_size} does not split {ways} ways")

    def _operators(
        self, mesh: Mesh, groups: Sequence[tuple[tuple[int, ...], GroupLabels]]
    ) -> dict[int, Labels]:
        operators = {}
        shape = mesh.shape
        for position, rule in self.decisions.rules.items():
            labels = [""] * len(shape)
            given = [(axes, group.labels[position]) for axes, group in groups]
            for axes, label in given:
                for axis in axes:
                    labels[axis] = label
            # Each group's labels are legal by themselves; together they may split one dim too far.
            if len(given) > 1 and given[0][1] == given[1][1]:
                check_labels(rule, labels, shape, self.graph.operators[position].name)
            operators[position] = tuple(labels)
        return operators

    def _tensors(self, mesh: Mesh, operators: Mapping[int, Labels]) -> dict[str, State]:
        """States of tensors with a node of their own: what most of their ends agree on."""
        produced: dict[str, State] = {}
        read: dict[str, list[State]] = {}
        tied = {g.names[0] for g in self.decisions.groups if len(g.readers) > 1}
        for link in self.decisions.links:
            if not isinstance(link, Conversion):
                continue
            tensor = self.graph.tensors[link.tensor]
            if link.target.kind == "tensor":
                position = int(link.source.key)
                rule = self.decisions.rules[position]
                produced[link.tensor] = result_state(rule, link.output, operators[position])
            elif link.source.kind == "tensor" or link.tensor in tied:
                position = int(link.target.key)
                rule = self.decisions.rules[position]
                state = operand_state(rule, link.operand, operators[position], tensor.requires_grad)
                read.setdefault(link.tensor, []).append(state)
        states = {}
        axes = range(len(mesh.shape))
        for name, readers in read.items():
            trained = self.graph.tensors[name].requires_grad
            states[name] = tuple(
                _agree([r[axis] for r in readers], produced.get(name, readers[0])[axis], trained)
                for axis in axes
            )
        return states

    def _schemes(
        self,
        mesh: Mesh,
        data: tuple[int, ...],
        scheme: str,
        operators: Mapping[int, Labels],
        tensors: Mapping[str, State],
    ) -> dict[str, Scheme]:
        """Keep every parameter by a scheme over the data axes that its operator leaves free."""
        found = {}
        bare = Assignment(mesh, self.micro_batches, (), operators, tensors, {})
        states = bare.parameter_states(self.decisions)
        for group in self.decisions.groups:
            free = tuple(a for a in data if all(states[n][a] < 3 for n in group.names))
            chosen = Scheme(scheme, free) if free and scheme != "ddp" else Scheme("ddp")
            found.update(dict.fromkeys(group.names, chosen))
        return found

    def _regathered(
        self, mesh: Mesh, operators: Mapping[int, Labels], tensors: Mapping[str, State]
    ) -> frozenset[Gather]:
        """What is gathered and kept for backward is gathered again instead, where that helps."""
        found = set()
        shape = mesh.shape
        for link in self.decisions.links:
            if not isinstance(link, Conversion) or link not in self._kept:
                continue
            source = self._state(link, "source", operators, tensors)
            target = self._state(link, "target", operators, tensors)
            if STATE_PR not in source and _parts(shape, source) > _parts(shape, target):
                found.add(gather_of(link))
        return frozenset(found)

    def _state(
        self,
        link: Conversion,
        end: str,
        operators: Mapping[int, Labels],
        tensors: Mapping[str, State],
    ) -> State:
        node = link.source if end == "source" else link.target
        if node.kind != "operator":
            return tensors[link.tensor]
        position = int(node.key)
        rule = self.decisions.rules[position]
        if end == "source":
            return result_state(rule, link.output, operators[position])
        grad = self.graph.tensors[link.tensor].requires_grad
        return operand_state(rule, link.operand, operators[position], grad)


def _agree(readers: Sequence[int], produced: int, trained: bool) -> int:
    """State of a tensor on one axis, given what its ends want there."""
    wanted = {STATE_RR if digit == STATE_PR else digit for digit in readers}
    if len(wanted) == 1:
        return wanted.pop()
    if all(digit >= 3 for digit in wanted):
        return produced if produced in wanted else min(wanted)
    # Read whole by some: gathered once, and the gradients of all are summed before one reduction.
    return STATE_RP if trained else STATE_RR


def _parts(shape: Sequence[int], state: State) -> int:
    return math.prod([n for n, digit in zip(shape, state, strict=True) if digit >= 3])
