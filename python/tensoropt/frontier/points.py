"""Strategies that are built when somebody looks at them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import overload

from tensoropt.strategy import Strategy

__all__ = ["LazyPoints"]

KEPT = 64


class LazyPoints(Sequence[Strategy]):
    """A sequence of strategies, each built on first use.

    A frontier has thousands of points of which few are ever looked at. The most recently used ones
    are kept.

    Parameters
    ----------
    count : int
    build : callable
        Returns the strategy at a position from 0 to ``count - 1``; equal positions give equal
        strategies.
    """

    def __init__(self, count: int, build: Callable[[int], Strategy]) -> None:
        self._count = count
        self._build = build
        self._kept: OrderedDict[int, Strategy] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Strategy: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Strategy, ...]: ...
    def __getitem__(self, index: int | slice) -> Strategy | tuple[Strategy, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._count)))
        position = range(self._count)[index]  # IndexError beyond the ends, negatives from the end
        strategy = self._kept.pop(position, None)
        if strategy is None:
            strategy = self._build(position)
            if len(self._kept) >= KEPT:
                self._kept.popitem(last=False)
        self._kept[position] = strategy
        return strategy
