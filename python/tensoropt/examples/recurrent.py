"""Recurrent networks."""

from __future__ import annotations

from tensoropt.graph import Graph

from .layers import Network, require, require_positive

__all__ = ["lstm_language_model"]


def lstm_language_model(
    *,
    batch_size: int,
    sequence_length: int,
    hidden: int,
    layers: int,
    vocabulary: int,
    embedding: int | None = None,
    dropout: float = 0.0,
    tied: bool = False,
    dtype: str = "float32",
    name: str = "lstm",
) -> Graph:
    """Language model of stacked LSTM layers with next-token cross-entropy.

    Parameters
    ----------
    batch_size, sequence_length : int
        Samples of one iteration and tokens of one sample.
    hidden, layers, vocabulary : int
        Features of the state, number of layers, size of the vocabulary.
    embedding : int, optional
        Features of a token; ``hidden`` by default.
    dropout : float
        Probability, after the embedding, between layers and before the head.
    tied : bool
        Whether the head shares the weight of the embedding (then ``embedding`` is ``hidden``).
    dtype, name : str
        Dtype of parameters and activations; name of the graph.

    Returns
    -------
    Graph
        Inputs ``ids`` and ``targets``, both ``(batch_size, sequence_length)``. Each layer is an
        operator of its own.

    Raises
    ------
    GraphError
        If a size is not positive, or a tied head meets another width.
    """
    embedding = hidden if embedding is None else embedding
    require_positive(
        batch_size=batch_size,
        sequence_length=sequence_length,
        hidden=hidden,
        layers=layers,
        vocabulary=vocabulary,
        embedding=embedding,
    )
    require(
        not tied or embedding == hidden,
        f"a tied head needs embedding {embedding} equal to hidden {hidden}",
    )
    require(0 <= dropout < 1, f"dropout is {dropout}, expected a probability below 1")
    net = Network(name, dtype)
    ids = net.builder.input("ids", (batch_size, sequence_length), "int64")
    x, table = net.embedding(ids, vocabulary, embedding, "embedding", padded=True)
    x = net.dropout(x, dropout, "embedding")
    for index in range(layers):
        path = f"layers.{index}"
        with net.block(path, net.shape(x)[2]):
            x = _lstm(net, x, hidden, path)
            x = net.dropout(x, dropout, path)
    logits = net.linear(
        x, vocabulary, "head", bias=not tied, weight=table if tied else None, padded=True
    )
    return net.finish(net.cross_entropy(logits, 2), batch_size, sequence_length)


def _lstm(net: Network, x: str, hidden: int, path: str) -> str:
    batch, sequence, features = net.shape(x)
    weights = [
        net.parameter(f"{path}.weight_ih", (4 * hidden, features)),
        net.parameter(f"{path}.weight_hh", (4 * hidden, hidden)),
        net.parameter(f"{path}.bias_ih", (4 * hidden,)),
        net.parameter(f"{path}.bias_hh", (4 * hidden,)),
    ]
    state = (1, batch, hidden)
    outputs = net.builder.ops(
        "lstm",
        (x, *weights),
        [(batch, sequence, hidden), state, state],
        name=f"{path}.lstm",
        source=path,
        hidden=hidden,
        layers=1,
        bidirectional=False,
        batch_first=True,
        cell="lstm",
        dropout=0.0,
    )
    return outputs[0]
