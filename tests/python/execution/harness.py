"""Runs one operator on shards in every configuration and compares with the whole.

For each configuration the operands are distributed as the rule says, the operator runs on every
rank, and results and gradients are put together as the rule says. Collectives inside the operator
are carried out and must be exactly those that the rule lists.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from tensoropt.graph import Graph, Operator, Tensor, TensorKind
from tensoropt.sharding.configurations import Configurations, configurations
from tensoropt.sharding.layouts import STATE_PR, STATE_RP, STATE_RR
from tensoropt.sharding.rule import Rule
from tensoropt.sharding.rules import rule_for

from .mesh import (
    PARTIAL,
    REPLICATE,
    Coordinate,
    Locals,
    MismatchError,
    Rank,
    Steps,
    combine,
    coordinates,
    distribute,
    lockstep,
    same,
)

MESHES = ((2,), (3,), (4,), (2, 2))
SAMPLE = 256
"""Configurations tried on one mesh; more are sampled, always the same ones."""

Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Operand:
    """An operand to make up: floats that need a gradient unless said otherwise."""

    shape: tuple[int, ...]
    dtype: str = "float64"
    grad: bool = True
    kind: TensorKind = "input"
    padded: tuple[int, ...] = ()
    fill: float = 0.0
    high: int = 2
    values: Callable[[torch.Generator], torch.Tensor] | None = None

    def make(self, random: torch.Generator) -> torch.Tensor:
        if self.values is not None:
            return self.values(random)
        if self.dtype == "int64":
            return torch.randint(0, self.high, self.shape, generator=random)
        if self.dtype == "bool":
            return torch.rand(self.shape, generator=random) < 0.5
        return torch.randn(self.shape, generator=random, dtype=torch.float64)


def floats(*shape: int, **rest: Any) -> Operand:
    return Operand(shape, **rest)


def weight(*shape: int, **rest: Any) -> Operand:
    return Operand(shape, kind="parameter", **rest)


def integers(*shape: int, high: int, **rest: Any) -> Operand:
    return Operand(shape, "int64", False, high=high, **rest)


class Body(Protocol):
    """An operator that communicates: both passes, step by step."""

    def forward(self, rank: Rank, *operands: torch.Tensor) -> Steps:
        """Return (results, what backward needs)."""

    def backward(self, rank: Rank, kept: Any, *gradients: torch.Tensor) -> Steps:
        """Return the gradients of the operands, ``None`` where there is none."""


@dataclass(frozen=True)
class Case:
    """An operator on small shapes.

    `whole` is what torch computes on the full operands. `part` does it on a rank; where it is
    absent, `whole` does. `body` replaces both passes of operators that communicate.
    """

    name: str
    family: str
    operands: Sequence[Operand | None]
    whole: Callable[..., torch.Tensor | Outputs]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    part: Callable[..., torch.Tensor | Outputs] | None = None
    body: Body | None = None
    padded: tuple[int, ...] = ()

    def seed(self) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(self.name.encode()))

    def make(self) -> list[torch.Tensor]:
        """The full operands that are there."""
        random = self.seed()
        tensors = [o.make(random) for o in self.operands if o is not None]
        present = [o for o in self.operands if o is not None]
        return [
            t.requires_grad_(o.grad and t.is_floating_point())
            for t, o in zip(tensors, present, strict=True)
        ]

    def reference(self, operands: Sequence[torch.Tensor]) -> Outputs:
        return _tuple(self.whole(*self.spread(operands)))

    def spread(self, operands: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Operands with ``None`` where an optional one is absent."""
        left = iter(operands)
        return [None if o is None else next(left) for o in self.operands]

    def graph(self, results: Outputs, dtype: str = "float64") -> Graph:
        """A graph of this operator alone."""
        tensors: dict[str, Tensor] = {}
        inputs = []
        for position, operand in enumerate(self.operands):
            inputs.append(f"operand{position}" if operand is not None else "")
            if operand is not None:
                own = dtype if operand.dtype == "float64" else operand.dtype
                grad = operand.grad and operand.dtype == "float64"
                tensors[inputs[-1]] = Tensor(
                    inputs[-1], operand.shape, own, operand.kind, grad, operand.padded
                )
        outputs = []
        for position, result in enumerate(results):
            outputs.append(f"result{position}")
            kind = dtype if result.is_floating_point() else str(result.dtype).split(".")[-1]
            shape = tuple(result.shape)
            tensors[outputs[-1]] = Tensor(
                outputs[-1], shape, kind, "activation", result.requires_grad, self.padded
            )
        operator = Operator("it", self.family, tuple(inputs), tuple(outputs), self.attributes)
        tensors["loss"] = Tensor("loss", ())
        loss = Operator("loss", "opaque", (outputs[0],), ("loss",))
        return Graph(self.name, tensors, (operator, loss), "loss", 1)


