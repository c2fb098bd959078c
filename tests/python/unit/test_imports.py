"""Who may import whom inside the package, and what `import tensoropt` may pull in.

The table below is the one of CONTRIBUTING.md. It is held by reading the sources, so a forbidden
import is found even in a branch that no test runs.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "python" / "tensoropt"

EVERYTHING = frozenset({"*"})
MODEL = frozenset({"graph", "cluster", "sharding", "cost"})

# room -> the rooms it may import, besides itself and these.
COMMON = frozenset({"checks", "errors"})
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "checks": frozenset(),
    "graph": frozenset(),
    "examples": frozenset({"graph"}),
    "importing": frozenset({"graph"}),
    "cluster": frozenset(),
    "sharding": frozenset({"graph", "cluster"}),
    "cost": frozenset({"graph", "cluster", "sharding"}),
    "schemes": MODEL,
    "profiling": MODEL,
    "frontier": MODEL | {"strategy", "reporting"},
    "strategy": MODEL | {"frontier", "reporting"},
    "reporting": MODEL | {"frontier", "strategy"},
    "applying": frozenset({"strategy", "sharding", "graph", "cluster"}),
    "search": (MODEL | {"_native", "schemes", "profiling", "examples", "importing"})
    | {"frontier", "strategy", "reporting"},
    "cli": EVERYTHING,
    "__init__": EVERYTHING,
    "__main__": frozenset({"cli"}),
}
# The rooms whose modules may import an optional package while they are being imported themselves.
# Everywhere else it happens inside the functions that need it.
OPTIONAL_AT_TOP = {"applying": {"torch"}, "profiling": {"torch"}}
AT_TOP = sys.stdlib_module_names | {"numpy"}
# `tensoropt --help` must not pay for the solver, so commands import what they need.
LAZY_ROOMS = {"cli", "__main__"}


@dataclass(frozen=True)
class Import:
    """One imported module: its dotted name, and whether it happens when the importer loads."""

    name: str
    line: int
    at_load: bool


def runs_later(node: ast.AST) -> bool:
    """Whether the body of a statement does not run while its module is being imported."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def imports_of(source: str, module: str) -> Iterator[Import]:
    """Yield every import of a module's source; relative names are made absolute."""
    package = module if module.endswith(".__init__") else module.rpartition(".")[0]
    package = package.removesuffix(".__init__")

    def walk(node: ast.AST, at_load: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, at_load)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parents = package.split(".")
                    parents = parents[: len(parents) - child.level + 1]
                    base = ".".join([*parents, base]).rstrip(".")
                if base == "tensoropt":
                    yield from (
                        Import(f"tensoropt.{alias.name}", child.lineno, at_load)
                        for alias in child.names
                    )
                else:
                    yield Import(base, child.lineno, at_load)
            else:
                yield from walk(child, at_load and not runs_later(child))

    yield from walk(ast.parse(source), at_load=True)


def violations(source: str, module: str, rooms: set[str]) -> list[str]:
    """Return one line for each import of the module that the table does not allow."""
    room = module.split(".")[1]
    if room not in MAY_IMPORT:
        return [f"{module}: the room {room!r} is not in the table of imports, add it"]
    allowed = MAY_IMPORT[room] | {room} | COMMON
    found = []
    for item in imports_of(source, module):
        where = f"{module}:{item.line}: imports {item.name}"
        top, _, rest = item.name.partition(".")
        if top == "tensoropt":
            target = rest.split(".")[0]
            if target in rooms and target not in allowed and "*" not in allowed:
                found.append(f"{where}, which the room {room!r} may not use")
            elif item.at_load and room in LAZY_ROOMS and target not in COMMON | {room, "cli"}:
                found.append(f"{where} at module top, it belongs inside a command")
        elif item.at_load and top not in AT_TOP | OPTIONAL_AT_TOP.get(room, set()):
            found.append(f"{where} at module top, an optional package belongs in a function")
    return found


def modules() -> list[tuple[str, Path]]:
    """Every module of the package by dotted name; a package's name ends in ``__init__``."""
    return [
        (".".join(("tensoropt", *path.relative_to(PACKAGE).with_suffix("").parts)), path)
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


ROOMS = {name.split(".")[1] for name, _ in modules()} | {"_native"}


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: str(value))
def test_module_keeps_to_the_table(module: str, path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), module, ROOMS) == []


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("tensoropt.cost.memory", "from tensoropt import search", "may not use"),
        ("tensoropt.cost.memory", "from ..search import solve", "may not use"),
        ("tensoropt.cost.__init__", "from .. import _native", "may not use"),
        ("tensoropt.applying.run", "def f():\n    import tensoropt._native", "may not use"),
        ("tensoropt.sharding.linear", "import torch.nn", "optional package"),
        ("tensoropt.importing.onnx", "import onnx", "optional package"),
        ("tensoropt.cli", "from tensoropt.search import search", "inside a command"),
        ("tensoropt.attic", "", "not in the table"),
    ],
)
def test_the_check_can_fail(module: str, source: str, complaint: str) -> None:
    found = violations(source, module, ROOMS | {"search"})
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tensoropt.importing.onnx", "def f():\n    import onnx"),
        ("tensoropt.applying.run", "import torch"),
        ("tensoropt.sharding.linear", "if TYPE_CHECKING:\n    import torch"),
        ("tensoropt.sharding.linear", "from .layout import Layout\nfrom ..errors import X"),
        ("tensoropt.cli", "def run():\n    from tensoropt.search import search"),
    ],
)
def test_the_check_allows(module: str, source: str) -> None:
    assert violations(source, module, ROOMS | {"search"}) == []


def test_import_needs_numpy_alone() -> None:
    """A fresh interpreter imports the package; the optional packages stay unloaded."""
    optional = ["matplotlib", "onnx", "onnxscript", "pandas", "rich", "scipy", "torch"]
    optional += ["transformers"]
    program = (
        "import json, sys, time; start = time.perf_counter(); import tensoropt; "
        f"print(json.dumps([[m for m in {optional!r} if m in sys.modules], "
        "time.perf_counter() - start]))"
    )
    output = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    loaded, seconds = json.loads(output)
    print(f"import tensoropt: {seconds * 1e3:.0f} ms")
    assert loaded == []
