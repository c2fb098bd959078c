"""Handlers of operators that compute element by element, reduce, or make losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensoropt.importing.torch_ops_shape import base, normal
from tensoropt.importing.torch_translate import Name, Names, Translator, is_floating, register

_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "celu", "cos",
    "cosh", "deg2rad", "elu", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac",
    "glu_jvp", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "isfinite", "isinf", "isnan",
    "leaky_relu", "lgamma", "log", "log10", "log1p", "log2", "log_sigmoid", "logical_not", "logit",
    "mish", "nan_to_num", "neg", "reciprocal", "relu", "relu6", "round", "rsqrt", "selu", "sgn",
    "sigmoid", "sign", "signbit", "silu", "sin", "sinc", "sinh", "softplus", "softshrink",
    "softsign", "sqrt", "square", "tan", "tanh", "tanhshrink", "threshold", "tril", "triu", "trunc",
)  # fmt: skip
_BINARY = (
    "__and__", "__or__", "__xor__", "addcdiv", "addcmul", "atan2", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "clamp", "clamp_max", "clamp_min",
    "clip", "copysign", "eq", "floor_divide", "fmax", "fmin", "fmod", "ge", "greater",
    "greater_equal", "gt", "heaviside", "hypot", "le", "lerp", "less", "less_equal", "logaddexp",
    "logical_and", "logical_or", "logical_xor", "lt", "masked_fill", "maximum", "minimum", "ne",
    "not_equal", "pow", "prelu", "remainder", "xlogy", "_prelu_kernel",
)  # fmt: skip


def elementwise(t: Translator, node: Any, op: str | None = None) -> Name:
    """An elementwise operator: tensors are operands, numbers go to ``scalars``, in order."""
    given = t.arguments(node)
    operands = [t.tensor(v) for v in given.values() if hasattr(v, "all_input_nodes")]
    scalars = [
        v
        for v in given.values()
        if isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)
    ]
    name = op or base(node).strip("_")
    attributes: dict[str, Any] = {"op": name}
    if scalars:
        attributes["scalars"] = scalars
    return t.emit(node, "elementwise", operands, **attributes)


@register(*_UNARY, *_BINARY)
def _elementwise(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    first = node.args[0] if node.args else None
    # A number as first operand: `rpow` is to `pow` what `rsub` is to `sub`.
    reversed_ = isinstance(first, (int, float))
    return elementwise(t, node, f"r{base(node).strip('_')}" if reversed_ else None)


@register("where")
def _where(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    condition, x, y = node.args
    if isinstance(x, (int, float)) and hasattr(y, "all_input_nodes"):
        return t.emit(
            node, "elementwise", (t.tensor(y), t.tensor(condition)), op="masked_fill", scalars=[x]
        )
    return elementwise(t, node)


@register("rand_like", "randn_like", "randint_like", "bernoulli")
def _random(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    return t.emit(
        node, "elementwise", (t.tensor(node.args[0]),), op=base(node), requires_grad=False
    )


@register("rand", "randn", "randint", "randperm", "normal")
def _random_factory(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    if node.all_input_nodes:
        return t.opaque(node)
    # Drawn again at every step and read like a constant: no memory, no gradient.
    return t.emit(node, "constant", (), op=base(node), requires_grad=False)


@register("gelu")
def _gelu(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    return elementwise(t, node, "gelu_tanh" if a.get("approximate") == "tanh" else "gelu")


@register("glu")
def _glu(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    from tensoropt.importing.torch_ops_shape import divide

    x = t.tensor(a["self"])
    dim = normal(a["dim"], len(t.size(x)))
    value, gate = divide(t, node, x, dim, [t.size(x)[dim] // 2] * 2)
    gate = t.emit(node, "elementwise", (gate,), op="sigmoid")
    return t.emit(node, "elementwise", (value, gate), op="mul")


@register("add", "sub", "subtract", "rsub")
def _add(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    op = {"add": "add", "rsub": "rsub"}.get(base(node), "sub")
    left, right, alpha = a["self"], a["other"], a.get("alpha", 1)
    if not hasattr(right, "all_input_nodes"):
        return t.emit(node, "elementwise", (t.tensor(left),), op=op, scalars=[right * alpha])
    x, y = t.tensor(left), t.tensor(right)
    if op == "rsub":
        x, y, op = y, x, "sub"
    if alpha != 1:
        y = t.emit(node, "elementwise", (y,), t.size(y), op="scale", scalars=[alpha])
    return t.emit(node, "elementwise", (x, y), op=op)


@register("mul", "multiply", "div", "divide", "true_divide")
def _mul(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    op = "mul" if base(node) in ("mul", "multiply") else "div"
    if a.get("rounding_mode"):
        return elementwise(t, node, f"{a['rounding_mode']}_divide")
    x, other = t.tensor(a["self"]), a["other"]
    if hasattr(other, "all_input_nodes"):
        return t.emit(node, "elementwise", (x, t.tensor(other)), op=op)
    if not math.isfinite(other) or (op == "div" and other == 0):
        return t.emit(node, "elementwise", (x,), op=op)
    factor = other if op == "mul" else 1.0 / other
    if factor == 1 and t.builder.tensors[x].dtype == t.dtype(node):
        return x
    return t.emit(node, "elementwise", (x,), op="scale", scalars=[factor])


@register("dropout", "native_dropout", "feature_dropout", "alpha_dropout")
def _dropout(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    x = t.tensor(a["input"])
    p, train = float(a["p"]), a.get("train", True)
    y = t.emit(node, "dropout", (x,), t.size(x), p=p) if p > 0 and train is not False else x
    # The mask is read by autograd alone; a forward reader would fail with a clear message.
    return (y,) if isinstance(node.meta["val"], (tuple, list)) else y


_REDUCTIONS = {
    "sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "max": "max", "min": "min",
    "var": "var", "std": "std", "linalg_vector_norm": "norm", "norm": "norm", "prod": "prod",
    "logsumexp": "logsumexp", "argmax": "argmax", "argmin": "argmin", "any": "any", "all": "all",
    "nansum": "sum", "nanmean": "mean",
}  # fmt: skip


def reduce(
    t: Translator,
    node: Any,
    x: Name,
    op: str,
    dims: Sequence[int] | None,
    keep: bool,
    dtype: str | None = None,
) -> Name:
    """A reduction over some dims, over all for ``None``."""
    shape = t.size(x)
    axes = sorted(normal(d, len(shape)) for d in (dims if dims else range(len(shape))))
    out = [1 if d in axes else s for d, s in enumerate(shape) if keep or d not in axes]
    return t.emit(node, "reduce", (x,), out, dtype=dtype, op=op, dims=axes, keepdim=keep)


@register(*_REDUCTIONS)
def _reduce(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    op = _REDUCTIONS[base(node)]
    if a.get("other") is not None:
        return elementwise(t, node, f"{op}imum")
    x = t.tensor(node.args[0])
    dims = a.get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    keep = bool(a.get("keepdim", False))
    if not t.size(x):
        # Of one number most reductions are that number.
        same = op in ("sum", "mean", "max", "min", "prod", "logsumexp", "any", "all")
        return x if same and not isinstance(node.meta["val"], tuple) else t.opaque(node)
    if isinstance(node.meta["val"], (tuple, list)):
        return (
            reduce(t, node, x, op, dims, keep),
            reduce(t, node, x, f"arg{op}", dims, keep, dtype="int64"),
        )
    return reduce(t, node, x, op, dims, keep)


@register("var_mean", "std_mean")
def _moments(t: Translator, node: Any, a: dict[str, Any]) -> Names:
    x = t.tensor(node.args[0])
    keep = bool(a.get("keepdim", False))
    spread = base(node).split("_")[0]
    return tuple(reduce(t, node, x, op, a.get("dim"), keep) for op in (spread, "mean"))


@register("cumsum", "cumprod", "logcumsumexp")
def _cumulative(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["self"])
    op = "prod" if base(node) == "cumprod" else "sum"
    return t.emit(node, "cumulative", (x,), op=op, dim=normal(a["dim"], len(t.size(x))))


@register(
    "softmax",
    "log_softmax",
    "_softmax",
    "_log_softmax",
    "special_softmax",
    "special_log_softmax",
    "_safe_softmax",
)
def _softmax(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(a["self"])
    dim = normal(a["dim"], len(t.size(x)))
    return t.emit(node, "softmax", (x,), dim=dim, log="log_softmax" in base(node))


_MEAN, _SUM = 1, 2


def averaged(t: Translator, node: Any, x: Name, reduction: int) -> Name:
    """The mean or the sum of a loss per element, or the loss itself, by torch's enumeration."""
    if reduction not in (_MEAN, _SUM) or not t.size(x):
        return x
    return reduce(t, node, x, "mean" if reduction == _MEAN else "sum", None, False)


