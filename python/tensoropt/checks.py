"""Checks of arguments that several rooms share: what was given, what was expected, what to do."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from tensoropt.errors import ProblemError

__all__ = ["MOST_THREADS", "is_integer", "is_number", "number", "of_type"]

MOST_THREADS = 1024
"""More threads than any machine that this is meant for has cores; a typing error beyond it."""


def is_integer(value: Any) -> bool:
    """Whether a value is an integer, and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a real number, and neither a truth value nor undefined."""
    return type(value) is not bool and isinstance(value, Real) and not math.isnan(value)


def number(name: str, value: Any) -> float:
    """Return a number that is more than zero; infinity is one.

    Raises
    ------
    ProblemError
        Naming the argument.
    """
    if not is_number(value) or value <= 0:
        raise ProblemError(f"{name} is {value!r}, expected a number more than zero")
    return float(value)


def of_type(name: str, value: Any, expected: type | tuple[type, ...], advice: str) -> None:
    """Refuse a value of another type.

    Raises
    ------
    ProblemError
        Naming the argument, its type, and what to give instead.
    """
    if not isinstance(value, expected):
        raise ProblemError(f"{name} is of type {type(value).__name__}, expected {advice}")
