"""Names of repeated layers, gathered under one pattern: ``layers.{0-31}.mlp.up``."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tensoropt.graph import Graph

__all__ = ["Group", "block_keys", "group_names", "ranges"]

Value = TypeVar("Value", bound=Hashable)
Key = tuple[str, int | None]

# A number that is a whole component of a name: the 3 of `layers.3.conv2d`, not its 2.
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")


@dataclass(frozen=True)
class Group(Generic[Value]):
    """Names that differ in one number only and share a value."""

    label: str
    names: tuple[str, ...]
    value: Value


def group_names(
    values: Mapping[str, Value], keys: Mapping[str, Key] | None = None
) -> list[Group[Value]]:
    """Gather names whose patterns and values are equal.

    Parameters
    ----------
    values : mapping of str to hashable
    keys : mapping of str to (pattern with ``{}``, number), optional
        Which repeated layer a name belongs to, where that is known (see :func:`block_keys`);
        elsewhere the first number of the name is taken.

    Returns
    -------
    list of Group
        In the order of their first names.

    Examples
    --------
    >>> groups = group_names({"h.0.up": "n", "h.1.up": "n", "h.2.up": "k", "head": "n"})
    >>> [(g.label, g.value) for g in groups]
    [('h.{0-1}.up', 'n'), ('h.2.up', 'k'), ('head', 'n')]
    """
    members: dict[tuple[str, Value], list[tuple[str, int | None]]] = {}
    for name, value in values.items():
        pattern, number = (keys or {}).get(name) or _first_number(name)
        members.setdefault((pattern, value), []).append((name, number))
    groups = []
    for (pattern, value), found in members.items():
        numbers = [number for _, number in found if number is not None]
        label = pattern
        if numbers:
            inside = ranges(numbers)
            label = pattern.replace("{}", inside if len(numbers) == 1 else "{" + inside + "}", 1)
        groups.append(Group(label, tuple(name for name, _ in found), value))
    return groups


def ranges(numbers: Iterable[int]) -> str:
    """Write integers as ranges.

    Examples
    --------
    >>> ranges([3, 0, 1, 2, 7])
    '0-3,7'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def block_keys(graph: Graph) -> dict[str, Key]:
    """Give, for every operator in a repeated layer, the layer's pattern and the layer's number.

    Operators at one place of the layers of one kind get the same pattern, whatever their names.
    """
    first: dict[tuple[int, int], str] = {}
    keys: dict[str, Key] = {}
    seen: dict[int, int] = {}
    for block in graph.blocks:
        number = seen.get(block.kind, 0)
        seen[block.kind] = number + 1
        match = _NUMBER.search(block.name)
        shown = int(match.group()) if match else number
        for offset, operator in enumerate(graph.operators[block.start : block.stop]):
            pattern = first.setdefault((block.kind, offset), _pattern(operator.name))
            keys[operator.name] = (pattern, shown)
    return keys


def _pattern(name: str) -> str:
    pattern, number = _first_number(name)
    return pattern if number is not None else f"{name} of layer {{}}"


def _first_number(name: str) -> Key:
    # Braces are our own place holder, so those of a name are left alone by replacing only one.
    match = _NUMBER.search(name)
    if match is None or "{" in name:
        return name, None
    return f"{name[: match.start()]}{{}}{name[match.end() :]}", int(match.group())
