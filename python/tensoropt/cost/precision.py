"""Precisions and optimizers: how many bytes each parameter needs, and in which dtypes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensoropt.errors import CostError

__all__ = ["DTYPE_BYTES", "Optimizer", "Precision"]

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "tf32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8": 1,
}


@dataclass(frozen=True, slots=True)
class Precision:
    """The dtypes of one training run.

    Parameters
    ----------
    name : str
        Name of the bundle, for example ``"bf16"``.
    compute_dtype : str
        Dtype of activations and of the operands of matrix products.
    parameter_dtype : str
        Dtype of the parameters that the model holds.
    gradient_dtype : str
        Dtype in which gradients are kept and accumulated.
    reduction_dtype : str
        Dtype in which gradients are reduced across devices.
    master_dtype : str or None
        Dtype of the optimizer's own copy of the parameters, None without one.
    state_dtype : str
        Dtype of the optimizer state.
    note : str
        Why the bundle is what it is.
    """

    name: str
    compute_dtype: str
    parameter_dtype: str
    gradient_dtype: str
    reduction_dtype: str
    master_dtype: str | None
    state_dtype: str
    note: str = ""

    def __post_init__(self) -> None:
        for key in (
            "compute_dtype",
            "parameter_dtype",
            "gradient_dtype",
            "reduction_dtype",
            "master_dtype",
            "state_dtype",
        ):
            value = getattr(self, key)
            if value is None and key == "master_dtype":
                continue
            if value not in DTYPE_BYTES:
                raise CostError(
                    f"precision {self.name!r}: unknown {key} {value!r}; expected one of "
                    f"{', '.join(DTYPE_BYTES)}"
                )

    @classmethod
    def named(cls, name: str, **overrides: str | None) -> Precision:
        """Return a named bundle, with single dtypes replaced if asked for.

        Parameters
        ----------
        name : str
            ``"bf16"``, ``"bf16-main-grads"``, ``"bf16-pure"``, ``"bf16-amp"``, the same with
            ``fp16``, ``"fp32"`` or ``"tf32"``; common long names are understood.
        **overrides
            Dtypes by field name, for example ``gradient_dtype="float32"``.

        Returns
        -------
        Precision

        Raises
        ------
        CostError
            If the name, a field or a dtype is unknown.

        Examples
        --------
        >>> Precision.named("bf16").parameter_bytes
        2
        """
        key = str(name).lower().replace("_", "-")
        key = _ALIASES.get(key, key)
        if key not in _BUNDLES:
            raise CostError(f"unknown precision {name!r}; expected one of {', '.join(_BUNDLES)}")
        found = _BUNDLES[key]
        if not overrides:
            return found
        allowed = {f for f in cls.__dataclass_fields__ if f.endswith("_dtype")}
        unknown = sorted(set(overrides) - allowed)
        if unknown:
            raise CostError(
                f"precision {name!r}: unknown field {unknown[0]!r}; expected one of "
                f"{', '.join(sorted(allowed))}"
            )
        return replace(found, **overrides)  # type: ignore[arg-type]

    @property
    def compute_bytes(self) -> int:
        """Bytes of one activation element."""
        return DTYPE_BYTES[self.compute_dtype]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one parameter."""
        return DTYPE_BYTES[self.parameter_dtype]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one kept gradient element."""
        return DTYPE_BYTES[self.gradient_dtype]

    @property
    def reduction_bytes(self) -> int:
        """Bytes of one gradient element on the wire."""
        return DTYPE_BYTES[self.reduction_dtype]

    @property
    def master_bytes(self) -> int:
        """Bytes of one element of the master copy, 0 without one."""
        return 0 if self.master_dtype is None else DTYPE_BYTES[self.master_dtype]

    @property
    def state_bytes(self) -> int:
        """Bytes of one element of optimizer state."""
        return DTYPE_BYTES[self.state_dtype]

    def describe(self) -> str:
        """Return the bundle in full, one line.

        Examples
        --------
        >>> print(Precision.named("bf16").describe())
        bf16: compute bfloat16, parameters bfloat16, gradients bfloat16 (reduced in bfloat16), \
