"""Runs checks in child processes: an operator fed inconsistent shapes may bring its process down.

Nothing here imports torch in the parent. Children are forked from a server that has.
"""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

TIMEOUT_S = 240.0


@dataclass
class Report:
    """What a child found for one family."""

    cases: int = 0
    tried: int = 0
    sharded: int = 0
    failures: list[str] = field(default_factory=list)


def in_child(family: str, tasks: tuple[str, ...] = ("hold", "refuse", "keep")) -> dict[str, Report]:
    """Run tasks of :data:`TASKS` for a family in one child process.

    Raises
    ------
    RuntimeError
        If the child died or did not answer in time.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, family, tasks))
    child.start()
    sender.close()
    try:
        if not receiver.poll(TIMEOUT_S):
            raise RuntimeError(
                f"the child for family '{family}' did not answer in {TIMEOUT_S:.0f} s"
            )
        reports: dict[str, Report] = receiver.recv()
        return reports
    except EOFError:
        child.join()
        raise RuntimeError(
            f"the child for family '{family}' died with exit code {child.exitcode}"
        ) from None
    finally:
        child.kill()
        child.join()
        receiver.close()


def _answer(sender: Connection, family: str, tasks: tuple[str, ...]) -> None:
    import torch

    # The children share few cores with whatever else runs.
    torch.set_num_threads(1)
    sender.send({task: TASKS[task](family) for task in tasks})
    sender.close()


def _hold(family: str) -> Report:
    from .cases import CASES
    from .harness import check

    report = Report()
    for case in (c for c in CASES if c.family == family):
        outcome = check(case)
        report.cases += 1
        report.tried += outcome.tried
        report.sharded += outcome.sharded
        report.failures += outcome.failures
    return report


def _refuse(family: str) -> Report:
    from .cases import CASES
    from .mutations import survivors

    report = Report()
    for case in (c for c in CASES if c.family == family):
        tried, survived = survivors(case)
        report.cases += 1
        report.tried += tried
        report.failures += survived
    return report


def _keep(family: str) -> Report:
    from .cases import CASES
    from .saved import KEPT_OTHERWISE, observed_bytes, predicted_bytes

    report = Report()
    for case in (c for c in CASES if c.family == family and c.name not in KEPT_OTHERWISE):
        report.cases += 1
        observed, predicted = observed_bytes(case), predicted_bytes(case)
        if observed != predicted:
            report.failures.append(
                f"{case.name}: torch keeps {observed} bytes, the rule says {predicted}"
            )
    return report


def _abort(family: str) -> Report:
    os.abort()


TASKS = {"hold": _hold, "refuse": _refuse, "keep": _keep, "abort": _abort}
