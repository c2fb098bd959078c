"""Recurrent layers: LSTM, GRU and plain RNN as one operator."""

from __future__ import annotations

from tensoropt.sharding.families._call import Call, Dims, Labels, finish
from tensoropt.sharding.rule import Rule, Serial

__all__ = ["lstm"]

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def lstm(call: Call) -> Rule:
    """Shard the batch; every step reads the whole hidden state, which is fixed.

    Products with the operand are done for all steps at once, those with the hidden state step by
    step, each reading the layer's recurrent weights anew (as cuDNN's standard algorithm does:
    Appleyard, Kocisky, Blunsom, arXiv 1604.01946).

    Kept: operand and result, and what a fused kernel reserves for every step, layer and direction:
    the gates, the new state and (LSTM: the new cell; GRU: the candidate's recurrent part) one more
    state, that is ``(gates + 2) * hidden`` values, ``2 * hidden`` for a plain RNN.
    """
    call.count(1, None, results=None)
    first = bool(call.attributes.get("batch_first", False))
    x = call.expect(0, (None,) * 3, "x[b, s, i]" if first else "x[s, b, i]")
    b, s = x.shape[:2] if first else x.shape[1::-1]
    cell = call.attributes.get("cell", "lstm")
    if cell not in _GATES:
        call.fail(f"attribute cell={cell!r}, expected one of {sorted(_GATES)}")
    hidden, layers = int(call.attribute("hidden")), int(call.attributes.get("layers", 1))
    directions = 2 if call.attributes.get("bidirectional", False) else 1
    if not 1 <= len(call.results) <= 3:
        call.fail(f"has {len(call.results)} results, expected y, h and for an LSTM c")
    rows = (b, s) if first else (s, b)
    call.expect_result(0, (*rows, directions * hidden), "y")
    state = (layers * directions, b, hidden)
    for position in range(1, len(call.results)):
        call.expect_result(position, state, "final state [layers * directions, b, hidden]")

    dims = Dims()
    batch = dims.add("b", b)
    sequence: Labels = (batch, None, None) if first else (None, batch, None)
    of_state: Labels = (None, batch, None)
    inputs: list[Labels] = [sequence]
    for tensor in call.operands[1:]:
        if tensor is not None and tensor.kind != "parameter" and tensor.shape == state:
            inputs.append(of_state)
        else:
            inputs.append((None,) * len(tensor.shape) if tensor is not None else ())
    gates = _GATES[cell]
    widths = [x.shape[2]] + [directions * hidden] * (layers - 1)
    work = sum(2.0 * b * s * directions * gates * hidden * (width + hidden) for width in widths)
    lowest = 2.0 * b * s * directions * gates * hidden * x.shape[2]
    trained = call.any_grad()
    weights = any(call.needs_grad(p) for p in range(1, len(call.operands)))
    # Gradients of states always flow back; that of the lowest layer's operand only if asked for.
    backward = work * weights + work - (0.0 if call.needs_grad(0) else lowest)
    steps = s * layers * directions
    serial = Serial(steps, steps * 2.0 * b * gates * hidden * hidden, gates * hidden * hidden)
    reserved = s * layers * directions * hidden * (gates + 2 if cell != "rnn" else 2)
    return finish(
        call,
        dims,
        inputs,
        [sequence, *[of_state] * (len(call.results) - 1)],
        compute="matmul",
        flops=work,
        backward_flops=backward * trained,
        serial=serial,
        saved_inputs=call.kept(0) if trained else (),
        saved_outputs=(0,) if trained else (),
        saved_extra=(dims.extent((b, reserved), (batch, None)),) if trained else (),
    )
