"""The command line over a real search of a small model."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from tensoropt import examples
from tensoropt.cli import main
from tensoropt.frontier import Frontier
from tensoropt.strategy import Strategy

Capture = pytest.CaptureFixture[str]
MODEL = ("--example", "gpt-125m", "--batch", "8", "--seq", "128")
SMALL = ("--micro-batches", "1", "--recompute", "none")


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two layers instead of twelve, and a folder of its own."""
    named = functools.partial(examples.named, layers=2, vocabulary=1024)
    monkeypatch.setattr(examples, "named", named)
    monkeypatch.chdir(tmp_path)


def run(capsys: Capture, *arguments: str, code: int = 0) -> str:
    found = main(arguments)
    output = capsys.readouterr()
    assert found == code, output.err
    assert output.err == "" if code == 0 else output.err.count("\n") == 1
    return output.out if code == 0 else output.err


def test_search_pick_and_show(capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    out = run(capsys, "search", *MODEL, *SMALL, "--cluster", "2xA100-SXM-80GB")
    assert Path("frontier.png").read_bytes().startswith(b"\x89PNG")
    frontier = Frontier.load("frontier.json")
    assert f"{len(frontier):,} point" in out
    assert "Saved to frontier.json, drawn in frontier.png." in out
    for scheme in frontier.schemes:
        assert scheme.scheme in out
        assert not frontier.distance(scheme).time_ratio < 1  # type: ignore[operator]
        assert not frontier.distance(scheme).memory_ratio < 1  # type: ignore[operator]

    run(capsys, "pick", "frontier.json", "--output", "strategy.json")
    assert Strategy.load("strategy.json") == frontier.fastest()
    assert run(capsys, "show", "strategy.json").startswith("gpt-125m on 2xA100-SXM-80GB")
    middle = str(len(frontier) // 2)
    assert "Splits" in run(capsys, "show", "frontier.json", "--point", middle)


def test_search_for_machines(capsys: Capture) -> None:
    arguments = (*MODEL, *SMALL, "--cluster", "2xL4", "--no-plot", "--output", "f.json.gz")
    document = json.loads(run(capsys, "search", *arguments, "--json"))
    frontier = Frontier.load("f.json.gz")
    # All points, where people are shown some.
    assert document["point_count"] == len(document["points"]) == len(frontier) > 20
    some = json.loads(run(capsys, "show", "f.json.gz", "--json", "--points", "3"))
    assert (some["point_count"], len(some["points"])) == (len(frontier), 3)
    assert document["points"][0]["time_s"] == frontier.costs.time_s[0]
    assert document["plot"] is None
    assert sorted(path.name for path in Path().iterdir()) == ["f.json.gz"]


def test_too_little_memory(capsys: Capture) -> None:
    """The complaint names the least that would do, and three tensors."""
    arguments = (*MODEL, *SMALL, "--cluster", "2xL4", "--memory", "1GB", "--no-plot")
    err = run(capsys, "search", *arguments, code=1)
    assert "1.00 GB" in err
    assert err.count("(") >= 3
    assert list(Path().iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_result_that_cannot_be_saved_is_shown(capsys: Capture) -> None:
    code = main(("search", *MODEL, *SMALL, "--cluster", "2xL4", "--output", "/dev/full"))
    out, err = capsys.readouterr()
    assert code == 2
    assert "Named schemes" in out
    assert "Saved" not in out
    assert err == "tensoropt: error: cannot use '/dev/full': no space left on device\n"


def test_nothing_is_drawn_beside_a_device(capsys: Capture) -> None:
    out = run(capsys, "search", *MODEL, *SMALL, "--cluster", "2xL4", "--output", "/dev/null")
    assert out.endswith("Saved to /dev/null.\n")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--precision", "bf17"), "bf17"),
        (("--optimizer", "adamx"), "adamx"),
        (("--micro-batches", "3"), "3"),
    ],
)
def test_wrong_options(capsys: Capture, arguments: tuple[str, str], part: str) -> None:
    err = run(capsys, "search", *MODEL, "--cluster", "2xL4", *arguments, code=2)
    assert err.startswith("tensoropt: error: ")
    assert part in err


def test_sweep(capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("sweep", *MODEL, *SMALL, "--device", "L4", "--counts", "2,1")
    out = run(capsys, *arguments, "--plot", "sweep.png")
    assert Path("sweep.png").exists()
    assert [line.split()[0] for line in out.splitlines() if line.strip()[:1].isdigit()] == [
        "1",
        "2",
    ]
    document = json.loads(run(capsys, *arguments, "--json"))
    assert [row["count"] for row in document["rows"]] == [1, 2]
    assert all(row["fits"] for row in document["rows"])


def test_fewest(capsys: Capture) -> None:
    arguments = ("sweep", *MODEL, *SMALL, "--device", "L4", "--counts", "1,2", "--fewest")
    out = run(capsys, *arguments, "--output", "s.json")
    assert "1 L4 suffices" in out
    assert Strategy.load("s.json").cluster == "1xL4"
    err = run(capsys, *arguments, "--memory", "1GB", code=1)
    assert "up to 2 L4" in err


@pytest.fixture
def onnx_file() -> str:
    """Write a linear with a symbolic batch and a symbolic sequence."""
    onnx = pytest.importorskip("onnx")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    weight = helper.make_tensor("w", float32, [8, 16], [0.0] * 128)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", float32, ["batch", "length", 8])],
        [helper.make_tensor_value_info("y", float32, ["batch", "length", 16])],
        [weight],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset), "small.onnx")
    return "small.onnx"


def test_symbolic_dims(capsys: Capture, onnx_file: str) -> None:
    search = ("search", onnx_file, *SMALL, "--cluster", "2xL4", "--no-plot")
    err = run(capsys, *search, code=2)
    assert "--batch SIZE --dim length=SIZE" in err
    out = run(capsys, *search, "--batch", "8", "--seq", "32")
    assert "batch 8 of 32 tokens" in out
    again = run(capsys, *search, "--batch", "8", "--dim", "length=32", "--dim", "length=32")
    assert "batch 8," in again
    err = run(capsys, *search, "--batch", "8", "--dim", "length=32", "--dim", "length=64", code=2)
    assert "--dim length is given as 32 and as 64" in err


def test_tokens_that_are_no_dim(capsys: Capture, onnx_file: str) -> None:
    """Throughput would be reported in tokens that are not there."""
    arguments = (*SMALL, "--cluster", "2xL4", "--no-plot", "--dim", "length=32", "--batch", "8")
    err = run(capsys, "search", onnx_file, *arguments, "--seq", "128", code=2)
    assert "--seq 128" in err
    assert list(Path().iterdir()) == [Path(onnx_file)]


def test_a_model_is_not_overwritten(capsys: Capture, onnx_file: str) -> None:
    before = Path(onnx_file).read_bytes()
    arguments = (*SMALL, "--cluster", "2xL4", "--batch", "8", "--output", onnx_file)
    err = run(capsys, "search", onnx_file, *arguments, code=2)
    assert f"--output '{onnx_file}' would overwrite '{onnx_file}'" in err
    assert Path(onnx_file).read_bytes() == before
