"""How parameters are kept: replicated, or their states, gradients and weights sharded (ZeRO).

The table of schemes is that of the project's cost semantics ("Parameters"): with W, G and O the
bytes of weight, gradient and optimizer state after the operator's own sharding and n the number
of ranks over which a scheme shards,

=============  =====================  ==================================  =======================
scheme         resident               per micro-batch                     per step
=============  =====================  ==================================  =======================
ddp            W + G + O              none                                all-reduce G
zero1          W + G + O/n            none                                reduce-scatter G,
                                                                          all-gather W
zero2          W + (G + O)/n          reduce-scatter G                    all-gather W
zero3          (W + G + O)/n          all-gather W twice,                 none
                                      reduce-scatter G
zero3_keep     (W + G + O)/n, and W   all-gather W, reduce-scatter G      none
               from forward to
               backward
=============  =====================  ==================================  =======================

A tied parameter is gathered and scattered once for each operator that reads it, so that it is never
whole for longer than one of them runs (kept ones are gathered once).

Axes that a scheme leaves out, but on which the operator's gradient is a pending sum, take one
all-reduce per step (of what the scheme left on the rank).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensoropt.graph import Tensor
from tensoropt.sharding.layouts import STATE_RP

from .model import CostModel
from .overlap import exposed_time

__all__ = ["SCHEMES", "Scheme", "StorageTerms", "schemes", "state_bytes", "storage_terms"]

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.int64]

SCHEMES = ("ddp", "zero1", "zero2", "zero3", "zero3_keep")


SHARDED_GRADIENT = ("zero2", "zero3", "zero3_keep")
"""Schemes under which a gradient is scattered as soon as it is whole."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to keep a parameter: a name from :data:`SCHEMES` and the axes over which it shards."""

    name: str
    axes: tuple[int, ...] = ()


def schemes(mesh_shape: Sequence[int]) -> tuple[Scheme, ...]:
    """Every scheme on a mesh: ``ddp``, then each sharding scheme over each non-empty axis set."""
    axes = [a for a, size in enumerate(mesh_shape) if size > 1]
    subsets = [
        chosen for r in range(1, len(axes) + 1) for chosen in itertools.combinations(axes, r)
    ]
    return (
        Scheme("ddp"),
        *(Scheme(name, chosen) for name in SCHEMES[1:] for chosen in subsets),
    )


@dataclass(frozen=True)
class StorageTerms:
    """Arrays of shape (K, number of schemes), for one iteration; ``inf`` where impossible.

    Attributes
    ----------
    time_s : float array
        Exposed communication, accumulation and the optimizer step: everything per iteration.
    recompute_s : float array
        What gathering once more adds if the reader's block is recomputed.
    weight_bytes, gradient_bytes, optimizer_bytes : float arrays
        Resident parts.
    kept_bytes : float array
        Gathered weights kept from forward to backward.
    transient_bytes : float array
        Gathered weights (twice: the next is fetched ahead) and gradients not yet scattered.
    gathered_bytes, scattered_bytes : float arrays
        Of that, a weight and a gradient.
    """

    time_s: FloatArray
    recompute_s: FloatArray
    weight_bytes: FloatArray
    gradient_bytes: FloatArray
    optimizer_bytes: FloatArray
    kept_bytes: FloatArray
    transient_bytes: FloatArray
    gathered_bytes: FloatArray
    scattered_bytes: FloatArray


def state_bytes(model: CostModel, trained: bool = True) -> tuple[float, float, float]:
    """Bytes of weight, gradient and optimizer state of one parameter element."""
    if not trained:
        return float(model.precision.parameter_bytes), 0.0, 0.0
    return (
        float(model.precision.parameter_bytes),
        float(model.precision.gradient_bytes),
        float(model.optimizer.bytes_per_parameter(model.precision)),
    )


def storage_terms(
    model: CostModel,
    tensor: Tensor,
    states: IntArray,
    choices: Sequence[Scheme],
    forward_compute_s: FloatArray | None = None,
    backward_compute_s: FloatArray | None = None,
    *,
    readers: int = 1,
) -> StorageTerms:
    """Price every way to keep a parameter under every configuration of its reader.

    Parameters
    ----------
    model : CostModel
    tensor : Tensor
    states : (K, axes) int array
        State digits of the parameter as its reader shards it.
    choices : sequence of Scheme
    forward_compute_s, backward_compute_s : (K,) float arrays, optional
        Kernel times of the reader, behind which communication may hide; none for a tied
        parameter and for all but the largest parameter of an operator.
    readers : int
        Number of operators that read it.

    Notes
    -----
    A scheme that names an axis on which the reader shards the tensor is impossible.
    """
    parts = [
        _price(model, tensor, states, scheme, forward_compute_s, backward_compute_s, readers)
        for scheme in choices
    ]
    return StorageTerms(*(np.stack(column, axis=1) for column in zip(*parts, strict=True)))


