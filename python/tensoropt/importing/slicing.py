"""Splits one linear layer whose result is cut into parts into one linear layer for each part.

A fused projection (query, key and value; gate and up) is one matmul in the source model. Sharded by
heads, each part needs its own slice of the weight on every device, so the fused form would pay for
a redistribution that separate layers do not need. Each part becomes a parameter of its own, named
by the slice of the source parameter that it holds: ``attn.weight[0:1600]``, or
``qkv.weight.view(12, 3, 64, 768)[:, 0:1]`` where parts are interleaved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..graph import Operator
from .draft import Draft

__all__ = ["split_fused_linears"]


@dataclass(frozen=True)
class _Cut:
    """How a linear layer's result is cut: along which factor of its last dim, and by whom."""

    path: tuple[Operator, ...]  # views and transposes between the layer and the cut
    cutters: tuple[Operator, ...]
    factors: tuple[int, ...]  # of the last dim
    factor: int
    bounds: tuple[tuple[int, int], ...]  # of every part, along that factor


def split_fused_linears(draft: Draft) -> None:
    """Replace every linear layer that is only read in disjoint parts."""
    for operator in draft.operators:
        if operator.family != "linear" or not draft.untouched([operator]):
            continue
        found = _find(draft, operator)
        if found is not None:
            _apply(draft, operator, found)


def _find(draft: Draft, linear: Operator) -> _Cut | None:
    """Follow views and transposes from the layer to where its result is cut."""
    for name in linear.inputs[1:]:
        # A tied parameter is one node; its slices would not be.
        if draft.tensors[name].kind != "parameter" or len(draft.consumers(name)) != 1:
            return None
    name = linear.outputs[0]
    shape = draft.shape(name)
    lead, factors = len(shape) - 1, (shape[-1],)
    # dims[i]: what dim i of the current tensor is: a leading dim, or factor f as lead + f.
    dims = list(range(len(shape)))
    path: list[Operator] = []
    while True:
        readers = draft.consumers(name)
        if name == draft.loss or not readers or not draft.untouched(readers):
            return None
        if all(r.family in ("split", "slice") for r in readers):
            break
        (step,) = readers if len(readers) == 1 else (None,)
        if step is None:
            return None
        after = draft.shape(step.outputs[0])
        if step.family == "transpose":
            dims = [dims[p] for p in step.attributes["perm"]]
        elif step.family == "view" and len(path) == 0 and after[:lead] == shape[:lead]:
            factors = after[lead:]
            dims = list(range(len(after)))
        else:
            return None
        path.append(step)
        name = step.outputs[0]
    cut_dims = {r.attributes["dim"] for r in readers}
    if len(cut_dims) != 1:
        return None
    factor = dims[cut_dims.pop()] - lead
    if factor < 0:
        return None
    bounds = _bounds(readers, factors[factor])
    if bounds is None or len(bounds) < 2:
        return None
    return _Cut(tuple(path), tuple(readers), factors, factor, bounds)


def _bounds(readers: list[Operator], size: int) -> tuple[tuple[int, int], ...] | None:
    """Start and stop of every part if the parts cover the dim without overlap."""
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
    if len(set(found)) != len(found):
        return None
    position = 0
    for start, stop in sorted(found):
        if start != position:
            return None
        position = stop
    return tuple(found) if position == size else None


def _apply(draft: Draft, linear: Operator, cut: _Cut) -> None:
    outputs = [name for cutter in cut.cutters for name in cutter.outputs]
    made: list[Operator] = []
    for output, (start, stop) in zip(outputs, cut.bounds, strict=True):
        factors = list(cut.factors)
        factors[cut.factor] = stop - start
        width = math.prod(factors)
        inputs = [linear.inputs[0]]
        for position, name in enumerate(linear.inputs[1:]):
            dim = 1 if position == 0 and linear.attributes["weight"] == "kn" else 0
            inputs.append(_part(draft, name, dim, cut, start, stop, width))
        lead = draft.shape(linear.outputs[0])[:-1]
        part = draft.result(linear, "linear", inputs, (*lead, width))
        made.append(replace(part, attributes=linear.attributes))
        made += _replay(draft, cut, made[-1], lead, factors, output)
    draft.replace(linear, *made)
    for operator in (*cut.path, *cut.cutters):
        draft.replace(operator)


def _replay(
    draft: Draft, cut: _Cut, part: Operator, lead: tuple[int, ...], factors: list[int], output: str
) -> list[Operator]:
    """The views and transposes of the whole, on one part; the last makes ``output``."""
    made: list[Operator] = []
    name, shape = part.outputs[0], (*lead, math.prod(factors))
    for step in cut.path:
        if step.family == "view":
            shape = (*lead, *factors)
            step_made = draft.result(step, "view", (name,), shape)
        else:
            perm = step.attributes["perm"]
            shape = tuple(shape[p] for p in perm)
            step_made = draft.result(step, "transpose", (name,), shape, perm=list(perm))
        made.append(step_made)
        name = step_made.outputs[0]
    draft.rename(output, name)
    return made


def _part(
    draft: Draft, name: str, dim: int, cut: _Cut, start: int, stop: int, width: int
) -> str:
    """The parameter that holds one part of another along ``dim``."""
    shape = list(draft.shape(name))
    if cut.factor == 0:
        inner = math.prod(cut.factors[1:])
        suffix = "[" + ":, " * dim + f"{start * inner}:{stop * inner}]"
    else:
        viewed = [*shape[:dim], *cut.factors, *shape[dim + 1 :]]
        skipped = ":, " * (dim + cut.factor)
        suffix = f".view({', '.join(map(str, viewed))})[{skipped}{start}:{stop}]"
    shape[dim] = width
    return draft.tensor(name, name + suffix, shape, padded_dims=())
