"""How two strategies differ, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .describe import SCHEME_NAMES, summary
from .grouping import group_names
from .tables import format_table
from .units import format_bytes, format_ratio, format_seconds

if TYPE_CHECKING:
    from tensoropt.strategy import ParameterPlacement, Strategy

__all__ = ["diff"]


def diff(old: Strategy, new: Strategy, rows: int = 40) -> str:
    """Say how ``new`` differs from ``old``, in costs and in what it does.

    Parameters
    ----------
    old, new : Strategy
    rows : int
        Longest table of splits; what is left out is said.

    Returns
    -------
    str
    """
    lines = [f"- {summary(old)}", f"+ {summary(new)}"]
    if old.graph_fingerprint != new.graph_fingerprint:
        lines.append("  they are for different models, or for different batches of one")
    lines += ["", "Costs", _costs(old, new)]
    settings = _settings(old, new)
    if settings:
        lines += ["", "Settings", format_table(["", "from", "to"], settings, "<<<")]
    if old.mesh != new.mesh:
        lines += ["", "The meshes differ, so that splits cannot be compared axis by axis."]
        return "\n".join(lines)
    sections = (
        ("Operators", _changed(_labels(old.operators), _labels(new.operators))),
        ("Tensors", _changed(_labels(old.tensors), _labels(new.tensors))),
        ("Parameters", _changed(_kept(old), _kept(new))),
        ("Gathered again in the backward pass", _changed(_again(old), _again(new))),
    )
    for title, changed in sections:
        if not changed:
            continue
        groups = group_names(changed)
        body = [[g.label, str(len(g.names)), *g.value] for g in groups[:rows]]
        lines += ["", title, format_table(["name", "count", "from", "to"], body, "<><<")]
        if len(groups) > rows:
            lines.append(f"  and {len(groups) - rows} more groups")
    if not settings and not any(changed for _, changed in sections):
        lines += ["", "They split everything alike."]
    return "\n".join(lines)


def _costs(old: Strategy, new: Strategy) -> str:
    a, b = old.costs, new.costs
    rows = []
    for name, x, y, write in (
        ("time", a.time_s, b.time_s, format_seconds),
        ("simulated time", a.simulated_time_s, b.simulated_time_s, format_seconds),
        ("compute", a.compute_s, b.compute_s, format_seconds),
        ("collectives", a.communication_s, b.communication_s, format_seconds),
        ("device memory", a.device_bytes, b.device_bytes, format_bytes),
        ("weights", a.weight_bytes, b.weight_bytes, format_bytes),
        ("gradients", a.gradient_bytes, b.gradient_bytes, format_bytes),
        ("optimizer state", a.optimizer_bytes, b.optimizer_bytes, format_bytes),
        ("saved for backward", a.saved_bytes, b.saved_bytes, format_bytes),
        ("transient", a.transient_bytes, b.transient_bytes, format_bytes),
    ):
        rows.append([name, write(x), write(y), format_ratio(y / x) if x else "-"])
    return format_table(["", "from", "to", "change"], rows, "<>>>")


def _settings(old: Strategy, new: Strategy) -> list[list[str]]:
    def values(s: Strategy) -> dict[str, str]:
        return {
            "model": s.model,
            "cluster": s.cluster,
            "mesh": str(s.mesh),
            "batch size": str(s.batch_size),
            "micro-batches": str(s.micro_batches),
            "precision": s.precision,
            "optimizer": s.optimizer,
            "recomputed blocks": f"{sum(s.recompute.values())} of {len(s.recompute)}",
        }

    before, after = values(old), values(new)
    rows = [[name, before[name], after[name]] for name in before if before[name] != after[name]]
    same_count = before["recomputed blocks"] == after["recomputed blocks"]
    if same_count and dict(old.recompute) != dict(new.recompute):
        rows.append(["recomputed blocks", "some", "others"])
    return rows


def _labels(values: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {name: " ".join(label or "-" for label in labels) for name, labels in values.items()}


def _kept(s: Strategy) -> dict[str, str]:
    def text(p: ParameterPlacement) -> str:
        axes = "+".join(s.mesh.axes[axis].name for axis in p.axes)
        scheme = SCHEME_NAMES.get(p.scheme, p.scheme)
        return f"{' '.join(p.layout)}, {scheme}" + (f" on {axes}" if axes else "")

    return {name: text(p) for name, p in s.parameters.items()}


def _again(s: Strategy) -> dict[str, str]:
    def text(tensor: str, consumer: str, operand: int) -> str:
        # Most tensors are read as first operand, which goes without saying.
        which = f" as operand {operand}" if operand > 0 else ""
        return f"{tensor} for {consumer or 'all'}{which}"

    return {text(*gather): "yes" for gather in sorted(s.regathered)}


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    names = [*old, *(name for name in sorted(new) if name not in old)]
    pairs = {name: (old.get(name, "none"), new.get(name, "none")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
