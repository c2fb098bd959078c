"""What a family's sharding rule says: an operator as an iteration over named dimensions.

A rule turns an operator with concrete shapes into a :class:`Rule`: its shardable named dims with
their roles, the named dim behind every tensor dim, which operands may be pending sums, what the
operator computes, keeps for backward, and communicates inside itself. Configurations, layouts,
gradients' layouts and costs all follow from it (``configurations``, ``cost``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Collective", "Extent", "NamedDim", "Rule"]

Role = Literal["free", "reduction", "internal"]
Phase = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class NamedDim:
    """A shardable dim of an operator's iteration space. Fixed dims are simply not listed.

    Parameters
    ----------
    name : str
        E.g. ``b``, ``k``, ``n``.
    size : int
        What mesh axes must divide. For a tensor dim that merges several (a reshape), the size of
        the leading factor: sharding it is sharding the merged dim.
    role : str
        ``free``; ``reduction`` (outputs become ``Partial``); ``internal`` (the operator itself
        communicates, see :attr:`Rule.collectives`; outputs without the dim are ``Replicate``).
    padded : bool
        Whether a mesh that does not divide it pads it (vocabularies) instead of being refused.
    """

    name: str
    size: int
    role: Role = "free"
    padded: bool = False


@dataclass(frozen=True, slots=True)
class Extent:
    """A number of elements that shrinks with sharding: ``constant * product of local dims``.

    Parameters
    ----------
    dims : tuple of str
        Named dims of the rule.
    constant : int
        Product of everything that is not sharded (fixed dims, trailing factors).
    dtype : str
        ``activation`` (the compute dtype), or a key of ``graph.DTYPE_BYTES``.
    """

    dims: tuple[str, ...]
    constant: int = 1
    dtype: str = "activation"

    def elements(self, local: Mapping[str, int]) -> int:
        """Elements held when each named dim has the given local size."""
        return self.constant * math.prod(local[d] for d in self.dims)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective inside the operator, run on every axis that is assigned to ``dim``.

    Parameters
    ----------
    dim : str
        The ``internal`` named dim whose sharding makes it necessary.
    kind : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter`` or ``all_to_all``; sizes are by the
        convention of ``cost.communication``.
    extent : Extent
        The local buffer.
    phase : str
        ``forward`` or ``backward``.
    count : int
        How many of them.
    """

    dim: str
    kind: str
    extent: Extent
    phase: Phase = "forward"
    count: int = 1


@dataclass(frozen=True, slots=True)
class Serial:
    """A part of an operator's work that is done in steps, each of which waits for the one before.

    Parameters
    ----------
    steps : int
        How many, in one pass; the backward pass has as many.
    flops : float
        Of all steps of one pass, whole operator; a part of ``Rule.flops`` and
        ``Rule.backward_flops``.
    elements : int
        That every step reads anew: the weights of its layer.
    """

    steps: int
    flops: float
    elements: int


@dataclass(frozen=True, slots=True)
class Rule:
    """How one operator, with its shapes, may be sharded and what that costs in numbers.

    Parameters
    ----------
    dims : tuple of NamedDim
    inputs, outputs : tuple of tuple of (str or None)
        For every operand and result, for every tensor dim, the named dim whose sharding shards it
        (``None``: never sharded). An absent operand has an empty tuple.
    linear : tuple of frozenset of int
        Sets of operands that may be ``Partial`` together, the others being ``Replicate``; all
        results are then ``Partial``. An add of two has ``{0, 1}``; a product ``{0}`` and ``{1}``;
        a view ``{0}``.
    compute : str
        Kind for the compute model: ``matmul``, ``convolution``, ``attention``, ``elementwise``,
        ``normalization``, ``softmax``, ``reduction``, ``gather``, ``copy`` or ``none`` (free).
    flops : float
        Forward, whole operator. Divided by the sizes of all axes assigned to named dims.
    backward_flops : float
        Backward, whole operator, given which operands need gradients.
    saved_inputs, saved_outputs : tuple of int
        What is kept for backward, by position.
    saved_extra : tuple of Extent
        What is kept beside operands and results (statistics, masks, log-sum-exp).
    collectives : tuple of Collective
        Communication inside the operator.
    alias : bool
        Results share the storage of operand 0 (views): no memory, no traffic.
    alignment : tuple of str
        Named dims whose local size the matrix units want to be a multiple of 8 (for the compute
        model); may be empty.
    bias : int or None
        The operand that is added on one rank only when a reduction dim is sharded.
    serial : Serial or None
        What of the work cannot be done at once.
    note : str
        What the rule assumes, for reports; empty if nothing.
    """

    dims: tuple[NamedDim, ...]
    inputs: tuple[tuple[str | None, ...], ...]
    outputs: tuple[tuple[str | None, ...], ...]
    linear: tuple[frozenset[int], ...] = ()
    compute: str = "elementwise"
    flops: float = 0.0
    backward_flops: float = 0.0
    saved_inputs: tuple[int, ...] = ()
    saved_outputs: tuple[int, ...] = ()
    saved_extra: tuple[Extent, ...] = ()
    collectives: tuple[Collective, ...] = ()
    alias: bool = False
    alignment: tuple[str, ...] = ()
    bias: int | None = None
    serial: Serial | None = None
    note: str = ""

    def dim(self, name: str) -> NamedDim:
        """The named dim of that name."""
        for dim in self.dims:
            if dim.name == name:
                return dim
        raise KeyError(name)
