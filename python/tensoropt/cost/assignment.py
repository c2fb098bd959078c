"""One complete choice for a model on a mesh, in words that do not depend on how it was found.

An :class:`Assignment` says what every operator is split along, in which state every tensor stands
that has a node of its own, how every parameter is kept, what is gathered twice and which blocks are
recomputed. The search's answers (:func:`from_tables`), the named schemes and saved strategies
(:meth:`Assignment.from_words`) all become one; ``evaluate``, ``program`` and whatever runs a model
read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tensoropt.cluster import Mesh
from tensoropt.cost.storage import SCHEMES, Scheme
from tensoropt.cost.tables import TIME, Tables
from tensoropt.errors import ShardingError
from tensoropt.graph import Graph
from tensoropt.sharding.decisions import Conversion, Decisions, Link, Node
from tensoropt.sharding.layouts import STATE_PR, STATE_RP, STATE_RR
from tensoropt.sharding.rule import Rule

__all__ = [
    "EVERY_OPERAND",
    "Assignment",
    "Gather",
    "Words",
    "check_labels",
    "from_tables",
    "gather_of",
    "operand_state",
    "result_state",
    "to_tables",
]

State = tuple[int, ...]
Labels = tuple[str, ...]
Gather = tuple[str, int | None, int]
"""A tensor, the position of the operator that reads it and as which operand; ``None`` and 0 for
what is gathered for the tensor's own node. An operator may read one tensor several times."""

EVERY_OPERAND = -1
"""In words: all operands of the reader that are the tensor."""


@dataclass(frozen=True, slots=True)
class Words:
    """An assignment in names and texts, as strategies are saved.

    Attributes
    ----------
    operators : dict of str to tuple of str
        Label of each mesh axis, by operator name.
    tensors : dict of str to tuple of str
        ``R``, ``R/P`` or ``S<dim>`` on each mesh axis, for every tensor (tied parameters are
        among them) with a node of its own.
    parameters : dict of str to (layout, scheme, axes)
        ``R`` or ``S<dim>`` on each mesh axis as its readers take it, the name of the scheme, and
        the axes over which that shards.
    regathered : frozenset of (str, str, int)
        Tensor, the name of the operator that reads it, and as which operand (or
        :data:`EVERY_OPERAND`); the empty string and 0 for its own node.
    recompute : dict of str to bool
        By the name of the block.
    """

    operators: dict[str, tuple[str, ...]]
    tensors: dict[str, tuple[str, ...]]
    parameters: dict[str, tuple[tuple[str, ...], str, tuple[int, ...]]]
    regathered: frozenset[tuple[str, str, int]]
    recompute: dict[str, bool]


