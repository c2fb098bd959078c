"""Handlers of ONNX operators that compute element by element, reduce, or make losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoropt.errors import ImportModelError
from tensoropt.importing.onnx_translate import Translator, register
from tensoropt.importing.onnx_values import Names, Node, Value, dtype_name

_UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "BitwiseNot": "bitwise_not", "Ceil": "ceil", "Celu": "celu",
    "Cos": "cos", "Cosh": "cosh", "Elu": "elu", "Erf": "erf", "Exp": "exp", "Floor": "floor",
    "HardSigmoid": "hardsigmoid", "HardSwish": "hardswish", "IsInf": "isinf", "IsNaN": "isnan",
    "LeakyRelu": "leaky_relu", "Log": "log", "Mish": "mish", "Neg": "neg", "Not": "logical_not",
    "QuickGelu": "quick_gelu", "Relu": "relu", "Round": "round", "Selu": "selu",
    "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softplus": "softplus",
    "Softsign": "softsign", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
    "ThresholdedRelu": "threshold", "FastGelu": "gelu_tanh",
}  # fmt: skip
_COMPARISONS = {
    "Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le",
    "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
}  # fmt: skip
_BINARY = {
    "Mod": "remainder", "PRelu": "prelu", "Pow": "pow", "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "BitShift": "bitwise_left_shift",
}  # fmt: skip


@register(*_UNARY)
def _unary(t: Translator, n: Node) -> Names:
    attributes = {k: v for k, v in n.attributes.items() if k in ("alpha", "beta", "lambd", "bias")}
    x = t.use(n.value(0))
    if n.op == "FastGelu" and n.has(1):
        x = t.apply(n, "add", x, t.use(n.value(1)))
    dtype = dtype_name(n.elems[0])
    return t.apply(n, _UNARY[n.op], x, dtype=dtype, **attributes)


@register("Shrink")
def _shrink(t: Translator, n: Node) -> Names | None:
    if n.attr("bias", 0.0):
        return None
    return t.apply(n, "hardshrink", t.use(n.value(0)), scalars=[float(n.attr("lambd", 0.5))])


@register("Gelu", "BiasGelu")
def _gelu(t: Translator, n: Node) -> Names:
    x = t.use(n.value(0))
    if n.op == "BiasGelu":
        x = t.apply(n, "add", x, t.use(n.value(1)))
    return t.apply(n, "gelu_tanh" if n.attr("approximate") == "tanh" else "gelu", x)


@register("Swish")
def _swish(t: Translator, n: Node) -> Names:
    alpha = float(n.attr("alpha", 1.0))
    if alpha == 1.0:
        return t.apply(n, "silu", t.use(n.value(0)))
    return t.apply(n, "swish", t.use(n.value(0)), scalars=[alpha])


@register("Reciprocal")
def _reciprocal(t: Translator, n: Node) -> Names:
    x = t.use(n.value(0))
    root = t.maker(x, "elementwise", "sqrt")
    if root is not None:
        return t.apply(n, "rsqrt", root.inputs[0])
    return t.apply(n, "reciprocal", x)


def _scalar(t: Translator, value: Value, other: Value) -> float | None:
    """A number that a value stands for, unless it is trained or widens the other operand."""
    if value.is_parameter or value.rank > other.rank:
        return None
    number = t.number(value)
    return number if number is not None and math.isfinite(number) else None


@register(*_COMPARISONS)
def _comparison(t: Translator, n: Node) -> Names:
    return _binary(t, n, _COMPARISONS[n.op], "bool")


@register(*_BINARY)
def _other_binary(t: Translator, n: Node) -> Names:
    return _binary(t, n, _BINARY[n.op])


def _pair(t: Translator, n: Node) -> tuple[Value, Value]:
    """Two operands that broadcast as numpy's do."""
    left, right = n.value(0), n.value(1)
    lead = None
    if n.opset < 7 and n.attr("broadcast", 0) and n.attr("axis") is not None:
        lead = int(n.attr("axis")) % left.rank
    elif n.op == "PRelu" and right.rank == 1 and left.rank > 2 and n.opset < 9:
        lead = 1  # One slope for each channel.
    if lead is None or lead + right.rank >= left.rank:
        return left, right
    shape = (*right.shape, *[1] * (left.rank - lead - right.rank))
    return left, t.reshaped(n, right, shape)


def _binary(t: Translator, n: Node, op: str, dtype: str | None = None) -> Names:
    left, right = _pair(t, n)
    number = _scalar(t, right, left)
    if number is not None:
        return t.apply(n, op, t.use(left), dtype=dtype, scalars=[number])
    return t.apply(n, op, t.use(left), t.use(right), dtype=dtype)


