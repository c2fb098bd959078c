"""A strategy in one line: ``data 4 x tensor 2, ZeRO-3 on a0``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tensoropt.cluster import Mesh

if TYPE_CHECKING:
    from tensoropt.strategy import ParameterPlacement, Strategy

__all__ = ["SCHEME_NAMES", "axis_roles", "describe", "summary"]

SCHEME_NAMES: Mapping[str, str] = {
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "zero3_keep": "ZeRO-3 (kept)",
}

# Shares of the sharded whole from which an axis is said to serve a purpose. Megatron's tensor
# parallel shards all but normalisations and some biases; its sequence parallel shards the
# activations between matrix products only.
MAINLY = 0.5
PARTLY = 0.15


def describe(
    mesh: Mesh,
    tensors: Mapping[str, Sequence[str]],
    parameters: Mapping[str, ParameterPlacement],
    sizes: Mapping[str, int] | None = None,
) -> str:
    """Say in a few words what each mesh axis is mainly used for.

    Parameters
    ----------
    mesh : Mesh
    tensors : mapping of str to sequence of str
        State of each activation on each axis, as in ``Strategy.tensors``.
    parameters : mapping of str to ParameterPlacement
    sizes : mapping of str to int, optional
        Elements of each parameter, so that large ones count more; equal weights otherwise.

    Returns
    -------
    str
    """
    roles = axis_roles(mesh, tensors, parameters, sizes)
    merged: list[tuple[str, int]] = []
    for role, axis in zip(roles, mesh.axes, strict=True):
        if merged and merged[-1][0] == role:
            merged[-1] = (role, merged[-1][1] * axis.size)
        else:
            merged.append((role, axis.size))
    text = " x ".join(f"{role} {size}" for role, size in merged)
    if mesh.size == 1:
        text = "single device"
    storage = _storage(mesh, parameters, sizes)
    return f"{text}, {storage}" if storage else text


def axis_roles(
    mesh: Mesh,
    tensors: Mapping[str, Sequence[str]],
    parameters: Mapping[str, ParameterPlacement],
    sizes: Mapping[str, int] | None = None,
) -> tuple[str, ...]:
    """Name the main use of every mesh axis.

    Returns
    -------
    tuple of str
        ``data`` (activations split along their first dim), ``sequence`` (along another dim, with
        whole parameters), ``tensor`` (parameters split), ``tensor+sequence``, ``tensor+data`` or
        ``replicated``.
    """
    weights = _weights(parameters, sizes)
    roles = []
    for axis in range(len(mesh.axes)):
        split = sum(w for n, w in weights.items() if parameters[n].layout[axis].startswith("S"))
        states = Counter(state[axis] for state in tensors.values())
        count = sum(states.values()) or 1
        first = states["S0"] / count
        other = sum(n for state, n in states.items() if state.startswith("S")) / count - first
        roles.append(_role(split, first, other))
    return tuple(roles)


def _role(split: float, first: float, other: float) -> str:
    """Name an axis by the shares of parameters and activations that it splits."""
    if split >= PARTLY:
        if first >= PARTLY and split < MAINLY:
            return "tensor+data"
        return "tensor+sequence" if other >= PARTLY and first < other else "tensor"
    if max(first, other) == 0:
        return "replicated"
    return "data" if first >= other else "sequence"


def _storage(
    mesh: Mesh, parameters: Mapping[str, ParameterPlacement], sizes: Mapping[str, int] | None
) -> str:
    """Say how parameters are kept, the most frequent way first, small shares left out."""
    shares: Counter[str] = Counter()
    for name, weight in _weights(parameters, sizes).items():
        placed = parameters[name]
        axes = "+".join(mesh.axes[axis].name for axis in placed.axes)
        scheme = SCHEME_NAMES.get(placed.scheme, placed.scheme)
        shares[f"{scheme} on {axes}" if axes else ""] += weight  # type: ignore[assignment]
    kept = [(text, share) for text, share in shares.most_common() if share >= PARTLY and text]
    if not kept:
        return ""
    if len(kept) == 1 and kept[0][1] >= 1 - PARTLY:
        return kept[0][0]
    return ", ".join(f"{text} for {share:.0%}".replace("%", " %") for text, share in kept)


def _weights(
    parameters: Mapping[str, ParameterPlacement], sizes: Mapping[str, int] | None
) -> dict[str, float]:
    """Return shares that add up to one."""
    raw = {name: (sizes or {}).get(name, 1) for name in parameters}
    total = math.fsum(raw.values()) or 1.0
    return {name: value / total for name, value in raw.items()}


def summary(strategy: Strategy) -> str:
    """Return a strategy's own description, or one made from its splits."""
    s = strategy
    if s.description:
        return s.description
    words = [describe(s.mesh, s.tensors, s.parameters)]
    if any(s.recompute.values()):
        words.append(f"recompute {sum(s.recompute.values())}/{len(s.recompute)} blocks")
    if s.micro_batches > 1:
        words.append(f"{s.micro_batches} micro-batches")
    return ", ".join(words)
