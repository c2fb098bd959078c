"""Graph-to-graph passes that every importer runs.

A traced model says more than a strategy needs to know, and some of it in a form that forbids good
strategies: a linear layer on flattened tokens cannot be sharded along the sequence, one fused
projection for query, key and value cannot be sharded by heads without a redistribution. The passes
rewrite such forms into equal ones (same loss, same gradients), drop what the loss does not need,
and mark dims that may be padded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tensoropt.graph import Graph, Operator
from tensoropt.importing.draft import Draft
from tensoropt.importing.experts import fuse_experts
from tensoropt.importing.fusions import (
    drop_parameter_casts,
    fuse_gelu,
    fuse_grouped_heads,
    fuse_rms_norm,
)
from tensoropt.importing.moves import compose_transposes, compose_views, regroup, same_gradient
from tensoropt.importing.slicing import split_fused_projections

__all__ = ["mark_vocabulary", "simplify"]

Pass = Callable[[Draft], None]

_ROUNDS = 50


def simplify(graph: Graph) -> Graph:
    """Rewrite a freshly imported graph into the form that the sharding rules like best.

    Parameters
    ----------
    graph : Graph

    Returns
    -------
    Graph
        Computes the same loss and gradients. Unused parameters are gone and noted; blocks are
        dropped.
    """
    draft = Draft(graph)
    draft.commit()
    moves = (compose_views, compose_transposes, regroup)
    for group in (
        moves,
        (fuse_experts, fuse_rms_norm, fuse_gelu, fuse_grouped_heads, drop_parameter_casts),
        (unflatten_cross_entropy, sink_flattening, *moves),
        (split_fused_projections,),
        (sink_flattening, *moves),
    ):
        _until_stable(draft, group)
    result = draft.graph()
    kept = {t.source for t in result.parameters}
    unused = sorted(t.source or t.name for t in graph.parameters if t.source not in kept)
    if unused:
        shown = ", ".join(unused[:3]) + (", ..." if len(unused) > 3 else "")
        text = f"parameters that do not reach the loss are left out ({len(unused)}): {shown}"
        result = replace(result, notes=(*result.notes, text))
    return mark_vocabulary(result)


def _until_stable(draft: Draft, passes: tuple[Pass, ...]) -> None:
    for _ in range(_ROUNDS):
        changed = False
        for each in passes:
            each(draft)
            changed = draft.commit() or changed
        if not changed:
            return


@dataclass(frozen=True)
class _Rows:
    """What a view flattens: the tensor, and its first dims that became one."""

    source: str
    lead: tuple[int, ...]


def flattened_rows(draft: Draft, name: str) -> _Rows | None:
    """Where (r, ...) comes from, if a view made ``r`` by merging the first dims of a tensor.

    The view may also have merged all that follows into one dim, as attention's heads are.
    """
    view = draft.producer(name, "view")
    after = draft.shape(name)
    if view is None or len(after) < 2:
        return None
    (source,) = view.inputs
    before = draft.shape(source)
    if not same_gradient(draft, source, name):
        return None
    for count in range(2, len(before)):
        lead = before[:count]
        if math.prod(lead) == after[0] and math.prod(lead[:-1]) != after[0]:
            return _Rows(source, lead) if len(after) == 2 or before[count:] == after[1:] else None
    return None


def _widened(draft: Draft, like: Operator, rows: _Rows, name: str) -> tuple[str, list[Operator]]:
    """The rows with their dims apart, and the view that this may need."""
    shape = (*rows.lead, *draft.shape(name)[1:])
    if draft.shape(rows.source) == shape:
        return rows.source, []
    view = draft.result(like, "view", (rows.source,), shape, like_output=name)
    return view.outputs[0], [view]


def sink_flattening(draft: Draft) -> None:
    """Let row-wise operators act on (batch, token, ...) instead of flattened rows.

    ``linear(view(x))`` becomes ``view(linear(x))``, likewise for elementwise operators, dropout,
    normalisation and softmax of other dims, and batched products; the views then meet others and
    vanish. One sweep follows a chain of such operators to its end.
    """
    sunk: dict[str, _Rows] = {}
    for operator in draft.operators:
        rows = _row_operands(draft, operator)
        if not rows or not draft.untouched([operator]):
            continue
        origins = {name: sunk.get(name) or flattened_rows(draft, name) for name in rows}
        found = {origin.lead for origin in origins.values() if origin is not None}
        if len(found) != 1 or None in origins.values():
            continue
        lead = found.pop()
        inputs, made = [], []
        for name in operator.inputs:
            origin = origins.get(name)
            if origin is not None:
                name, views = _widened(draft, operator, origin, name)
                made += views
            inputs.append(name)
        (output,) = operator.outputs
        attributes = dict(operator.attributes)
        if operator.family == "softmax":
            attributes["dim"] += len(lead) - 1
        shape = (*lead, *draft.shape(output)[1:])
        inner = draft.result(
            operator, operator.family, inputs, shape, like_output=output, **attributes
        )
        view = draft.operator(operator, "view", inner.outputs, operator.outputs)
        draft.replace(operator, *made, inner, view)
        sunk[output] = _Rows(inner.outputs[0], lead)


def _row_operands(draft: Draft, operator: Operator) -> list[str]:
    """The operands whose rows correspond to those of the result, if rows are independent."""
    if len(operator.outputs) != 1 or len(draft.shape(operator.outputs[0])) < 2:
        return []
    shape = draft.shape(operator.outputs[0])
    family, attributes = operator.family, operator.attributes
    if family in ("linear", "dropout"):
        return [operator.inputs[0]]
    if family == "layer_norm":
        return [operator.inputs[0]] if attributes["dims"] < len(shape) else []
    if family == "softmax":
        return [operator.inputs[0]] if attributes["dim"] > 0 else []
    if family == "matmul":
        batched = all(len(draft.shape(name)) == 3 for name in operator.inputs)
        return list(dict.fromkeys(operator.inputs)) if batched and len(shape) == 3 else []
    if family == "elementwise" and attributes["op"] not in ("tril", "triu"):
        # Other operands broadcast to the rows whatever their number.
        return [
            name
            for name in dict.fromkeys(operator.inputs)
            if name and len(draft.shape(name)) == len(shape) and draft.shape(name)[0] == shape[0]
        ]
    return []


def unflatten_cross_entropy(draft: Draft) -> None:
    """Take the loss on (batch, token, class) logits instead of flattened rows."""
    for operator in draft.operators:
        if operator.family != "cross_entropy" or operator.attributes["dim"] != 1:
            continue
        logits, target = operator.inputs
        origin = flattened_rows(draft, logits)
        if origin is None or len(draft.shape(logits)) != 2 or len(draft.shape(target)) != 1:
            continue
        logits, made = _widened(draft, operator, origin, logits)
        view = draft.result(operator, "view", (target,), origin.lead, like_output=target)
        attributes = {**operator.attributes, "dim": len(origin.lead)}
        changed = replace(operator, inputs=(logits, view.outputs[0]), attributes=attributes)
        draft.replace(operator, *made, view, changed)


_KEEPS_LAST = frozenset({"elementwise", "dropout", "view", "transpose"})


def mark_vocabulary(graph: Graph) -> Graph:
    """Mark the dims that may be padded: vocabularies.

    These are dim 0 of every embedding weight, and the class dim of cross-entropy logits back to the
    weight and bias of the linear layer that makes them.

    Parameters
    ----------
    graph : Graph

    Returns
    -------
    Graph
        The same graph with ``padded_dims`` set.
    """
    made = {name: operator for operator in graph.operators for name in operator.outputs}
    padded: dict[str, set[int]] = {}
    for operator in graph.operators:
        if operator.family == "embedding" and graph.tensors[operator.inputs[1]].kind == "parameter":
            padded.setdefault(operator.inputs[1], set()).add(0)
        elif operator.family == "cross_entropy":
            _mark_classes(graph, made, operator, padded)
    if not padded:
        return graph
    tensors = dict(graph.tensors)
    for name, dims in padded.items():
        merged = tuple(sorted(dims.union(tensors[name].padded_dims)))
        tensors[name] = replace(tensors[name], padded_dims=merged)
    return replace(graph, tensors=tensors)


def _mark_classes(
    graph: Graph, made: dict[str, Operator], loss: Operator, padded: dict[str, set[int]]
) -> None:
    """Follow the class dim from the loss to the linear layer, through what keeps it in place."""
    name, dim = loss.inputs[0], loss.attributes["dim"]
    trail = {name: dim}
    while (operator := made.get(name)) is not None and operator.family != "linear":
        shape = graph.tensors[name].shape
        source = operator.inputs[0]
        before = graph.tensors[source].shape
        if operator.family == "transpose":
            dim = operator.attributes["perm"][dim]
        elif operator.family == "view":
            if dim != len(shape) - 1 or not before or before[-1] != shape[-1]:
                return
            dim = len(before) - 1
        elif operator.family not in _KEEPS_LAST or before != shape:
            return
        name = source
        trail[name] = dim
    if operator is None or dim != len(graph.tensors[name].shape) - 1:
        return
    weight, *bias = operator.inputs[1:]
    trail[weight] = 0 if operator.attributes["weight"] == "nk" else 1
    if bias:
        trail[bias[0]] = 0
    for each, position in trail.items():
        padded.setdefault(each, set()).add(position)
