"""Published models by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from tensoropt.errors import GraphError
from tensoropt.graph import Graph

from .recurrent import lstm_language_model
from .transformers import encoder, mixture_of_experts, transformer, vit
from .vision import resnet, unet

__all__ = ["named", "names"]

_Entry = tuple[Callable[..., Graph], Mapping[str, Any]]


def _gpt(layers: int, hidden: int, heads: int, **rest: Any) -> _Entry:
    """Give a decoder after GPT-3 (arXiv 2005.14165, table 2.1), vocabulary padded to 50,304."""
    sizes = {"vocabulary": 50304, "sequence_length": 2048, "batch_size": 32} | rest
    sizes.setdefault("max_positions", sizes["sequence_length"])
    return transformer, {"layers": layers, "hidden": hidden, "heads": heads, **sizes}


def _gpt2(layers: int, hidden: int, heads: int) -> _Entry:
    """GPT-2 with its own vocabulary, which few meshes divide (openai/gpt-2, hparams)."""
    return _gpt(layers, hidden, heads, vocabulary=50257, sequence_length=1024, dropout=0.1)


def _llama3(layers: int, hidden: int, heads: int, intermediate: int) -> _Entry:
    """Llama 3 (arXiv 2407.21783, table 3)."""
    return transformer, {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": 8,
        "intermediate": intermediate,
        "vocabulary": 128256,
        "activation": "swiglu",
        "norm": "rms",
        "positions": "rotary",
        "tied": False,
        "sequence_length": 4096,
        "batch_size": 64,
    }


def _bert(layers: int, hidden: int, heads: int) -> _Entry:
    """BERT (arXiv 1810.04805), uncased vocabulary."""
    return encoder, {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "vocabulary": 30522,
        "max_positions": 512,
        "sequence_length": 512,
        "batch_size": 256,
    }


def _vit(layers: int, hidden: int, heads: int, patch: int) -> _Entry:
    """ViT (arXiv 2010.11929, table 1)."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "patch": patch}
    return vit, {**sizes, "batch_size": 256}


def _mixtral(hidden: int, layers: int, heads: int, intermediate: int, vocabulary: int) -> _Entry:
    """Mixtral (arXiv 2401.04088, table 1)."""
    return mixture_of_experts, {
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "kv_heads": 8,
        "intermediate": intermediate,
        "vocabulary": vocabulary,
        "experts": 8,
        "experts_per_token": 2,
        "sequence_length": 4096,
        "batch_size": 64,
    }


_MODELS: Mapping[str, _Entry] = {
    "gpt-125m": _gpt(12, 768, 12),
    "gpt-350m": _gpt(24, 1024, 16),
    "gpt-760m": _gpt(24, 1536, 16),
    "gpt-1.3b": _gpt(24, 2048, 16),
    "gpt-2.7b": _gpt(32, 2560, 32),
    "gpt-6.7b": _gpt(32, 4096, 32),
    "gpt-13b": _gpt(40, 5120, 40),
    "gpt-175b": _gpt(96, 12288, 96),
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "llama-3-8b": _llama3(32, 4096, 32, 14336),
    "llama-3-70b": _llama3(80, 8192, 64, 28672),
    "llama-3.1-405b": _llama3(126, 16384, 128, 53248),
    "mixtral-8x7b": _mixtral(4096, 32, 32, 14336, 32000),
    "mixtral-8x22b": _mixtral(6144, 56, 48, 16384, 32768),
    "bert-base": _bert(12, 768, 12),
    "bert-large": _bert(24, 1024, 16),
    "vit-b": _vit(12, 768, 12, 16),
    "vit-l": _vit(24, 1024, 16, 16),
    "vit-h": _vit(32, 1280, 16, 14),
    "resnet-18": (resnet, {"depth": 18, "batch_size": 256}),
    "resnet-34": (resnet, {"depth": 34, "batch_size": 256}),
    "resnet-50": (resnet, {"depth": 50, "batch_size": 256}),
    "resnet-101": (resnet, {"depth": 101, "batch_size": 256}),
    "resnet-152": (resnet, {"depth": 152, "batch_size": 256}),
    "wide-resnet-50": (resnet, {"depth": 50, "width": 2, "batch_size": 256}),
    "wide-resnet-101": (resnet, {"depth": 101, "width": 2, "batch_size": 256}),
    # Sizes are ours: a large model whose vocabulary and state any usual mesh divides.
    "lstm": (
        lstm_language_model,
        {
            "hidden": 2048,
            "layers": 4,
            "vocabulary": 32768,
            "sequence_length": 128,
            "batch_size": 256,
            "dropout": 0.1,
        },
    ),
    # arXiv 1505.04597, with padded convolutions and batch norm.
    "unet": (unet, {"batch_size": 32}),
}


def names() -> tuple[str, ...]:
    """Names that :func:`named` knows."""
    return tuple(_MODELS)


def named(
    name: str,
    *,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    **overrides: Any,
) -> Graph:
    """Build a published model.

    Parameters
    ----------
    name : str
        One of :func:`names`, in any case.
    batch_size : int, optional
        Samples of one iteration; each model has a usual one.
    sequence_length : int, optional
        Tokens of one sample, for models that read tokens; each has a usual one.
    **overrides
        Other arguments of the function that builds the model, e.g. ``layers=2``.

    Returns
    -------
    Graph

    Raises
    ------
    GraphError
        If the name is unknown, or the model takes no such argument.

    Examples
    --------
    >>> f"{named('gpt2-xl').parameter_count:,}"
    '1,557,611,200'
    """
    key = name.strip().lower().replace("_", "-")
    if key not in _MODELS:
        close = difflib.get_close_matches(key, _MODELS, n=3)
        hint = f"did you mean {' or '.join(repr(c) for c in close)}? " if close else ""
        raise GraphError(
            f"unknown example '{name}': {hint}All names: examples.names(), or 'tensoropt examples' "
            "in a shell"
        )
    build, sizes = _MODELS[key]
    given = {"batch_size": batch_size, "sequence_length": sequence_length, **overrides}
    arguments = {**sizes, "name": key, **{k: v for k, v in given.items() if v is not None}}
    unknown = sorted(set(arguments) - set(build.__annotations__))
    if unknown:
        raise GraphError(f"example '{key}' takes no argument {', '.join(unknown)}")
    return build(**arguments)
