"""All legal configurations of an operator on a mesh, as arrays.

A configuration assigns to each mesh axis a **label**: a named dim of the operator's rule, ``""``
(the computation is replicated on that axis), or ``"~i"`` (pending sums pass through: the operands
of ``rule.linear[i]`` are ``Partial``). Layouts of operands, results and gradients follow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensoropt.errors import ShardingError

from .layouts import STATE_PR, STATE_RP, STATE_RR, state_shard
from .rule import Extent, Rule

__all__ = ["Configurations", "configurations"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Configurations:
    """The K legal configurations of one operator on one mesh.

    Attributes
    ----------
    rule : Rule
    mesh_shape : tuple of int
    labels : tuple of tuple of str
        Label of each axis, for each configuration.
    input_states, output_states : tuple of (K, axes) int arrays
        State digits (see ``layouts``) of every operand and result.
    shards : dict of str to (K,) int array
        Into how many parts each named dim is split.
    divisor : (K,) int array
        Over how many devices the computation itself is split.
    """

    rule: Rule
    mesh_shape: tuple[int, ...]
    labels: tuple[tuple[str, ...], ...]
    input_states: tuple[IntArray, ...]
    output_states: tuple[IntArray, ...]
    shards: dict[str, IntArray]
    divisor: IntArray

    def __len__(self) -> int:
        return len(self.labels)

    def local_size(self, dim: str) -> IntArray:
        """Local size (the largest) of a named dim in every configuration."""
        return -(-self.rule.dim(dim).size // self.shards[dim])

    def local_elements(self, extent: Extent) -> IntArray:
        """Local elements of an extent in every configuration."""
        count = np.full(len(self), extent.constant, np.int64)
        for dim in extent.dims:
            count *= self.local_size(dim)
        return count

    def index(self, labels: Sequence[str]) -> int:
        """Position of a configuration.

        Raises
        ------
        ShardingError
            If the labels are no legal configuration of this operator.
        """
        try:
            return self.labels.index(tuple(labels))
        except ValueError:
            known = sorted({label for row in self.labels for label in row})
            raise ShardingError(
                f"{tuple(labels)} is no legal configuration on mesh {self.mesh_shape}; the labels "
                f"here are {known}, and the sizes of the axes must divide the dims"
            ) from None


def configurations(
    rule: Rule,
    mesh_shape: Sequence[int],
    needs_grad: Sequence[bool],
    results_need_grad: Sequence[bool],
    among: Callable[[Sequence[str]], bool] | None = None,
) -> Configurations:
    """Enumerate the legal configurations of an operator.

    Parameters
    ----------
    rule : Rule
    mesh_shape : sequence of int
    needs_grad : sequence of bool
        Whether each operand carries a gradient.
    results_need_grad : sequence of bool
        Whether each result does.
    among : callable, optional
        Whether the labels of all axes that are longer than one may occur together; default: all.

    Returns
    -------
    Configurations
        In lexicographic order of labels: replicated first, then the dims as the rule lists them,
        then pending sums.
    """
    mesh_shape = tuple(mesh_shape)
    choices = ["", *(d.name for d in rule.dims), *(f"~{i}" for i in range(len(rule.linear)))]
    table = np.array(
        list(itertools.product(range(len(choices)), repeat=len(mesh_shape))), np.int64
    ).reshape(-1, len(mesh_shape))
    if among is not None:
        divided = [axis for axis, size in enumerate(mesh_shape) if size > 1]
        table = table[[among([choices[row[axis]] for axis in divided]) for row in table]]
    # An axis of size 1 splits nothing: one label is enough.
    for axis, size in enumerate(mesh_shape):
        if size == 1:
            table = table[table[:, axis] == 0]
    sizes = np.array(mesh_shape, np.int64)
    legal = np.ones(len(table), bool)
    shards: dict[str, IntArray] = {}
    for number, dim in enumerate(rule.dims, start=1):
        parts = np.prod(np.where(table == number, sizes[None, :], 1), axis=1)
        shards[dim.name] = parts
        legal &= (parts <= dim.size) if dim.padded else (dim.size % parts == 0)
    table = table[legal]
    shards = {name: parts[legal] for name, parts in shards.items()}
    named = (table >= 1) & (table <= len(rule.dims))
    divisor = np.prod(np.where(named, sizes[None, :], 1), axis=1)
    return Configurations(
        rule,
        mesh_shape,
        tuple(tuple(choices[c] for c in row) for row in table),
        tuple(_input_states(rule, choices, table, i, grad) for i, grad in enumerate(needs_grad)),
        tuple(
            _output_states(rule, choices, table, i, grad)
            for i, grad in enumerate(results_need_grad)
        ),
        shards,
        divisor,
    )


def _input_states(
    rule: Rule, choices: list[str], table: IntArray, operand: int, grad: bool
) -> IntArray:
    dims = rule.inputs[operand]
    digit = np.empty(len(choices), np.int64)
    for number, label in enumerate(choices):
        if label == "":
            digit[number] = STATE_RR
        elif label.startswith("~"):
            partial = operand in rule.linear[int(label[1:])]
            digit[number] = STATE_PR if partial else STATE_RP
        elif label in dims:
            digit[number] = state_shard(dims.index(label))
        else:
            digit[number] = STATE_RP
        # The output is then Partial and takes a Replicate gradient, and a bias is added on one
        # rank: its gradient is the same everywhere.
        if operand == rule.bias and _makes_partial(rule, label) and label not in dims:
            digit[number] = STATE_RR
    if not grad:
        digit[digit == STATE_RP] = STATE_RR
    return digit[table]


def _makes_partial(rule: Rule, label: str) -> bool:
    return label.startswith("~") or (label != "" and rule.dim(label).role == "reduction")


def _output_states(
    rule: Rule, choices: list[str], table: IntArray, result: int, grad: bool
) -> IntArray:
    dims = rule.outputs[result]
    digit = np.empty(len(choices), np.int64)
    for number, label in enumerate(choices):
        if label == "":
            digit[number] = STATE_RR
        elif label.startswith("~"):
            digit[number] = STATE_PR
        elif label in dims:
            digit[number] = state_shard(dims.index(label))
        elif rule.dim(label).role == "reduction":
            digit[number] = STATE_PR
        else:
            digit[number] = STATE_RR
    return digit[table]
