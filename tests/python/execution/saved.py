"""What torch's autograd keeps for an operator, to compare with what its rule says is kept."""

from __future__ import annotations

from typing import Any

import torch

from tensoropt.graph import DTYPE_BYTES
from tensoropt.sharding.rules import rule_for

from .harness import Case

_CPU = "torch on a CPU has no fused kernel for this; the rule describes a fused one"
_TEST = "what is run here is made of several operators"
KEPT_OTHERWISE = {
    "layer_norm/rms": _CPU,
    "attention/cross": _CPU,
    "attention/bias": _CPU,
    "attention/low rank mask": _CPU,
    "lstm/lstm 1": _CPU,
    "lstm/lstm 2": _CPU,
    "lstm/gru 1": _CPU,
    "lstm/rnn 2": _CPU,
    "batch_norm/running": "the running statistics are copied, so that the test leaves them alone",
    "moe_combine/balanced": _TEST,
    "elementwise/some_new_function": "unknown: operand and result are assumed, an upper bound",
    "opaque/inverse": "unknown: operand and result are assumed, an upper bound",
}
"""Cases for which torch keeps something else, and why."""


def observed_bytes(case: Case) -> int:
    """Bytes kept in float32, storages counted once; weights, buffers and scalars are left out."""
    operands = [
        (t.detach().to(torch.float32) if t.is_floating_point() else t).requires_grad_(
            t.requires_grad
        )
        for t in case.make()
    ]
    specs = [o for o in case.operands if o is not None]
    resident = {
        t.untyped_storage().data_ptr()
        for t, o in zip(operands, specs, strict=True)
        if o.kind in ("parameter", "buffer")
    }
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    def unpack(tensor: Any) -> torch.Tensor:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        results = case.reference(operands)
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept if t.numel() > 1
    }
    assert results
    return sum(size for at, size in storages.items() if at not in resident)


def predicted_bytes(case: Case) -> int:
    """Bytes that the rule says are kept, in float32."""
    graph = case.graph(case.reference(case.make()), "float32")
    operator = graph.operators[0]
    rule = rule_for(graph, operator)
    operands, results = graph.operands(operator), graph.results(operator)
    tensors = [operands[p] for p in rule.saved_inputs] + [results[p] for p in rule.saved_outputs]
    total = sum(t.size * DTYPE_BYTES[t.dtype] for t in tensors if t is not None)
    sizes = {dim.name: dim.size for dim in rule.dims}
    for extent in rule.saved_extra:
        dtype = "float32" if extent.dtype == "activation" else extent.dtype
        total += extent.elements(sizes) * DTYPE_BYTES[dtype]
    return total
