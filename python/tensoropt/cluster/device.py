"""One accelerator: its memory, its rates and how much of them real kernels reach."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Any

from tensoropt.cluster._catalog import device_table, normalize
from tensoropt.errors import ClusterError, UnknownDeviceError

__all__ = ["Device"]


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator as the cost model sees it.

    Parameters
    ----------
    name : str
        Name of the product, for example ``"A100-SXM-80GB"``.
    memory_bytes : int
        Size of the memory in bytes as the vendor's tool reports it (an "80GB" A100 holds 80 GiB).
    peak_flops : Mapping[str, float]
        Dense peak rate in FLOP/s for each dtype: ``"float32"``, ``"tf32"``, ``"float16"``,
        ``"bfloat16"``, ``"float8"``, ...
    memory_bandwidth_bytes_s : float
        Nominal bandwidth of the memory in bytes/s.
    gemm_efficiency : float
        Share of the peak that large matrix products sustain, in (0, 1].
    half_efficiency_flops : float
        Work in FLOP at which a matrix product reaches half of `gemm_efficiency`.
    launch_s : float
        Time in seconds that one kernel costs beside its work.
    sm_count : int
        Number of streaming multiprocessors (or compute units).
    pcie_bandwidth_bytes_s : float
        Nominal unidirectional bandwidth of the host link in bytes/s.
    scale_up : Mapping[str, Any] or None
        ``{"link": name, "bandwidth_bytes_s": rate}`` of the link between devices of a node, None
        where that is PCIe.
    pair_bridge : Mapping[str, Any] or None
        The same for a bridge that joins devices in pairs only.
    architecture, memory_source, gemm_source, confidence, note : str
        Where figures come from, and how far to trust them.
    sources : tuple of str
        Sources of the data sheet figures.
    """

    name: str
    memory_bytes: int
    peak_flops: Mapping[str, float]
    memory_bandwidth_bytes_s: float
    gemm_efficiency: float = 0.7
    half_efficiency_flops: float = 10e9
    launch_s: float = 4e-6
    sm_count: int = 100
    pcie_bandwidth_bytes_s: float = 31.5e9
    pcie_generation: int = 4
    scale_up: Mapping[str, Any] | None = None
    pair_bridge: Mapping[str, Any] | None = None
    architecture: str = ""
    memory_source: str = ""
    gemm_source: str = ""
    confidence: str = ""
    note: str = ""
    sources: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ClusterError("a device needs a name")
        for key in (
            "memory_bytes",
            "memory_bandwidth_bytes_s",
            "gemm_efficiency",
            "half_efficiency_flops",
            "sm_count",
            "pcie_bandwidth_bytes_s",
        ):
            _require_positive(self.name, key, getattr(self, key))
        if not 0 <= self.launch_s < 1:
            raise ClusterError(f"device {self.name!r}: launch_s must be in [0, 1) seconds")
        if self.gemm_efficiency > 1:
            raise ClusterError(
                f"device {self.name!r}: gemm_efficiency is a share of the peak, <= 1"
            )
        if not self.peak_flops:
            raise ClusterError(
                f"device {self.name!r}: peak_flops is empty; give at least one dtype, for example "
                "{'bfloat16': 312e12}"
            )
        for dtype, rate in self.peak_flops.items():
            _require_positive(self.name, f"peak_flops[{dtype!r}]", rate)
        object.__setattr__(self, "peak_flops", MappingProxyType(dict(self.peak_flops)))
        object.__setattr__(self, "sources", tuple(self.sources))

    # A mapping proxy is neither hashable nor picklable: equality and hashing go by the figures.
    def __hash__(self) -> int:
        return hash((self.name, self.memory_bytes, tuple(sorted(self.peak_flops.items()))))

    def __reduce__(self) -> tuple[Any, ...]:
        return Device.from_dict, (self.to_dict(),)

    @classmethod
    def named(cls, name: str) -> Device:
        """Return the device of that name from the table that ships with the package.

        Parameters
        ----------
        name : str
            Case and separators do not matter: ``"a100 sxm 80gb"`` is ``"A100-SXM-80GB"``.

        Returns
        -------
        Device

        Raises
        ------
        UnknownDeviceError
            If no device has that name; the message lists names that are near, if any.

        Examples
        --------
        >>> Device.named("a100-sxm-80gb").memory_bytes // 2**30
        80
        """
        if not isinstance(name, str):
            raise UnknownDeviceError(f"a device name is text, got {type(name).__name__}")
        found = _by_name().get(normalize(name))
        if found is None:
            close = _closest(name)
            hint = f"closest: {', '.join(close)}" if close else "no known name is near"
            raise UnknownDeviceError(
                f"unknown device {name!r}; {hint}. All names: Device.names(), or 'tensoropt "
                "devices' in a shell; to describe your own, write a cluster file with a 'device' "
                "table (see Cluster.from_dict)"
            )
        return found

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all devices that ship with the package."""
        return tuple(entry["name"] for entry in device_table()["devices"])

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Device:
        """Build a device from plain data, the inverse of :meth:`to_dict`.

        Raises
        ------
        ClusterError
            If a required field is missing, a field is unknown or a value is out of range.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ClusterError(
                f"device {data.get('name', '?')!r}: unknown field {unknown[0]!r}; known fields: "
                f"{', '.join(sorted(known))}"
            )
        for key in ("name", "memory_bytes", "peak_flops", "memory_bandwidth_bytes_s"):
            if key not in data:
                raise ClusterError(
                    f"device {data.get('name', '?')!r}: field {key!r} is missing; a device needs "
                    "name, memory_bytes, peak_flops and memory_bandwidth_bytes_s"
                )
        values = dict(data)
        if not isinstance(values["peak_flops"], Mapping):
            raise ClusterError(
                f"device {data['name']!r}: peak_flops maps dtypes to FLOP/s, for example "
                "{'bfloat16': 312e12}"
            )
        _require_positive(str(values["name"]), "memory_bytes", values["memory_bytes"])
        values["memory_bytes"] = int(values["memory_bytes"])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the device as plain data that JSON can hold."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["peak_flops"] = dict(self.peak_flops)
        data["sources"] = list(self.sources)
        for key in ("scale_up", "pair_bridge"):
            if data[key] is not None:
                data[key] = dict(data[key])
        return data

    def peak(self, dtype: str) -> float:
        """Return the dense peak rate in FLOP/s for `dtype`.

        Raises
        ------
        ClusterError
            If the device has no figure for that dtype.
        """
        try:
            return self.peak_flops[dtype]
        except KeyError:
            raise ClusterError(
                f"{self.name} has no {dtype} rate; it has {', '.join(sorted(self.peak_flops))}: "
                "choose a precision that computes in one of these"
            ) from None


def _require_positive(device: str, key: str, value: Any) -> None:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not ok or not 0 < value < float("inf"):
        raise ClusterError(f"device {device!r}: {key} must be a positive number, got {value!r}")


# Columns of the table that only matter for reading it.
_TABLE_ONLY = ("aliases", "l2_bytes", "tdp_w", "best_matmul_fraction")


@cache
def _by_name() -> dict[str, Device]:
    found: dict[str, Device] = {}
    for entry in device_table()["devices"]:
        device = Device.from_dict({k: v for k, v in entry.items() if k not in _TABLE_ONLY})
        for name in (entry["name"], *entry["aliases"]):
            found[normalize(name)] = device
    return found


def _closest(name: str) -> list[str]:
    """Return up to five names: those that contain what was typed, else such as are near."""
    key = normalize(name)
    inside = [n for n in Device.names() if key and key in normalize(n)]
    if inside:
        return inside[:5]
    ranked = difflib.get_close_matches(key, [normalize(n) for n in Device.names()], n=5)
    return [n for k in ranked for n in Device.names() if normalize(n) == k]