@register(
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "soft_margin_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "poisson_nll_loss",
)
def _pointwise_loss(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    operands = [t.tensor(v) for v in node.all_input_nodes]
    shape: tuple[int, ...] = ()
    for name in operands:
        shape = _broadcast(shape, t.size(name))
    each = t.emit(node, "elementwise", operands, shape, op=base(node))
    reduction = a.get("reduction", _MEAN)
    if base(node) == "poisson_nll_loss" and len(node.args) > 5:
        reduction = node.args[5]
    return averaged(t, node, each, int(reduction))


@register("cross_entropy_loss")
def _cross_entropy(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    logits, target = t.tensor(a["self"]), t.tensor(a["target"])
    dim = 0 if len(t.size(logits)) == 1 else 1
    reduction = int(a["reduction"])
    soft = is_floating(t.builder.tensors[target].dtype)
    if a.get("weight") is not None or a.get("label_smoothing"):
        t.builder.note("cross-entropy: class weights and label smoothing are not costed")
    if reduction in (_MEAN, _SUM) and not soft:
        return t.emit(
            node,
            "cross_entropy",
            (logits, target),
            dim=dim,
            reduction="mean" if reduction == _MEAN else "sum",
            ignore_index=a["ignore_index"],
        )
    logs = t.emit(node, "softmax", (logits,), t.size(logits), dim=dim, log=True)
    if not soft:
        return _picked(t, node, logs, target, reduction, dim)
    product = t.emit(node, "elementwise", (logs, target), t.size(logs), op="mul")
    rows = reduce(t, node, product, "sum", [dim], False)
    rows = t.emit(node, "elementwise", (rows,), t.size(rows), op="scale", scalars=[-1.0])
    return averaged(t, node, rows, reduction)


@register("nll_loss", "nll_loss_nd", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward")
def _nll(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    logs, target = t.tensor(a["self"]), t.tensor(a["target"])
    dim = 0 if len(t.size(logs)) == 1 else 1
    reduction = int(a["reduction"])
    made = t.made_by(logs, "softmax")
    if made and made.attributes["log"] and made.attributes["dim"] == dim and reduction:
        loss = t.emit(
            node,
            "cross_entropy",
            (made.inputs[0], target),
            (),
            dim=dim,
            reduction="mean" if reduction == _MEAN else "sum",
            ignore_index=a["ignore_index"],
        )
    else:
        loss = _picked(t, node, logs, target, reduction, dim)
    return (loss,) if isinstance(node.meta["val"], (tuple, list)) else loss


def _picked(t: Translator, node: Any, logs: Name, target: Name, reduction: int, dim: int) -> Name:
    """The negative log-probability of every target."""
    shape = list(t.size(target))
    index = t.view(node, target, [*shape[:dim], 1, *shape[dim:]])
    picked = t.emit(node, "gather", (logs, index), t.size(index), dim=dim)
    rows = t.view(node, picked, shape)
    rows = t.emit(node, "elementwise", (rows,), shape, op="scale", scalars=[-1.0])
    return averaged(t, node, rows, reduction)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))
