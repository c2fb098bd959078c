"""Runs a graph of ours in PyTorch on one device, to compare an import with its source model.

Nothing here knows how a graph was made: it reads families and attributes as ``graph.FAMILIES``
documents them. Constants carry no values in a graph, so the source program is run beside it and
its values are taken by node name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as functional
from torch import Tensor

from tensoropt.graph import Graph
from tensoropt.importing import torch_export

_OPS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "neg": torch.neg,
    "where": torch.where, "pow": torch.pow, "gelu": functional.gelu, "silu": functional.silu,
    "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "exp": torch.exp,
    "rsqrt": torch.rsqrt, "sqrt": torch.sqrt, "log": torch.log, "eq": torch.eq, "ne": torch.ne,
    "lt": torch.lt, "gt": torch.gt, "ge": torch.ge, "le": torch.le, "cos": torch.cos,
    "sin": torch.sin, "abs": torch.abs, "maximum": torch.maximum, "minimum": torch.minimum,
    "erf": torch.erf, "softplus": functional.softplus, "leaky_relu": functional.leaky_relu,
    "logical_not": torch.logical_not, "floor_divide": torch.floor_divide,
    "scale": lambda x, s: x * s,
    "rsub": lambda x, s: s - x,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "masked_fill": lambda x, m, v: x.masked_fill(m, v),
    "clamp": lambda x, *bounds: x.clamp(*bounds),
    "mse_loss": lambda x, y: (x - y) ** 2,
    "l1_loss": lambda x, y: (x - y).abs(),
    "binary_cross_entropy_with_logits": lambda x, y: functional.binary_cross_entropy_with_logits(
        x, y, reduction="none"
    ),
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c),
    "hardtanh": lambda x, *a: functional.hardtanh(x, *a),
    "square": torch.square,
}  # fmt: skip

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "var": torch.var,
    "std": torch.std, "logsumexp": torch.logsumexp, "norm": torch.linalg.vector_norm,
    "any": torch.any,
}  # fmt: skip


class Call(NamedTuple):
    """What an operator says of itself: its attributes and its first result's shape and dtype."""

    attributes: Mapping[str, Any]
    shape: tuple[int, ...]
    dtype: str = "float64"


def run(graph: Graph, values: Mapping[str, Tensor], constants: Mapping[str, Tensor]) -> Tensor:
    """The loss of a graph.

    ``values`` holds inputs, parameters and buffers by their source names (a parameter that is a
    slice of another is named by an expression on it), ``constants`` values by node name.
    """
    known: dict[str, Tensor] = {}
    for name, tensor in graph.tensors.items():
        if tensor.kind in ("input", "parameter", "buffer"):
            base = values[tensor.source]
            part = eval(f"p{name.removeprefix(tensor.source)}", {"p": base})
            assert tuple(part.shape) == tensor.shape, name
            known[name] = part
    slotted: set[str] = set()
    for operator in graph.operators:
        first = graph.tensors[operator.outputs[0]]
        call = Call(operator.attributes, first.shape, first.dtype)
        if operator.family == "constant" and len(operator.attributes) > 1:
            results: Any = _made_constant(call)
        elif operator.family == "constant":
            results = constants[operator.source.rpartition("/")[2]]
        else:
            inputs = [known[name] if name else None for name in operator.inputs]
            results = globals()[f"_{operator.family}"](call, *inputs)
        results = results if isinstance(results, (tuple, list)) else (results,)
        if operator.family == "moe_dispatch" or slotted.intersection(operator.inputs):
            slotted.update(operator.outputs if operator.family != "moe_combine" else ())
        for name, value in zip(operator.outputs, results, strict=True):
            expected = graph.tensors[name].shape
            if name not in slotted:
                assert tuple(value.shape) == expected, (operator.name, value.shape, expected)
            known[name] = value
    return known[graph.loss]


