"""The bound on memory covers the replay on a network that the onnx package carries.

Flattened images before large products: gathers before views, and weights far larger than what the
operators between them need.
"""

from __future__ import annotations

import pytest

import tensoropt as to

pytest.importorskip("onnx")

from onnx_models import light
from tensoropt.importing.onnx import import_onnx


def test_every_point_of_a_frontier() -> None:
    graph = import_onnx(light()["light_bvlc_alexnet"], batch_size=32)
    cluster = to.Cluster.parse("2x8xH100-SXM-80GB")
    frontier = to.search(graph, cluster, max_axes=2, micro_batches=(1, 2))
    for strategy in (*frontier, *frontier.schemes):
        costs = strategy.costs
        assert costs.memory_peak_bytes <= costs.memory_bound_bytes, strategy.description
