"""Cross-entropy over rows, and over a sharded class dim (vocabulary parallel)."""

from __future__ import annotations

from tensoropt.sharding.families._call import Call, Dims, finish
from tensoropt.sharding.rule import Collective, Extent, Rule

__all__ = ["cross_entropy"]

_FORWARD, _BACKWARD = 6.0, 3.0


def cross_entropy(call: Call) -> Rule:
    """Rows add up to the loss; classes are combined inside the operator.

    Shards of rows give pending sums. A mean divides them by the number of targets that are not
    ignored anywhere: one scalar all-reduce. Shards of classes all-reduce, for every row, the
    maximum, the sum of exponentials and the target's logit; every shard then has the loss, and the
    gradient of its own logits needs nothing more. Padded logits count as minus infinity.

    Kept: the log-probabilities in float32, as large as the logits, and the targets.
    """
    call.count(2, 2)
    logits = call.rank(0, 1, "logits")
    own = call.dim(call.attributes.get("dim", -1), len(logits.shape))
    reduction = call.attributes.get("reduction", "mean")
    if reduction not in ("mean", "sum"):
        call.fail(f"attribute reduction={reduction!r}, expected 'mean' or 'sum'")
    rows = (*logits.shape[:own], *logits.shape[own + 1 :])
    call.expect(1, rows, "targets, one class index for each row,")
    result = call.results[0]
    if result.size != 1:
        call.fail(f"result 0 '{result.name}' has shape {result.shape}, expected a scalar")

    dims = Dims()
    names = dims.each("r", rows, "reduction")
    classes = dims.add("c", logits.shape[own], "internal", maskable=True)
    labels = (*names[:own], classes, *names[own:])
    collectives = []
    if reduction == "mean":
        collectives += [
            Collective(name, "all_reduce", Extent((), 1, "float32")) for name in names if name
        ]
    if classes:
        each_row = dims.extent(rows, names, "float32")
        collectives.append(Collective(classes, "all_reduce", each_row, count=3))
    trained = call.needs_grad(0)
    return finish(
        call,
        dims,
        [labels, names],
        [(None,) * len(result.shape)],
        compute="softmax",
        flops=_FORWARD * logits.size,
        backward_flops=_BACKWARD * logits.size * trained,
        saved_inputs=call.kept(1) if trained else (),
        saved_extra=(dims.extent(logits.shape, labels, "float32"),) if trained else (),
        collectives=tuple(collectives),
    )
