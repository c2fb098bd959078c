"""Kernel times: the roofline and its efficiencies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.cluster import Device
from tensoropt.cost import ComputeModel, Optimizer, Precision
from tensoropt.errors import CostError

A100 = ComputeModel(Device.named("A100-SXM-80GB"))


@pytest.mark.parametrize("name", Device.names())
def test_no_kernel_beats_the_device(name: str) -> None:
    device = Device.named(name)
    model = ComputeModel(device, launch_s=0.0)
    work = np.geomspace(1, 1e17, 300)
    moved = np.geomspace(1, 1e13, 300)
    for kind in model.kinds():
        for dtype, peak in device.peak_flops.items():
            times = model.time(kind, work, 0, dtype)
            if kind in ("matmul", "convolution", "attention"):
                assert np.all(work / times <= peak * device.gemm_efficiency)
            times = model.time(kind, 0, moved, dtype)
            assert np.all(moved / times <= device.memory_bandwidth_bytes_s)


@pytest.mark.parametrize("kind", ComputeModel.kinds())
def test_more_work_is_never_quicker(kind: str) -> None:
    work = np.concatenate([[0], np.geomspace(1, 1e16, 3000)])
    moved = np.concatenate([[0], np.geomspace(1, 1e12, 3000)])
    for name in ("A100-SXM-80GB", "L4", "V100-PCIe", "H100"):
        model = ComputeModel(Device.named(name))
        assert np.all(np.diff(model.time(kind, work, 1e6, "float16")) >= 0)
        assert np.all(np.diff(model.time(kind, 1e9, moved, "float16")) >= 0)
        assert model.source(kind)


def test_splitting_work_never_pays() -> None:
    """n devices with 1/n of a product each need at least 1/n of the time."""
    for ways in (2, 3, 8):
        for work in np.geomspace(1e6, 1e15, 40):
            whole = A100.time("matmul", work, work / 100, "bfloat16")
            part = A100.time("matmul", work / ways, work / 100 / ways, "bfloat16")
            assert part * ways >= whole * (1 - 1e-12)


def test_large_products_run_at_the_sustained_rate() -> None:
    work = 2 * 16384**3
    seconds = float(A100.time("matmul", work, 3 * 2 * 16384**2, "bfloat16"))
    assert work / seconds / 312e12 == pytest.approx(0.78, rel=0.01)


def test_half_of_the_efficiency_at_the_half_size() -> None:
    model = ComputeModel(A100.device, launch_s=0.0)
    work = A100.device.half_efficiency_flops
    rate = work / float(model.time("matmul", work, 0, "bfloat16"))
    assert rate == pytest.approx(312e12 * A100.device.gemm_efficiency / 2)


def test_products_without_reuse_are_bound_by_memory() -> None:
    """A product with one row reads its weight once: two FLOP for two bytes."""
    nbytes = 2 * 8192 * 8192
    seconds = float(A100.time("matmul", nbytes, nbytes, "bfloat16"))
    assert nbytes / 2.039e12 < seconds < 1.3 * nbytes / 2.039e12


def test_reference_figures_of_the_profile() -> None:
    """GELU and layer norm on a large A100 tensor reach the stored shares of the bandwidth."""
    for kind, share in (("elementwise", 0.72), ("normalization", 0.54), ("softmax", 0.57)):
        moved = 1e9
        rate = moved / float(A100.time(kind, 0, moved, "float16"))
        assert rate / A100.device.memory_bandwidth_bytes_s == pytest.approx(share, rel=0.02)


def test_nothing_to_do_takes_no_time() -> None:
    assert A100.time("matmul", 0, 0, "bfloat16") == 0.0
    assert A100.time("copy", 0, 1, "bfloat16") >= A100.launch_s
    times = A100.time("matmul", [0, 1e9], [0, 1e6], "bfloat16", launches=[1, 3])
    assert times[0] == 0
    assert times[1] > 3 * A100.launch_s


def test_dims_that_do_not_fill_vectors_are_slower() -> None:
    fast, slow = A100.time("matmul", 1e13, 0, "bfloat16", smallest_dim=[64, 108])
    assert (slow - A100.launch_s) / (fast - A100.launch_s) == pytest.approx(2.5)


def test_tiles_fill_waves() -> None:
    model = ComputeModel(A100.device, launch_s=0.0)
    full, one_more = model.time("matmul", 1e13, 0, "bfloat16", tiles=[108, 109])
    assert one_more / full == pytest.approx(216 / 109)


@given(st.integers(1, 10**6))
def test_waves_never_gain(tiles: int) -> None:
    plain = A100.time("matmul", 1e12, 0, "bfloat16")
    assert A100.time("matmul", 1e12, 0, "bfloat16", tiles=tiles) >= plain * (1 - 1e-12)


def test_bad_questions_raise() -> None:
    with pytest.raises(CostError, match="elementwise"):
        A100.time("magic", 1, 1, "bfloat16")
    with pytest.raises(CostError, match="V100-SXM2-32GB has no bfloat16"):
        ComputeModel(Device.named("V100-SXM2-32GB")).time("matmul", 1, 1, "bfloat16")
    for bad in (-1, np.nan, np.inf, "many"):
        with pytest.raises(CostError, match="flops"):
            A100.time("matmul", bad, 1, "bfloat16")
        with pytest.raises(CostError, match="nbytes"):
            A100.time("matmul", 1, bad, "bfloat16")
    with pytest.raises(CostError, match="launch_s"):
        ComputeModel(A100.device, launch_s=-1.0)


def test_gradient_accumulation_moves_six_or_ten_bytes() -> None:
    """6 bytes a parameter in 16 bits, 10 with float32 accumulators (profile replay)."""
    rate = 0.85 * A100.device.memory_bandwidth_bytes_s
    for name, bytes_each in (("fp16", 6), ("fp16-main-grads", 10)):
        seconds = float(A100.accumulate_time(1e9, Precision.named(name)))
        assert seconds == pytest.approx(bytes_each * 1e9 / rate)


def test_optimizer_moves_about_thirty_bytes() -> None:
    """Mixed-precision Adam moves 30-34 bytes a parameter (profile replay)."""
    adam = Optimizer.named("adamw")
    rate = 0.85 * A100.device.memory_bandwidth_bytes_s
    for name in ("fp16", "fp16-main-grads"):
        seconds = float(A100.optimizer_time(1e9, adam, Precision.named(name)))
        assert 30 <= round(seconds * rate / 1e9, 6) <= 34
    halves = A100.optimizer_time([2e9, 1e9], adam, Precision.named("bf16"))
    assert halves[0] == pytest.approx(2 * halves[1])
