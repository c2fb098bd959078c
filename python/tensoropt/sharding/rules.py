"""The sharding rule of every operator family.

:func:`rule_for` checks an operator's attributes and shapes against its family and answers with a
:class:`~tensoropt.sharding.rule.Rule`. Families live in ``sharding.families``; adding one means a
function there, an entry in :data:`RULES`, and a case for the check by execution in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tensoropt.errors import ShardingError
from tensoropt.graph import Graph, Operator
from tensoropt.sharding.families import (
    attention,
    contraction,
    elementwise,
    experts,
    fallback,
    layout,
    lookup,
    loss,
    normalization,
    recurrent,
    reduction,
    spatial,
)
from tensoropt.sharding.families._call import Call
from tensoropt.sharding.rule import Rule

__all__ = ["RULES", "rule_for"]

RULES: Mapping[str, Callable[[Call], Rule]] = MappingProxyType(
    {
        "linear": contraction.linear,
        "matmul": contraction.matmul,
        "einsum": contraction.einsum,
        "convolution": spatial.convolution,
        "pool": spatial.pool,
        "upsample": spatial.upsample,
        "layer_norm": normalization.layer_norm,
        "group_norm": normalization.group_norm,
        "batch_norm": normalization.batch_norm,
        "softmax": normalization.softmax,
        "attention": attention.attention,
        "embedding": lookup.embedding,
        "cross_entropy": loss.cross_entropy,
        "elementwise": elementwise.elementwise,
        "dropout": elementwise.dropout,
        "reduce": reduction.reduce,
        "cumulative": reduction.cumulative,
        "view": layout.view,
        "transpose": layout.transpose,
        "expand": layout.expand,
        "slice": layout.slice_,
        "concat": layout.concat,
        "split": layout.split,
        "pad": layout.pad,
        "gather": lookup.gather,
        "index_select": lookup.index_select,
        "scatter": lookup.scatter,
        "topk": reduction.topk,
        "sort": reduction.sort,
        "one_hot": lookup.one_hot,
        "lstm": recurrent.lstm,
        "moe_dispatch": experts.moe_dispatch,
        "moe_combine": experts.moe_combine,
        "constant": fallback.constant,
        "opaque": fallback.opaque,
    }
)
"""Rule of every family of ``graph.FAMILIES``."""


def rule_for(graph: Graph, operator: Operator) -> Rule:
    """Sharding rule of an operator with the shapes it has in its graph.

    Parameters
    ----------
    graph : Graph
    operator : Operator
        An operator of the graph.

    Returns
    -------
    Rule

    Raises
    ------
    ShardingError
        If an operand or attribute is missing or does not fit the family; the message names the
        operator, the operand and the shape that was expected.

    Examples
    --------
    >>> from tensoropt.graph import GraphBuilder
    >>> b = GraphBuilder("one linear")
    >>> x = b.input("x", (8, 4))
    >>> w = b.parameter("w", (1, 4))
    >>> y = b.op("linear", (x, w), (8, 1), weight="nk")
    >>> loss = b.op("reduce", (y,), (), op="mean", dims=[0, 1], keepdim=False)
    >>> graph = b.build(loss, batch_size=8)
    >>> [(d.name, d.size, d.role) for d in rule_for(graph, graph.operators[0]).dims]
    [('m0', 8, 'free'), ('k', 4, 'reduction')]
    """
    rule = RULES.get(operator.family)
    if rule is None:
        raise ShardingError(
            f"operator '{operator.name}' has family '{operator.family}' without a sharding rule, "
            f"expected one of {sorted(RULES)} ('opaque' for an unknown operator)"
        )
    return rule(Call(graph, operator))