def local_parameter_elements(model: CostModel, tensor: Tensor, states: IntArray) -> FloatArray:
    """Local elements (the largest shard) of a parameter in each row of state digits."""
    count = np.ones(len(states), np.int64)
    for d, size in enumerate(tensor.shape):
        parts = np.ones(len(states), np.int64)
        for axis, axis_size in enumerate(model.mesh_shape):
            parts *= np.where(states[:, axis] == 3 + d, axis_size, 1)
        count *= -(-size // parts)
    return count.astype(np.float64)


@dataclass(frozen=True)
class Traffic:
    """Communication of one scheme, as (kind, axis, bytes per configuration) lists."""

    micro_forward: list[tuple[str, int, FloatArray]]
    micro_backward: list[tuple[str, int, FloatArray]]
    step_backward: list[tuple[str, int, FloatArray]]
    step_forward: list[tuple[str, int, FloatArray]]


def traffic(
    model: CostModel, tensor: Tensor, states: IntArray, scheme: Scheme, readers: int = 1
) -> Traffic:
    """The collectives of one scheme, in issue order; zero bytes where an axis needs none."""
    elements = local_parameter_elements(model, tensor, states)
    weight, _, _ = state_bytes(model)
    pending = states == STATE_RP
    reduce_bytes = float(model.precision.reduction_bytes)

    scatter: list[tuple[str, int, FloatArray]] = []
    left = elements * reduce_bytes
    for axis in scheme.axes:
        scatter.append(("reduce_scatter", axis, np.where(pending[:, axis], left, 0.0)))
        left = left / model.mesh_shape[axis]
    rest: list[tuple[str, int, FloatArray]] = [
        ("all_reduce", axis, np.where(pending[:, axis], left, 0.0))
        for axis, size in enumerate(model.mesh_shape)
        if axis not in scheme.axes and size > 1
    ]
    gather: list[tuple[str, int, FloatArray]] = []
    full = elements * weight / math.prod(model.mesh_shape[a] for a in scheme.axes)
    for axis in reversed(scheme.axes):
        full = full * model.mesh_shape[axis]
        gather.append(("all_gather", axis, full))
    if not tensor.requires_grad:
        scatter, rest = [], []
    match scheme.name:
        case "ddp":
            return Traffic([], [], rest, [])
        case "zero1":
            return Traffic([], [], scatter + rest, gather)
        case "zero2":
            return Traffic([], scatter * readers, rest, gather)
        case "zero3":
            return Traffic(gather * readers, (gather + scatter) * readers, rest, [])
        case _:
            return Traffic(gather, scatter * readers, rest, [])


def _seconds(model: CostModel, moves: list[tuple[str, int, FloatArray]], count: int) -> FloatArray:
    total = np.zeros(count)
    for kind, axis, nbytes in moves:
        total += np.where(nbytes > 0, model.collective_time(kind, axis, nbytes), 0.0)
    return total


def _price(
    model: CostModel,
    tensor: Tensor,
    states: IntArray,
    scheme: Scheme,
    forward_compute_s: FloatArray | None,
    backward_compute_s: FloatArray | None,
    readers: int,
) -> tuple[FloatArray, ...]:
    count = len(states)
    elements = local_parameter_elements(model, tensor, states)
    ranks = math.prod(model.mesh_shape[a] for a in scheme.axes)
    shard = np.ceil(elements / ranks)
    weight, gradient, state = state_bytes(model, tensor.requires_grad)
    moves = traffic(model, tensor, states, scheme, readers)
    m = model.micro_batches
    kappa = max(
        (model.communication.kappa(a) for a, n in enumerate(model.mesh_shape) if n > 1), default=1.0
    )
    nothing = np.zeros(count)
    behind_forward = nothing if forward_compute_s is None else forward_compute_s
    behind_backward = nothing if backward_compute_s is None else backward_compute_s

    def exposed(compute: FloatArray, moved: list[tuple[str, int, FloatArray]]) -> FloatArray:
        seconds = _seconds(model, moved, count)
        return np.asarray(exposed_time(compute, seconds, kappa), np.float64)

    # Each operator's compute hides once: what runs every micro-batch goes first, and what runs
    # once a step hides only where nothing else does.
    time = nothing.copy()
    for compute, every, once in (
        (behind_forward, moves.micro_forward, moves.step_forward),
        (behind_backward, moves.micro_backward, moves.step_backward),
    ):
        time += m * exposed(compute, every)
        free = _seconds(model, every, count) == 0
        time += exposed(np.where(free, compute, 0.0), once)

    sharded_gradient = scheme.name in SHARDED_GRADIENT
    if tensor.requires_grad:
        stepped = elements if scheme.name == "ddp" else shard
        time += model.compute.optimizer_time(stepped, model.optimizer, model.precision)
        if m > 1:
            held = shard if sharded_gradient else elements
            time += m * model.compute.accumulate_time(held, model.precision)
    sharded_weight = scheme.name in ("zero3", "zero3_keep")
    weights = (shard if sharded_weight else elements) * weight
    gradients = (shard if sharded_gradient else elements) * gradient
    optimizer = (elements if scheme.name == "ddp" else shard) * state
    kept = elements * weight if scheme.name == "zero3_keep" else nothing
    gathered = elements * weight * float(scheme.name == "zero3")
    scattered = elements * gradient * float(sharded_gradient)
    transient = 2.0 * gathered + scattered
    impossible = np.any(states[:, list(scheme.axes)] >= 3, axis=1)
    time = np.where(impossible, np.inf, time)
    # Recomputing reads the parameter once more, unless it was kept since the forward pass.
    again = m * exposed(behind_forward, moves.micro_forward if scheme.name == "zero3" else [])
    return (
        time,
        again,
        weights,
        gradients,
        optimizer,
        kept,
        transient,
        gathered,
        scattered,
    )