def _tuple(value: torch.Tensor | Outputs) -> Outputs:
    return value if isinstance(value, tuple) else (value,)


@dataclass
class Outcome:
    """How a case fared."""

    tried: int = 0
    sharded: int = 0
    failures: list[str] = field(default_factory=list)


def check(
    case: Case,
    change: Callable[[Rule], Rule] = lambda rule: rule,
    meshes: Sequence[tuple[int, ...]] = MESHES,
) -> Outcome:
    """Run a case in all (or a sample of) configurations of its rule, perhaps changed."""
    operands = case.make()
    results = case.reference(operands)
    graph = case.graph(results)
    rule = change(rule_for(graph, graph.operators[0]))
    random = case.seed()
    seeds = tuple(torch.randn(r.shape, generator=random, dtype=torch.float64) for r in results)
    floating = [r for r in results if r.requires_grad]
    wanted = [o for o in operands if o.requires_grad]
    gradients = (
        torch.autograd.grad(
            floating,
            wanted,
            [s for s, r in zip(seeds, results, strict=True) if r.requires_grad],
            allow_unused=True,
            materialize_grads=True,
        )
        if floating and wanted
        else ()
    )
    outcome = Outcome()
    for mesh in meshes:
        flags = [o is not None and o.grad and o.dtype == "float64" for o in case.operands]
        table = configurations(rule, mesh, flags, [r.requires_grad for r in results])
        rows = torch.randperm(len(table), generator=random).tolist()
        for row in sorted(rows[:SAMPLE]):
            trial = _Trial(case, table, row, random)
            outcome.tried += 1
            outcome.sharded += any(table.labels[row])
            try:
                trial.run(operands, results, seeds, gradients)
            except (MismatchError, RuntimeError, IndexError, ValueError) as error:
                text = str(error).splitlines()[0]
                outcome.failures.append(f"{case.name} {mesh} {table.labels[row]}: {text}")
    return outcome


