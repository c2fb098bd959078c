"""Bytes of parameters, gradients and optimizer state; the device's view of memory."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.cost import MemoryCalibration, Optimizer, Precision
from tensoropt.errors import CostError


@pytest.mark.parametrize(
    ("name", "weight", "gradient", "optimizer", "reduction"),
    [
        ("bf16", 2, 2, 12, 2),  # ZeRO, arXiv 1910.02054: 2 + 2 + 12
        ("bf16-main-grads", 2, 4, 12, 4),  # Megatron-LM: 18 bytes
        ("fp16", 2, 2, 12, 2),
        ("bf16-pure", 2, 2, 4, 2),
        ("bf16-amp", 4, 4, 8, 4),
        ("fp32", 4, 4, 8, 4),
        ("tf32", 4, 4, 8, 4),
    ],
)
def test_bytes_with_adam(
    name: str, weight: int, gradient: int, optimizer: int, reduction: int
) -> None:
    precision = Precision.named(name)
    adam = Optimizer.named("adamw")
    assert precision.parameter_bytes == weight
    assert precision.gradient_bytes == gradient
    assert precision.reduction_bytes == reduction
    assert adam.bytes_per_parameter(precision) == optimizer
    assert adam.total_bytes_per_parameter(precision) == weight + gradient + optimizer


@pytest.mark.parametrize(
    ("name", "states"), [("adam", 2), ("AdamW", 2), ("sgd", 0), ("SGD-momentum", 1), ("lion", 1)]
)
def test_states_of_optimizers(name: str, states: int) -> None:
    optimizer = Optimizer.named(name)
    assert optimizer.states == states
    assert optimizer.bytes_per_parameter(Precision.named("fp32")) == 4 * states
    assert optimizer.bytes_per_parameter(Precision.named("bf16")) == 4 * states + 4


def test_traffic_of_plain_sgd() -> None:
    """Gradient read for the norm and the update, parameter read and written."""
    assert Optimizer.named("sgd").step_traffic_bytes(Precision.named("fp32")) == 16


def test_single_dtypes_can_be_replaced() -> None:
    precision = Precision.named("bf16", gradient_dtype="float32", master_dtype=None)
    assert (precision.gradient_bytes, precision.master_bytes) == (4, 0)
    assert "no master copy" in precision.describe()
    assert Precision.named("bf16").gradient_bytes == 2


def test_names_are_forgiving() -> None:
    assert Precision.named("BFLOAT16") is Precision.named("bf16")
    assert Precision.named("amp_bf16") is Precision.named("bf16-amp")


def test_description_names_every_dtype() -> None:
    text = Precision.named("bf16-main-grads").describe()
    for part in ("compute bfloat16", "parameters bfloat16", "gradients float32", "master copy"):
        assert part in text
    assert "\n" not in text


def test_unknown_names_raise() -> None:
    with pytest.raises(CostError, match="bf16-amp"):
        Precision.named("int3")
    with pytest.raises(CostError, match="adamw"):
        Optimizer.named("magic")
    with pytest.raises(CostError, match="gradient_dtype"):
        Precision.named("bf16", grads="float32")
    with pytest.raises(CostError, match="float33"):
        Precision.named("bf16", gradient_dtype="float33")


def test_calibration_goes_both_ways() -> None:
    calibration = MemoryCalibration()
    allocated = np.array([0.0, 1e9, 70e9])
    total = calibration.device_total(allocated)
    assert np.allclose(calibration.allocated_for(total), allocated)
    assert calibration.allocated_for(0.0) == 0.0
    assert np.all(total >= allocated)


def test_plans_above_nine_tenths_are_at_risk() -> None:
    calibration = MemoryCalibration(fixed_bytes=0.0, scale=1.0)
    assert list(calibration.at_risk([89e9, 90e9, 91e9], 100e9)) == [False, False, True]


@pytest.mark.parametrize(
    "change",
    [{"fixed_bytes": -1}, {"scale": 0.9}, {"at_risk_share": 0}, {"at_risk_share": 1.1}],
)
def test_bad_calibrations_raise(change: dict) -> None:
    with pytest.raises(CostError, match="memory calibration"):
        MemoryCalibration(**change)
