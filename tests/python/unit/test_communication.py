"""Collective times: laws, curves, shared adapters, overlap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.cluster import Cluster, Device, Link, Mesh, MeshAxis
from tensoropt.cost import COLLECTIVES, CommunicationModel, exposed_time, overlapped_time
from tensoropt.cost._curves import Law, MeasuredCurve, _table, fit_law, measured_curve
from tensoropt.cost.communication import derived_law
from tensoropt.errors import ClusterError, CostError

CLUSTERS = (
    "8xA100-SXM-80GB",
    "2x8xH100-SXM-80GB",
    "4x8xV100-SXM2-32GB",
    "2x4xL4",
    "8xA10G",
    "2xH100-NVL",
    "3x5xMI300X",
    "2x8xB200",
    "16xMI250X",
    "4xT4",
)


def models() -> list[CommunicationModel]:
    found = []
    for text in CLUSTERS:
        cluster = Cluster.parse(text)
        found += [CommunicationModel(cluster, mesh) for mesh in cluster.meshes()]
    return found


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_larger_messages_are_never_quicker(kind: str) -> None:
    sizes = np.concatenate([np.geomspace(1, 1e12, 2000), 2.0 ** np.arange(0, 40)])
    sizes.sort()
    for model in models():
        for axis in model.mesh.axes:
            times = model.time(kind, axis, sizes)
            assert np.all(np.isfinite(times))
            assert times[0] > 0
            # Up to rounding, where a curve is continued by its law.
            grows = np.diff(times) >= -1e-12 * times[1:]
            assert np.all(grows), (str(model.cluster), str(model.mesh), axis)


def test_nothing_costs_nothing() -> None:
    for model in models():
        for kind in COLLECTIVES:
            assert model.time(kind, 0, 0) == 0.0
    single = Cluster.parse("L4")
    model = CommunicationModel(single, single.meshes()[0])
    assert np.array_equal(model.time("all_reduce", 0, [0, 1, 1e9]), np.zeros(3))
    assert model.axis_link("a0") == "none"


def test_arrays_are_elementwise() -> None:
    cluster = Cluster.parse("2x8xH100-SXM-80GB")
    model = CommunicationModel(cluster, cluster.meshes()[0])
    sizes = np.array([[0, 1e3, 1e6], [1e9, 5.0, 123456789.0]])
    times = model.time("all_gather", "a0", sizes)
    assert times.shape == sizes.shape
    for index in np.ndindex(sizes.shape):
        assert times[index] == model.time("all_gather", "a0", sizes[index])


def test_volumes_of_ring_collectives() -> None:
    """An all-reduce moves 2(n-1)/n of its payload, the others (n-1)/n (ring bound)."""
    link = Link("wire", "pcie", 1e9, efficiency=1.0, hop_s=0.0, base_s=0.0)
    for ranks in (2, 3, 8, 64):
        share = (ranks - 1) / ranks
        assert derived_law("all_reduce", link, ranks)(1e9) == pytest.approx(2 * share)
        for kind in ("all_gather", "reduce_scatter", "all_to_all"):
            assert derived_law(kind, link, ranks)(1e9) == pytest.approx(share)
        assert derived_law("point_to_point", link, ranks)(1e9) == pytest.approx(1.0)


def test_derived_all_reduce_is_reduce_scatter_then_all_gather() -> None:
    """Without reduction in the switch neither way may win in bandwidth."""
    link = Link("wire", "nvlink", 3e11)
    whole = derived_law("all_reduce", link, 8)
    parts = [derived_law(kind, link, 8) for kind in ("reduce_scatter", "all_gather")]
    assert whole.b_s_per_byte == pytest.approx(sum(p.b_s_per_byte for p in parts))


def test_trees_bound_the_latency_of_many_nodes() -> None:
    link = Link.from_dict({"name": "RDMA", "bandwidth_bytes_s": 5e10})
    laws = {n: derived_law("all_reduce", link, n) for n in (2, 64, 1024)}
    assert laws[2].a_s == pytest.approx(link.base_s + 2 * link.hop_s)
    assert laws[1024].a_s == pytest.approx(link.base_s + 20 * link.tree_hop_s)


def test_groups_that_cross_nodes_share_the_adapters() -> None:
    """Eight devices of a node on one adapter each get an eighth of it."""
    times = {}
    for per_node in (1, 8):
        cluster = Cluster.parse(f"2x{per_node}xL4", network_bytes_s=12.5e9)
        model = CommunicationModel(cluster, cluster.meshes()[0])
        times[per_node] = float(model.time("all_reduce", "a0", 1e10))
    assert times[8] / times[1] == pytest.approx(8, rel=0.03)


def test_splitting_a_level_does_not_change_the_share_of_an_adapter() -> None:
    cluster = Cluster.parse("2x8xA100-SXM-80GB")
    whole, split = (CommunicationModel(cluster, mesh) for mesh in cluster.meshes()[:2])
    assert split.mesh.shape == (2, 2, 4)
    sizes = np.geomspace(1, 1e10, 50)
    assert np.array_equal(
        whole.time("all_gather", "a0", sizes), split.time("all_gather", "a0", sizes)
    )


def test_the_network_is_slower_than_the_node() -> None:
    for text in ("2x2xA100-SXM-80GB", "8x8xH100-SXM-80GB", "2x2xMI250X", "2x2xV100-SXM2-32GB"):
        cluster = Cluster.parse(text)
        model = CommunicationModel(cluster, cluster.meshes()[0])
        for kind in COLLECTIVES:
            outer, inner = (float(model.time(kind, axis, 1e9)) for axis in (0, 1))
            assert outer > inner, (text, kind)
        assert model.axis_link(0) == "network"


def test_gathering_takes_about_half_of_an_all_reduce() -> None:
    sizes = np.geomspace(1e6, 1e10, 20)
    cluster = Cluster.parse("8xA100-SXM-80GB")
    for mesh in cluster.meshes():
        model = CommunicationModel(cluster, mesh)
        for axis in mesh.axes:
            whole = model.time("all_reduce", axis, sizes)
            for kind in ("all_gather", "reduce_scatter"):
                share = model.time(kind, axis, sizes) / whole
                assert np.all((share >= 0.5) & (share <= 0.7))


def test_reduction_in_the_switch_helps_all_reduce_alone() -> None:
    cluster = Cluster.parse("8xH200-SXM")
    model = CommunicationModel(cluster, cluster.meshes()[0])
    size = 2.0**34
    busbw = {
        kind: factor * size / float(model.time(kind, 0, size)) / 1e9
        for kind, factor in (("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875))
    }
    # Measured at 16 GiB: 480, 361.4 and 362.9 GB/s.
    assert busbw["all_reduce"] == pytest.approx(480, rel=0.01)
    assert busbw["all_gather"] == pytest.approx(361.4, rel=0.02)
    assert busbw["reduce_scatter"] == pytest.approx(362.9, rel=0.02)


def test_what_is_measured_is_said() -> None:
    cluster = Cluster.parse("2x8xA100-SXM-80GB")
    model = CommunicationModel(cluster, cluster.meshes()[0])
    assert model.is_measured("all_reduce", "a1")
    assert not model.is_measured("reduce_scatter", "a1")
    assert not model.is_measured("all_reduce", "a0")


def test_kappa_is_that_of_the_closest_group() -> None:
    cluster = Cluster.parse("1x16xA100-SXM-40GB")
    model = CommunicationModel(cluster, cluster.meshes()[1])
    assert model.mesh.shape == (2, 8)
    assert (model.kappa(0), model.kappa(1)) == (0.546, 0.465)
    assert CommunicationModel(cluster, cluster.meshes()[0]).kappa(0) == 0.465


def test_bad_questions_raise() -> None:
    cluster = Cluster.parse("8xL4")
    model = CommunicationModel(cluster, cluster.meshes()[0])
    with pytest.raises(CostError, match="all_reduce"):
        model.time("broadcast", 0, 1)
    with pytest.raises(ClusterError, match="no axis"):
        model.time("all_reduce", "data", 1)
    for bad in (-1, np.nan, np.inf):
        with pytest.raises(CostError, match="nbytes"):
            model.time("all_reduce", 0, bad)
    for axes in ((MeshAxis("a0", 4, 0),), (MeshAxis("a0", 8, 1),), (MeshAxis("a0", 16, 0),)):
        with pytest.raises(CostError, match="cluster"):
            CommunicationModel(cluster, Mesh(axes))


@given(st.floats(1e-6, 1e-3), st.floats(1e-13, 1e-8), st.floats(0, 1e-7), st.integers(4, 30))
def test_a_fit_recovers_its_law(a: float, b: float, c: float, count: int) -> None:
    law = Law(a, b, c)
    sizes = np.geomspace(1e3, 1e10, count)
    assert np.allclose(fit_law(sizes, law(sizes))(sizes), law(sizes), rtol=1e-4)


@given(
    st.lists(st.tuples(st.floats(1, 1e12), st.floats(1e-7, 1e3)), min_size=3, max_size=15),
)
def test_curves_of_any_points_are_monotone(points: list[tuple[float, float]]) -> None:
    sizes = np.unique(np.round([size for size, _ in points]))
    if sizes.size < 3:
        return
    times = np.array([time for _, time in points])[: sizes.size]
    curve = MeasuredCurve(sizes, times)
    law = curve.law
    assert min(law.a_s, law.b_s_per_byte, law.c_s_per_root_byte) >= 0
    found = curve(np.geomspace(1, 1e13, 500))
    assert np.all(np.isfinite(found))
    assert np.all(np.diff(found) >= -1e-12 * found[1:])


def test_curves_pass_through_monotone_points() -> None:
    sizes = np.array([1e3, 1e4, 1e5, 1e6])
    times = np.array([1e-5, 3e-5, 4e-5, 2e-4])
    assert np.allclose(MeasuredCurve(sizes, times)(sizes), times, rtol=0.03)


def test_bad_points_raise() -> None:
    for sizes, times in [
        ([1, 2], [1, 2]),
        ([1, 2, 3], [1, 2]),
        ([1, 2, 3], [1, -2, 3]),
        ([1, 3, 2], [1, 2, 3]),
        ([1, 2, 3], [1, 2, np.inf]),
    ]:
        with pytest.raises(CostError):
            MeasuredCurve(sizes, times)


def test_stored_curves_are_followed() -> None:
    for entry in _table()["curves"]:
        points = np.array(entry["points_bytes_us"])
        curve = measured_curve(entry["family"], entry["kind"], entry["ranks"])
        assert curve is not None
        error = np.abs(curve(points[:, 0]) / (points[:, 1] * 1e-6) - 1)
        label = (entry["family"], entry["kind"], entry["ranks"])
        assert error.mean() < 0.03, label
        # The largest distances are points that a larger message undercuts.
        assert error.max() < 0.12, label
        assert entry["source"].startswith("https://"), label


def test_stored_families_belong_to_links() -> None:
    families = {entry["family"] for entry in _table()["curves"]}
    used = set()
    for name in Device.names():
        used.add(Link.inside_node(Device.named(name), 8).family)
    assert families == used - {None}


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1))
def test_exposed_time_lies_between_its_bounds(compute: float, wire: float, kappa: float) -> None:
    exposed = float(exposed_time(compute, wire, kappa))
    slack = 1e-9 * (1 + compute + wire)
    assert max(0.0, wire - compute) - slack <= exposed <= wire + slack
    assert float(exposed_time(compute, wire, 0)) == pytest.approx(max(0, wire - compute), abs=slack)
    assert float(exposed_time(compute, wire, 1)) == pytest.approx(wire, abs=slack)
    both, swapped = overlapped_time(compute, wire, kappa), overlapped_time(wire, compute, kappa)
    assert both == swapped


def test_overlap_refuses_bad_input() -> None:
    for bad in [(-1, 1, 0.5), (1, -1, 0.5), (1, 1, -0.1), (1, 1, 1.1), (np.nan, 1, 0.5)]:
        with pytest.raises(CostError):
            exposed_time(*bad)
