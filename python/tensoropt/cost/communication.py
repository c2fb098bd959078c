"""Time of collectives along the axes of a mesh.

Conventions of ``nbytes`` (those of nccl-tests): all-reduce its payload, all-gather the gathered
total, reduce-scatter its input, all-to-all what one rank holds (it sends (n-1)/n of that),
point-to-point the message.

Where the device, the link and the group size were measured, the time follows the points; elsewhere
it is the law t = a + b S + c sqrt(S) with

    a = call + steps * hop,   b = traffic / busbw,   c = 0.4 sqrt(a b)

where traffic is 2(n-1)/n for all-reduce and (n-1)/n for the others, steps as many ring steps (or
the steps of a tree, if fewer microseconds), and busbw the bandwidth that large collectives reach
on that link. All ranks of a mesh run the same collective at once, so an axis that crosses nodes
divides a node's adapters by the devices that the node holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoropt.cluster.link import Link
from tensoropt.cluster.mesh import Mesh, MeshAxis
from tensoropt.cluster.topology import Cluster
from tensoropt.cost._curves import Law, measured_curve
from tensoropt.errors import CostError

__all__ = ["COLLECTIVES", "CommunicationModel", "derived_law"]

Array = NDArray[np.float64]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")

# Fitted: median of c / sqrt(a b) over the stored all-reduce measurements on NVLink (A100, H200),
# which range from 0 to 1.2.
_RAMP = 0.4

# Fitted: time of all_gather_into_tensor over that of an all-reduce of the same total, by group
# size, median over A100, V100, A10G and L4 (0.61-0.70, 0.50-0.59, 0.51-0.55). Half is the ring's
# bound; a reduce-scatter moves the same bytes over the same ring.
_GATHER_OF_ALL_REDUCE = ((2, 0.67), (4, 0.56), (8, 0.54))


def _traffic(kind: str, ranks: int) -> float:
    """Bytes that cross the slowest link for one byte of ``nbytes``."""
    if kind == "point_to_point":
        return 1.0
    return (2.0 if kind == "all_reduce" else 1.0) * (ranks - 1) / ranks


def derived_law(kind: str, link: Link, ranks: int, concurrent: int = 1) -> Law:
    """Return the law of a collective from the figures of the link.

    Parameters
    ----------
    kind : str
        One of :data:`COLLECTIVES`.
    link : Link
        The link that joins the ranks.
    ranks : int
        Size of the group, at least 2.
    concurrent : int, default 1
        Number of devices of a node that use the link at once.

    Returns
    -------
    Law
    """
    if kind in ("all_to_all", "point_to_point"):
        steps = 1  # all peers are written to at once
    else:
        steps = (2 if kind == "all_reduce" else 1) * (ranks - 1)
    latency = steps * link.hop_s
    if kind == "all_reduce" and link.tree_hop_s > 0:
        latency = min(latency, 2 * math.ceil(math.log2(ranks)) * link.tree_hop_s)
    a = link.base_s + latency
    b = _traffic(kind, ranks) / link.busbw_bytes_s(kind, ranks, concurrent)
    return Law(a, b, _RAMP * math.sqrt(a * b))


class CommunicationModel:
    """Collective times on a mesh of a cluster.

    Parameters
    ----------
    cluster : Cluster
    mesh : Mesh
        A mesh of that cluster (see :meth:`Cluster.meshes`).

    Raises
    ------
    CostError
        If the mesh does not fit the cluster.

    Examples
    --------
    >>> cluster = Cluster.parse("8xA100-SXM-80GB")
    >>> model = CommunicationModel(cluster, cluster.meshes()[0])
    >>> seconds = model.time("all_reduce", "a0", [0, 2**30])
    >>> float(seconds[0]), round(float(2 * 7 / 8 * 2**30 / seconds[1] / 1e9))
    (0.0, 229)
    """

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        per_level = [1] * len(cluster.levels)
        for axis in mesh.axes:
            if not 0 <= axis.level < len(per_level):
                raise CostError(
                    f"mesh {mesh}: axis {axis.name} is on level {axis.level}, but cluster "
                    f"{cluster} has {len(per_level)} level(s)"
                )
            per_level[axis.level] *= axis.size
        sizes = [level.size for level in cluster.levels]
        if per_level != sizes:
            raise CostError(
                f"mesh {mesh} does not fit cluster {cluster}: its levels hold "
                f"{'x'.join(map(str, per_level))} devices, the cluster's "
                f"{'x'.join(map(str, sizes))}; take one of cluster.meshes()"
            )
        self.cluster = cluster
        self.mesh = mesh
        self._curves: dict[tuple[str, str], Callable[[ArrayLike], Array]] = {}

    def time(self, kind: str, axis: str | int | MeshAxis, nbytes: ArrayLike) -> Array:
        """Return the time of a collective along one axis, all groups of the mesh at once.

        Parameters
        ----------
        kind : str
            One of :data:`COLLECTIVES`.
        axis : str, int or MeshAxis
            The axis whose ranks take part.
        nbytes : array_like
            Sizes in bytes, by the conventions of this module.

        Returns
        -------
        ndarray
            Seconds, of the shape of `nbytes`; 0 for 0 bytes and for an axis of size 1.

        Raises
        ------
        CostError
            If `kind` is unknown or a size is negative, infinite or NaN.
        ClusterError
            If the mesh has no such axis.
        """
        along = self.mesh.axis(axis)
        if kind not in COLLECTIVES:
            raise CostError(
                f"unknown collective {kind!r}; expected one of {', '.join(COLLECTIVES)}"
            )
        size = np.asarray(nbytes, dtype=np.float64)
        if not np.all((size >= 0) & np.isfinite(size)):
            raise CostError(f"{kind}: nbytes must be finite and >= 0")
        if along.size == 1:
            return np.zeros_like(size)
        curve = self._curves.get((kind, along.name))
        if curve is None:
            curve = self._curves[kind, along.name] = self._curve(kind, along)
        return np.where(size > 0, curve(np.maximum(size, 1.0)), 0.0)

    def axis_link(self, axis: str | int | MeshAxis) -> str:
        """Return the class of link that an axis uses, for example ``"nvlink"``."""
        return self._link(self.mesh.axis(axis)).kind

    def kappa(self, axis: str | int | MeshAxis) -> float:
        """Return the interference factor of the axis with computation."""
        along = self.mesh.axis(axis)
        return self._link(along).kappa_for(along.size)

    def is_measured(self, kind: str, axis: str | int | MeshAxis) -> bool:
        """Return whether the time follows stored measurements of this collective itself."""
        along = self.mesh.axis(axis)
        link = self._link(along)
        return link.family is not None and (
            measured_curve(link.family, kind, along.size) is not None
        )

    def _link(self, axis: MeshAxis) -> Link:
        return self.cluster.levels[axis.level].link

    def _curve(self, kind: str, axis: MeshAxis) -> Callable[[ArrayLike], Array]:
        link = self._link(axis)
        if link.family is not None:
            ranks = 2 if kind == "point_to_point" else axis.size
            measured = measured_curve(link.family, kind, ranks)
            if measured is not None:
                return measured
            # A switch that reduces speeds up all-reduce alone: it says nothing about the others.
            if kind in ("all_gather", "reduce_scatter") and not link.in_network_reduction:
                whole = measured_curve(link.family, "all_reduce", axis.size)
                if whole is not None:
                    return _scaled(whole, _gather_share(axis.size))
        concurrent = self.cluster.devices_inside(axis.level)
        return derived_law(kind, link, axis.size, concurrent)


def _gather_share(ranks: int) -> float:
    sizes, shares = zip(*_GATHER_OF_ALL_REDUCE, strict=True)
    return float(np.interp(math.log2(ranks), np.log2(sizes), shares))


def _scaled(curve: Callable[[ArrayLike], Array], factor: float) -> Callable[[ArrayLike], Array]:
    def scaled(nbytes: ArrayLike) -> Array:
        return factor * curve(nbytes)

    return scaled
