"""What well-known schemes split each operator along, found from dims and rules alone.

Every function answers with a label for each operator (a named dim, ``""`` for replicated, or
``"~i"`` where a pending sum passes through) for one group of mesh axes that are used alike:

- :func:`data_labels`: whatever has the batch is split along it;
- :func:`tensor_labels`: Megatron's tensor parallel. A linear whose operand is replicated is split
  along its columns if everything that reads its result can stay split until a linear takes the
  split dim as its rows (or cross-entropy takes it as its classes); that one gives a pending sum;
- :func:`sequence_labels`: on top of it, what would be replicated is split along the sequence;
- :func:`expert_labels`: between dispatch and combination, experts are split.

No scheme is written down per model: the same walk serves transformers, mixtures of experts and
convolutional networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tensoropt.graph import Graph, Operator
from tensoropt.sharding.decisions import Decisions
from tensoropt.sharding.dims import DimClasses
from tensoropt.sharding.rule import NamedDim, Rule

__all__ = [
    "GroupLabels",
    "data_labels",
    "expert_labels",
    "sequence_labels",
    "splits",
    "tensor_labels",
]

CONTRACTIONS = frozenset({"linear", "matmul", "einsum", "convolution"})

LEAST_VOCABULARY = 1024
"""Rows from which an embedding of input ids counts as a vocabulary and is split over it; Megatron
keeps tables of positions and segments whole."""

REPLICATED = -1
PENDING = -2


@dataclass(frozen=True)
class GroupLabels:
    """Labels for one group of mesh axes.

    Attributes
    ----------
    labels : mapping of int to str
        By operator position.
    notes : tuple of str
        What fell back to replicated, and why.
    """

    labels: Mapping[int, str]
    notes: tuple[str, ...] = ()


def splits(dim: NamedDim, ways: int) -> bool:
    """Whether a named dim can be split so many ways."""
    return ways <= dim.size if dim.padded else dim.size % ways == 0


def data_labels(decisions: Decisions, classes: DimClasses, ways: int) -> GroupLabels:
    """Split the batch."""
    labels = {}
    skipped = []
    for position, rule in decisions.rules.items():
        found = _named(decisions.graph, position, rule, classes, classes.batch)
        labels[position] = next((d.name for d in found if splits(d, ways)), "")
        if found and not labels[position]:
            skipped.append(decisions.graph.operators[position].name)
    return GroupLabels(labels, _fallback("batch", skipped, ways))


def sequence_labels(
    decisions: Decisions, classes: DimClasses, base: GroupLabels, ways: int
) -> GroupLabels:
    """Split the sequence in every operator that tensor parallel leaves replicated."""
    labels = dict(base.labels)
    for position, label in base.labels.items():
        if label:
            continue
        rule = decisions.rules[position]
        for dim in _named(decisions.graph, position, rule, classes, classes.sequence):
            if splits(dim, ways):
                labels[position] = dim.name
                break
    return GroupLabels(labels, base.notes)


def expert_labels(
    decisions: Decisions, classes: DimClasses, base: GroupLabels, ways: int
) -> GroupLabels:
    """Split experts in what lies between dispatch and combination; elsewhere as `base` says."""
    graph = decisions.graph
    labels = dict(base.labels)
    inside: set[str] = set()
    kinds: set[int] = set()
    skipped = []
    for position, rule in decisions.rules.items():
        operator = graph.operators[position]
        if operator.family == "moe_dispatch":
            inside.update(operator.outputs)
            kinds.add(classes.of[operator.outputs[0], 0])
        elif inside.intersection(operator.inputs) and operator.family != "moe_combine":
            inside.update(operator.outputs)
            experts = _named(graph, position, rule, classes, kinds)
            found = next((d.name for d in experts if splits(d, ways)), None)
            if found is None:
                skipped.append(operator.name)
            else:
                labels[position] = found
    return GroupLabels(labels, base.notes + _fallback("experts", skipped, ways))


def tensor_labels(decisions: Decisions, ways: int) -> GroupLabels:
    """Split matrix products by columns and rows in turn, and vocabularies.

    Starts from all products by columns and takes back those whose result meets an operator that
    cannot go on with it, until none is left.
    """
    whole: dict[int, str] = {}
    while True:
        walk = _Walk(decisions, ways, whole)
        if not walk.conflicts:
            return GroupLabels(walk.labels, tuple(dict.fromkeys(walk.notes(whole))))
        whole |= walk.conflicts


@dataclass
class _Walk:
    """One pass over the operators: how each tensor is left on the group of axes.

    A tensor is ``REPLICATED``, ``PENDING`` (a sum) or split along the dim of that number; what is
    split remembers the products by columns that it comes from.
    """

    decisions: Decisions
    ways: int
    whole: Mapping[int, str]
    labels: dict[int, str] = field(default_factory=dict)
    conflicts: dict[int, str] = field(default_factory=dict)
    indivisible: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph: Graph = self.decisions.graph
        self.placed: dict[str, int] = {}
        self.origins: dict[str, frozenset[int]] = {}
        self.shared = {str(n.key) for n in self.decisions.nodes if n.kind == "tensor"}
        for position, rule in self.decisions.rules.items():
            operator = self.graph.operators[position]
            label = self._label(position, operator, rule)
            self.labels[position] = label
            self._place_results(position, operator, rule, label)

    def notes(self, whole: Mapping[int, str]) -> Iterable[str]:
        """Products that stay whole for another reason than their place in the network."""
        causes: dict[str, list[str]] = {}
        for position, why in {**self.indivisible, **whole}.items():
            if why and not self.labels[position]:
                causes.setdefault(why, []).append(self.graph.operators[position].name)
        for why, names in causes.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"'{names[0]}'{more} replicated over {self.ways} ranks: {why}"

    def _label(self, position: int, operator: Operator, rule: Rule) -> str:
        split = [
            (operand, self.placed[name])
            for operand, name in enumerate(operator.inputs)
            if self.placed.get(name, REPLICATED) >= 0
        ]
        if split:
            return self._follow(operator, rule, split)
        pending = {o for o, n in enumerate(operator.inputs) if self.placed.get(n) == PENDING}
        if pending and (rule.alias or self._shrinks(operator, pending)):
            for number, together in enumerate(rule.linear):
                if together == pending:
                    return f"~{number}"
        if operator.family == "embedding":
            return self._vocabulary(operator, rule)
        if operator.family in CONTRACTIONS and position not in self.whole:
            return self._columns(position, operator, rule)
        return ""

    def _follow(self, operator: Operator, rule: Rule, split: list[tuple[int, int]]) -> str:
        names = {rule.inputs[operand][dim] for operand, dim in split}
        name = names.pop() if len(names) == 1 else None
        if name is None:
            return self._conflict(operator, split, "")
        if not splits(rule.dim(name), self.ways):
            return self._conflict(operator, split, _size(operator, rule, name))
        for operand, tensor in enumerate(operator.inputs):
            whole = self.placed.get(tensor) in (REPLICATED, PENDING)
            if whole and name in rule.inputs[operand]:
                return self._conflict(operator, split, "")
        return name

    def _conflict(self, operator: Operator, split: list[tuple[int, int]], why: str) -> str:
        """Take back the products whose split results meet here."""
        for operand, _ in split:
            for origin in self.origins.get(operator.inputs[operand], ()):
                self.conflicts.setdefault(origin, why)
        return ""

    def _columns(self, position: int, operator: Operator, rule: Rule) -> str:
        """Dim of a product that a weight has and its other operand lacks."""
        for weight, tensor in enumerate(self.graph.operands(operator)):
            if tensor is None or tensor.kind != "parameter" or len(tensor.shape) < 2:
                continue
            others = [n for i, n in enumerate(rule.inputs) if i not in (weight, rule.bias)]
            for name in rule.inputs[weight]:
                if name is None or any(name in names for names in others):
                    continue
                if splits(rule.dim(name), self.ways):
                    return name
                self.indivisible[position] = _size(operator, rule, name)
        return ""

    def _vocabulary(self, operator: Operator, rule: Rule) -> str:
        ids, table = self.graph.operands(operator)
        assert ids is not None
        assert table is not None
        name = rule.inputs[1][0]
        large = table.kind == "parameter" and table.shape[0] >= LEAST_VOCABULARY
        if ids.kind == "constant" or not large or name is None:
            return ""
        return name if splits(rule.dim(name), self.ways) else ""

    def _shrinks(self, operator: Operator, pending: set[int]) -> bool:
        """Whether a sum is smaller after the operator than before."""
        tensors = self.graph.tensors
        before = sum(tensors[operator.inputs[o]].size for o in pending)
        return sum(tensors[name].size for name in operator.outputs) < before

    def _place_results(self, position: int, operator: Operator, rule: Rule, label: str) -> None:
        origins: frozenset[int] = frozenset()
        for name in operator.inputs:
            origins |= self.origins.get(name, frozenset())
        if operator.family in CONTRACTIONS and not origins:
            origins = frozenset({position})
        for name, dims in zip(operator.outputs, rule.outputs, strict=True):
            if label.startswith("~"):
                placed = PENDING
            elif label in dims and label:
                placed = dims.index(label)
            elif label and rule.dim(label).role == "reduction":
                placed = PENDING
            else:
                placed = REPLICATED
            # What stands between operators is no pending sum.
            if placed == PENDING and name in self.shared:
                placed = REPLICATED
            self.placed[name] = placed
            self.origins[name] = origins if placed >= 0 else frozenset()


def _size(operator: Operator, rule: Rule, name: str) -> str:
    return f"dim '{name}' of '{operator.name}' has size {rule.dim(name).size}"


def _named(
    graph: Graph, position: int, rule: Rule, classes: DimClasses, kinds: Iterable[int]
) -> list[NamedDim]:
    """Named dims of an operator that stand for a tensor dim of one of these classes."""
    wanted = set(kinds)
    operator = graph.operators[position]
    found: dict[str, NamedDim] = {}
    pairs = [
        *zip(operator.outputs, rule.outputs, strict=True),
        *zip(operator.inputs, rule.inputs, strict=True),
    ]
    for tensor, names in pairs:
        for dim, name in enumerate(names):
            if name is not None and classes.of[tensor, dim] in wanted:
                found.setdefault(name, rule.dim(name))
    return list(found.values())


def _fallback(what: str, names: list[str], ways: int) -> tuple[str, ...]:
    if not names:
        return ()
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (f"'{names[0]}'{more} replicated: its {what} does not split {ways} ways",)
