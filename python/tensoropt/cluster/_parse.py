"""Reading short cluster descriptions such as ``2x8xA100-SXM-80GB``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tensoropt.cluster.device import Device
from tensoropt.cluster.price import Price, instance, instance_price
from tensoropt.errors import ClusterError

__all__ = ["ClusterSpec", "parse_cluster"]

_PER_NODE = 8
_HELP = "write for example 8xA100-SXM-80GB or 2x8xH100-SXM-80GB"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """What a short description says."""

    name: str
    nodes: int
    per_node: int
    device: Device
    network_bytes_s: float | None = None
    node_price: Price | None = None


def parse_cluster(text: str) -> ClusterSpec:
    """Split a description into counts and a device or an instance type.

    Raises
    ------
    ClusterError
        If the text is not a description, or its counts do not fit.
    UnknownDeviceError
        If the device is not in the table.
    """
    if not isinstance(text, str) or not text.strip():
        raise ClusterError(f"cluster: expected a description, got {text!r}; {_HELP}")
    rest, counts = text.strip(), []
    while match := re.match(r"(\d+)\s*[xX*]\s*(?=\S)", rest):
        counts.append(int(match.group(1)))
        rest = rest[match.end() :]
    if re.fullmatch(r"-?[\d.]+([xX*]\s*)?", rest):
        raise ClusterError(f"cluster {text!r}: no device after the counts; {_HELP}")
    # The counts that are whole numbers are taken off by now: what reads as one more is none.
    if match := re.match(r"([+-]?[\d.,]*\d[\d.,]*(?:[eE]\d+)?)\s*[xX*]\s*(?=\S)", rest):
        raise ClusterError(
            f"cluster {text!r}: the count '{match.group(1)}' is no whole number >= 1; {_HELP}"
        )
    if 0 in counts:
        raise ClusterError(f"cluster {text!r}: a count of 0; {_HELP}")
    if len(counts) > 2:
        raise ClusterError(
            f"cluster {text!r}: {len(counts)} counts; give nodes x devices of a node, or describe "
            "more levels in a file (see Cluster.from_dict)"
        )
    entry = instance(rest)
    if entry is not None:
        if len(counts) == 2:
            raise ClusterError(
                f"cluster {text!r}: {entry['type']} already says {entry['count']} devices in a "
                f"node; write {counts[0]}x{entry['type']}"
            )
        nodes = counts[0] if counts else 1
        return ClusterSpec(
            name=f"{nodes}x{entry['type']}",
            nodes=nodes,
            per_node=entry["count"],
            device=Device.named(entry["device"]),
            network_bytes_s=entry["network_bytes_s"],
            node_price=instance_price(entry),
        )
    device = Device.named(rest)
    nodes, per_node = _nodes(text, counts)
    counted = f"{per_node}" if nodes == 1 else f"{nodes}x{per_node}"
    # One node of more than eight must keep both counts, or its name would read as several nodes.
    if nodes == 1 and per_node > _PER_NODE:
        counted = f"1x{per_node}"
    return ClusterSpec(f"{counted}x{device.name}", nodes, per_node, device)


def _nodes(text: str, counts: list[int]) -> tuple[int, int]:
    if len(counts) == 2:
        return counts[0], counts[1]
    count = counts[0] if counts else 1
    if count <= _PER_NODE:
        return 1, count
    if count % _PER_NODE:
        raise ClusterError(
            f"cluster {text!r}: {count} devices do not fill nodes of {_PER_NODE}; say how many are "
            f"in a node, for example {_suggest(count)}"
        )
    return count // _PER_NODE, _PER_NODE


def _suggest(count: int) -> str:
    per_node = next(n for n in range(_PER_NODE, 0, -1) if count % n == 0)
    return f"{count // per_node}x{per_node}x<device>"