@register("Add", "Sub")
def _add(t: Translator, n: Node) -> Names | Value:
    left, right = _pair(t, n)
    op = n.op.lower()
    if op == "add":
        for product, bias in ((left, right), (right, left)):
            if _takes_bias(t, product, bias):
                return t.linear_bias(product, bias)
    if op == "add" and _is_zero(right, left):
        return left
    number = _scalar(t, right, left)
    if number is not None:
        return t.use(left) if number == 0 else t.apply(n, op, t.use(left), scalars=[number])
    number = _scalar(t, left, right)
    if number is not None:
        op = "add" if op == "add" else "rsub"
        return t.apply(n, op, t.use(right), scalars=[number])
    return t.apply(n, op, t.use(left), t.use(right))


def _is_zero(value: Value, other: Value) -> bool:
    """Whether adding a constant changes nothing: a mask that hides nothing."""
    if value.data is None or not value.constant or value.rank > other.rank:
        return False
    fits = np.broadcast_shapes(value.shape, other.shape) == other.shape
    return fits and not np.any(value.data)


def _takes_bias(t: Translator, product: Value, bias: Value) -> bool:
    """Whether an add is the bias of the linear layer right before it."""
    if not bias.is_parameter or bias.rank != 1 or product.tensor is None:
        return False
    last = t.linears.get(product.tensor)
    return (
        last is not None
        and len(t.builder.operators[last].inputs) == 2
        and t.uses[product.name] == 1
        and bias.shape == product.shape[-1:]
    )


@register("Mul", "Div")
def _mul(t: Translator, n: Node) -> Names:
    left, right = _pair(t, n)
    integer = dtype_name(n.elems[0]).startswith(("int", "uint"))
    number = _scalar(t, right, left)
    if number is not None and not (integer and n.op == "Div"):
        if n.op == "Div" and number == 0:
            return t.apply(n, "div", t.use(left), scalars=[0.0])
        return _scaled(t, n, t.use(left), number if n.op == "Mul" else 1.0 / number)
    number = _scalar(t, left, right)
    if number is not None:
        x = t.use(right)
        return _scaled(t, n, x if n.op == "Mul" else t.apply(n, "reciprocal", x), number)
    x, y = t.use(left), t.use(right)
    for gate, value in ((y, x), (x, y)):
        maker = t.maker(gate, "elementwise", "sigmoid") if n.op == "Mul" else None
        if maker is not None and maker.inputs == (value,):
            return t.apply(n, "silu", value)
    op = "floor_divide" if integer and n.op == "Div" else n.op.lower()
    return t.apply(n, op, t.use(left), t.use(right))


def _scaled(t: Translator, n: Node, x: str, factor: float) -> str:
    return x if factor == 1 else t.apply(n, "scale", x, scalars=[factor])


_VARIADIC = {"Sum": "add", "Mean": "add", "Max": "maximum", "Min": "minimum"}


@register(*_VARIADIC)
def _variadic(t: Translator, n: Node) -> Names:
    operands = [n.value(p) for p in range(len(n.inputs))]
    if len(operands) == 2 and n.op in ("Max", "Min"):
        for value, other in (operands, operands[::-1]):
            bound = _scalar(t, other, value)
            if bound is not None:
                ends: dict[str, Any] = {"min" if n.op == "Max" else "max": bound}
                return t.apply(n, "clamp", t.use(value), scalars=[bound], **ends)
    result = t.use(operands[0])
    for value in operands[1:]:
        result = t.apply(n, _VARIADIC[n.op], result, t.use(value))
    return _scaled(t, n, result, 1.0 / len(operands)) if n.op == "Mean" else result


@register("Clip")
def _clip(t: Translator, n: Node) -> Names:
    low, high = n.attr("min"), n.attr("max")
    if n.opset >= 11:
        low, high = (t.number(n.inputs[p]) if n.has(p) else None for p in (1, 2))
    x = t.use(n.value(0))
    if (low, high) == (0, 6):
        return t.apply(n, "relu6", x)
    bounds: dict[str, Any] = {
        k: float(v) for k, v in (("min", low), ("max", high)) if v is not None
    }
    bounds = {k: v for k, v in bounds.items() if math.isfinite(v)}
    return t.apply(n, "clamp", x, scalars=list(bounds.values()), **bounds)


