"""Devices, links and meshes: what a strategy runs on, every figure with its source."""

from tensoropt.cluster.device import Device
from tensoropt.cluster.link import Link
from tensoropt.cluster.mesh import Mesh, MeshAxis
from tensoropt.cluster.topology import Cluster, Level, Price

__all__ = ["Cluster", "Device", "Level", "Link", "Mesh", "MeshAxis", "Price"]
