"""Splits one product with a weight, whose result is cut into parts, into one product for each part.

A fused projection (query, key and value; gate and up) is one matmul in the source model. Sharded
along its output features, each part needs its own slice of the weight on every device, so the fused
form would pay for a redistribution that separate layers do not need. Each part becomes a parameter
of its own, named by the slice of the source parameter that it holds, such as
``attn.weight[0:1600]`` or, where the weight is stored the other way round,
``attn.weight[:, 0:1600]``. A projection whose heads are the leading factor and whose cut lies
inside each head (GPT-NeoX) is left alone: sharded by heads it needs no redistribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tensoropt.graph import Operator
from tensoropt.importing.draft import Draft

__all__ = ["split_fused_projections"]


_OTHER, _LAST, _FIRST, _REST = range(4)


@dataclass(frozen=True)
class _Cut:
    """How a product is cut: by which operators, along the leading factor of its last dim."""

    #: Views and transposes between the product and the cut, each with the dim of its result that
    #: holds the factor that is cut.
    path: tuple[tuple[Operator, int], ...]
    cutters: tuple[Operator, ...]
    size: int  # of the leading factor
    inner: int  # elements of the last dim for each step of it
    bounds: tuple[tuple[int, int], ...]  # of every part, along the leading factor


def split_fused_projections(draft: Draft) -> None:
    """Replace every product with a parameter that is only read in disjoint parts."""
    for operator in draft.operators:
        if not draft.untouched([operator]) or not _has_own_weight(draft, operator):
            continue
        found = _find(draft, operator)
        if found is not None:
            _apply(draft, operator, found)


def _has_own_weight(draft: Draft, operator: Operator) -> bool:
    """A linear layer, or a product of experts, whose parameters nobody else reads.

    A tied parameter is one node; its slices would not be.
    """
    if operator.family not in ("linear", "matmul"):
        return False
    return all(
        draft.tensors[name].kind == "parameter" and len(draft.consumers(name)) == 1
        for name in operator.inputs[1:]
    )


def _find(draft: Draft, product: Operator) -> _Cut | None:
    """Follow views and transposes from the product to where it is cut."""
    name = product.outputs[0]
    shape = draft.shape(name)
    # What every dim of the current tensor is: _OTHER, the whole last dim, its first factor, or
    # another factor of it. Views that add or drop dims of size 1 change nothing of that.
    kinds = [_OTHER] * (len(shape) - 1) + [_LAST]
    path: list[tuple[Operator, int]] = []
    while True:
        readers = draft.consumers(name)
        if name == draft.loss or not readers or not draft.untouched(readers):
            return None
        if all(reader.family in ("split", "slice") for reader in readers):
            break
        if len(readers) != 1:
            return None
        (step,) = readers
        if step.family == "transpose":
            kinds = [kinds[p] for p in step.attributes["perm"]]
        elif step.family == "view":
            viewed = _viewed(draft.shape(name), kinds, draft.shape(step.outputs[0]))
            if viewed is None:
                return None
            kinds = viewed
        else:
            return None
        name = step.outputs[0]
        path.append((step, _leading(kinds)))
    if {reader.attributes["dim"] for reader in readers} != {_leading(kinds)}:
        return None
    size = draft.shape(name)[_leading(kinds)]
    bounds = _bounds(readers, size)
    return _Cut(tuple(path), tuple(readers), size, shape[-1] // size, bounds) if bounds else None


def _leading(kinds: list[int]) -> int:
    """The dim that is the product's last one, or the leading factor of it."""
    return next(d for d, kind in enumerate(kinds) if kind in (_LAST, _FIRST))


def _viewed(before: tuple[int, ...], kinds: list[int], after: tuple[int, ...]) -> list[int] | None:
    """What the dims of a view are, if it splits at most the last dim of the product."""
    found = [_OTHER] * len(after)
    targets = [d for d, size in enumerate(after) if size != 1]
    for size, kind in zip(before, kinds, strict=True):
        if size == 1:
            if kind in (_LAST, _FIRST):
                return None
            continue
        taken = [targets.pop(0)] if targets else []
        while taken and kind == _LAST and math.prod(after[d] for d in taken) < size:
            if not targets:
                return None
            taken.append(targets.pop(0))
        if math.prod(after[d] for d in taken) != size:
            return None
        for position, d in enumerate(taken):
            if kind == _LAST and len(taken) > 1:
                found[d] = _REST if position else _FIRST
            else:
                found[d] = kind
    return found


def _bounds(readers: list[Operator], size: int) -> tuple[tuple[int, int], ...] | None:
    """Start and stop of every part, if at least two cover the dim without overlap."""
    found: list[tuple[int, int]] = []
    for reader in readers:
        if reader.family == "slice":
            if reader.attributes["step"] != 1:
                return None
            found.append((reader.attributes["start"], reader.attributes["stop"]))
        else:
            start = 0
            for part in reader.attributes["sizes"]:
                found.append((start, start + part))
                start += part
    position = 0
    for start, stop in sorted(found):
        if start != position:
            return None
        position = stop
    return tuple(found) if position == size and len(found) > 1 else None


def _apply(draft: Draft, product: Operator, cut: _Cut) -> None:
    outputs = [name for cutter in cut.cutters for name in cutter.outputs]
    lead = draft.shape(product.outputs[0])[:-1]
    made: list[Operator] = []
    for output, (start, stop) in zip(outputs, cut.bounds, strict=True):
        inputs = [product.inputs[0]]
        for position, name in enumerate(product.inputs[1:]):
            # Where the output features lie: last in w[k, n], w[e, k, n] and bias[n].
            rank = len(draft.shape(name))
            stored_first = position == 0 and product.attributes.get("weight") == "nk"
            dim = 0 if stored_first else rank - 1
            inputs.append(_part(draft, name, dim, start * cut.inner, stop * cut.inner))
        shape = (*lead, (stop - start) * cut.inner)
        part = draft.result(product, product.family, inputs, shape)
        made.append(replace(part, attributes=product.attributes))
        made += _replay(draft, cut, made[-1], stop - start, output)
    draft.replace(product, *made)
    for operator in (*(step for step, _ in cut.path), *cut.cutters):
        draft.replace(operator)


def _replay(draft: Draft, cut: _Cut, part: Operator, share: int, output: str) -> list[Operator]:
    """The views and transposes of the whole, on one part; the last one's result is ``output``."""
    made: list[Operator] = []
    name = part.outputs[0]
    for step, dim in cut.path:
        shape = list(draft.shape(step.outputs[0]))
        shape[dim] = shape[dim] * share // cut.size
        again = draft.result(step, step.family, (name,), shape, **step.attributes)
        made.append(again)
        name = again.outputs[0]
    draft.rename(output, name)
    return made


def _part(draft: Draft, name: str, dim: int, start: int, stop: int) -> str:
    """The parameter that holds ``start:stop`` of another along a dim."""
    shape = list(draft.shape(name))
    shape[dim] = stop - start
    return draft.tensor(name, f"{name}[{':, ' * dim}{start}:{stop}]", shape, padded_dims=())