@register("Where")
def _where(t: Translator, n: Node) -> Names | Value:
    condition, values = n.value(0), [n.value(1), n.value(2)]
    result = n.shape(0)
    numbers = [None if v.is_parameter else t.number(v) for v in values]
    inputs = [t.use(condition)]
    widest = np.broadcast_shapes(
        condition.shape, *(v.shape for v, c in zip(values, numbers, strict=True) if c is None)
    )
    if widest != result or numbers.count(None) == 0:
        numbers = [None, None]
    if numbers[0] is not None and numbers[1] is None:
        # `masked_fill` reads like one: the tensor, the mask, the number in `scalars`.
        guard = t.maker(inputs[0], "elementwise", "isnan")
        if guard is not None and guard.inputs == (values[1].tensor,):
            return values[1]  # What replaces NaN computes nothing in a training that works.
        scalars: dict[str, Any] = {"scalars": [numbers[0]]} if math.isfinite(numbers[0]) else {}
        return t.apply(n, "masked_fill", t.use(values[1]), *inputs, **scalars)
    if numbers[1] is not None and numbers[0] is None:
        mask = t.apply(n, "logical_not", *inputs, dtype="bool")
        scalars = {"scalars": [numbers[1]]} if math.isfinite(numbers[1]) else {}
        return t.apply(n, "masked_fill", t.use(values[0]), mask, **scalars)
    inputs += [t.use(v) for v in values]
    return t.emit(n, "elementwise", inputs, result, op="where", dtype=dtype_name(n.elems[0]))


@register("Cast", "CastLike")
def _cast(t: Translator, n: Node) -> Names | Value:
    value = n.value(0)
    before, after = dtype_name(value.elem), dtype_name(n.elems[0])
    if value.constant and value.data is not None:
        from onnx import helper

        data = np.asarray(value.data).astype(helper.tensor_dtype_to_np_dtype(n.elems[0]))
        return Value(n.outputs[0], value.shape, n.elems[0], data=data, constant=True)
    if before == after or (value.is_parameter and after.startswith(("float", "bfloat"))):
        return value  # The precision of weights is chosen by the search.
    return t.apply(n, "cast", t.use(value), dtype=after)


@register("Dropout")
def _dropout(t: Translator, n: Node) -> Names | Value:
    ratio = float(n.attr("ratio", 0.5))
    if n.opset >= 12:
        given = t.number(n.inputs[1]) if n.has(1) else None
        ratio = 0.5 if given is None else given
    t.note("dropout is read as in training")
    if ratio == 0:
        return n.value(0)
    return (t.emit(n, "dropout", (t.use(n.value(0)),), n.value(0).shape, p=ratio),)


@register("Softmax", "LogSoftmax")
def _softmax(t: Translator, n: Node) -> Names:
    value = n.value(0)
    x, log = t.use(value), n.op == "LogSoftmax"
    if n.opset >= 13:
        return t.emit(n, "softmax", (x,), dim=int(n.attr("axis", -1)) % value.rank, log=log)
    # Before version 13 all dims from `axis` on are one.
    axis = int(n.attr("axis", 1)) % value.rank
    whole = math.prod(value.shape[axis:])
    own = next((d for d in range(axis, value.rank) if value.shape[d] == whole), None)
    if own is not None:
        return t.emit(n, "softmax", (x,), dim=own, log=log)
    flat = t.view(n, x, (*value.shape[:axis], whole))
    flat = t.emit(n, "softmax", (flat,), t.size(flat), dim=axis, log=log)
    return t.view(n, flat, value.shape)


_REDUCTIONS = {
    "ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min",
    "ReduceProd": "prod", "ReduceL2": "norm", "ReduceLogSumExp": "logsumexp", "ReduceL1": "sum",
    "ReduceSumSquare": "sum", "ReduceLogSum": "sum",
}  # fmt: skip


@register(*_REDUCTIONS)
def _reduce(t: Translator, n: Node) -> Names | Value:
    value = n.value(0)
    axes = n.attr("axes")
    if axes is None:
        axes = t.integers(n, 1)
    if not axes and n.attr("noop_with_empty_axes", 0):
        return value
    x = t.use(value)
    before = {"ReduceL1": "abs", "ReduceSumSquare": "square"}.get(n.op)
    if before:
        x = t.apply(n, before, x)
    y = reduce(t, n, x, _REDUCTIONS[n.op], axes, bool(n.attr("keepdims", 1)))
    return t.apply(n, "log", y) if n.op == "ReduceLogSum" else y


