"""What a search is asked: options, checked before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tensoropt.checks import MOST_THREADS, is_integer, is_number, number, of_type
from tensoropt.cluster import Cluster, Mesh
from tensoropt.cost.precision import Optimizer, Precision
from tensoropt.errors import ProblemError
from tensoropt.graph import Graph

__all__ = ["DEFAULT_EPSILON", "Settings"]

Recompute = Literal["none", "full", "sweep"]

DEFAULT_AXES = 3
"""Most axes of a mesh unless told otherwise (every level of a cluster has one): with three a block
has hundreds of border states, and a search takes minutes."""

DEFAULT_EPSILON = 1e-3
"""The promise of a search that is not told otherwise: within 0.1 % in time and in memory."""


@dataclass(frozen=True)
class Settings:
    """Options of a search.

    Parameters
    ----------
    precision : Precision
    optimizer : Optimizer
    micro_batches : tuple of int
        Every number of micro-batches to look at; divisors of the batch.
    recompute : str
        ``none``, ``full`` or ``sweep`` (every repeated block is kept or recomputed).
    meshes : tuple of Mesh
        Every mesh to look at.
    memory_bytes : float or None
        Cap on the device total.
    epsilon : float
    threads : int or None
    """

    precision: Precision
    optimizer: Optimizer
    micro_batches: tuple[int, ...]
    recompute: Recompute
    meshes: tuple[Mesh, ...]
    memory_bytes: float | None
    epsilon: float
    threads: int | None

    @classmethod
    def checked(
        cls,
        graph: Graph,
        cluster: Cluster,
        *,
        precision: str | Precision,
        optimizer: str | Optimizer,
        micro_batches: int | Sequence[int] | str,
        recompute: str,
        meshes: Sequence[Mesh] | None,
        max_axes: int | None,
        memory_bytes: float | None,
        epsilon: float | None,
        threads: int | None,
    ) -> Settings:
        """Check every option.

        Raises
        ------
        ProblemError
            Naming the option, what was expected, and what to do.
        """
        of_type("graph", graph, Graph, "a Graph from import_torch, import_onnx or examples")
        of_type("cluster", cluster, Cluster, 'a Cluster, such as Cluster.parse("8xA100-SXM-80GB")')
        if recompute not in ("none", "full", "sweep"):
            raise ProblemError(
                f"recompute is {recompute!r}, expected 'none', 'full' (every repeated block) or "
                "'sweep' (block by block)"
            )
        if memory_bytes is not None:
            number("memory_bytes", memory_bytes)
        if epsilon is not None and not (is_number(epsilon) and 0.0 <= epsilon < 1.0):
            raise ProblemError(f"epsilon is {epsilon!r}, expected 0 (exact) or a small number < 1")
        if threads is not None and not (is_integer(threads) and 1 <= threads <= MOST_THREADS):
            raise ProblemError(
                f"threads is {threads!r}, expected an integer from 1 to {MOST_THREADS}, or None "
                "for all cores"
            )
        if max_axes is not None and not (is_integer(max_axes) and max_axes > 0):
            raise ProblemError(f"max_axes is {max_axes!r}, expected an integer more than zero")
        if meshes is not None:
            of_type("meshes", meshes, Sequence, "a sequence of cluster.meshes()")
            for mesh in meshes:
                of_type("an entry of meshes", mesh, Mesh, "one of cluster.meshes()")
        if meshes is not None and max_axes is not None:
            raise ProblemError("meshes and max_axes exclude each other: give one of them")
        known = cluster.meshes(DEFAULT_AXES if max_axes is None else max_axes)
        chosen = tuple(known if meshes is None else meshes)
        if not chosen:
            raise ProblemError("meshes is empty: give at least one of cluster.meshes()")
        for mesh in chosen:
            if mesh.size != cluster.num_devices:
                raise ProblemError(
                    f"mesh {mesh} has {mesh.size} devices, but cluster '{cluster.name}' has "
                    f"{cluster.num_devices}: take one of cluster.meshes()"
                )
        return cls(
            precision if isinstance(precision, Precision) else Precision.named(precision),
            optimizer if isinstance(optimizer, Optimizer) else Optimizer.named(optimizer),
            _micro_batches(graph, micro_batches),
            recompute,  # type: ignore[arg-type]
            chosen,
            memory_bytes,
            DEFAULT_EPSILON if epsilon is None else float(epsilon),
            threads,
        )

    def to_dict(self) -> dict[str, Any]:
        """The options that have an influence on the result, as JSON values."""
        return {
            "precision": self.precision.name,
            "optimizer": self.optimizer.name,
            "micro_batches": list(self.micro_batches),
            "recompute": self.recompute,
            "meshes": [str(mesh) for mesh in self.meshes],
            "memory_bytes": self.memory_bytes,
            "epsilon": self.epsilon,
        }


def _micro_batches(graph: Graph, wanted: int | Sequence[int] | str) -> tuple[int, ...]:
    batch = graph.batch_size
    if isinstance(wanted, str):
        if wanted != "sweep":
            raise ProblemError(
                f"micro_batches is {wanted!r}, expected a number, or 'sweep' for all divisors of "
                "the batch"
            )
        return tuple(m for m in range(1, batch + 1) if batch % m == 0)
    expected = "'sweep', a number or a sequence of numbers"
    if not is_integer(wanted):
        of_type("micro_batches", wanted, Sequence, expected)
    counts = (wanted,) if isinstance(wanted, int) else tuple(wanted)
    if not counts:
        raise ProblemError("micro_batches is empty: give 'sweep', a number or several")
    for count in counts:
        if not is_integer(count) or count < 1 or batch % count:
            divisors = [m for m in range(1, batch + 1) if batch % m == 0]
            raise ProblemError(
                f"{count!r} micro-batches do not divide the batch of {batch}: use one of {divisors}"
            )
    return counts