def traced(
    program: Any, module: Any, inputs: Any, targets: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the source model and the value of every node of its traced program."""
    seen: dict[str, Tensor] = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            result = super().run_node(n)
            if isinstance(result, Tensor):
                seen[n.name] = result.detach().clone()
            return result

    named = inputs if isinstance(inputs, Mapping) else {}
    positional = () if named else inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    positional = tuple(positional) if targets is None else (*positional, targets)
    state = {**program.state_dict, **program.constants}
    users = iter([*positional, *named.values()])
    with torch.no_grad():
        Recorder(program.graph_module).run(
            *(
                state[spec.target] if spec.target in state else next(users)
                for spec in program.graph_signature.input_specs
            )
        )
    return module(*positional, **named), seen


def compare(model: torch.nn.Module, inputs: Any, *, rtol: float = 1e-9, **options: Any) -> Graph:
    """Import a model, run the graph, and assert equal loss and equal gradients; return the graph.

    The model must draw no random numbers.
    """
    exported: list[Any] = []

    def export(*given: Any) -> Any:
        exported.extend([real(*given), given[0]])
        return exported[0]

    real = torch_export._export
    with mock.patch.object(torch_export, "_export", export):
        graph = torch_export.import_torch(model, inputs, **options)
    loss, seen = traced(*exported, inputs, options.get("targets"))
    parameters = dict(model.named_parameters())
    expected = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    values = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers()),
        **_named_inputs(graph, inputs, options.get("targets")),
    }
    found = run(graph, values, seen)
    # A model may compute its loss in float32 whatever its parameters are: casts are not replayed.
    torch.testing.assert_close(found.to(loss.dtype), loss, rtol=rtol, atol=rtol)
    gradients = torch.autograd.grad(found, list(parameters.values()), allow_unused=True)
    for name, want, got in zip(parameters, expected, gradients, strict=True):
        zero = torch.zeros_like(parameters[name])
        want, got = (zero if g is None else g for g in (want, got))
        torch.testing.assert_close(
            got, want, rtol=rtol, atol=rtol, msg=lambda m, n=name: f"{n}: {m}"
        )
    return graph


def _named_inputs(graph: Graph, inputs: Any, targets: Tensor | None) -> dict[str, Tensor]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    given = [*inputs] if isinstance(inputs, (tuple, list)) else [inputs]
    names = [t.name for t in graph.tensors.values() if t.kind == "input"]
    if targets is not None:
        return {**_named_inputs(graph, given, None), "targets": targets}
    by_shape = {
        n: next(g for g in given if tuple(g.shape) == graph.tensors[n].shape)
        for n in names
        if n != "targets"
    }
    return by_shape


def _made_constant(o: Call) -> Tensor:
    a = o.attributes
    if a["op"] == "full":
        return torch.full(o.shape, a["value"], dtype=torch.float64)
    return a["start"] + a["step"] * torch.arange(o.shape[0])


def _linear(o: Call, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return functional.linear(x, w if o.attributes["weight"] == "nk" else w.T, b)


def _matmul(o: Call, a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def _einsum(o: Call, *operands: Tensor) -> Tensor:
    return torch.einsum(o.attributes["equation"], *operands)


def _convolution(o: Call, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    a = o.attributes
    zeros = [0] * len(a["stride"])
    return torch.convolution(
        x, w, b, a["stride"], a["padding"], a["dilation"], a["transposed"], zeros, a["groups"]
    )


def _pool(o: Call, x: Tensor) -> Tensor:
    a = o.attributes
    spatial = len(a["kernel"])
    function = getattr(functional, f"{a['mode']}_pool{spatial}d")
    if a["mode"] == "max":
        return function(x, a["kernel"], a["stride"], a["padding"], ceil_mode=a["ceil_mode"])
    return function(x, a["kernel"], a["stride"], a["padding"], a["ceil_mode"])


def _upsample(o: Call, x: Tensor) -> Tensor:
    scale = [float(s) for s in o.attributes["scale"]]
    return functional.interpolate(x, scale_factor=scale, mode=o.attributes["mode"])


def _pad(o: Call, x: Tensor) -> Tensor:
    flat = [n for pair in reversed(o.attributes["pads"]) for n in pair]
    return functional.pad(x, flat, value=o.attributes["value"])


def _layer_norm(o: Call, x: Tensor, w: Tensor | None = None, b: Tensor | None = None) -> Tensor:
    shape = x.shape[len(x.shape) - o.attributes["dims"] :]
    if o.attributes["kind"] == "rms":
        return functional.rms_norm(x, shape, w, o.attributes["eps"])
    return functional.layer_norm(x, shape, w, b, o.attributes["eps"])


def _group_norm(o: Call, x: Tensor, w: Tensor | None = None, b: Tensor | None = None) -> Tensor:
    return functional.group_norm(x, o.attributes["groups"], w, b, o.attributes["eps"])


def _batch_norm(
    o: Call, x: Tensor, w: Tensor | None = None, b: Tensor | None = None, *_: Tensor
) -> Tensor:
    return functional.batch_norm(x, None, None, w, b, True, 0.1, o.attributes["eps"])


def _softmax(o: Call, x: Tensor) -> Tensor:
    function = torch.log_softmax if o.attributes["log"] else torch.softmax
    return function(x, o.attributes["dim"])


def _attention(o: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    assert o.attributes["dropout"] == 0
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * o.attributes["scale"]
    if o.attributes["causal"]:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ v


def _embedding(o: Call, ids: Tensor, w: Tensor) -> Tensor:
    return functional.embedding(ids, w, o.attributes["padding_idx"])


def _cross_entropy(o: Call, logits: Tensor, target: Tensor) -> Tensor:
    logits = logits.movedim(o.attributes["dim"], -1)
    return functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        target.reshape(-1),
        ignore_index=o.attributes["ignore_index"],
        reduction=o.attributes["reduction"],
    )


def _elementwise(o: Call, *operands: Tensor) -> Tensor:
    name, scalars = o.attributes["op"], list(o.attributes.get("scalars") or [])
    if name == "cast":
        # Floating casts are not replayed, so that a float64 model stays one.
        x = operands[0]
        return x if x.is_floating_point() else x.to(getattr(torch, o.dtype))
    return _OPS[name](*operands, *scalars)


def _dropout(o: Call, x: Tensor) -> Tensor:
    raise AssertionError("tests compare numbers without dropout")


def _reduce(o: Call, x: Tensor) -> Tensor:
    a = o.attributes
    if a["op"] in ("argmax", "argmin"):
        return getattr(torch, a["op"])(x, a["dims"][0], a["keepdim"])
    return _REDUCTIONS[a["op"]](x, dim=tuple(a["dims"]), keepdim=a["keepdim"])


def _cumulative(o: Call, x: Tensor) -> Tensor:
    return getattr(torch, f"cum{o.attributes['op']}")(x, o.attributes["dim"])


def _view(o: Call, x: Tensor) -> Tensor:
    return x.reshape(o.shape)


def _expand(o: Call, x: Tensor) -> Tensor:
    return x.expand(o.shape)


def _moe_dispatch(o: Call, x: Tensor, indices: Tensor) -> Tensor:
    """Every expert gets a slot for every token (exact whatever the routing), most of them empty."""
    chosen = functional.one_hot(indices, o.attributes["experts"]).sum(1).T
    return x * chosen[..., None]


def _moe_combine(o: Call, y: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    token = torch.arange(indices.shape[0])[:, None]
    return (y[indices, token] * weights[..., None]).sum(1)


def _lstm(o: Call, x: Tensor, *weights: Tensor) -> Any:
    a = o.attributes
    directions = a["layers"] * (2 if a["bidirectional"] else 1)
    batch = x.shape[0 if a["batch_first"] else 1]
    state = torch.zeros(directions, batch, a["hidden"], dtype=x.dtype)
    bias = len(weights) == 4 * directions
    function = getattr(torch, a["cell"] if a["cell"] != "rnn" else "rnn_tanh")
    states = (state, state) if a["cell"] == "lstm" else state
    return function(
        x, states, weights, bias, a["layers"], 0.0, True, a["bidirectional"], a["batch_first"]
    )


def _transpose(o: Call, x: Tensor) -> Tensor:
    return x.permute(o.attributes["perm"])


def _slice(o: Call, x: Tensor) -> Tensor:
    a = o.attributes
    index = [slice(None)] * x.dim()
    index[a["dim"]] = slice(a["start"], a["stop"], a["step"])
    return x[tuple(index)]


def _concat(o: Call, *operands: Tensor) -> Tensor:
    return torch.cat(operands, o.attributes["dim"])


def _split(o: Call, x: Tensor) -> tuple[Tensor, ...]:
    return torch.split(x, o.attributes["sizes"], o.attributes["dim"])


def _gather(o: Call, x: Tensor, index: Tensor) -> Tensor:
    return torch.gather(x, o.attributes["dim"], index)


def _index_select(o: Call, x: Tensor, index: Tensor) -> Tensor:
    dim = o.attributes["dim"]
    picked = x.index_select(dim, index.reshape(-1))
    return picked.reshape(*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])


def _scatter(o: Call, x: Tensor, index: Tensor, src: Tensor) -> Tensor:
    if o.attributes["reduce"] == "add":
        return x.scatter_add(o.attributes["dim"], index, src)
    return x.scatter(o.attributes["dim"], index, src)


def _topk(o: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.topk(x, o.attributes["k"], o.attributes["dim"])


def _sort(o: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sort(x, o.attributes["dim"])


def _one_hot(o: Call, x: Tensor) -> Tensor:
    return functional.one_hot(x, o.attributes["classes"])
