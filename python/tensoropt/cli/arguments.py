"""What the commands accept."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from tensoropt.checks import MOST_THREADS

__all__ = ["build_parser"]

Value = TypeVar("Value")

LARGEST = 2**31 - 1
"""Sizes and counts beyond this are slips of the pen, and overflow where sizes are multiplied."""


class Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Values such as -5GB are refused for what they are, not taken for unknown options.
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with code 2."""
        print(f"tensoropt: error: {message} (see '{self.prog} --help')", file=sys.stderr)
        raise SystemExit(2)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from tensoropt import __version__

        print(f"tensoropt {__version__}")
        parser.exit()


def build_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="tensoropt",
        description="Find the exact Pareto frontier, time against memory, of strategies for "
        "training a neural network on many devices.",
        epilog="exit codes: 0 done, 1 nothing satisfies the limits, 2 wrong usage or input, "
        "70 internal error, 130 interrupted",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and leave")
    parser.set_defaults(command=None, debug=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    _search(commands)
    _pick(commands)
    _show(commands)
    _sweep(commands)
    _devices(commands)
    _command(commands, "examples", "List the built-in models")
    return parser


def _command(commands: argparse._SubParsersAction[Parser], name: str, about: str) -> Parser:
    parser = commands.add_parser(name, help=about[0].lower() + about[1:], description=f"{about}.")
    parser.set_defaults(command=name)
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    return parser


def _search(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(commands, "search", "Search the frontier of a model on a cluster")
    _model(parser)
    parser.add_argument(
        "--cluster",
        required=True,
        metavar="SPEC",
        help="e.g. 8xA100-SXM-80GB, 2x8xH100-SXM-80GB (two nodes of eight), or a .json or .toml "
        "file that describes one; 'tensoropt devices' lists the names",
    )
    _space(parser)
    parser.add_argument(
        "--output",
        metavar="PATH",
        default="frontier.json",
        help="where the frontier is saved (default: frontier.json; .gz compresses)",
    )
    plot = parser.add_mutually_exclusive_group()
    plot.add_argument(
        "--plot",
        metavar="PATH",
        help="where it is drawn: .png, .svg or .pdf (default: beside the output, .png)",
    )
    plot.add_argument("--no-plot", action="store_true", help="draw nothing")
    _rows(parser)


def _pick(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(commands, "pick", "Pick a strategy from a saved frontier")
    parser.add_argument("frontier", metavar="FRONTIER", help="file written by search")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--memory",
        type=_memory,
        metavar="SIZE",
        help="the fastest within this device total, e.g. 40GB or 40GiB "
        "(default: the memory of the device)",
    )
    limit.add_argument(
        "--time",
        type=_time,
        metavar="TIME",
        help="the leanest within this time of one iteration, e.g. 250ms",
    )
    parser.add_argument("--output", metavar="PATH", help="save the strategy as JSON")


def _show(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(commands, "show", "Show a saved frontier, or explain one strategy of it")
    parser.add_argument("frontier", metavar="FILE", help="saved frontier or saved strategy")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--point",
        type=_integer,
        metavar="N",
        help="explain point N (0 is the fastest, -1 the leanest)",
    )
    which.add_argument("--scheme", metavar="NAME", help="explain a named scheme")
    parser.add_argument(
        "--against",
        type=_integer,
        metavar="N",
        help="say how that strategy differs from point N",
    )
    parser.add_argument("--plot", metavar="PATH", help="draw the frontier: .png, .svg or .pdf")
    parser.add_argument("--output", metavar="PATH", help="save the strategy as JSON")
    _rows(parser)


def _sweep(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(commands, "sweep", "Compare numbers of devices for a model")
    _model(parser)
    parser.add_argument("--device", required=True, metavar="NAME", help="e.g. A100-SXM-80GB")
    parser.add_argument(
        "--counts",
        required=True,
        type=_counts,
        metavar="N,N,...",
        help="numbers of devices, e.g. 1,2,4,8,16 (above 8: nodes of 8)",
    )
    parser.add_argument(
        "--fewest",
        action="store_true",
        help="stop at the smallest number of devices on which something fits",
    )
    _space(parser)
    parser.add_argument("--output", metavar="PATH", help="save that strategy (with --fewest)")
    parser.add_argument("--plot", metavar="PATH", help="draw it: .png, .svg or .pdf")


def _devices(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = _command(commands, "devices", "List the devices whose figures ship with tensoropt")
    parser.add_argument("name", nargs="?", metavar="NAME", help="show all figures of one device")


def _model(parser: Parser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a Hugging Face config (.json, or a folder with config.json) or an ONNX file",
    )
    group.add_argument(
        "--example",
        metavar="NAME",
        help="a built-in model, e.g. gpt-2.7b ('tensoropt examples' lists them)",
    )
    group.add_argument("--batch", type=_positive, metavar="N", help="samples of one iteration")
    group.add_argument("--seq", type=_positive, metavar="N", help="tokens of one sample")
    group.add_argument(
        "--dim",
        type=_dim,
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="size of a symbolic dim of an ONNX file; may be repeated",
    )
    group.add_argument("--loss", metavar="NAME", help="output of an ONNX file that is the loss")


def _space(parser: Parser) -> None:
    group = parser.add_argument_group("what is searched")
    group.add_argument(
        "--memory",
        type=_memory,
        metavar="SIZE",
        help="limit of the device total, e.g. 40GB or 40GiB",
    )
    group.add_argument("--precision", default="bf16", metavar="NAME", help="default: bf16")
    group.add_argument("--optimizer", default="adamw", metavar="NAME", help="default: adamw")
    group.add_argument(
        "--micro-batches",
        type=_micro_batches,
        default="sweep",
        metavar="sweep|N[,N...]",
        help="pieces into which a batch is cut (default: sweep the divisors)",
    )
    group.add_argument(
        "--recompute",
        choices=("none", "full", "sweep"),
        default="sweep",
        help="recompute blocks in the backward pass (default: sweep, block by block)",
    )
    group.add_argument(
        "--epsilon",
        type=_epsilon,
        metavar="E",
        help="accept a proven factor of 1+E; 0 is exact (default: exact while cheap, else 0.001)",
    )
    group.add_argument(
        "--max-axes", type=_positive, metavar="N", help="most axes of a mesh (default: 3)"
    )
    group.add_argument(
        "--threads", type=_threads, metavar="N", help="default: all cores; results are the same"
    )


def _rows(parser: Parser) -> None:
    parser.add_argument(
        "--points",
        type=_rows_count,
        default=None,
        metavar="N",
        help="most points printed; 0 prints all (default: 20, with --json all)",
    )


def _read(
    text: str, read: Callable[[str], Value], accept: Callable[[Value], bool], expected: str
) -> Value:
    """Read a value; what cannot be read or is not accepted is not ``expected``."""
    try:
        value = read(text)
    except ValueError:
        pass
    else:
        if accept(value):
            return value
    raise argparse.ArgumentTypeError(f"'{text}' is not {expected}")


def _integer(text: str) -> int:
    return _read(text, int, lambda n: True, "an integer")


def _positive(text: str) -> int:
    return _read(text, int, lambda n: 1 <= n <= LARGEST, f"an integer from 1 to {LARGEST}")


def _threads(text: str) -> int:
    expected = f"an integer from 1 to {MOST_THREADS}"
    return _read(text, int, lambda n: 1 <= n <= MOST_THREADS, expected)


def _rows_count(text: str) -> int:
    return _read(text, int, lambda n: n >= 0, "an integer of at least 0")


def _epsilon(text: str) -> float:
    return _read(text, float, lambda e: 0 <= e < math.inf, "a number of at least 0")


def _micro_batches(text: str) -> list[int] | str:
    if text == "sweep":
        return text
    expected = "'sweep', an integer of at least 1, or several, e.g. 1,8"
    return _read(text, _integers, lambda counts: counts[0] >= 1, expected)


def _counts(text: str) -> list[int]:
    return _read(text, _integers, lambda counts: counts[0] >= 1, "a list of counts, e.g. 1,2,4,8")


def _integers(text: str) -> list[int]:
    return sorted({int(part) for part in text.split(",")})


def _dim(text: str) -> tuple[str, int]:
    def read(text: str) -> tuple[str, int]:
        name, _, size = text.rpartition("=")
        return name, int(size)

    return _read(
        text,
        read,
        lambda d: d[0] != "" and 1 <= d[1] <= LARGEST,
        "NAME=SIZE, e.g. sequence=512",
    )


def _memory(text: str) -> float:
    from tensoropt.reporting.units import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _time(text: str) -> float:
    from tensoropt.reporting.units import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
