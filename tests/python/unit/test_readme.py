"""The README says what is so."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from tensoropt.cli.arguments import build_parser

ROOT = Path(__file__).resolve().parents[3]


README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^tensoropt (.*)$", README, re.MULTILINE)


def test_examples_run() -> None:
    report: list[str] = []
    text = README.replace("```", "")
    example = doctest.DocTestParser().get_doctest(text, {}, "README.md", None, None)
    outcome = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert outcome.attempted >= 7
    assert outcome.failed == 0, "".join(report)


def test_the_search_of_a_module_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [program] = re.findall(r"```python\n(import torch\n.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "README.md", "exec"), {})
    assert "cross_entropy" in program
    assert "time" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"frontier.json", "frontier.png"}


def test_links_lead_somewhere() -> None:
    for document in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert target.startswith("https://") or (ROOT / target).exists(), (document, target)


def test_there_are_commands() -> None:
    assert {command.split()[0] for command in COMMANDS} == {"search", "pick", "show", "sweep"}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_accepted(command: str) -> None:
    arguments = shlex.split(command, comments=True)
    assert build_parser().parse_args(arguments).command == arguments[0]
