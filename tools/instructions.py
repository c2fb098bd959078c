"""Counts the instructions of sequential paths and compares them with a committed baseline.

`make instructions` compares; `python tools/instructions.py --write` takes the counts as the new
baseline, which is to be committed together with the change that explains it. Counts belong to a
compiler: with another one than the baseline's they are printed and not compared.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "benches" / "instructions.json"
TOLERANCE = 0.03


def compiler() -> str:
    """Whatever decides which instructions are made."""
    version = subprocess.run(
        ["rustc", "--version", "--verbose"], capture_output=True, text=True, check=True
    ).stdout
    fields = dict(line.split(": ", 1) for line in version.splitlines() if ": " in line)
    return f"rustc {fields['release']} {fields['host']} {platform.libc_ver()[0]}"


def build() -> Path:
    """Builds the program and says where it is."""
    command = [
        "cargo",
        "build",
        "--release",
        "--locked",
        "--quiet",
        "-p",
        "bench-programs",
        "--bin",
        "instructions",
    ]
    subprocess.run([*command, "--bin", "instructions"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return ROOT / target / "release" / "instructions"


def count(program: Path, name: str, profile: Path | None) -> int:
    """The instructions of one piece of work."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out" if profile is None else profile / f"callgrind.{name}"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
        done = subprocess.run(
            [*command, str(program), name], capture_output=True, text=True, check=False
        )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        sys.exit(f"instructions: {name} failed under valgrind\n{done.stderr}")
    return int(found[1])


def report(counts: dict[str, int], baseline: dict[str, int]) -> list[str]:
    """Prints all counts beside those of the baseline; returns what has grown too much."""
    grown = []
    for name, now in counts.items():
        before = baseline.get(name)
        change = f"{now / before - 1:+8.2%}" if before else "     new"
        print(f"  {name:16} {now / 1e6:10.2f} M {change}")
        if before and now > before * (1 + TOLERANCE):
            grown.append(name)
    return grown


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="count only these")
    parser.add_argument("--write", action="store_true", help="take the counts as the new baseline")
    parser.add_argument("--profile", type=Path, metavar="DIR", help="keep callgrind's files there")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("instructions: not counted, for valgrind is not there (apt-get install valgrind)")
        return
    program = build()
    listed = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    names = arguments.names or listed.stdout.split()
    counts = {name: count(program, name, arguments.profile) for name in names}
    stored = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    baseline = stored.get("counts", {})
    print(f"instructions, {compiler()}:")
    grown = report(counts, baseline)
    if arguments.write:
        kept = {name: baseline[name] for name in listed.stdout.split() if name in baseline}
        new = {"compiler": compiler(), "counts": kept | counts}
        BASELINE.write_text(json.dumps(new, indent=2) + "\n")
        print(f"written to {BASELINE.relative_to(ROOT)}")
    elif stored.get("compiler") != compiler():
        print(f"not compared: the baseline is of {stored.get('compiler', 'nothing yet')}")
    elif grown:
        sys.exit(
            f"instructions: {', '.join(grown)} grew by more than {TOLERANCE:.0%}. If that is worth "
            "it, run python tools/instructions.py --write and commit the baseline with the reason."
        )


if __name__ == "__main__":
    main()
