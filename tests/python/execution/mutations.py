"""Wrong rules, made from right ones: the check by execution must refuse every one of them.

What it does not refuse is either a configuration that the rules could offer and do not, listed in
:data:`LEGAL` with the reason, or a check that cannot fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tensoropt.graph import Graph
from tensoropt.sharding.rule import NamedDim, Rule
from tensoropt.sharding.rules import rule_for

from .harness import Case, check

MESH = (2,)
NEW = "new"

LEGAL = {
    ("attention", "dim 3 of operand 2"): "the value feature: its shards would repeat all scores",
}


def survivors(case: Case) -> tuple[int, list[str]]:
    """How many wrong rules a case has, and those that running it on shards does not refuse."""
    graph = case.graph(case.reference(case.make()))
    right = rule_for(graph, graph.operators[0])
    tried, found = 0, []
    for name, wrong in (
        *_freed(right, graph),
        *_roles(right),
        *_sums(right, graph),
        *_facts(right),
    ):
        if any(key == case.family and name.startswith(what) for key, what in LEGAL):
            continue
        tried += 1
        outcome = check(case, lambda _, wrong=wrong: wrong, (MESH,))  # type: ignore[misc]
        if not outcome.failures:
            found.append(f"{case.name}: {name}")
    return tried, found


def _freed(rule: Rule, graph: Graph) -> Iterator[tuple[str, Rule]]:
    """Every fixed dim called free or a reduction, in the operand alone or in the results too."""
    operator = graph.operators[0]
    tensors = [*zip(rule.inputs, graph.operands(operator), strict=True)]
    for position, (labels, tensor) in enumerate(tensors):
        for dim, label in enumerate(labels):
            if (
                label is not None
                or tensor is None
                or tensor.shape[dim] % 2
                or not tensor.shape[dim]
            ):
                continue
            inputs = _relabelled(rule.inputs, dim, {position})
            for role in ("free", "reduction"):
                for kept in (False, True):
                    outputs = rule.outputs
                    if kept:
                        results = range(len(outputs))
                        outputs = _relabelled(outputs, dim, set(results))
                        if outputs == rule.outputs:
                            continue
                    dims = (*rule.dims, NamedDim(NEW, tensor.shape[dim], role))
                    text = f"dim {dim} of operand {position} {role}{' and kept' if kept else ''}"
                    yield text, replace(rule, dims=dims, inputs=inputs, outputs=outputs)


def _relabelled(
    labels: tuple[tuple[str | None, ...], ...], dim: int, positions: set[int]
) -> tuple[tuple[str | None, ...], ...]:
    return tuple(
        (*own[:dim], NEW, *own[dim + 1 :])
        if position in positions and dim < len(own) and own[dim] is None
        else own
        for position, own in enumerate(labels)
    )


def _roles(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """Reductions called free: results are then not pending sums."""
    for index, dim in enumerate(rule.dims):
        if dim.role == "reduction":
            dims = [*rule.dims]
            dims[index] = replace(dim, role="free")
            yield f"reduction '{dim.name}' called free", replace(rule, dims=tuple(dims))


def _sums(rule: Rule, graph: Graph) -> Iterator[tuple[str, Rule]]:
    """Pending sums where they may not pass: sets with an operand less, and operands in no set."""
    for index, operands in enumerate(rule.linear):
        for dropped in sorted(operands) if len(operands) > 1 else ():
            sets = [*rule.linear]
            sets[index] = operands - {dropped}
            yield f"pending sum without operand {dropped}", replace(rule, linear=tuple(sets))
    if graph.operators[0].family not in ("elementwise", "softmax", "reduce", "pool"):
        return  # products are linear in each operand, which most rules do not offer
    known = frozenset().union(*rule.linear)
    for position, tensor in enumerate(graph.operands(graph.operators[0])):
        if position not in known and tensor is not None and tensor.is_floating:
            sets = [*rule.linear, frozenset({position})]
            yield f"pending sum in operand {position}", replace(rule, linear=tuple(sets))


def _facts(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """A bias that every rank adds, collectives that are missing or too many."""
    if rule.bias is not None and any(d.role == "reduction" for d in rule.dims):
        yield "no bias", replace(rule, bias=None)
    for index, collective in enumerate(rule.collectives):
        left = (*rule.collectives[:index], *rule.collectives[index + 1 :])
        yield f"no {collective.phase} collective {index}", replace(rule, collectives=left)
        extent = replace(collective.extent, constant=collective.extent.constant + 1)
        changed = (*left, replace(collective, extent=extent))
        yield f"larger collective {index}", replace(rule, collectives=changed)
