"""Pictures of results. matplotlib is imported inside, and its global state is left alone."""

from __future__ import annotations

import math
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensoropt.errors import MissingExtraError, ProblemError

from .units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from tensoropt.frontier import Frontier, Sweep

__all__ = ["check_picture", "plot_frontier", "plot_sweep"]

# Okabe and Ito's colours, which stay apart for colour-blind readers.
COLORS = ("#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*", "<", ">")
LINE = "#0072B2"

PICTURES = (".png", ".svg", ".pdf")
"""Endings of names that can be drawn."""


def check_picture(path: str | PathLike[str]) -> None:
    """Check the ending of a picture's name, before there is anything to draw.

    Raises
    ------
    ProblemError
        If it is of no kind that can be drawn.
    """
    if Path(path).suffix.lower() not in PICTURES:
        raise ProblemError(
            f"cannot draw '{fspath(path)}': the name must end in {', '.join(PICTURES[:-1])} or "
            f"{PICTURES[-1]}"
        )


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plot") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _write(figure: Any, path: str | PathLike[str]) -> None:
    """Write a picture without dates and random names, so that equal results give equal files."""
    import matplotlib

    undated = {".png": "Software", ".svg": "Date", ".pdf": "CreationDate"}
    field = undated.get(Path(path).suffix.lower())
    with matplotlib.rc_context({"svg.hashsalt": "tensoropt"}):
        figure.savefig(path, dpi=150, metadata={field: None} if field else None)


