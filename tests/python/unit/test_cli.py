"""The command line: what it prints, its exit codes, its complaints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strategy_factory import frontier, points, strategy
from tensoropt.cli import main
from tensoropt.cli.models import model_kind
from tensoropt.errors import ImportModelError
from tensoropt.frontier import Frontier
from tensoropt.reporting.units import format_bytes
from tensoropt.strategy import Strategy

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "frontier.json"
    frontier().save(path)
    return str(path)


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    output = capsys.readouterr()
    return code, output.out, output.err


def complaint(capsys: Capture, *arguments: str, code: int = 2) -> str:
    """Run a command that must fail with one line and nothing on standard output."""
    found, out, err = run(capsys, *arguments)
    assert found == code, err
    assert out == ""
    assert err.startswith("tensoropt: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


# ---------------------------------------------------------------------------- pick


def test_pick_defaults_to_the_memory_of_the_device(capsys: Capture, saved: str) -> None:
    code, out, err = run(capsys, "pick", saved)
    assert (code, err) == (0, "")
    assert out.startswith("Point 1 of 6\n")
    assert "fits, at risk" in out


@pytest.mark.parametrize(
    ("limit", "point"),
    [
        (["--memory", "60GB"], 2),
        (["--memory", "59.9GB"], 3),
        (["--memory", "40GiB"], 3),
        (["--time", "610ms"], 4),
        (["--time", "0.3s"], 2),
    ],
)
def test_pick_by_limit(capsys: Capture, saved: str, limit: list[str], point: int) -> None:
    code, out, _ = run(capsys, "pick", saved, *limit, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["point"] == point
    assert Strategy.from_dict(document["strategy"]) == points()[point]


def test_pick_saves_the_strategy(capsys: Capture, saved: str, tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    code, out, _ = run(capsys, "pick", saved, "--memory", "41GB", "--output", str(path))
    assert code == 0
    assert f"Saved to {path}." in out
    assert Strategy.load(path) == points()[3]


def test_pick_infeasible(capsys: Capture, saved: str) -> None:
    text = complaint(capsys, "pick", saved, "--memory", "10GB", code=1)
    for part in ("24.0 GB", "embedding.weight", "logits", "layers.0.up"):
        assert part in text
    # How much of the total are tensors at all is said, and near misses are told apart.
    bound = points()[-1].costs.memory_bound_bytes
    assert f"of which tensors take {format_bytes(bound)}, most for embedding.weight" in text
    text = complaint(capsys, "pick", saved, "--memory", "23.999GB", code=1)
    assert "fits 23.999 GB: the leanest needs 24.000 GB" in text
    assert "199.9 ms: the fastest takes 200.0 ms" in complaint(
        capsys, "pick", saved, "--time", "199.9ms", code=1
    )
    assert "200 ms" in complaint(capsys, "pick", saved, "--time", "1ms", code=1)


# ---------------------------------------------------------------------------- show


def test_show_prints_the_frontier(capsys: Capture, saved: str) -> None:
    code, out, err = run(capsys, "show", saved)
    assert (code, err) == (0, "")
    for part in (
        "tiny-gpt on 8xA100-SXM-80GB: 12.3 M parameters, batch 64 of 1,024 tokens, bf16, adamw",
        "Named schemes",
        "6 points, status optimal: exact",
        "Fastest that fits one A100-SXM-80GB (85.9 GB): point 1",
        "Note: balanced routing is assumed.",
    ):
        assert part in out


def test_show_limits_rows(capsys: Capture, saved: str) -> None:
    _, out, _ = run(capsys, "show", saved, "--points", "3")
    assert "(3 of 6 points" in out
    _, out, _ = run(capsys, "show", saved, "--points", "0")
    assert "of 6 points" not in out
    _, out, _ = run(capsys, "show", saved, "--json", "--points", "3")
    document = json.loads(out)
    assert (document["point_count"], len(document["points"])) == (6, 3)
    assert [s["scheme"] for s in document["schemes"]] == ["ZeRO-3 (FSDP)", "data parallel"]


def test_show_a_point(capsys: Capture, saved: str) -> None:
    code, out, _ = run(capsys, "show", saved, "--point", "2")
    assert code == 0
    assert out.startswith(points()[2].explain())
    _, last, _ = run(capsys, "show", saved, "--point", "-1", "--json")
    assert json.loads(last)["point"] == 5


def test_show_a_scheme(capsys: Capture, saved: str) -> None:
    for name in ("data parallel", "DATA PARALLEL", "zero-3"):
        code, out, _ = run(capsys, "show", saved, "--scheme", name)
        assert code == 0
        assert "named scheme" in out
    text = complaint(capsys, "show", saved, "--scheme", "data paralel")
    assert "did you mean 'data parallel'?" in text


def test_show_a_difference(capsys: Capture, saved: str) -> None:
    _, out, _ = run(capsys, "show", saved, "--point", "2", "--against", "1")
    assert out.rstrip("\n") == points()[1].diff(points()[2])
    assert "--point or --scheme" in complaint(capsys, "show", saved, "--against", "1")


def test_show_a_strategy(capsys: Capture, tmp_path: Path) -> None:
    path = str(tmp_path / "s.json.gz")
    strategy().save(path)
    code, out, _ = run(capsys, "show", path)
    assert (code, out.rstrip("\n")) == (0, strategy().explain())
    assert "needs a saved frontier" in complaint(capsys, "show", path, "--point", "0")


def test_show_draws(capsys: Capture, saved: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "f.png"
    assert run(capsys, "show", saved, "--plot", str(path))[0] == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_show_says_what_it_wrote(capsys: Capture, saved: str, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    _, out, _ = run(capsys, "show", saved, "--point", "0", "--output", str(path))
    assert out.endswith(f"\nSaved to {path}.\n")
    assert Strategy.load(path) == points()[0]
    _, out, _ = run(capsys, "show", saved, "--point", "0", "--output", str(path), "--json")
    json.loads(out)


@pytest.mark.parametrize("command", [("pick",), ("show", "--point", "1"), ("show",)])
def test_a_frontier_is_not_overwritten(
    capsys: Capture, saved: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    before = Path(saved).read_bytes()
    same = tmp_path / "link.json"
    same.symlink_to(saved)
    for path in (saved, str(same), str(tmp_path / "." / "frontier.json")):
        text = complaint(capsys, command[0], saved, *command[1:], "--output", path)
        assert f"would overwrite '{saved}': choose another name" in text
    assert Path(saved).read_bytes() == before


@pytest.mark.parametrize("name", ["f.bmp", "no/f.png", "."])
def test_show_refuses_what_it_cannot_draw(
    capsys: Capture, saved: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    complaint(capsys, "show", saved, "--plot", name)


def test_schemes_that_are_not_there(capsys: Capture, saved: str) -> None:
    text = complaint(capsys, "show", saved, "--scheme", "quux")
    assert "no scheme 'quux'; the frontier has: ZeRO-3 (FSDP), data parallel" in text
    assert "did you mean" not in text
    complaint(capsys, "show", saved, "--scheme", "")


def test_points_beyond_the_frontier(capsys: Capture, saved: str) -> None:
    assert "points 0 to 5" in complaint(capsys, "show", saved, "--point", "6")
    assert "points 0 to 5" in complaint(capsys, "show", saved, "--point", "-7")


# ---------------------------------------------------------------------------- small commands


def test_devices(capsys: Capture) -> None:
    code, out, _ = run(capsys, "devices")
    assert code == 0
    assert "A100-SXM-80GB" in out
    _, out, _ = run(capsys, "devices", "--json")
    assert all(device["memory_bytes"] > 1e9 for device in json.loads(out))
    _, out, _ = run(capsys, "devices", "l4")
    assert out.startswith("L4\n")
    assert "sources" in out
    assert "closest" in complaint(capsys, "devices", "A1000")


def test_examples(capsys: Capture) -> None:
    code, out, _ = run(capsys, "examples")
    assert code == 0
    assert "gpt-2.7b" in out.splitlines()
    _, as_json, _ = run(capsys, "examples", "--json")
    assert json.loads(as_json) == out.split()


def test_help_and_version(capsys: Capture) -> None:
    code, out, _ = run(capsys)
    assert code == 0
    assert "search" in out
    for command in ("search", "pick", "show", "sweep", "devices", "examples"):
        assert run(capsys, command, "--help")[0] == 0
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("tensoropt ")


# ---------------------------------------------------------------------------- bad input

A100 = ("--cluster", "8xA100-SXM-80GB")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["search"], "arguments are required: --cluster"),
        (["serach"], "invalid choice: 'serach'"),
        (["search", *A100], "give either MODEL or --example NAME, found neither"),
        (["search", "x", "--example", "gpt2", *A100], "found both"),
        (["search", "missing.json", *A100], "no such file or directory: 'missing.json'"),
        (["search", "--example", "gpt-2.8b", *A100], "gpt-2.7b"),
        (["search", "--example", "gpt2", "--dim", "a=1", *A100], "--dim is for ONNX files"),
        (["search", "--example", "gpt2", "--loss", "l", *A100], "--loss is for ONNX files"),
        (["search", "--example", "gpt2", "--cluster", "8xA1000"], "unknown device"),
        (["search", "--example", "gpt2", "--cluster", "missing.toml"], "missing.toml"),
        (["search", "--example", "gpt2", "--batch", "0", *A100], "argument --batch: '0' is not"),
        (["search", "--example", "gpt2", "--memory", "40", *A100], "no unit"),
        (["search", "--example", "gpt2", "--micro-batches", "x", *A100], "'sweep', an integer"),
        (["search", "--example", "gpt2", "--epsilon", "-1", *A100], "argument --epsilon"),
        (["search", "--example", "gpt2", "--epsilon", "nan", *A100], "argument --epsilon"),
        (["search", "--example", "gpt2", "--recompute", "all", *A100], "invalid choice: 'all'"),
        (["search", "--example", "gpt2", "--output", "no/f.json", *A100], "directory: 'no'"),
        (["search", "--example", "gpt2", "--output", "/", *A100], "is a directory"),
        (["search", "m.onnx", "--dim", "x", *A100], "'x' is not NAME=SIZE"),
        (["search", "m.onnx", "--dim", "x=0", *A100], "'x=0' is not NAME=SIZE"),
        (["sweep", "--example", "gpt2", "--device", "L4"], "required: --counts"),
        (["sweep", "--example", "gpt2", "--device", "L4", "--counts", "1,x"], "a list of counts"),
        (["sweep", "--example", "gpt2", "--device", "L4", "--counts", "0"], "a list of counts"),
        (["pick", "missing.json"], "no such file or directory: 'missing.json'"),
        (["pick", "x", "--memory", "1GB", "--time", "1s"], "not allowed with argument"),
        (["pick", "x", "--time", "fast"], "not a time"),
        (["pick", "x", "--time", "-250ms"], "'-250ms' is not a time"),
        (["pick", "x", "--memory", "-5GB"], "'-5GB' is not an amount of memory"),
        (["search", "--example", "gpt2", "--batch", "-8", *A100], "'-8' is not an integer from 1"),
        (["search", "--example", "gpt2", "--batch", "1" + 20 * "0", *A100], "to 2147483647"),
        (["search", "--example", "gpt2", "--threads", "100000", *A100], "from 1 to 1024"),
        (["search", "--example", "gpt2", "--cluster", "-2xL4"], "-2xL4"),
        (["search", "--example", "gpt2", "--output", "", *A100], "--output is empty"),
        (["search", "--example", "gpt2", "--output", "f.png", *A100], "overwrite 'f.png'"),
        (["search", "--example", "gpt2", "--plot", "f.bmp", *A100], ".png, .svg or .pdf"),
        (["search", "--example", "gpt2", "--plot", "no/f.png", *A100], "directory: 'no'"),
        (["sweep", "x", "--device", "L4", "--counts", "1", "--plot", "f.bmp"], "cannot draw"),
        (["sweep", "x", "--device", "8xL4", "--counts", "1"], "--device L4 --counts 8"),
        (["sweep", "x", "--device", "L5", "--counts", "1"], "unknown device 'L5'"),
        (["show", "x", "--point", "first"], "'first' is not an integer"),
        (["show", "x", "--point", "1", "--scheme", "s"], "not allowed with argument"),
        (["show", "missing.json"], "no such file or directory: 'missing.json'"),
    ],
)
def test_wrong_usage_is_one_line(
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert part in complaint(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("m.json", b"", "is empty"),
        ("m.json", b"[]", "not JSON with an object"),
        ("m.json", b'{"a": 1', "not valid JSON"),
        ("m.json", b'{"a": 1}', "no field 'model_type'"),
        ("m.json", b'{"format": "tensoropt-frontier"}', "is a saved frontier, not a model"),
        ("m.py", b"import torch", "Python source"),
        ("m.bin", b"MZ....", "of no known kind"),
    ],
)
def test_models_of_no_kind(tmp_path: Path, name: str, content: bytes, part: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ImportModelError, match=part):
        model_kind(path)


def test_kinds_are_told_by_content(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b'  {"model_type": "llama"}')
    assert model_kind(path) == "huggingface"
    path.write_bytes(b"\x08\x08\x12\x07pytorch")
    assert model_kind(path) == "onnx"
    with pytest.raises(ImportModelError, match=r"without config\.json"):
        model_kind(tmp_path)


def test_a_config_needs_a_batch(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    text = complaint(capsys, "search", str(tmp_path), *A100, "--no-plot")
    assert "give --batch N" in text


def test_damaged_frontiers(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("{}", encoding="utf-8")
    assert "expected a 'tensoropt-frontier' file" in complaint(capsys, "pick", str(path))
    assert "expected a 'tensoropt-frontier' file" in complaint(capsys, "show", str(path))
    strategy().save(path)
    assert "a 'tensoropt-strategy' file" in complaint(capsys, "pick", str(path))
    assert "is a directory" in complaint(capsys, "show", str(tmp_path))
    path.write_text('{"format": "tensoropt-frontier", "version": 1, "mod', encoding="utf-8")
    assert "damaged or truncated" in complaint(capsys, "show", str(path))
    path.write_text('{"format": "tensoropt-frontier", "version": 0}', encoding="utf-8")
    assert "expected an integer from 1 to" in complaint(capsys, "show", str(path))
    path.write_text('{"format": "tensoropt-frontier", "version": 99}', encoding="utf-8")
    assert "use a newer release" in complaint(capsys, "show", str(path))


def test_debug_shows_where_it_went_wrong(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        main(["pick", str(tmp_path / "missing.json"), "--debug"])


def test_a_bug_of_ours_is_one_line(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, saved: str
) -> None:
    def broken(path: Any) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(Frontier, "load", broken)
    text = complaint(capsys, "pick", saved, code=70)
    assert "internal error, ZeroDivisionError: division by zero; add --debug" in text
    with pytest.raises(ZeroDivisionError):
        main(["pick", saved, "--debug"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk(capsys: Capture, saved: str) -> None:
    text = complaint(capsys, "pick", saved, "--output", "/dev/full")
    assert "cannot use '/dev/full': no space left on device" in text


def test_a_folder_that_cannot_be_written(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, saved: str
) -> None:
    """Said before the work, not after it."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    text = complaint(capsys, "search", "--example", "gpt2", *A100, "--output", f"{saved}.gz")
    assert "permission denied, choose another place" in text


def test_interruption(capsys: Capture, monkeypatch: pytest.MonkeyPatch, saved: str) -> None:
    def interrupted(path: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Frontier, "load", interrupted)
    assert complaint(capsys, "pick", saved, code=130) == "tensoropt: error: interrupted\n"


def test_a_reader_that_leaves_early_is_no_error(saved: str) -> None:
    """As in ``tensoropt show frontier.json | head -0``."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "tensoropt", "show", saved],
            stdout=output,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_nobody_listening_at_all_is_no_error(saved: str) -> None:
    """As in ``tensoropt show frontier.json >&-``."""
    command = f"{sys.executable} -m tensoropt show {saved} >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
