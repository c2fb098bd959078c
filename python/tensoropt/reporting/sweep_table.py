"""A sweep over device counts as a table and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .describe import summary
from .tables import format_table
from .units import format_bytes, format_money, format_rate, format_seconds

if TYPE_CHECKING:
    from tensoropt.frontier import Sweep, SweepRow

__all__ = ["sweep_record", "sweep_table"]


def sweep_table(sweep: Sweep) -> str:
    """Return the rows as text; see :meth:`Sweep.table`."""
    tokens = _tokens(sweep)
    unit = "tokens/s" if tokens else "samples/s"
    headers = ["devices", "time", "memory", "leanest", unit, "per device", "$/hour", "$/step"]
    headers += ["mesh", "strategy"]
    body = [_cells(row, tokens or 1) for row in sweep]
    return format_table(headers, body, ">>>>>>>><<")


def _tokens(sweep: Sweep) -> int | None:
    for row in sweep:
        if row.strategy is not None:
            return row.strategy.tokens_per_sample
    return None


def _cells(row: SweepRow, tokens: int) -> list[str]:
    hourly = row.cluster.price_usd_per_hour
    least = "-" if row.least_bytes is None else format_bytes(row.least_bytes)
    money = "-" if hourly is None else format_money(hourly)
    s = row.strategy
    if s is None:
        # Too little memory is plain from the column of the leanest; anything else needs its reason.
        other = row.reason and row.status != "infeasible"
        why = row.reason if other else "nothing fits"
        return [str(row.count), "-", "-", least, "-", "-", money, "-", "-", why]
    return [
        str(row.count),
        format_seconds(s.costs.time_s),
        format_bytes(s.costs.device_bytes) + ("!" if s.at_risk(row.cluster) else ""),
        least,
        format_rate(s.throughput * tokens),
        format_rate(s.throughput * tokens / row.count),
        money,
        "-" if row.price_per_step is None else format_money(row.price_per_step),
        str(s.mesh),
        summary(s),
    ]


def sweep_record(sweep: Sweep) -> dict[str, Any]:
    """Return a sweep as JSON values."""
    rows = []
    for row in sweep:
        s = row.strategy
        rows.append(
            {
                "count": row.count,
                "cluster": row.cluster.name,
                "fits": row.fits,
                "reason": row.reason,
                "least_device_bytes": row.least_bytes,
                "points": row.points,
                "status": row.status,
                "factor": row.factor,
                "price_usd_per_hour": row.cluster.price_usd_per_hour,
                "price_per_step_usd": row.price_per_step,
                "time_s": s.costs.time_s if s else None,
                "device_bytes": s.costs.device_bytes if s else None,
                "at_risk": s.at_risk(row.cluster) if s else None,
                "samples_per_s": row.throughput,
                "samples_per_s_per_device": row.throughput_per_device,
                "tokens_per_s": s.tokens_per_s if s else None,
                "mesh": str(s.mesh) if s else None,
                "micro_batches": s.micro_batches if s else None,
                "description": summary(s) if s else None,
            }
        )
    return {
        "model": sweep.model,
        "device": sweep.device,
        "memory_bytes": sweep.memory_bytes,
        "rows": rows,
    }
