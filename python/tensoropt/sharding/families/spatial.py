"""Operators on images: convolution, pooling, upsampling.

Image dims are fixed unless windows tile the operand exactly (kernel equals stride, no padding):
then a shard of the result needs just its own part of the operand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensoropt.sharding.families._call import Call, Dims, Labels, finish
from tensoropt.sharding.rule import Rule

__all__ = ["convolution", "pool", "upsample"]


def _sizes(call: Call, name: str, rank: int, default: int | None = None) -> list[int]:
    """Read an attribute with one integer for each image dim."""
    value = call.attributes.get(name, default)
    if value is None:
        value = call.attribute(name)
    values = [value] * rank if isinstance(value, int) else list(value)
    if len(values) != rank or not all(isinstance(v, int) and v >= 0 for v in values):
        call.fail(f"attribute {name}={value!r}, expected {rank} integers, one for each image dim")
    return values


def _tiles(
    operand: Sequence[int],
    result: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[bool]:
    """Along which image dims windows cover the operand without gap or overlap."""
    return [
        k == s and p == 0 and (d == 1 or k == 1) and size == out * s
        for size, out, k, s, p, d in zip(
            operand, result, kernel, stride, padding, dilation, strict=True
        )
    ]


def convolution(call: Call) -> Rule:
    """Batch and channels of the result are free, channels of the operand a reduction.

    With groups, whole groups are free and channels inside a group fixed.
    """
    call.count(2, 3)
    x = call.rank(0, 3, "x[b, ci, *sp]")
    b, ci, *image = x.shape
    transposed = bool(call.attributes.get("transposed", False))
    groups = call.attributes.get("groups", 1)
    if not isinstance(groups, int) or groups < 1 or ci % groups:
        call.fail(f"has groups {groups!r}, expected a divisor of the {ci} channels of operand 0")
    any_kernel = (None,) * len(image)
    if transposed:
        weight = call.expect(1, (ci, None, *any_kernel), "w[ci, co/groups, *kernel]")
        co = weight.shape[1] * groups
    else:
        weight = call.expect(1, (None, ci // groups, *any_kernel), "w[co, ci/groups, *kernel]")
        co = weight.shape[0]
    if co % groups:
        call.fail(f"has groups {groups!r}, expected a divisor of the {co} channels of the result")
    if call.has(2):
        call.expect(2, (co,), "bias[co]")
    kernel = weight.shape[2:]
    y = call.expect_result(0, (b, co, *any_kernel), "y[b, co, *sp']")

    dims = Dims()
    batch = dims.add("b", b)
    channels = _channels(dims, ci, co, groups)
    spatial = _convolved(call, dims, y.shape[2:], kernel, transposed)
    rows, columns = channels if transposed else channels[::-1]
    grouped = groups > 1
    fixed = (None,) * len(kernel)
    work = 2.0 * b * math.prod(image if transposed else y.shape[2:]) * math.prod(weight.shape)
    kept = [0] * call.needs_grad(1) + [1] * call.needs_grad(0)
    return finish(
        call,
        dims,
        [
            (batch, channels[0], *spatial),
            (rows, None if grouped else columns, *fixed),
            (channels[1],),
        ],
        [(batch, channels[1], *spatial)],
        compute="convolution",
        flops=work,
        backward_flops=work * (call.needs_grad(0) + call.needs_grad(1)),
        saved_inputs=call.kept(*kept),
        alignment=dims.present("ci", "co"),
        bias=2 if call.has(2) else None,
    )


def _channels(dims: Dims, ci: int, co: int, groups: int) -> tuple[str | None, str | None]:
    """Labels of the operand's and the result's channels."""
    if groups > 1:
        group = dims.add("g", groups)
        return group, group
    return dims.add("ci", ci, "reduction"), dims.add("co", co)


def _convolved(
    call: Call, dims: Dims, result: Sequence[int], kernel: Sequence[int], transposed: bool
) -> Labels:
    image = call.operand(0).shape[2:]
    rank = len(image)
    stride = _sizes(call, "stride", rank, 1)
    padding = _sizes(call, "padding", rank, 0)
    dilation = _sizes(call, "dilation", rank, 1)
    if transposed:
        least = [
            (i - 1) * s - 2 * p + d * (k - 1) + 1
            for i, s, p, d, k in zip(image, stride, padding, dilation, kernel, strict=True)
        ]
        # The result may be larger by an output padding, which is smaller than stride or dilation.
        if any(r < low for r, low in zip(result, least, strict=True)):
            call.fail(f"result 0 has image {tuple(result)}, expected at least {tuple(least)}")
        # Seen from the gradient it is a convolution of the result.
        tiles = _tiles(result, image, kernel, stride, padding, dilation)
        coarse: Sequence[int] = image
    else:
        expected = [
            (i + 2 * p - d * (k - 1) - 1) // s + 1
            for i, s, p, d, k in zip(image, stride, padding, dilation, kernel, strict=True)
        ]
        if list(result) != expected:
            call.fail(f"result 0 has image {tuple(result)}, expected {tuple(expected)}")
        tiles = _tiles(image, result, kernel, stride, padding, dilation)
        coarse = result
    return tuple(
        dims.add(f"s{d}", size) if tiled else None
        for d, (size, tiled) in enumerate(zip(coarse, tiles, strict=True))
    )


def pool(call: Call) -> Rule:
    """Batch and channels are free; average pooling is linear.

    Global average pooling is a mean: image dims are reductions. Kept: the operand, and for a
    maximum the position of each, in int64; a global mean keeps nothing.
    """
    call.count(1, 1)
    mode = call.attribute("mode")
    if mode not in ("max", "avg"):
        call.fail(f"attribute mode={mode!r}, expected 'max' or 'avg'")
    x = call.rank(0, 3, "x[b, c, *sp]")
    b, c, *image = x.shape
    y = call.expect_result(0, (b, c, *[None] * len(image)), "y[b, c, *sp']")
    whole = bool(call.attributes.get("global", False))
    if whole:
        call.expect_result(0, (b, c, *[1] * len(image)), "y[b, c, 1, ...]")

    dims = Dims()
    batch, channel = dims.add("b", b), dims.add("c", c)
    before: Labels
    after: Labels
    if whole:
        before = dims.each("s", image, "reduction") if mode == "avg" else (None,) * len(image)
        after = (None,) * len(image)
        window = math.prod(image)
    else:
        before = after = _pooled(call, dims, y.shape[2:])
        window = math.prod(_sizes(call, "kernel", len(image)))
    trained = call.needs_grad(0)
    labels = (batch, channel, *after)
    positions = dims.extent(y.shape, labels, "int64")
    return finish(
        call,
        dims,
        [(batch, channel, *before)],
        [labels],
        linear=(frozenset({0}),) if mode == "avg" else (),
        compute="reduction",
        flops=float(y.size * window),
        backward_flops=float(y.size * window) * trained,
        saved_inputs=call.kept(0) if trained and not (whole and mode == "avg") else (),
        saved_extra=(positions,) if trained and mode == "max" else (),
    )


def _pooled(call: Call, dims: Dims, result: Sequence[int]) -> Labels:
    image = call.operand(0).shape[2:]
    kernel = _sizes(call, "kernel", len(image))
    stride = _sizes(call, "stride", len(image)) if "stride" in call.attributes else kernel
    padding = _sizes(call, "padding", len(image), 0)
    dilation = _sizes(call, "dilation", len(image), 1)
    tiles = _tiles(image, result, kernel, stride, padding, dilation)
    return tuple(
        dims.add(f"s{d}", size) if tiled else None
        for d, (size, tiled) in enumerate(zip(result, tiles, strict=True))
    )


def upsample(call: Call) -> Rule:
    """Batch and channels are free; image dims are where every pixel is just repeated.

    Interpolation is linear in its operand and keeps nothing.
    """
    call.count(1, 1)
    x = call.rank(0, 3, "x[b, c, *sp]")
    b, c, *image = x.shape
    y = call.expect_result(0, (b, c, *[None] * len(image)), "y[b, c, *sp']")
    repeats = call.attribute("mode") == "nearest"
    dims = Dims()
    batch, channel = dims.add("b", b), dims.add("c", c)
    spatial = tuple(
        dims.add(f"s{d}", size) if repeats and size and out % size == 0 else None
        for d, (size, out) in enumerate(zip(image, y.shape[2:], strict=True))
    )
    labels = (batch, channel, *spatial)
    # Each result reads one pixel, or two along every image dim.
    taps = 1 if repeats else 2 ** len(image)
    work = float(y.size * taps)
    return finish(
        call,
        dims,
        [labels],
        [labels],
        linear=(frozenset({0}),),
        compute="elementwise",
        flops=work,
        backward_flops=work * call.needs_grad(0),
    )
