"""Passes over views and transposes: fewer of them, and in an order that shards.

A chain of views and transposes is put into one normal form: split dims, permute, merge dims. Dims
that stay apart until the end can be sharded; dims that are merged early and split again (batch and
heads in one dim, as `torch.nn.MultiheadAttention` writes it) could be sharded by the first only.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tensoropt.importing.draft import Draft

__all__ = ["compose_transposes", "compose_views", "regroup", "same_gradient"]


def compose_views(draft: Draft) -> None:
    """Read a view of a view from its origin; remove views that change nothing."""
    for operator in draft.operators:
        if operator.family != "view" or not draft.untouched([operator]):
            continue
        (source,), (output,) = operator.inputs, operator.outputs
        if not same_gradient(draft, source, output):
            continue
        if draft.shape(source) == draft.shape(output):
            draft.rename(output, source)
            draft.replace(operator)
            continue
        below = draft.producer(source, "view")
        if below is not None and same_gradient(draft, below.inputs[0], source):
            draft.replace(operator, replace(operator, inputs=below.inputs))


def compose_transposes(draft: Draft) -> None:
    """Merge a transpose of a transpose; remove one that keeps the order."""
    for operator in draft.operators:
        if operator.family != "transpose" or not draft.untouched([operator]):
            continue
        perm = list(operator.attributes["perm"])
        if perm == sorted(perm):
            draft.rename(operator.outputs[0], operator.inputs[0])
            draft.replace(operator)
            continue
        below = draft.producer(operator.inputs[0], "transpose")
        if below is not None:
            first = below.attributes["perm"]
            merged = {**operator.attributes, "perm": [first[p] for p in perm]}
            draft.replace(operator, replace(operator, inputs=below.inputs, attributes=merged))


def same_gradient(draft: Draft, before: str, after: str) -> bool:
    """Whether a view passes gradients on (a detached one does not)."""
    return draft.tensors[before].requires_grad == draft.tensors[after].requires_grad


def regroup(draft: Draft) -> None:
    """Put a view, a transpose and perhaps a view into the form split, permute, merge.

    Without a view after the transpose, the merging one is new: it can go further down.
    """
    for middle in draft.operators:
        if middle.family != "transpose" or not draft.untouched([middle]):
            continue
        first = draft.producer(middle.inputs[0], "view")
        last = draft.only_consumer(middle.outputs[0], "view") or middle
        if first is None:
            continue
        names = (first.inputs[0], first.outputs[0], middle.outputs[0], last.outputs[0])
        if not all(same_gradient(draft, names[0], name) for name in names):
            continue
        shapes = [draft.shape(name) for name in names]
        found = _normal_form(shapes[0], shapes[1], middle.attributes["perm"], shapes[3])
        if found is None or found[0] == shapes[1]:
            continue
        split, perm = found
        one = draft.result(first, "view", (names[0],), split)
        two = draft.result(middle, "transpose", one.outputs, [split[p] for p in perm], perm=perm)
        three = draft.operator(last, "view", two.outputs, last.outputs)
        draft.replace(last, one, two, three)


def _normal_form(
    origin: tuple[int, ...], viewed: tuple[int, ...], perm: list[int], last: tuple[int, ...]
) -> tuple[tuple[int, ...], list[int]] | None:
    """The shape that splits ``origin`` as far as needed, and the permutation of its dims.

    ``None`` if a boundary of a later shape falls inside a dim that it does not divide.
    """
    # Atoms: sizes that no later view splits, in the order of the origin.
    atoms = _refined(origin, viewed)
    grouped = _grouped(atoms, viewed) if atoms is not None else None
    if atoms is None or grouped is None:
        return None
    moved = [index for p in perm for index in grouped[p]]
    finer = _refined(tuple(atoms[i] for i in moved), last)
    if finer is None:
        return None
    # Split the atoms themselves where the last view does.
    pieces: dict[int, list[int]] = {}
    rest = iter(finer)
    for index in moved:
        pieces[index], left = [], atoms[index]
        while left > 1:
            size = next(rest)
            pieces[index].append(size)
            left //= size
    sizes = [size for index in range(len(atoms)) for size in pieces[index]]
    starts = {}
    count = 0
    for index in range(len(atoms)):
        starts[index] = count
        count += len(pieces[index])
    order = [starts[i] + k for i in moved for k in range(len(pieces[i]))]
    return _joined(sizes, order, origin, last)


def _refined(before: tuple[int, ...], after: tuple[int, ...]) -> list[int] | None:
    """Sizes of which both shapes are products of consecutive ones (without dims of size 1)."""
    atoms: list[int] = []
    left = [size for size in before if size != 1]
    right = [size for size in after if size != 1]
    while left and right:
        size = min(left[0], right[0])
        if left[0] % size or right[0] % size:
            return None
        atoms.append(size)
        for side in (left, right):
            side[0] //= size
            if side[0] == 1:
                side.pop(0)
    return None if left or right else atoms


def _grouped(atoms: list[int], shape: tuple[int, ...]) -> list[list[int]] | None:
    """For every dim of a shape, the atoms that it is the product of."""
    groups: list[list[int]] = []
    position = 0
    for size in shape:
        group: list[int] = []
        while math.prod(atoms[i] for i in group) < size:
            group.append(position)
            position += 1
        groups.append(group)
    return groups if position == len(atoms) else None


def _joined(
    sizes: list[int], order: list[int], origin: tuple[int, ...], last: tuple[int, ...]
) -> tuple[tuple[int, ...], list[int]]:
    """Join neighbours that are one dim before and after and never part."""
    before = _dim_of(sizes, origin)
    after = _dim_of([sizes[i] for i in order], last)
    together = [
        order[k] == order[k - 1] + 1
        and before[order[k]] == before[order[k - 1]]
        and after[k] == after[k - 1]
        for k in range(1, len(order))
    ]
    joined: list[list[int]] = []
    for k, index in enumerate(order):
        if k and together[k - 1]:
            joined[-1].append(index)
        else:
            joined.append([index])
    ranked = sorted(range(len(joined)), key=lambda g: joined[g][0])
    shape = tuple(math.prod(sizes[i] for i in joined[g]) for g in ranked)
    place = {g: position for position, g in enumerate(ranked)}
    return shape, [place[g] for g in range(len(joined))]


def _dim_of(sizes: list[int], shape: tuple[int, ...]) -> list[int]:
    """The dim of a shape that each of its factors belongs to."""
    found: list[int] = []
    for dim, size in enumerate(shape):
        count = 1
        while count < size:
            count *= sizes[len(found)]
            found.append(dim)
    return found
