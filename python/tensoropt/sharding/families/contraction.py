"""Sums of products: linear, matmul, einsum.

Row, column and batch dims are free, the contracted dim is a reduction: its shards are products of
slices that add up, so the result is a pending sum.
"""

from __future__ import annotations

import math
import string

from tensoropt.sharding.families._call import Call, Dims, Labels, finish
from tensoropt.sharding.rule import Rule

__all__ = ["einsum", "linear", "matmul"]


def linear(call: Call) -> Rule:
    """``y[..., n] = x[..., k] w + bias[n]``."""
    call.count(2, 3)
    x = call.rank(0, 1, "x[..., k]")
    layout = call.attributes.get("weight", "nk")
    if layout not in ("nk", "kn"):
        call.fail(f"attribute weight={layout!r}, expected 'nk' or 'kn'")
    *lead, k = x.shape
    shape = (None, k) if layout == "nk" else (k, None)
    weight = call.expect(1, shape, f"weight '{layout}'")
    n = weight.shape[layout.index("n")]
    if call.has(2):
        call.expect(2, (n,), "bias[n]")
    call.expect_result(0, (*lead, n), "y[..., n]")

    dims = Dims()
    rows = dims.each("m", lead)
    inner = dims.add("k", k, "reduction")
    column = dims.add("n", n)
    product = 2.0 * math.prod(lead) * k * n
    kept = [0] * call.needs_grad(1) + [1] * call.needs_grad(0)
    return finish(
        call,
        dims,
        [(*rows, inner), (column, inner) if layout == "nk" else (inner, column), (column,)],
        [(*rows, column)],
        compute="matmul",
        flops=product,
        backward_flops=product * (call.needs_grad(0) + call.needs_grad(1)),
        saved_inputs=call.kept(*kept),
        alignment=dims.present("k", "n"),
        bias=2 if call.has(2) else None,
    )


def matmul(call: Call) -> Rule:
    """``y[..., m, n] = a[..., m, k] b[..., k, n]``, leading dims broadcast.

    An operand that is repeated along some leading dims but not all is copied before the product,
    and the copy is what is kept.
    """
    call.count(2, 2)
    a = call.rank(0, 2, "a[..., m, k]")
    m, k = a.shape[-2:]
    b = call.rank(1, 2, "b[..., k, n]")
    n = b.shape[-1]
    call.expect(1, (*b.shape[:-2], k, n), "b[..., k, n]")
    batch = _broadcast(call, a.shape[:-2], b.shape[:-2])
    call.expect_result(0, (*batch, m, n), "y[..., m, n]")

    dims = Dims()
    outer = dims.each("b", batch)
    row, inner, column = dims.add("m", m), dims.add("k", k, "reduction"), dims.add("n", n)
    product = 2.0 * math.prod(batch) * m * k * n
    kept = [0] * call.needs_grad(1) + [1] * call.needs_grad(0)
    copies = {
        position: dims.extent((*batch, *tail), (*outer, *labels))
        for position, tensor, tail, labels in (
            (0, a, (m, k), (row, inner)),
            (1, b, (k, n), (inner, column)),
        )
        if min(len(a.shape), len(b.shape)) > 2 and _copied(tensor.shape[:-2], batch)
    }
    return finish(
        call,
        dims,
        [
            (*_operand_batch(outer, a.shape[:-2]), row, inner),
            (*_operand_batch(outer, b.shape[:-2]), inner, column),
        ],
        [(*outer, row, column)],
        compute="matmul",
        flops=product,
        backward_flops=product * (call.needs_grad(0) + call.needs_grad(1)),
        saved_inputs=call.kept(*(p for p in kept if p not in copies)),
        saved_extra=tuple(copies[p] for p in kept if p in copies),
        alignment=dims.present("m", "k", "n"),
    )


