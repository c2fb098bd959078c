"""Compare the documentation in `_native.pyi` with that of the module that was built.

It is written in the Rust sources, so that `help()` shows it; the stub repeats it for editors.
`--write` copies it from the built module into the stub. That names and signatures agree is checked
by mypy's stubtest.

Usage: python tools/stub_docs.py [--write]
"""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from tensoropt import _native

STUB = Path(_native.__file__).with_name("_native.pyi")


def documented(tree: ast.Module) -> Iterator[tuple[str, ast.Expr, str]]:
    """Yield name, docstring in the stub, and documentation in the built module."""
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else []
        for part in [node, *members]:
            if not isinstance(part, ast.FunctionDef | ast.ClassDef) or part.name.endswith("__"):
                continue
            built = getattr(_native, node.name)
            built = built if part is node else getattr(built, part.name)
            name = part.name if part is node else f"{node.name}.{part.name}"
            first = part.body[0]
            if not isinstance(first, ast.Expr) or ast.get_docstring(part) is None:
                sys.exit(f"{name}: give it any docstring in the stub first")
            yield name, first, inspect.getdoc(built) or ""


def with_documentation(source: str) -> str:
    """Return the stub with the documentation of the built module."""
    lines = source.splitlines()
    found = list(documented(ast.parse(source)))
    # From the end, so that line numbers before stay right.
    for _, old, documentation in sorted(found, key=lambda item: -item[1].lineno):
        text = ('"""' + documentation).splitlines()
        if len(text) == 1:
            text[0] += '"""'
        else:
            text.append('"""')
        indent = " " * old.col_offset
        lines[old.lineno - 1 : old.end_lineno] = [(indent + line).rstrip() for line in text]
    return "\n".join(lines) + "\n"


def main() -> None:
    source = STUB.read_text(encoding="utf-8")
    expected = with_documentation(source)
    if source == expected:
        print(f"{STUB.name} has the documentation of the built module")
        return
    changes = difflib.unified_diff(
        source.splitlines(True), expected.splitlines(True), STUB.name, "built module"
    )
    sys.stdout.writelines(changes)
    if "--write" in sys.argv[1:]:
        STUB.write_text(expected, encoding="utf-8")
    else:
        sys.exit("the documentation differs: run `python tools/stub_docs.py --write`")


if __name__ == "__main__":
    main()
