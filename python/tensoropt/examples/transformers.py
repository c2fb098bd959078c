"""Transformers: decoders, encoders, vision transformers and mixtures of experts."""

from __future__ import annotations

from tensoropt.graph import Graph

from .blocks import Layer, attention, feed_forward, layer_of, pre_norm_layer
from .layers import Network, require, require_positive

__all__ = ["encoder", "mixture_of_experts", "transformer", "vit"]


def transformer(
    *,
    batch_size: int,
    sequence_length: int,
    hidden: int,
    layers: int,
    heads: int,
    vocabulary: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    intermediate: int | None = None,
    mlp_ratio: float = 4.0,
    activation: str = "gelu",
    norm: str = "layer",
    positions: str = "learned",
    max_positions: int | None = None,
    bias: bool | None = None,
    qkv_bias: bool | None = None,
    dropout: float = 0.0,
    tied: bool = True,
    dtype: str = "float32",
    name: str = "transformer",
) -> Graph:
    """Build a decoder-only language model (GPT, Llama) with next-token cross-entropy.

    Pre-norm layers of causal fused attention and a feed-forward network, a final norm and a
    language model head.

    Parameters
    ----------
    batch_size, sequence_length : int
        Samples of one iteration and tokens of one sample.
    hidden, layers, heads, vocabulary : int
        Width, number of layers, attention heads, size of the vocabulary.
    kv_heads : int, optional
        Heads of keys and values (grouped-query attention); ``heads`` by default.
    head_dim : int, optional
        Features of a head; ``hidden / heads`` by default.
    intermediate : int, optional
        Width of the feed-forward network; ``mlp_ratio * hidden`` by default.
    mlp_ratio : float
        Used when ``intermediate`` is not given.
    activation : str
        ``gelu`` (two linears), ``relu`` or ``silu`` likewise, or ``swiglu`` (three linears).
    norm : str
        ``layer`` or ``rms``.
    positions : str
        ``learned``: a table added to the embedding. ``rotary``: queries and keys are rotated by
        constant tables, as slices, a concatenation, products and a sum, which is what models do
        (one fused elementwise operator would wrongly let the head's features be sharded).
    max_positions : int, optional
        Rows of the learned table; ``sequence_length`` by default.
    bias : bool, optional
        Whether linears have a bias; by default they do with layer norm and do not with RMS norm.
    qkv_bias : bool, optional
        Whether query, key and value have one; ``bias`` by default.
    dropout : float
        Probability, after the embedding, of attention weights, and of both branches of a layer.
    tied : bool
        Whether the head shares the weight of the token embedding.
    dtype : str
        Dtype of parameters and activations.
    name : str
        Name of the graph.

    Returns
    -------
    Graph
        Inputs ``ids`` and ``targets``, both ``(batch_size, sequence_length)``.

    Raises
    ------
    GraphError
        If sizes are not positive, heads do not divide what they must, or a choice is unknown.

    Examples
    --------
    >>> graph = transformer(
    ...     batch_size=2, sequence_length=16, hidden=32, layers=2, heads=4, vocabulary=100
    ... )
    >>> len(graph.blocks), graph.parameter_count
    (2, 29184)
    """
    bias = norm == "layer" if bias is None else bias
    layer = layer_of(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        mlp_ratio=mlp_ratio,
        activation=activation,
        norm=norm,
        bias=bias,
        qkv_bias=bias if qkv_bias is None else qkv_bias,
        dropout=dropout,
        causal=True,
    )
    return _decoder(
        Network(name, dtype),
        layer,
        batch_size,
        sequence_length,
        hidden,
        layers,
        vocabulary,
        positions,
        max_positions,
        tied,
    )


