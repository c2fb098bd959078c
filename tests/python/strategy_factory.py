"""Hand-made strategies and frontiers, for tests of what shows, saves and picks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.cluster import Cluster
from tensoropt.frontier import Frontier, GraphSummary
from tensoropt.strategy import Collective, Costs, LargeTensor, ParameterPlacement, Strategy

CLUSTER = Cluster.parse("8xA100-SXM-80GB")
SUMMARY = GraphSummary("tiny-gpt", 64, 1024, 12_345_678, "f" * 64)
LAYERS = 4
# (time in seconds, device total in bytes): a frontier that crosses the 85.9 GB of the card.
CURVE = [(0.20, 120e9), (0.25, 84e9), (0.30, 60e9), (0.42, 41e9), (0.61, 30e9), (0.90, 24e9)]


def strategy(time_s: float = 0.25, device_bytes: float = 40e9, **changes: Any) -> Strategy:
    """Return a small but complete strategy: data 4 x tensor 2 over four layers."""
    mesh = next(m for m in CLUSTER.meshes() if m.shape == (2, 4))
    layers = range(LAYERS)
    bound = int(device_bytes * 0.9)
    values: dict[str, Any] = {
        "model": SUMMARY.name,
        "cluster": CLUSTER.name,
        "graph_fingerprint": SUMMARY.fingerprint,
        "mesh": mesh,
        "batch_size": SUMMARY.batch_size,
        "micro_batches": 2,
        "precision": "bf16",
        "optimizer": "adamw",
        "recompute": {f"layers.{i}": i < 1 for i in layers},
        "operators": {f"layers.{i}.up": ("m0", "n") for i in layers} | {"loss": ("m0", "")},
        "tensors": {f"layers.{i}.norm": ("S0", "R") for i in layers},
        "parameters": {
            f"layers.{i}.up.weight": ParameterPlacement(("R", "S0"), "zero1", (0,)) for i in layers
        }
        | {"norm.weight": ParameterPlacement(("R", "R"), "ddp", ())},
        "regathered": frozenset({("layers.1.norm", "layers.1.up", 0), ("layers.0.norm", "", 0)}),
        "costs": Costs(
            time_s=time_s,
            simulated_time_s=time_s * 0.95,
            memory_bound_bytes=bound,
            memory_peak_bytes=int(bound * 0.9),
            device_bytes=int(device_bytes),
            compute_s=time_s * 0.8,
            communication_s=time_s * 0.3,
            weight_bytes=bound // 10,
            gradient_bytes=bound // 10,
            optimizer_bytes=bound // 2,
            saved_bytes=bound // 5,
            transient_bytes=bound // 10,
        ),
        "collectives": tuple(
            Collective("all_reduce", 1, 8_000_000, 2, phase, f"layers.{i}.up", why, 0.001)
            for phase, why in (("forward", "redistribution"), ("backward", "redistribution"))
            for i in layers
        )
        + tuple(
            Collective("reduce_scatter", 0, 4_000_000, 1, "step", name, "gradient sync", 0.0005)
            for name in (f"layers.{i}.up.weight" for i in layers)
        ),
        "description": "data 2 x tensor 4, ZeRO-1 on a0",
        "notes": ("dropout masks are shared",),
        "tokens_per_sample": SUMMARY.tokens_per_sample,
        "largest": (
            LargeTensor("embedding.weight", "weights, gradients, optimizer", 3_000_000_000),
            LargeTensor("logits", "transient", 2_000_000_000),
            LargeTensor("layers.0.up", "saved for backward", 1_000_000_000),
        ),
    }
    return Strategy(**(values | changes))


def points(curve: Sequence[tuple[float, float]] = tuple(CURVE)) -> list[Strategy]:
    """Return strategies along a curve that differ in costs, splits and settings."""
    found = []
    for index, (time_s, device_bytes) in enumerate(curve):
        base = strategy(time_s, device_bytes, micro_batches=1 << index % 3)
        operators = dict(base.operators) | {f"layers.{index % LAYERS}.up": ("m0", "k")}
        recompute = {f"layers.{i}": i < index % (LAYERS + 1) for i in range(LAYERS)}
        changes: dict[str, Any] = {"operators": operators, "recompute": recompute}
        if index % 2:
            changes["regathered"] = frozenset({("layers.2.norm", "layers.2.up", 0)})
            changes["collectives"] = base.collectives[:-1]
        found.append(Strategy(**(vars(base) | changes)))
    return found


def schemes() -> list[Strategy]:
    """Return two named schemes: one off the frontier, one too large for the card."""
    return [
        strategy(0.45, 55e9, scheme="ZeRO-3 (FSDP)", description="data 8, ZeRO-3 on a0"),
        strategy(0.22, 130e9, scheme="data parallel", description="data 8", largest=()),
    ]


def frontier(**changes: Any) -> Frontier:
    """Return a frontier of six points with two named schemes."""
    values: dict[str, Any] = {
        "graph_summary": SUMMARY,
        "cluster": CLUSTER,
        "points": points(),
        "schemes": schemes(),
        "status": "optimal",
        "factor": 1.0,
        "notes": ("balanced routing is assumed",),
        "settings": {"optimizer": "adamw", "precision": "bf16"},
        "seconds": {"tables": 0.5, "solve": 1.5},
    }
    return Frontier(**(values | changes))
