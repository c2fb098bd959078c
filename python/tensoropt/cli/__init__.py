"""The command line: ``tensoropt search``, ``pick``, ``show``, ``sweep`` and ``devices``.

Exit codes: 0 done; 1 nothing satisfies the limits given; 2 wrong usage or input; 70 a bug of ours;
130 interrupted.
Results go to standard output; errors, one line each, and progress go to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from tensoropt.errors import InfeasibleError, LimitError, TensorOptError

from .arguments import build_parser

__all__ = ["main"]

DONE, INFEASIBLE, BAD_INPUT, INTERNAL, INTERRUPTED = 0, 1, 2, 70, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; default: those of the process.

    Returns
    -------
    int
        Exit code.
    """
    parser = build_parser()
    try:
        options = parser.parse_args(argv)
    except SystemExit as stop:  # --help, --version, or a usage error that argparse has reported
        return stop.code if isinstance(stop.code, int) else BAD_INPUT
    if options.command is None:
        parser.print_help()
        return DONE
    if sys.stdout is None:  # closed before we began: nobody wants to read
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        code = _run(options.command, options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read our output has enough. What is still buffered must not fail again on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except (InfeasibleError, LimitError) as error:
        if options.debug:
            raise
        return _complain(str(error), INFEASIBLE)
    except (TensorOptError, OSError) as error:
        if options.debug:
            raise
        return _complain(_text(error), BAD_INPUT)
    except Exception as error:  # whatever it is, one line says more to a user than fifty
        if options.debug:
            raise
        return _complain(
            f"internal error, {type(error).__name__}: {error}; add --debug to see where, and "
            "please report it",
            INTERNAL,
        )


def _run(command: str, options: object) -> int:
    from . import commands

    return int(getattr(commands, command)(options))


def _text(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"no such file or directory: '{os.fspath(error.filename)}'"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"cannot use '{os.fspath(error.filename)}': {error.strerror.lower()}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)


def _complain(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"tensoropt: error: {line}", file=sys.stderr)
    return code
