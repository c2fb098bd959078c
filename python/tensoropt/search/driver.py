"""The search: every mesh and number of micro-batches, their frontiers united."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensoropt.cluster import Cluster, Mesh
from tensoropt.cost.assignment import Assignment
from tensoropt.cost.axis_uses import AxisUses
from tensoropt.cost.calibration import MemoryCalibration
from tensoropt.cost.model import CostModel
from tensoropt.cost.precision import Optimizer, Precision
from tensoropt.cost.tables import Tables
from tensoropt.errors import GraphError, InfeasibleError, ProblemError
from tensoropt.frontier import Frontier, FrontierCosts, GraphSummary, LazyPoints
from tensoropt.graph import Graph
from tensoropt.reporting.units import format_bytes, format_bytes_apart
from tensoropt.schemes import named_schemes
from tensoropt.sharding.decisions import Decisions, decisions
from tensoropt.sharding.dims import DimClasses, dim_classes, micro_batch
from tensoropt.strategy import Strategy

from .answers import Answers, Known, solve_mesh
from .narrowing import add_choices, narrowed, narrowed_remark, too_many
from .remarks import division_remarks, mesh_remark, rule_remarks
from .settings import Settings
from .skyline import skyline, thinned
from .strategies import StrategyBuilder

__all__ = ["search"]

Progress = Callable[[str, float], None]
FloatArray = npt.NDArray[np.floating]


def search(
    graph: Graph,
    cluster: Cluster,
    *,
    optimizer: str | Optimizer = "adamw",
    precision: str | Precision = "bf16",
    micro_batches: int | Sequence[int] | str = "sweep",
    recompute: str = "sweep",
    memory_bytes: float | None = None,
    epsilon: float | None = None,
    meshes: Sequence[Mesh] | None = None,
    max_axes: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Frontier:
    """Find the Pareto frontier of parallelization strategies of a model on a cluster.

    Parameters
    ----------
    graph : Graph
        From ``import_torch``, ``import_onnx``, ``import_huggingface`` or ``examples``.
    cluster : Cluster
    optimizer, precision : str or object
        Named bundles, e.g. ``adamw`` and ``bf16``.
    micro_batches : int, sequence of int or "sweep"
        Into how many pieces the batch is cut; ``sweep`` looks at every divisor of the batch.
    recompute : {"sweep", "none", "full"}
        Whether repeated blocks are recomputed in the backward pass; ``sweep`` decides block by
        block.
    memory_bytes : float, optional
        Cap on the device total. Without it the frontier has no limit (what the card holds is
        marked in reports).
    epsilon : float, optional
        How far from every true point the answer should stay, in time and in memory; 0 is exact.
        ``Frontier.factor`` is what was proven in the end. Default: 0.1 %.
    meshes : sequence of Mesh, optional
        Default: ``cluster.meshes(max_axes)``.
    max_axes : int, optional
        Most axes of a mesh. Default: 3.
    threads : int, optional
        Default: all cores. The result does not depend on it.
    progress : callable, optional
        Called with what is being done and the fraction of all work that is done.

    Returns
    -------
    Frontier

    Raises
    ------
    ProblemError
        If an option is wrong.
    InfeasibleError
        If no strategy fits into `memory_bytes`; says the least that would.
    ShardingError
        If the operands of an operator do not fit its family.

    Examples
    --------
    >>> import tensoropt as to
    >>> graph = to.examples.transformer(
    ...     layers=2, hidden=64, heads=4, vocabulary=128, sequence_length=32, batch_size=8
    ... )
    >>> frontier = to.search(graph, to.Cluster.parse("4xA100-SXM-80GB"), micro_batches=1)
    >>> frontier.status in ("optimal", "epsilon")
    True
    """
    settings = Settings.checked(
        graph,
        cluster,
        precision=precision,
        optimizer=optimizer,
        micro_batches=micro_batches,
        recompute=recompute,
        meshes=meshes,
        max_axes=max_axes,
        memory_bytes=memory_bytes,
        epsilon=epsilon,
        threads=threads,
    )
    if progress is not None and not callable(progress):
        raise ProblemError(f"progress is {progress!r}, expected a callable of a text and a number")
    return _Search(graph, cluster, settings, progress or _silent).run()


def _silent(_: str, __: float) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class _Piece:
    """The graph of one micro-batch and its decisions, for one number of micro-batches."""

    count: int
    decisions: Decisions


@dataclass(frozen=True)
class _Scheme:
    """A named scheme and its costs, found without the search."""

    name: str
    assignment: Assignment
    time_s: float
    bound_bytes: float


@dataclass(frozen=True)
class _Found:
    """What one mesh and one number of micro-batches gave."""

    answers: Answers
    builder: StrategyBuilder
    schemes: list[_Scheme]


class _Search:
    """One search, from checked settings to the frontier."""

    def __init__(
        self, graph: Graph, cluster: Cluster, settings: Settings, progress: Progress
    ) -> None:
        self.graph = graph
        self.cluster = cluster
        self.settings = settings
        self.progress = progress
        self.calibration = MemoryCalibration()
        self.notes = list(graph.notes)
        self.seconds: dict[str, float] = {"search": 0.0, "schemes": 0.0}
        self.narrowed: list[Mesh] = []

    def run(self) -> Frontier:
        classes = dim_classes(self.graph)
        pieces = self._pieces(classes)
        self.notes += division_remarks(
            pieces[0].decisions, self.graph.batch_size, self.settings.meshes
        )
        self.notes += rule_remarks(pieces[0].decisions)
        jobs = [(mesh, piece) for mesh in self.settings.meshes for piece in pieces]
        found: list[_Found] = []
        known = Known(self._within())
        uses = {piece.count: AxisUses() for piece in pieces}
        redo = {"none": (False,), "full": (True,), "sweep": (False, True)}[self.settings.recompute]
        for done, (mesh, piece) in enumerate(jobs):
            self.progress(f"mesh {mesh}, {piece.count} micro-batches", done / len(jobs))
            tables = self._tables(mesh, piece)
            builder = StrategyBuilder(self.graph, tables, classes, self.calibration, self.notes)
            begun = time.perf_counter()
            schemes = [
                _Scheme(name, assignment, cost.time_s, cost.bound_bytes)
                for name, assignment in named_schemes(tables, classes, recompute=redo)
                for cost in [builder.evaluate(assignment)]
            ]
            self.seconds["schemes"] += time.perf_counter() - begun
            known.add([s.time_s for s in schemes], [s.bound_bytes for s in schemes])
            if too_many(tables):
                assignments = [scheme.assignment for scheme in schemes]
                tables = narrowed(tables, uses[piece.count], assignments)
                if mesh not in self.narrowed:
                    self.narrowed.append(mesh)
            answers = self._solve(tables, self.settings.memory_bytes, known, done / len(jobs))
            known.add(answers.time_s, answers.bound_bytes)
            if len(answers.time_s):
                best = skyline(answers.time_s, answers.bound_bytes)
                add_choices(uses[piece.count], tables, answers.choices, best)
            found.append(_Found(answers, builder, schemes))
        self.progress("uniting the frontiers", 1.0)
        if not len(known.time_s):
            raise self._infeasible(found)
        return self._unite(found, known)

    def _pieces(self, classes: DimClasses) -> list[_Piece]:
        """The graphs of one micro-batch; a count that the graph cannot follow is left out."""
        pieces = []
        for count in self.settings.micro_batches:
            try:
                small = micro_batch(self.graph, count, classes)
            except GraphError as error:
                self.notes.append(f"{count} micro-batches were left out: {error}")
                continue
            pieces.append(_Piece(count, decisions(small)))
        if not pieces:
            raise GraphError(f"no number of micro-batches is possible: {self.notes[-1]}")
        return pieces

    def _tables(self, mesh: Mesh, piece: _Piece) -> Tables:
        settings = self.settings
        model = CostModel(self.cluster, mesh, settings.precision, settings.optimizer, piece.count)
        recomputable = settings.recompute != "none"
        return Tables(model, piece.decisions, recomputable=recomputable)

    def _solve(
        self, tables: Tables, cap: float | None, known: Known | None, begun_at: float
    ) -> Answers:
        settings = self.settings
        model = tables.model
        share = 1.0 / (len(settings.meshes) * len(settings.micro_batches))
        what = f"mesh {model.mesh}, {model.micro_batches} micro-batches"
        begun = time.perf_counter()
        answers = solve_mesh(
            tables,
            settings.recompute,
            epsilon=settings.epsilon,
            cap_bytes=None if cap is None else float(self.calibration.allocated_for(cap)),
            threads=settings.threads,
            known=known,
            progress=lambda fraction: self.progress(what, begun_at + share * fraction),
        )
        self.seconds["search"] += time.perf_counter() - begun
        return answers

    def _unite(self, found: list[_Found], known: Known) -> Frontier:
        """One staircase over all meshes, numbers of micro-batches and named schemes."""
        within = self._within()
        # Origins of all candidates: which mesh and micro-batches, and which point or scheme there.
        origins: list[tuple[int, int]] = []
        times: list[FloatArray] = []
        bounds: list[FloatArray] = []
        for which, f in enumerate(found):
            points = len(f.answers.time_s)
            origins += [(which, i) for i in range(points)]
            origins += [(which, points + i) for i in range(len(f.schemes))]
            times += [f.answers.time_s, np.array([s.time_s for s in f.schemes])]
            bounds += [f.answers.bound_bytes, np.array([s.bound_bytes for s in f.schemes])]
        time_s, bound = np.concatenate(times), np.concatenate(bounds)
        allowed = np.nonzero(bound <= within)[0]
        # Rounded as it is reported: points that differ by less than a byte are one.
        whole = np.ceil(bound)
        chosen = allowed[skyline(time_s[allowed], whole[allowed])]
        # Half of epsilon is spent on leaving out points that say next to nothing new.
        kept = set(thinned(time_s[chosen], whole[chosen], self.settings.epsilon / 2).tolist())
        kept |= {0, len(chosen) - 1}
        # What beats a named scheme stays, so that none is ever better than the result.
        for scheme in (s for f in found for s in f.schemes):
            within_time = int(np.searchsorted(time_s[chosen], scheme.time_s, side="right")) - 1
            if within_time >= 0 and whole[chosen[within_time]] <= np.ceil(scheme.bound_bytes):
                kept.add(within_time)
        chosen = chosen[sorted(kept)]

        def build(index: int) -> Strategy:
            which, point = origins[chosen[index]]
            f = found[which]
            points = len(f.answers.time_s)
            if point < points:
                built: Strategy = f.builder.strategy(f.answers.assignment(point))
            else:
                scheme = f.schemes[point - points]
                built = f.builder.strategy(scheme.assignment, scheme=scheme.name)
            return built

        kept_points = Known(within)
        kept_points.add(time_s[chosen], whole[chosen])
        # What no bound of its own says was covered by points found elsewhere.
        again = kept_points.cover(known.time_s, known.bound_bytes)
        factor = max(
            f.answers.lower_factor
            * max(again, kept_points.cover(f.answers.lower_time_s, f.answers.lower_bytes))
            for f in found
        )
        rounding = max(f.answers.rounding for f in found)
        device = np.asarray(self.calibration.device_total(whole[chosen]))
        return Frontier(
            graph_summary=GraphSummary.of(self.graph),
            cluster=self.cluster,
            points=LazyPoints(len(chosen), build),
            schemes=self._shown(found),
            status=_status([f.answers.status for f in found], factor),
            factor=factor * rounding,
            notes=[
                *self.notes,
                *narrowed_remark(self.narrowed),
                *mesh_remark(self.settings.meshes, self.cluster.meshes()),
            ],
            settings=self.settings.to_dict(),
            seconds=self.seconds,
            costs=FrontierCosts(
                np.asarray(time_s[chosen], np.float64),
                np.ceil(device).astype(np.int64),
                whole[chosen].astype(np.int64),
            ),
        )

    def _within(self) -> float:
        """The cap on resident plus transient bytes; infinite without one."""
        cap = self.settings.memory_bytes
        return np.inf if cap is None else float(self.calibration.allocated_for(cap))

    def _shown(self, found: list[_Found]) -> list[Strategy]:
        """Of every named scheme the fastest variant that fits the card, else the leanest."""
        card = float(self.calibration.allocated_for(self.cluster.device.memory_bytes))
        best: dict[str, tuple[tuple[float, ...], _Found, _Scheme]] = {}
        for f in found:
            for scheme in f.schemes:
                fits = scheme.bound_bytes <= card
                rank = (0.0, scheme.time_s) if fits else (1.0, scheme.bound_bytes)
                known = best.get(scheme.name)
                if known is None or rank < known[0]:
                    best[scheme.name] = (rank, f, scheme)
        return [
            f.builder.strategy(scheme.assignment, scheme=name)
            for name, (_, f, scheme) in best.items()
        ]

    def _infeasible(self, found: list[_Found]) -> InfeasibleError:
        """Say the least memory that any strategy needs, and what takes it."""
        bounds = [f.answers.least_bound_bytes or 0.0 for f in found]
        schemes = [(s.bound_bytes, i, s.assignment) for i, f in enumerate(found) for s in f.schemes]
        best = min(schemes, key=lambda scheme: scheme[0], default=None)
        # What bounds a job from below need not be reached there: then another may be leaner.
        for which in np.argsort(bounds, kind="stable").tolist():
            if best is not None and best[0] <= bounds[which]:
                break
            answers = self._solve(found[which].answers.tables, None, None, which / len(found))
            if not len(answers.bound_bytes):
                continue
            point = int(np.argmin(answers.bound_bytes))
            if best is None or answers.bound_bytes[point] < best[0]:
                best = (float(answers.bound_bytes[point]), which, answers.assignment(point))
        if best is None:
            raise InfeasibleError(f"no strategy for '{self.graph.name}' is possible at all")
        leanest = found[best[1]].builder.strategy(best[2])
        total = float(leanest.costs.device_bytes)
        cap = self.settings.memory_bytes if self.settings.memory_bytes is not None else 0.0
        limit, needed = format_bytes_apart(cap, total)
        exact = not self.narrowed and all(f.answers.problem.exact for f in found)
        largest = "; ".join(
            f"{t.name} ({t.part}) {format_bytes(t.nbytes)}" for t in leanest.largest[:3]
        )
        fixed = format_bytes(float(self.calibration.device_total(0.0)))
        return InfeasibleError(
            f"no strategy for '{self.graph.name}' on {self.cluster.name} "
            f"{'fits' if exact else 'was found that fits'} in {limit}: the least "
            f"{'feasible' if exact else 'found'} device total is {needed} ({fixed} of it for the "
            f"runtime; the largest tensors: {largest}); allow that much, or use more devices or a "
            "smaller batch",
            least=total,
        )


def _status(statuses: list[str], factor: float) -> str:
    """Why the search ended: what limited it, or what is proven."""
    proofs = ("optimal", "epsilon", "heuristic", "infeasible")
    limits = [s for s in statuses if s not in proofs]
    if limits:
        return limits[0]
    if factor <= 1.0:
        return "optimal"
    return "heuristic" if "heuristic" in statuses else "epsilon"
