"""In which order operators run."""

from __future__ import annotations

from collections.abc import Sequence

from tensoropt.graph import Graph

__all__ = ["Step", "backward_steps"]

Step = tuple[str, int]
"""A phase (``forward``, ``recompute`` or ``backward``) and the position of an operator."""


def backward_steps(graph: Graph, recompute: Sequence[bool], order: Sequence[int]) -> list[Step]:
    """Operators in reverse; a recomputed block is run forward first."""
    redone = {
        p: block
        for block, redo in zip(graph.blocks, recompute, strict=True)
        if redo
        for p in range(block.start, block.stop)
    }
    steps: list[Step] = []
    entered = None
    for position in reversed(order):
        block = redone.get(position)
        if block is not None and block is not entered:
            inside = [p for p in order if block.start <= p < block.stop]
            steps += [("recompute", p) for p in inside]
        entered = block
        if any(t.requires_grad for t in graph.results(graph.operators[position])):
            steps.append(("backward", position))
    return steps
