"""One class of link between devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from tensoropt.cluster._catalog import link_table
from tensoropt.cluster.device import Device
from tensoropt.errors import ClusterError

__all__ = ["Link"]

_KINDS = ("nvlink", "fabric", "pcie", "network", "none")
_BY_RANKS = ("efficiency_by_ranks", "all_reduce_efficiency_by_ranks", "kappa")


@dataclass(frozen=True, slots=True)
class Link:
    """A class of link: what one device can send over it, and how collectives use it.

    Parameters
    ----------
    name : str
        For example ``"NVLink4"``.
    kind : str
        Link class: ``"nvlink"``, ``"fabric"``, ``"pcie"``, ``"network"`` or ``"none"``.
    bandwidth_bytes_s : float
        Nominal unidirectional bandwidth in bytes/s that one device reaches alone.
    node_bandwidth_bytes_s : float or None
        For a link that the devices of a node share (network adapters): their total in bytes/s.
    efficiency : float
        Bus bandwidth that a large ring collective reaches, as a share of the nominal bandwidth.
    efficiency_by_ranks : Mapping[int, float]
        Replaces `efficiency` for groups of the given size.
    all_reduce_efficiency_by_ranks : Mapping[int, float]
        The same for all-reduce alone, where the switch reduces.
    hop_s, tree_hop_s, base_s : float
        Latency in seconds of a ring step, of a tree step (0: no tree) and of the call.
    kappa : Mapping[int, float]
        Interference of a collective with computation by group size, see
        :func:`tensoropt.cost.overlap.exposed_time`.
    family : str or None
        Key of measured collective curves, None where there are none.
    in_network_reduction : bool
        Whether the switch reduces, so that all-reduce says nothing about the other collectives.
    source : str
        Where the figures come from.
    """

    name: str
    kind: str
    bandwidth_bytes_s: float
    node_bandwidth_bytes_s: float | None = None
    efficiency: float = 0.78
    efficiency_by_ranks: Mapping[int, float] = field(default_factory=dict)
    all_reduce_efficiency_by_ranks: Mapping[int, float] = field(default_factory=dict)
    hop_s: float = 1.9e-6
    tree_hop_s: float = 0.0
    base_s: float = 14e-6
    kappa: Mapping[int, float] = field(default_factory=lambda: {2: 0.5})
    family: str | None = None
    in_network_reduction: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ClusterError(
                f"link {self.name!r}: unknown kind {self.kind!r}; expected one of "
                f"{', '.join(_KINDS)}"
            )
        for key in ("bandwidth_bytes_s", "node_bandwidth_bytes_s", "efficiency"):
            value = getattr(self, key)
            if value is None and key == "node_bandwidth_bytes_s":
                continue
            if not _is_number(value) or not 0 < value < float("inf"):
                raise ClusterError(f"link {self.name!r}: {key} must be a positive number")
        for key in ("hop_s", "tree_hop_s", "base_s"):
            value = getattr(self, key)
            if not _is_number(value) or not 0 <= value < 1:
                raise ClusterError(f"link {self.name!r}: {key} must be in [0, 1) seconds")
        for key in _BY_RANKS:
            table = _ranks_table(self.name, key, getattr(self, key))
            object.__setattr__(self, key, MappingProxyType(table))
        if not self.kappa or any(k > 1 for k in self.kappa.values()):
            raise ClusterError(
                f"link {self.name!r}: kappa maps group sizes to values in [0, 1], for example "
                "{2: 0.5}"
            )

    def __hash__(self) -> int:
        return hash((self.name, self.kind, self.bandwidth_bytes_s, self.node_bandwidth_bytes_s))

    def __reduce__(self) -> tuple[Any, ...]:
        return Link.from_dict, (self.to_dict(),)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Link:
        """Build a link from plain data; a known `name` supplies the fields that are left out.

        Raises
        ------
        ClusterError
            If a field is missing, unknown or out of range.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ClusterError(
                f"link {data.get('name', '?')!r}: unknown field {unknown[0]!r}; known fields: "
                f"{', '.join(sorted(known))}"
            )
        values: dict[str, Any] = dict(link_table()["links"].get(data.get("name"), {}))
        values.update(data)
        for key in ("name", "kind", "bandwidth_bytes_s"):
            if key not in values:
                raise ClusterError(
                    f"link {data.get('name', '?')!r}: field {key!r} is missing; a link needs name, "
                    f"kind and bandwidth_bytes_s, or a name that ships with the package: "
                    f"{', '.join(sorted(link_table()['links']))}"
                )
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the link as plain data that JSON can hold."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        for key in _BY_RANKS:
            data[key] = {str(n): value for n, value in data[key].items()}
        return data

    @classmethod
    def inside_node(cls, device: Device, size: int) -> Link:
        """Return the link between the `size` devices of one node."""
        if size == 1:
            return cls("none", "none", 1e12, kappa={1: 0.0}, source="one device has no link")
        link = device.scale_up
        if link is None and device.pair_bridge is not None and size == 2:
            link = device.pair_bridge
        if link is not None:
            return cls.from_dict(
                {"name": link["link"], "bandwidth_bytes_s": link["bandwidth_bytes_s"]}
            )
        name = f"PCIe{device.pcie_generation}"
        if f"{name}-{device.name}" in link_table()["links"]:
            name = f"{name}-{device.name}"
        return cls.from_dict({"name": name, "bandwidth_bytes_s": device.pcie_bandwidth_bytes_s})

    @classmethod
    def between_nodes(cls, node_bandwidth_bytes_s: float, node_size: int) -> Link:
        """Return the network link of nodes whose adapters carry `node_bandwidth_bytes_s` in all.

        One device alone reaches one adapter: its even share, or 100 Gbit/s where the share is less
        (a few adapters serve all devices).
        """
        # 200 Gbit/s and more per node come with remote direct memory access in all stored tables.
        name = "RDMA" if node_bandwidth_bytes_s >= 25e9 else "TCP"
        share = node_bandwidth_bytes_s / node_size
        alone = share if share >= 12.5e9 else min(node_bandwidth_bytes_s, 12.5e9)
        return cls.from_dict(
            {
                "name": name,
                "bandwidth_bytes_s": alone,
                "node_bandwidth_bytes_s": node_bandwidth_bytes_s,
            }
        )

    def busbw_bytes_s(self, kind: str, ranks: int, concurrent: int = 1) -> float:
        """Return the bus bandwidth in bytes/s that a large collective reaches.

        Parameters
        ----------
        kind : str
            Kind of collective; only ``"all_reduce"`` can differ from the others.
        ranks : int
            Size of the group.
        concurrent : int, default 1
            Number of devices of one node that use the link at the same time.

        Returns
        -------
        float
        """
        rate = self.bandwidth_bytes_s
        if self.node_bandwidth_bytes_s is not None:
            rate = min(rate, self.node_bandwidth_bytes_s / concurrent)
        if kind == "all_reduce" and self.all_reduce_efficiency_by_ranks:
            table = self.all_reduce_efficiency_by_ranks
            if ranks >= min(table):
                return rate * table[max(n for n in table if n <= ranks)]
        return rate * self.efficiency_by_ranks.get(ranks, self.efficiency)

    def kappa_for(self, ranks: int) -> float:
        """Return the interference factor for groups of `ranks`, of the closest size measured."""
        return self.kappa[min(self.kappa, key=lambda n: (abs(n - ranks), n))]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _ranks_table(link: str, key: str, table: Any) -> dict[int, float]:
    if not isinstance(table, Mapping):
        raise ClusterError(f"link {link!r}: {key} maps group sizes to numbers")
    try:
        numbers = {int(n): float(value) for n, value in table.items()}
    except (TypeError, ValueError):
        raise ClusterError(f"link {link!r}: {key} maps group sizes to numbers") from None
    if any(n < 1 or not 0 <= value < float("inf") for n, value in numbers.items()):
        raise ClusterError(f"link {link!r}: {key} maps group sizes to non-negative numbers")
    return dict(sorted(numbers.items()))