@dataclass(frozen=True)
class Assignment:
    """One complete choice.

    Parameters
    ----------
    mesh : Mesh
    micro_batches : int
    recompute : tuple of bool
        For every block of the graph, whether it is recomputed in the backward pass.
    operators : mapping of int to tuple of str
        For every operator that does work, by position: the label of each mesh axis (a named dim,
        ``""`` or ``"~i"``, see ``sharding.configurations``).
    tensors : mapping of str to tuple of int
        State digits on each axis (see ``sharding.layouts``) of every tensor with a node of its own,
        tied parameters included.
    schemes : mapping of str to Scheme
        How every parameter is kept, beyond what its readers shard.
    regathered : frozenset of (str, int or None, int)
        Tensors that are gathered again in the backward pass: with the position of the operator that
        reads them and as which operand, or ``None`` and 0 for what is gathered for the tensor's own
        node.
    """

    mesh: Mesh
    micro_batches: int
    recompute: tuple[bool, ...]
    operators: Mapping[int, Labels]
    tensors: Mapping[str, State]
    schemes: Mapping[str, Scheme]
    regathered: frozenset[Gather] = frozenset()

    def parameter_state(self, decisions: Decisions, name: str) -> State:
        """State digits of a parameter as its readers take it.

        Raises
        ------
        ShardingError
            If no operator reads it.
        """
        if name in self.tensors:
            return self.tensors[name]
        for group in decisions.groups:
            if name in group.names:
                position = group.readers[0][0]
                operand = decisions.graph.operators[position].inputs.index(name)
                rule = decisions.rules[position]
                grad = decisions.graph.tensors[name].requires_grad
                return operand_state(rule, operand, self.operators[position], grad)
        raise ShardingError(f"parameter '{name}' is read by no operator: it has no layout")

    def to_words(self, decisions: Decisions) -> Words:
        """Return names and texts instead of positions and digits."""
        graph = decisions.graph
        return Words(
            {graph.operators[p].name: labels for p, labels in self.operators.items()},
            {name: state_words(state) for name, state in self.tensors.items()},
            {
                name: (_layout_words(state), self.schemes[name].name, self.schemes[name].axes)
                for name, state in self.parameter_states(decisions).items()
            },
            frozenset(
                (tensor, "" if position is None else graph.operators[position].name, operand)
                for tensor, position, operand in self.regathered
            ),
            {b.name: redo for b, redo in zip(graph.blocks, self.recompute, strict=True)},
        )

    def parameter_states(self, decisions: Decisions) -> dict[str, State]:
        """State digits of every parameter as its readers take it."""
        graph = decisions.graph
        states: dict[str, State] = {}
        for group in decisions.groups:
            if len(group.readers) > 1:
                states[group.names[0]] = self.tensors[group.names[0]]
                continue
            position = group.readers[0][0]
            inputs = graph.operators[position].inputs
            for name in group.names:
                states[name] = operand_state(
                    decisions.rules[position],
                    inputs.index(name),
                    self.operators[position],
                    graph.tensors[name].requires_grad,
                )
        return states

    @classmethod
    def from_words(
        cls, decisions: Decisions, mesh: Mesh, micro_batches: int, words: Words
    ) -> Assignment:
        """Rebuild an assignment from names and texts.

        Raises
        ------
        ShardingError
            If an operator, tensor, parameter or block is missing or unknown, or a label, state or
            scheme is illegal; the message names it.
        """
        graph = decisions.graph
        place = {graph.operators[p].name: p for p in decisions.rules}
        _same_names("operator", words.operators, place)
        shared = _shared(decisions)
        _same_names("tensor", words.tensors, shared)
        _same_names("parameter", words.parameters, [n for g in decisions.groups for n in g.names])
        _same_names("block", words.recompute, [b.name for b in graph.blocks])
        operators = {}
        for name, labels in words.operators.items():
            operators[place[name]] = tuple(labels)
        schemes = {}
        for name, (_, scheme, axes) in words.parameters.items():
            if scheme not in SCHEMES:
                raise ShardingError(
                    f"parameter '{name}': scheme '{scheme}', expected one of {', '.join(SCHEMES)}"
                )
            schemes[name] = Scheme(scheme, tuple(axes))
        found = cls(
            mesh,
            micro_batches,
            tuple(bool(words.recompute[b.name]) for b in graph.blocks),
            {p: operators[p] for p in decisions.rules},
            {name: _state_digits(name, words.tensors[name]) for name in shared},
            schemes,
            _gathers(graph, place, words.regathered),
        )
        found.check(decisions)
        return found

    def check(self, decisions: Decisions) -> None:
        """Check that every part is there and legal on its own.

        Whether neighbouring parts can be reconciled is for ``evaluate`` to say.

        Raises
        ------
        ShardingError
            Naming the operator, tensor or parameter and what was expected.
        """
        graph = decisions.graph
        axes = len(self.mesh.shape)
        for position, rule in decisions.rules.items():
            name = graph.operators[position].name
            if position not in self.operators:
                raise ShardingError(f"operator '{name}' has no configuration")
            check_labels(rule, self.operators[position], self.mesh.shape, name)
        for name in _shared(decisions):
            state = self.tensors.get(name)
            if state is None or len(state) != axes:
                raise ShardingError(f"tensor '{name}' has state {state}, expected {axes} digits")
            if STATE_PR in state:
                raise ShardingError(f"tensor '{name}' is a pending sum: it must be R, R/P or S")
            _check_split(graph, name, state, self.mesh.shape)
        for group in decisions.groups:
            for name in group.names:
                scheme = self.schemes.get(name)
                if scheme is None:
                    raise ShardingError(f"parameter '{name}' has no scheme")
                if scheme != self.schemes[group.names[0]]:
                    raise ShardingError(
                        f"parameters '{group.names[0]}' and '{name}' of one operator must be kept "
                        f"alike, not by {self.schemes[group.names[0]]} and {scheme}"
                    )
        if len(self.recompute) != len(graph.blocks):
            raise ShardingError(
                f"recompute has {len(self.recompute)} entries, expected one for each of the "
                f"{len(graph.blocks)} blocks"
            )


