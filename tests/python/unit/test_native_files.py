"""Files of problems and solutions: what is written and read, and what is said of bad ones."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensoropt._native import CostGraph, Solution, solve
from tensoropt.errors import FileFormatError, ProblemError


def chain(nodes: int = 4, **options: Any) -> CostGraph:
    """A chain with an impossible pair."""
    node = np.array([[1.0, 8.0], [4.0, 2.0]])
    edge = np.array([[[0.0, 0.0], [1.0, 1.0]], [[np.inf, 1.0], [0.0, 0.0]]])
    edges = [(i, i + 1, edge) for i in range(nodes - 1)]
    return CostGraph.from_arrays([node] * nodes, edges, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.json"


def test_a_graph_comes_back(path: Path) -> None:
    graph = chain(aggregate=("sum", "max"), resolution=(0.5, 2.0))
    graph.add_table_with_alternatives((2,), [0, 0, 2], [[0.5, 2], [1, 4]], factor=1.25)
    graph.save(path)
    back = CostGraph.load(path)
    assert repr(back) == repr(graph)
    assert back.aggregate == ("sum", "max")
    assert back.resolution == (0.5, 2.0)
    assert [back.scope(i) for i in range(3)] == [(0, 1), (1, 2), (2, 3)]
    assert solve(back).costs.tolist() == solve(graph).costs.tolist()
    again = path.with_name("again.json")
    back.save(os.fspath(again))
    assert again.read_bytes() == path.read_bytes()


def test_a_loaded_graph_can_grow(path: Path) -> None:
    chain().save(path)
    graph = CostGraph.load(path)
    assert graph.add_node(0) == 4


def test_names_say_what_is_compressed_and_content_what_is_unpacked(tmp_path: Path) -> None:
    plain, packed = tmp_path / "p.json", tmp_path / "p.json.gz"
    chain().save(plain)
    chain().save(packed)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    renamed = packed.rename(tmp_path / "renamed")
    assert repr(CostGraph.load(renamed)) == repr(CostGraph.load(plain))
    assert sorted(os.listdir(tmp_path)) == ["p.json", "renamed"]


def test_a_solution_comes_back(path: Path) -> None:
    solution = solve(chain(resolution=(0.5, 2.0)), epsilon=0.1)
    solution.save(path)
    back = Solution.load(path)
    assert repr(back) == repr(solution)
    for name in ("costs", "assignments", "node_alternatives", "alternatives"):
        assert getattr(back, name).tolist() == getattr(solution, name).tolist()
        assert getattr(back, name).dtype == getattr(solution, name).dtype
    assert back.certificate == solution.certificate
    assert back.counters == {**solution.counters, "peak_bytes": 0}
    assert back.peak is None
    assert [p.tolist() for p in back.plan(1)] == [p.tolist() for p in solution.plan(1)]


def test_an_infeasible_solution_with_a_peak_comes_back(path: Path) -> None:
    graph = CostGraph.from_arrays([[[1, 8, 3], [4, 2, 5]]], aggregate=("sum", "sum", "max"))
    solve(graph, peak=(1, 2)).save(path)
    peak = Solution.load(path).peak
    assert peak is not None
    assert peak.tolist() == [11, 7]
    solve(graph, peak=(1, 2, 6), caps=(0, None, None)).save(path)
    back = Solution.load(path)
    assert (back.status, len(back)) == ("infeasible", 0)
    assert back.least == [(0, 0, 1), ("peak", 6, 7)]


def test_the_file_is_json_as_documented(path: Path) -> None:
    solve(chain(2)).save(path)
    document = json.loads(path.read_text())
    assert list(document)[:3] == ["format", "version", "problem"]
    assert (document["format"], document["version"]) == ("tensoropt-solution", 1)
    problem = document["problem"]
    assert problem["nodes"] == [0, 0]
    assert problem["factors"] == [{"scope": [0, 1], "table": 1}]
    assert problem["tables"][1] == {
        "shape": [2, 2],
        "alternatives": [1, 1, 0, 1],
        "costs": [0, 0, 1, 1, 0, 0],
    }
    assert document["points"][0]["costs"] == solve(chain(2)).costs[0].tolist()


BAD: list[tuple[Callable[[Any], object], str]] = [
    (lambda d: d.pop("version"), r"missing field `version`"),
    (lambda d: d.update(version=2), r"version: version 2 .* use a newer release"),
    (lambda d: d.update(format="tensoropt-solution"), r"format: this is a \"tensoropt-solution\""),
    (lambda d: d.update(extra=1), r"unknown field `extra`"),
    (lambda d: d["problem"]["nodes"].append(9), r"problem\.nodes\[4\]: there is no table 9"),
    (lambda d: d["problem"]["tables"][1].pop("costs"), r"problem\.tables\[1\]: missing field"),
    (lambda d: d["problem"]["tables"][0].update(costs=[1, -1]), r"tables\[0\]\.costs\[1\]: .*`-1`"),
    (lambda d: d["problem"].update(aggregate=["sum"] * 5), r"problem\.aggregate: .* got 5"),
    (lambda d: d["problem"]["factors"][2].update(scope=[0, 7]), r"factors\[2\]\.scope\[1\]: .*7"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_graphs_are_named(path: Path, change: Callable[[Any], object], message: str) -> None:
    chain().save(path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match=message) as caught:
        CostGraph.load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_plan_that_costs_something_else_is_found(path: Path) -> None:
    solve(chain()).save(path)
    document = json.loads(path.read_text())
    document["points"][1]["configurations"][0] ^= 1
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match=r"points\[1\]: its plan .* solve the problem again"):
        Solution.load(path)


def test_damaged_files_are_named(path: Path) -> None:
    chain().save(path)
    text = path.read_bytes()
    # Cut within the first field: what comes before says the same of problems and solutions.
    for content, message in [
        (text[:10], "cut short"),
        (b"\x89PNG", "no valid JSON"),
        (gzip.compress(text)[:50], "truncated gzip"),
        (b"[" * 100_000, "object"),
    ]:
        path.write_bytes(content)
        for load in (CostGraph.load, Solution.load):
            with pytest.raises(FileFormatError, match=message):
                load(path)


def test_a_bomb_ends_at_the_limit(path: Path) -> None:
    path.write_bytes(gzip.compress(b" " * (8 << 20)))
    with pytest.raises(FileFormatError, match="max_bytes = 1000000 bytes of text: raise"):
        CostGraph.load(path, max_bytes=1_000_000)
    with pytest.raises(ProblemError, match="max_bytes"):
        CostGraph.load(path, max_bytes=-1)


def test_the_system_says_no(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "file.json"
    with pytest.raises(FileNotFoundError) as caught:
        CostGraph.load(missing)
    assert caught.value.filename == os.fspath(missing)
    with pytest.raises(FileNotFoundError) as caught:
        chain().save(missing)
    assert caught.value.filename == os.fspath(missing)
    with pytest.raises(IsADirectoryError):
        Solution.load(tmp_path)


def test_ctrl_c_ends_reading(tmp_path: Path) -> None:
    """Reading looks for signals between megabytes; blanks take long enough to be interrupted."""
    path = tmp_path / "blanks.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 29), compresslevel=1))
    program = (
        "import sys; from tensoropt._native import CostGraph; print('go', flush=True); "
        "CostGraph.load(sys.argv[1])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, os.fspath(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "go\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
