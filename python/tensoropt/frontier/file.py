"""The file of a frontier: thousands of strategies that differ little, written compactly.

Every strategy is a row of small integers. A column stands for one decision (how an operator is
split, how a parameter is kept, ...), a value for one of the choices, listed once in a table.
Neighbours on a frontier agree in most columns, so a row is written as its changes against an
earlier row, its base. The file is plain JSON:

``labels``
    Splits and states: a string for each mesh axis.
``placements``
    Of parameters: layout, scheme, axes.
``collectives``
    What one subject communicates in one phase: (kind, axis, bytes, count, why, seconds) each.
``columns``
    For each section of a strategy, the names that it decides about.
``strategies``
    Points, then named schemes: their costs, the index of their base (or -1: a row of absences)
    and ``changes``, a flat list of column, value, column, value... Columns count through all
    sections in the order of :data:`SECTIONS`; -1 stands for absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields
from itertools import chain
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoropt.cluster import Cluster
from tensoropt.errors import ClusterError, FileFormatError, ProblemError
from tensoropt.reporting.files import Reader, damage_named, read_document, write_document
from tensoropt.strategy import (
    COLLECTIVES,
    PHASES,
    Collective,
    Costs,
    ParameterPlacement,
    Strategy,
    costs_from_json,
    largest_from_json,
    mesh_from_json,
    mesh_to_json,
    placement_from_json,
    regathered_from_json,
)

from .frontier import Frontier, FrontierCosts, GraphSummary
from .points import LazyPoints

__all__ = ["FORMAT", "VERSION", "load", "save"]

FORMAT = "tensoropt-frontier"
VERSION = 2
"""Version 1 did not say as which operand a tensor is gathered again: pairs instead of triples."""
SECTIONS = ("operators", "tensors", "parameters", "recompute", "regathered", "collectives")
COST_NAMES = tuple(entry.name for entry in fields(Costs))
COMMON_TEXTS = ("model", "cluster", "graph_fingerprint", "precision", "optimizer")
COMMON = (*COMMON_TEXTS, "batch_size", "tokens_per_sample")
ABSENT = -1

IntMatrix = npt.NDArray[np.int32]
Row = dict[int, int]


# ---------------------------------------------------------------------------- writing


def save(
    frontier: Frontier,
    path: str | PathLike[str],
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write a frontier; see :meth:`Frontier.save`."""
    encoder = _Encoder()
    total = len(frontier) + len(frontier.schemes)
    for done, strategy in enumerate(chain(frontier, frontier.schemes), start=1):
        encoder.add(strategy)
        if progress is not None:
            progress(done / total)
    summary = frontier.graph_summary
    document = {
        "format": FORMAT,
        "version": VERSION,
        "model": frontier.model,
        "status": frontier.status,
        "factor": frontier.factor if math.isfinite(frontier.factor) else None,
        "notes": list(frontier.notes),
        "settings": frontier.settings,
        "graph": {
            "name": summary.name,
            "batch_size": summary.batch_size,
            "tokens_per_sample": summary.tokens_per_sample,
            "parameter_count": summary.parameter_count,
            "fingerprint": summary.fingerprint,
        },
        "cluster": frontier.cluster.to_dict(),
        "points": len(frontier),
        **encoder.document(),
    }
    write_document(path, document, indent=None)


