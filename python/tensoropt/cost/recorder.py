"""What a walk over a graph writes down: events, buffers, and where every tensor lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensoropt.cost.events import Buffer, Event
from tensoropt.cost.priced import ConversionPart, Move, ParameterPart

__all__ = ["Again", "Recorder", "Value", "Weights"]


@dataclass(slots=True)
class Again:
    """How to gather once more what was not kept.

    ``part`` says how to get from the source, a tensor that may itself be gathered again. A weight
    has none: it is gathered for its reader.
    """

    tensor: str
    source: Value | None = None
    part: ConversionPart | None = None
    reader: int = -1
    found: Value | None = None


@dataclass(slots=True)
class Value:
    """A tensor in some layout: where its bytes lie and which events made it.

    ``buffer`` is ``None`` for what takes no memory of its own (parameters, whose memory is counted
    with their state). Views of one tensor share one value.
    """

    buffer: Buffer | None = None
    ready: tuple[int, ...] = ()
    again: Again | None = None


@dataclass(slots=True)
class Weights:
    """The parameters of one operator; what is gathered of them at the moment."""

    entries: list[tuple[str, ParameterPart]] = field(default_factory=list)
    gathered: dict[str, Value] | None = None


class Recorder:
    """Writes down events in the order in which they are issued, and buffers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.buffers: list[Buffer] = []

    def emit(
        self,
        kind: str,
        phase: str,
        subject: str,
        seconds: float,
        needs: Sequence[int],
        when: str = "every",
    ) -> int:
        """Write down what no link is needed for; returns its position."""
        self.events.append(
            Event(kind, phase, subject, seconds, needs=tuple(sorted(set(needs))), when=when)
        )
        return len(self.events) - 1

    def collective(
        self,
        move: Move,
        phase: str,
        subject: str,
        why: str,
        needs: Sequence[int],
        when: str = "every",
    ) -> int:
        """Write down a collective; returns its position."""
        needed = tuple(sorted(set(needs)))
        self.events.append(
            Event(
                move.kind, phase, subject, move.seconds, move.axis, move.nbytes, needed, when, why
            )
        )
        return len(self.events) - 1

    def allocate(self, name: str, part: str, nbytes: float, start: int) -> Buffer | None:
        """Memory from an event on, until it is used no more."""
        if nbytes <= 0:
            return None
        buffer = Buffer(name, part, nbytes, start, start)
        self.buffers.append(buffer)
        return buffer

    def keep_on(self, name: str, part: str, nbytes: float, start: int = 0) -> Buffer | None:
        """Memory that lies there to the end."""
        buffer = self.allocate(name, part, nbytes, start)
        if buffer is not None:
            buffer.stop = -1
        return buffer

    @staticmethod
    def use(value: Value, event: int) -> None:
        """A tensor lies there at least until an event."""
        if value.buffer is not None and 0 <= value.buffer.stop < event:
            value.buffer.stop = event

    def convert(
        self,
        moves: Sequence[Move],
        value: Value,
        name: str,
        part: str,
        phase: str,
        sizes: tuple[float, float],
    ) -> Value:
        """Run collectives one after the other on a tensor, from one local size to another."""
        size, final = sizes
        for move in moves:
            event = self.collective(move, phase, name, "redistribution", value.ready)
            self.use(value, event)
            value = Value(self.allocate(name, part, move.local_bytes, event), (event,))
            size = move.local_bytes
        if size != final:
            event = self.emit("slice", phase, name, 0.0, value.ready)
            self.use(value, event)
            value = Value(self.allocate(name, part, final, event), (event,))
        return value
