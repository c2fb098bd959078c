"""A model of fixed batch, read with another one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensoropt.importing.onnx_values import Node, Shape, Value

__all__ = ["Rebatch"]


@dataclass(frozen=True, slots=True)
class Rebatch:
    """A model of fixed batch that is read with another one.

    Parameters
    ----------
    before, after : int
        The batch in the file, and the one that is wanted.
    shapes : mapping of str to tuple of int
        Shapes of all values with the batch of the file.
    leads : dict of str to int
        For values that merge the batch with what comes before it (``(s * b, h)``), how many
        elements those are; 1 for all others.
    """

    before: int
    after: int
    shapes: Mapping[str, Shape]
    leads: dict[str, int] = field(default_factory=dict)

    def old(self, value: Value) -> Shape:
        """Shape with the batch of the file."""
        return self.shapes.get(value.name, value.shape)

    def fed(self, value: Value) -> bool:
        """Whether a value holds the batch."""
        old = self.old(value)
        grown = any(
            a != b and a * self.before == b * self.after
            for a, b in zip(value.shape, old, strict=False)
        )
        return grown and not value.constant

    def scales(self, before: Sequence[int], after: Sequence[int]) -> bool:
        """Whether each dim is as it was or has grown as the batch has."""
        return len(before) == len(after) and all(
            a == b or a * self.before == b * self.after for a, b in zip(after, before, strict=True)
        )

    def ahead(self, value: Value) -> int | None:
        """How many rows lie before the batch in memory; ``None`` if that is not one number."""
        old = self.old(value)
        grown = [d for d, (a, b) in enumerate(zip(old, value.shape, strict=True)) if a != b]
        if len(grown) != 1:
            return None
        return math.prod(old[: grown[0]]) * self.leads.get(value.name, 1)

    def view(self, value: Value, target: Shape) -> Shape | None:
        """Shape that a view has which would be ``target`` with the batch of the file."""
        if not self.fed(value):
            return target
        ahead = self.ahead(value)
        if ahead is None:
            return None
        spots = [
            d
            for d in range(len(target))
            if ahead % math.prod(target[:d]) == 0
            and math.prod(target[: d + 1]) % (ahead * self.before) == 0
        ]
        if not spots:
            return None
        # With a batch of 1 there may be several: a dim of 1 is the batch itself; else, if what
        # follows is as it was, it went into the dim before.
        exact = [d for d in spots if target[d] == self.before]
        old = self.old(value)
        tail = old[len(old) - sum(1 for d in range(len(old)) if math.prod(old[:d]) >= ahead) :]
        merged = [d for d in spots if target[d + 1 :] == tail[1:] and math.prod(target[:d]) < ahead]
        spot = (exact or merged or spots)[0]
        scaled = target[spot] * self.after // self.before
        return (*target[:spot], scaled, *target[spot + 1 :])

    def record(self, node: Node, value: Value) -> None:
        """Remember how a result merges the batch."""
        source = next((v for v in node.inputs if v is not None and self.fed(v)), None)
        if source is None or not self.fed(value):
            return
        lead = self.leads.get(source.name, 1)
        if node.op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
            ahead, self.leads[value.name] = self.ahead(source), 1
            base = self.ahead(value)
            lead = ahead // base if ahead and base and ahead % base == 0 else 1
        self.leads[value.name] = lead
