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
        # With the largest share that each had on some mesh among all that the same one does.
        self._values: dict[Hashable, dict[T, float]] = {}
        self._pairs: dict[Hashable, dict[tuple[T, T], float]] = {}

    def add(self, rows: Sequence[tuple[Hashable, Sequence[T], int]]) -> None:
        """Add what strategies on one mesh do.

        Parameters
        ----------
        rows : sequence of (hashable, sequence, int)
            Who, a value for each axis, and how often.
        """
        values: dict[Hashable, Counter[T]] = defaultdict(Counter)
        pairs: dict[Hashable, Counter[tuple[T, T]]] = defaultdict(Counter)
        for who, row, count in rows:
            for value in row:
                values[who][value] += count
            for pair in itertools.combinations(row, 2):
                pairs[who][pair] += count
        for who, alone in values.items():
            _raise(self._values.setdefault(who, {}), alone)
        for who, together in pairs.items():
            _raise(self._pairs.setdefault(who, {}), together)

    def allowed(
        self, who: Hashable, known: Uses[T], least_share: float = 0.0
    ) -> Callable[[Sequence[T]], bool]:
        """Whether a row, a value for each axis, is allowed; any row, if nothing is known.

        Parameters
        ----------
        who : hashable
        known : Uses
            What else is known.
        least_share : float
            What is rarer than this, here, does not count.
        """
        values = {v for v, share in self._values.get(who, {}).items() if share >= least_share}
        pairs = {pair for pair, share in self._pairs.get(who, {}).items() if share >= least_share}
        # From one axis alone nothing is known of pairs.
        mixed: set[T] = set() if who in self._pairs else set(values)
        pairs.update(known._pairs.get(who, ()))
        values.update(known._values.get(who, ()))
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


def _raise(shares: dict[Value, float], counts: Counter[Value]) -> None:
    """Raise shares to what they are among some counts."""
    total = counts.total()
    for value, count in counts.items():
        shares[value] = max(shares.get(value, 0.0), count / total)


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
    least_share : float
        What is rarer than this among the answers does not count.
    """

    answers: AxisUses = field(default_factory=AxisUses)
    schemes: AxisUses = field(default_factory=AxisUses)
    least_share: float = 0.0

    def labels(self, operator: Hashable) -> Callable[[Sequence[str]], bool]:
        """Whether an operator, by its signature, may have a label for each axis."""
        return self.answers.labels.allowed(operator, self.schemes.labels, self.least_share)

    def states(self, tensor: Hashable) -> Callable[[Sequence[int]], bool]:
        """Whether a tensor, by its signature, may have a state digit for each axis."""
        return self.answers.states.allowed(tensor, self.schemes.states, self.least_share)
