"""Meshes: which factorizations a cluster has, and their order."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.cluster import Cluster, Mesh, MeshAxis
from tensoropt.cluster.mesh import enumerate_meshes
from tensoropt.errors import ClusterError


@pytest.mark.parametrize(
    ("text", "max_axes", "expected"),
    [
        ("8xA100-SXM-80GB", 3, ["8", "2x4", "2x2x2"]),
        ("8xA100-SXM-80GB", 2, ["8", "2x4"]),
        ("8xA100-SXM-80GB", 1, ["8"]),
        ("2x8xH100-SXM-80GB", 3, ["2x8", "2x2x4"]),
        ("2x8xH100-SXM-80GB", 1, ["2x8"]),
        ("2x8xH100-SXM-80GB", 4, ["2x8", "2x2x4", "2x2x2x2"]),
        ("8x8xH100-SXM-80GB", 3, ["8x8", "2x4x8", "8x2x4"]),
        ("6xL4", 3, ["6", "2x3"]),
        ("7xL4", 3, ["7"]),
        ("L4", 3, ["1"]),
        ("4x1xL4", 3, ["4", "2x2"]),
        ("1x12xL4", 3, ["12", "2x6", "3x4", "2x2x3"]),
    ],
)
def test_meshes_of_clusters(text: str, max_axes: int, expected: list[str]) -> None:
    assert [str(mesh) for mesh in Cluster.parse(text).meshes(max_axes)] == expected


def test_axes_know_their_level() -> None:
    mesh = Cluster.parse("2x8xH100-SXM-80GB").meshes()[1]
    assert [(axis.name, axis.size, axis.level) for axis in mesh.axes] == [
        ("a0", 2, 0),
        ("a1", 2, 1),
        ("a2", 4, 1),
    ]
    only = Cluster.parse("4x1xL4").meshes()[0].axes
    assert [(axis.size, axis.level) for axis in only] == [(4, 0)]


def naive_factorizations(n: int, most: int) -> set[tuple[int, ...]]:
    """Every multiset of factors >= 2, by trying all tuples of divisors."""
    divisors = [d for d in range(2, n + 1) if n % d == 0]
    return {
        tuple(sorted(combo))
        for parts in range(1, most + 1)
        for combo in itertools.product(divisors, repeat=parts)
        if math.prod(combo) == n
    }


@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 9, 12, 16]), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_meshes_equal_the_naive_enumeration(sizes: list[int], max_axes: int) -> None:
    meshes = enumerate_meshes(sizes, max_axes)
    used = [level for level, size in enumerate(sizes) if size > 1]
    if not used:
        assert [(mesh.shape, mesh.axes[0].level) for mesh in meshes] == [((1,), len(sizes) - 1)]
        return
    limit = max(max_axes, len(used))
    options = [naive_factorizations(sizes[level], limit) for level in used]
    expected = {combo for combo in itertools.product(*options) if sum(map(len, combo)) <= limit}
    found = [
        tuple(tuple(axis.size for axis in mesh.axes if axis.level == level) for level in used)
        for mesh in meshes
    ]
    assert len(set(found)) == len(found)
    assert set(found) == expected
    assert all(mesh.size == math.prod(sizes) for mesh in meshes)
    assert all(
        [a.level for a in mesh.axes] == sorted(a.level for a in mesh.axes) for mesh in meshes
    )
    assert enumerate_meshes(sizes, max_axes) == meshes


def test_axis_lookup() -> None:
    mesh = Mesh((MeshAxis("a0", 2, 0), MeshAxis("a1", 4, 0)))
    assert mesh.axis("a1") is mesh.axis(1) is mesh.axis(-1) is mesh.axis(mesh.axes[1])
    for missing in ("a2", 2, MeshAxis("a1", 8, 0)):
        with pytest.raises(ClusterError, match="a0, a1"):
            mesh.axis(missing)


@pytest.mark.parametrize(
    "axes",
    [(), (MeshAxis("a", 2, 0), MeshAxis("a", 2, 0)), (MeshAxis("a", 0, 0),)],
)
def test_bad_meshes_raise(axes: tuple[MeshAxis, ...]) -> None:
    with pytest.raises(ClusterError):
        Mesh(axes)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_max_axes_is_checked(bad: object) -> None:
    with pytest.raises(ClusterError, match="max_axes"):
        Cluster.parse("8xL4").meshes(bad)  # type: ignore[arg-type]
