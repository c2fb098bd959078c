"""Recognises a mixture of experts in its batched form and writes it as routing and expert products.

Traced, the block repeats every token for each of its ``k`` experts, reads one copy of an expert's
weight for every such row (``weight[ids]``), multiplies row by row, scales by the router's weight
and adds a token's ``k`` rows. Nobody trains it that way. It becomes ``moe_dispatch`` of the tokens
to slots ``(expert, slot, feature)``, one batched product for each weight, and ``moe_combine``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensoropt.graph import Operator
from tensoropt.importing.draft import Draft

__all__ = ["fuse_experts"]


def fuse_experts(draft: Draft) -> None:
    """Rewrite every batched mixture of experts."""
    for operator in draft.operators:
        if operator.family != "expand" or not draft.untouched([operator]):
            continue
        block = _Block.start(draft, operator)
        if block is not None and block.follow():
            block.write()
            draft.note(
                "mixture of experts: every expert is assumed to get equally many tokens, "
                "ceil(tokens * experts per token / experts)"
            )


@dataclass
class _Block:
    """One block while it is followed: rows of the traced form and what they become."""

    draft: Draft
    tokens: str
    indices: str
    experts: int
    rows: int
    chosen: int
    slots: int
    #: From a traced tensor with a row for every (token, expert) pair to ours (expert, slot, ...).
    slot_of: dict[str, str] = field(default_factory=dict)
    #: From a traced tensor ``weight[ids]`` to the weight.
    weight_of: dict[str, str] = field(default_factory=dict)
    seen: list[Operator] = field(default_factory=list)
    made: list[Operator] = field(default_factory=list)
    routed: str = ""
    last: Operator | None = None

    @classmethod
    def start(cls, draft: Draft, expand: Operator) -> _Block | None:
        """A block that begins where tokens (t, 1, h) are repeated to (t, k, h)."""
        shape = draft.shape(expand.outputs[0])
        before = draft.shape(expand.inputs[0])
        if len(shape) != 3 or before != (shape[0], 1, shape[2]):
            return None
        pick = _first_pick(draft, shape[0] * shape[1])
        if pick is None or pick.inputs[1] not in _flat_indices(draft, shape[:2]):
            return None
        below = draft.producer(expand.inputs[0], "view")
        experts = draft.shape(pick.inputs[0])[0]
        rows = shape[0] * shape[1]
        block = cls(
            draft,
            below.inputs[0] if below is not None else expand.inputs[0],
            _flat_indices(draft, shape[:2])[pick.inputs[1]],
            experts,
            rows,
            shape[1],
            math.ceil(rows / experts),
        )
        block._dispatch(expand, shape)
        return block

    def _dispatch(self, expand: Operator, shape: tuple[int, ...]) -> None:
        draft, flat = self.draft, (shape[0], shape[2])
        if draft.shape(self.tokens) != flat:
            view = draft.result(expand, "view", (self.tokens,), flat)
            self.made.append(view)
            self.tokens = view.outputs[0]
        dispatch = draft.result(
            expand,
            "moe_dispatch",
            (self.tokens, self.indices),
            (self.experts, self.slots, shape[2]),
            experts=self.experts,
        )
        self.made.append(dispatch)
        self.seen.append(expand)
        self.slot_of[expand.outputs[0]] = dispatch.outputs[0]

    def follow(self) -> bool:
        """Translate what reads the rows, up to the sum over a token's experts."""
        for operator in self.draft.operators:
            if operator in self.seen or not self.draft.untouched([operator]):
                continue
            if operator.family == "index_select" and self._is_pick(operator):
                self.weight_of[operator.outputs[0]] = operator.inputs[0]
                self.seen.append(operator)
            elif any(name in self.slot_of for name in operator.inputs):
                self.seen.append(operator)
                if self._combined(operator):
                    return self._closed()
                if not self._translate(operator):
                    return False
        return False

    def _is_pick(self, operator: Operator) -> bool:
        weight, ids = operator.inputs
        return (
            operator.attributes["dim"] == 0
            and self.draft.tensors[weight].kind == "parameter"
            and _flat_indices(self.draft, (self.rows // self.chosen, self.chosen)).get(ids)
            == self.indices
        )

    def _translate(self, operator: Operator) -> bool:
        known = [self.slot_of.get(name) for name in operator.inputs]
        if operator.family == "view":
            return self._view(operator, known[0])
        if operator.family == "matmul":
            return self._product(operator)
        if operator.family == "elementwise":
            return self._elementwise(operator)
        shape = self.draft.shape(operator.outputs[0])
        if operator.family in ("split", "slice") and operator.attributes["dim"] == len(shape) - 1:
            attributes = {**operator.attributes, "dim": 2}
            return self._copy(operator, [known[0] or ""], attributes)
        if operator.family in ("dropout", "layer_norm") and known[0]:
            return self._copy(operator, [known[0], *operator.inputs[1:]], operator.attributes)
        return False

    def _view(self, operator: Operator, slot: str | None) -> bool:
        """Views that only add or drop dims of size 1, or set tokens apart from experts."""
        shape = self.draft.shape(operator.outputs[0])
        if slot is None or math.prod(shape[1:]) * shape[0] != self.rows * self._width(slot):
            return False
        whole = [s for s in shape if s != 1] in ([self.rows, self._width(slot)], [self.rows])
        apart = shape[:2] == (self.rows // self.chosen, self.chosen)
        if whole or (apart and shape[2:] == (self._width(slot),)):
            self.slot_of[operator.outputs[0]] = slot
            return True
        return False

    def _width(self, slot: str) -> int:
        return self.draft.shape(slot)[2]

    def _product(self, operator: Operator) -> bool:
        """``weight[ids] @ row`` or ``row @ weight[ids]``."""
        left, right = operator.inputs
        if left in self.weight_of and right in self.slot_of:
            weight, slot = self._transposed(self.weight_of[left]), self.slot_of[right]
        elif right in self.weight_of and left in self.slot_of:
            weight, slot = self.weight_of[right], self.slot_of[left]
        else:
            return False
        width = self.draft.shape(weight)[2]
        if self.draft.shape(weight)[1] != self._width(slot):
            return False
        shape = (self.experts, self.slots, width)
        product = self.draft.result(operator, "matmul", (slot, weight), shape)
        self.made.append(product)
        self.slot_of[operator.outputs[0]] = product.outputs[0]
        return True

    def _transposed(self, weight: str) -> str:
        """The weight (e, n, k) kept as (e, k, n), the form that products take."""
        e, n, k = self.draft.shape(weight)
        return self.draft.tensor(weight, f"{weight}.transpose(1, 2)", (e, k, n))

    def _elementwise(self, operator: Operator) -> bool:
        """Elementwise on rows; a product with one number for each row is the router's weight."""
        inputs: list[str] = []
        for name in operator.inputs:
            if name in self.slot_of:
                inputs.append(self.slot_of[name])
            elif name in self.weight_of:
                bias = self.weight_of[name]
                e, n = self.draft.shape(bias)
                view = self.draft.result(operator, "view", (bias,), (e, 1, n))
                self.made.append(view)
                inputs.append(view.outputs[0])
            elif self._is_router_weight(operator, name):
                other = next(n for n in operator.inputs if n != name)
                self.slot_of[operator.outputs[0]] = self.slot_of[other]
                return True
            elif self.draft.tensors[name].size == 1:
                inputs.append(name)
            else:
                return False
        return self._copy(operator, inputs, operator.attributes)

    def _is_router_weight(self, operator: Operator, name: str) -> bool:
        view = self.draft.producer(name, "view")
        pairs = (self.rows // self.chosen, self.chosen)
        scales = operator.attributes["op"] == "mul" and len(operator.inputs) == 2
        if self.routed or not scales or self.draft.tensors[name].size != self.rows:
            return False
        if view is None or self.draft.shape(view.inputs[0]) != pairs:
            return False
        self.routed = view.inputs[0]
        return True

    def _copy(self, operator: Operator, inputs: list[str], attributes: Mapping[str, Any]) -> bool:
        """The same operator on slots, with all its results."""
        outputs = []
        for output in operator.outputs:
            width = self.draft.shape(output)[-1]
            name = self.draft.tensor(output, f"{output}/slots", (self.experts, self.slots, width))
            outputs.append(name)
            self.slot_of[output] = name
        copy = self.draft.operator(operator, operator.family, inputs, outputs, **attributes)
        self.made.append(copy)
        return True

    def _combined(self, operator: Operator) -> bool:
        """Whether this is the sum over a token's experts; if so it ends the block."""
        if operator.family != "reduce" or operator.attributes["op"] != "sum" or not self.routed:
            return False
        name = operator.inputs[0]
        pairs = (self.rows // self.chosen, self.chosen)
        if self.draft.shape(name)[:2] != pairs or list(operator.attributes["dims"]) != [1]:
            return False
        slot = self.slot_of[name]
        combine = self.draft.operator(
            operator, "moe_combine", (slot, self.indices, self.routed), operator.outputs
        )
        self.made.append(combine)
        self.last = operator
        return True

    def _closed(self) -> bool:
        """Whether nothing outside reads what the block drops."""
        inside = {operator.name for operator in self.seen}
        return all(
            reader.name in inside
            for operator in self.seen
            if operator is not self.last
            for name in operator.outputs
            for reader in self.draft.consumers(name)
        )

    def write(self) -> None:
        """Put the new operators where the sum was and drop the others."""
        assert self.last is not None
        for operator in self.seen:
            self.draft.replace(operator, *(self.made if operator is self.last else ()))


def _first_pick(draft: Draft, rows: int) -> Operator | None:
    """The first ``weight[ids]`` with so many rows that is not yet rewritten."""
    for operator in draft.operators:
        if operator.family == "index_select" and draft.untouched([operator]):
            weight, ids = operator.inputs
            if draft.shape(ids) == (rows,) and draft.tensors[weight].kind == "parameter":
                return operator
    return None


def _flat_indices(draft: Draft, pairs: tuple[int, ...]) -> dict[str, str]:
    """From flat expert ids (t * k) to the ids (t, k) that they are a view of."""
    found: dict[str, str] = {}
    for operator in draft.operators:
        if operator.family == "view" and len(draft.shape(operator.outputs[0])) == 1:
            (source,) = operator.inputs
            if draft.shape(source) == tuple(pairs) and not draft.tensors[source].is_floating:
                found[operator.outputs[0]] = source
    return found
