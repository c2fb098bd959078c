"""A frontier as a table: some of its points, and the named schemes on the same scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .describe import summary
from .tables import format_table
from .units import format_bytes, format_money, format_rate, format_ratio, format_seconds

if TYPE_CHECKING:
    from tensoropt.frontier import Frontier
    from tensoropt.strategy import Strategy

__all__ = ["fit_word", "frontier_table", "record", "schemes_table", "spread"]


def frontier_table(frontier: Frontier, rows: int = 20) -> str:
    """Return the points and the named schemes as text; see :meth:`Frontier.table`."""
    shown = spread(frontier, rows)
    # Neighbours that would print alike get one more digit.
    digits = 3 if _tell_apart(frontier, shown, 3) else 4
    body = [_cells(frontier, frontier[i], str(i), digits) for i in shown]
    headers, align = _headers(frontier, "point")
    parts = [format_table(headers, body, align)]
    if len(shown) < len(frontier):
        parts.append(f"  ({len(shown)} of {len(frontier):,} points, spread over the frontier)")
    if frontier.schemes:
        parts += ["", schemes_table(frontier)]
    return "\n".join(parts)


def _tell_apart(frontier: Frontier, shown: list[int], digits: int) -> bool:
    times = [format_seconds(float(frontier.costs.time_s[i]), digits) for i in shown]
    sizes = [format_bytes(int(frontier.costs.device_bytes[i]), digits) for i in shown]
    return len(set(times)) == len(set(sizes)) == len(shown)


def schemes_table(frontier: Frontier) -> str:
    """Return the named schemes on the scale of the frontier, and how far each is from it."""
    headers, align = _headers(frontier, "scheme")
    headers = [*headers[:-1], "slower*", "more memory**", headers[-1]]
    align = align[:-1] + ">>" + align[-1]
    body = []
    for scheme in sorted(frontier.schemes, key=lambda s: (s.costs.time_s, s.scheme)):
        distance = frontier.distance(scheme)
        cells = _cells(frontier, scheme, scheme.scheme or "unnamed")
        ratios = [format_ratio(distance.time_ratio), format_ratio(distance.memory_ratio)]
        body.append([*cells[:-1], *ratios, cells[-1]])
    return (
        "Named schemes, by the same cost model\n"
        + format_table(headers, body, align)
        + "\n  * than the frontier at the scheme's memory   ** than the frontier at its time"
    )


def spread(frontier: Frontier, rows: int) -> list[int]:
    """Choose points that are spread over the curve, both ends and the fastest that fits included.

    Distances along the curve are taken on logarithmic scales of time and memory.
    """
    count = len(frontier)
    if count <= rows:
        return list(range(count))
    time_s, device_bytes, _ = frontier.costs
    steps = [np.abs(np.diff(np.log(np.maximum(c, 1e-12)))) for c in (time_s, device_bytes)]
    steps = [step / max(step.sum(), 1e-12) for step in steps]
    length = np.concatenate([[0.0], np.cumsum(steps[0] + steps[1])])
    fitting = np.flatnonzero(device_bytes <= frontier.cluster.device.memory_bytes)
    must = {0, count - 1, *(fitting[:1].tolist())}
    # Nearest points to evenly spaced places; many points may be nearest to one place, so that
    # fewer rows than asked for can come out, never more.
    places = np.linspace(0, length[-1], max(rows - len(must) + 2, 2))
    chosen = {int(i) for i in np.abs(length[None, :] - places[:, None]).argmin(axis=1)}
    return sorted(sorted(chosen - must)[: max(rows - len(must), 0)] + sorted(must))


def fit_word(frontier: Frontier, strategy: Strategy) -> str:
    """Say whether a strategy fits the device: ``yes``, ``at risk`` or ``no``."""
    if not strategy.fits(frontier.cluster):
        return "no"
    return "at risk" if strategy.at_risk(frontier.cluster) else "yes"


def _headers(frontier: Frontier, first: str) -> tuple[list[str], str]:
    rate = "tokens/s" if frontier.graph_summary.tokens_per_sample else "samples/s"
    headers = [first, "time", "memory", "fits", rate, "mesh", "strategy"]
    return headers, ("<" if first == "scheme" else ">") + ">><><<"


def _cells(frontier: Frontier, s: Strategy, first: str, digits: int = 3) -> list[str]:
    tokens = frontier.graph_summary.tokens_per_sample
    return [
        first,
        format_seconds(s.costs.time_s, digits),
        format_bytes(s.costs.device_bytes, digits),
        fit_word(frontier, s),
        format_rate(s.throughput * (tokens or 1)),
        str(s.mesh),
        summary(s),
    ]


def record(frontier: Frontier, s: Strategy, point: int | None) -> dict[str, Any]:
    """Return one strategy's figures as plain values, for tables and machines.

    Parameters
    ----------
    frontier : Frontier
    s : Strategy
    point : int or None
        Its position on the frontier; None for a named scheme, which gets its distances instead.
    """
    costs = s.costs
    values: dict[str, Any] = {
        "point": point,
        "scheme": s.scheme,
        "time_s": costs.time_s,
        "simulated_time_s": costs.simulated_time_s,
        "device_bytes": costs.device_bytes,
        "memory_bound_bytes": costs.memory_bound_bytes,
        "memory_peak_bytes": costs.memory_peak_bytes,
        "compute_s": costs.compute_s,
        "communication_s": costs.communication_s,
        "samples_per_s": s.throughput,
        "tokens_per_s": s.tokens_per_s,
        "price_per_step_usd": frontier.price_per_step(s),
        "fits": s.fits(frontier.cluster),
        "at_risk": s.at_risk(frontier.cluster),
        "mesh": str(s.mesh),
        "micro_batches": s.micro_batches,
        "recomputed_blocks": sum(s.recompute.values()),
        "description": summary(s),
    }
    distance = frontier.distance(s) if point is None else None
    values["time_over_frontier"] = 1.0 if distance is None else distance.time_ratio
    values["memory_over_frontier"] = 1.0 if distance is None else distance.memory_ratio
    return values


def price_text(frontier: Frontier, s: Strategy) -> str:
    """Say what one iteration costs, or nothing if the price is unknown."""
    price = frontier.price_per_step(s)
    return "" if price is None else f"{format_money(price)} a step"
