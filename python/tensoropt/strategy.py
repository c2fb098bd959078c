"""One complete answer: how every operator, tensor and parameter is split, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .cluster import Mesh

__all__ = ["Collective", "Costs", "ParameterPlacement", "Strategy"]


@dataclass(frozen=True, slots=True)
class ParameterPlacement:
    """How one parameter is kept.

    Parameters
    ----------
    layout : tuple of str
        The operators' side, per mesh axis: ``R`` or ``S<dim>``.
    scheme : str
        ``ddp``, ``zero1``, ``zero2``, ``zero3`` (gathered again in the backward pass) or
        ``zero3_keep`` (gathered once, kept until then).
    axes : tuple of int
        Mesh axes over which ``scheme`` shards, innermost last; empty for ``ddp``.
    """

    layout: tuple[str, ...]
    scheme: str
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """Communication that a strategy issues, as often as ``count`` in one iteration.

    Parameters
    ----------
    kind : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter`` or ``all_to_all``.
    axis : int
        Position of the mesh axis.
    nbytes : int
        By the convention of ``cost.communication``.
    count : int
        Times in one iteration (micro-batches included).
    phase : str
        ``forward``, ``backward``, ``recompute`` or ``step``.
    subject : str
        The tensor, parameter or operator it serves.
    why : str
        ``redistribution``, ``gradient sync``, ``parameter gather`` or ``inside operator``.
    seconds : float
        Time of all of them, before overlap.
    """

    kind: str
    axis: int
    nbytes: int
    count: int
    phase: str
    subject: str
    why: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What one strategy costs, per device and iteration.

    Parameters
    ----------
    time_s : float
        Iteration time by the search's cost model (compute plus exposed communication).
    simulated_time_s : float
        The same, re-timed with one stream per link class.
    memory_bound_bytes : int
        Resident plus transient bytes by the search's model: never less than the replay.
    memory_peak_bytes : int
        Peak of the liveness replay in the executed order.
    device_bytes : int
        Device total for ``memory_bound_bytes``: constant overhead plus allocator factor.
    compute_s, communication_s : float
        Busy times of compute and of all collectives, before overlap.
    weight_bytes, gradient_bytes, optimizer_bytes, saved_bytes, transient_bytes : int
        Parts of ``memory_bound_bytes``.
    """

    time_s: float
    simulated_time_s: float
    memory_bound_bytes: int
    memory_peak_bytes: int
    device_bytes: int
    compute_s: float = 0.0
    communication_s: float = 0.0
    weight_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    saved_bytes: int = 0
    transient_bytes: int = 0


@dataclass(frozen=True)
class Strategy:
    """A parallelization strategy for one model on one cluster.

    Parameters
    ----------
    model, cluster : str
        Names, for people.
    graph_fingerprint : str
        ``Graph.fingerprint()`` of the model it was made for.
    mesh : Mesh
    batch_size, micro_batches : int
        Samples in an iteration, and into how many pieces it is cut.
    precision, optimizer : str
        Names of the bundles used.
    recompute : mapping of str to bool
        For every repeated block, by name, whether it is recomputed in the backward pass.
    operators : mapping of str to tuple of str
        Label of each mesh axis for every operator (see ``sharding.configurations``).
    tensors : mapping of str to tuple of str
        For every tensor with a node of its own, its state on each mesh axis (``R``, ``R/P``,
        ``S<dim>``).
    parameters : mapping of str to ParameterPlacement
    regathered : frozenset of (str, str)
        (tensor, consumer) pairs whose gathered copy is not kept but gathered again; the consumer
        is an operator's name, or the empty string for the tensor's own node.
    costs : Costs
    collectives : tuple of Collective
        Everything it communicates.
    description : str
        One line, e.g. ``data 4 x tensor 2, ZeRO-3 on axis a0``.
    scheme : str
        Name of the named scheme it is, or empty.
    notes : tuple of str
        Assumptions and operators without a rule.
    """

    model: str
    cluster: str
    graph_fingerprint: str
    mesh: Mesh
    batch_size: int
    micro_batches: int
    precision: str
    optimizer: str
    recompute: Mapping[str, bool]
    operators: Mapping[str, tuple[str, ...]]
    tensors: Mapping[str, tuple[str, ...]]
    parameters: Mapping[str, ParameterPlacement]
    regathered: frozenset[tuple[str, str]]
    costs: Costs
    collectives: tuple[Collective, ...] = ()
    description: str = ""
    scheme: str = ""
    notes: tuple[str, ...] = field(default=())
