"""What a program is made of: events in the order in which they are issued, and buffers."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Buffer", "Event", "Mark", "Program"]


@dataclass(slots=True)
class Event:
    """A kernel or a collective.

    Parameters
    ----------
    kind : str
        ``kernel``, ``slice`` (free), or the kind of a collective.
    phase : str
        ``forward``, ``recompute``, ``backward`` or ``step``.
    subject : str
        Operator, tensor or parameter.
    seconds : float
        Alone.
    axis : int
        Mesh axis of a collective, -1 for a kernel.
    nbytes : float
        Of a collective.
    needs : tuple of int
        Events whose results it reads.
    when : str
        ``every`` micro-batch, or only in the ``first`` or the ``last`` one, or ``after`` them.
    why : str
        What a collective is for, as in ``CollectiveUse``.
    """

    kind: str
    phase: str
    subject: str
    seconds: float
    axis: int = -1
    nbytes: float = 0.0
    needs: tuple[int, ...] = ()
    when: str = "every"
    why: str = ""


@dataclass(slots=True)
class Buffer:
    """Memory from one event to another, both included.

    Parameters
    ----------
    name : str
        Tensor, parameter or operator.
    part : str
        What of it, e.g. ``activation``, ``gradient`` or ``gathered weight``.
    nbytes : float
    start, stop : int
        Positions of events.
    """

    name: str
    part: str
    nbytes: float
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a stretch of a program begins: a block, or what runs between two blocks.

    Parameters
    ----------
    event : int
        Position of its first event.
    name : str
        ``forward``, ``backward`` (recomputation included) or ``step``.
    block : int or None
    """

    event: int
    name: str
    block: int | None


@dataclass(frozen=True)
class Program:
    """Events in the order in which they are issued, and buffers.

    Attributes
    ----------
    events : list of Event
    buffers : list of Buffer
        What lies there for the whole iteration reaches from 0 to the last event.
    micro_batches : int
    marks : list of Mark
        In order; a stretch reaches to the next mark.
    """

    events: list[Event]
    buffers: list[Buffer]
    micro_batches: int
    marks: list[Mark] = field(default_factory=list)
