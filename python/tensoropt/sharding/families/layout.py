"""Operators that move or rename elements: view, transpose, expand, slice, concat, split, pad.

All are linear, so pending sums pass through. What PyTorch answers with a view is an ``alias``: no
memory, no traffic. (A view of what a transpose made non-contiguous is a copy in PyTorch; that copy
is not costed.)
"""

from __future__ import annotations

import math

from tensoropt.sharding.families._call import Call, Dims, Labels, finish
from tensoropt.sharding.rule import Rule

__all__ = ["concat", "expand", "pad", "slice_", "split", "transpose", "view"]

_ONE = (frozenset({0}),)


def view(call: Call) -> Rule:
    """Give the same elements another shape.

    Dims fall into the smallest groups of equal products. Of a group only the leading factor common
    to both sides can be sharded: its chunks are contiguous on either side.
    """
    call.count(1, 1)
    x, y = call.operand(0), call.results[0]
    if x.size != y.size:
        call.fail(
            f"result 0 '{y.name}' has shape {y.shape} ({y.size} elements), expected {x.size} "
            f"elements as operand 0 '{x.name}' of shape {x.shape}"
        )
    dims = Dims()
    inputs: list[str | None] = [None] * len(x.shape)
    outputs: list[str | None] = [None] * len(y.shape)
    for number, (before, after) in enumerate(groups(x.shape, y.shape)):
        name = dims.add(f"d{number}", math.gcd(x.shape[before], y.shape[after]))
        inputs[before] = outputs[after] = name
    return finish(
        call, dims, [tuple(inputs)], [tuple(outputs)], linear=_ONE, compute="none", alias=True
    )


def groups(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[int, int]]:
    """Find the leading dims of each group of a reshape.

    Parameters
    ----------
    before, after : tuple of int
        Shapes with equally many elements.

    Returns
    -------
    list of (int, int)
        For every group, its first dim larger than 1 on either side.

    Examples
    --------
    >>> groups((2, 3, 4), (6, 2, 2))
    [(0, 0), (2, 1)]
    """
    left = [d for d, size in enumerate(before) if size != 1]
    right = [d for d, size in enumerate(after) if size != 1]
    found: list[tuple[int, int]] = []
    if 0 in before:
        return found
    i = j = 0
    while i < len(left):
        found.append((left[i], right[j]))
        p, q = before[left[i]], after[right[j]]
        i, j = i + 1, j + 1
        while p != q:
            if p < q:
                p *= before[left[i]]
                i += 1
            else:
                q *= after[right[j]]
                j += 1
    return found


def transpose(call: Call) -> Rule:
    """Permute: dim i of the result is dim ``perm[i]`` of the operand."""
    call.count(1, 1)
    x = call.operand(0)
    perm = [call.dim(p, len(x.shape)) for p in call.attribute("perm")]
    if sorted(perm) != list(range(len(x.shape))):
        call.fail(f"has perm {perm}, expected a permutation of {len(x.shape)} dims")
    call.expect_result(0, [x.shape[p] for p in perm], "the permuted shape")
    dims = Dims()
    labels = dims.each("d", x.shape)
    return finish(
        call,
        dims,
        [labels],
        [tuple(labels[p] for p in perm)],
        linear=_ONE,
        compute="none",
        alias=True,
    )


def expand(call: Call) -> Rule:
    """Dims of size 1 repeated, or new leading dims: the operand lacks those."""
    call.count(1, 1)
    x, y = call.operand(0), call.results[0]
    new = len(y.shape) - len(x.shape)
    if new < 0 or any(s not in (1, t) for s, t in zip(x.shape, y.shape[new:], strict=True)):
        call.fail(
            f"operand 0 '{x.name}' has shape {x.shape}, expected one that expands to {y.shape}"
        )
    dims = Dims()
    labels = dims.each("d", y.shape)
    own = tuple(name if s > 1 else None for s, name in zip(x.shape, labels[new:], strict=True))
    return finish(call, dims, [own], [labels], linear=_ONE, compute="none", alias=True)


def _all_but(call: Call, shape: tuple[int, ...], fixed: int) -> tuple[Dims, Labels]:
    dims = Dims()
    labels = tuple(None if d == fixed else dims.add(f"d{d}", s) for d, s in enumerate(shape))
    return dims, labels


def slice_(call: Call) -> Rule:
    """Take a range of one dim, which is fixed."""
    call.count(1, 1)
    x = call.rank(0, 1, "x")
    dim = call.dim(call.attribute("dim"), len(x.shape))
    shape = [*x.shape]
    picked = range(x.shape[dim])[
        slice(
            call.attributes.get("start"), call.attributes.get("stop"), call.attributes.get("step")
        )
    ]
    shape[dim] = len(picked)
    call.expect_result(0, shape, "the sliced shape")
    dims, labels = _all_but(call, x.shape, dim)
    return finish(call, dims, [labels], [labels], linear=_ONE, compute="none", alias=True)


def concat(call: Call) -> Rule:
    """Operands one after the other along a dim, which is fixed."""
    call.count(1, None)
    x = call.rank(0, 1, "operand")
    dim = call.dim(call.attribute("dim"), len(x.shape))
    shape: list[int | None] = [*x.shape]
    shape[dim] = None
    total = sum(
        call.expect(p, shape, f"all but dim {dim} as operand 0").shape[dim]
        for p in range(len(call.operands))
    )
    shape[dim] = total
    call.expect_result(0, shape, "the concatenated shape")
    dims, labels = _all_but(call, x.shape, dim)
    count = len(call.operands)
    return finish(
        call,
        dims,
        [labels] * count,
        [labels],
        linear=(frozenset(range(count)),),
        compute="copy",
    )


def split(call: Call) -> Rule:
    """Consecutive pieces of one dim, which is fixed."""
    call.count(1, 1, results=None)
    x = call.rank(0, 1, "x")
    dim = call.dim(call.attribute("dim"), len(x.shape))
    sizes = list(call.attribute("sizes"))
    if len(sizes) != len(call.results) or sum(sizes) != x.shape[dim]:
        call.fail(
            f"has sizes {sizes}, expected {len(call.results)} sizes that add up to {x.shape[dim]}"
        )
    for position, size in enumerate(sizes):
        shape = [*x.shape]
        shape[dim] = size
        call.expect_result(position, shape, "a piece")
    dims, labels = _all_but(call, x.shape, dim)
    return finish(
        call, dims, [labels], [labels] * len(sizes), linear=_ONE, compute="none", alias=True
    )


def pad(call: Call) -> Rule:
    """Constant padding; padded dims are fixed. Padding with zero is linear."""
    call.count(1, 1)
    x = call.operand(0)
    pads = [tuple(p) for p in call.attribute("pads")]
    if len(pads) != len(x.shape):
        call.fail(f"has {len(pads)} pads, expected one (before, after) for each of {x.shape}")
    shape = [s + before + after for s, (before, after) in zip(x.shape, pads, strict=True)]
    call.expect_result(0, shape, "the padded shape")
    dims = Dims()
    labels = tuple(
        dims.add(f"d{d}", s) if pads[d] == (0, 0) else None for d, s in enumerate(x.shape)
    )
    zero = call.attributes.get("mode", "constant") == "constant" and not call.attributes.get(
        "value"
    )
    return finish(call, dims, [labels], [labels], linear=_ONE if zero else (), compute="copy")
