"""Operators as a rank runs them where it is more than torch's operator on local operands."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from .mesh import Rank, Request, Steps


def once(rank: Rank, bias: Tensor) -> Tensor:
    """A bias that one rank adds to a pending sum; all ranks have its gradient."""
    return bias if rank.adds_bias else bias - bias.detach()


def linear(order: str) -> Any:
    def whole(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return functional.linear(x, w if order == "nk" else w.T, b)

    def part(rank: Rank, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return whole(x, w, None if b is None else once(rank, b))

    return {"whole": whole, "part": part}


def in_range(index: Tensor, offset: int, size: int) -> tuple[Tensor, Tensor]:
    """Which indices fall into a shard, and their place there (0 for the others)."""
    local = index - offset
    inside = (local >= 0) & (local < size)
    return inside, torch.where(inside, local, 0)


def embedding(padding: int | None, words: int) -> Any:
    def whole(ids: Tensor, w: Tensor) -> Tensor:
        return functional.embedding(ids, w, padding)

    def part(rank: Rank, ids: Tensor, w: Tensor) -> Tensor:
        offset = rank.offset("v", words)
        inside, local = in_range(ids, offset, w.shape[0])
        own = None if padding is None else padding - offset
        own = own if own is not None and 0 <= own < w.shape[0] else None
        return functional.embedding(local, w, own) * inside[..., None]

    return {"whole": whole, "part": part}


def gather(dim: int, size: int) -> Any:
    def part(rank: Rank, x: Tensor, index: Tensor) -> Tensor:
        inside, local = in_range(index, rank.offset("v", size), x.shape[dim])
        return torch.gather(x, dim, local) * inside

    return {"whole": lambda x, index: torch.gather(x, dim, index), "part": part}


def index_select(dim: int, size: int) -> Any:
    def whole(x: Tensor, index: Tensor) -> Tensor:
        picked = x.index_select(dim, index.reshape(-1))
        return picked.reshape(*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])

    def part(rank: Rank, x: Tensor, index: Tensor) -> Tensor:
        inside, local = in_range(index, rank.offset("v", size), x.shape[dim])
        shape = [1] * dim + list(index.shape) + [1] * (len(x.shape) - dim - 1)
        return whole(x, local) * inside.reshape(shape)

    return {"whole": whole, "part": part}


def scatter(dim: int, size: int, mode: str | None) -> Any:
    def whole(x: Tensor, index: Tensor, src: Tensor) -> Tensor:
        if mode == "add":
            return x.scatter_add(dim, index, src)
        return x.scatter(dim, index, src)

    def part(rank: Rank, x: Tensor, index: Tensor, src: Tensor) -> Tensor:
        n = x.shape[dim]
        inside, local = in_range(index, rank.offset("v", size), n)
        # What is not for this shard goes to one more place, which is then dropped.
        spare = torch.cat([x, torch.zeros_like(x.narrow(dim, 0, 1))], dim)
        return whole(spare, torch.where(inside, local, n), src).narrow(dim, 0, n)

    return {"whole": whole, "part": part}


def attention(causal: bool, scale: float, queries: int) -> Any:
    def whole(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )

    def part(rank: Rank, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = torch.einsum("bhsd,bhtd->bhst", q, k) * scale
        if mask is not None:
            scores = scores + mask
        if causal:
            row = torch.arange(q.shape[2]) + rank.offset("s", queries)
            later = torch.arange(k.shape[2])[None, :] > row[:, None]
            scores = scores.masked_fill(later, -math.inf)
        return torch.einsum("bhst,bhte->bhse", scores.softmax(-1), v)

    return {"whole": whole, "part": part}


def convolution(nd: int, transposed: bool, groups: int, **rest: Any) -> Any:
    name = f"conv{'_transpose' if transposed else ''}{nd}d"
    function = getattr(functional, name)

    def whole(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return function(x, w, b, groups=groups, **rest)

    def part(rank: Rank, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        b = None if b is None else once(rank, b)
        return function(x, w, b, groups=groups // rank.parts("g"), **rest)

    return {"whole": whole, "part": part}


def mean(dims: list[int], keepdim: bool, count: int) -> Any:
    def part(rank: Rank, x: Tensor) -> Tensor:
        return x.sum(dims, keepdim) / count

    return {"whole": lambda x: x.mean(dims, keepdim), "part": part}


def masked_dropout(p: float, keep: Tensor) -> Any:
    def part(rank: Rank, x: Tensor) -> Tensor:
        return x * rank.take(keep, rank.rule.outputs[0]) / (1 - p)

    return {"whole": lambda x: x * keep / (1 - p), "part": part}


def _slots(indices: Tensor) -> Tensor:
    """Choices (token-major) ordered by expert, then by token."""
    return torch.argsort(indices.reshape(-1), stable=True)


def dispatch(experts: int) -> Any:
    def part(rank: Rank | None, x: Tensor, indices: Tensor) -> Tensor:
        order = _slots(indices)
        each = len(order) // experts
        own, first = experts, 0
        if rank is not None:
            own, first = experts // rank.parts("e"), rank.offset("e", experts)
        order = order[first * each : (first + own) * each]
        return x[order // indices.shape[1]].reshape(own, each, x.shape[1])

    return {"whole": lambda x, indices: part(None, x, indices), "part": part}


def combine_experts(experts: int) -> Any:
    def part(rank: Rank | None, y: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        place = torch.empty_like(indices).reshape(-1)
        order = _slots(indices)
        place[order] = torch.arange(len(order))
        first = 0 if rank is None else rank.offset("e", experts) * y.shape[1]
        rows = y.reshape(-1, y.shape[2])
        inside, local = in_range(place, first, rows.shape[0])
        values = rows[local] * inside[:, None] * weights.reshape(-1, 1)
        return values.reshape(*indices.shape, -1).sum(1)

    return {"whole": lambda *operands: part(None, *operands), "part": part}


class CrossEntropy:
    """Vocabulary-parallel cross-entropy over sharded rows."""

    def __init__(self, dim: int, shape: tuple[int, ...], reduction: str, ignore: int) -> None:
        self.dim, self.shape, self.reduction, self.ignore = dim, shape, reduction, ignore

    def whole(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(
            logits.movedim(self.dim, 1) if logits.dim() > 1 else logits,
            target,
            reduction=self.reduction,
            ignore_index=self.ignore,
        )

    def forward(self, rank: Rank, logits: Tensor, target: Tensor) -> Steps:
        logits = logits.movedim(self.dim, -1)
        highest = yield Request("c", logits.amax(-1), "max")
        exponentials = (logits - highest[..., None]).exp()
        total = yield Request("c", exponentials.sum(-1))
        valid = target != self.ignore
        offset = rank.offset("c", self.shape[self.dim])
        inside, local = in_range(target, offset, logits.shape[-1])
        inside &= valid
        picked = logits.gather(-1, torch.where(inside, local, 0)[..., None])[..., 0]
        picked = yield Request("c", torch.where(inside, picked, 0.0))
        each = torch.where(valid, total.log() + highest - picked, 0.0)
        count = torch.ones((), dtype=each.dtype)
        if self.reduction == "mean":
            count = valid.sum().to(each.dtype)
            for dim in rank.rule.dims:
                if dim.role == "reduction":
                    count = yield Request(dim.name, count)
        kept = (exponentials / total[..., None], inside, local, valid, count)
        return each.sum() / count, kept

    def backward(self, rank: Rank, kept: Any, gradient: Tensor) -> Steps:
        probabilities, inside, local, valid, count = kept
        result = probabilities.clone()
        result.scatter_add_(-1, local[..., None], -inside[..., None].to(result.dtype))
        result *= valid[..., None] * gradient / count
        # A generator like the others, though it communicates nothing.
        yield from ()
        return result.movedim(-1, self.dim), None


class BatchNorm:
    """Batch norm whose sums are added over all shards of batch and image."""

    def __init__(self, shape: tuple[int, ...], eps: float = 1e-5) -> None:
        self.count, self.eps = math.prod(shape) // shape[1], eps
        self.reduced = [d for d in range(len(shape)) if d != 1]
        self.lift = (None, slice(None), *[None] * (len(shape) - 2))

    def whole(
        self,
        x: Tensor,
        w: Tensor | None = None,
        b: Tensor | None = None,
        mean: Tensor | None = None,
        var: Tensor | None = None,
    ) -> Tensor:
        mean, var = (None if s is None else s.clone() for s in (mean, var))
        return functional.batch_norm(x, mean, var, w, b, training=True, eps=self.eps)

    def _add(self, rank: Rank, sums: Tensor) -> Steps:
        for dim in rank.rule.dims:
            if dim.role == "internal":
                sums = yield Request(dim.name, sums)
        return sums

    def forward(
        self,
        rank: Rank,
        x: Tensor,
        w: Tensor | None = None,
        b: Tensor | None = None,
        *running: Tensor,
    ) -> Steps:
        sums = torch.stack([x.sum(self.reduced), (x * x).sum(self.reduced)])
        mean, square = (yield from self._add(rank, sums)) / self.count
        inverse = (square - mean * mean + self.eps).rsqrt()
        normal = (x - mean[self.lift]) * inverse[self.lift]
        y = normal if w is None else normal * w[self.lift]
        return y if b is None else y + b[self.lift], (normal, inverse, w, b)

    def backward(self, rank: Rank, kept: Any, gradient: Tensor) -> Steps:
        normal, inverse, w, b = kept
        sums = torch.stack([(gradient * normal).sum(self.reduced), gradient.sum(self.reduced)])
        along, total = (yield from self._add(rank, sums)) / self.count
        centred = gradient - total[self.lift] - normal * along[self.lift]
        dx = centred * inverse[self.lift]
        dx = dx if w is None else dx * w[self.lift]
        return dx, *([] if w is None else [sums[0]]), *([] if b is None else [sums[1]])
