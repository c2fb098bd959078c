"""Amounts with units, for people: ``40GB``, ``37.3GiB``, ``250ms``.

Decimal units are powers of 1000 and binary ones powers of 1024, always. What is printed is decimal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

__all__ = [
    "format_bytes",
    "format_bytes_apart",
    "format_count",
    "format_money",
    "format_rate",
    "format_ratio",
    "format_seconds",
    "format_seconds_apart",
    "parse_bytes",
    "parse_seconds",
]

BYTE_UNITS: Mapping[str, float] = {
    "B": 1,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
SECOND_UNITS: Mapping[str, float] = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}

_AMOUNT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*)\s*")


def parse_bytes(text: str) -> float:
    """Read an amount of memory.

    Parameters
    ----------
    text : str
        A number and a unit, e.g. ``"40GB"`` (decimal) or ``"37.5 GiB"`` (binary); letter case is
        forgiven.

    Returns
    -------
    float
        Bytes.

    Raises
    ------
    ValueError
        If it is no positive number, or its unit is missing or unknown.

    Examples
    --------
    >>> parse_bytes("40GB"), parse_bytes("1 gib")
    (40000000000.0, 1073741824.0)
    """
    return _parse(text, BYTE_UNITS, "an amount of memory", "40GB or 40GiB")


def parse_seconds(text: str) -> float:
    """Read a time.

    Parameters
    ----------
    text : str
        A number and a unit: ``ns``, ``us``, ``ms``, ``s`` or ``min``.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        If it is no positive number, or its unit is missing or unknown.

    Examples
    --------
    >>> parse_seconds("250ms")
    0.25
    """
    return _parse(text.replace("µ", "u"), SECOND_UNITS, "a time", "250ms or 1.5s")


def _parse(text: str, units: Mapping[str, float], what: str, example: str) -> float:
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not {what}: write a number and a unit, e.g. {example}")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"'{text}' has no unit: write e.g. {example}")
    factors = {name.lower(): factor for name, factor in units.items()}
    factor = factors.get(unit.lower())
    if factor is None:
        raise ValueError(
            f"'{text}' has unit '{unit}', expected one of {', '.join(units)}, e.g. {example}"
        )
    value = float(number) * factor
    if not 0 < value < math.inf:
        raise ValueError(f"'{text}' must be greater than zero and finite, e.g. {example}")
    return value


def format_bytes(count: float, digits: int = 3) -> str:
    """Write an amount of memory in decimal units, with three digits or as many as asked for.

    Examples
    --------
    >>> format_bytes(85_899_345_920), format_bytes(512), format_bytes(2.5e6)
    ('85.9 GB', '512 B', '2.50 MB')
    """
    return _scaled(count, (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)), digits)


def format_seconds(seconds: float, digits: int = 3) -> str:
    """Write a time, with three digits or as many as asked for.

    Examples
    --------
    >>> format_seconds(0.4123), format_seconds(12.5), format_seconds(3.2e-5), format_seconds(0)
    ('412 ms', '12.5 s', '32.0 us', '0 s')
    """
    if 0 <= seconds < 5e-12:  # what would print as 0.00 ns
        return "0 s"
    return _scaled(seconds, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)), digits)


def format_bytes_apart(one: float, other: float) -> tuple[str, str]:
    """Write two amounts of memory with as many digits as it takes to tell them apart.

    Examples
    --------
    >>> format_bytes_apart(1.5112e9, 1.5109e9), format_bytes_apart(40e9, 50e9)
    (('1.5112 GB', '1.5109 GB'), ('40.0 GB', '50.0 GB'))
    """
    return _apart(format_bytes, one, other)


def format_seconds_apart(one: float, other: float) -> tuple[str, str]:
    """Write two times with as many digits as it takes to tell them apart.

    Examples
    --------
    >>> format_seconds_apart(0.25, 0.2503)
    ('250.0 ms', '250.3 ms')
    """
    return _apart(format_seconds, one, other)


def _apart(write: Callable[[float, int], str], one: float, other: float) -> tuple[str, str]:
    for digits in range(3, 16):
        texts = write(one, digits), write(other, digits)
        if texts[0] != texts[1]:
            break
    return texts


def format_count(count: float) -> str:
    """Write a large count.

    Examples
    --------
    >>> format_count(2_650_000_000), format_count(950)
    ('2.65 B', '950')
    """
    return _scaled(count, (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))).strip()


def format_rate(per_second: float) -> str:
    """Write a throughput with three digits or all digits before the point.

    Examples
    --------
    >>> format_rate(158_912.3), format_rate(4.567)
    ('158,912', '4.57')
    """
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def format_ratio(ratio: float | None) -> str:
    """Write how much larger something is, as a percentage.

    Examples
    --------
    >>> format_ratio(1.034), format_ratio(1.0), format_ratio(2.5), format_ratio(None)
    ('+3.4 %', 'none', '2.50 x', '-')
    """
    if ratio is None:
        return "-"
    excess = (ratio - 1) * 100
    if abs(excess) < 0.05:
        return "none"
    return f"{excess:+.1f} %" if excess < 100 else f"{ratio:.2f} x"


def format_money(usd: float) -> str:
    """Write a price in US dollars.

    Examples
    --------
    >>> format_money(32.77), format_money(0.00123), format_money(0.0000901)
    ('$32.77', '$0.00123', '$0.0000901')
    """
    if usd >= 1 or usd <= 0:
        return f"${usd:,.2f}"
    return f"${usd:.{2 - math.floor(math.log10(usd))}f}"


def _scaled(value: float, units: tuple[tuple[str, float], ...], digits: int = 3) -> str:
    if not math.isfinite(value):
        return str(value)
    # What would print as 1000 of the next unit is 1 of this one.
    unit, factor = next((u for u in units if round(value / u[1], digits) >= 1), units[-1])
    scaled = value / factor
    if unit in ("B", "") and factor == 1.0:
        return f"{scaled:.0f} {unit}"
    # Digits before the point, of the number as it will be rounded.
    whole = sum(round(scaled, digits - n) >= 10**n for n in (1, 2)) + 1
    return f"{scaled:.{max(digits - whole, 0)}f} {unit}"
