"""One complete answer: how every operator, tensor and parameter is split, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from typing import TYPE_CHECKING, Any

from .checks import of_type
from .cluster import Cluster, Device, Mesh, MeshAxis
from .cost.assignment import EVERY_OPERAND
from .errors import ClusterError, FileFormatError
from .reporting.files import Reader, damage_named, read_document, write_document

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["AT_RISK", "Collective", "Costs", "LargeTensor", "ParameterPlacement", "Strategy"]

AT_RISK = 0.9
"""Share of a device's memory above which a strategy that fits is marked as at risk: fragmentation
and libraries vary by a few percent from run to run."""

FORMAT = "tensoropt-strategy"
VERSION = 2
"""Version 1 did not say as which operand a tensor is gathered again: pairs instead of triples."""
SCHEMES = ("ddp", "zero1", "zero2", "zero3", "zero3_keep")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
PHASES = ("forward", "backward", "recompute", "step")


@dataclass(frozen=True, slots=True)
class ParameterPlacement:
    """How one parameter is kept.

    Parameters
    ----------
    layout : tuple of str
        The operators' side, per mesh axis: ``R`` or ``S<dim>``.
    scheme : str
        ``ddp``, ``zero1``, ``zero2``, ``zero3`` (gathered again in the backward pass) or
        ``zero3_keep`` (gathered once, kept until then).
    axes : tuple of int
        Mesh axes over which ``scheme`` shards, innermost last; empty for ``ddp``.
    """

    layout: tuple[str, ...]
    scheme: str
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """Communication that a strategy issues, as often as ``count`` in one iteration.

    Parameters
    ----------
    kind : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter`` or ``all_to_all``.
    axis : int
        Position of the mesh axis.
    nbytes : int
        By the convention of ``cost.communication``.
    count : int
        Times in one iteration (micro-batches included).
    phase : str
        ``forward``, ``backward``, ``recompute`` or ``step``.
    subject : str
        The tensor, parameter or operator it serves.
    why : str
        ``redistribution``, ``gradient sync``, ``parameter gather`` or ``inside operator``.
    seconds : float
        Time of all of them, before overlap.
    """

    kind: str
    axis: int
    nbytes: int
    count: int
    phase: str
    subject: str
    why: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What one strategy costs, per device and iteration.

    Parameters
    ----------
    time_s : float
        Iteration time by the search's cost model (compute plus exposed communication).
    simulated_time_s : float
        The same, re-timed with one stream per link class.
    memory_bound_bytes : int
        Resident plus transient bytes by the search's model: never less than the replay.
    memory_peak_bytes : int
        Peak of the liveness replay in the executed order.
    device_bytes : int
        Device total for ``memory_bound_bytes``: constant overhead plus allocator factor.
    compute_s, communication_s : float
        Busy times of compute and of all collectives, before overlap.
    weight_bytes, gradient_bytes, optimizer_bytes, saved_bytes, transient_bytes : int
        Parts of ``memory_bound_bytes``.
    """

    time_s: float
    simulated_time_s: float
    memory_bound_bytes: int
    memory_peak_bytes: int
    device_bytes: int
    compute_s: float = 0.0
    communication_s: float = 0.0
    weight_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    saved_bytes: int = 0
    transient_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LargeTensor:
    """One of the tensors that take the most memory under a strategy.

    Parameters
    ----------
    name : str
        Tensor or parameter.
    part : str
        What of it, e.g. ``weights, gradients, optimizer`` or ``saved for backward``.
    nbytes : int
        Bytes per device.
    """

    name: str
    part: str
    nbytes: int


