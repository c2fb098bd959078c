"""What pyproject.toml promises."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {
    name: [Requirement(line) for line in lines]
    for name, lines in PROJECT["optional-dependencies"].items()
}


def test_numpy_is_the_only_requirement() -> None:
    assert [Requirement(line).name for line in PROJECT["dependencies"]] == ["numpy"]


def test_all_is_every_extra_of_users() -> None:
    users = [line for name, lines in EXTRAS.items() if name not in {"all", "dev"} for line in lines]
    assert sorted(map(str, EXTRAS["all"])) == sorted(map(str, users))


def test_the_pinned_torch_is_in_the_range() -> None:
    lines = (ROOT / "tools" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    [pin] = [requirement for requirement in pins if requirement.name == "torch"]
    [allowed] = [requirement for requirement in EXTRAS["torch"] if requirement.name == "torch"]
    [version] = [clause.version for clause in pin.specifier]
    assert version in allowed.specifier


def test_requirements_are_printed_once_each() -> None:
    tool = ROOT / "tools" / "requirements.py"
    output = subprocess.run(
        [sys.executable, str(tool), "plot", "all"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert len(output) == len(set(output))
    assert {Requirement(line).name for line in output} >= {"numpy", "matplotlib", "torch"}
    wrong = subprocess.run(
        [sys.executable, str(tool), "plots"], check=False, capture_output=True, text=True
    )
    assert wrong.returncode == 1
    assert wrong.stderr.startswith(
        "unknown extra 'plots': expected one of all, dev, onnx, pandas, plot"
    )
