"""Fused attention: nothing of size queries times keys is ever stored.

Work is counted as a flash kernel does it: a causal mask halves it (papers that follow Megatron or
PaLM count the full square), and the backward pass, which makes the scores again, costs 2.5 times
the forward pass: five products instead of two.
"""

from __future__ import annotations

from tensoropt.sharding.families._call import Call, Dims, Labels, finish
from tensoropt.sharding.rule import Rule

__all__ = ["attention"]

_BACKWARD = 2.5


def attention(call: Call) -> Rule:
    """``softmax(scale q k' + mask) v`` for every head.

    Batch, key-value heads and queries are free. Query heads merge key-value head and group, so the
    key-value head is their leading factor; the group can only be sharded where there is a single
    key-value head. Keys and the query-key feature are fixed. So is the value feature: its shards
    would all make the same scores, and that work would not shrink.

    Kept: queries, keys, values, the result, and the log of the sum of exponentials of every query
    in float32.
    """
    call.count(3, 4)
    b, h, s, d = call.expect(0, (None,) * 4, "q[b, h, s, d]").shape
    hk, t = call.expect(1, (b, None, None, d), "k[b, hk, t, d]").shape[1:3]
    e = call.expect(2, (b, hk, t, None), "v[b, hk, t, e]").shape[3]
    if hk == 0 or h % hk:
        call.fail(f"has {h} query heads and {hk} key-value heads, expected a multiple")
    call.expect_result(0, (b, h, s, e), "y[b, h, s, e]")

    dims = Dims()
    batch, head = dims.add("b", b), dims.add("hk", hk)
    group = dims.add("group", h) if hk == 1 else None
    query = dims.add("s", s)
    rows = (batch, head or group, query)
    causal = bool(call.attributes.get("causal", False))
    work = 2.0 * b * h * _pairs(s, t, causal) * (d + e)
    trained = call.any_grad()
    operands = (0, 1, 2, 3)
    return finish(
        call,
        dims,
        [(*rows, None), (batch, head, None, None), (batch, head, None, None), _mask(call, rows)],
        [(*rows, None)],
        compute="attention",
        flops=work,
        backward_flops=_BACKWARD * work * trained,
        saved_inputs=call.kept(*operands) if trained else (),
        saved_outputs=(0,) if trained else (),
        saved_extra=(dims.extent((b, h, s), rows, "float32"),) if trained else (),
        note=(
            "causal attention sharded over queries: later shards have more work, which is costed "
            "as if it were spread evenly"
            if causal and query
            else ""
        ),
    )


def _pairs(s: int, t: int, causal: bool) -> float:
    """How many scores of one head are needed; query i sees the keys up to i."""
    if not causal:
        return float(s * t)
    seen = min(s, t)
    return seen * seen / 2 + (s - seen) * t


def _mask(call: Call, rows: Labels) -> Labels:
    """Labels of the mask, which broadcasts to (b, h, s, t)."""
    if not call.has(3):
        return ()
    mask = call.operand(3)
    b, h, s, _ = call.operand(0).shape
    full = (b, h, s, call.operand(1).shape[2])
    rank = len(mask.shape)
    if rank > 4 or any(m not in (1, f) for m, f in zip(mask.shape, full[4 - rank :], strict=True)):
        call.fail(
            f"operand 3 '{mask.name}' has shape {mask.shape}, expected a mask that broadcasts to "
            f"{full}"
        )
    labels = (*rows, None)[4 - rank :]
    return tuple(name if size > 1 else None for size, name in zip(mask.shape, labels, strict=True))
