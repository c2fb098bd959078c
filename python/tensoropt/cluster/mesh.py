"""Device meshes: the shapes into which the devices of a cluster can be arranged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensoropt.errors import ClusterError

__all__ = ["Mesh", "MeshAxis", "enumerate_meshes"]


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One axis of a mesh.

    Parameters
    ----------
    name : str
        Name of the axis: ``"a0"`` is the outermost.
    size : int
        Number of devices along the axis.
    level : int
        Index of the level of the cluster whose link the axis uses (0 is the outermost).
    """

    name: str
    size: int
    level: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """Devices arranged along axes, the outermost (slowest link) first.

    Parameters
    ----------
    axes : tuple of MeshAxis

    Examples
    --------
    >>> mesh = Mesh((MeshAxis("a0", 2, 0), MeshAxis("a1", 4, 1)))
    >>> str(mesh), mesh.size, mesh.shape
    ('2x4', 8, (2, 4))
    """

    axes: tuple[MeshAxis, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.axes))
        if not self.axes:
            raise ClusterError("a mesh needs at least one axis")
        names = [axis.name for axis in self.axes]
        if len(set(names)) != len(names):
            raise ClusterError(f"mesh axis names must differ, got {', '.join(names)}")
        for axis in self.axes:
            if axis.size < 1:
                raise ClusterError(f"mesh axis {axis.name!r} has size {axis.size}; expected >= 1")

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes, outermost first."""
        return tuple(axis.size for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    def axis(self, which: str | int | MeshAxis) -> MeshAxis:
        """Return an axis by name, position or itself.

        Raises
        ------
        ClusterError
            If the mesh has no such axis.
        """
        if isinstance(which, MeshAxis) and which in self.axes:
            return which
        if isinstance(which, int) and -len(self.axes) <= which < len(self.axes):
            return self.axes[which]
        for axis in self.axes:
            if axis.name == which:
                return axis
        raise ClusterError(
            f"mesh {self} has no axis {which!r}; its axes are "
            f"{', '.join(axis.name for axis in self.axes)}"
        )

    def __str__(self) -> str:
        return "x".join(str(size) for size in self.shape)


def _factorizations(n: int, parts: int, least: int = 2) -> Iterator[tuple[int, ...]]:
    """Yield all non-decreasing tuples of `parts` factors >= `least` whose product is `n`."""
    if parts == 1:
        if n >= least:
            yield (n,)
        return
    for first in range(least, math.isqrt(n) + 1):
        if n % first == 0:
            for rest in _factorizations(n // first, parts - 1, first):
                yield (first, *rest)


def enumerate_meshes(level_sizes: Sequence[int], max_axes: int) -> tuple[Mesh, ...]:
    """Return every mesh whose axes each lie within one level.

    Axes within a level use the same link, so only their sizes matter: factors of a level come in
    non-decreasing order and permutations are not repeated. Levels of size one have no axis; a
    single device has one axis of size one.

    Parameters
    ----------
    level_sizes : sequence of int
        Sizes of the levels, outermost first.
    max_axes : int
        Greatest number of axes in all; every level of size two or more gets at least one.

    Returns
    -------
    tuple of Mesh
        Ordered by number of axes, then by shape with larger outer axes last.
    """
    if isinstance(max_axes, bool) or not isinstance(max_axes, int) or max_axes < 1:
        raise ClusterError(f"max_axes must be an integer >= 1, got {max_axes!r}")
    used = [(level, size) for level, size in enumerate(level_sizes) if size > 1]
    if not used:
        return (Mesh((MeshAxis("a0", 1, len(level_sizes) - 1),)),)
    spare = max(0, max_axes - len(used))
    choices = [
        [f for parts in range(1, spare + 2) for f in _factorizations(size, parts)]
        for _, size in used
    ]
    picked = [
        combo
        for combo in itertools.product(*choices)
        if sum(len(factors) for factors in combo) <= len(used) + spare
    ]
    picked.sort(key=lambda combo: (sum(map(len, combo)), combo))
    meshes = []
    for combo in picked:
        sizes = [
            (size, level)
            for (level, _), factors in zip(used, combo, strict=True)
            for size in factors
        ]
        axes = (MeshAxis(f"a{i}", size, level) for i, (size, level) in enumerate(sizes))
        meshes.append(Mesh(tuple(axes)))
    return tuple(meshes)