def mixture_of_experts(
    *,
    batch_size: int,
    sequence_length: int,
    hidden: int,
    layers: int,
    heads: int,
    vocabulary: int,
    experts: int,
    experts_per_token: int = 2,
    intermediate: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    activation: str = "swiglu",
    positions: str = "rotary",
    dropout: float = 0.0,
    tied: bool = False,
    dtype: str = "float32",
    name: str = "mixture-of-experts",
) -> Graph:
    """Build a decoder whose feed-forward networks are routed mixtures of experts (Mixtral).

    A linear router picks ``experts_per_token`` experts for each token and weighs them by the
    softmax of their scores. Routing is taken to be balanced, so that every expert gets equally
    many tokens.

    Parameters
    ----------
    batch_size, sequence_length, hidden, layers, heads, vocabulary, kv_heads, head_dim : int
        As in :func:`transformer`.
    experts : int
        Experts of a layer.
    experts_per_token : int
        How many of them see a token.
    intermediate : int
        Width of one expert.
    activation : str
        ``swiglu`` or the name of an elementwise activation.
    positions, dropout, tied, dtype, name
        As in :func:`transformer`; norms are RMS norms and linears have no bias.

    Returns
    -------
    Graph
        Inputs ``ids`` and ``targets``, both ``(batch_size, sequence_length)``.

    Raises
    ------
    GraphError
        If a size is not positive or does not divide what it must.
    """
    require_positive(experts=experts, experts_per_token=experts_per_token)
    require(
        experts_per_token <= experts,
        f"experts_per_token is {experts_per_token}, expected at most experts={experts}",
    )
    layer = layer_of(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        mlp_ratio=0.0,
        activation=activation,
        norm="rms",
        bias=False,
        qkv_bias=False,
        dropout=dropout,
        causal=True,
        experts=experts,
        experts_per_token=experts_per_token,
    )
    return _decoder(
        Network(name, dtype),
        layer,
        batch_size,
        sequence_length,
        hidden,
        layers,
        vocabulary,
        positions,
        None,
        tied,
    )


def encoder(
    *,
    batch_size: int,
    sequence_length: int,
    hidden: int,
    layers: int,
    heads: int,
    vocabulary: int,
    intermediate: int | None = None,
    max_positions: int | None = None,
    types: int = 2,
    dropout: float = 0.1,
    dtype: str = "float32",
    name: str = "encoder",
) -> Graph:
    """Build an encoder language model (BERT) with masked-token cross-entropy.

    Post-norm layers of full attention; the prediction head is a linear, GELU, a norm and a linear
    whose weight is that of the token embedding.

    Parameters
    ----------
    batch_size, sequence_length, hidden, layers, heads, vocabulary, intermediate : int
        As in :func:`transformer`.
    max_positions : int, optional
        Rows of the position table; ``sequence_length`` by default.
    types : int
        Rows of the segment table; 0 for none.
    dropout : float
        Probability, as in :func:`transformer`.
    dtype, name : str
        As in :func:`transformer`.

    Returns
    -------
    Graph
        Inputs ``ids``, ``types`` and ``targets``, all ``(batch_size, sequence_length)``.

    Raises
    ------
    GraphError
        If a size is not positive or does not divide what it must.
    """
    require_positive(batch_size=batch_size, sequence_length=sequence_length, layers=layers)
    layer = layer_of(
        hidden=hidden,
        heads=heads,
        kv_heads=None,
        head_dim=None,
        intermediate=intermediate,
        mlp_ratio=4.0,
        activation="gelu",
        norm="layer",
        bias=True,
        qkv_bias=True,
        dropout=dropout,
        causal=False,
        eps=1e-12,
    )
    net = Network(name, dtype)
    shape = (batch_size, sequence_length)
    ids = net.builder.input("ids", shape, "int64")
    x, table = net.embedding(ids, vocabulary, hidden, "embeddings.token", padded=True)
    if types:
        segments = net.builder.input("types", shape, "int64")
        segment, _ = net.embedding(segments, types, hidden, "embeddings.type")
        x = net.elementwise("add", (x, segment), "embeddings")
    x = _learned_positions(net, x, max_positions)
    x = net.norm(x, "embeddings.norm", "layer", layer.eps)
    x = net.dropout(x, dropout, "embeddings")
    for index in range(layers):
        path = f"layers.{index}"
        with net.block(path, "encoder"):
            branch = net.dropout(attention(net, x, layer, f"{path}.attention", None), dropout, path)
            x = net.elementwise("add", (x, branch), path)
            x = net.norm(x, f"{path}.norm1", "layer", layer.eps)
            branch = net.dropout(feed_forward(net, x, layer, f"{path}.mlp"), dropout, path)
            x = net.elementwise("add", (x, branch), path)
            x = net.norm(x, f"{path}.norm2", "layer", layer.eps)
    x = net.linear(x, hidden, "head.dense")
    x = net.elementwise("gelu", (x,), "head")
    x = net.norm(x, "head.norm", "layer", layer.eps)
    logits = net.linear(x, vocabulary, "head.decoder", weight=table, padded=True)
    return net.finish(net.cross_entropy(logits, 2), batch_size, sequence_length)


