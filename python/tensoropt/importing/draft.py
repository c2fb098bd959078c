"""A graph under change: what the passes of the importers edit.

A pass reads the graph as it was when the pass began (producers, consumers), asks for replacements,
and commits them together. Two replacements never share an operator: the second match is refused,
and the next round of the pass sees it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tensoropt.graph import Graph, Operator, Tensor

__all__ = ["Draft"]


class Draft:
    """Edits a graph in rounds.

    Parameters
    ----------
    graph : Graph
        Is not changed.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.loss = graph.loss
        self.notes: list[str] = list(graph.notes)
        self._slots: list[list[Operator]] = [[operator] for operator in graph.operators]
        self._names: set[str] = set(graph.tensors) | {o.name for o in graph.operators}
        self._renamed: dict[str, str] = {}
        self._created: dict[str, str] = {}
        self._index()

    # -- reading --------------------------------------------------------------------------------

    @property
    def operators(self) -> list[Operator]:
        """The operators as they were when the round began."""
        return list(self._operators)

    def producer(self, name: str, family: str | None = None) -> Operator | None:
        """What makes a tensor, if it is of the family and not yet replaced in this round."""
        made = self._producer.get(name)
        if made is None or made.name in self._touched:
            return None
        return made if family is None or made.family == family else None

    def consumers(self, name: str) -> list[Operator]:
        """The operators that read a tensor, each once, in order."""
        return self._consumers.get(name, [])

    def only_consumer(self, name: str, family: str | None = None) -> Operator | None:
        """The single reader of a tensor, if it is of the family and not yet replaced."""
        readers = self.consumers(name)
        if len(readers) != 1 or name == self.loss or readers[0].name in self._touched:
            return None
        return readers[0] if family is None or readers[0].family == family else None

    def untouched(self, operators: Iterable[Operator]) -> bool:
        """Whether none of the operators was replaced in this round."""
        return all(o.name not in self._touched for o in operators)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self.tensors[name].shape

    # -- changing -------------------------------------------------------------------------------

    def tensor(self, like: str, name: str, shape: Iterable[int], **changes: Any) -> str:
        """A new tensor with the dtype, kind and source of another; returns its name."""
        name = self.fresh(name)
        self.tensors[name] = replace(self.tensors[like], name=name, shape=tuple(shape), **changes)
        return name

    def fresh(self, name: str) -> str:
        """The name itself, or with a number if it is taken."""
        number, candidate = 0, name
        while candidate in self._names:
            number += 1
            candidate = f"{name}.{number}"
        self._names.add(candidate)
        return candidate

    def operator(
        self,
        like: Operator,
        family: str,
        inputs: Iterable[str],
        outputs: Iterable[str],
        **given: Any,
    ) -> Operator:
        """A new operator that takes another's source; its name is derived from the other's."""
        prefix = like.name.rpartition("/")[0]
        label = str(given.get("op", family))
        name = self.fresh(f"{prefix}/{label}" if prefix else label)
        self._created[name] = f"{prefix}/{label}" if prefix else label
        return Operator(name, family, tuple(inputs), tuple(outputs), given, like.source)

    def result(
        self,
        like: Operator,
        family: str,
        inputs: Iterable[str],
        shape: Iterable[int],
        *,
        like_output: str | None = None,
        **given: Any,
    ) -> Operator:
        """As :meth:`operator`, with one new tensor as its result.

        The tensor is like ``like_output``, by default the first result of ``like``: it has its
        dtype, and a gradient only if that one has.
        """
        made = self.operator(like, family, inputs, (), **given)
        self._names.discard(made.name)
        model = self.tensors[like_output or like.outputs[0]]
        operands = [self.tensors[i] for i in made.inputs if i]
        grad = model.requires_grad and any(t.requires_grad for t in operands)
        output = self.tensor(
            model.name, made.name, shape, kind="activation", requires_grad=grad, padded_dims=()
        )
        return replace(made, outputs=(output,))

    def replace(self, old: Operator, *new: Operator) -> None:
        """Put operators in the place of another (none: remove it)."""
        assert old.name not in self._touched, f"{old.name} is replaced twice"
        self._touched.add(old.name)
        self._slots[self._position[old.name]] = list(new)

    def rename(self, old: str, new: str) -> None:
        """Let every reader of a tensor read another one."""
        self._renamed[old] = new

    def note(self, text: str) -> None:
        """Record something that every report must say."""
        if text not in self.notes:
            self.notes.append(text)

    def commit(self) -> bool:
        """Apply the edits, drop what the loss does not need; whether anything changed."""
        changed = bool(self._touched or self._renamed)
        kept: list[Operator] = []
        self.loss = self._resolve(self.loss)
        needed = {self.loss}
        for slot in reversed(self._slots):
            for operator in reversed(slot):
                if not needed.isdisjoint(operator.outputs):
                    inputs = tuple(self._resolve(i) for i in operator.inputs)
                    kept.append(replace(operator, inputs=inputs))
                    needed.update(i for i in inputs if i)
        kept.reverse()
        changed = changed or sum(map(len, self._slots)) != len(kept)
        self._slots = [[operator] for operator in kept]
        self._renamed.clear()
        self._index()
        return changed

    def graph(self) -> Graph:
        """The edited graph: constants first, unread tensors dropped, parameters in order of use."""
        self.commit()
        # A constant made inside the first layer would make that layer unlike the others.
        ordered = self._tidied(sorted(self._operators, key=lambda o: o.family != "constant"))
        read: dict[str, None] = {}
        for operator in ordered:
            read.update(dict.fromkeys([*(i for i in operator.inputs if i), *operator.outputs]))
        return replace(
            self._graph,
            tensors={name: self.tensors[name] for name in read},
            operators=tuple(ordered),
            loss=self.loss,
            blocks=(),
            notes=tuple(self.notes),
        )

    def _tidied(self, operators: list[Operator]) -> list[Operator]:
        """Give what passes created the names that it would have had from the start."""
        created = [o for o in operators if o.name in self._created and len(o.outputs) == 1]
        inputs = {n for n, t in self.tensors.items() if t.kind in ("input", "parameter", "buffer")}
        self._names = (
            inputs | {o.name for o in operators} | {n for o in operators for n in o.outputs}
        )
        for operator in created:
            self._names -= {operator.name, operator.outputs[0]}
        names = {o.name: self.fresh(self._created[o.name]) for o in created}
        renamed = {o.outputs[0]: names[o.name] for o in created}
        # All at once: a new name may be another's old one.
        moved = {new: replace(self.tensors.pop(old), name=new) for old, new in renamed.items()}
        self.tensors.update(moved)
        self.loss = renamed.get(self.loss, self.loss)
        tidy = [
            replace(
                o,
                name=names.get(o.name, o.name),
                inputs=tuple(renamed.get(i, i) for i in o.inputs),
                outputs=tuple(renamed.get(i, i) for i in o.outputs),
            )
            for o in operators
        ]
        self._created = {}
        return tidy

    def _resolve(self, name: str) -> str:
        while name in self._renamed:
            name = self._renamed[name]
        return name

    def _index(self) -> None:
        self._touched: set[str] = set()
        self._operators = [operator for slot in self._slots for operator in slot]
        self._position = {o.name: i for i, o in enumerate(self._operators)}
        self._producer = {name: o for o in self._operators for name in o.outputs}
        self._consumers: dict[str, list[Operator]] = {}
        for operator in self._operators:
            for name in dict.fromkeys(operator.inputs):
                if name:
                    self._consumers.setdefault(name, []).append(operator)