master copy float32, optimizer state float32
        """
        master = f"master copy {self.master_dtype}" if self.master_dtype else "no master copy"
        return (
            f"{self.name}: compute {self.compute_dtype}, parameters {self.parameter_dtype}, "
            f"gradients {self.gradient_dtype} (reduced in {self.reduction_dtype}), {master}, "
            f"optimizer state {self.state_dtype}"
        )


def _half(short: str, dtype: str) -> dict[str, Precision]:
    """Return the four bundles that compute in a 16-bit dtype."""
    return {
        short: Precision(
            short,
            dtype,
            dtype,
            dtype,
            dtype,
            "float32",
            "float32",
            "gradients in the dtype of the parameters, as torch keeps .grad and as in ZeRO's "
            "2 + 2 + 12 bytes with Adam (arXiv 1910.02054)",
        ),
        f"{short}-main-grads": Precision(
            f"{short}-main-grads",
            dtype,
            dtype,
            "float32",
            "float32",
            "float32",
            "float32",
            "gradients accumulated and reduced in float32, as Megatron-LM does: 2 + 4 + 12 bytes",
        ),
        f"{short}-pure": Precision(
            f"{short}-pure", dtype, dtype, dtype, dtype, None, dtype, "everything in 16 bits"
        ),
        f"{short}-amp": Precision(
            f"{short}-amp",
            dtype,
            "float32",
            "float32",
            "float32",
            None,
            "float32",
            "float32 parameters, autocast to 16 bits in the operators",
        ),
    }


_BUNDLES: dict[str, Precision] = {
    **_half("bf16", "bfloat16"),
    **_half("fp16", "float16"),
    "fp32": Precision("fp32", "float32", "float32", "float32", "float32", None, "float32"),
    "tf32": Precision(
        "tf32",
        "tf32",
        "float32",
        "float32",
        "float32",
        None,
        "float32",
        "float32 tensors, matrix products in TensorFloat-32",
    ),
}
_ALIASES = {
    "bfloat16": "bf16",
    "bf16-mixed": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp16-mixed": "fp16",
    "float32": "fp32",
    "amp-bf16": "bf16-amp",
    "amp-fp16": "fp16-amp",
    "amp": "fp16-amp",
}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer that treats every parameter element alike.

    Parameters
    ----------
    name : str
    states : int
        Number of state elements per parameter (moments, momentum).
    """

    name: str
    states: int

    @classmethod
    def named(cls, name: str) -> Optimizer:
        """Return an optimizer by name.

        Raises
        ------
        CostError
            If the name is unknown.

        Examples
        --------
        >>> Optimizer.named("AdamW").bytes_per_parameter(Precision.named("bf16"))
        12
        """
        key = str(name).lower().replace("-", "_")
        if key not in _STATES:
            raise CostError(f"unknown optimizer {name!r}; expected one of {', '.join(_STATES)}")
        return cls(key, _STATES[key])

    def bytes_per_parameter(self, precision: Precision) -> int:
        """Return the bytes of state and master copy per parameter: the O of ZeRO's table."""
        return self.states * precision.state_bytes + precision.master_bytes

    def total_bytes_per_parameter(self, precision: Precision) -> int:
        """Return W + G + O per parameter without any sharding."""
        resident = precision.parameter_bytes + precision.gradient_bytes
        return resident + self.bytes_per_parameter(precision)

    def step_traffic_bytes(self, precision: Precision) -> int:
        """Return the bytes of memory traffic per parameter of one step.

        The gradient is read twice (norm and update), state and master copy are read and written,
        and the parameter is written (and read too where there is no master copy).
        """
        parameter = precision.parameter_bytes * (1 if precision.master_bytes else 2)
        own = self.bytes_per_parameter(precision)
        return 2 * precision.gradient_bytes + 2 * own + parameter


_STATES = {
    "adamw": 2,
    "adam": 2,
    "sgd": 0,
    "sgd_momentum": 1,
    "lion": 1,
    "adagrad": 1,
    "rmsprop": 1,
}
