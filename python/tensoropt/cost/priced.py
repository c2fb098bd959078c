"""Priced parts of an assignment: one collective, one operator, one conversion, one parameter."""

from __future__ import annotations

from dataclasses import dataclass

from tensoropt.cost.assignment import State

__all__ = ["ConversionPart", "Move", "OperatorPart", "ParameterPart"]


@dataclass(frozen=True, slots=True)
class Move:
    """One collective.

    Parameters
    ----------
    kind : str
    axis : int
        Position of the mesh axis.
    nbytes : float
        By the convention of ``cost.communication``.
    seconds : float
    local_bytes : float
        What a rank holds after it.
    """

    kind: str
    axis: int
    nbytes: float
    seconds: float
    local_bytes: float


@dataclass(frozen=True, slots=True)
class OperatorPart:
    """An operator under one configuration, for one micro-batch.

    Attributes
    ----------
    forward_s, backward_s : float
        Kernels alone.
    forward_moves, backward_moves : tuple of Move
        Collectives inside.
    saved_bytes : float
        Kept for backward beside operands and results: statistics, masks, batch inputs.
    working_bytes : float
        Local operands and results.
    copied_bytes : float
        What a view of parts of its operand needs when their gradients are put together.
    again_bytes : float
        Operands that it keeps for backward and that others made, where some ranks hold the same
        part: each may be gathered again.
    buffer_bytes : float
        Buffers, which stay.
    operand_states, result_states : tuple of states
        Empty for an absent or constant operand.
    operand_bytes, result_bytes : tuple of float
        Local sizes; 0 for an absent or constant operand.
    trained : bool
        Whether it has a backward pass.
    """

    forward_s: float
    backward_s: float
    forward_moves: tuple[Move, ...]
    backward_moves: tuple[Move, ...]
    saved_bytes: float
    working_bytes: float
    copied_bytes: float
    again_bytes: float
    buffer_bytes: float
    operand_states: tuple[State, ...]
    result_states: tuple[State, ...]
    operand_bytes: tuple[float, ...]
    result_bytes: tuple[float, ...]
    trained: bool


@dataclass(frozen=True, slots=True)
class ConversionPart:
    """A tensor on its way to where it is read, and its gradient on its way back.

    Attributes
    ----------
    source : tuple of int
        State digits where it comes from.
    forward, backward : tuple of Move
        Collectives; slices move nothing and are left out.
    forward_s, backward_s : float
    same : bool
        Nothing happens to the tensor: it is read where it is.
    source_bytes, target_bytes : float
        Local sizes at both ends.
    transient_bytes : float
        Source, target and what is met between them, for the tensor or for its gradient.
    saved_bytes : float
        Charged for what is kept for backward.
    regathered : bool
        The gathered tensor is dropped, and gathered again in the backward pass.
    """

    source: State
    forward: tuple[Move, ...]
    backward: tuple[Move, ...]
    forward_s: float
    backward_s: float
    same: bool
    source_bytes: float
    target_bytes: float
    transient_bytes: float
    saved_bytes: float
    regathered: bool


@dataclass(frozen=True, slots=True)
class ParameterPart:
    """A parameter, kept in one way, read in one layout.

    Attributes
    ----------
    forward, backward : tuple of Move
        Every micro-batch: gathers of the weight, scatters of the gradient.
    step_backward, step_forward : tuple of Move
        Once an iteration: what completes the gradient, and gathers of the updated weight.
    exposed_s : float
        What all of these add to an iteration.
    again : tuple of Move
        Every micro-batch, if the reader is recomputed.
    again_s : float
        What these add to an iteration.
    accumulate_s : float
        Adding up the gradients of micro-batches, all of them.
    optimizer_s : float
    weight_bytes, gradient_bytes, optimizer_bytes : float
        Resident.
    kept_bytes : float
        Gathered weight, kept from forward to backward.
    gathered_bytes : float
        A weight that is gathered and dropped again.
    scattered_bytes : float
        A gradient that is dropped once it is scattered.
    local_bytes : float
        The weight as the operator reads it.
    whole_gradient_bytes : float
        A gradient before it is scattered.
    """

    forward: tuple[Move, ...]
    backward: tuple[Move, ...]
    step_backward: tuple[Move, ...]
    step_forward: tuple[Move, ...]
    exposed_s: float
    again: tuple[Move, ...]
    again_s: float
    accumulate_s: float
    optimizer_s: float
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    kept_bytes: float
    gathered_bytes: float
    scattered_bytes: float
    local_bytes: float
    whole_gradient_bytes: float

    @property
    def transient_bytes(self) -> float:
        """Beside its one reader: the weight twice, as the next is fetched ahead; the gradient."""
        return 2.0 * self.gathered_bytes + self.scattered_bytes
