"""For what mesh axes are used together: labels of operators, states of tensors."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Among", "AxisUses", "Uses"]

T = TypeVar("T", str, int)


class Uses(Generic[T]):
    """Values that axes take, by who takes them.

    What strategies do on several axes tells which values an outer and an inner axis take together:
    a row over more axes is :meth:`allowed` if any two of its values are equal or occur together.
    So splitting an axis in two is always allowed, and so is every mixture of what is usual in
    pairs. From strategies on one axis only values are known, and any row of them is allowed.
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, set[T]] = {}
        self._pairs: dict[Hashable, set[tuple[T, T]]] = {}

    def add(
        self, rows: Sequence[tuple[Hashable, Sequence[T], int]], *, least_share: float = 0.0
    ) -> None:
        """Add what strategies on one mesh do.

        Parameters
        ----------
        rows : sequence of (hashable, sequence, int)
            Who, a value for each axis, and how often.
        least_share : float
            What is rarer than this, among all that the same one does, is left out.
        """
        values: dict[Hashable, Counter[T]] = defaultdict(Counter)
        pairs: dict[Hashable, Counter[tuple[T, T]]] = defaultdict(Counter)
        for who, row, count in rows:
            for value in row:
                values[who][value] += count
            for pair in itertools.combinations(row, 2):
                pairs[who][pair] += count
        for who, alone in values.items():
            self._values.setdefault(who, set()).update(_common(alone, least_share))
        for who, together in pairs.items():
            self._pairs.setdefault(who, set()).update(_common(together, least_share))

    def allowed(self, who: Hashable, known: Uses[T]) -> Callable[[Sequence[T]], bool]:
        """Whether a row, a value for each axis, is allowed; any row, if nothing is known.

        Parameters
        ----------
        who : hashable
        known : Uses
            What else is known.
        """
        values, pairs = self._values.get(who, set()), self._pairs.get(who, set())
        # From one axis alone nothing is known of pairs.
        mixed: set[T] = set() if pairs else values
        pairs = pairs | known._pairs.get(who, set())
        values = values | known._values.get(who, set())
        if not values:
            return lambda _: True
        return lambda row: (
            mixed.issuperset(row)
            or (
                values.issuperset(row)
                and all(a == b or (a, b) in pairs for a, b in itertools.combinations(row, 2))
            )
        )


Value = TypeVar("Value", bound=Hashable)


def _common(counts: Counter[Value], least_share: float) -> list[Value]:
    least = least_share * counts.total()
    return [value for value, count in counts.items() if count >= least]


class AxisUses:
    """What is known of operators and of tensors with a node of their own, by their signatures.

    Attributes
    ----------
    labels : Uses of str
    states : Uses of int
        State digits.
    """

    def __init__(self) -> None:
        self.labels: Uses[str] = Uses()
        self.states: Uses[int] = Uses()


@dataclass(frozen=True)
class Among:
    """What tables are held to.

    Attributes
    ----------
    answers : AxisUses
        Of strategies that a search found.
    schemes : AxisUses
        Of named schemes.
    """

    answers: AxisUses = field(default_factory=AxisUses)
    schemes: AxisUses = field(default_factory=AxisUses)

    def labels(self, operator: Hashable) -> Callable[[Sequence[str]], bool]:
        """Whether an operator, by its signature, may have a label for each axis."""
        return self.answers.labels.allowed(operator, self.schemes.labels)

    def states(self, tensor: Hashable) -> Callable[[Sequence[int]], bool]:
        """Whether a tensor, by its signature, may have a state digit for each axis."""
        return self.answers.states.allowed(tensor, self.schemes.states)
