"""Operators that nothing is known about, and constants: neither is ever sharded."""

from __future__ import annotations

from tensoropt.sharding.families._call import Call, Dims, finish
from tensoropt.sharding.rule import Rule

__all__ = ["constant", "opaque"]


def constant(call: Call) -> Rule:
    """Replicate a tensor that every rank makes for itself; its consumers slice it."""
    call.count(0, 0, results=None)
    return finish(call, Dims(), [], [(None,) * len(y.shape) for y in call.results], compute="none")


def opaque(call: Call) -> Rule:
    """Replicated on every axis; assumed to keep operands and results if anything is trained."""
    source = call.attributes.get("op", "unknown")
    trained = call.any_grad()
    operands = range(len(call.operands))
    return finish(
        call,
        Dims(),
        [(None,) * len(t.shape) if t is not None else () for t in call.operands],
        [(None,) * len(y.shape) for y in call.results],
        compute="elementwise",
        flops=float(sum(y.size for y in call.results)),
        backward_flops=float(sum(y.size for y in call.results)) * trained,
        saved_inputs=call.kept(*operands) if trained else (),
        saved_outputs=tuple(range(len(call.results))) if trained else (),
        note=f"no rule for '{source}': replicated; its work is guessed from its results' sizes",
    )