def reduce(
    t: Translator,
    n: Node,
    x: str,
    op: str,
    axes: Sequence[int] | None,
    keep: bool,
    dtype: str | None = None,
) -> str:
    """Reduce over some dims, over all for ``None``."""
    shape = t.size(x)
    dims = sorted(d % len(shape) for d in (axes or range(len(shape)))) if shape else []
    size = [1 if d in dims else s for d, s in enumerate(shape) if keep or d not in dims]
    return t.emit(n, "reduce", (x,), size, dtype=dtype, op=op, dims=dims, keepdim=keep)


@register("ArgMax", "ArgMin")
def _argument(t: Translator, n: Node) -> Names:
    x, axis = t.use(n.value(0)), int(n.attr("axis", 0))
    return reduce(t, n, x, n.op.lower(), [axis], bool(n.attr("keepdims", 1)), "int64")


@register("CumSum", "CumProd")
def _cumulative(t: Translator, n: Node) -> Names | None:
    axis = t.integers(n, 1)
    if not axis or n.attr("exclusive", 0) or n.attr("reverse", 0):
        return None
    value = n.value(0)
    op = n.op.removeprefix("Cum").lower()
    return t.emit(n, "cumulative", (t.use(value),), value.shape, op=op, dim=axis[0] % value.rank)


@register("SoftmaxCrossEntropyLoss")
def _cross_entropy(t: Translator, n: Node) -> Names | None:
    logits, target = n.value(0), n.value(1)
    reduction = n.attr("reduction", "mean")
    if reduction == "none" or n.has(2):
        return None
    attributes = {
        "dim": 1,
        "reduction": reduction,
        "ignore_index": int(n.attr("ignore_index", -100)),
    }
    x = t.use(logits)
    loss = t.emit(n, "cross_entropy", (x, t.use(target)), (), **attributes)
    if len(n.outputs) < 2 or not t.uses[n.outputs[1]]:
        return (loss,)
    return loss, t.emit(n, "softmax", (x,), logits.shape, dim=1, log=True)


@register("NegativeLogLikelihoodLoss")
def _nll(t: Translator, n: Node) -> Names | None:
    """Log-likelihoods that a log-softmax just made are cross-entropy of its operand."""
    value, target = n.value(0), n.value(1)
    reduction = n.attr("reduction", "mean")
    if reduction == "none" or n.has(2):
        return None
    maker = t.maker(t.use(value), "softmax")
    if maker is None or not maker.attributes["log"] or maker.attributes["dim"] != 1:
        return None
    ignore = int(n.attr("ignore_index", -100))
    return t.emit(
        n, "cross_entropy", (maker.inputs[0], t.use(target)), (),
        dim=1, reduction=reduction, ignore_index=ignore,
    )  # fmt: skip


@register("Einsum")
def _einsum(t: Translator, n: Node) -> Names | None:
    equation = str(n.attr("equation")).replace(" ", "")
    if "..." in equation:
        return None
    if "->" not in equation:
        letters = sorted(set(equation) - {","})
        equation += "->" + "".join(c for c in letters if equation.count(c) == 1)
    operands = [t.use(n.value(p)) for p in range(len(n.inputs))]
    return t.emit(n, "einsum", operands, equation=equation)


@register("LRN")
def _local_response(t: Translator, n: Node) -> Names:
    """``x / (bias + alpha * mean of squares over neighbouring channels) ** beta``."""
    value = n.value(0)
    if value.rank < 3:
        raise ImportModelError(f"operator '{n.name}' (LRN) has rank {value.rank}, expected images")
    window = int(n.attr("size"))
    batch, channels, *image = value.shape
    x = t.use(value)
    y = t.apply(n, "square", x)
    flat = (batch, 1, channels, math.prod(image))
    y = t.view(n, y, flat)
    before, after = (window - 1) // 2, window // 2
    if before != after:
        shape = (batch, 1, channels + 1, flat[3])
        y = t.emit(
            n, "pad", (y,), shape, pads=[[0, 0], [0, 0], [0, after - before], [0, 0]], value=0
        )
    y = t.emit(
        n, "pool", (y,), flat, mode="avg", kernel=[window, 1], stride=[1, 1],
        padding=[before, 0], ceil_mode=False,
    )  # fmt: skip
    y = t.view(n, y, value.shape)
    y = t.apply(n, "scale", y, scalars=[float(n.attr("alpha", 1e-4))])
    y = t.apply(n, "add", y, scalars=[float(n.attr("bias", 1.0))])
    y = t.apply(n, "pow", y, scalars=[float(n.attr("beta", 0.75))])
    return t.apply(n, "div", x, y)
