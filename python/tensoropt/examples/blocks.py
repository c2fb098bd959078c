"""Blocks of transformers: attention, feed-forward networks, experts."""

from __future__ import annotations

from dataclasses import dataclass

from .layers import Network, require, require_positive

__all__ = ["Layer", "attention", "feed_forward", "layer_of", "pre_norm_layer"]


@dataclass(frozen=True, slots=True)
class Layer:
    """What the layers of one network have in common."""

    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    activation: str
    norm: str
    bias: bool
    qkv_bias: bool
    dropout: float
    causal: bool
    eps: float = 1e-5
    experts: int = 0
    experts_per_token: int = 0


def layer_of(
    *,
    hidden: int,
    heads: int,
    kv_heads: int | None,
    head_dim: int | None,
    intermediate: int | None,
    mlp_ratio: float,
    activation: str,
    norm: str,
    bias: bool,
    qkv_bias: bool,
    dropout: float,
    causal: bool,
    eps: float = 1e-5,
    experts: int = 0,
    experts_per_token: int = 0,
) -> Layer:
    """Check the sizes of a layer and fill in those that follow from others."""
    require_positive(hidden=hidden, heads=heads)
    kv_heads = heads if kv_heads is None else kv_heads
    require_positive(kv_heads=kv_heads)
    require(
        heads % kv_heads == 0, f"kv_heads {kv_heads} does not divide heads {heads}: pick a divisor"
    )
    if head_dim is None:
        require(
            hidden % heads == 0,
            f"heads {heads} does not divide hidden {hidden}: pick a divisor or give head_dim",
        )
        head_dim = hidden // heads
    intermediate = round(mlp_ratio * hidden) if intermediate is None else intermediate
    require_positive(head_dim=head_dim, intermediate=intermediate)
    activations = ("gelu", "relu", "silu", "swiglu")
    require(
        activation in activations, f"activation is '{activation}', expected one of {activations}"
    )
    require(norm in ("layer", "rms"), f"norm is '{norm}', expected 'layer' or 'rms'")
    require(0 <= dropout < 1, f"dropout is {dropout}, expected a probability below 1")
    return Layer(
        heads,
        kv_heads,
        head_dim,
        intermediate,
        activation,
        norm,
        bias,
        qkv_bias,
        dropout,
        causal,
        eps,
        experts,
        experts_per_token,
    )


def pre_norm_layer(
    net: Network, x: str, layer: Layer, path: str, rotary: tuple[str, str] | None
) -> str:
    """Add attention and a feed-forward network or experts, each normed before and added after."""
    branch = net.norm(x, f"{path}.norm1", layer.norm, layer.eps)
    branch = attention(net, branch, layer, f"{path}.attention", rotary)
    x = net.elementwise("add", (x, net.dropout(branch, layer.dropout, path)), path)
    branch = net.norm(x, f"{path}.norm2", layer.norm, layer.eps)
    if layer.experts:
        branch = _experts(net, branch, layer, f"{path}.moe")
    else:
        branch = feed_forward(net, branch, layer, f"{path}.mlp")
    return net.elementwise("add", (x, net.dropout(branch, layer.dropout, path)), path)


def attention(net: Network, x: str, layer: Layer, path: str, rotary: tuple[str, str] | None) -> str:
    """Add fused attention between separate projections; ``rotary`` are cosine and sine tables."""
    batch, sequence, hidden = net.shape(x)

    def project(what: str, heads: int) -> str:
        y = net.linear(x, heads * layer.head_dim, f"{path}.{what}", bias=layer.qkv_bias)
        y = net.view(y, (batch, sequence, heads, layer.head_dim), path)
        return net.transpose(y, [0, 2, 1, 3], path)

    query = project("query", layer.heads)
    key = project("key", layer.kv_heads)
    value = project("value", layer.kv_heads)
    if rotary is not None:
        query = _rotate(net, query, rotary, path)
        key = _rotate(net, key, rotary, path)
    y = net.op(
        "attention",
        (query, key, value),
        net.shape(query),
        path,
        causal=layer.causal,
        scale=layer.head_dim**-0.5,
        dropout=layer.dropout,
    )
    y = net.transpose(y, [0, 2, 1, 3], path)
    y = net.view(y, (batch, sequence, layer.heads * layer.head_dim), path)
    return net.linear(y, hidden, f"{path}.output", bias=layer.bias)


def _rotate(net: Network, x: str, rotary: tuple[str, str], path: str) -> str:
    size = net.shape(x)[3]
    first = net.slice(x, 3, 0, size // 2, path)
    second = net.slice(x, 3, size // 2, size, path)
    turned = net.concat((net.elementwise("neg", (second,), path), first), 3, path)
    cosine = net.elementwise("mul", (x, rotary[0]), path)
    sine = net.elementwise("mul", (turned, rotary[1]), path)
    return net.elementwise("add", (cosine, sine), path)


def feed_forward(net: Network, x: str, layer: Layer, path: str) -> str:
    """Add two linears around an activation, or the three of SwiGLU."""
    hidden = net.shape(x)[-1]
    if layer.activation == "swiglu":
        gate = net.linear(x, layer.intermediate, f"{path}.gate", bias=layer.bias)
        up = net.linear(x, layer.intermediate, f"{path}.up", bias=layer.bias)
        y = net.elementwise("mul", (net.elementwise("silu", (gate,), path), up), path)
    else:
        y = net.linear(x, layer.intermediate, f"{path}.up", bias=layer.bias)
        y = net.elementwise(layer.activation, (y,), path)
    return net.linear(y, hidden, f"{path}.down", bias=layer.bias)


def _experts(net: Network, x: str, layer: Layer, path: str) -> str:
    batch, sequence, hidden = net.shape(x)
    tokens, chosen, experts = batch * sequence, layer.experts_per_token, layer.experts
    slots = -(-tokens * chosen // experts)
    flat = net.view(x, (tokens, hidden), path)
    scores = net.linear(flat, experts, f"{path}.router", bias=False)
    scores = net.op("softmax", (scores,), (tokens, experts), path, dim=1, log=False)
    weights, indices = net.builder.ops(
        "topk",
        (scores,),
        [(tokens, chosen), (tokens, chosen)],
        name=f"{path}.topk",
        dtypes=[net.dtype, "int64"],
        source=path,
        k=chosen,
        dim=1,
    )
    total = net.op("reduce", (weights,), (tokens, 1), path, op="sum", dims=[1], keepdim=True)
    weights = net.elementwise("div", (weights, total), path)
    routed = net.op(
        "moe_dispatch", (flat, indices), (experts, slots, hidden), path, experts=experts
    )

    def expert(y: str, features: int, what: str) -> str:
        weight = net.parameter(f"{path}.experts.{what}", (experts, net.shape(y)[2], features))
        shape = (experts, slots, features)
        source = f"{path}.experts.{what}"
        return net.op("matmul", (y, weight), shape, source, name=f"{source}.matmul")

    if layer.activation == "swiglu":
        gate = net.elementwise("silu", (expert(routed, layer.intermediate, "gate"),), path)
        y = net.elementwise("mul", (gate, expert(routed, layer.intermediate, "up")), path)
    else:
        y = expert(routed, layer.intermediate, "up")
        y = net.elementwise(layer.activation, (y,), path)
    y = expert(y, hidden, "down")
    y = net.op("moe_combine", (y, indices, weights), (tokens, hidden), path)
    return net.view(y, (batch, sequence, hidden), path)
