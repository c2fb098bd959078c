"""The cost model of one search problem: a cluster, a mesh, dtypes, an optimizer, micro-batches.

This is what the table builders (``operators``, ``conversions``, ``storage``) and the scalar
evaluation (``evaluate``) share: how long one kernel or one collective takes, and how many bytes
an element has. Measured times enter here, through :class:`Timings`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tensoropt.cluster import Cluster, Mesh
from tensoropt.graph import DTYPE_BYTES, Tensor
from tensoropt.sharding.layouts import LayoutSpace, Redistribution

from .communication import CommunicationModel
from .compute import ComputeModel
from .precision import Optimizer, Precision

__all__ = ["CostModel", "Timings"]

FloatArray = npt.NDArray[np.floating]


class Timings(Protocol):
    """Where kernel times come from: the analytic model, or measurements."""

    def time(self, kind: str, flops: FloatArray, nbytes: FloatArray, dtype: str) -> FloatArray:
        """Seconds of one kernel, elementwise over arrays."""
        ...


@dataclass
class CostModel:
    """Prices of work, traffic and memory for one mesh and one number of micro-batches.

    Parameters
    ----------
    cluster : Cluster
    mesh : Mesh
        One of ``cluster.meshes()``.
    precision : Precision
    optimizer : Optimizer
    micro_batches : int
        Into how many pieces the batch of an iteration is cut; the tables are built for one piece
        and say what an iteration costs.
    timings : Timings, optional
        Default: the analytic compute model of the cluster's device.
    """

    cluster: Cluster
    mesh: Mesh
    precision: Precision
    optimizer: Optimizer
    micro_batches: int = 1
    timings: Timings | None = None
    communication: CommunicationModel = field(init=False)
    compute: ComputeModel = field(init=False)
    _redistributions: dict[tuple[object, ...], Redistribution] = field(
        init=False, default_factory=dict, repr=False
    )

    def __post_init__(self) -> None:
        self.communication = CommunicationModel(self.cluster, self.mesh)
        self.compute = ComputeModel(self.cluster.device)

    @cached_property
    def mesh_shape(self) -> tuple[int, ...]:
        """Sizes of the mesh axes."""
        return tuple(self.mesh.shape)

    def itemsize(self, tensor: Tensor) -> int:
        """Bytes of an element of a tensor on the device."""
        if tensor.kind == "parameter":
            return self.precision.parameter_bytes
        if tensor.is_floating:
            return self.precision.compute_bytes
        return DTYPE_BYTES[tensor.dtype]

    def dtype_bytes(self, dtype: str) -> int:
        """Bytes of an element of a dtype as rules name it (``activation`` or a real dtype)."""
        return self.precision.compute_bytes if dtype == "activation" else DTYPE_BYTES[dtype]

    def kernel_time(self, kind: str, flops: FloatArray, nbytes: FloatArray) -> FloatArray:
        """Seconds of one kernel; ``none`` is free."""
        if kind == "none":
            return np.zeros(np.broadcast_shapes(np.shape(flops), np.shape(nbytes)))
        source: Timings = self.timings or self.compute
        return np.asarray(
            source.time(kind, flops, nbytes, self.precision.compute_dtype), np.float64
        )

    def collective_time(self, kind: str, axis: int, nbytes: FloatArray) -> FloatArray:
        """Seconds of one collective on a mesh axis."""
        return np.asarray(self.communication.time(kind, axis, nbytes), np.float64)

    def redistribution(
        self, tensor: Tensor, dims: tuple[int, ...], *, into_partial: bool = False
    ) -> Redistribution:
        """Cheapest conversions of a tensor whose `dims` may be sharded; kept for reuse."""
        uneven = tensor.kind == "parameter"
        key = (
            tensor.shape,
            self.itemsize(tensor),
            tensor.padded_dims,
            uneven,
            dims,
            into_partial,
        )
        found = self._redistributions.get(key)
        if found is None:
            space = LayoutSpace(
                tensor.shape, self.mesh_shape, tensor.padded_dims, dims, uneven=uneven
            )
            found = Redistribution(
                space, self.itemsize(tensor), self.collective_time, into_partial=into_partial
            )
            self._redistributions[key] = found
        return found