class _Trial:
    """One configuration of one case."""

    def __init__(
        self, case: Case, table: Configurations, row: int, random: torch.Generator
    ) -> None:
        self.case = case
        self.rule = table.rule
        self.mesh = table.mesh_shape
        self.labels = table.labels[row]
        self.random = random
        self.table = table
        self.row = row
        self.inputs = [s[row].tolist() for s in table.input_states]
        self.outputs = [s[row].tolist() for s in table.output_states]

    def run(
        self,
        operands: Sequence[torch.Tensor],
        results: Outputs,
        seeds: Outputs,
        gradients: Sequence[torch.Tensor],
    ) -> None:
        present = [p for p, o in enumerate(self.case.operands) if o is not None]
        forward = {p: _forward(self.inputs[p]) for p in present}
        local = {}
        for position, full in zip(present, operands, strict=True):
            spec = self.case.operands[position]
            assert spec is not None
            parts = distribute(full.detach(), forward[position], self.mesh, self.random, spec.fill)
            local[position] = {
                at: part.requires_grad_(full.requires_grad) for at, part in parts.items()
            }
        pieces = [
            distribute(seed, _backward(state), self.mesh, self.random)
            for seed, state in zip(seeds, self.outputs, strict=True)
        ]
        ranks = {at: self._rank(at, pieces) for at in coordinates(self.mesh)}
        made, found = (self._silent if self.case.body is None else self._communicating)(
            ranks, local, pieces, [r.requires_grad for r in results]
        )
        for index, result in enumerate(results):
            whole = combine(
                {at: values[index] for at, values in made.items()},
                _forward(self.outputs[index]),
                result.shape,
                f"result {index}",
                self.case.padded,
            )
            if not same(whole, result.detach()):
                raise MismatchError(f"result {index} differs from the whole operator's")
        wanted = [p for p, o in zip(present, operands, strict=True) if o.requires_grad]
        # No result is differentiable (an argmax): there is no gradient to compare.
        for position, gradient in zip(wanted if gradients else (), gradients, strict=True):
            spec = self.case.operands[position]
            assert spec is not None
            whole = combine(
                {at: values[position] for at, values in found.items()},
                _backward(self.inputs[position]),
                gradient.shape,
                f"gradient of operand {position}",
                spec.padded,
            )
            if not same(whole, gradient):
                raise MismatchError(
                    f"gradient of operand {position} differs from the whole operator's"
                )

    def _rank(self, at: Coordinate, pieces: Sequence[Locals]) -> Rank:
        shapes = [tuple(piece[at].shape) for piece in pieces]
        return Rank(self.rule, self.labels, self.mesh, at, shapes)

    def _silent(
        self,
        ranks: Mapping[Coordinate, Rank],
        local: Mapping[int, Locals],
        pieces: Sequence[Locals],
        differentiable: Sequence[bool],
    ) -> tuple[dict[Coordinate, Outputs], dict[Coordinate, dict[int, torch.Tensor]]]:
        """Every rank on its own, gradients by torch."""
        if self.rule.collectives:
            raise MismatchError(
                "the rule lists collectives, but the operator has no body that issues any"
            )
        made: dict[Coordinate, Outputs] = {}
        found: dict[Coordinate, dict[int, torch.Tensor]] = {}
        for at, rank in ranks.items():
            mine = [local[p][at] for p in sorted(local)]
            given = self.case.spread(mine)
            values = _tuple(
                self.case.whole(*given) if self.case.part is None else self.case.part(rank, *given)
            )
            made[at] = tuple(v.detach() for v in values)
            wanted = [p for p in sorted(local) if local[p][at].requires_grad]
            chosen = [i for i, yes in enumerate(differentiable) if yes]
            if not wanted or not chosen:
                found[at] = {}
                continue
            for i in chosen:
                if values[i].shape != pieces[i][at].shape:
                    raise MismatchError(f"result {i} has local shape {tuple(values[i].shape)}")
            # A result that depends on no operand here (nothing fell into the shard) has no graph.
            chosen = [i for i in chosen if values[i].requires_grad]
            grads = torch.autograd.grad(
                [values[i] for i in chosen],
                [local[p][at] for p in wanted],
                [pieces[i][at] for i in chosen],
                allow_unused=True,
                materialize_grads=True,
            )
            found[at] = dict(zip(wanted, grads, strict=True))
        return made, found

    def _communicating(
        self,
        ranks: Mapping[Coordinate, Rank],
        local: Mapping[int, Locals],
        pieces: Sequence[Locals],
        differentiable: Sequence[bool],
    ) -> tuple[dict[Coordinate, Outputs], dict[Coordinate, dict[int, torch.Tensor]]]:
        """All ranks in lockstep; what they communicate must be what the rule says."""
        body = self.case.body
        assert body is not None
        log: Counter[tuple[str, str, int, int]] = Counter()
        with torch.no_grad():
            steps = {
                at: body.forward(rank, *self.case.spread([local[p][at] for p in sorted(local)]))
                for at, rank in ranks.items()
            }
            done = lockstep(steps, self.labels, "forward", log)
            back = {
                at: body.backward(rank, done[at][1], *(piece[at] for piece in pieces))
                for at, rank in ranks.items()
            }
            grads = lockstep(back, self.labels, "backward", log)
        expected = self._expected_collectives()
        if log != expected:
            raise MismatchError(f"collectives {dict(log)}, the rule says {dict(expected)}")
        return (
            {at: _tuple(value[0]) for at, value in done.items()},
            {at: dict(enumerate(value)) for at, value in grads.items()},
        )

    def _expected_collectives(self) -> Counter[tuple[str, str, int, int]]:
        expected: Counter[tuple[str, str, int, int]] = Counter()
        for collective in self.rule.collectives:
            elements = int(self.table.local_elements(collective.extent)[self.row])
            for axis, label in enumerate(self.labels):
                if label == collective.dim:
                    key = (collective.phase, collective.kind, axis, elements)
                    expected[key] += collective.count
        return expected


def _forward(states: Sequence[int]) -> list[int]:
    return [s - 3 if s >= 3 else PARTIAL if s == STATE_PR else REPLICATE for s in states]


def _backward(states: Sequence[int]) -> list[int]:
    assert STATE_RR < 3
    return [s - 3 if s >= 3 else PARTIAL if s == STATE_RP else REPLICATE for s in states]
