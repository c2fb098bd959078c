"""How far a long step is, on a terminal only."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

__all__ = ["Progress"]

WIDTH = 28
INTERVAL_S = 0.1


class Progress:
    """One line on standard error that is rewritten in place; nothing unless that is a terminal.

    Called as ``progress(phase, fraction)``. With rich installed its bar is used.
    """

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._last = 0.0
        self._phase = ""
        self._fraction = 0.0
        self._bar = _rich_bar() if self._shown else None

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, phase: str, fraction: float) -> None:
        """Show a phase and the fraction of it that is done."""
        if not self._shown:
            return
        now = time.monotonic()
        # Estimates of what is left may grow; a bar that runs backwards only worries people.
        fraction = min(max(fraction, self._fraction if phase == self._phase else 0.0), 1.0)
        if phase == self._phase and fraction < 1 and now - self._last < INTERVAL_S:
            return
        self._last, self._phase, self._fraction = now, phase, fraction
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=phase, completed=fraction)
            return
        filled = round(WIDTH * fraction)
        line = f"{phase:<30} [{'#' * filled}{'.' * (WIDTH - filled)}] {100 * fraction:3.0f} %"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _rich_bar() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
    bar = RichProgress(
        TextColumn("{task.description:<30}"),
        BarColumn(WIDTH),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("", total=1.0)
    return bar