def vit(
    *,
    batch_size: int,
    hidden: int,
    layers: int,
    heads: int,
    intermediate: int | None = None,
    image: int = 224,
    patch: int = 16,
    channels: int = 3,
    classes: int = 1000,
    dropout: float = 0.0,
    dtype: str = "float32",
    name: str = "vit",
) -> Graph:
    """Build a vision transformer: patches and a class token through pre-norm encoder layers.

    Parameters
    ----------
    batch_size, hidden, layers, heads, intermediate : int
        As in :func:`transformer`.
    image, patch : int
        Side of the square image and of its square patches, in pixels.
    channels, classes : int
        Colours of the image and classes to tell apart.
    dropout : float
        Probability, as in :func:`transformer`.
    dtype, name : str
        As in :func:`transformer`.

    Returns
    -------
    Graph
        Inputs ``images`` of shape ``(batch_size, channels, image, image)`` and ``targets`` of
        shape ``(batch_size,)``.

    Raises
    ------
    GraphError
        If a size is not positive or does not divide what it must.
    """
    require_positive(
        batch_size=batch_size,
        layers=layers,
        image=image,
        patch=patch,
        channels=channels,
        classes=classes,
    )
    require(image % patch == 0, f"patch {patch} does not divide image {image}: pick one that does")
    layer = layer_of(
        hidden=hidden,
        heads=heads,
        kv_heads=None,
        head_dim=None,
        intermediate=intermediate,
        mlp_ratio=4.0,
        activation="gelu",
        norm="layer",
        bias=True,
        qkv_bias=True,
        dropout=dropout,
        causal=False,
        eps=1e-6,
    )
    net = Network(name, dtype)
    patches = (image // patch) ** 2
    images = net.builder.input("images", (batch_size, channels, image, image), dtype)
    x = net.convolution(images, hidden, patch, "patches", stride=patch, bias=True)
    x = net.view(x, (batch_size, hidden, patches), "patches")
    x = net.transpose(x, [0, 2, 1], "patches")
    token = net.parameter("class_token", (1, 1, hidden))
    token = net.op("expand", (token,), (batch_size, 1, hidden), "embeddings")
    x = net.concat((token, x), 1, "embeddings")
    table = net.parameter("embeddings.positions", (1, patches + 1, hidden))
    x = net.dropout(net.elementwise("add", (x, table), "embeddings"), dropout, "embeddings")
    for index in range(layers):
        path = f"layers.{index}"
        with net.block(path, "encoder"):
            x = pre_norm_layer(net, x, layer, path, None)
    x = net.norm(x, "norm", "layer", layer.eps)
    x = net.slice(x, 1, 0, 1, "head")
    x = net.view(x, (batch_size, hidden), "head")
    logits = net.linear(x, classes, "head")
    return net.finish(net.cross_entropy(logits, 1), batch_size, patches + 1)


def _decoder(
    net: Network,
    layer: Layer,
    batch_size: int,
    sequence_length: int,
    hidden: int,
    layers: int,
    vocabulary: int,
    positions: str,
    max_positions: int | None,
    tied: bool,
) -> Graph:
    require_positive(
        batch_size=batch_size,
        sequence_length=sequence_length,
        layers=layers,
        vocabulary=vocabulary,
    )
    require(
        positions in ("learned", "rotary"),
        f"positions is '{positions}', expected 'learned' or 'rotary'",
    )
    ids = net.builder.input("ids", (batch_size, sequence_length), "int64")
    x, table = net.embedding(ids, vocabulary, hidden, "embeddings.token", padded=True)
    rotary = None
    if positions == "learned":
        x = _learned_positions(net, x, max_positions)
    else:
        require(
            layer.head_dim % 2 == 0, f"rotary positions need an even head_dim, not {layer.head_dim}"
        )
        shape = (sequence_length, layer.head_dim)
        rotary = (
            net.constant("rotary_cosine", shape, "rotary.cosine"),
            net.constant("rotary_sine", shape, "rotary.sine"),
        )
    x = net.dropout(x, layer.dropout, "embeddings")
    for index in range(layers):
        path = f"layers.{index}"
        with net.block(path, "decoder"):
            x = pre_norm_layer(net, x, layer, path, rotary)
    x = net.norm(x, "norm", layer.norm, layer.eps)
    logits = net.linear(
        x, vocabulary, "head", bias=False, weight=table if tied else None, padded=True
    )
    return net.finish(net.cross_entropy(logits, 2), batch_size, sequence_length)


def _learned_positions(net: Network, x: str, max_positions: int | None) -> str:
    _, sequence_length, hidden = net.shape(x)
    rows = sequence_length if max_positions is None else max_positions
    require(
        sequence_length <= rows,
        f"sequence_length {sequence_length} exceeds the {rows} learned positions: "
        "shorten it or raise max_positions",
    )
    ids = net.constant("arange", (sequence_length,), "embeddings.position_ids", "int64")
    position, _ = net.embedding(ids, rows, hidden, "embeddings.position")
    return net.elementwise("add", (x, position), "embeddings")
