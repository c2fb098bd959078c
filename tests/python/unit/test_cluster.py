"""Descriptions of clusters: parsing, files, prices and the errors that bad ones raise."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from tensoropt.cluster import Cluster, Device, Level, Link, Price
from tensoropt.cluster._catalog import device_table, instance_table, link_table
from tensoropt.errors import ClusterError, UnknownDeviceError


@pytest.mark.parametrize(
    ("text", "name", "sizes"),
    [
        ("8xA100-SXM-80GB", "8xA100-SXM-80GB", [8]),
        ("2x8xH100-SXM-80GB", "2x8xH100-SXM-80GB", [2, 8]),
        ("16xA100-SXM-80GB", "2x8xA100-SXM-80GB", [2, 8]),
        ("1xH100-SXM-80GB", "1xH100-SXM-80GB", [1]),
        ("A100-SXM-80GB", "1xA100-SXM-80GB", [1]),
        ("6xL4", "6xL4", [6]),
        ("3x8xA10G", "3x8xA10G", [3, 8]),
        (" 4 x 2 x a100 sxm 80gb ", "4x2xA100-SXM-80GB", [4, 2]),
        ("1x16xA100-SXM-40GB", "1x16xA100-SXM-40GB", [16]),
        ("2xp4d.24xlarge", "2xp4d.24xlarge", [2, 8]),
        ("rtx3090", "1xRTX-3090", [1]),
    ],
)
def test_parse_reads_counts_and_device(text: str, name: str, sizes: list[int]) -> None:
    cluster = Cluster.parse(text)
    assert cluster.name == name
    assert [level.size for level in cluster.levels] == sizes
    # A name is itself a description of the same cluster.
    assert Cluster.parse(name) == cluster


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a description"),
        ("8x", "no device"),
        ("8", "no device"),
        ("0xL4", "count of 0"),
        ("2x0xL4", "count of 0"),
        ("12xL4", "2x6x<device>"),
        ("13xL4", "13x1x<device>"),
        ("2x2x8xL4", "3 counts"),
        ("2x8xp4d.24xlarge", "write 2xp4d.24xlarge"),
        ("-1x8xL4", "the count '-1' is no whole number"),
        ("1.5xL4", "the count '1.5' is no whole number"),
        ("2x+4xL4", "the count '+4' is no whole number"),
        ("1e3xL4", "the count '1e3' is no whole number"),
    ],
)
def test_parse_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ClusterError) as caught:
        Cluster.parse(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parse_refuses_what_is_not_text() -> None:
    with pytest.raises(ClusterError, match="expected a description"):
        Cluster.parse(8)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "close"), [("A100", "A100-SXM-80GB"), ("H100-SMX", "H100")])
def test_unknown_device_lists_the_closest(name: str, close: str) -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        Device.named(name)
    message = str(caught.value)
    assert close in message
    assert "describe your own" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["FOO", "?", "TPU"])
def test_a_device_like_no_other_has_no_closest(name: str) -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        Device.named(name)
    assert "tensoropt devices" in str(caught.value)
    assert not [known for known in Device.names() if known in str(caught.value)]


def test_every_device_of_the_table_is_complete() -> None:
    for name in Device.names():
        device = Device.named(name.lower().replace("-", " "))
        assert device.name == name
        assert device.sources
        assert device.gemm_source
        assert device.memory_source
        assert device.peak("float32") <= max(device.peak_flops.values())
        assert Link.inside_node(device, 8).source


def test_every_alias_means_one_device() -> None:
    seen: dict[str, str] = {}
    for entry in device_table()["devices"]:
        for alias in (entry["name"], *entry["aliases"]):
            assert seen.setdefault(alias.lower(), entry["name"]) == entry["name"]
            assert Device.named(alias).name == entry["name"]


def test_an_80gb_card_holds_80_gib() -> None:
    assert Device.named("A100-80GB").memory_bytes == 80 * 2**30
    # Cards that keep part of their memory for error correction report less.
    assert Device.named("L4").memory_bytes < 24e9 * 1.024


def test_own_device_by_dictionary() -> None:
    data = {
        "name": "mine",
        "memory_bytes": 16e9,
        "peak_flops": {"bfloat16": 1e14},
        "memory_bandwidth_bytes_s": 1e12,
    }
    device = Device.from_dict(data)
    assert device.memory_bytes == 16_000_000_000
    assert Device.from_dict(device.to_dict()) == device
    for key in data:
        with pytest.raises(ClusterError, match=key):
            Device.from_dict({k: v for k, v in data.items() if k != key})
    with pytest.raises(ClusterError, match="speed"):
        Device.from_dict({**data, "speed": 1})
    for key, bad in [
        ("memory_bytes", -1),
        ("memory_bandwidth_bytes_s", float("nan")),
        ("peak_flops", {}),
        ("peak_flops", {"bfloat16": 0}),
        ("peak_flops", 3.0),
        ("gemm_efficiency", 1.5),
        ("launch_s", -1.0),
        ("memory_bytes", "16GB"),
    ]:
        with pytest.raises(ClusterError):
            Device.from_dict({**data, key: bad})


def test_clusters_survive_dictionaries_files_and_pickles(tmp_path) -> None:
    for text in ("2x8xH100-SXM-80GB", "A10G", "4x4xA100-PCIe-80GB", "2xMI300X"):
        cluster = Cluster.parse(text)
        data = cluster.to_dict()
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps(data))
        loaded = Cluster.load(path)
        assert loaded == cluster
        assert loaded.to_dict() == data
        assert pickle.loads(pickle.dumps(cluster)) == cluster
        assert copy.deepcopy(cluster) == cluster
        assert hash(cluster) == hash(loaded)


def test_a_toml_file_describes_own_devices_and_links(tmp_path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(
        """
