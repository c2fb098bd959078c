"""Clusters: nodes of devices, the links inside and between them, and what they cost per hour."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from tensoropt.cluster._parse import parse_cluster
from tensoropt.cluster.device import Device
from tensoropt.cluster.link import Link
from tensoropt.cluster.mesh import Mesh, enumerate_meshes
from tensoropt.cluster.price import Price, reference_network_bytes_s, reference_price
from tensoropt.errors import ClusterError

__all__ = ["Cluster", "Level", "Price"]


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a cluster: `size` groups (or devices) joined by one class of link."""

    size: int
    link: Link

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise ClusterError(f"the size of a level must be an integer >= 1, got {self.size!r}")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal devices in a hierarchy of links.

    Parameters
    ----------
    name : str
        How the cluster was described, for example ``"2x8xH100-SXM-80GB"``.
    device : Device
        The accelerator; all are equal.
    levels : tuple of Level
        Outermost (slowest link) first.
    price : Price or None
        Price of the whole cluster, None if unknown.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    price: Price | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels:
            raise ClusterError(f"cluster {self.name!r} has no levels; give at least one")

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        network_bytes_s: float | None = None,
        price_usd_per_hour: float | None = None,
    ) -> Cluster:
        """Read a short description such as ``"2x8xA100-SXM-80GB"``.

        Parameters
        ----------
        text : str
            ``"8xA100-SXM-80GB"`` is one node of eight, ``"2x8x..."`` two nodes of eight; a bare
            count above eight means eight in a node; no count means one device. The name of a cloud
            instance (``"2xp4d.24xlarge"``) stands for its devices, network and price.
        network_bytes_s : float, optional
            Bandwidth in bytes/s of all network adapters of one node; default: that of the instance,
            or of the reference instance of the device.
        price_usd_per_hour : float, optional
            Price of the whole cluster; default: the on-demand price of the instances.

        Returns
        -------
        Cluster

        Raises
        ------
        ClusterError
            If the text cannot be read or a count does not fit.
        UnknownDeviceError
            If the device is not in the table.

        Examples
        --------
        >>> cluster = Cluster.parse("2x8xH100-SXM-80GB")
        >>> cluster.num_devices, [level.size for level in cluster.levels]
        (16, [2, 8])
        """
        spec = parse_cluster(text)
        node_bytes_s = network_bytes_s
        if node_bytes_s is None:
            node_bytes_s = spec.network_bytes_s or reference_network_bytes_s(spec.device)
        levels = [Level(spec.per_node, Link.inside_node(spec.device, spec.per_node))]
        if spec.nodes > 1:
            link = Link.between_nodes(_positive("network_bytes_s", node_bytes_s), spec.per_node)
            levels.insert(0, Level(spec.nodes, link))
        count = spec.nodes * spec.per_node
        if price_usd_per_hour is not None:
            price: Price | None = Price.given(price_usd_per_hour)
        elif spec.node_price is not None:
            price = replace(spec.node_price, usd_per_hour=spec.node_price.usd_per_hour * spec.nodes)
        else:
            price = reference_price(spec.device, count)
        return cls(spec.name, spec.device, tuple(levels), price)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cluster:
        """Build a cluster from plain data.

        Parameters
        ----------
        data : Mapping
            ``device``: a name of the table or a table of figures (see :class:`Device`);
            ``levels``: outermost first, each ``{"size": n, "link": {...}}``, where the link may be
            left out for the innermost level (the device's own link is taken) and names a link of
            the package or gives its figures (see :class:`Link`); optional ``name`` and
            ``price_usd_per_hour``.

        Returns
        -------
        Cluster

        Raises
        ------
        ClusterError
            If a field is missing, unknown or wrong.

        Examples
        --------
        >>> Cluster.from_dict({"device": "L4", "levels": [{"size": 4}]}).num_devices
        4
        """
        if not isinstance(data, Mapping):
            raise ClusterError("a cluster description is a table with 'device' and 'levels'")
        known = {"name", "device", "levels", "price_usd_per_hour", "price"}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ClusterError(
                f"cluster: unknown field {unknown[0]!r}; known fields: {', '.join(sorted(known))}"
            )
        for key in ("device", "levels"):
            if key not in data:
                raise ClusterError(f"cluster: field {key!r} is missing; it needs device and levels")
        device = _device(data["device"])
        entries = data["levels"]
        if not isinstance(entries, (list, tuple)) or not entries:
            raise ClusterError("cluster: levels is a list of {size, link}, outermost first")
        levels = tuple(
            _level(device, entry, inner=i == len(entries) - 1) for i, entry in enumerate(entries)
        )
        sizes = "x".join(str(level.size) for level in levels)
        price = Price.from_dict(data["price"]) if data.get("price") is not None else None
        if data.get("price_usd_per_hour") is not None:
            price = Price.given(data["price_usd_per_hour"])
        return cls(str(data.get("name", f"{sizes}x{device.name}")), device, levels, price)

    def to_dict(self) -> dict[str, Any]:
        """Return the cluster as plain data that JSON can hold, complete without the tables."""
        return {
            "name": self.name,
            "device": self.device.to_dict(),
            "levels": [{"size": lv.size, "link": lv.link.to_dict()} for lv in self.levels],
            "price": None if self.price is None else self.price.to_dict(),
        }

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Cluster:
        """Read a cluster description from a ``.json`` or ``.toml`` file.

        Raises
        ------
        ClusterError
            If the file is missing, is neither format, cannot be read or describes no cluster.
        """
        file = Path(path)
        if file.suffix not in (".json", ".toml"):
            raise ClusterError(f"cluster file {file}: expected a .json or .toml file")
        try:
            text = file.read_text(encoding="utf-8")
            data = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
        except OSError as error:
            raise ClusterError(
                f"cluster file {file}: cannot be read ({error.strerror or error})"
            ) from None
        except ValueError as error:
            raise ClusterError(
                f"cluster file {file}: not valid {file.suffix[1:]}: {error}"
            ) from None
        return cls.from_dict(data)

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return math.prod(level.size for level in self.levels)

    @property
    def price_usd_per_hour(self) -> float | None:
        """Price of the whole cluster in USD per hour, None if unknown."""
        return None if self.price is None else self.price.usd_per_hour

    def with_price(self, usd_per_hour: float) -> Cluster:
        """Return the same cluster at the price you pay for all of it."""
        return replace(self, price=Price.given(usd_per_hour))

    def meshes(self, max_axes: int = 3) -> tuple[Mesh, ...]:
        """Return every mesh of the cluster whose axes each lie within one level.

        Parameters
        ----------
        max_axes : int, default 3
            Greatest number of axes; every level of size two or more gets at least one.

        Returns
        -------
        tuple of Mesh
            In a fixed order, fewest axes first.

        Raises
        ------
        ClusterError
            If `max_axes` is not a positive integer.

        Examples
        --------
        >>> [str(mesh) for mesh in Cluster.parse("8xA100-SXM-80GB").meshes()]
        ['8', '2x4', '2x2x2']
        """
        return enumerate_meshes([level.size for level in self.levels], max_axes)

    def devices_inside(self, level: int) -> int:
        """Return how many devices one member of the given level holds (1 for the innermost)."""
        return math.prod(inner.size for inner in self.levels[level + 1 :])

    def __str__(self) -> str:
        return self.name


