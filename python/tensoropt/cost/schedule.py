"""Iteration time of a program, simulated: one compute stream, one stream for each class of link.

The search adds up each operator's compute and what its own communication exposes. Here the same
kernels and collectives run against each other: every stream works through its tasks in the order
in which they are issued, a task starts when the tasks whose results it reads are done, and a kernel
and a collective that run at the same time slow each other down, so that a pair takes
``max + kappa * min`` (see ``overlap``): both run at a rate of ``1 / (1 + kappa)``.

:func:`simulate` knows nothing of training: tasks, streams and dependencies of any kind will do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensoropt.cost.model import CostModel
from tensoropt.cost.program import Event, Program
from tensoropt.errors import CostError

__all__ = ["Task", "iteration_tasks", "iteration_time", "simulate"]

STEADY = 3
"""Micro-batches that are simulated; further ones take as long as the last of these."""


@dataclass(frozen=True, slots=True)
class Task:
    """Work on one stream.

    Parameters
    ----------
    stream : int
    seconds : float
        Alone.
    needs : tuple of int
        Positions of tasks that must be done before, all earlier in the list.
    """

    stream: int
    seconds: float
    needs: tuple[int, ...] = ()


def simulate(
    tasks: Sequence[Task], interference: Mapping[tuple[int, int], float] | None = None
) -> list[float]:
    """Run tasks, each stream in the order of the list.

    Parameters
    ----------
    tasks : sequence of Task
    interference : mapping of (stream, stream) to float, optional
        Kappa of two streams that slow each other down, either way round; others do not.

    Returns
    -------
    list of float
        When each task is done, in seconds.

    Raises
    ------
    CostError
        If a task needs one that comes later in the list.

    Examples
    --------
    A kernel of 3 s and a collective of 2 s that slow each other down, then a kernel that needs
    both:

    >>> tasks = [Task(0, 3.0), Task(1, 2.0), Task(0, 1.0, (0, 1))]
    >>> simulate(tasks, {(0, 1): 0.5})
    [4.0, 3.0, 5.0]
    """
    kappa: dict[tuple[int, int], float] = {}
    for (a, b), value in (interference or {}).items():
        kappa[a, b] = kappa[b, a] = value
    queues: dict[int, list[int]] = {}
    for number, task in enumerate(tasks):
        if any(need >= number for need in task.needs):
            raise CostError(f"task {number} needs a later one: list tasks in the order of issue")
        queues.setdefault(task.stream, []).append(number)
    heads = dict.fromkeys(queues, 0)
    done = [-1.0] * len(tasks)
    running: dict[int, tuple[int, float]] = {}
    now = 0.0
    left = len(tasks)
    while left:
        started = True
        while started:
            started = False
            for stream, queue in queues.items():
                if stream in running or heads[stream] == len(queue):
                    continue
                number = queue[heads[stream]]
                if any(done[need] < 0 for need in tasks[number].needs):
                    continue
                heads[stream] += 1
                started = True
                if tasks[number].seconds > 0:
                    running[stream] = (number, tasks[number].seconds)
                else:
                    done[number] = now
                    left -= 1
        if not running:
            continue
        rates = {
            stream: 1.0 / (1.0 + sum(kappa.get((stream, other), 0.0) for other in running))
            for stream in running
        }
        step = min(work / rates[stream] for stream, (_, work) in running.items())
        now += step
        for stream, (number, work) in list(running.items()):
            remaining = work - step * rates[stream]
            if remaining <= 1e-12 * tasks[number].seconds:
                done[number] = now
                left -= 1
                del running[stream]
            else:
                running[stream] = (number, remaining)
    return done


def iteration_tasks(program: Program, model: CostModel, micro_batches: int) -> list[Task]:
    """Tasks of an iteration with so many micro-batches.

    Stream 0 computes, stream ``1 + level`` moves data over the links of that level.
    """
    tasks: list[Task] = []
    levels = [axis.level for axis in model.mesh.axes]
    place: dict[int, int] = {}

    def add(number: int, event: Event) -> None:
        stream = 0 if event.axis < 0 else 1 + levels[event.axis]
        needs = tuple(place[n] for n in event.needs if n in place)
        place[number] = len(tasks)
        tasks.append(Task(stream, event.seconds, needs))

    for micro_batch in range(micro_batches):
        first, last = micro_batch == 0, micro_batch == micro_batches - 1
        for number, event in enumerate(program.events):
            once = {"every": True, "first": first, "last": last, "after": last}
            if once[event.when]:
                add(number, event)
    return tasks


def iteration_time(program: Program, model: CostModel) -> float:
    """Simulated seconds of one iteration.

    Parameters
    ----------
    program : Program
    model : CostModel
        Of the same mesh.
    """
    kappa = {
        (0, 1 + axis.level): model.communication.kappa(axis)
        for axis in model.mesh.axes
        if axis.size > 1
    }
    count = min(program.micro_batches, STEADY)
    time = max(simulate(iteration_tasks(program, model, count), kappa), default=0.0)
    if program.micro_batches > count:
        before = max(simulate(iteration_tasks(program, model, count - 1), kappa))
        time += (program.micro_batches - count) * (time - before)
    return time
