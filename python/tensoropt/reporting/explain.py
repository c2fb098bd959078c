"""What a strategy does and where its time and memory go, as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tensoropt.graph import Graph

from .describe import SCHEME_NAMES, summary
from .grouping import block_keys, group_names
from .tables import format_table
from .units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from tensoropt.strategy import Collective, Strategy

__all__ = ["explain"]


def explain(strategy: Strategy, graph: Graph | None = None, rows: int = 40) -> str:
    """Say what a strategy does, and where its time and memory go.

    Parameters
    ----------
    strategy : Strategy
    graph : Graph, optional
        The model: repeated layers are then grouped by its blocks rather than by their names.
    rows : int
        Longest table of splits; what is left out is said.

    Returns
    -------
    str
    """
    parts = [
        _head(strategy),
        _operators(strategy, graph, rows),
        _parameters(strategy, rows),
        _time(strategy),
        _memory(strategy),
    ]
    if strategy.notes:
        parts.append("Notes\n" + "\n".join(f"  - {note}" for note in strategy.notes))
    return "\n\n".join(part for part in parts if part)


def _head(s: Strategy) -> str:
    axes = ", ".join(f"{axis.name} of {axis.size}" for axis in s.mesh.axes)
    if len({axis.level for axis in s.mesh.axes}) > 1:
        axes += " (the last has the fastest link)"
    lines = [
        f"{s.model} on {s.cluster}: {summary(s)}",
        f"  mesh          {s.mesh}: {axes}",
        f"  batch         {s.batch_size} samples in {s.micro_batches} "
        f"micro-batch{'es' if s.micro_batches > 1 else ''} of {s.batch_size // s.micro_batches}",
        f"  numbers       {s.precision}, optimizer {s.optimizer}",
        f"  recomputes    {_recomputed(s)}",
        f"  throughput    {throughput_text(s)}",
    ]
    if s.scheme:
        lines.insert(1, f"  named scheme  {s.scheme}")
    return "\n".join(lines)


def throughput_text(s: Strategy) -> str:
    """Write the throughput in samples and, where there are any, tokens per second."""
    text = f"{format_rate(s.throughput)} samples/s"
    if s.tokens_per_s is not None:
        text += f", {format_rate(s.tokens_per_s)} tokens/s"
    return text


def _recomputed(s: Strategy) -> str:
    chosen = {name: True for name, flag in s.recompute.items() if flag}
    if not chosen:
        return "nothing"
    names = ", ".join(group.label for group in group_names(chosen))
    return f"{len(chosen)} of {len(s.recompute)} blocks: {names}"


def _axis_headers(s: Strategy) -> list[str]:
    return [f"{axis.name}={axis.size}" for axis in s.mesh.axes]


def _operators(s: Strategy, graph: Graph | None, rows: int) -> str:
    values = {name: tuple(labels) for name, labels in s.operators.items()}
    groups = group_names(values, block_keys(graph) if graph is not None else None)
    shown = groups
    if len(groups) > rows:  # the widest groups say most; the order of execution is kept
        kept = sorted(range(len(groups)), key=lambda i: (-len(groups[i].names), i))[:rows]
        shown = [groups[i] for i in sorted(kept)]
    table = format_table(
        ["operator", "count", *_axis_headers(s)],
        [[g.label, str(len(g.names)), *(label or "-" for label in g.value)] for g in shown],
        "<>" + "<" * len(s.mesh.axes),
    )
    text = (
        "Splits: the named dim of each operator that a mesh axis splits "
        "('-': the same work on every device of the axis, '~': pending sums pass through)\n" + table
    )
    left = len(groups) - len(shown)
    return text + (f"\n  and {left} smaller groups, all of them in the saved file" if left else "")


def _parameters(s: Strategy, rows: int) -> str:
    values = {name: (p.scheme, p.axes, p.layout) for name, p in s.parameters.items()}
    by_way: dict[tuple[str, tuple[int, ...], tuple[str, ...]], dict[str, bool]] = {}
    for name, value in values.items():
        by_way.setdefault(value, {})[name] = True
    body = []
    order = sorted(by_way.items(), key=lambda item: -len(item[1]))
    for (scheme, axes, layout), names in order[:rows]:
        labels = [group.label for group in group_names(names)]
        body.append(
            [
                SCHEME_NAMES.get(scheme, scheme),
                "+".join(s.mesh.axes[axis].name for axis in axes) or "-",
                " ".join(layout),
                str(len(names)),
                ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else ""),
            ]
        )
    if not body:
        return ""
    left = len(order) - len(body)
    return (
        "Parameters: how they are kept, and their layout on the axes\n"
        + format_table(["kept", "over", "layout", "count", "which"], body, "<<<><")
        + (f"\n  and {left} more ways, all of them in the saved file" if left > 0 else "")
    )


def _time(s: Strategy) -> str:
    costs = s.costs
    hidden = max(0.0, costs.compute_s + costs.communication_s - costs.time_s)
    lines = [
        f"Time of one iteration: {format_seconds(costs.time_s)} by the search's model, "
        f"{format_seconds(costs.simulated_time_s)} when simulated with one stream per link",
        f"  compute       {format_seconds(costs.compute_s)}",
        f"  collectives   {format_seconds(costs.communication_s)}, "
        f"of which {format_seconds(hidden)} hidden behind compute"
        if s.collectives
        else "  collectives   none",
    ]
    if s.collectives:
        lines += ["  by purpose, before overlap", _collective_classes(s)]
        lines += ["  longest, before overlap", _longest_collectives(s)]
    return "\n".join(lines)


def _collective_classes(s: Strategy) -> str:
    """Sum the collectives over purpose, kind, axis and phase."""
    totals: dict[tuple[str, str, int, str], list[float]] = {}
    for c in s.collectives:
        entry = totals.setdefault((c.why, c.kind, c.axis, c.phase), [0, 0, 0.0])
        entry[0] += c.count
        entry[1] += c.count * c.nbytes
        entry[2] += c.seconds
    rows = [
        [
            why,
            kind.replace("_", "-"),
            s.mesh.axes[axis].name,
            phase,
            f"{count:.0f}",
            format_bytes(nbytes),
            format_seconds(seconds),
        ]
        for (why, kind, axis, phase), (count, nbytes, seconds) in sorted(
            totals.items(), key=lambda item: (-item[1][2], item[0])
        )
    ]
    headers = ["purpose", "collective", "axis", "phase", "count", "bytes", "time"]
    return format_table(headers, rows, "<<<<>>>", indent="    ")


def _longest_collectives(s: Strategy, count: int = 8) -> str:
    """List the costliest collectives; those alike in repeated layers are one line."""
    rows = []
    for c, label, total in _alike(s.collectives)[:count]:
        each = f"{c.count} x {format_bytes(c.nbytes)}"
        rows.append([label, c.why, c.kind.replace("_", "-"), s.mesh.axes[c.axis].name])
        rows[-1] += [c.phase, each, format_seconds(total)]
    headers = ["for", "because of", "collective", "axis", "phase", "each", "time"]
    return format_table(headers, rows, "<<<<<>>", indent="    ")


def _alike(collectives: Iterable[Collective]) -> list[tuple[Collective, str, float]]:
    """Gather collectives that differ in subject only; costliest first."""
    classes: dict[tuple[object, ...], list[Collective]] = {}
    for c in collectives:
        key = (c.kind, c.axis, c.nbytes, c.count, c.phase, c.why)
        classes.setdefault(key, []).append(c)
    found = []
    for members in classes.values():
        seconds: dict[str, float] = {}
        for c in members:
            seconds[c.subject] = seconds.get(c.subject, 0.0) + c.seconds
        for group in group_names(dict.fromkeys(seconds, True)):
            total = sum(seconds[name] for name in group.names)
            found.append((members[0], group.label, total))
    found.sort(key=lambda item: (-item[2], item[1]))
    return found


def _memory(s: Strategy) -> str:
    c = s.costs
    parts = [
        ("weights", c.weight_bytes),
        ("gradients", c.gradient_bytes),
        ("optimizer state", c.optimizer_bytes),
        ("saved for backward", c.saved_bytes),
        ("transient", c.transient_bytes),
    ]
    total = c.memory_bound_bytes or 1
    lines = [
        f"Memory of one device: {format_bytes(c.device_bytes)} in all, of which tensors take at "
        f"most {format_bytes(c.memory_bound_bytes)} (replayed peak "
        f"{format_bytes(c.memory_peak_bytes)})",
        format_table(
            ["part", "bytes", "share"],
            [[name, format_bytes(n), f"{100 * n / total:.0f} %"] for name, n in parts],
            "<>>",
            indent="    ",
        ),
    ]
    if s.largest:
        lines.append("  largest")
        rows = [[t.name, t.part, format_bytes(t.nbytes)] for t in s.largest]
        lines.append(format_table(["tensor", "what of it", "bytes"], rows, "<<>", indent="    "))
    return "\n".join(lines)
