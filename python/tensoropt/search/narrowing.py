"""Meshes on which there are too many layouts to look at all of them.

With three axes a tensor has more than a hundred layouts, and blocks that border on four tensors
have too many combinations even with two. Of these meshes only a part is searched: along any two
axes operators and tensors may be what they commonly are, together, in the answers of meshes
searched before and in named schemes (see :class:`~tensoropt.cost.axis_uses.Uses`). Storage and
what is recomputed are chosen freely. Nothing is proven about the rest, and the result says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tensoropt.cluster import Mesh
from tensoropt.cost.assignment import Assignment
from tensoropt.cost.axis_uses import Among, AxisUses
from tensoropt.cost.tables import Tables
from tensoropt.sharding.decisions import Node

from .problem import Choices

__all__ = ["add_choices", "narrowed", "narrowed_remark", "too_many"]

MOST_BORDERS = 4096
"""Combinations of the tensors that a block borders on, up to which all are searched."""

MOST_PAIRS = 8192
"""Combinations of what a producer and a reader may be."""

FEW_BORDERS = 1024
"""Combinations that are searched where not all are."""

LEAST_SHARES = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Uses of axes that are rarer in the answers of other meshes are left out: the first share at which
what is left is not too much."""


def narrowed(tables: Tables, answers: AxisUses, schemes: Sequence[Assignment]) -> Tables:
    """The part of a mesh that is searched.

    Parameters
    ----------
    tables : Tables
        The whole.
    answers : AxisUses
        What the answers of other meshes use axes for.
    schemes : sequence of Assignment
        Named schemes on this mesh.
    """
    known = AxisUses()
    add_assignments(known, tables, schemes)
    for least_share in LEAST_SHARES:
        found = Tables(
            tables.model,
            tables.decisions,
            recomputable=tables.recomputable,
            among=Among(answers, known, least_share),
        )
        if not too_many(found, FEW_BORDERS):
            break
    return found


def too_many(tables: Tables, borders_at_most: int = MOST_BORDERS) -> bool:
    """Whether only a part of what a mesh allows can be searched.

    Parameters
    ----------
    tables : Tables
    borders_at_most : int
        Combinations of the tensors that a block borders on.
    """
    decisions = tables.decisions
    borders: dict[int, set[Node]] = {}
    pairs = 1
    for link in decisions.links:
        ends = (link.source, link.target)
        pairs = max(pairs, math.prod(tables.configuration_count(node) for node in ends))
        block = decisions.block_of_link(link)
        if block is not None:
            outside = (node for node in ends if node not in decisions.block_of)
            borders.setdefault(block, set()).update(outside)
    most = max(
        (
            math.prod(tables.configuration_count(node) for node in border)
            for border in borders.values()
        ),
        default=1,
    )
    return most > borders_at_most or pairs > MOST_PAIRS


def add_assignments(uses: AxisUses, tables: Tables, assignments: Sequence[Assignment]) -> None:
    """Add what strategies use axes for."""
    labels, states = [], []
    for assignment in assignments:
        for position, row in assignment.operators.items():
            labels.append((tables.operator_key(position), row, 1))
        for name, state in assignment.tensors.items():
            states.append((tables.tensor_signature(name), state, 1))
    uses.labels.add(labels)
    uses.states.add(states)


def add_choices(
    uses: AxisUses, tables: Tables, choices: Choices, chosen: npt.NDArray[np.integer]
) -> None:
    """Add what some of the answers of a search use axes for.

    Parameters
    ----------
    uses : AxisUses
    tables : Tables
        Those of the answers.
    choices : Choices
    chosen : (n,) int array
        Which answers.
    """
    labels, states = [], []
    for node, rows in choices.nodes.items():
        different, counts = np.unique(rows[chosen], return_counts=True)
        if node.kind == "operator":
            position = int(node.key)
            known = tables.configurations(position).labels
            for row, count in zip(different, counts.tolist(), strict=True):
                labels.append((tables.operator_key(position), known[row], count))
            continue
        if node.kind == "tensor":
            name = str(node.key)
            digits = tables.tensor_states(name)[different]
        else:
            group = tables.decisions.group(node)
            if len(group.readers) == 1:
                continue
            name = group.names[0]
            all_digits, pairs = tables.tied_states(group)
            digits = all_digits[[pairs[row][0] for row in different]]
        for state, count in zip(digits.tolist(), counts.tolist(), strict=True):
            states.append((tables.tensor_signature(name), state, count))
    uses.labels.add(labels)
    uses.states.add(states)


def narrowed_remark(meshes: Sequence[Mesh]) -> tuple[str, ...]:
    """Say on which meshes only a part was searched."""
    if not meshes:
        return ()
    names = ", ".join(str(mesh) for mesh in meshes)
    return (
        f"on {'mesh' if len(meshes) == 1 else 'meshes'} {names} there are too many layouts: only "
        "what plans on other meshes and named schemes do along any two axes was searched, and "
        "nothing is proven about the rest",
    )