def _broadcast(call: Call, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + a
    right = (1,) * (rank - len(b)) + b
    if any(p != q and 1 not in (p, q) for p, q in zip(left, right, strict=True)):
        call.fail(f"leading dims {a} of operand 0 and {b} of operand 1 do not broadcast")
    return tuple(q if p == 1 else p for p, q in zip(left, right, strict=True))


def _copied(own: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    """Whether leading dims repeat in part, so that they cannot be merged without a copy."""
    own = (1,) * (len(batch) - len(own)) + own
    repeated = [o != size for o, size in zip(own, batch, strict=True) if size > 1]
    return any(repeated) and not all(repeated)


def _operand_batch(outer: Labels, sizes: tuple[int, ...]) -> Labels:
    """Labels of an operand's leading dims, aligned at the right; repeated ones have none."""
    tail = outer[len(outer) - len(sizes) :]
    return tuple(None if size == 1 else name for size, name in zip(sizes, tail, strict=True))


def einsum(call: Call) -> Rule:
    """Every index of the result is free, every other index a reduction.

    An index that one operand repeats (a diagonal) is fixed. The work is that of contracting the
    operands from left to right; what lies between is kept.
    """
    call.count(1, None)
    operands, result = _parse(call)
    sizes: dict[str, int] = {}
    for position, indices in enumerate(operands):
        tensor = call.operand(position)
        if len(indices) != len(tensor.shape):
            call.fail(
                f"operand {position} '{tensor.name}' has shape {tensor.shape}, "
                f"expected one dim per index of '{indices}'"
            )
        for index, size in zip(indices, tensor.shape, strict=True):
            if 1 not in (size, sizes.get(index, 1)) and sizes[index] != size:
                call.fail(
                    f"index '{index}' has size {size} in operand {position} '{tensor.name}', "
                    f"expected {sizes[index]} as in the operands before it"
                )
            sizes[index] = max(size, sizes.get(index, 1))
    if not set(result) <= set(sizes):
        call.fail(f"equation {call.attribute('equation')!r} has result indices no operand has")
    call.expect_result(0, tuple(sizes[i] for i in result), f"'{result}'")

    fixed = {i for term in operands for i in term if term.count(i) > 1}
    dims = Dims()
    names = {
        i: None if i in fixed else dims.add(i, size, "free" if i in result else "reduction")
        for i, size in sizes.items()
    }
    inputs = [
        tuple(
            names[i] if size > 1 else None
            for i, size in zip(term, call.operand(p).shape, strict=True)
        )
        for p, term in enumerate(operands)
    ]
    work, between = _left_to_right(operands, result, sizes)
    grads = sum(call.needs_grad(p) for p in range(len(operands)))
    kept = [
        p
        for p in range(len(operands))
        if any(call.needs_grad(q) for q in range(len(operands)) if q != p)
    ]
    return finish(
        call,
        dims,
        inputs,
        [tuple(names[i] for i in result)],
        compute="matmul",
        flops=work,
        backward_flops=work * grads,
        saved_inputs=call.kept(*kept),
        saved_extra=tuple(
            dims.extent([sizes[i] for i in held], [names[i] for i in held]) for held in between
        )
        if grads
        else (),
        alignment=dims.present(*sizes),
    )


def _parse(call: Call) -> tuple[list[str], str]:
    """Return the indices of operands and result, with no ellipsis and nothing implied."""
    equation = str(call.attribute("equation")).replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(call.operands):
        call.fail(f"equation {equation!r} has {len(terms)} terms for {len(call.operands)} operands")
    free = [c for c in string.ascii_uppercase + string.ascii_lowercase if c not in equation]
    extra = 0
    for position, term in enumerate(terms):
        if "..." in term:
            extra = max(extra, len(call.operand(position).shape) - len(term.replace("...", "")))
    if extra > len(free):
        call.fail(f"equation {equation!r} has more dims than there are letters")
    spelled = "".join(free[:extra])
    operands = []
    for position, term in enumerate(terms):
        own = len(call.operand(position).shape) - len(term.replace("...", ""))
        operands.append(term.replace("...", spelled[extra - own :] if own > 0 else ""))
    if arrow:
        result = result.replace("...", spelled)
    else:
        joined = left.replace(",", "").replace(".", "")
        result = spelled + "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    if not all(c in string.ascii_letters for c in "".join(operands) + result):
        call.fail(f"equation {equation!r} has an index that is not a letter")
    return operands, result


def _left_to_right(
    operands: list[str], result: str, sizes: dict[str, int]
) -> tuple[float, list[str]]:
    """Work of contracting one operand after the other, and the indices of what lies between."""
    if len(operands) == 1:
        return float(math.prod(sizes[i] for i in set(operands[0]))), []
    work = 0.0
    between = []
    held = set(operands[0])
    for position, term in enumerate(operands[1:], 1):
        both = held | set(term)
        work += 2.0 * math.prod(sizes[i] for i in both)
        held = both & set(result).union(*operands[position + 1 :])
        between.append("".join(sorted(held)))
    return work, between[:-1]
