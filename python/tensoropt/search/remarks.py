"""What a user should know about sizes that devices do not divide, and meshes that were left out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from tensoropt.cluster import Mesh
from tensoropt.sharding.decisions import Decisions

__all__ = ["division_remarks", "mesh_remark", "rule_remarks"]

DIM_WORDS = {("attention", "hk"): "heads", ("attention", "s"): "positions"}
"""What dims of some kinds of operators are called."""


def division_remarks(
    decisions: Decisions, batch_size: int, meshes: Iterable[Mesh]
) -> tuple[str, ...]:
    """Sizes that some of the meshes do not divide: padded, or not split there.

    Only what people split is looked at: the batch, and the dims of products and vocabularies.

    Parameters
    ----------
    decisions : Decisions
    batch_size : int
        Of the whole batch.
    meshes : iterable of Mesh
    """
    ways = _ways(meshes)
    padded: dict[int, str] = {}
    whole: dict[int, str] = {}
    for position, rule in decisions.rules.items():
        name = decisions.graph.operators[position].name
        for dim in rule.dims:
            word = DIM_WORDS.get((rule.compute, dim.name), "entries")
            if dim.padded:
                padded.setdefault(dim.size, f"{dim.size:,} {word} of {name}")
            elif rule.compute in ("attention", "matmul"):
                whole.setdefault(dim.size, f"{dim.size:,} {word} of {name}")
    found = []
    uneven = _uneven(batch_size, ways)
    if uneven:
        found.append(
            f"a batch of {batch_size:,} cannot be split over {_either(uneven)} devices, so that "
            f"there is no data parallelism over as many; take a multiple of {math.lcm(*ways):,}"
        )
    for size in (batch_size, decisions.graph.batch_size):
        whole.pop(size, None)
    for size, what in padded.items():
        if uneven := _uneven(size, ways):
            found.append(
                f"{what} are padded where {_either(uneven)} devices share them, and the padding "
                "is part of the costs"
            )
    for size, what in whole.items():
        if size not in padded and (uneven := _uneven(size, ways)):
            found.append(f"{what} cannot be split over {_either(uneven)} devices, and are not")
    return tuple(found)


def mesh_remark(searched: Sequence[Mesh], possible: Sequence[Mesh]) -> tuple[str, ...]:
    """Say which shapes were left out.

    Parameters
    ----------
    searched, possible : sequence of Mesh
    """
    most = max(len(mesh.shape) for mesh in searched)
    missing = [mesh for mesh in possible if mesh not in searched]
    # Whoever named the meshes knows what is not among them.
    if not missing or any(len(mesh.shape) <= most for mesh in missing):
        return ()
    left_out = [str(mesh) for mesh in missing]
    axes = max(len(mesh.shape) for mesh in possible)
    names = ", ".join(left_out[:4]) + (", ..." if len(left_out) > 4 else "")
    return (
        f"of {len(possible)} meshes {len(searched)} were searched; "
        f"max_axes={axes} adds those of more axes ({names}) and takes longer",
    )


def rule_remarks(decisions: Decisions) -> tuple[str, ...]:
    """What the rules of operators assume, each assumption once.

    Parameters
    ----------
    decisions : Decisions
    """
    return tuple(dict.fromkeys(rule.note for rule in decisions.rules.values() if rule.note))


def _ways(meshes: Iterable[Mesh]) -> list[int]:
    """Over how many devices something may be split: products of some axes."""
    found = set()
    for mesh in meshes:
        axes = range(1, len(mesh.shape) + 1)
        for some in itertools.chain.from_iterable(
            itertools.combinations(mesh.shape, n) for n in axes
        ):
            found.add(math.prod(some))
    return sorted(found - {1})


def _uneven(size: int, ways: Iterable[int]) -> list[int]:
    return [n for n in ways if size % n] if size > 1 else []


def _either(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