name = "lab"
device = "RTX-4090"
price_usd_per_hour = 1.5

[[levels]]
size = 3
link = { name = "TCP", bandwidth_bytes_s = 1.25e9, node_bandwidth_bytes_s = 1.25e9 }

[[levels]]
size = 2
link = { name = "riser", kind = "pcie", bandwidth_bytes_s = 8e9, kappa = { 2 = 0.3 } }
"""
    )
    cluster = Cluster.load(path)
    assert (cluster.name, cluster.num_devices, cluster.price_usd_per_hour) == ("lab", 6, 1.5)
    assert cluster.levels[0].link.tree_hop_s > 0  # filled in by the link's name
    assert cluster.levels[1].link.kappa_for(2) == 0.3


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"levels": [{"size": 2}]}, "device"),
        ({"device": "L4"}, "levels"),
        ({"device": "L4", "levels": []}, "levels"),
        ({"device": "L4", "levels": [{"link": {}}]}, "size"),
        ({"device": "L4", "levels": [{"size": 0}]}, ">= 1"),
        ({"device": "L4", "levels": [{"size": 2}, {"size": 2}]}, "innermost"),
        ({"device": "L4", "levels": [{"size": 2, "speed": 1}]}, "speed"),
        ({"device": "L4", "levels": [{"size": 2}], "nodes": 2}, "nodes"),
        ({"device": 3, "levels": [{"size": 2}]}, "device"),
        ({"device": "L4", "levels": [{"size": 2, "link": {"name": "x"}}]}, "kind"),
        ({"device": "L4", "levels": [{"size": 2, "link": "x"}]}, "link"),
    ],
)
def test_bad_descriptions_name_the_field(data: dict, says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        Cluster.from_dict(data)


@pytest.mark.parametrize(
    ("name", "content"),
    [("gone.json", None), ("c.json", "{"), ("c.toml", "= 3"), ("c.yaml", "a: 1"), ("l.json", "[]")],
)
def test_bad_files_are_named(tmp_path, name: str, content: str | None) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(ClusterError):
        Cluster.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "string"},
        {"bandwidth_bytes_s": 0},
        {"bandwidth_bytes_s": True},
        {"node_bandwidth_bytes_s": -1},
        {"efficiency": float("inf")},
        {"hop_s": 2},
        {"kappa": {}},
        {"kappa": {2: 1.5}},
        {"kappa": 0.5},
        {"kappa": {"two": 0.5}},
        {"efficiency_by_ranks": {0: 0.5}},
        {"colour": "red"},
    ],
)
def test_bad_links_raise(change: dict) -> None:
    good = {"name": "mine", "kind": "pcie", "bandwidth_bytes_s": 1e10}
    assert Link.from_dict(good).bandwidth_bytes_s == 1e10
    with pytest.raises(ClusterError):
        Link.from_dict({**good, **change})


def test_links_of_the_table_are_complete() -> None:
    for name, entry in link_table()["links"].items():
        link = Link.from_dict({"name": name, "bandwidth_bytes_s": 1e10})
        assert link.source == entry["source"]
        assert all(0 <= value <= 1 for value in link.kappa.values())


def test_adapters_are_shared_by_the_devices_of_a_node() -> None:
    link = Cluster.parse("2xp4d.24xlarge").levels[0].link
    assert link.node_bandwidth_bytes_s == 50e9  # 400 Gbit/s
    alone, eight = (link.busbw_bytes_s("all_reduce", 2, n) for n in (1, 8))
    assert alone == pytest.approx(12.5e9 * link.efficiency)
    assert eight == pytest.approx(50e9 / 8 * link.efficiency)


def test_network_can_be_given() -> None:
    slow = Cluster.parse("2x8xH100-SXM-80GB", network_bytes_s=1.25e9)
    assert slow.levels[0].link.node_bandwidth_bytes_s == 1.25e9
    assert slow.levels[0].link.bandwidth_bytes_s == 1.25e9
    with pytest.raises(ClusterError, match="network_bytes_s"):
        Cluster.parse("2x8xL4", network_bytes_s=-1)


def test_prices_are_dated_and_proportional() -> None:
    one, eight = Cluster.parse("1xA100-SXM-80GB"), Cluster.parse("8xA100-SXM-80GB")
    assert eight.price is not None
    assert eight.price.date
    assert eight.price.source
    assert one.price_usd_per_hour == pytest.approx(eight.price_usd_per_hour / 8)
    entry = next(e for e in instance_table()["instances"] if e["type"] == "p4d.24xlarge")
    three = Cluster.parse("3xp4d.24xlarge")
    assert three.price_usd_per_hour == pytest.approx(3 * entry["usd_per_hour"])


def test_prices_can_be_given_and_can_be_unknown() -> None:
    assert Cluster.parse("8xMI355X").price_usd_per_hour is None
    assert Cluster.parse("8xMI355X", price_usd_per_hour=40).price_usd_per_hour == 40
    cluster = Cluster.parse("8xL4").with_price(2.5)
    assert cluster.price == Price.given(2.5)
    for bad in (-1.0, float("nan"), float("inf"), "3"):
        with pytest.raises(ClusterError, match="price"):
            cluster.with_price(bad)  # type: ignore[arg-type]


def test_reference_instances_exist_and_hold_the_device() -> None:
    table = instance_table()
    types = {e["type"]: e for e in table["instances"]}
    for device, name in table["reference"].items():
        assert types[name]["device"] == device
    for name in table["network_like"].values():
        assert name in types


def test_levels_need_a_size() -> None:
    link = Link.inside_node(Device.named("L4"), 2)
    for size in (0, -1, 1.5, True):
        with pytest.raises(ClusterError, match="size of a level"):
            Level(size, link)  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="no levels"):
        Cluster("empty", Device.named("L4"), ())
