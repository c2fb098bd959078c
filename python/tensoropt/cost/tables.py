"""Cost tables of the decisions of a graph on one mesh: what the search adds up.

Every node and link of ``sharding.decisions`` gets a :class:`Terms` array whose last dim holds the
columns below, for a whole iteration. Nodes and links with equal keys have equal tables, so a
thousand equal layers are built once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensoropt.graph import Graph, Tensor, signature
from tensoropt.sharding.configurations import Configurations, configurations
from tensoropt.sharding.decisions import Conversion, Decisions, Link, Node, ParameterGroup, Storage
from tensoropt.sharding.layouts import STATE_RP, STATE_RR, state_shard

from .axis_uses import Among
from .conversions import conversion_terms, dims_used
from .model import CostModel
from .operators import OperatorTerms, local_bytes, operator_terms
from .saving import Savings
from .storage import SHARDED_GRADIENT, Scheme, schemes, storage_terms

__all__ = [
    "COLUMNS",
    "RECOMPUTE_TIME",
    "RESIDENT",
    "SAVED",
    "TIME",
    "TRANSIENT",
    "Tables",
    "shared_states",
]

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.int64]

COLUMNS = 5
TIME, RECOMPUTE_TIME, RESIDENT, SAVED, TRANSIENT = range(COLUMNS)
"""Columns of a table: seconds, further seconds if the block is recomputed, bytes that stay, bytes
kept for backward or held by gradients (transient if the block is recomputed), bytes while it runs
(a maximum)."""


def shared_states(
    model: CostModel,
    tensor: Tensor,
    dims: tuple[int, ...],
    *,
    uneven: bool = False,
    among: Callable[[Sequence[int]], bool] | None = None,
) -> IntArray:
    """State digits of a tensor that stands between operators: never a pending sum itself.

    Parameters
    ----------
    model : CostModel
    tensor : Tensor
    dims : tuple of int
        Dims that may be sharded.
    uneven : bool
        Whether any split is allowed (parameters).
    among : callable, optional
        Whether the digits of all axes that are longer than one may occur together; default: all.

    Returns
    -------
    (K, axes) int array
    """
    digits = [STATE_RR, *([STATE_RP] if tensor.requires_grad else [])]
    digits += [state_shard(d) for d in dims]
    divided = [axis for axis, size in enumerate(model.mesh_shape) if size > 1]
    per_axis = [digits if size > 1 else [STATE_RR] for size in model.mesh_shape]
    rows = []
    for row in itertools.product(*per_axis):
        fits = among is None or among([row[axis] for axis in divided])
        for d in dims:
            parts = 1
            for digit, size in zip(row, model.mesh_shape, strict=True):
                parts *= size if digit == state_shard(d) else 1
            if uneven or d in tensor.padded_dims:
                fits &= parts <= tensor.shape[d]
            else:
                fits &= tensor.shape[d] % parts == 0
        if fits:
            rows.append(row)
    return np.array(rows, np.int64).reshape(-1, len(model.mesh_shape))


@dataclass(frozen=True)
class Terms:
    """One table.

    Attributes
    ----------
    key : hashable
        Equal keys, equal tables.
    costs : float array
        Node: (K, COLUMNS). Link: (alternatives, K source, K target, COLUMNS). ``inf`` in the time
        column marks the impossible.
    """

    key: Hashable
    costs: FloatArray


class Tables:
    """Tables of a graph's decisions under one cost model; built on demand, kept by key.

    Parameters
    ----------
    model : CostModel
    decisions : Decisions
        Of the graph of one micro-batch.
    recomputable : bool
        Whether some block may be recomputed: its input is then kept, whoever reads it.
    among : Among, optional
        What operators and tensors may be along axes; default: all that is legal.
    """

    def __init__(
        self,
        model: CostModel,
        decisions: Decisions,
        *,
        recomputable: bool = False,
        among: Among | None = None,
    ) -> None:
        self.model = model
        self.decisions = decisions
        self.graph: Graph = decisions.graph
        self.recomputable = recomputable
        self.among = among or Among()
        self.schemes: tuple[Scheme, ...] = schemes(model.mesh_shape)
        self._signatures: dict[int, Hashable] = {}
        self._configurations: dict[Hashable, Configurations] = {}
        self._operator_terms: dict[Hashable, OperatorTerms] = {}
        self._states: dict[Hashable, IntArray] = {}
        self._terms: dict[Hashable, Terms] = {}
        self.savings = Savings(decisions, recomputable=recomputable)
        self._dims = self._dims_of_shared()

    # What a node may be.

    def operator_key(self, position: int) -> Hashable:
        """Signature of the operator at a position."""
        key = self._signatures.get(position)
        if key is None:
            operator = self.graph.operators[position]
            is_loss = self.graph.loss in operator.outputs
            key = self._signatures[position] = (signature(self.graph, operator), is_loss)
        return key

    def configurations(self, position: int) -> Configurations:
        """Legal configurations of the operator at a position."""
        key = self.operator_key(position)
        found = self._configurations.get(key)
        if found is None:
            operator = self.graph.operators[position]
            found = self._configurations[key] = configurations(
                self.decisions.rules[position],
                self.model.mesh_shape,
                [t is not None and t.requires_grad for t in self.graph.operands(operator)],
                [t.requires_grad for t in self.graph.results(operator)],
                self.among.labels(key),
            )
        return found

    def terms_of_operator(self, position: int) -> OperatorTerms:
        """Cost terms of the operator at a position."""
        key = self.operator_key(position)
        found = self._operator_terms.get(key)
        if found is None:
            found = self._operator_terms[key] = operator_terms(
                self.model,
                self.graph,
                self.graph.operators[position],
                self.configurations(position),
            )
        return found

    def tensor_states(self, name: str) -> IntArray:
        """States of a tensor that has a node of its own."""
        key = self._tensor_key(name)
        found = self._states.get(key)
        if found is None:
            tensor = self.graph.tensors[name]
            among = self.among.states(self.tensor_signature(name))
            found = self._states[key] = shared_states(
                self.model, tensor, self._dims[name], among=among
            )
        return found

    def tied_states(self, group: ParameterGroup) -> tuple[IntArray, list[tuple[int, Scheme]]]:
        """States of a tied parameter, and its configurations as (row of states, scheme)."""
        tensor = self.graph.tensors[group.names[0]]
        among = self.among.states(self.tensor_signature(tensor.name))
        states = shared_states(
            self.model, tensor, self._dims[tensor.name], uneven=True, among=among
        )
        pairs = [
            (row, scheme)
            for row in range(len(states))
            for scheme in self.schemes
            if not np.any(states[row, list(scheme.axes)] >= 3)
        ]
        return states, pairs

    def size(self, node: Node) -> int:
        """Number of configurations of a node."""
        return len(self.node(node).costs)

    def configuration_count(self, node: Node) -> int:
        """Number of configurations of a node, without their costs."""
        if node.kind == "operator":
            return len(self.configurations(int(node.key)))
        if node.kind == "tensor":
            return len(self.tensor_states(str(node.key)))
        group = self.decisions.group(node)
        return len(self.schemes) if len(group.readers) == 1 else len(self.tied_states(group)[1])

    # Tables.

    def node(self, node: Node) -> Terms:
        """Table of a node."""
        if node.kind == "operator":
            assert isinstance(node.key, int)
            return self._cached(("operator", self.operator_key(node.key)), self._operator, node)
        if node.kind == "tensor":
            assert isinstance(node.key, str)
            return self._cached(self._tensor_key(node.key), self._shared, node)
        group = self.decisions.group(node)
        if len(group.readers) == 1:
            return self._cached(("schemes",), self._untied, node)
        return self._cached(("tied", group.names), self._tied, node)

    def link(self, link: Link) -> Terms:
        """Table of a link."""
        if isinstance(link, Storage):
            position = link.target.key
            assert isinstance(position, int)
            return self._cached(("storage", self.operator_key(position)), self._storage, link)
        key = (
            "conversion",
            self._end_key(link.source, link.output, "out"),
            self._end_key(link.target, link.operand, "in"),
            self.tensor_signature(link.tensor),
            self.savings.of(link),
            self.savings.waiting(link),
            self.savings.stays_whole(link),
            self.savings.lies_beside(link),
            self.savings.behind_view(link),
            link.target in self.decisions.block_of or link.target.kind == "operator",
        )
        return self._cached(key, self._conversion, link)

    def _cached(self, key: Hashable, build: object, item: object) -> Terms:
        found = self._terms.get(key)
        if found is None:
            assert callable(build)
            found = self._terms[key] = Terms(key, build(item))
        return found

    def _operator(self, node: Node) -> FloatArray:
        terms = self.terms_of_operator(int(node.key))
        m = self.model.micro_batches
        costs = np.zeros((len(terms.forward_s), COLUMNS))
        costs[:, TIME] = m * (terms.forward_s + terms.backward_s)
        costs[:, RECOMPUTE_TIME] = m * terms.forward_s
        costs[:, RESIDENT] = terms.resident_bytes
        costs[:, SAVED] = terms.saved_bytes
        costs[:, TRANSIENT] = np.maximum(terms.working_bytes, terms.copied_bytes)
        return costs

    def _shared(self, node: Node) -> FloatArray:
        return np.zeros((len(self.tensor_states(str(node.key))), COLUMNS))

    def _untied(self, _: Node) -> FloatArray:
        return np.zeros((len(self.schemes), COLUMNS))

    def _tied(self, node: Node) -> FloatArray:
        group = self.decisions.group(node)
        states, pairs = self.tied_states(group)
        costs = np.zeros((len(pairs), COLUMNS))
        tensor = self.graph.tensors[group.names[0]]
        readers = len({p for p, _ in group.readers})
        terms = storage_terms(self.model, tensor, states, self.schemes, readers=readers)
        rows = np.array([row for row, _ in pairs])
        columns = np.array([self.schemes.index(scheme) for _, scheme in pairs])
        costs[:, TIME] = terms.time_s[rows, columns]
        costs[:, RECOMPUTE_TIME] = terms.recompute_s[rows, columns]
        resident = terms.weight_bytes + terms.gradient_bytes + terms.optimizer_bytes
        costs[:, RESIDENT] = (resident + terms.kept_bytes)[rows, columns]
        costs[:, TRANSIENT] = terms.transient_bytes[rows, columns]
        return costs

    def _storage(self, link: Storage) -> FloatArray:
        position = int(link.target.key)
        operator = self.graph.operators[position]
        configs = self.configurations(position)
        reader = self.terms_of_operator(position)
        costs = np.zeros((1, len(self.schemes), len(configs), COLUMNS))
        costs[0, :, :, TRANSIENT] = reader.working_bytes[None, :]
        for rank, name in enumerate(self.decisions.group(link.source).names):
            terms = storage_terms(
                self.model,
                self.graph.tensors[name],
                configs.input_states[operator.inputs.index(name)],
                self.schemes,
                reader.forward_compute_s if rank == 0 else None,
                reader.backward_compute_s if rank == 0 else None,
            )
            costs[0, :, :, TIME] += terms.time_s.T
            costs[0, :, :, RECOMPUTE_TIME] += terms.recompute_s.T
            resident = terms.weight_bytes + terms.gradient_bytes + terms.optimizer_bytes
            costs[0, :, :, RESIDENT] += (resident + terms.kept_bytes).T
            costs[0, :, :, TRANSIENT] += terms.transient_bytes.T
        # Gradients to be scattered lie beside what is gathered again for their operator.
        sharded = np.array([scheme.name in SHARDED_GRADIENT for scheme in self.schemes])
        costs[0, :, :, TRANSIENT] += sharded[:, None] * reader.kept_bytes[None, :]
        return costs

    def _conversion(self, link: Conversion) -> FloatArray:
        tensor = self.graph.tensors[link.tensor]
        source, target = (
            self._end(link.source, link.output, "out"),
            self._end(link.target, link.operand, "in"),
        )
        terms = conversion_terms(
            self.model,
            tensor,
            source,
            target,
            self.savings.of(link),
            from_shared=link.source.kind != "operator",
        )
        m = self.model.micro_batches
        # What reaches a border tensor is kept whether or not the block before it is recomputed.
        inner = link.target.kind == "operator" or link.target in self.decisions.block_of
        keep = np.zeros((*terms.forward_s.shape, COLUMNS))
        keep[..., TIME] = m * (terms.forward_s + terms.backward_s)
        if inner:
            again = np.where(np.isfinite(terms.forward_s), terms.forward_s, 0.0)
            keep[..., RECOMPUTE_TIME] = m * again
        column = SAVED if inner else RESIDENT
        keep[..., column] = terms.saved_bytes
        here = local_bytes(self.model, tensor, source)[:, None]
        there = local_bytes(self.model, tensor, target)[None, :]
        beside = self._other_operands(link, here)
        keep[..., TRANSIENT] = _beside(terms.transient_bytes, beside)
        if link.target.kind == "operator":
            reading = self._reading(link, source, target, terms.same)
            keep[..., TRANSIENT] = np.maximum(keep[..., TRANSIENT], reading)
        alternatives = [keep]
        if terms.regather.any():
            again = keep.copy()
            seconds = keep[..., TIME] + m * terms.forward_s
            again[..., TIME] = np.where(terms.regather, seconds, np.inf)
            # What a recomputed block starts from lies there whole while that block runs backward.
            whole = self.savings.stays_whole(link)
            again[..., column] = terms.regather_saved_bytes + there * float(whole)
            regather = _beside(terms.regather_transient_bytes, beside)
            again[..., TRANSIENT] = np.maximum(keep[..., TRANSIENT], regather)
            if link.target.kind == "operator":
                need = self._gathered_again(link, source, here, there)
                again[..., TRANSIENT] = np.maximum(again[..., TRANSIENT], need)
            alternatives.append(again)
        costs = np.stack(alternatives)
        waiting = self.savings.waiting(link)
        if waiting.grows:
            # Gradients replace what was saved for them, layout for layout; a larger one takes more.
            costs[..., SAVED] += np.maximum(here - there, 0.0)
        if waiting.room is not None:
            costs[..., column] += self._unkept(link, here, there, waiting.room)
        return costs

    def _unkept(
        self, link: Conversion, here: FloatArray, there: FloatArray, room: float
    ) -> FloatArray:
        """What a tensor and its gradient take that have no other's place, while others run.

        It waits in the smaller layout, or as a view, or at the tensor's node, in the other.
        """
        ranks = math.prod(self.model.mesh_shape)
        share = room * self.model.itemsize(self.graph.tensors[link.tensor]) / ranks
        fixed = link.target.kind == "tensor" or self._is_view(link)
        least = 0.0 * here + there if fixed else np.minimum(here, there)
        return np.maximum(least - share, 0.0)

    def _other_operands(self, link: Conversion, here: FloatArray) -> FloatArray:
        """What else a reader's operands take, that may lie there while this one is converted."""
        if link.target.kind != "operator":
            return np.zeros((1, 1))
        position = int(link.target.key)
        states = self.configurations(position).input_states
        total = np.zeros((1, len(self.configurations(position))))
        for operand, read in enumerate(self.graph.operands(self.graph.operators[position])):
            if operand == link.operand or read is None:
                continue
            each = local_bytes(self.model, read, states[operand])[None, :]
            if read.kind == "activation":
                total = total + each
            elif link.source.kind == "parameter" and read.name == link.tensor:
                # Gradients of a parameter that is read twice are added up where it is kept.
                total = total + np.maximum(each, here)
        return total

    def _gathered_again(
        self, link: Conversion, source: IntArray, here: FloatArray, there: FloatArray
    ) -> FloatArray:
        """What an operator needs for which an operand is gathered again.

        It holds what was gathered beside the gradient of it, and perhaps so of other operands; and
        what it was gathered from, if that may have been gathered again too.
        """
        reader = self.terms_of_operator(int(link.target.key))
        if link.source.kind == "parameter":
            beside = there + reader.kept_bytes[None, :]
        else:
            beside = np.maximum(there, reader.kept_bytes[None, :])
        need = reader.working_bytes[None, :] + beside
        chained = link.source.kind == "tensor" or (
            link.source.kind == "operator" and self.decisions.rules[int(link.source.key)].alias
        )
        return need + here * self._may_be_gathered(source)[:, None] * float(chained)

    def _may_be_gathered(self, states: IntArray) -> npt.NDArray[np.bool_]:
        """Where a tensor is not divided over all ranks."""
        divided = [a for a, size in enumerate(self.model.mesh_shape) if size > 1]
        return np.asarray(np.any(states[:, divided] < 3, axis=1))

    def _reading(
        self,
        link: Conversion,
        source: IntArray,
        target: IntArray,
        same: npt.NDArray[np.bool_],
    ) -> FloatArray:
        """What a reader needs whose operand is not its own alone."""
        position = int(link.target.key)
        reader = self.terms_of_operator(position)
        if link.source.kind == "tensor":
            return self._sharing(link, source, target)
        if link.source.kind == "parameter":
            return self._reading_tied(link, target, same)
        if not self.savings.behind_view(link):
            return np.zeros((1, 1))
        need = reader.working_bytes + reader.kept_bytes
        return np.where(same, (need * self._may_be_gathered(target))[None, :], 0.0)

    def _sharing(self, link: Conversion, source: IntArray, target: IntArray) -> FloatArray:
        """What a reader of a shared tensor needs, with what else there is of that tensor."""
        position = int(link.target.key)
        tensor = self.graph.tensors[link.tensor]
        configs = self.configurations(position)
        results = self.graph.results(self.graph.operators[position])
        own = local_bytes(self.model, tensor, target)
        for result, states in zip(results, configs.output_states, strict=True):
            own = own + local_bytes(self.model, result, states)
        reader = self.terms_of_operator(position)
        own = np.maximum(own, reader.working_bytes)
        whole = local_bytes(self.model, tensor, source)[:, None]
        begun, again = self.savings.lies_beside(link)
        gathered = (self._may_be_gathered(source) * float(again))[:, None]
        beside = np.maximum(whole, reader.kept_bytes[None, :])
        return np.asarray(own[None, :] + whole * begun + beside * gathered)

    def _reading_tied(
        self, link: Conversion, target: IntArray, same: npt.NDArray[np.bool_]
    ) -> FloatArray:
        """What a reader of a tied parameter needs, which is gathered and scattered for each."""
        group = self.decisions.group(link.source)
        tensor = self.graph.tensors[group.names[0]]
        states, pairs = self.tied_states(group)
        terms = storage_terms(self.model, tensor, states, self.schemes)
        rows = np.array([row for row, _ in pairs])
        columns = np.array([self.schemes.index(scheme) for _, scheme in pairs])
        gathered, scattered = (
            part[rows, columns][:, None] for part in (terms.gathered_bytes, terms.scattered_bytes)
        )
        reader = self.terms_of_operator(int(link.target.key))
        own = np.maximum(reader.working_bytes, reader.copied_bytes)[None, :]
        own = own + reader.kept_bytes[None, :] * (scattered > 0)
        # Where the weight is not gathered, it is counted twice, and leaves room for its gradient.
        read = local_bytes(self.model, tensor, target)[None, :] * float(not self._is_view(link))
        own = own + np.where(gathered > 0, scattered, np.maximum(scattered - read, 0.0))
        return np.asarray(own + np.where(same, 0.0, gathered))

    def _is_view(self, link: Conversion) -> bool:
        return self.decisions.rules[int(link.target.key)].alias

    # States at the ends of links.

    def _end(self, node: Node, slot: int, side: str) -> IntArray:
        if node.kind == "operator":
            configs = self.configurations(int(node.key))
            return (configs.output_states if side == "out" else configs.input_states)[slot]
        if node.kind == "tensor":
            return self.tensor_states(str(node.key))
        states, pairs = self.tied_states(self.decisions.group(node))
        return states[[row for row, _ in pairs]]

    def _end_key(self, node: Node, slot: int, side: str) -> Hashable:
        if node.kind == "operator":
            return (side, slot, self.operator_key(int(node.key)))
        if node.kind == "tensor":
            return self._tensor_key(str(node.key))
        return ("tied", self.decisions.group(node).names)

    def tensor_signature(self, name: str) -> Hashable:
        """What tensors with equal layouts have in common."""
        t = self.graph.tensors[name]
        return (t.shape, t.dtype, t.kind, t.requires_grad, t.padded_dims)

    def _tensor_key(self, name: str) -> Hashable:
        return ("tensor", self.tensor_signature(name), self._dims[name])

    def _dims_of_shared(self) -> Mapping[str, tuple[int, ...]]:
        """Dims that may be sharded, for every tensor with a node of its own.

        Border tensors of one shape share one answer, so that equal layers have equal borders.
        """
        dims: dict[str, set[int]] = {}
        border: dict[Hashable, set[int]] = {}
        for link in self.decisions.links:
            if not isinstance(link, Conversion):
                continue
            for node, slot, side in (
                (link.source, link.output, "out"),
                (link.target, link.operand, "in"),
            ):
                if node.kind == "operator" and {link.source.kind, link.target.kind} != {"operator"}:
                    dims.setdefault(link.tensor, set()).update(
                        dims_used(self._end(node, slot, side))
                    )
        for name, found in dims.items():
            if Node("tensor", name) not in self.decisions.block_of:
                border.setdefault(self.tensor_signature(name), set()).update(found)
        return {
            name: tuple(
                sorted(
                    found
                    if Node("tensor", name) in self.decisions.block_of
                    else border[self.tensor_signature(name)]
                )
            )
            for name, found in dims.items()
        }


def _beside(needed: FloatArray, others: FloatArray) -> FloatArray:
    """What a conversion needs, where there is one, with what lies beside it."""
    return np.asarray(needed + np.where(needed > 0, others, 0.0))