def plot_frontier(frontier: Frontier, path: str | PathLike[str]) -> None:
    """Draw the frontier as steps, named schemes as marks, and the memory of the device.

    Parameters
    ----------
    frontier : Frontier
    path : path-like
        ``.png``, ``.svg`` or ``.pdf``.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    ProblemError
        If the name does not end in one of :data:`PICTURES`.
    """
    check_picture(path)
    rows = 1 + len(frontier.schemes) // 3
    figure = _figure(8.5, 5.0 + 0.2 * rows)
    axes = figure.add_subplot()
    memory = frontier.costs.device_bytes / 1e9
    time_s = frontier.costs.time_s
    card = frontier.cluster.device.memory_bytes / 1e9
    scheme_memory = np.array([s.costs.device_bytes / 1e9 for s in frontier.schemes])
    scheme_time = np.array([s.costs.time_s for s in frontier.schemes])
    unit, factor = ("ms", 1e3) if np.median(time_s) < 1 else ("s", 1.0)
    left, right, bottom, top = _limits(
        memory, time_s * factor, scheme_memory, scheme_time * factor, card
    )
    _draw_steps(axes, memory, time_s * factor, right, top, len(frontier))
    _draw_schemes(axes, frontier, factor, right, top)
    if card < right:
        _draw_card(axes, frontier, card, right)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_xlabel("device memory (GB)")
    axes.set_ylabel(f"time of one iteration ({unit})")
    axes.grid(visible=True, color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    g = frontier.graph_summary
    precise = "exact" if frontier.factor == 1 else f"within {100 * (frontier.factor - 1):.2g} %"
    if math.isinf(frontier.factor):
        precise = frontier.status
    axes.set_title(
        f"{frontier.model} on {frontier.cluster.name}: {format_count(g.parameter_count)} "
        f"parameters, batch {g.batch_size} ({precise})",
        fontsize=10,
    )
    _write(figure, path)


def _limits(
    memory: Any, times: Any, scheme_memory: Any, scheme_times: Any, card: float
) -> tuple[float, float, float, float]:
    """Choose how far the axes reach: all of the frontier, and schemes unless they are far off.

    They start from zero, so that ratios can be seen, unless that would leave most of the picture
    empty.

    One scheme that is ten times worse, or a card that is ten times larger, would otherwise squeeze
    everything else into a corner; the scheme is drawn at the edge instead.
    """
    right = 1.08 * float(memory.max())
    if card <= 3 * right:
        right = max(right, 1.08 * card)
    top = 1.08 * float(times.max())
    near_memory = scheme_memory[scheme_memory <= 2 * right]
    near_times = scheme_times[scheme_times <= 1.5 * top]
    if near_memory.size:
        right = max(right, 1.06 * float(near_memory.max()))
    if near_times.size:
        top = max(top, 1.06 * float(near_times.max()))
    left, bottom = float(memory.min()), float(times.min())
    left = 0.0 if left < 0.5 * right else left - 0.1 * (right - left)
    bottom = 0.0 if bottom < 0.5 * top else bottom - 0.1 * (top - bottom)
    return left, right, bottom, top


def _draw_card(axes: Any, frontier: Frontier, card: float, right: float) -> None:
    """Mark how much memory there is."""
    axes.axvline(card, color="0.35", linestyle="--", linewidth=1.2)
    axes.axvspan(card, right, color="0.93", zorder=0)
    axes.annotate(
        f"{frontier.cluster.device.name}\n{format_bytes(card * 1e9)}",
        (card, 0.98),
        xycoords=("data", "axes fraction"),
        xytext=(-5, 0),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=8,
        color="0.35",
    )


def _draw_steps(axes: Any, memory: Any, times: Any, right: float, top: float, count: int) -> None:
    """Draw the least time for every amount of memory: a step downwards at every point."""
    x = np.concatenate([memory[::-1], [max(right, float(memory[0]))]])
    y = np.concatenate([times[::-1], [times[0]]])
    label = f"frontier ({count:,} point{'s' if count > 1 else ''})"
    axes.step(x, y, where="post", color=LINE, linewidth=1.6, label=label, zorder=3)
    axes.fill_between(x, y, top, step="post", color=LINE, alpha=0.07, linewidth=0, zorder=1)
    axes.vlines(memory[-1], times[-1], top, color=LINE, linewidth=1.6, linestyle=":", zorder=3)
    if count <= 60:
        axes.plot(memory, times, ".", color=LINE, markersize=5, zorder=4)


def _draw_schemes(axes: Any, frontier: Frontier, factor: float, right: float, top: float) -> None:
    for number, s in enumerate(frontier.schemes):
        x, y = s.costs.device_bytes / 1e9, s.costs.time_s * factor
        outside = x > right or y > top
        label = s.scheme or s.description or "unnamed"
        if outside:
            label += f" (off: {format_bytes(1e9 * x)}, {format_seconds(y / factor)})"
        axes.plot(
            min(x, right),
            min(y, top),
            linestyle="none",
            marker=MARKERS[number % len(MARKERS)],
            color=COLORS[number % len(COLORS)],
            markeredgecolor="black",
            markeredgewidth=0.6,
            markersize=7,
            label=label,
            clip_on=False,
            zorder=5,
        )


def plot_sweep(sweep: Sweep, path: str | PathLike[str]) -> None:
    """Draw throughput per device, throughput and price per step against the number of devices.

    Parameters
    ----------
    sweep : Sweep
    path : path-like

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    ProblemError
        If the name does not end in one of :data:`PICTURES`.
    """
    check_picture(path)
    figure = _figure(8.5, 3.6)
    rows = [row for row in sweep if row.strategy is not None]
    tokens = rows[0].strategy.tokens_per_sample if rows and rows[0].strategy else None
    unit = "tokens/s" if tokens else "samples/s"
    counts = [row.count for row in rows]
    total = [(row.throughput or 0.0) * (tokens or 1) for row in rows]
    panels: list[tuple[str, list[float], list[float] | None]] = [
        (unit, total, [total[0] / counts[0] * n for n in counts] if rows else None),
        (f"{unit} a device", [t / n for t, n in zip(total, counts, strict=True)], None),
    ]
    prices = [row.price_per_step for row in rows]
    if rows and all(price is not None for price in prices):
        panels.append(("USD a step", [price or 0.0 for price in prices], None))
    for position, (title, values, ideal) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), position)
        if ideal is not None:
            axes.plot(counts, ideal, "--", color="0.6", linewidth=1, label="in proportion")
            axes.legend(frameon=False, fontsize=8)
        axes.plot(counts, values, "o-", color=LINE, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(n) for n in counts], minor=False)
        axes.set_ylim(0, 1.08 * max([*values, *(ideal or []), 1e-12]))
        axes.set_xlabel("devices")
        axes.set_title(title, fontsize=9)
        axes.grid(visible=True, color="0.9", linewidth=0.6)
    missing = [str(row.count) for row in sweep if not row.fits]
    title = f"{sweep.model} on {sweep.device}, up to {format_bytes(sweep.memory_bytes)} a device"
    if missing:
        title += f"; nothing fits on {', '.join(missing)}"
    figure.suptitle(title, fontsize=10)
    _write(figure, path)
