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

from tensoropt.cost.events import Program
from tensoropt.cost.model import CostModel
from tensoropt.errors import CostError

__all__ = [
    "STEADY",
    "Run",
    "Simulation",
    "Task",
    "interference",
    "iteration_tasks",
    "iteration_time",
    "joined_runs",
    "simulate",
]

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
    for number, task in enumerate(tasks):
        if any(need >= number for need in task.needs):
            raise CostError(f"task {number} needs a later one: list tasks in the order of issue")
    return Simulation(tasks, kappa).done


class Simulation:
    """One simulation: from event to event, each the end of a task.

    Parameters
    ----------
    tasks : sequence of Task
        As in :func:`simulate`, which checks them.
    kappa : mapping of (stream, stream) to float
        Both ways round.
    until : int, optional
        Stop when this task is done.

    Attributes
    ----------
    done : list of float
        When each task is done; -1 if it is not.
    now : float
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        kappa: Mapping[tuple[int, int], float],
        until: int | None = None,
    ) -> None:
        self.tasks = tasks
        self.kappa = kappa
        self.done = [-1.0] * len(tasks)
        self.now = 0.0
        self.queues: dict[int, list[int]] = {}
        self.waits = [0] * len(tasks)
        self.unblocks: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            self.queues.setdefault(task.stream, []).append(number)
            needs = set(task.needs)
            self.waits[number] = len(needs)
            for need in needs:
                self.unblocks[need].append(number)
        for queue in self.queues.values():
            queue.reverse()
        self.running: dict[int, list[float]] = {}
        self._rates: dict[tuple[int, ...], list[float]] = {}
        self._start(list(self.queues))
        while self.running and (until is None or self.done[until] < 0.0):
            self._advance()

    def left(self, number: int) -> float:
        """Seconds of a task that are still to be done."""
        if self.done[number] >= 0.0:
            return 0.0
        task = self.tasks[number]
        running = self.running.get(task.stream)
        return running[1] if running is not None and running[0] == number else task.seconds

    def _start(self, streams: list[int]) -> None:
        """Start whatever is at the head of an idle stream and has all it needs."""
        while streams:
            stream = streams.pop()
            queue = self.queues[stream]
            if not queue or stream in self.running or self.waits[queue[-1]]:
                continue
            number = queue.pop()
            seconds = self.tasks[number].seconds
            if seconds > 0.0:
                self.running[stream] = [number, seconds]
            else:
                streams += self._finish(number)
                streams.append(stream)

    def _finish(self, number: int) -> list[int]:
        """Mark a task as done; returns the streams that may go on because of it."""
        self.done[number] = self.now
        found = []
        for other in self.unblocks[number]:
            self.waits[other] -= 1
            if not self.waits[other]:
                found.append(self.tasks[other].stream)
        return found

    def _advance(self) -> None:
        """Run until the next task is done."""
        if len(self.running) == 1:
            ((stream, (number, seconds)),) = self.running.items()
            self.now += seconds
            del self.running[stream]
            self._start([*self._finish(int(number)), stream])
            return
        streams = tuple(self.running)
        rates = self._rates.get(streams)
        if rates is None:
            rates = self._rates[streams] = [
                1.0 / (1.0 + sum(self.kappa.get((s, other), 0.0) for other in streams))
                for s in streams
            ]
        works = list(self.running.values())
        step = min(work[1] / rate for work, rate in zip(works, rates, strict=True))
        self.now += step
        ended = []
        for stream, work, rate in zip(streams, works, rates, strict=True):
            work[1] -= step * rate
            if work[1] <= 1e-12 * self.tasks[int(work[0])].seconds:
                ended.append((stream, int(work[0])))
                del self.running[stream]
        streams_free = [stream for stream, _ in ended]
        for _, number in ended:
            streams_free += self._finish(number)
        self._start(streams_free)


def iteration_tasks(
    program: Program, model: CostModel, micro_batches: int
) -> tuple[list[Task], list[int]]:
    """Tasks of an iteration with so many micro-batches, and the last kernel of each.

    Stream 0 computes, stream ``1 + level`` moves data over the links of that level. Kernels that
    follow each other without anybody waiting in between are one task. A collective starts with the
    kernel issued before it at the earliest: what is fetched ahead is fetched one operator ahead.
    """
    runs = joined_runs(program)
    levels = [axis.level for axis in model.mesh.axes]
    tasks: list[Task] = []
    ends: list[int] = []
    place: dict[int, int] = {}
    kernels: list[int] = []
    for micro_batch in range(micro_batches):
        first, last = micro_batch == 0, micro_batch == micro_batches - 1
        when = {"every": True, "first": first, "last": last, "after": last}
        for run in runs:
            if when[run.when]:
                place.update(dict.fromkeys(run.events, len(tasks)))
                needs = [place[n] for n in run.needs if n in place]
                if run.axis < 0:
                    stream = 0
                    kernels.append(len(tasks))
                else:
                    stream = 1 + levels[run.axis]
                    needs += kernels[-2:-1]
                tasks.append(Task(stream, run.seconds, tuple(needs)))
        ends.append(kernels[-1])
    return tasks, ends


@dataclass(slots=True)
class Run:
    """Events that are one task.

    Parameters
    ----------
    events : list of int
        Positions in the program.
    needs : tuple of int
        Events.
    axis : int
        -1 for kernels.
    when : str
        As of the events.
    seconds : float
    """

    events: list[int]
    needs: tuple[int, ...]
    axis: int
    when: str
    seconds: float


def joined_runs(program: Program) -> list[Run]:
    """Kernels joined where nobody waits in between, but not across marks; single collectives."""
    events = program.events
    marks = {mark.event for mark in program.marks}
    asked = {n for e in events if e.axis >= 0 for n in e.needs} | _started(program)
    waited: set[int] = set()
    runs: list[Run] = []
    kernels: Run | None = None
    for number, event in enumerate(events):
        if number in marks:
            kernels = None
            waited.clear()
        if event.axis >= 0:
            runs.append(Run([number], event.needs, event.axis, event.when, event.seconds))
            continue
        # A kernel waits for the kernels before it in any case.
        needs = tuple([n for n in event.needs if events[n].axis >= 0 and n not in waited])
        waited.update(needs)
        follows = kernels is not None and not needs and kernels.when == event.when
        if kernels is not None and follows and kernels.events[-1] not in asked:
            kernels.events.append(number)
            kernels.seconds += event.seconds
            continue
        kernels = Run([number], needs, -1, event.when, event.seconds)
        runs.append(kernels)
    return runs


def _started(program: Program) -> set[int]:
    """Kernels that must be through before some collective, which starts with the one after it."""
    found: set[int] = set()
    before = last = -1
    for number, event in enumerate(program.events):
        if event.axis < 0:
            before, last = last, number
        else:
            found.add(before)
    return found


def interference(model: CostModel) -> dict[tuple[int, int], float]:
    """Kappa of the compute stream with the stream of each level, both ways round."""
    kappa: dict[tuple[int, int], float] = {}
    for axis in model.mesh.axes:
        if axis.size > 1:
            value = model.communication.kappa(axis)
            kappa[0, 1 + axis.level] = kappa[1 + axis.level, 0] = value
    return kappa


def iteration_time(program: Program, model: CostModel) -> float:
    """Simulated seconds of one iteration.

    Parameters
    ----------
    program : Program
    model : CostModel
        Of the same mesh.
    """
    kappa = interference(model)
    count = min(program.micro_batches, STEADY)
    tasks, ends = iteration_tasks(program, model, count)
    done = simulate(tasks, kappa)
    time = max(done, default=0.0)
    if program.micro_batches > count:
        # What the second micro-batch took, from the end of the first one's kernels to its own.
        first, second = (done[end] for end in ends[:2])
        time += (program.micro_batches - count) * (second - first)
    return time
