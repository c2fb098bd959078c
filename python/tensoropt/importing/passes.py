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
from tensoropt.importing.fusions import fuse_gelu, fuse_grouped_heads, fuse_rms_norm
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
    for group in (
        (compose_views, compose_transposes),
        (fuse_experts, fuse_rms_norm, fuse_gelu, fuse_grouped_heads),
        (unflatten_cross_entropy, sink_flattening, compose_views, compose_transposes),
        (split_fused_projections,),
        (compose_views, compose_transposes),
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


def compose_views(draft: Draft) -> None:
    """Read a view of a view from its origin; remove views that change nothing."""
    for operator in draft.operators:
        if operator.family != "view" or not draft.untouched([operator]):
            continue
        (source,), (output,) = operator.inputs, operator.outputs
        if not _same_gradient(draft, source, output):
            continue
        if draft.shape(source) == draft.shape(output):
            draft.rename(output, source)
            draft.replace(operator)
            continue
        below = draft.producer(source, "view")
        if below is not None and _same_gradient(draft, below.inputs[0], source):
            draft.replace(operator, replace(operator, inputs=below.inputs))


def compose_transposes(draft: Draft) -> None:
    """Merge a transpose of a transpose; remove one that keeps the order."""
    for operator in draft.operators:
        if operator.family != "transpose" or not draft.untouched([operator]):
            continue
        perm = list(operator.attributes["perm"])
        if perm == sorted(perm):
            draft.rename(operator.outputs[0], operator.inputs[0])
            draft.replace(operator)
            continue
        below = draft.producer(operator.inputs[0], "transpose")
        if below is not None:
            first = below.attributes["perm"]
            merged = {**operator.attributes, "perm": [first[p] for p in perm]}
            draft.replace(operator, replace(operator, inputs=below.inputs, attributes=merged))


def _same_gradient(draft: Draft, before: str, after: str) -> bool:
    """Whether a view passes gradients on (a detached one does not)."""
    return draft.tensors[before].requires_grad == draft.tensors[after].requires_grad


@dataclass(frozen=True)
class _Rows:
    """What a view flattens to rows: the tensor, and the dims that became the row dim."""

    source: str
    lead: tuple[int, ...]


def flattened_rows(draft: Draft, name: str) -> _Rows | None:
    """Where rows (r, c) come from, if a view made ``r`` by merging the first dims of a tensor."""
    view = draft.producer(name, "view")
    if view is None or len(draft.shape(name)) != 2:
        return None
    (source,) = view.inputs
    before, rows = draft.shape(source), draft.shape(name)[0]
    if not _same_gradient(draft, source, name):
        return None
    for count in range(2, len(before)):
        if math.prod(before[:count]) == rows and math.prod(before[: count - 1]) != rows:
            return _Rows(source, before[:count])
    return None


def _widened(draft: Draft, like: Operator, rows: _Rows, name: str) -> tuple[str, list[Operator]]:
    """The rows with their dims apart, and the view that this may need."""
    shape = (*rows.lead, draft.shape(name)[-1])
    if draft.shape(rows.source) == shape:
        return rows.source, []
    view = draft.result(like, "view", (rows.source,), shape)
    return view.outputs[0], [view]


def sink_flattening(draft: Draft) -> None:
    """Let row-wise operators act on (batch, token, feature) instead of flattened rows.

    ``linear(view(x))`` becomes ``view(linear(x))``, likewise for elementwise operators, dropout and
    normalisation of the last dim; the views then meet others and vanish.
    """
    for operator in draft.operators:
        if not draft.untouched([operator]) or not _row_wise(draft, operator):
            continue
        rows = [name for name in operator.inputs if name and _has_rows(draft, name)]
        origins = {name: flattened_rows(draft, name) for name in rows}
        leads = {origin.lead for origin in origins.values() if origin is not None}
        if len(leads) != 1 or None in origins.values():
            continue
        inputs, made = [], []
        for name in operator.inputs:
            origin = origins.get(name)
            if origin is not None:
                name, views = _widened(draft, operator, origin, name)
                made += views
            inputs.append(name)
        (output,) = operator.outputs
        shape = (*leads.pop(), draft.shape(output)[-1])
        inner = draft.result(operator, operator.family, inputs, shape, like_output=output)
        attributes = dict(operator.attributes)
        if operator.family == "softmax":
            attributes["dim"] = len(shape) - 1
        inner = replace(inner, attributes=attributes)
        view = draft.operator(operator, "view", inner.outputs, operator.outputs)
        draft.replace(operator, *made, inner, view)


def _row_wise(draft: Draft, operator: Operator) -> bool:
    if operator.family in ("linear", "dropout"):
        return len(draft.shape(operator.outputs[0])) == 2
    if operator.family == "layer_norm":
        return operator.attributes["dims"] == 1 and len(draft.shape(operator.outputs[0])) == 2
    if operator.family == "softmax":
        return operator.attributes["dim"] == 1 and len(draft.shape(operator.outputs[0])) == 2
    return operator.family == "elementwise" and len(draft.shape(operator.outputs[0])) == 2


def _has_rows(draft: Draft, name: str) -> bool:
    tensor = draft.tensors[name]
    return tensor.kind != "parameter" and len(tensor.shape) == 2


def unflatten_cross_entropy(draft: Draft) -> None:
    """Take the loss on (batch, token, class) logits instead of flattened rows."""
    for operator in draft.operators:
        if operator.family != "cross_entropy" or operator.attributes["dim"] != 1:
            continue
        logits, target = operator.inputs
        origin = flattened_rows(draft, logits)
        if origin is None or len(draft.shape(target)) != 1:
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