def check_labels(rule: Rule, labels: Sequence[str], mesh_shape: Sequence[int], name: str) -> None:
    """Check that labels are a legal configuration of an operator.

    Parameters
    ----------
    rule : Rule
    labels : sequence of str
        One for each mesh axis.
    mesh_shape : sequence of int
    name : str
        Of the operator, for messages.

    Raises
    ------
    ShardingError
        If a label is unknown or the sizes of the axes do not divide a dim.
    """
    if len(labels) != len(mesh_shape):
        raise ShardingError(
            f"operator '{name}' has labels {tuple(labels)}, expected one for each of the "
            f"{len(mesh_shape)} mesh axes"
        )
    known = {"", *(d.name for d in rule.dims), *(f"~{i}" for i in range(len(rule.linear)))}
    parts: dict[str, int] = {}
    for label, size in zip(labels, mesh_shape, strict=True):
        if label not in known:
            raise ShardingError(
                f"operator '{name}' has label '{label}', expected one of {sorted(known)}"
            )
        if size == 1 and label:
            raise ShardingError(
                f"operator '{name}' has label '{label}' on an axis of size 1, expected ''"
            )
        if label and not label.startswith("~"):
            parts[label] = parts.get(label, 1) * size
    for label, count in parts.items():
        dim = rule.dim(label)
        if count > dim.size if dim.padded else dim.size % count:
            raise ShardingError(
                f"operator '{name}': dim '{label}' of size {dim.size} cannot be split {count} ways"
            )


def operand_state(rule: Rule, operand: int, labels: Labels, grad: bool) -> State:
    """State digits in which an operator reads an operand.

    Parameters
    ----------
    rule : Rule
    operand : int
    labels : tuple of str
    grad : bool
        Whether the operand carries a gradient.
    """
    dims = rule.inputs[operand]
    digits = []
    for label in labels:
        if label == "":
            digit = STATE_RR
        elif label.startswith("~"):
            digit = STATE_PR if operand in rule.linear[int(label[1:])] else STATE_RP
        elif label in dims:
            digit = 3 + dims.index(label)
        elif operand == rule.bias and rule.dim(label).role == "reduction":
            # Added on one rank to a pending sum, whose gradient is the same everywhere.
            digit = STATE_RR
        else:
            digit = STATE_RP
        digits.append(STATE_RR if digit == STATE_RP and not grad else digit)
    return tuple(digits)


def result_state(rule: Rule, result: int, labels: Labels) -> State:
    """State digits in which an operator leaves a result."""
    dims = rule.outputs[result]
    digits = []
    for label in labels:
        if label == "":
            digits.append(STATE_RR)
        elif label.startswith("~"):
            digits.append(STATE_PR)
        elif label in dims:
            digits.append(3 + dims.index(label))
        else:
            digits.append(STATE_PR if rule.dim(label).role == "reduction" else STATE_RR)
    return tuple(digits)


def from_tables(
    tables: Tables, nodes: Mapping[Node, int], links: Mapping[Link, int], recompute: Sequence[bool]
) -> Assignment:
    """Read a choice of table entries.

    Parameters
    ----------
    tables : Tables
    nodes : mapping of Node to int
        Row of each node's table.
    links : mapping of Link to int
        Alternative of each link; links that have only one may be left out.
    recompute : sequence of bool
        For every block of the graph.
    """
    decisions = tables.decisions
    operators: dict[int, Labels] = {}
    tensors: dict[str, State] = {}
    schemes: dict[str, Scheme] = {}
    for node in decisions.nodes:
        row = nodes[node]
        if node.kind == "operator":
            operators[int(node.key)] = tables.configurations(int(node.key)).labels[row]
        elif node.kind == "tensor":
            tensors[str(node.key)] = tuple(tables.tensor_states(str(node.key))[row].tolist())
        else:
            group = decisions.group(node)
            if len(group.readers) > 1:
                states, pairs = tables.tied_states(group)
                tensors[group.names[0]] = tuple(states[pairs[row][0]].tolist())
                schemes[group.names[0]] = pairs[row][1]
            else:
                schemes.update(dict.fromkeys(group.names, tables.schemes[row]))
    regathered: set[Gather] = set()
    for link, alternative in links.items():
        if alternative and isinstance(link, Conversion):
            costs = tables.link(link).costs
            if np.isfinite(costs[alternative, nodes[link.source], nodes[link.target], TIME]):
                regathered.add(gather_of(link))
    return Assignment(
        tables.model.mesh,
        tables.model.micro_batches,
        tuple(bool(r) for r in recompute),
        operators,
        tensors,
        schemes,
        frozenset(regathered),
    )


