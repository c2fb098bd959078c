"""The model as operators, tensors and named attributes: our own neutral intermediate form.

A :class:`Graph` is the forward pass of one training iteration: tensors, and operators in
topological order. The backward pass is not stored; it follows from the operator families (see
``sharding``). Importers and ``examples`` build graphs, everything else reads them. Nothing here
knows of devices, layouts or costs.

An operator's **family** names the rule that says how it may be sharded. :data:`FAMILIES` lists
every family with its inputs and attributes; importers translate to exactly these. What has no
family is ``opaque``: it is replicated and reported.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from .errors import GraphError

__all__ = ["DTYPE_BYTES", "FAMILIES", "Block", "Graph", "GraphBuilder", "Operator", "Tensor"]

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "bfloat16": 2,
        "float16": 2,
        "float8": 1,
        "complex64": 8,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint8": 1,
        "bool": 1,
    }
)
"""Bytes of one element of each dtype."""

FLOATING = frozenset({"float64", "float32", "bfloat16", "float16", "float8"})

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "linear": "x[..., k], w, bias[n]? -> y[..., n]; weight='nk' (torch Linear) or 'kn' (w[k, n])",
        "matmul": "a[..., m, k], b[..., k, n] -> y[..., m, n], leading dims broadcast; either may be a "
        "parameter (experts: a[e, c, k], b[e, k, n])",
        "einsum": "operands -> y; equation='bshd,bthd->bhst'",
        "convolution": "x[b, ci, *sp], w[co, ci/groups, *kernel], bias[co]? -> y[b, co, *sp']; stride, "
        "padding, dilation (lists), groups, transposed (then w[ci, co/groups, *kernel])",
        "pool": "x[b, c, *sp] -> y[b, c, *sp']; mode='max'|'avg', kernel, stride, padding (lists), "
        "ceil_mode; adaptive pooling carries the kernel it amounts to, or global=True",
        "upsample": "x[b, c, *sp] -> y[b, c, *sp']; mode='nearest'|'bilinear'|..., scale (list)",
        "pad": "x -> y; pads=[(before, after) per dim], value",
        "layer_norm": "x, weight?, bias? -> y; dims (count of trailing normalised dims), eps, "
        "kind='layer'|'rms'",
        "group_norm": "x[b, c, *sp], weight[c]?, bias[c]? -> y; groups, eps",
        "batch_norm": "x[b, c, *sp], weight[c]?, bias[c]?, running_mean[c]?, running_var[c]? -> y; eps; "
        "always read as training",
        "softmax": "x -> y; dim, log (bool)",
        "attention": "q[b, h, s, d], k[b, hk, t, d], v[b, hk, t, e], mask[broadcast to b, h, s, t]? -> "
        "y[b, h, s, e]; causal (bool), scale, dropout (p); fused, nothing of size s*t is kept",
        "embedding": "ids[...], weight[v, h] -> y[..., h]; padding_idx (or None)",
        "cross_entropy": "logits[r..., c] or logits[r, c, ...] , target -> loss[]; dim (class dim), "
        "reduction='mean'|'sum', ignore_index",
        "elementwise": "operands broadcast together -> y; op (name, e.g. 'add', 'mul', 'gelu', 'where', "
        "'cast', 'scale'); scalar operands live in attribute 'scalars'",
        "dropout": "x -> y; p",
        "reduce": "x -> y; op='sum'|'mean'|'max'|'min'|'var'|'std'|'norm'|'logsumexp'|'argmax'|'argmin'|"
        "'any'|'all'|'prod', dims (list), keepdim",
        "cumulative": "x -> y; op='sum'|'prod'|'max', dim",
        "view": "x -> y, same elements in the same order (reshape, squeeze, unsqueeze, flatten)",
        "transpose": "x -> y; perm (list: output dim i is input dim perm[i])",
        "expand": "x -> y: dims of size 1 repeated, or new leading dims",
        "slice": "x -> y; dim, start, stop, step (select = slice then view)",
        "concat": "operands -> y; dim",
        "split": "x -> y0, y1, ...; dim, sizes (list)",
        "gather": "x, index -> y; dim (torch.gather)",
        "index_select": "x, index[...] -> y; dim: rows of x picked along dim, index dims take its place",
        "scatter": "x, index, src -> y; dim, reduce=None|'add'",
        "topk": "x -> values, indices; k, dim",
        "sort": "x -> values, indices; dim",
        "one_hot": "index[...] -> y[..., c]; classes",
        "lstm": "x[b, s, i] or x[s, b, i], weights... -> y, h, c; hidden, layers, bidirectional, "
        "batch_first, cell='lstm'|'gru'|'rnn', dropout",
        "moe_dispatch": "x[t, h], indices[t, k] -> y[e, c, h]: tokens routed to experts, balanced, "
        "c = ceil(t*k/e); experts",
        "moe_combine": "y[e, c, h], indices[t, k], weights[t, k] -> x[t, h]",
        "constant": "-> y: a tensor that no training step changes (arange, full, a table); op",
        "opaque": "anything else: replicated and reported; op (source name)",
    }
)
"""Every operator family: inputs -> outputs; attributes. ``?`` marks an optional operand."""

TensorKind = Literal["input", "parameter", "buffer", "activation", "constant"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the graph.

    Parameters
    ----------
    name : str
        Unique in the graph.
    shape : tuple of int
        Global shape, before any sharding.
    dtype : str
        A key of :data:`DTYPE_BYTES`, as the model declares it; the precision bundle of a search
        decides what floating tensors take on the device.
    kind : str
        ``input`` (a batch), ``parameter`` (trained), ``buffer`` (kept but not trained),
        ``constant`` (recomputed by every consumer, no memory) or ``activation``.
    requires_grad : bool
        Whether a gradient flows to it.
    padded_dims : tuple of int
        Dims that may be padded when a mesh does not divide them (vocabularies).
    source : str
        Name in the source model, e.g. ``transformer.wte.weight``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    kind: TensorKind = "activation"
    requires_grad: bool = True
    padded_dims: tuple[int, ...] = ()
    source: str = ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_floating(self) -> bool:
        """Whether the dtype is a floating one (only those carry gradients)."""
        return self.dtype in FLOATING


@dataclass(frozen=True, slots=True)
class Operator:
    """One forward operator.

    Parameters
    ----------
    name : str
        Unique in the graph.
    family : str
        A key of :data:`FAMILIES`.
    inputs, outputs : tuple of str
        Tensor names. An absent optional operand in the middle is the empty string.
    attributes : mapping
        As :data:`FAMILIES` says; JSON values only.
    source : str
        Module path or node name in the source model.
    """

    name: str
    family: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A run of operators that repeats: a layer.

    Parameters
    ----------
    name : str
        For people, e.g. ``h.3``.
    start, stop : int
        Half-open range of operator positions.
    kind : int
        Blocks of one kind have equal operators and connect alike.
    """

    name: str
    start: int
    stop: int
    kind: int


