"""Analytic time of kernels: a roofline with measured efficiencies.

For a kernel that does F floating-point operations and moves B bytes,

    t = max(F / (P * e(F) * q), B / (W * m(B))) + launches * t_launch

with P the dense peak of the dtype, e(F) = e_max * max(F / (F + F0), 0.1) the efficiency of matrix
products that grows with their size, q the share of the waves of tiles and of the vector width that
is used, W the memory bandwidth and m(B) the share of it that transfers of that size and kind
reach. Every constant carries its source, in the device table or in ``data/compute.json``.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoropt.cluster.device import Device
from tensoropt.cost.precision import Optimizer, Precision
from tensoropt.errors import ClusterError, CostError

__all__ = ["ComputeModel"]

Array = NDArray[np.float64]

# Attention matrix products with a head size that is not a multiple of eight took 2.5 to 7 times as
# long (fit to Megatron A100 iterations); large products suffer least, so the lower end.
_MISALIGNED = 2.5
_VECTOR = 8


@cache
def _table() -> dict[str, Any]:
    text = files("tensoropt.cost").joinpath("data").joinpath("compute.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


class ComputeModel:
    """Analytic kernel times on one device.

    Parameters
    ----------
    device : Device
        The accelerator.
    launch_s : float, optional
        Time in seconds of one kernel beside its work; default: that of the device.

    Examples
    --------
    >>> model = ComputeModel(Device.named("A100-SXM-80GB"))
    >>> flops = 2 * 8192**3
    >>> seconds = model.time("matmul", flops, 3 * 2 * 8192**2, "bfloat16")
    >>> round(flops / float(seconds) / 312e12, 2)
    0.77
    """

    def __init__(self, device: Device, *, launch_s: float | None = None) -> None:
        self.device = device
        self.launch_s = device.launch_s if launch_s is None else float(launch_s)
        if not 0 <= self.launch_s < 1:
            raise CostError(f"launch_s must be in [0, 1) seconds, got {launch_s!r}")

    @staticmethod
    def kinds() -> tuple[str, ...]:
        """Return the kinds of kernels that the model knows."""
        return tuple(_table()["kinds"])

    def source(self, kind: str) -> str:
        """Return where the efficiency of a kind of kernel comes from."""
        return str(_kind(kind)["source"])

    def time(
        self,
        kind: str,
        flops: ArrayLike,
        nbytes: ArrayLike,
        dtype: str,
        *,
        launches: ArrayLike = 1,
        smallest_dim: ArrayLike | None = None,
        tiles: ArrayLike | None = None,
    ) -> Array:
        """Return the time of a kernel on one device.

        Parameters
        ----------
        kind : str
            One of :meth:`kinds`. Matrix products, convolutions and attention are bound by FLOPs or
            bytes, all others by bytes alone.
        flops : array_like
            Floating-point operations (a multiply-add is two).
        nbytes : array_like
            Bytes read and written; all array arguments are broadcast against each other.
        dtype : str
            Dtype of the computation, for example ``"bfloat16"``.
        launches : array_like, default 1
            Number of kernels that share the work.
        smallest_dim : array_like, optional
            Smallest inner dimension of a matrix product in elements; where it is not a multiple of
            eight the product runs at 1 / 2.5 of the rate.
        tiles : array_like, optional
            Number of output tiles of a matrix product; where they do not fill the last wave of the
            device's multiprocessors the rate falls accordingly.

        Returns
        -------
        ndarray
            Seconds; where both `flops` and `nbytes` are 0 there is no kernel, and the time is 0.

        Raises
        ------
        CostError
            If `kind` is unknown, the device has no rate for `dtype`, or an input is negative or
            NaN.
        """
        entry = _kind(kind)
        work, moved, kernels = np.broadcast_arrays(
            _checked("flops", flops), _checked("nbytes", nbytes), _checked("launches", launches)
        )
        bound = moved / self._bandwidth(entry, moved)
        if entry["class"] == "gemm":
            quality = self._alignment(smallest_dim) * self._waves(tiles)
            bound = np.maximum(bound, self._arithmetic(entry, work, dtype) / quality)
        return np.where((work > 0) | (moved > 0), bound + kernels * self.launch_s, 0.0)

    def accumulate_time(self, parameters: ArrayLike, precision: Precision) -> Array:
        """Return the time to add one micro-batch's gradients to the accumulated ones.

        The new gradient is read in the dtype of the parameters, the accumulator read and written:
        6 bytes a parameter in 16 bits, 10 with float32 accumulators.

        Parameters
        ----------
        parameters : array_like
            Number of parameters that the device holds.
        precision : Precision

        Returns
        -------
        ndarray
            Seconds per micro-batch.
        """
        traffic = precision.parameter_bytes + 2 * precision.gradient_bytes
        return self._stream(parameters, traffic)

    def optimizer_time(
        self, parameters: ArrayLike, optimizer: Optimizer, precision: Precision
    ) -> Array:
        """Return the time of gradient norm and optimizer step.

        Parameters
        ----------
        parameters : array_like
            Number of parameters that the device updates (its shard).
        optimizer : Optimizer
        precision : Precision

        Returns
        -------
        ndarray
            Seconds per step; about 30 bytes of traffic a parameter with 16-bit Adam.
        """
        return self._stream(parameters, optimizer.step_traffic_bytes(precision))

    def _stream(self, parameters: ArrayLike, bytes_each: int) -> Array:
        """Time of streaming tensors once: they are fused, so size does not matter."""
        share = _kind("optimizer")["bandwidth"] * self.device.memory_bandwidth_bytes_s
        return np.asarray(_checked("parameters", parameters) * (bytes_each / share))

    def _bandwidth(self, entry: dict[str, Any], moved: Array) -> Array:
        """Bandwidth in bytes/s that transfers of that size and kind reach."""
        points = np.asarray(_table()["bandwidth_by_bytes"]["points"])
        # The table gives steps; between them the share is linear in the logarithm of the size, and
        # below 10 KB it is flat, so that the time never falls with the size.
        sizes = np.log10(np.maximum(points[:, 0], 1e4))
        curve = np.interp(np.log10(np.maximum(moved, 1.0)), sizes, points[:, 1])
        large = entry.get("by_architecture", {}).get(self.device.architecture, entry["bandwidth"])
        return np.asarray(curve * (large / points[-1, 1]) * self.device.memory_bandwidth_bytes_s)

    def _arithmetic(self, entry: dict[str, Any], work: Array, dtype: str) -> Array:
        """Time of the arithmetic, F / (P e(F)), written without a division by F."""
        try:
            peak = self.device.peak(dtype)
        except ClusterError as error:
            raise CostError(str(error)) from None
        # The size at which half of the efficiency is reached belongs to the 16-bit tensor cores
        # and shrinks with the peak: what limits small products is the work to fill the device.
        fastest = max(
            self.device.peak_flops.get(name, peak) for name in ("bfloat16", "float16", "float32")
        )
        half = self.device.half_efficiency_flops * peak / fastest
        rate = peak * self.device.gemm_efficiency * entry["efficiency"]
        floor = _table()["gemm_floor"]["value"]
        return np.asarray(np.minimum(work + half, work / floor) / rate)

    def _alignment(self, smallest_dim: ArrayLike | None) -> Array:
        if smallest_dim is None:
            return np.asarray(1.0)
        dims = _checked("smallest_dim", smallest_dim)
        return np.asarray(np.where(dims % _VECTOR == 0, 1.0, 1.0 / _MISALIGNED))

    def _waves(self, tiles: ArrayLike | None) -> Array:
        if tiles is None:
            return np.asarray(1.0)
        count = np.maximum(_checked("tiles", tiles), 1.0)
        slots = np.ceil(count / self.device.sm_count) * self.device.sm_count
        return np.asarray(count / slots)


def _kind(kind: str) -> dict[str, Any]:
    kinds = _table()["kinds"]
    if kind not in kinds:
        raise CostError(f"unknown kind of kernel {kind!r}; expected one of {', '.join(kinds)}")
    entry: dict[str, Any] = kinds[kind]
    return entry


def _checked(name: str, values: ArrayLike) -> Array:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise CostError(f"{name} must be numbers") from None
    if not np.all((array >= 0) & np.isfinite(array)):
        raise CostError(f"{name} must be finite and >= 0")
    return array
