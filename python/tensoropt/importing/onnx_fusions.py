"""Patterns that ONNX exporters make of one operator, read as that operator again.

A file says what a network computes, not how it is trained; a training run would use the fused
operators, which keep less for the backward pass. What was fused is noted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tensoropt.graph import Graph, Operator
from tensoropt.importing.draft import Draft

__all__ = ["fuse"]

_ROUNDS = 20


def fuse(graph: Graph) -> Graph:
    """Fuse decomposed layer norms and attention.

    Parameters
    ----------
    graph : Graph

    Returns
    -------
    Graph
        Computes the same; what the loss does not need is gone.
    """
    draft = Draft(graph)
    draft.commit()
    passes: tuple[Callable[[Draft], None], ...] = (
        swap_without_flattening,
        fuse_layer_norm,
        fuse_attention,
    )
    for each in passes:
        for _ in range(_ROUNDS):
            each(draft)
            if not draft.commit():
                break
    return draft.graph()


def _elementwise(draft: Draft, name: str, *ops: str) -> Operator | None:
    found = draft.producer(name, "elementwise")
    return found if found is not None and found.attributes["op"] in ops else None


def _scalars(operator: Operator) -> list[float]:
    return [float(s) for s in operator.attributes.get("scalars") or []]


def swap_without_flattening(draft: Draft) -> None:
    """Transpose the last two dims in place where an exporter flattens all others for it.

    The flattening merges batch and heads, which would forbid sharding the heads.
    """
    for operator in draft.operators:
        if operator.family != "transpose" or list(operator.attributes["perm"]) != [0, 2, 1]:
            continue
        before = draft.producer(operator.inputs[0], "view")
        after = draft.only_consumer(operator.outputs[0], "view")
        if before is None or after is None or not draft.untouched([operator, after]):
            continue
        given, wanted = draft.shape(before.inputs[0]), draft.shape(after.outputs[0])
        flat = draft.shape(operator.inputs[0])
        kept = given[-2:] == flat[1:] and wanted[-2:] == (flat[2], flat[1])
        if len(given) < 4 or given[:-2] != wanted[:-2] or not kept:
            continue
        rank = len(given)
        perm = [*range(rank - 2), rank - 1, rank - 2]
        draft.replace(
            after, draft.operator(after, "transpose", before.inputs, after.outputs, perm=perm)
        )


def fuse_layer_norm(draft: Draft) -> None:
    """``(x - mean) / sqrt(mean((x - mean) ** 2) + eps)``, with or without weight and bias."""
    for operator in draft.operators:
        if operator.family != "elementwise" or not draft.untouched([operator]):
            continue
        found = _standardised(draft, operator)
        if found is None:
            continue
        x, eps = found
        last, inputs = operator, [x]
        for op in ("mul", "add"):
            follower = draft.only_consumer(last.outputs[0], "elementwise")
            operand = _affine(draft, follower, last.outputs[0], op, draft.shape(x)[-1])
            if follower is None or operand is None:
                break
            last, inputs = follower, [*inputs, operand]
        fused = draft.operator(
            last, "layer_norm", inputs, last.outputs, dims=1, eps=eps, kind="layer"
        )
        draft.replace(last, fused)
        draft.note("layer normalisation is read as one fused operator")


def _standardised(draft: Draft, operator: Operator) -> tuple[str, float] | None:
    """``x`` and ``eps``, if an operator is the quotient of a layer norm."""
    op, inputs = operator.attributes["op"], operator.inputs
    if op == "div" and len(inputs) == 2:
        centred, below = inputs
        root = _elementwise(draft, below, "sqrt")
    elif op == "mul" and len(inputs) == 2:
        roots = [_elementwise(draft, name, "rsqrt") for name in inputs]
        if (roots[0] is None) == (roots[1] is None):
            return None
        root, centred = (roots[0], inputs[1]) if roots[0] else (roots[1], inputs[0])
    else:
        return None
    shifted = _elementwise(draft, root.inputs[0], "add") if root is not None else None
    if shifted is None or len(shifted.inputs) != 1 or len(_scalars(shifted)) != 1:
        return None
    variance = _mean(draft, shifted.inputs[0])
    square = _elementwise(draft, variance, "pow", "square", "mul") if variance else None
    x = _centre(draft, centred)
    if square is None or x is None:
        return None
    power = _scalars(square) == [2.0] if square.attributes["op"] == "pow" else True
    if not power or any(_centre(draft, name) != x for name in square.inputs):
        return None
    return x, _scalars(shifted)[0]


def _mean(draft: Draft, name: str) -> str | None:
    """What a tensor is the mean of, over the last dim."""
    mean = draft.producer(name, "reduce")
    if mean is None or mean.attributes["op"] != "mean" or not mean.attributes["keepdim"]:
        return None
    last = len(draft.shape(mean.inputs[0])) - 1
    return mean.inputs[0] if list(mean.attributes["dims"]) == [last] else None


def _centre(draft: Draft, name: str) -> str | None:
    """``x``, if a tensor is ``x`` less its mean."""
    difference = _elementwise(draft, name, "sub")
    if difference is None or len(difference.inputs) != 2:
        return None
    x, mean = difference.inputs
    return x if _mean(draft, mean) == x else None


def _affine(draft: Draft, follower: Operator | None, name: str, op: str, width: int) -> str | None:
    """The weight or bias with which an operator follows a norm."""
    if follower is None or follower.attributes["op"] != op or len(follower.inputs) != 2:
        return None
    other = follower.inputs[1] if follower.inputs[0] == name else follower.inputs[0]
    tensor = draft.tensors[other]
    return other if tensor.kind == "parameter" and tensor.shape == (width,) else None


@dataclass(slots=True)
class _Scores:
    """What goes into a softmax over keys."""

    query: str
    key: str
    swap: Operator
    scale: float
    mask: str = ""
    causal: bool = False


def fuse_attention(draft: Draft) -> None:
    """``softmax(scale * q k' + mask) v`` with nothing else reading its parts."""
    for operator in draft.operators:
        if operator.family != "matmul" or not draft.untouched([operator]):
            continue
        weights, value = operator.inputs
        if len(draft.shape(weights)) != 4 or len(draft.shape(value)) != 4:
            continue
        dropout = draft.producer(weights, "dropout")
        softmax = draft.producer(dropout.inputs[0] if dropout else weights, "softmax")
        parts = [p for p in (dropout, softmax) if p is not None]
        if softmax is None or softmax.attributes["dim"] != 3 or softmax.attributes["log"]:
            continue
        if any(draft.only_consumer(p.outputs[0]) is None for p in parts):
            continue
        scores = _scores(draft, softmax.inputs[0])
        if scores is None or not _fits(draft, scores, value):
            continue
        perm = [*scores.swap.attributes["perm"][:2], *scores.swap.attributes["perm"][:1:-1]]
        source = scores.swap.inputs[0]
        shape = [draft.shape(source)[p] for p in perm]
        turned = draft.result(scores.swap, "transpose", (source,), shape, perm=perm)
        inputs = [scores.query, turned.outputs[0], value, *([scores.mask] if scores.mask else [])]
        fused = draft.operator(
            operator, "attention", inputs, operator.outputs, causal=scores.causal,
            scale=scores.scale, dropout=float(dropout.attributes["p"]) if dropout else 0.0,
        )  # fmt: skip
        draft.replace(operator, turned, fused)
        draft.note(
            "softmax attention is read as one fused operator "
            "(torch.nn.functional.scaled_dot_product_attention)"
        )


def _scores(draft: Draft, name: str) -> _Scores | None:
    """Queries, keys, scale and mask of scores, each part of which is read once."""
    scale, mask, causal = 1.0, "", False
    while True:
        if draft.only_consumer(name) is None:
            return None
        product = draft.producer(name, "matmul")
        if product is not None:
            break
        step = draft.producer(name, "elementwise")
        if step is None:
            return None
        op = step.attributes["op"]
        if op == "scale":
            scale *= _scalars(step)[0]
            name = step.inputs[0]
        elif op == "add" and len(step.inputs) == 2 and not mask and not causal:
            name, other = _scores_first(draft, *step.inputs)
            causal = _is_causal(draft, other)
            if not causal and scale != 1.0:
                return None  # The mask would be scaled as well.
            mask = "" if causal else other
        elif op == "masked_fill" and not mask and not causal:
            hidden = _elementwise(draft, step.inputs[1], "logical_not")
            if hidden is None or not _is_causal(draft, hidden.inputs[0]):
                return None
            name, causal = step.inputs[0], True
        else:
            return None
    query, scale = _unscaled(draft, product.inputs[0], scale)
    key, scale = _unscaled(draft, product.inputs[1], scale)
    swap = draft.producer(key, "transpose")
    if swap is None or len(swap.attributes["perm"]) != 4:
        return None
    return _Scores(query, key, swap, scale, mask, causal)


def _unscaled(draft: Draft, name: str, scale: float) -> tuple[str, float]:
    """What is scaled before the product, and the scale that results."""
    step = _elementwise(draft, name, "scale")
    if step is None:
        return name, scale
    return step.inputs[0], scale * _scalars(step)[0]


def _scores_first(draft: Draft, left: str, right: str) -> tuple[str, str]:
    made = draft.producer(left)
    computed = made is not None and draft.tensors[left].kind == "activation"
    return (left, right) if computed else (right, left)


def _is_causal(draft: Draft, name: str) -> bool:
    made = draft.producer(name, "constant")
    return made is not None and made.attributes.get("op") == "causal_mask"


def _fits(draft: Draft, scores: _Scores, value: str) -> bool:
    """Whether shapes are those of attention: equal heads, a mask that broadcasts."""
    b, h, s, d = draft.shape(scores.query)
    t, e = draft.shape(value)[2:]
    if draft.shape(scores.key) != (b, h, d, t) or draft.shape(value) != (b, h, t, e):
        return False
    mask = draft.shape(scores.mask) if scores.mask else ()
    full = (b, h, s, t)[4 - len(mask) :]
    return (
        len(mask) <= 4
        and all(m in (1, f) for m, f in zip(mask, full, strict=True))
        and (math.isfinite(scores.scale))
    )