def _device(data: Any) -> Device:
    if isinstance(data, str):
        return Device.named(data)
    if not isinstance(data, Mapping):
        raise ClusterError("cluster: device is a name or a table of figures")
    return Device.from_dict(data)


def _level(device: Device, entry: Any, *, inner: bool) -> Level:
    if not isinstance(entry, Mapping) or "size" not in entry:
        raise ClusterError("cluster: every level is a table with 'size' and 'link'")
    unknown = sorted(set(entry) - {"size", "link"})
    if unknown:
        raise ClusterError(f"cluster: unknown field {unknown[0]!r} in a level; known: link, size")
    size = entry["size"]
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ClusterError(f"cluster: the size of a level must be an integer >= 1, got {size!r}")
    link = entry.get("link")
    if link is None:
        if not inner:
            raise ClusterError(
                "cluster: only the innermost level may leave out its link; give the others one, "
                'for example {"name": "RDMA", "bandwidth_bytes_s": 5e10}'
            )
        return Level(size, Link.inside_node(device, size))
    if not isinstance(link, Mapping):
        raise ClusterError("cluster: a link is a table of figures (see Link)")
    return Level(size, Link.from_dict(link))


def _positive(key: str, value: Any) -> float:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not ok or not 0 < value < float("inf"):
        raise ClusterError(f"{key} must be a positive number, got {value!r}")
    return float(value)
