"""A mesh simulated in one process: distributing tensors over ranks and putting them together."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensoropt.sharding.rule import Rule

Coordinate = tuple[int, ...]
Locals = dict[Coordinate, torch.Tensor]

# Placements: a tensor dim, or one of these.
REPLICATE = -1
PARTIAL = -2


class MismatchError(Exception):
    """A result on shards is not what the rule says it is."""


def coordinates(mesh: Sequence[int]) -> list[Coordinate]:
    return list(itertools.product(*(range(n) for n in mesh)))


def distribute(
    full: torch.Tensor,
    placements: Sequence[int],
    mesh: Sequence[int],
    random: torch.Generator,
    fill: float = 0.0,
) -> Locals:
    """Give every rank its part; the first axis that shards a dim is outermost.

    Dims that do not divide are padded with `fill`. A pending sum is split into random summands.
    """
    for dim in {p for p in placements if p >= 0}:
        parts = 1
        for axis, placement in enumerate(placements):
            parts *= mesh[axis] if placement == dim else 1
        missing = -full.shape[dim] % parts
        if missing:
            shape = [*full.shape]
            shape[dim] = missing
            full = torch.cat([full, full.new_full(shape, fill)], dim)
    held: dict[Coordinate, torch.Tensor] = {(): full}
    for placement, size in zip(placements, mesh, strict=True):
        held = {
            (*at, i): part
            for at, tensor in held.items()
            for i, part in enumerate(_cut(tensor, placement, size, random))
        }
    return {at: tensor.clone() for at, tensor in held.items()}


def _cut(
    tensor: torch.Tensor, placement: int, size: int, random: torch.Generator
) -> Sequence[torch.Tensor]:
    if placement == REPLICATE:
        return [tensor] * size
    if placement == PARTIAL:
        parts = [
            torch.randn(tensor.shape, generator=random, dtype=tensor.dtype) for _ in range(size - 1)
        ]
        return [*parts, tensor - sum(parts)]
    return tensor.chunk(size, placement)


def combine(
    parts: Mapping[Coordinate, torch.Tensor],
    placements: Sequence[int],
    shape: Sequence[int],
    what: str,
    padded: Sequence[int] = (),
) -> torch.Tensor:
    """Put the parts together again and cut the padding of padded dims off."""
    held = dict(parts)
    for axis in reversed(range(len(placements))):
        groups: dict[Coordinate, list[torch.Tensor]] = {}
        for at in sorted(held):
            groups.setdefault(at[:axis], []).append(held[at])
        held = {at: _join(group, placements[axis], what) for at, group in groups.items()}
    whole = held[()]
    found = tuple(whole.shape)
    fits = len(found) == len(shape) and all(
        f == size or (f > size and dim in padded)
        for dim, (f, size) in enumerate(zip(found, shape, strict=True))
    )
    if not fits:
        raise MismatchError(f"{what} combines to shape {found}, expected {tuple(shape)}")
    for dim, size in enumerate(shape):
        whole = whole.narrow(dim, 0, size)
    return whole


def _join(group: list[torch.Tensor], placement: int, what: str) -> torch.Tensor:
    if placement == PARTIAL:
        return torch.stack(group).sum(0)
    if placement == REPLICATE:
        for other in group[1:]:
            if not same(other, group[0]):
                raise MismatchError(f"{what} should be Replicate, but ranks disagree")
        return group[0]
    return torch.cat(group, placement)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-9, atol=1e-10)


@dataclass
class Rank:
    """What a rank knows of itself when it runs an operator."""

    rule: Rule
    labels: tuple[str, ...]
    mesh: tuple[int, ...]
    at: Coordinate
    shapes: list[tuple[int, ...]]
    """Local shapes of the results."""

    def parts(self, dim: str) -> int:
        count = 1
        for label, size in zip(self.labels, self.mesh, strict=True):
            count *= size if label == dim else 1
        return count

    def position(self, dim: str) -> int:
        index = 0
        for label, size, i in zip(self.labels, self.mesh, self.at, strict=True):
            if label == dim:
                index = index * size + i
        return index

    def offset(self, dim: str, size: int) -> int:
        """Where the rank's part of a dim of that (global) size begins."""
        return self.position(dim) * -(-size // self.parts(dim))

    @property
    def adds_bias(self) -> bool:
        """Whether this rank adds what must be added once to a pending sum."""
        pending = (
            label.startswith("~") or (label and self.rule.dim(label).role == "reduction")
            for label in self.labels
        )
        return all(i == 0 for i, p in zip(self.at, pending, strict=True) if p)

    def take(self, full: torch.Tensor, names: Sequence[str | None]) -> torch.Tensor:
        """The rank's part of a helper tensor whose dims have these names."""
        for dim, name in enumerate(names):
            if name and self.parts(name) > 1:
                full = full.chunk(self.parts(name), dim)[self.position(name)]
        return full


@dataclass
class Request:
    """A collective that a rank takes part in; without an axis on `dim` it does nothing."""

    dim: str
    tensor: torch.Tensor
    op: str = "sum"


Steps = Generator[Request, torch.Tensor, Any]


def lockstep(
    running: Mapping[Coordinate, Steps],
    labels: Sequence[str],
    phase: str,
    log: Counter[tuple[str, str, int, int]],
) -> dict[Coordinate, Any]:
    """Run all ranks from collective to collective; log (phase, kind, axis, elements) of each."""
    results: dict[Coordinate, Any] = {}
    answers: dict[Coordinate, torch.Tensor | None] = dict.fromkeys(running)
    while True:
        asked: dict[Coordinate, Request] = {}
        for at, steps in running.items():
            try:
                answer = answers[at]
                asked[at] = next(steps) if answer is None else steps.send(answer)
            except StopIteration as stop:
                results[at] = stop.value
        if not asked:
            return results
        if len(asked) != len(running) or len({r.dim for r in asked.values()}) != 1:
            raise MismatchError("ranks do not take part in the same collectives")
        answers = _all_reduce(asked, labels, phase, log)


def _all_reduce(
    asked: Mapping[Coordinate, Request],
    labels: Sequence[str],
    phase: str,
    log: Counter[tuple[str, str, int, int]],
) -> dict[Coordinate, torch.Tensor | None]:
    first = next(iter(asked.values()))
    values = {at: request.tensor for at, request in asked.items()}
    for axis, label in enumerate(labels):
        if label != first.dim:
            continue
        log[phase, "all_reduce", axis, first.tensor.numel()] += 1
        reduced = {}
        for at in values:
            group = [v for other, v in values.items() if _agree(at, other, axis)]
            stacked = torch.stack(group)
            reduced[at] = stacked.sum(0) if first.op == "sum" else stacked.amax(0)
        values = reduced
    return dict(values)


def _agree(a: Coordinate, b: Coordinate, axis: int) -> bool:
    return a[:axis] == b[:axis] and a[axis + 1 :] == b[axis + 1 :]
