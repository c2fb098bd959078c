"""Print the requirements of the package and of the named extras, one a line.

Usage: python tools/requirements.py [EXTRA ...] | pip install -r /dev/stdin
"""

import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> None:
    root = Path(__file__).resolve().parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = list(project["dependencies"])
    for extra in extras:
        try:
            requirements += project["optional-dependencies"][extra]
        except KeyError:
            known = ", ".join(sorted(project["optional-dependencies"]))
            sys.exit(f"unknown extra {extra!r}: expected one of {known}")
    print("\n".join(dict.fromkeys(requirements)))


if __name__ == "__main__":
    main(sys.argv[1:])
