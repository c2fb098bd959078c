"""Rows picked by an index: embedding, gather, index_select, scatter, one_hot.

Index dims are free. The dim that the index runs over is a reduction: a shard looks up the indices
that fall into its range and gives zero for the others, and these results add up.
"""

from __future__ import annotations

from tensoropt.sharding.families._call import Call, Dims, Labels, finish
from tensoropt.sharding.rule import Rule

__all__ = ["embedding", "gather", "index_select", "one_hot", "scatter"]


def embedding(call: Call) -> Rule:
    """``y[..., h] = weight[ids[...], h]``; the vocabulary may be padded, no id points there."""
    call.count(2, 2)
    ids = call.operand(0)
    v, h = call.expect(1, (None, None), "weight[v, h]").shape
    call.expect_result(0, (*ids.shape, h), "y[..., h]")
    dims = Dims()
    rows = dims.each("i", ids.shape)
    word = dims.add("v", v, "reduction", maskable=True)
    feature = dims.add("h", h)
    result = ids.size * h
    trained = call.needs_grad(1)
    return finish(
        call,
        dims,
        [rows, (word, feature)],
        [(*rows, feature)],
        compute="gather",
        flops=0.0,
        backward_flops=float(result) * trained,
        saved_inputs=call.kept(0) if trained else (),
    )


def gather(call: Call) -> Rule:
    """``torch.gather``: along ``dim`` the index picks, the other dims run along with the operand.

    Dims along which the index is shorter than the operand are fixed. PyTorch keeps the operand,
    though only its shape matters, and the index.
    """
    call.count(2, 2)
    x = call.rank(0, 1, "x")
    dim = call.dim(call.attribute("dim"), len(x.shape))
    index = call.expect(1, (None,) * len(x.shape), "an index of x's rank")
    for d, (i, s) in enumerate(zip(index.shape, x.shape, strict=True)):
        if d != dim and i > s:
            call.fail(
                f"operand 1 '{index.name}' has shape {index.shape}, expected at most {x.shape} "
                f"outside dim {dim}"
            )
    call.expect_result(0, index.shape, "the index's shape")
    dims = Dims()
    shared = tuple(
        None if d == dim or i != s else dims.add(f"d{d}", s)
        for d, (i, s) in enumerate(zip(index.shape, x.shape, strict=True))
    )
    picked, source = dims.add("i", index.shape[dim]), dims.add("v", x.shape[dim], "reduction")
    labels = _replaced(shared, dim, picked)
    return finish(
        call,
        dims,
        [_replaced(shared, dim, source), labels],
        [labels],
        linear=(frozenset({0}),),
        compute="gather",
        backward_flops=float(index.size) * call.needs_grad(0),
        saved_inputs=call.kept(0, 1) if call.needs_grad(0) else (),
    )


def _replaced(labels: Labels, dim: int, name: str | None) -> Labels:
    return (*labels[:dim], name, *labels[dim + 1 :])


def index_select(call: Call) -> Rule:
    """Rows of the operand picked along ``dim``; the index's dims take its place."""
    call.count(2, 2)
    x = call.rank(0, 1, "x")
    dim = call.dim(call.attribute("dim"), len(x.shape))
    index = call.operand(1)
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    y = call.expect_result(0, shape, "the picked rows")
    dims = Dims()
    kept = tuple(None if d == dim else dims.add(f"d{d}", s) for d, s in enumerate(x.shape))
    picked = dims.each("i", index.shape)
    source = dims.add("v", x.shape[dim], "reduction")
    return finish(
        call,
        dims,
        [_replaced(kept, dim, source), picked],
        [(*kept[:dim], *picked, *kept[dim + 1 :])],
        linear=(frozenset({0}),),
        compute="gather",
        backward_flops=float(y.size) * call.needs_grad(0),
        saved_inputs=call.kept(1) if call.needs_grad(0) else (),
    )


def scatter(call: Call) -> Rule:
    """``torch.scatter``: ``src`` written to (or added at) the indexed places of the operand.

    Along ``dim`` a shard of the operand takes what falls into its range; index and source are
    whole there. Other dims run along where all three agree and are fixed where they do not.
    """
    call.count(3, 3)
    x = call.rank(0, 1, "x")
    rank = len(x.shape)
    dim = call.dim(call.attribute("dim"), rank)
    mode = call.attributes.get("reduce")
    if mode not in (None, "add"):
        call.fail(f"attribute reduce={mode!r}, expected None or 'add'")
    index = call.expect(1, (None,) * rank, "an index of x's rank")
    source = call.expect(2, (None,) * rank, "a source of x's rank")
    call.expect_result(0, x.shape, "the operand's shape")
    dims = Dims()
    shared = tuple(
        dims.add(f"d{d}", s) if d != dim and s == index.shape[d] == source.shape[d] else None
        for d, s in enumerate(x.shape)
    )
    target = _replaced(shared, dim, dims.add("v", x.shape[dim]))
    grads = call.needs_grad(0) + call.needs_grad(2)
    # What is added needs no index to hand the operand's gradient on; what is overwritten does.
    kept = call.needs_grad(2) or (call.needs_grad(0) and mode is None)
    return finish(
        call,
        dims,
        [target, shared, shared],
        [target],
        linear=(frozenset({0, 2}),),
        compute="gather",
        flops=float(index.size) if mode else 0.0,
        backward_flops=float(index.size) * grads,
        saved_inputs=call.kept(1) if kept else (),
    )


def one_hot(call: Call) -> Rule:
    """``y[..., c]`` is 1 where the index is c; the class dim is fixed."""
    call.count(1, 1)
    index = call.operand(0)
    call.expect_result(0, (*index.shape, int(call.attribute("classes"))), "y[..., classes]")
    dims = Dims()
    rows = dims.each("i", index.shape)
    return finish(call, dims, [rows], [(*rows, None)], compute="gather")