def to_tables(tables: Tables, assignment: Assignment) -> tuple[dict[Node, int], dict[Link, int]]:
    """Find an assignment in the tables: the inverse of :func:`from_tables`.

    Raises
    ------
    ShardingError
        If some part of it is no configuration that the tables know.
    """
    decisions = tables.decisions
    nodes: dict[Node, int] = {}
    for node in decisions.nodes:
        if node.kind == "operator":
            configs = tables.configurations(int(node.key))
            nodes[node] = configs.index(assignment.operators[int(node.key)])
        elif node.kind == "tensor":
            name = str(node.key)
            nodes[node] = _row(tables.tensor_states(name), assignment.tensors[name], name)
        else:
            group = decisions.group(node)
            scheme = assignment.schemes[group.names[0]]
            if len(group.readers) > 1:
                states, pairs = tables.tied_states(group)
                name = group.names[0]
                nodes[node] = pairs.index((_row(states, assignment.tensors[name], name), scheme))
            else:
                nodes[node] = tables.schemes.index(scheme)
    links = {
        link: int(isinstance(link, Conversion) and gather_of(link) in assignment.regathered)
        for link in decisions.links
    }
    return nodes, links


def gather_of(link: Conversion) -> Gather:
    """What ``Assignment.regathered`` calls the tensor that a conversion brings to its reader."""
    reader = int(link.target.key) if link.target.kind == "operator" else None
    return link.tensor, reader, link.operand


def _gathers(
    graph: Graph, place: Mapping[str, int], words: Iterable[tuple[str, str, int]]
) -> frozenset[Gather]:
    """Positions instead of the names of readers."""
    found: set[Gather] = set()
    for tensor, reader, operand in words:
        if tensor not in graph.tensors or (reader and reader not in place):
            raise ShardingError(
                f"regathered: no tensor '{tensor}' or no operator '{reader}' in the graph"
            )
        if not reader:
            found.add((tensor, None, 0))
            continue
        position = place[reader]
        reads = [o for o, name in enumerate(graph.operators[position].inputs) if name == tensor]
        chosen = [o for o in reads if operand in (o, EVERY_OPERAND)]
        if not chosen:
            raise ShardingError(
                f"regathered: operator '{reader}' reads '{tensor}' as operand "
                f"{' or '.join(map(str, reads)) or 'none'}, not as {operand}"
            )
        found.update((tensor, position, o) for o in chosen)
    return frozenset(found)


def _row(states: np.ndarray[tuple[int, ...], np.dtype[np.int64]], wanted: State, name: str) -> int:
    rows = np.nonzero(np.all(states == np.array(wanted), axis=1))[0]
    if not len(rows):
        raise ShardingError(f"tensor '{name}' has no state {state_words(wanted)} to choose")
    return int(rows[0])


def _shared(decisions: Decisions) -> list[str]:
    """Tensors with a node of their own, tied parameters included."""
    names = [str(node.key) for node in decisions.nodes if node.kind == "tensor"]
    return names + [g.names[0] for g in decisions.groups if len(g.readers) > 1]


def _same_names(kind: str, given: Iterable[str], expected: Iterable[str]) -> None:
    given, expected = dict.fromkeys(given), dict.fromkeys(expected)
    for name in expected:
        if name not in given:
            raise ShardingError(f"{kind} '{name}' of the graph is missing from the strategy")
    for name in given:
        if name not in expected:
            raise ShardingError(f"{kind} '{name}' of the strategy is not in the graph")


def _check_split(graph: Graph, name: str, state: State, mesh_shape: Sequence[int]) -> None:
    tensor = graph.tensors[name]
    for d, size in enumerate(tensor.shape):
        parts = 1
        for digit, axis_size in zip(state, mesh_shape, strict=True):
            parts *= axis_size if digit == 3 + d else 1
        uneven = tensor.kind == "parameter" or d in tensor.padded_dims
        if parts > max(size, 1) if uneven else size % parts:
            raise ShardingError(
                f"tensor '{name}': dim {d} of size {size} cannot be split {parts} ways"
            )
    if any(digit >= 3 + len(tensor.shape) for digit in state):
        raise ShardingError(f"tensor '{name}' has no such dim as {state_words(state)} shards")


def state_words(state: State) -> tuple[str, ...]:
    """``R``, ``R/P``, ``P`` or ``S<dim>`` for each axis."""
    return tuple(("R", "R/P", "P")[d] if d < 3 else f"S{d - 3}" for d in state)


def _layout_words(state: State) -> tuple[str, ...]:
    return tuple("R" if d < 3 else f"S{d - 3}" for d in state)


def _state_digits(name: str, words: Sequence[str]) -> State:
    digits = []
    for word in words:
        if word in ("R", "R/P"):
            digits.append(STATE_RR if word == "R" else STATE_RP)
        elif word[:1] == "S" and word[1:].isdigit():
            digits.append(3 + int(word[1:]))
        else:
            raise ShardingError(f"tensor '{name}' has state '{word}', expected R, R/P or S<dim>")
    return tuple(digits)
