"""Handlers of operators with parameters and of attention: the ones that cost."""

from __future__ import annotations

import math
from typing import Any

from tensoropt.errors import ImportModelError
from tensoropt.importing.torch_ops_shape import base
from tensoropt.importing.torch_translate import (
    LSTM_STATES,
    Name,
    Names,
    Translator,
    module_path,
    register,
)


@register("linear")
def _linear(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    return linear(t, node, a["input"], a["weight"], a.get("bias"), "nk")


def linear(t: Translator, node: Any, x: Any, weight: Any, bias: Any, order: str) -> Name:
    """A linear layer; a weight that was transposed on the way is read as it is stored."""
    w, b = t.tensor(weight), t.optional(bias)
    made = t.made_by(w, "transpose")
    if made is not None and t.kind(made.inputs[0]) == "parameter":
        w, order = made.inputs[0], "kn" if order == "nk" else "nk"
    source = t.tensor(x)
    if len(t.size(source)) == 1:
        source = t.view(node, source, (1, *t.size(source)))
    if len(t.size(w)) == 1:
        w = t.view(node, w, (1, *t.size(w)) if order == "nk" else (*t.size(w), 1))
    n = t.size(w)[0 if order == "nk" else 1]
    inputs = (source, w, b) if b else (source, w)
    y = t.emit(node, "linear", inputs, (*t.size(source)[:-1], n), weight=order)
    return t.view(node, y, t.shape(node))


@register("addmm")
def _addmm(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    bias = a["self"]
    plain = a.get("beta", 1) == 1 and a.get("alpha", 1) == 1
    if plain and len(t.shape(bias)) == 1 and _is_parameter(t, a["mat2"]):
        return linear(t, node, a["mat1"], a["mat2"], bias, "kn")
    return _plus_product(t, node, a, a["mat1"], a["mat2"])


@register("baddbmm", "addbmm")
def _baddbmm(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    if base(node) == "addbmm":
        return t.opaque(node)
    return _plus_product(t, node, a, a["batch1"], a["batch2"])


def _plus_product(t: Translator, node: Any, a: dict[str, Any], left: Any, right: Any) -> Name:
    product = matmul(t, node, t.tensor(left), t.tensor(right))
    beta, alpha = a.get("beta", 1), a.get("alpha", 1)
    if alpha != 1:
        product = t.emit(
            node, "elementwise", (product,), t.size(product), op="scale", scalars=[alpha]
        )
    if beta == 0:
        return product
    bias = t.tensor(a["self"])
    if beta != 1:
        bias = t.emit(node, "elementwise", (bias,), t.size(bias), op="scale", scalars=[beta])
    return t.emit(node, "elementwise", (bias, product), op="add")


@register("mm", "bmm", "matmul", "mv", "dot", "linalg_vecdot", "inner")
def _matmul(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    if base(node) in ("linalg_vecdot", "inner"):
        return t.opaque(node)
    left, right = node.args[:2]
    if len(t.shape(right)) == 2 and _is_parameter(t, right):
        return linear(t, node, left, right, None, "kn")
    return t.view(node, matmul(t, node, t.tensor(left), t.tensor(right)), t.shape(node))


def matmul(t: Translator, node: Any, left: Name, right: Name) -> Name:
    """A product of at least two dims on both sides."""
    if len(t.size(left)) == 1:
        left = t.view(node, left, (1, *t.size(left)))
    if len(t.size(right)) == 1:
        right = t.view(node, right, (*t.size(right), 1))
    a, b = t.size(left), t.size(right)
    rank = max(len(a), len(b)) - 2
    lead_a, lead_b = (1,) * (rank - len(a) + 2) + a[:-2], (1,) * (rank - len(b) + 2) + b[:-2]
    lead = [max(x, y) for x, y in zip(lead_a, lead_b, strict=True)]
    return t.emit(node, "matmul", (left, right), (*lead, a[-2], b[-1]))


def _is_parameter(t: Translator, node: Any) -> bool:
    name = t.tensor(node)
    made = t.made_by(name, "transpose")
    return t.kind(made.inputs[0] if made is not None else name) == "parameter"


@register("einsum")
def _einsum(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    equation = a["equation"].replace(" ", "")
    if "." in equation:
        return t.opaque(node)
    if "->" not in equation:
        letters = sorted({c for c in equation if c != ","})
        equation += "->" + "".join(c for c in letters if equation.count(c) == 1)
    return t.emit(node, "einsum", [t.tensor(n) for n in a["tensors"]], equation=equation)


@register(
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
)
def _convolution(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    x, w, b = t.tensor(a["input"]), t.tensor(a["weight"]), t.optional(a.get("bias"))
    spatial = len(t.size(w)) - 2
    if len(t.size(x)) != spatial + 2:
        return t.opaque(node)
    stride, dilation = (_spread(a[k], spatial) for k in ("stride", "dilation"))
    padding = a["padding"]
    if isinstance(padding, str):
        kernel = t.size(w)[2:]
        same = [d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True)]
        padding = same if padding == "same" else [0] * spatial
    transposed = "transpose" in base(node) or bool(a.get("transposed", False))
    return t.emit(
        node,
        "convolution",
        (x, w, b) if b else (x, w),
        stride=stride,
        padding=_spread(padding, spatial),
        dilation=dilation,
        groups=int(a["groups"]),
        transposed=transposed,
    )


def _spread(value: Any, count: int) -> list[int]:
    values = [value] if isinstance(value, int) else [int(v) for v in value]
    return values * count if len(values) == 1 else values


_SPATIAL = {"1": 1, "2": 2, "3": 3}


@register(
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
)
def _pool(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    spatial = _SPATIAL[base(node).split("pool")[1][0]]
    kernel = _spread(a["kernel_size"], spatial)
    stride = _spread(a["stride"], spatial) if a.get("stride") else kernel
    x = t.tensor(a["self"])
    y = t.emit(
        node,
        "pool",
        (x,),
        _first_shape(node),
        mode=base(node)[:3],
        kernel=kernel,
        stride=stride,
        padding=_spread(a["padding"], spatial),
        ceil_mode=bool(a["ceil_mode"]),
    )
    return (y,) if isinstance(node.meta["val"], (tuple, list)) else y


@register(
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "_adaptive_avg_pool2d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
)
def _adaptive_pool(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    x = t.tensor(a["self"])
    spatial = _SPATIAL[base(node).split("pool")[1][0]]
    before, after = t.size(x)[-spatial:], _first_shape(node)[-spatial:]
    if any(size % out for size, out in zip(before, after, strict=True)):
        t.builder.note(f"adaptive pooling from {before} to {after} is read as uniform windows")
    stride = [size // out for size, out in zip(before, after, strict=True)]
    kernel = [s - (o - 1) * k for s, o, k in zip(before, after, stride, strict=True)]
    mode = "max" if "max" in base(node) else "avg"
    attributes: dict[str, Any] = {
        "mode": mode, "kernel": kernel, "stride": stride, "padding": [0] * spatial,
        "ceil_mode": False,
    }  # fmt: skip
    if all(out == 1 for out in after):
        attributes["global"] = True
    y = t.emit(node, "pool", (x,), _first_shape(node), **attributes)
    return (y,) if isinstance(node.meta["val"], (tuple, list)) else y


def _first_shape(node: Any) -> tuple[int, ...]:
    value = node.meta["val"]
    value = value[0] if isinstance(value, (tuple, list)) else value
    return tuple(int(s) for s in value.shape)


@register(
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "upsample_trilinear3d",
    "_upsample_nearest_exact2d",
    "_upsample_bilinear2d_aa",
)
def _upsample(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    x = t.tensor(node.args[0])
    mode = base(node).strip("_").split("_")[1].rstrip("123d")
    scale = [o / i for o, i in zip(t.shape(node)[2:], t.size(x)[2:], strict=True)]
    whole = [int(s) if s == int(s) else s for s in scale]
    return t.emit(node, "upsample", (x,), mode=mode, scale=whole)


@register("pixel_shuffle", "pixel_unshuffle")
def _pixel_shuffle(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    x = t.tensor(a["self"])
    if len(t.size(x)) != 4:
        return t.opaque(node)
    b, c, h, w = t.size(x)
    if base(node) == "pixel_shuffle":
        r = a["upscale_factor"]
        x = t.transpose(node, t.view(node, x, (b, c // r**2, r, r, h, w)), (0, 1, 4, 2, 5, 3))
    else:
        r = a["downscale_factor"]
        x = t.transpose(node, t.view(node, x, (b, c, h // r, r, w // r, r)), (0, 1, 3, 5, 2, 4))
    return t.view(node, x, t.shape(node))


@register("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")
def _layer_norm(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    x = t.tensor(a["input"])
    w, b = t.optional(a.get("weight")), t.optional(a.get("bias"))
    kind = "rms" if "rms" in base(node) else "layer"
    inputs = [x, w, b] if b else [x, w] if w else [x]
    y = t.emit(
        node,
        "layer_norm",
        inputs,
        t.size(x),
        dims=len(a["normalized_shape"]),
        eps=float(a.get("eps") or 1e-6),
        kind=kind,
    )
    return (y,) if isinstance(node.meta["val"], (tuple, list)) else y


@register("group_norm", "native_group_norm", "instance_norm")
def _group_norm(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    x, w, b = t.tensor(a["input"]), t.optional(a.get("weight")), t.optional(a.get("bias"))
    named = a["num_groups"] if "num_groups" in a else a.get("group", 1)
    groups = t.size(x)[1] if base(node) == "instance_norm" else named
    inputs = [x, w, b] if b else [x, w] if w else [x]
    y = t.emit(node, "group_norm", inputs, t.size(x), groups=int(groups), eps=float(a["eps"]))
    return (y,) if isinstance(node.meta["val"], (tuple, list)) else y


@register(
    "batch_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update_functional",
    "_batch_norm_no_update",
)
def _batch_norm(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    x = t.tensor(a["input"])
    inputs = [x, *(t.optional(a.get(k)) for k in ("weight", "bias", "running_mean", "running_var"))]
    while not inputs[-1]:
        inputs.pop()
    if a.get("training") is False or "no_training" in base(node) or "no_update" in base(node):
        t.builder.note("batch normalisation is read as in training, though the model evaluates")
    y = t.emit(node, "batch_norm", inputs, t.size(x), eps=float(a["eps"]))
    return (y,) if isinstance(node.meta["val"], (tuple, list)) else y


@register("embedding")
def _embedding(t: Translator, node: Any, a: dict[str, Any]) -> Name:
    padding = a.get("padding_idx", -1)
    return t.emit(
        node,
        "embedding",
        (t.tensor(a["indices"]), t.tensor(a["weight"])),
        dtype=t.dtype(node),
        padding_idx=None if padding in (None, -1) else padding,
    )


@register("scaled_dot_product_attention")
def _attention(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    q, k, v = (t.tensor(a[n]) for n in ("query", "key", "value"))
    mask_node, causal = a.get("attn_mask"), bool(a.get("is_causal"))
    if len(t.size(q)) > 4 or len({len(t.size(x)) for x in (q, k, v)}) != 1:
        return t.opaque(node)
    scale = a.get("scale") or 1.0 / math.sqrt(t.size(q)[-1])
    mask = ""
    if mask_node is not None:
        kind = "other"
        if mask_node in t.constants:
            kind = t.constants.mask_kind(mask_node, t.size(q)[-2], t.size(k)[-2])
        causal = causal or kind == "causal"
        mask = t.tensor(mask_node) if kind == "other" else ""
    while len(t.size(q)) < 4:
        # One head, then one batch entry: (s, d) and (b, s, d) become (b, 1, s, d).
        at = 1 if len(t.size(q)) == 3 else 0
        q, k, v = (t.view(node, x, (*t.size(x)[:at], 1, *t.size(x)[at:])) for x in (q, k, v))
        if mask and len(t.size(mask)) == 3:
            mask = t.view(node, mask, (t.size(mask)[0], 1, *t.size(mask)[1:]))
    inputs = (q, k, v, mask) if mask else (q, k, v)
    y = t.emit(
        node,
        "attention",
        inputs,
        (*t.size(q)[:-1], t.size(v)[-1]),
        causal=causal,
        scale=float(scale),
        dropout=float(a.get("dropout_p") or 0.0),
    )
    return t.view(node, y, t.shape(node))


@register("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(t: Translator, node: Any, a: dict[str, Any]) -> Name | Names:
    if "batch_sizes" in a:
        return t.opaque(node)
    cell = base(node).split("_")[0]
    x, weights = t.tensor(a["input"]), [t.tensor(p) for p in a["params"]]
    states = a["hx"] if isinstance(a["hx"], (list, tuple)) else [a["hx"]]
    if any(state not in t.constants for state in states):
        t.builder.note("the initial state of a recurrent layer is read as constant")
    shapes = [tuple(int(s) for s in v.shape) for v in node.meta["val"]]
    if any(len(shape) > 3 for shape in shapes[1:]):
        # Before 2.13, torch traces an LSTM's final states as (layers, 1, batch, hidden). What reads
        # them was traced with sizes that no run has; where nothing does, the rest is right.
        if any(item.args[1] > 0 and item.users for item in node.users):
            raise ImportModelError(
                f"the final states of LSTM '{module_path(node) or node.name}' are used, and "
                + LSTM_STATES
            )
        shapes[1:] = [(shape[0], *shape[2:]) for shape in shapes[1:]]
    gates = {"lstm": 4, "gru": 3}.get(cell, 1)
    return t.emit_many(
        node,
        "lstm",
        (x, *weights),
        shapes,
        label=cell,
        cell=cell,
        hidden=t.size(weights[0])[0] // gates,
        layers=int(a["num_layers"]),
        bidirectional=bool(a["bidirectional"]),
        dropout=float(a["dropout"]),
        batch_first=bool(a["batch_first"]),
    )