@dataclass(frozen=True)
class Graph:
    """A model's forward pass.

    Parameters
    ----------
    name : str
        For people.
    tensors : mapping of str to Tensor
    operators : tuple of Operator
        In topological order.
    loss : str
        The scalar tensor whose gradient is taken.
    batch_size : int
        Samples in one iteration (the global batch, all micro-batches together).
    tokens_per_sample : int or None
        Sequence length where the model has one, for reports.
    blocks : tuple of Block
        Repeated layers, disjoint, in order.
    notes : tuple of str
        What the importer had to assume or could not translate; shown in every report.

    Raises
    ------
    GraphError
        If a tensor is unknown, produced twice or used before it is produced, a dtype or family is
        unknown, or the loss is missing or not a scalar.
    """

    name: str
    tensors: Mapping[str, Tensor]
    operators: tuple[Operator, ...]
    loss: str
    batch_size: int
    tokens_per_sample: int | None = None
    blocks: tuple[Block, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _validate(self)

    def consumers(self) -> dict[str, list[tuple[int, int]]]:
        """For every tensor, its uses as (operator position, operand position), in order."""
        uses: dict[str, list[tuple[int, int]]] = {name: [] for name in self.tensors}
        for position, operator in enumerate(self.operators):
            for operand, name in enumerate(operator.inputs):
                if name:
                    uses[name].append((position, operand))
        return uses

    def producers(self) -> dict[str, tuple[int, int]]:
        """For every produced tensor, its (operator position, output position)."""
        return {
            name: (position, output)
            for position, operator in enumerate(self.operators)
            for output, name in enumerate(operator.outputs)
        }

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The trained tensors, in the order in which operators first read them."""
        return tuple(t for t in self.tensors.values() if t.kind == "parameter")

    def __repr__(self) -> str:
        return (
            f"<Graph {self.name}: {len(self.operators):,} operators, {self.parameter_count:,} "
            f"parameters, batch {self.batch_size:,}>"
        )

    @property
    def parameter_count(self) -> int:
        """Number of trained elements."""
        return sum(t.size for t in self.parameters)

    def operands(self, operator: Operator) -> tuple[Tensor | None, ...]:
        """The input tensors of an operator; ``None`` for an absent optional operand."""
        return tuple(self.tensors[name] if name else None for name in operator.inputs)

    def results(self, operator: Operator) -> tuple[Tensor, ...]:
        """The output tensors of an operator."""
        return tuple(self.tensors[name] for name in operator.outputs)

    def with_blocks(self, blocks: Iterable[Block]) -> Graph:
        """The same graph with its repeated layers marked."""
        return replace(self, blocks=tuple(blocks))

    def to_dict(self) -> dict[str, Any]:
        """The graph as JSON values; the inverse of :meth:`from_dict`."""
        return {
            "name": self.name,
            "loss": self.loss,
            "batch_size": self.batch_size,
            "tokens_per_sample": self.tokens_per_sample,
            "tensors": [
                {
                    "name": t.name,
                    "shape": list(t.shape),
                    "dtype": t.dtype,
                    "kind": t.kind,
                    "requires_grad": t.requires_grad,
                    "padded_dims": list(t.padded_dims),
                    "source": t.source,
                }
                for t in self.tensors.values()
            ],
            "operators": [
                {
                    "name": o.name,
                    "family": o.family,
                    "inputs": list(o.inputs),
                    "outputs": list(o.outputs),
                    "attributes": dict(o.attributes),
                    "source": o.source,
                }
                for o in self.operators
            ],
            "blocks": [[b.name, b.start, b.stop, b.kind] for b in self.blocks],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Graph:
        """Rebuild a graph from :meth:`to_dict`.

        Raises
        ------
        GraphError
            If a field is missing or the graph is not valid.
        """
        try:
            tensors = [
                Tensor(
                    t["name"],
                    tuple(t["shape"]),
                    t["dtype"],
                    t["kind"],
                    t["requires_grad"],
                    tuple(t["padded_dims"]),
                    t["source"],
                )
                for t in data["tensors"]
            ]
            operators = tuple(
                Operator(
                    o["name"],
                    o["family"],
                    tuple(o["inputs"]),
                    tuple(o["outputs"]),
                    o["attributes"],
                    o["source"],
                )
                for o in data["operators"]
            )
            return cls(
                data["name"],
                {t.name: t for t in tensors},
                operators,
                data["loss"],
                data["batch_size"],
                data["tokens_per_sample"],
                tuple(Block(*b) for b in data["blocks"]),
                tuple(data["notes"]),
            )
        except (KeyError, TypeError) as error:
            raise GraphError(f"not a graph: field {error} is missing or malformed") from error

    def fingerprint(self) -> str:
        """SHA-256 of what a strategy depends on: operators, shapes, dtypes, parameters."""
        data = self.to_dict()
        for key in ("name", "blocks", "notes"):
            del data[key]
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _validate(graph: Graph) -> None:
    if not graph.operators:
        raise GraphError(f"graph '{graph.name}' has no operators: import a model that computes")
    if graph.batch_size < 1:
        raise GraphError(
            f"graph '{graph.name}': batch size {graph.batch_size}, expected at least 1"
        )
    for name, tensor in graph.tensors.items():
        if tensor.dtype not in DTYPE_BYTES:
            raise GraphError(
                f"tensor '{name}' has dtype '{tensor.dtype}', expected one of {sorted(DTYPE_BYTES)}"
            )
        if any(size < 0 for size in tensor.shape):
            raise GraphError(f"tensor '{name}' has shape {tensor.shape}: sizes must be known")
    ready = {n for n, t in graph.tensors.items() if t.kind in ("input", "parameter", "buffer")}
    for operator in graph.operators:
        if operator.family not in FAMILIES:
            raise GraphError(
                f"operator '{operator.name}' has family '{operator.family}', "
                "expected one of FAMILIES ('opaque' for an unknown operator)"
            )
        for name in operator.inputs:
            if name and name not in ready:
                raise GraphError(
                    f"operator '{operator.name}' reads '{name}' before any operator produced it"
                )
        for name in operator.outputs:
            if name not in graph.tensors:
                raise GraphError(f"operator '{operator.name}' produces unknown tensor '{name}'")
            if name in ready:
                raise GraphError(f"tensor '{name}' is produced twice (by '{operator.name}')")
            ready.add(name)
    if graph.loss not in ready:
        raise GraphError(f"graph '{graph.name}': loss '{graph.loss}' is not produced")
    if graph.tensors[graph.loss].size != 1:
        raise GraphError(
            f"graph '{graph.name}': loss '{graph.loss}' has shape "
            f"{graph.tensors[graph.loss].shape}, expected a scalar"
        )
    previous = 0
    for block in graph.blocks:
        if not previous <= block.start < block.stop <= len(graph.operators):
            raise GraphError(f"block '{block.name}' is out of order or overlaps another")
        previous = block.stop


class GraphBuilder:
    """Builds a :class:`Graph` operator by operator.

    Examples
    --------
    >>> b = GraphBuilder("tiny")
    >>> x = b.input("x", (8, 4))
    >>> w = b.parameter("w", (1, 4))
    >>> y = b.op("linear", (x, w), (8, 1), weight="nk")
    >>> loss = b.op("reduce", (y,), (), op="mean", dims=[0, 1], keepdim=False)
    >>> b.build(loss, batch_size=8).parameter_count
    4
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.notes: list[str] = []
        self._scope: list[str] = []

    def input(self, name: str, shape: Iterable[int], dtype: str = "float32") -> str:
        """Add a batch input (no gradient)."""
        return self._tensor(Tensor(name, tuple(shape), dtype, "input", False, (), name))

    def parameter(
        self,
        name: str,
        shape: Iterable[int],
        dtype: str = "float32",
        *,
        padded_dims: Iterable[int] = (),
    ) -> str:
        """Add a trained tensor."""
        tensor = Tensor(name, tuple(shape), dtype, "parameter", True, tuple(padded_dims), name)
        return self._tensor(tensor)

    def buffer(self, name: str, shape: Iterable[int], dtype: str = "float32") -> str:
        """Add a tensor that is kept but not trained."""
        return self._tensor(Tensor(name, tuple(shape), dtype, "buffer", False, (), name))

    def op(
        self,
        family: str,
        inputs: Iterable[str],
        shape: Iterable[int],
        *,
        name: str | None = None,
        dtype: str | None = None,
        source: str | None = None,
        requires_grad: bool | None = None,
        padded_dims: Iterable[int] = (),
        **attributes: Any,
    ) -> str:
        """Add an operator with one output and return the output's name.

        The output's dtype is that of the first floating operand unless given; it requires a
        gradient if it is floating and any operand does, unless given.
        """
        return self.ops(
            family,
            inputs,
            [tuple(shape)],
            name=name,
            dtypes=None if dtype is None else [dtype],
            source=source,
            requires_grad=requires_grad,
            padded_dims=padded_dims,
            **attributes,
        )[0]

    def ops(
        self,
        family: str,
        inputs: Iterable[str],
        shapes: Iterable[tuple[int, ...]],
        *,
        name: str | None = None,
        dtypes: Iterable[str] | None = None,
        source: str | None = None,
        requires_grad: bool | None = None,
        padded_dims: Iterable[int] = (),
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Add an operator with several outputs and return their names."""
        inputs = tuple(inputs)
        shapes = [tuple(shape) for shape in shapes]
        operands = [self.tensors[i] for i in inputs if i]
        floating = [t.dtype for t in operands if t.is_floating]
        default = floating[0] if floating else (operands[0].dtype if operands else "float32")
        kinds = list(dtypes) if dtypes is not None else [default] * len(shapes)
        name = self._unique("/".join([*self._scope, name or family]))
        grad = any(t.requires_grad for t in operands) if requires_grad is None else requires_grad
        # What depends on nothing but constants is itself recomputed wherever it is needed.
        constant = not grad and all(t.kind == "constant" for t in operands)
        outputs = []
        for index, (shape, dtype) in enumerate(zip(shapes, kinds, strict=True)):
            output = name if len(shapes) == 1 else f"{name}:{index}"
            tensor = Tensor(
                output,
                shape,
                dtype,
                "constant" if constant else "activation",
                grad and dtype in FLOATING,
                tuple(padded_dims),
                source or "",
            )
            outputs.append(self._tensor(tensor))
        scope = "/".join(self._scope)
        self.operators.append(
            Operator(name, family, inputs, tuple(outputs), attributes, source or scope or name)
        )
        return tuple(outputs)

    def scope(self, name: str) -> _Scope:
        """Name prefix for what is added inside a ``with`` block."""
        return _Scope(self._scope, name)

    def note(self, text: str) -> None:
        """Record something that every report must say."""
        if text not in self.notes:
            self.notes.append(text)

    def build(
        self,
        loss: str,
        batch_size: int,
        tokens_per_sample: int | None = None,
        blocks: Iterable[Block] = (),
    ) -> Graph:
        """Finish the graph."""
        return Graph(
            self.name,
            dict(self.tensors),
            tuple(self.operators),
            loss,
            batch_size,
            tokens_per_sample,
            tuple(blocks),
            tuple(self.notes),
        )

    def _tensor(self, tensor: Tensor) -> str:
        if tensor.name in self.tensors:
            raise GraphError(f"tensor '{tensor.name}' is defined twice")
        self.tensors[tensor.name] = tensor
        return tensor.name

    def _unique(self, name: str) -> str:
        if name not in self.tensors and f"{name}:0" not in self.tensors:
            return name
        number = 1
        while f"{name}.{number}" in self.tensors or f"{name}.{number}:0" in self.tensors:
            number += 1
        return f"{name}.{number}"


class _Scope:
    def __init__(self, stack: list[str], name: str) -> None:
        self._stack = stack
        self._name = name

    def __enter__(self) -> None:
        self._stack.append(self._name)

    def __exit__(self, *_: object) -> None:
        self._stack.pop()


def signature(graph: Graph, operator: Operator) -> tuple[Any, ...]:
    """What the costs of an operator depend on: family, attributes, operands, results.

    Operators of equal signature share their cost tables, and runs of equal signatures are
    repeated layers.
    """

    def of(tensor: Tensor | None) -> tuple[Any, ...] | None:
        if tensor is None:
            return None
        return (tensor.shape, tensor.dtype, tensor.kind, tensor.requires_grad, tensor.padded_dims)

    attributes = json.dumps(dict(operator.attributes), sort_keys=True, default=str)
    return (
        operator.family,
        attributes,
        tuple(of(t) for t in graph.operands(operator)),
        tuple(of(t) for t in graph.results(operator)),
    )
