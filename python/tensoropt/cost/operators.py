"""What an operator costs in each of its configurations, beside its operands' way to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensoropt.graph import Graph, Operator, Tensor
from tensoropt.sharding.configurations import Configurations
from tensoropt.sharding.layouts import STATE_PR

from .model import CostModel

__all__ = ["OperatorTerms", "local_bytes", "operator_terms"]

FloatArray = npt.NDArray[np.floating]


@dataclass(frozen=True)
class OperatorTerms:
    """Arrays of length K, for one micro-batch.

    Attributes
    ----------
    forward_s, backward_s : float arrays
        Kernels and the collectives inside the operator.
    forward_compute_s, backward_compute_s : float arrays
        The kernels alone: what a gradient sync or a parameter gather may hide behind.
    saved_bytes : float array
        Kept for backward by the operator itself: statistics, masks, batch inputs. Operands and
        results that it keeps are charged where their layouts meet (``conversions``).
    working_bytes : float array
        Local operands and results (or their gradients) while it runs.
    copied_bytes : float array
        What a view that takes parts of its operand needs when their gradients are put together.
    kept_bytes : float array
        Operands that it keeps for backward and that others made, where some ranks hold the same
        part: each may be gathered again.
    resident_bytes : float array
        Buffers.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    forward_compute_s: FloatArray
    backward_compute_s: FloatArray
    saved_bytes: FloatArray
    working_bytes: FloatArray
    copied_bytes: FloatArray
    kept_bytes: FloatArray
    resident_bytes: FloatArray


def local_bytes(model: CostModel, tensor: Tensor, states: npt.NDArray[np.int64]) -> FloatArray:
    """Local bytes of a tensor (the largest shard) in each row of state digits."""
    count = np.ones(len(states), np.int64)
    for d, size in enumerate(tensor.shape):
        parts = np.ones(len(states), np.int64)
        for axis, axis_size in enumerate(model.mesh_shape):
            parts *= np.where(states[:, axis] == 3 + d, axis_size, 1)
        count *= -(-size // parts)
    return count * float(model.itemsize(tensor))


def operator_terms(
    model: CostModel, graph: Graph, operator: Operator, configs: Configurations
) -> OperatorTerms:
    """Cost the configurations of an operator.

    Parameters
    ----------
    model : CostModel
    graph : Graph
        The graph of one micro-batch.
    operator : Operator
    configs : Configurations
        Of that operator on the model's mesh.
    """
    rule = configs.rule
    zeros = np.zeros(len(configs))
    inputs, outputs, gradients, saved, kept, buffers = (zeros.copy() for _ in range(6))
    for operand, tensor in enumerate(graph.operands(operator)):
        if tensor is None or tensor.kind == "constant":
            continue
        nbytes = local_bytes(model, tensor, configs.input_states[operand])
        inputs += nbytes
        if tensor.requires_grad:
            gradients += nbytes
        if tensor.kind == "buffer":
            buffers += nbytes
        elif tensor.kind == "input" and operand in rule.saved_inputs:
            saved += nbytes
        elif tensor.kind == "activation" and operand in rule.saved_inputs:
            divided = [a for a, size in enumerate(model.mesh_shape) if size > 1]
            kept += nbytes * np.any(configs.input_states[operand][:, divided] < 3, axis=1)
    for result, tensor in enumerate(graph.results(operator)):
        outputs += local_bytes(model, tensor, configs.output_states[result])
    for extent in rule.saved_extra:
        saved += configs.local_elements(extent) * float(model.dtype_bytes(extent.dtype))
    needs_backward = any(t.requires_grad for t in graph.results(operator))
    copied = zeros
    if rule.alias:
        copied = (inputs + outputs) * float(needs_backward and takes_parts(graph, operator))
        inputs, outputs, gradients = zeros, zeros, zeros
    forward = _kernels(model, configs, rule.flops, inputs + outputs)
    backward: FloatArray = zeros
    if needs_backward:
        backward = _kernels(model, configs, rule.backward_flops, outputs + inputs + gradients)
    inside = {"forward": zeros.copy(), "backward": zeros.copy()}
    for kind, axis, nbytes, phase, use in inner_collectives(model, configs):
        if phase == "backward" and not needs_backward:
            continue
        inside[phase] += np.where(use, model.collective_time(kind, axis, nbytes), 0.0)
    if graph.loss in operator.outputs:
        inside["forward"] += _reading_the_loss(model, configs)
    return OperatorTerms(
        forward + inside["forward"],
        backward + inside["backward"],
        forward,
        backward,
        saved if needs_backward else zeros,
        inputs + outputs,
        copied,
        kept,
        buffers,
    )


def takes_parts(graph: Graph, operator: Operator) -> bool:
    """Whether results are not all of the first operand, element for element."""
    sizes = [t.size for t in graph.results(operator)]
    return sizes != [graph.tensors[operator.inputs[0]].size]


def _kernels(
    model: CostModel, configs: Configurations, flops: float, nbytes: FloatArray
) -> FloatArray:
    """Seconds of one pass of an operator: at once what can be, then step after step."""
    rule = configs.rule
    if rule.serial is None:
        return model.kernel_time(rule.compute, flops / configs.divisor, nbytes)
    steps = rule.serial.steps
    at_once = (flops - rule.serial.flops) / configs.divisor
    each = rule.serial.flops / steps / configs.divisor
    weights = rule.serial.elements * float(model.dtype_bytes("activation"))
    step = model.kernel_time(rule.compute, each, np.full(each.shape, weights))
    return model.kernel_time(rule.compute, at_once, nbytes) + steps * step


def inner_collectives(
    model: CostModel, configs: Configurations
) -> list[tuple[str, int, FloatArray, str, npt.NDArray[np.bool_]]]:
    """Collectives inside the operator, as (kind, axis, bytes, phase, in which configurations)."""
    found: list[tuple[str, int, FloatArray, str, npt.NDArray[np.bool_]]] = []
    for collective in configs.rule.collectives:
        elements = configs.local_elements(collective.extent)
        nbytes = elements * float(model.dtype_bytes(collective.extent.dtype))
        for axis in range(len(model.mesh_shape)):
            use = np.array([row[axis] == collective.dim for row in configs.labels], bool)
            if not use.any():
                continue
            for _ in range(collective.count):
                found.append((collective.kind, axis, nbytes, collective.phase, use))
    return found


LOSS_BYTES = 4
"""The loss is read as one float32."""


def _reading_the_loss(model: CostModel, configs: Configurations) -> FloatArray:
    seconds = np.zeros(len(configs))
    states = configs.output_states[0]
    for axis in range(len(model.mesh_shape)):
        one = model.collective_time("all_reduce", axis, np.array([float(LOSS_BYTES)]))[0]
        seconds += np.where(states[:, axis] == STATE_PR, one, 0.0)
    return seconds
