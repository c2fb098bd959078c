"""Patterns of several operators that are one operator of ours.

A fused operator keeps less for backward than its parts do one by one; graphs with fused operators
say so in their notes where the source model would run the parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tensoropt.graph import Operator
from tensoropt.importing.draft import Draft

__all__ = ["drop_parameter_casts", "fuse_gelu", "fuse_grouped_heads", "fuse_rms_norm"]


def _is(operator: Operator | None, op: str, scalar: float | None = None) -> bool:
    if operator is None or operator.family != "elementwise" or operator.attributes["op"] != op:
        return False
    if scalar is None:
        return True
    found = operator.attributes.get("scalars") or []
    return len(found) == 1 and math.isclose(found[0], scalar, rel_tol=1e-6)


def _made(draft: Draft, name: str, op: str, scalar: float | None = None) -> Operator | None:
    operator = draft.producer(name)
    return operator if _is(operator, op, scalar) else None


def _other(operator: Operator, name: str) -> str | None:
    """The second operand of a binary operator whose first is given, in any order."""
    if len(operator.inputs) != 2 or name not in operator.inputs:
        return None
    return operator.inputs[1] if operator.inputs[0] == name else operator.inputs[0]


def _uncast(draft: Draft, name: str) -> str:
    operator = _made(draft, name, "cast")
    return operator.inputs[0] if operator is not None else name


def fuse_rms_norm(draft: Draft) -> None:
    """``weight * x * rsqrt(mean(x * x) + eps)``, with or without casts and weight."""
    for operator in draft.operators:
        if not _is(operator, "rsqrt") or not draft.untouched([operator]):
            continue
        found = _mean_of_squares(draft, operator.inputs[0])
        if found is None:
            continue
        x, eps = found
        scaled = draft.only_consumer(operator.outputs[0])
        if scaled is None or not _is(scaled, "mul"):
            continue
        source = _uncast(draft, x)
        other = _other(scaled, operator.outputs[0])
        # Some models square a float32 copy and scale the input itself.
        if other is None or source not in (other, _uncast(draft, other)):
            continue
        last, weight = _weighted(draft, scaled)
        inputs = (source, weight) if weight else (source,)
        fused = draft.operator(
            last, "layer_norm", inputs, last.outputs, dims=1, eps=eps, kind="rms"
        )
        draft.replace(last, fused)
        draft.note("RMS normalisation is read as one fused operator (torch.nn.functional.rms_norm)")


def _mean_of_squares(draft: Draft, name: str) -> tuple[str, float] | None:
    """The ``x`` and ``eps`` of ``mean(x * x over the last dim) + eps``."""
    add = _made(draft, name, "add")
    scalars = add.attributes.get("scalars") if add is not None else None
    if add is None or not scalars or len(add.inputs) != 1:
        return None
    mean = draft.producer(add.inputs[0], "reduce")
    if mean is None or mean.attributes["op"] != "mean":
        return None
    rank = len(draft.shape(mean.inputs[0]))
    if list(mean.attributes["dims"]) != [rank - 1] or not mean.attributes["keepdim"]:
        return None
    square = draft.producer(mean.inputs[0])
    if _is(square, "pow", 2.0) or _is(square, "square"):
        assert square is not None
        return square.inputs[0], float(scalars[0])
    if _is(square, "mul") and square is not None and len(set(square.inputs)) == 1:
        return square.inputs[0], float(scalars[0])
    return None


def _weighted(draft: Draft, scaled: Operator) -> tuple[Operator, str | None]:
    """The product with the weight that follows, through one cast; or the scaled input itself."""
    last = scaled
    after = draft.only_consumer(scaled.outputs[0])
    if after is not None and _is(after, "cast"):
        last = after
        after = draft.only_consumer(after.outputs[0])
    if after is not None and _is(after, "mul"):
        weight = _other(after, last.outputs[0])
        width = draft.shape(scaled.outputs[0])[-1:]
        if weight and draft.tensors[weight].kind == "parameter" and draft.shape(weight) == width:
            return after, weight
    return last, None


def fuse_gelu(draft: Draft) -> None:
    """``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``, and the one with erf."""
    for operator in draft.operators:
        if not _is(operator, "tanh") and not _is(operator, "erf"):
            continue
        kind = operator.attributes["op"]
        x = (_cubic if kind == "tanh" else _over_root_two)(draft, operator.inputs[0])
        plus = draft.only_consumer(operator.outputs[0])
        if x is None or plus is None or not _is(plus, "add", 1.0):
            continue
        for last in _half_products(draft, x, plus):
            name = "gelu_tanh" if kind == "tanh" else "gelu"
            fused = draft.operator(last, "elementwise", (x,), last.outputs, op=name)
            draft.replace(last, fused)
            draft.note("GELU is read as one fused operator (torch.nn.functional.gelu)")
            break


def _cubic(draft: Draft, name: str) -> str | None:
    scale = _made(draft, name, "scale", math.sqrt(2.0 / math.pi))
    add = _made(draft, scale.inputs[0], "add") if scale is not None else None
    if add is None or len(add.inputs) != 2:
        return None
    for x, term in (add.inputs, add.inputs[::-1]):
        small = _made(draft, term, "scale", 0.044715)
        cube = _made(draft, small.inputs[0], "pow", 3.0) if small is not None else None
        if cube is not None and cube.inputs[0] == x:
            return x
    return None


def _over_root_two(draft: Draft, name: str) -> str | None:
    scale = _made(draft, name, "scale", math.sqrt(0.5))
    return scale.inputs[0] if scale is not None else None


def _half_products(draft: Draft, x: str, plus: Operator) -> Iterator[Operator]:
    """The operator that ends ``0.5 * x * plus``, in either order of the two products."""
    product = draft.only_consumer(plus.outputs[0])
    if product is None or not _is(product, "mul"):
        return
    other = _other(product, plus.outputs[0])
    if other is None:
        return
    half = _made(draft, other, "scale", 0.5)
    if half is not None and half.inputs[0] == x:
        yield product
    elif other == x:
        after = draft.only_consumer(product.outputs[0])
        if after is not None and _is(after, "scale", 0.5):
            yield after


def fuse_grouped_heads(draft: Draft) -> None:
    """Let attention read key and value heads once instead of repeated for every query head.

    ``view(expand(view(k)))`` that repeats each of ``hk`` heads ``h / hk`` times is what grouped
    attention does by itself: query head ``i`` reads key head ``i // (h / hk)``.
    """
    for operator in draft.operators:
        if operator.family != "attention":
            continue
        key, value = (_unrepeated(draft, name) for name in operator.inputs[1:3])
        if key is None or value is None or draft.shape(key)[1] != draft.shape(value)[1]:
            continue
        inputs = (operator.inputs[0], key, value, *operator.inputs[3:])
        draft.replace(operator, replace(operator, inputs=inputs))


def _unrepeated(draft: Draft, name: str) -> str | None:
    merged = draft.producer(name, "view")
    expand = draft.producer(merged.inputs[0], "expand") if merged is not None else None
    split = draft.producer(expand.inputs[0], "view") if expand is not None else None
    if merged is None or expand is None or split is None:
        return None
    origin = draft.shape(split.inputs[0])
    if len(origin) != 4:
        return None
    b, heads, tokens, width = origin
    repeated = draft.shape(expand.outputs[0])
    same = draft.shape(split.outputs[0]) == (b, heads, 1, tokens, width)
    if not same or len(repeated) != 5 or repeated[:2] != (b, heads):
        return None
    grown = (b, heads * repeated[2], tokens, width)
    return split.inputs[0] if draft.shape(name) == grown else None


def drop_parameter_casts(draft: Draft) -> None:
    """Read parameters without the casts of mixed precision; the search has a precision of its own.

    A cast between the parameter and its product would stand for the copy in the compute dtype that
    every precision bundle counts already.
    """
    for operator in draft.operators:
        if not _is(operator, "cast") or not draft.untouched([operator]):
            continue
        source, output = draft.tensors[operator.inputs[0]], draft.tensors[operator.outputs[0]]
        if source.kind == "parameter" and source.is_floating and output.is_floating:
            draft.rename(output.name, source.name)
            draft.replace(operator)
