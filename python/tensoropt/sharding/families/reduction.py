"""Reductions, cumulative operators and sorting along a dim."""

from __future__ import annotations

from tensoropt.sharding.families._call import Call, Dims, Labels, finish
from tensoropt.sharding.rule import Rule

__all__ = ["cumulative", "reduce", "sort", "topk"]

_ONE = (frozenset({0}),)
_SUMS = frozenset({"sum", "mean"})
# What PyTorch keeps: (operand, result).
_KEPT = {
    "max": (True, True),
    "min": (True, True),
    "var": (True, False),
    "std": (True, True),
    "norm": (True, True),
    "logsumexp": (True, True),
    "prod": (True, True),
}
_WITHOUT_GRADIENT = frozenset({"argmax", "argmin", "any", "all"})


def reduce(call: Call) -> Rule:
    """Shard summed dims as reductions; those of every other reduction are fixed.

    A mean sums its shard and divides by the global count.
    """
    call.count(1, 1)
    op = str(call.attribute("op"))
    if op not in _SUMS and op not in _KEPT and op not in _WITHOUT_GRADIENT:
        known = sorted({*_SUMS, *_KEPT, *_WITHOUT_GRADIENT})
        call.fail(f"attribute op={op!r}, expected one of {known}")
    x = call.operand(0)
    rank = len(x.shape)
    given = call.attributes.get("dims")
    reduced = {call.dim(d, rank) for d in given} if given else set(range(rank))
    keep = bool(call.attributes.get("keepdim", False))
    shape = [1 if d in reduced else s for d, s in enumerate(x.shape) if keep or d not in reduced]
    y = call.expect_result(0, shape, "the reduced shape")

    dims = Dims()
    labels: Labels = tuple(
        (dims.add(f"d{d}", s, "reduction") if op in _SUMS else None)
        if d in reduced
        else dims.add(f"d{d}", s)
        for d, s in enumerate(x.shape)
    )
    result = tuple(
        None if d in reduced else name for d, name in enumerate(labels) if keep or d not in reduced
    )
    trained = call.needs_grad(0) and y.is_floating
    keeps_operand, keeps_result = _KEPT.get(op, (False, False))
    return finish(
        call,
        dims,
        [labels],
        [result],
        linear=_ONE if op in _SUMS and y.is_floating else (),
        compute="reduction",
        flops=float(x.size),
        backward_flops=float(x.size) * trained,
        saved_inputs=call.kept(0) if trained and keeps_operand else (),
        saved_outputs=(0,) if trained and keeps_result else (),
    )


def _along(call: Call) -> tuple[Dims, Labels, int]:
    x = call.rank(0, 1, "x")
    own = call.dim(call.attribute("dim"), len(x.shape))
    dims = Dims()
    labels = tuple(None if d == own else dims.add(f"d{d}", s) for d, s in enumerate(x.shape))
    return dims, labels, own


def cumulative(call: Call) -> Rule:
    """Run a sum, product or maximum along a dim, which is fixed."""
    call.count(1, 1)
    op = call.attributes.get("op", "sum")
    if op not in ("sum", "prod", "max"):
        call.fail(f"attribute op={op!r}, expected 'sum', 'prod' or 'max'")
    x = call.operand(0)
    dims, labels, _ = _along(call)
    call.expect_result(0, x.shape, "the operand's shape")
    trained = call.needs_grad(0)
    index = (dims.extent(x.shape, labels, "int64"),) if trained and op == "max" else ()
    return finish(
        call,
        dims,
        [labels],
        [labels],
        linear=_ONE if op == "sum" else (),
        compute="reduction",
        flops=float(x.size),
        backward_flops=float(x.size) * trained * (3 if op == "prod" else 1),
        saved_inputs=call.kept(0) if trained and op != "sum" else (),
        saved_outputs=(0,) if trained and op == "prod" else (),
        saved_extra=index,
    )


def topk(call: Call) -> Rule:
    """Pick the k largest along a dim, which is fixed; their indices are kept."""
    call.count(1, 1, results=2)
    x = call.operand(0)
    dims, labels, own = _along(call)
    shape = [*x.shape]
    shape[own] = int(call.attribute("k"))
    return _ordered(call, dims, labels, shape)


def sort(call: Call) -> Rule:
    """Order along a dim, which is fixed; the indices are kept."""
    call.count(1, 1, results=2)
    dims, labels, _ = _along(call)
    return _ordered(call, dims, labels, [*call.operand(0).shape])


def _ordered(call: Call, dims: Dims, labels: Labels, shape: list[int]) -> Rule:
    for result in (0, 1):
        call.expect_result(result, shape, "values and indices")
    x = call.operand(0)
    trained = call.needs_grad(0)
    return finish(
        call,
        dims,
        [labels],
        [labels, labels],
        compute="reduction",
        flops=float(x.size),
        backward_flops=float(x.size) * trained,
        saved_outputs=(1,) if trained else (),
    )
