"""Mixture of experts: tokens dispatched to experts' slots, and their results combined.

Routing is taken to be balanced: every expert gets ``c = ceil(t * k / e)`` slots, and every shard of
tokens fills the same share of each expert's slots. So tokens are sharded together with slots, and
neither operator communicates. Expert parallelism follows from the experts' own products: those want
their operand sharded over experts, and the way from slots to experts is an all-to-all, forward and
backward, like any other change of the sharded dim.
"""

from __future__ import annotations

import math

from tensoropt.graph import Tensor
from tensoropt.sharding.families._call import Call, Dims, finish
from tensoropt.sharding.rule import Rule

__all__ = ["moe_combine", "moe_dispatch"]

_BALANCED = "routing is assumed to be balanced: every expert gets equally many tokens"


def _check_slots(call: Call, tokens: int, chosen: int, experts: int, slots: int) -> None:
    expected = -(-tokens * chosen // experts)
    if slots != expected:
        call.fail(
            f"has {slots} slots for each of {experts} experts, expected "
            f"ceil({tokens} * {chosen} / {experts}) = {expected}"
        )


def _routed(call: Call, tokens: Tensor) -> tuple[int, int]:
    """Tokens and the number of experts chosen for each."""
    indices = call.expect(1, (tokens.shape[0], None), "indices[t, k]")
    return indices.shape[0], indices.shape[1]


def moe_dispatch(call: Call) -> Rule:
    """``y[e, c, h]``: every token goes to a slot of each expert chosen for it.

    Tokens together with slots, and features, are free. Experts are too: a rank that has all tokens
    fills the slots of its own experts.
    """
    call.count(2, 2)
    x = call.expect(0, (None, None), "x[t, h]")
    h = x.shape[1]
    t, k = _routed(call, x)
    y = call.expect_result(0, (call.attributes.get("experts"), None, h), "y[e, c, h]")
    e, c, _ = y.shape
    _check_slots(call, t, k, e, c)

    dims = Dims()
    token, expert = dims.add("t", math.gcd(t, c)), dims.add("e", e)
    feature = dims.add("h", h)
    trained = call.needs_grad(0)
    return finish(
        call,
        dims,
        [(token, feature), (token, None)],
        [(expert, token, feature)],
        linear=(frozenset({0}),),
        compute="gather",
        backward_flops=float(t * k * h) * trained,
        saved_inputs=call.kept(1) if trained else (),
        note=_BALANCED,
    )


def moe_combine(call: Call) -> Rule:
    """``x[t, h]``: the results of a token's experts, weighted and added.

    Experts are a reduction: a rank adds what its own experts made.
    """
    call.count(3, 3)
    y = call.expect(0, (None, None, None), "y[e, c, h]")
    e, c, h = y.shape
    x = call.expect_result(0, (None, h), "x[t, h]")
    t, k = _routed(call, x)
    call.expect(2, (t, k), "weights[t, k]")
    _check_slots(call, t, k, e, c)

    dims = Dims()
    token, expert = dims.add("t", math.gcd(t, c)), dims.add("e", e, "reduction")
    feature = dims.add("h", h)
    work = 2.0 * t * k * h
    trained = call.any_grad(0, 2)
    kept = [1] * trained + [0] * call.needs_grad(2) + [2] * call.needs_grad(0)
    return finish(
        call,
        dims,
        [(expert, token, feature), (token, None), (token, None)],
        [(token, feature)],
        linear=(frozenset({0}), frozenset({2})),
        compute="gather",
        flops=work,
        backward_flops=work * (call.needs_grad(0) + call.needs_grad(2)),
        saved_inputs=call.kept(*kept),
        note=_BALANCED,
    )