class _Interned:
    """Gives equal values equal numbers, in the order of their first appearance."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numbers)


class _Encoder:
    """Turns strategies into rows of numbers."""

    def __init__(self) -> None:
        self.labels, self.placements = _Interned(), _Interned()
        self.collectives, self.notes, self.meshes = _Interned(), _Interned(), _Interned()
        self.columns = {section: _Interned() for section in SECTIONS}
        self.common: dict[str, Any] = {}
        self.strategies: list[dict[str, Any]] = []
        self.rows: dict[tuple[int, ...], tuple[int, dict[str, Row]]] = {}

    def add(self, strategy: Strategy) -> None:
        common = {name: getattr(strategy, name) for name in COMMON}
        self.common = self.common or common
        for name, value in common.items():
            if value != self.common[name]:
                raise ProblemError(
                    f"strategies of one frontier must agree in {name}: found "
                    f"{self.common[name]!r} and {value!r}"
                )
        mesh = self.meshes(strategy.mesh)
        row = self._row(strategy)
        # Strategies on one mesh with one number of micro-batches are the most alike.
        near, same_mesh = (mesh, strategy.micro_batches), (mesh,)
        base, known = self.rows.get(near) or self.rows.get(same_mesh) or (-1, {})
        changes = {s: _changes(known.get(s, {}), row[s]) for s in SECTIONS}
        self.rows[near] = self.rows[same_mesh] = (len(self.strategies), row)
        costs = strategy.costs
        self.strategies.append(
            {
                "description": strategy.description,
                "scheme": strategy.scheme,
                "mesh": mesh,
                "micro_batches": strategy.micro_batches,
                "notes": self.notes(tuple(strategy.notes)),
                "costs": [getattr(costs, name) for name in COST_NAMES],
                "largest": [[t.name, t.part, t.nbytes] for t in strategy.largest],
                "base": base,
                "changes": changes,
            }
        )

    def _row(self, s: Strategy) -> dict[str, Row]:
        labels, columns = self.labels, self.columns
        groups: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
        for c in sorted(s.collectives, key=lambda c: PHASES.index(c.phase)):
            entry = (c.kind, c.axis, c.nbytes, c.count, c.why, c.seconds)
            groups.setdefault((c.phase, c.subject), []).append(entry)
        kept = self.placements
        column = columns["parameters"]
        return {
            "operators": {columns["operators"](n): labels(v) for n, v in s.operators.items()},
            "tensors": {columns["tensors"](n): labels(v) for n, v in s.tensors.items()},
            "parameters": {
                column(n): kept((p.layout, p.scheme, p.axes)) for n, p in s.parameters.items()
            },
            "recompute": {columns["recompute"](n): int(v) for n, v in s.recompute.items()},
            "regathered": {columns["regathered"](gather): 1 for gather in sorted(s.regathered)},
            "collectives": {
                columns["collectives"](key): self.collectives(tuple(group))
                for key, group in groups.items()
            },
        }

    def document(self) -> dict[str, Any]:
        """Return what was added as JSON values."""
        start, starts = 0, {}
        for section in SECTIONS:
            starts[section] = start
            start += len(self.columns[section].numbers)
        for entry in self.strategies:
            entry["changes"] = [
                number
                for section in SECTIONS
                for column, value in entry["changes"][section]
                for number in (starts[section] + column, value)
            ]
        return {
            "common": self.common,
            "meshes": [mesh_to_json(mesh) for mesh in self.meshes],
            "labels": [list(label) for label in self.labels],
            "placements": [
                {"layout": list(layout), "scheme": scheme, "axes": list(axes)}
                for layout, scheme, axes in self.placements
            ],
            "collectives": [[list(entry) for entry in group] for group in self.collectives],
            "strategy_notes": [list(notes) for notes in self.notes],
            "columns": {
                section: [list(n) if isinstance(n, tuple) else n for n in self.columns[section]]
                for section in SECTIONS
            },
            "cost_names": list(COST_NAMES),
            "strategies": self.strategies,
        }


def _changes(base: Row, row: Row) -> list[tuple[int, int]]:
    changed = [(column, value) for column, value in row.items() if base.get(column) != value]
    changed += [(column, ABSENT) for column in base if column not in row]
    changed.sort()
    return changed


# ---------------------------------------------------------------------------- reading


def load(path: str | PathLike[str]) -> Frontier:
    """Read a frontier; see :meth:`Frontier.load`."""
    reader = read_document(path, FORMAT, VERSION)
    with damage_named(reader.where):
        return _frontier(reader)


def _frontier(reader: Reader) -> Frontier:
    graph = reader.object("graph")
    try:
        cluster = Cluster.from_dict(reader.mapping("cluster"))
    except ClusterError as error:
        raise FileFormatError(f"{reader.where}: {error}") from None
    decoder = _Decoder(reader)
    count = reader.integer("points", 1)
    if count > len(decoder.entries):
        raise reader.fail("points", f"at most the {len(decoder.entries)} strategies of the file")
    costs = FrontierCosts(
        np.array([c.time_s for c in decoder.costs[:count]]),
        np.array([c.device_bytes for c in decoder.costs[:count]], np.int64),
        np.array([c.memory_bound_bytes for c in decoder.costs[:count]], np.int64),
    )
    try:
        return Frontier(
            graph_summary=GraphSummary(
                graph.text("name"),
                graph.integer("batch_size", 1),
                graph.optional_integer("tokens_per_sample", 1),
                graph.integer("parameter_count"),
                graph.text("fingerprint"),
            ),
            cluster=cluster,
            points=LazyPoints(count, decoder),
            schemes=[decoder(i) for i in range(count, len(decoder.entries))],
            status=reader.text("status"),
            factor=math.inf if reader.value.get("factor", 0) is None else reader.number("factor"),
            notes=reader.texts("notes"),
            settings=reader.mapping("settings"),
            costs=costs,
            model=reader.text("model"),
        )
    except ProblemError as error:
        raise FileFormatError(f"{reader.where}: {error}") from None


class _Decoder:
    """Builds the strategies of a file, one at a time; all checks are made when it is opened."""

    def __init__(self, reader: Reader) -> None:
        where = reader.where
        common = reader.object("common")
        self.common: dict[str, Any] = {name: common.text(name) for name in COMMON_TEXTS}
        self.common["batch_size"] = common.integer("batch_size", 1)
        self.common["tokens_per_sample"] = common.optional_integer("tokens_per_sample", 1)
        self.meshes = [
            mesh_from_json(value, f"{where}: meshes[{i}]")
            for i, value in enumerate(reader.array("meshes"))
        ]
        self.labels = [
            _texts(value, f"{where}: labels[{i}]") for i, value in enumerate(reader.array("labels"))
        ]
        self.placements = [_placement(entry) for entry in reader.objects("placements")]
        self.collectives = [
            _collective_group(value, f"{where}: collectives[{i}]")
            for i, value in enumerate(reader.array("collectives"))
        ]
        self.notes = [
            _texts(value, f"{where}: strategy_notes[{i}]")
            for i, value in enumerate(reader.array("strategy_notes"))
        ]
        self.names, self.spans = _columns(reader.object("columns"))
        self.entries = reader.objects("strategies")
        names = reader.texts("cost_names")
        self.costs = [_costs(entry, names) for entry in self.entries]
        self.largest = [_largest(entry) for entry in self.entries]
        self.mesh = [_choice(entry, "mesh", len(self.meshes)) for entry in self.entries]
        self.note = [_choice(entry, "notes", len(self.notes)) for entry in self.entries]
        self.micro_batches = [entry.integer("micro_batches", 1) for entry in self.entries]
        self.texts = [(e.text("description"), e.text("scheme")) for e in self.entries]
        self.matrix = _matrix(self.entries, max(stop for _, stop in self.spans.values()))
        self._check_choices(where)

    def __call__(self, index: int) -> Strategy:
        """Build a strategy."""
        mesh = self.meshes[self.mesh[index]]
        description, scheme = self.texts[index]
        parameters = {n: self.placements[v] for n, v in self._chosen(index, "parameters")}
        return Strategy(
            **self.common,
            mesh=mesh,
            micro_batches=self.micro_batches[index],
            recompute={n: bool(v) for n, v in self._chosen(index, "recompute")},
            operators={n: self.labels[v] for n, v in self._chosen(index, "operators")},
            tensors={n: self.labels[v] for n, v in self._chosen(index, "tensors")},
            parameters=parameters,
            regathered=frozenset(gather for gather, _ in self._chosen(index, "regathered")),
            costs=self.costs[index],
            collectives=self._communicated(index),
            description=description,
            scheme=scheme,
            notes=self.notes[self.note[index]],
            largest=self.largest[index],
        )

    def _chosen(self, index: int, section: str) -> Iterator[tuple[Any, int]]:
        start, stop = self.spans[section]
        values = self.matrix[index, start:stop].tolist()
        for name, value in zip(self.names[section], values, strict=True):
            if value != ABSENT:
                yield name, value

    def _communicated(self, index: int) -> tuple[Collective, ...]:
        found = [
            Collective(kind, axis, nbytes, count, phase, subject, why, seconds)
            for (phase, subject), group in self._chosen(index, "collectives")
            for kind, axis, nbytes, count, why, seconds in self.collectives[group]
        ]
        found.sort(key=lambda c: PHASES.index(c.phase))
        return tuple(found)

    def _check_choices(self, where: str) -> None:
        """Check that every value of every row names a choice that suits its mesh."""
        axes = np.array([len(self.meshes[m].axes) for m in self.mesh], np.int64)[:, None]
        label_axes = [len(label) for label in self.labels]
        placed_axes = [len(p.layout) for p in self.placements]
        tables = {
            "operators": label_axes,
            "tensors": label_axes,
            "parameters": placed_axes,
            "recompute": None,
            "regathered": None,
            "collectives": [max(entry[1] for entry in g) + 1 for g in self.collectives],
        }
        for section, sizes in tables.items():
            start, stop = self.spans[section]
            values = self.matrix[:, start:stop]
            limit = 2 if sizes is None else len(sizes)
            wrong = (values < ABSENT) | (values >= limit)
            if not wrong.any() and sizes:
                size = np.array(sizes, np.int64)[values]
                suits = size <= axes if section == "collectives" else size == axes
                wrong = (values != ABSENT) & ~suits
            if wrong.any():
                row, column = (int(i) for i in np.argwhere(wrong)[0])
                raise FileFormatError(
                    f"{where}: strategies[{row}]: {section} of {self.names[section][column]!r} is "
                    f"{int(values[row, column])}, which is no choice on its mesh"
                )


def _matrix(entries: list[Reader], width: int) -> IntMatrix:
    """Undo the differences: one row of choices for each strategy."""
    matrix = np.full((len(entries), width), ABSENT, np.int32)
    for index, entry in enumerate(entries):
        base = entry.value.get("base")
        if isinstance(base, bool) or not isinstance(base, int) or not -1 <= base < index:
            raise entry.fail("base", f"the index of an earlier strategy, or -1 (this is {index})")
        if base >= 0:
            matrix[index] = matrix[base]
        changes = _pairs(entry.array("changes"))
        if changes is None or not ((changes[:, 0] >= 0) & (changes[:, 0] < width)).all():
            raise FileFormatError(
                f"{entry.where}: field 'changes' must be pairs of a column (0 to {width - 1}) and "
                "a value, both integers"
            )
        matrix[index, changes[:, 0]] = changes[:, 1]
    return matrix


def _pairs(flat: list[Any]) -> npt.NDArray[np.int64] | None:
    """Return a flat list of integers as pairs, None if it is none."""
    if not flat:
        return np.empty((0, 2), np.int64)
    try:
        numbers = np.array(flat)
    except (ValueError, OverflowError):
        return None
    if numbers.dtype != np.int64 or numbers.ndim != 1 or len(numbers) % 2:
        return None
    if np.abs(numbers).max() >= 2**31:
        return None
    return numbers.reshape(-1, 2)


def _columns(reader: Reader) -> tuple[dict[str, list[Any]], dict[str, tuple[int, int]]]:
    names: dict[str, list[Any]] = {}
    spans: dict[str, tuple[int, int]] = {}
    start = 0
    for section in SECTIONS:
        if section == "regathered":
            names[section] = list(regathered_from_json(reader, section))
        elif section == "collectives":
            where = f"{reader.where}.{section}"
            pairs = [_texts(value, where) for value in reader.array(section)]
            if any(len(pair) != 2 for pair in pairs):
                raise reader.fail(section, "a list of pairs of strings")
            if not {phase for phase, _ in pairs} <= set(PHASES):
                raise reader.fail(section, f"pairs of a phase ({', '.join(PHASES)}) and a subject")
            names[section] = list(pairs)
        else:
            names[section] = list(reader.texts(section))
        spans[section] = (start, start + len(names[section]))
        start += len(names[section])
    return names, spans


def _costs(entry: Reader, names: tuple[str, ...]) -> Costs:
    values = entry.array("costs")
    if len(values) != len(names):
        raise entry.fail("costs", f"a list of the {len(names)} costs {', '.join(names)}")
    return costs_from_json(Reader(dict(zip(names, values, strict=True)), f"{entry.where}: costs"))


def _largest(entry: Reader) -> Any:
    where = f"{entry.where}: largest"
    readers = []
    for value in entry.array("largest"):
        if not isinstance(value, list) or len(value) != 3:
            raise entry.fail("largest", "a list of (name, part, bytes)")
        readers.append(Reader(dict(zip(("name", "part", "nbytes"), value, strict=True)), where))
    return largest_from_json(readers)


def _choice(entry: Reader, field: str, count: int) -> int:
    value = entry.integer(field)
    if value >= count:
        raise entry.fail(field, f"an index below {count}")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise FileFormatError(f"{where}: expected a list of strings")
    return tuple(value)


def _placement(reader: Reader) -> ParameterPlacement:
    return placement_from_json(reader.value, len(reader.array("layout")), reader.where)


def _collective_group(value: Any, where: str) -> list[tuple[str, int, int, int, str, float]]:
    if not isinstance(value, list) or not value:
        raise FileFormatError(f"{where}: expected a list of collectives")
    group = []
    for entry in value:
        if not isinstance(entry, list) or len(entry) != 6:
            raise FileFormatError(
                f"{where}: expected (kind, axis, bytes, count, why, seconds) for each collective"
            )
        names = ("kind", "axis", "nbytes", "count", "why", "seconds")
        r = Reader(dict(zip(names, entry, strict=True)), where)
        if r.text("kind") not in COLLECTIVES:
            raise r.fail("kind", f"one of {', '.join(COLLECTIVES)}")
        group.append(
            (
                r.text("kind"),
                r.integer("axis"),
                r.integer("nbytes"),
                r.integer("count"),
                r.text("why"),
                r.number("seconds"),
            )
        )
    return group
