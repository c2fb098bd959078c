"""Normalisation and softmax: layer norm, RMS norm, group norm, batch norm, softmax.

Dims that an operator takes statistics over are fixed, except for batch norm: there the sums of all
shards are added inside the operator, forward and backward.
"""

from __future__ import annotations

from tensoropt.sharding.families._call import Call, Dims, Labels, finish
from tensoropt.sharding.rule import Collective, Rule

__all__ = ["batch_norm", "group_norm", "layer_norm", "softmax"]

# Adds, multiplies and the like for each element, forward and backward. Only the order matters:
# these operators are bound by memory traffic.
_FORWARD, _BACKWARD = 8.0, 12.0
_SOFTMAX_FORWARD, _SOFTMAX_BACKWARD = 5.0, 4.0


def layer_norm(call: Call) -> Rule:
    """Leading dims are free, the trailing normalised ones fixed.

    Kept: the operand and, for every row, mean and reciprocal deviation (RMS norm: only the
    latter) in float32.
    """
    call.count(1, 3)
    x = call.operand(0)
    trailing = call.attribute("dims")
    if not isinstance(trailing, int) or not 1 <= trailing <= len(x.shape):
        call.fail(f"has dims {trailing!r}, expected how many of {x.shape} are normalised")
    kind = call.attributes.get("kind", "layer")
    if kind not in ("layer", "rms"):
        call.fail(f"attribute kind={kind!r}, expected 'layer' or 'rms'")
    lead, normalised = x.shape[:-trailing], x.shape[-trailing:]
    for position in (1, 2):
        if call.has(position):
            call.expect(position, normalised, "the normalised shape")
    call.expect_result(0, x.shape, "the operand's shape")

    dims = Dims()
    rows = dims.each("m", lead)
    labels = (*rows, *[None] * trailing)
    fixed: Labels = (None,) * trailing
    trained = call.any_grad()
    statistics = dims.extent(lead, rows, "float32", 2 if kind == "layer" else 1)
    return finish(
        call,
        dims,
        [labels, fixed, fixed],
        [labels],
        compute="normalization",
        flops=_FORWARD * x.size,
        backward_flops=_BACKWARD * x.size * trained,
        saved_inputs=call.kept(0) if trained else (),
        saved_extra=(statistics,) if trained else (),
    )


def group_norm(call: Call) -> Rule:
    """Shard the batch, and channels by whole groups."""
    call.count(1, 3)
    x = call.rank(0, 2, "x[b, c, *sp]")
    b, c, *image = x.shape
    groups = call.attribute("groups")
    if not isinstance(groups, int) or groups < 1 or c % groups:
        call.fail(f"has groups {groups!r}, expected a divisor of the {c} channels")
    for position in (1, 2):
        if call.has(position):
            call.expect(position, (c,), "per-channel [c]")
    call.expect_result(0, x.shape, "the operand's shape")

    dims = Dims()
    batch, group = dims.add("b", b), dims.add("g", groups)
    labels = (batch, group, *[None] * len(image))
    trained = call.any_grad()
    statistics = dims.extent((b, groups), (batch, group), "float32", 2)
    return finish(
        call,
        dims,
        [labels, (group,), (group,)],
        [labels],
        compute="normalization",
        flops=_FORWARD * x.size,
        backward_flops=_BACKWARD * x.size * trained,
        saved_inputs=call.kept(0) if trained else (),
        saved_extra=(statistics,) if trained else (),
    )


def batch_norm(call: Call) -> Rule:
    """Channels are free; batch and image are internal.

    Each shard's sums and sums of squares are all-reduced forward, and the two sums of the operand's
    gradient backward. Shards are equally large, so no count travels.
    """
    call.count(1, 5)
    x = call.rank(0, 2, "x[b, c, *sp]")
    b, c, *image = x.shape
    for position in range(1, 5):
        if call.has(position):
            call.expect(position, (c,), "per-channel [c]")
    call.expect_result(0, x.shape, "the operand's shape")

    dims = Dims()
    batch = dims.add("b", b, "internal")
    channel = dims.add("c", c)
    labels = (batch, channel, *dims.each("s", image, "internal"))
    sums = dims.extent((c,), (channel,), "float32", 2)
    trained = call.any_grad()
    collectives = []
    for name in (n for n in labels if n not in (None, channel)):
        assert name is not None
        collectives.append(Collective(name, "all_reduce", sums, "forward"))
        if call.needs_grad(0):
            collectives.append(Collective(name, "all_reduce", sums, "backward"))
    return finish(
        call,
        dims,
        [labels, *[(channel,)] * 4],
        [labels],
        compute="normalization",
        flops=_FORWARD * x.size,
        backward_flops=_BACKWARD * x.size * trained,
        saved_inputs=call.kept(0) if trained else (),
        saved_extra=(sums,) if trained else (),
        collectives=tuple(collectives),
    )


def softmax(call: Call) -> Rule:
    """Every dim but its own is free; the result is kept."""
    call.count(1, 1)
    x = call.rank(0, 1, "x")
    own = call.dim(call.attribute("dim"), len(x.shape))
    call.expect_result(0, x.shape, "the operand's shape")
    dims = Dims()
    labels = tuple(None if d == own else dims.add(f"d{d}", s) for d, s in enumerate(x.shape))
    trained = call.any_grad()
    return finish(
        call,
        dims,
        [labels],
        [labels],
        compute="softmax",
        flops=_SOFTMAX_FORWARD * x.size,
        backward_flops=_SOFTMAX_BACKWARD * x.size * trained,
        saved_outputs=(0,) if trained else (),
    )
