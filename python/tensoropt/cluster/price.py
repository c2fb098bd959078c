"""What a cluster costs per hour: dated on-demand prices, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tensoropt.cluster._catalog import instance_table
from tensoropt.cluster.device import Device
from tensoropt.errors import ClusterError

__all__ = ["Price", "reference_network_bytes_s", "reference_price"]

# Where no instance is known: one 100 Gbit/s adapter in a node.
_DEFAULT_NODE_NETWORK_BYTES_S = 12.5e9


@dataclass(frozen=True, slots=True)
class Price:
    """A price in USD per hour and where it comes from.

    Parameters
    ----------
    usd_per_hour : float
        Price of the whole cluster (or node).
    basis : str
        What was priced, for example ``"p4d.24xlarge"``, and how.
    date : str
        Date of the price table.
    source : str
        Address of the price table.
    """

    usd_per_hour: float
    basis: str = ""
    date: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        value = self.usd_per_hour
        ok = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not ok or not 0 <= value < float("inf"):
            raise ClusterError(f"a price in USD per hour must be a number >= 0, got {value!r}")

    @classmethod
    def given(cls, usd_per_hour: float) -> Price:
        """Return a price that the user stated."""
        return cls(usd_per_hour, basis="given by the user")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Price:
        """Build a price from plain data, the inverse of :meth:`to_dict`."""
        try:
            return cls(**data)
        except TypeError:
            raise ClusterError(
                "cluster: a price is a table with usd_per_hour, basis, date and source"
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the price as plain data."""
        return asdict(self)


def instance(name: str) -> dict[str, Any] | None:
    """Return the entry of a cloud instance by its type, None if it is unknown."""
    entries: list[dict[str, Any]] = instance_table()["instances"]
    return next((e for e in entries if e["type"].lower() == name.lower()), None)


def instance_price(entry: Mapping[str, Any], share: float = 1.0, note: str = "") -> Price:
    """Return the price of `share` instances of that type."""
    table = instance_table()
    return Price(
        entry["usd_per_hour"] * share,
        basis=f"{entry['provider']} {entry['type']}, on demand{note}",
        date=table["dates"][entry["provider"]],
        source=table["sources"][entry["provider"]],
    )


def _reference(device: Device, *, network: bool = False) -> dict[str, Any] | None:
    table = instance_table()
    name = table["reference"].get(device.name)
    if name is None and network:
        name = table["network_like"].get(device.name)
    return None if name is None else instance(name)


def reference_network_bytes_s(device: Device) -> float:
    """Return the network bandwidth in bytes/s of the device's reference instance."""
    entry = _reference(device, network=True)
    return _DEFAULT_NODE_NETWORK_BYTES_S if entry is None else float(entry["network_bytes_s"])


def reference_price(device: Device, count: int) -> Price | None:
    """Return the price of `count` devices: a share of reference instances, or a listed price."""
    entry = _reference(device)
    if entry is not None:
        share = count / entry["count"]
        note = "" if share == int(share) else f", {count} of {entry['count']} devices' share"
        return instance_price(entry, share, note)
    listed = instance_table()["device_prices"].get(device.name)
    if not listed:
        return None
    best = min(listed, key=lambda e: (e["usd_per_gpu_hour"], e["provider"]))
    table = instance_table()
    return Price(
        best["usd_per_gpu_hour"] * count,
        basis=f"{best['provider']} price of one device ({best['confidence']} confidence)",
        date=table["dates"][best["provider"]],
        source=table["sources"][best["provider"]],
    )
