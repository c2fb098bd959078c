"""Elementwise operators with broadcasting, and dropout.

Every dim is free. What the families' catalogue leaves open, the operator's name, is resolved by
:data:`OPERATIONS`: which operands may be pending sums and what is kept for backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tensoropt.sharding.families._call import Call, Dims, Labels, finish
from tensoropt.sharding.rule import Rule

__all__ = ["OPERATIONS", "Operation", "dropout", "elementwise"]


class Operation(NamedTuple):
    """What is particular to an elementwise operator.

    Parameters
    ----------
    keeps : str
        ``nothing``; ``operands`` (all, if any needs a gradient); ``others`` (an operand is kept if
        another one needs a gradient: products); ``second`` (the divisor, and the dividend if the
        divisor needs a gradient); ``condition`` (operand 0); ``mask`` (operand 1); ``result``;
        ``all`` (operands and result); ``decided`` (a bool for each element).
    linear : tuple of frozenset of int
        Sets of operands that may be pending sums together.
    flops : float
        Operations for each element of the result.
    """

    keeps: str
    linear: tuple[frozenset[int], ...] = ()
    flops: float = 1.0


_ONE = (frozenset({0}),)
_BOTH = (frozenset({0, 1}),)
_EITHER = (frozenset({0}), frozenset({1}))
# An exponential, a logarithm or an error function takes about this many operations.
_HARD = 10.0


def _catalogue() -> Mapping[str, Operation]:
    table: dict[str, Operation] = {}

    def put(names: str, operation: Operation) -> None:
        table.update(dict.fromkeys(names.split(), operation))

    put("add sub", Operation("nothing", _BOTH))
    put("neg scale identity clone contiguous copy cast", Operation("nothing", _ONE))
    put("tril triu", Operation("nothing", _ONE))
    put("mul", Operation("others", _EITHER))
    put("div", Operation("second", _ONE))
    put("where", Operation("condition", (frozenset({1, 2}),)))
    put("masked_fill", Operation("mask", _ONE))
    put("rsub sign sgn floor ceil round trunc floor_divide trunc_divide", Operation("nothing"))
    put("rand_like randn_like randint_like bernoulli", Operation("nothing"))
    put("zeros_like ones_like full_like", Operation("nothing"))
    put("eq ne lt le gt ge not_equal less less_equal greater greater_equal", Operation("nothing"))
    put("isnan isinf isfinite signbit logical_not logical_and", Operation("nothing"))
    put("logical_or logical_xor bitwise_not bitwise_and bitwise_or", Operation("nothing"))
    put("bitwise_xor bitwise_left_shift bitwise_right_shift and or xor", Operation("nothing"))
    put("relu", Operation("result"))
    put("tanh sigmoid exp exp2 expm1 sqrt rsqrt reciprocal tan", Operation("result", (), _HARD))
    put("gelu gelu_tanh silu swish mish softplus softsign", Operation("operands", (), _HARD))
    put(
        "erf erfc log log1p log2 log10 logaddexp sin cos asin acos",
        Operation("operands", (), _HARD),
    )
    put("atan atan2 sinh cosh elu selu celu logsigmoid", Operation("operands", (), _HARD))
    put("log_sigmoid quick_gelu binary_cross_entropy kl_div", Operation("operands", (), _HARD))
    put("binary_cross_entropy_with_logits", Operation("operands", (), _HARD))
    put("leaky_relu relu6 hardtanh hardswish hardsigmoid abs", Operation("operands"))
    put("clamp clamp_min clamp_max clip threshold square prelu", Operation("operands"))
    put("maximum minimum fmax fmin remainder fmod lerp addcmul", Operation("operands"))
    put("addcdiv mse_loss l1_loss smooth_l1_loss huber_loss", Operation("operands"))
    put("acosh asinh atanh erfinv lgamma logit sinc tanhshrink", Operation("operands", (), _HARD))
    put("xlogy hypot", Operation("operands", (), _HARD))
    put("hardshrink softshrink nan_to_num copysign prelu_kernel", Operation("operands"))
    put("deg2rad frac heaviside", Operation("nothing"))
    put("pow", Operation("power", (), _HARD))
    return MappingProxyType(table)


OPERATIONS: Mapping[str, Operation] = _catalogue()
"""Every elementwise operator known by name."""

_UNKNOWN = Operation("all", (), _HARD)
# With a scalar as the other operand these are no longer linear (a pending sum would gain the scalar
# once for every rank).
_AFFINE = frozenset({"add", "sub"})
# These look at the position in the last two dims, which are therefore fixed.
_POSITIONAL = frozenset({"tril", "triu"})


def elementwise(call: Call) -> Rule:
    """Operands broadcast to the result; a repeated operand lacks the dim."""
    call.count(1, None)
    op = str(call.attribute("op"))
    operation = OPERATIONS.get(op, _UNKNOWN)
    result = call.results[0]
    dims = Dims()
    fixed = len(result.shape) - 2 if op in _POSITIONAL else len(result.shape)
    labels = tuple(
        dims.add(f"d{d}", size) if d < fixed else None for d, size in enumerate(result.shape)
    )
    inputs = [
        _aligned(call, position, labels) if call.has(position) else ()
        for position in range(len(call.operands))
    ]
    grads = sum(call.needs_grad(p) for p in range(len(call.operands)))
    keeps_operands, keeps_result = _kept(call, operation) if grads else ((), False)
    return finish(
        call,
        dims,
        inputs,
        [labels],
        linear=_linear(call, op, operation),
        compute="elementwise",
        flops=operation.flops * result.size,
        backward_flops=operation.flops * result.size * grads,
        saved_inputs=call.kept(*keeps_operands),
        saved_outputs=(0,) if keeps_result else (),
        note=(
            f"elementwise '{op}' is not known by name: assumed to keep operands and result"
            if op not in OPERATIONS and grads
            else ""
        ),
    )


def _aligned(call: Call, position: int, labels: Labels) -> Labels:
    tensor = call.operand(position)
    result = call.results[0].shape
    rank = len(tensor.shape)
    tail = result[len(result) - rank :] if rank <= len(result) else ()
    if rank > len(result) or any(s not in (1, r) for s, r in zip(tensor.shape, tail, strict=True)):
        call.fail(
            f"operand {position} '{tensor.name}' has shape {tensor.shape}, expected one that "
            f"broadcasts to the result's {result}"
        )
    own = labels[len(labels) - rank :]
    return tuple(name if s > 1 else None for s, name in zip(tensor.shape, own, strict=True))


def _linear(call: Call, op: str, operation: Operation) -> tuple[frozenset[int], ...]:
    """Find the sets of operands that may be pending sums, with these operands and scalars."""
    if not call.results[0].is_floating:
        return ()
    count = len(call.operands)
    scalars = call.attributes.get("scalars") or ()
    if op in _AFFINE and count < 2:
        return ()
    if op == "masked_fill" and (count > 2 or not scalars or any(scalars)):
        return ()
    if op == "where" and count == 2:
        return (frozenset({1}),) if scalars and not any(scalars) else ()
    present = (s for s in operation.linear if all(call.has(p) for p in s))
    return tuple(s for s in present if all(call.operand(p).is_floating for p in s))


def _kept(call: Call, operation: Operation) -> tuple[list[int], bool]:
    """Positions of operands to keep and whether to keep the result; some gradient is needed."""
    every = [p for p in range(len(call.operands)) if call.has(p)]
    match operation.keeps:
        case "nothing":
            return [], False
        case "operands":
            return every, False
        case "others":
            return [p for p in every if any(call.needs_grad(q) for q in every if q != p)], False
        case "second":
            return [1] + [0] * call.needs_grad(1), False
        case "condition":
            return [0], False
        case "mask":
            return [1], False
        case "result":
            return [], True
        case "power":
            # A power of tensors keeps its result for the exponent's gradient.
            return every, len(every) == 2 and call.needs_grad(1)
        case _:
            return every, True


def dropout(call: Call) -> Rule:
    """Zeroes elements; ranks that hold the same part draw the same mask. Keeps a bool mask."""
    call.count(1, 1)
    x = call.operand(0)
    call.expect_result(0, x.shape, "the operand's shape")
    p = float(call.attributes.get("p", 0.5))
    dims = Dims()
    labels = dims.each("d", x.shape)
    trained = call.needs_grad(0)
    masked = trained and p > 0
    return finish(
        call,
        dims,
        [labels],
        [labels],
        linear=(frozenset({0}),),
        compute="elementwise" if p > 0 else "none",
        flops=2.0 * x.size * (p > 0),
        backward_flops=2.0 * x.size * masked,
        saved_extra=(dims.extent(x.shape, labels, "bool"),) if masked else (),
        alias=p == 0,
    )