@dataclass(frozen=True)
class Strategy:
    """A parallelization strategy for one model on one cluster.

    Parameters
    ----------
    model, cluster : str
        Names, for people.
    graph_fingerprint : str
        ``Graph.fingerprint()`` of the model it was made for.
    mesh : Mesh
    batch_size, micro_batches : int
        Samples in an iteration, and into how many pieces it is cut.
    precision, optimizer : str
        Names of the bundles used.
    recompute : mapping of str to bool
        For every repeated block, by name, whether it is recomputed in the backward pass.
    operators : mapping of str to tuple of str
        Label of each mesh axis for every operator (see ``sharding.configurations``).
    tensors : mapping of str to tuple of str
        For every tensor with a node of its own, its state on each mesh axis (``R``, ``R/P``,
        ``S<dim>``).
    parameters : mapping of str to ParameterPlacement
    regathered : frozenset of (str, str, int)
        What is not kept as gathered but gathered again: tensor, consumer, and as which operand the
        consumer reads it (it may read one tensor several times; -1 for all of them, as files of
        version 1 had it). The consumer is an operator's name, or the empty string, with operand 0,
        for the tensor's own node.
    costs : Costs
    collectives : tuple of Collective
        Everything it communicates.
    description : str
        One line, e.g. ``data 4 x tensor 2, ZeRO-3 on axis a0``.
    scheme : str
        Name of the named scheme it is, or empty.
    notes : tuple of str
        Assumptions and operators without a rule.
    tokens_per_sample : int or None
        Sequence length where the model has one, for throughput.
    largest : tuple of LargeTensor
        What takes the most memory, largest first.
    """

    model: str
    cluster: str
    graph_fingerprint: str
    mesh: Mesh
    batch_size: int
    micro_batches: int
    precision: str
    optimizer: str
    recompute: Mapping[str, bool]
    operators: Mapping[str, tuple[str, ...]]
    tensors: Mapping[str, tuple[str, ...]]
    parameters: Mapping[str, ParameterPlacement]
    regathered: frozenset[tuple[str, str, int]]
    costs: Costs
    collectives: tuple[Collective, ...] = ()
    description: str = ""
    scheme: str = ""
    notes: tuple[str, ...] = field(default=())
    tokens_per_sample: int | None = None
    largest: tuple[LargeTensor, ...] = ()

    def __repr__(self) -> str:
        from .reporting.units import format_bytes, format_seconds

        costs = self.costs
        what = self.description or self.scheme or "strategy"
        return (
            f"<Strategy of {self.model} on {self.cluster}: {what}, mesh {self.mesh}, "
            f"{format_seconds(costs.time_s)}, {format_bytes(costs.device_bytes)}>"
        )

    @property
    def throughput(self) -> float:
        """Samples per second of the whole cluster."""
        return self.batch_size / self.costs.time_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of the whole cluster, None where samples have no tokens."""
        if self.tokens_per_sample is None:
            return None
        return self.throughput * self.tokens_per_sample

    def memory_share(self, where: Cluster | Device | float) -> float:
        """Device total as a share of the memory there is.

        Parameters
        ----------
        where : Cluster, Device or float
            A number is bytes of one device.
        """
        return self.costs.device_bytes / memory_of(where)

    def fits(self, where: Cluster | Device | float) -> bool:
        """Whether the device total is within the memory of a device.

        Parameters
        ----------
        where : Cluster, Device or float
            A number is bytes of one device.
        """
        return self.memory_share(where) <= 1

    def at_risk(self, where: Cluster | Device | float) -> bool:
        """Whether it fits, but with less than a tenth to spare (see :data:`AT_RISK`)."""
        return AT_RISK < self.memory_share(where) <= 1

    def matches(self, graph: Graph) -> bool:
        """Whether the strategy was made for this very model: operators, shapes, dtypes."""
        return self.graph_fingerprint == graph.fingerprint()

    def explain(self, graph: Graph | None = None) -> str:
        """Say what the strategy does, and where its time and memory go.

        Parameters
        ----------
        graph : Graph, optional
            The model: repeated layers are then grouped by its blocks rather than by their names.

        Returns
        -------
        str
            Several paragraphs of plain text.
        """
        from .reporting.explain import explain

        return explain(self, graph)

    def diff(self, other: Strategy) -> str:
        """Say how another strategy differs from this one, in costs and in what it does."""
        from .reporting.diff import diff

        of_type("other", other, Strategy, "a Strategy")
        return diff(self, other)

    def to_dict(self) -> dict[str, Any]:
        """Return the strategy as JSON values, in a reproducible order."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "cluster": self.cluster,
            "graph_fingerprint": self.graph_fingerprint,
            "description": self.description,
            "scheme": self.scheme,
            "mesh": mesh_to_json(self.mesh),
            "batch_size": self.batch_size,
            "tokens_per_sample": self.tokens_per_sample,
            "micro_batches": self.micro_batches,
            "precision": self.precision,
            "optimizer": self.optimizer,
            "costs": asdict(self.costs),
            "recompute": dict(self.recompute),
            "operators": {name: list(labels) for name, labels in self.operators.items()},
            "tensors": {name: list(states) for name, states in self.tensors.items()},
            "parameters": {
                name: {"layout": list(p.layout), "scheme": p.scheme, "axes": list(p.axes)}
                for name, p in self.parameters.items()
            },
            "regathered": [list(gather) for gather in sorted(self.regathered)],
            "collectives": [asdict(c) for c in self.collectives],
            "largest": [asdict(entry) for entry in self.largest],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "strategy") -> Strategy:
        """Rebuild a strategy from :meth:`to_dict`.

        Raises
        ------
        FileFormatError
            If a field is missing or is not what it should be; the message names it.
        """
        reader = Reader(dict(data), where)
        mesh = mesh_from_json(reader.array("mesh"), f"{where}: mesh")
        axes = len(mesh.axes)
        return cls(
            model=reader.text("model"),
            cluster=reader.text("cluster"),
            graph_fingerprint=reader.text("graph_fingerprint"),
            mesh=mesh,
            batch_size=reader.integer("batch_size", 1),
            micro_batches=reader.integer("micro_batches", 1),
            precision=reader.text("precision"),
            optimizer=reader.text("optimizer"),
            recompute=_flags(reader, "recompute"),
            operators=_words(reader, "operators", axes),
            tensors=_words(reader, "tensors", axes),
            parameters={
                name: placement_from_json(value, axes, f"{where}: parameters['{name}']")
                for name, value in reader.mapping("parameters").items()
            },
            regathered=frozenset(regathered_from_json(reader, "regathered")),
            costs=costs_from_json(reader.object("costs")),
            collectives=tuple(_collective(r, axes) for r in reader.objects("collectives")),
            description=reader.text("description"),
            scheme=reader.text("scheme"),
            notes=reader.texts("notes"),
            tokens_per_sample=reader.optional_integer("tokens_per_sample", 1),
            largest=largest_from_json(reader.objects("largest")),
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the strategy as JSON (compressed if the name ends in ``.gz``).

        The same strategy always gives the same bytes.
        """
        write_document(path, self.to_dict(), indent=1)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Strategy:
        """Read a strategy that :meth:`save` wrote.

        Raises
        ------
        OSError
            If the file cannot be read.
        FileFormatError
            If it is no strategy, or is damaged: the message says what is wrong where.
        """
        reader = read_document(path, FORMAT, VERSION)
        with damage_named(reader.where):
            return cls.from_dict(reader.value, reader.where)


def memory_of(where: Cluster | Device | float) -> float:
    """Bytes of one device of a cluster, of a device, or the number itself.

    Raises
    ------
    ClusterError
        If a number is not positive.
    """
    if isinstance(where, Cluster):
        return where.device.memory_bytes
    if isinstance(where, Device):
        return where.memory_bytes
    if not where > 0:
        raise ClusterError(f"memory of a device must be positive bytes, got {where!r}")
    return float(where)


def mesh_to_json(mesh: Mesh) -> list[list[Any]]:
    """Return a mesh as a list of (name, size, level)."""
    return [[axis.name, axis.size, axis.level] for axis in mesh.axes]


def mesh_from_json(value: Any, where: str) -> Mesh:
    """Rebuild a mesh from :func:`mesh_to_json`."""
    try:
        axes = [MeshAxis(str(name), int(size), int(level)) for name, size, level in value]
        return Mesh(tuple(axes))
    except (TypeError, ValueError) as error:
        raise FileFormatError(
            f"{where}: expected a list of (axis name, size, level): {error}"
        ) from None


def placement_from_json(value: Any, axes: int, where: str) -> ParameterPlacement:
    """Rebuild a parameter's placement on a mesh of ``axes`` axes."""
    reader = Reader(value, where)
    layout = reader.texts("layout")
    scheme = reader.text("scheme")
    used = reader.array("axes")
    if len(layout) != axes:
        raise reader.fail("layout", f"one entry for each of the {axes} mesh axes")
    if scheme not in SCHEMES:
        raise reader.fail("scheme", f"one of {', '.join(SCHEMES)}")
    if not all(isinstance(axis, int) and 0 <= axis < axes for axis in used):
        raise reader.fail("axes", f"a list of mesh axes, 0 to {axes - 1}")
    return ParameterPlacement(layout, scheme, tuple(used))


def costs_from_json(reader: Reader) -> Costs:
    """Rebuild the costs of a strategy."""
    values: dict[str, Any] = {}
    for entry in fields(Costs):
        seconds = entry.name.endswith("_s")
        values[entry.name] = reader.number(entry.name) if seconds else reader.integer(entry.name)
    if not values["time_s"] > 0:
        raise reader.fail("time_s", "a time greater than zero")
    return Costs(**values)


def largest_from_json(readers: list[Reader]) -> tuple[LargeTensor, ...]:
    """Rebuild the list of the largest tensors."""
    return tuple(LargeTensor(r.text("name"), r.text("part"), r.integer("nbytes")) for r in readers)


def regathered_from_json(reader: Reader, field_name: str) -> list[tuple[str, str, int]]:
    """Rebuild what is gathered again: (tensor, consumer, operand) each.

    The pairs (tensor, consumer) of version 1 stand for all operands.
    """
    found = []
    for entry in reader.array(field_name):
        kinds = [type(part) for part in entry] if isinstance(entry, list) else []
        if kinds == [str, str]:
            entry = [*entry, EVERY_OPERAND if entry[1] else 0]
        elif kinds != [str, str, int] or entry[2] < EVERY_OPERAND:
            raise reader.fail(field_name, "a list of (tensor, consumer, operand)")
        found.append(tuple(entry))
    return found


def _collective(reader: Reader, axes: int) -> Collective:
    found = Collective(
        kind=reader.text("kind"),
        axis=reader.integer("axis"),
        nbytes=reader.integer("nbytes"),
        count=reader.integer("count"),
        phase=reader.text("phase"),
        subject=reader.text("subject"),
        why=reader.text("why"),
        seconds=reader.number("seconds"),
    )
    if found.kind not in COLLECTIVES:
        raise reader.fail("kind", f"one of {', '.join(COLLECTIVES)}")
    if found.axis >= axes:
        raise reader.fail("axis", f"a mesh axis, 0 to {axes - 1}")
    if found.phase not in PHASES:
        raise reader.fail("phase", f"one of {', '.join(PHASES)}")
    return found


def _words(reader: Reader, field_name: str, axes: int) -> dict[str, tuple[str, ...]]:
    result = {}
    for name, value in reader.mapping(field_name).items():
        if (
            not isinstance(value, list)
            or len(value) != axes
            or not all(isinstance(word, str) for word in value)
        ):
            raise FileFormatError(
                f"{reader.where}: {field_name}['{name}'] must be a list of {axes} strings, one for "
                "each mesh axis"
            )
        result[name] = tuple(value)
    return result


def _flags(reader: Reader, field_name: str) -> dict[str, bool]:
    value = reader.mapping(field_name)
    if not all(isinstance(flag, bool) for flag in value.values()):
        raise reader.fail(field_name, "true or false for every block")
    return dict(value)
