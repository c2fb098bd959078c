"""What it costs to bring a tensor from the layout it has to the layout it is read in.

Forward the tensor is converted, backward its gradient is converted the other way. A gather may
keep what it gathered for the backward pass, or keep the shard and gather again: both alternatives
are priced, the search chooses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensoropt.graph import Tensor
from tensoropt.sharding.layouts import PARTIAL, Redistribution, split_states

from .model import CostModel

__all__ = ["ConversionTerms", "Saving", "conversion_terms", "dims_used"]

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Saving:
    """Who keeps a tensor for the backward pass.

    Parameters
    ----------
    producer : bool
        Its producer keeps its result.
    reader : bool
        Whoever reads the converted tensor keeps it (for a tensor's own node: any of its readers,
        or a recomputed block that starts from it).
    charged : bool
        The source's own copy is charged already: it is a tensor node, charged where it is
        produced, or a view, which shares the storage of its operand.
    """

    producer: bool
    reader: bool
    charged: bool = False


@dataclass(frozen=True)
class ConversionTerms:
    """Arrays of shape (K source, K target), for one micro-batch; ``inf`` where impossible.

    Attributes
    ----------
    same : bool array
        Where nothing happens to the tensor.
    forward_s, backward_s : float arrays
    saved_bytes : float array
        Charged when the converted copy is kept.
    transient_bytes : float array
        Source, target and what is met between them, for the tensor or for its gradient.
    regather_saved_bytes, regather_transient_bytes : float arrays
        When it is gathered again in the backward pass, which costs ``forward_s`` once more.
    regather : bool array
        Where gathering again is an alternative worth looking at.
    """

    same: npt.NDArray[np.bool_]
    forward_s: FloatArray
    backward_s: FloatArray
    saved_bytes: FloatArray
    transient_bytes: FloatArray
    regather_saved_bytes: FloatArray
    regather_transient_bytes: FloatArray
    regather: npt.NDArray[np.bool_]


def dims_used(*states: IntArray) -> tuple[int, ...]:
    """Tensor dims that some row of state digits shards."""
    digits = np.unique(np.concatenate([s.ravel() for s in states])) if states else np.array([])
    return tuple(int(d) - 3 for d in digits if d >= 3)


def conversion_terms(
    model: CostModel,
    tensor: Tensor,
    source: IntArray,
    target: IntArray,
    saving: Saving,
    *,
    from_shared: bool = False,
) -> ConversionTerms:
    """Price every conversion of a tensor.

    Parameters
    ----------
    model : CostModel
    tensor : Tensor
    source, target : (K, axes) int arrays
        State digits at both ends.
    saving : Saving
    from_shared : bool
        The source is a node that sums its readers' gradients (a shared tensor or a tied
        parameter): their gradients may become ``Partial`` there for free.
    """
    dims = dims_used(source, target)
    moves = model.redistribution(tensor, dims)
    here, gradient_here = (moves.space.positions(d) for d in split_states(source))
    there, gradient_there = (moves.space.positions(d) for d in split_states(target))
    forward = _between(moves, here, there)
    backward = np.zeros_like(forward)
    beside = _pick(moves.buffer_bytes, here, there)
    beside_back = np.zeros_like(forward)
    same_back = np.ones_like(forward, bool)
    if tensor.requires_grad:
        back = model.redistribution(tensor, dims, into_partial=from_shared)
        backward = _between(back, gradient_there, gradient_here).T
        beside_back = _pick(back.buffer_bytes, gradient_there, gradient_here).T
        same_back = gradient_here[:, None] == gradient_there[None, :]
    local_source = np.where(here >= 0, moves.local_bytes[here], 0.0)[:, None]
    local_target = np.where(there >= 0, moves.local_bytes[there], 0.0)[None, :]
    same = here[:, None] == there[None, :]
    own = 0.0 if saving.charged else 1.0
    stays = own * local_source * float(saving.producer or saving.reader)
    moved = own * local_source * float(saving.producer) + local_target * float(saving.reader)
    saved = np.where(same, stays, moved)
    need_back = np.where(same_back, 0.0, local_target + beside_back)
    transient = np.maximum(np.where(same, 0.0, local_source + beside), need_back)
    partial = np.any(split_states(source)[0] == PARTIAL, axis=1)[:, None]
    regather = (
        (~same)
        & (local_source < local_target)
        & ~partial
        & np.isfinite(forward)
        & np.isfinite(backward)
    )
    if not saving.reader:
        regather[:] = False
    return ConversionTerms(
        same,
        forward,
        backward,
        saved,
        transient,
        np.broadcast_to(own * local_source, forward.shape),
        np.maximum(local_source + 2.0 * beside, need_back),
        regather,
    )


def _between(moves: Redistribution, source: IntArray, target: IntArray) -> FloatArray:
    seconds = _pick(moves.seconds, source, target)
    seconds[source < 0, :] = np.inf
    seconds[:, target < 0] = np.inf
    return seconds


def _pick(table: FloatArray, source: IntArray, target: IntArray) -> FloatArray:
    return table[np.ix_(source, target)].copy()
