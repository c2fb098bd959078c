"""From a Hugging Face ``config.json`` to our graph: the architecture, without any weights.

transformers builds the model on the meta device, ``import_torch`` traces it. The model gets labels,
so that its own loss is the graph's loss; attention is the fused one where the model has it.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensoropt.errors import ImportModelError, MissingExtraError
from tensoropt.graph import Graph
from tensoropt.importing.torch_export import import_torch, one_line

__all__ = ["import_huggingface"]

# What the end of an architecture's name says of its task, and the tasks in the order in which they
# are tried for a model type that names no architecture.
_TASK_OF_SUFFIX = {
    "ForConditionalGeneration": "seq2seq",
    "ForMaskedLM": "masked",
    "ForPreTraining": "masked",
    "ForImageClassification": "image",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
}
_IMAGE_SIZE = 224
"""Pixels of a side where the configuration says nothing."""
_AUTO_CLASS = {
    "seq2seq": "AutoModelForSeq2SeqLM",
    "masked": "AutoModelForMaskedLM",
    "causal": "AutoModelForCausalLM",
    "image": "AutoModelForImageClassification",
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
}
_DEPTHS = ("num_hidden_layers", "num_decoder_layers", "decoder_layers")
"""Counts of layers, of which a model needs at least one."""


def import_huggingface(
    config: str | Path | Mapping[str, Any],
    *,
    batch_size: int,
    sequence_length: int | None = None,
    name: str | None = None,
) -> Graph:
    """Import the architecture that a Hugging Face configuration describes.

    Parameters
    ----------
    config : str, pathlib.Path or mapping
        A ``config.json`` file (or a folder that holds one), or its content.
    batch_size : int
        Samples in one iteration.
    sequence_length : int or None, optional
        Tokens in a sample (for encoder-decoder models on both sides). Image models do not use it:
        their images are as large as the configuration says, else 224 x 224.
    name : str or None, optional
        Name for reports; the model type by default.

    Returns
    -------
    Graph
        As :func:`tensoropt.importing.torch_export.import_torch` makes it. Parameters are declared
        float32; the precision of a search says what they take.

    Raises
    ------
    ImportModelError
        If the file is not such a configuration, the model type is unknown or has no model to
        train, or the sequence is longer than the model's positions.
    MissingExtraError
        If torch or transformers is not installed.
    """
    content = _read(config)
    if batch_size < 1:
        raise ImportModelError(f"batch_size is {batch_size}, expected at least 1")
    with _quiet_transformers() as transformers:
        settings = _settings(transformers, content)
        task, auto = _task(transformers, settings, content)
        length = None if task == "image" else _length(settings, sequence_length)
        model = _build(auto, settings)
        inputs = _inputs(settings, task, batch_size, length)
        title = name or str(content["model_type"])
        return import_torch(model, inputs, name=title)


def _read(config: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(config, Mapping):
        content: Any = dict(config)
        where = "the configuration"
    else:
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        where = f"'{path}'"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ImportModelError(f"{where} does not exist") from error
        except OSError as error:
            raise ImportModelError(f"{where} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ImportModelError(f"{where} is not JSON: {error}") from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise ImportModelError(
            f"{where} is not a Hugging Face configuration: it has no 'model_type'"
        )
    if not isinstance(content["model_type"], str):
        raise ImportModelError(
            f"{where} has 'model_type' {content['model_type']!r}, expected a name such as 'llama'"
        )
    return content


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[Any]:
    """The module transformers, without its advice on standard error."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("torch", "torch") from error
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "torch") from error
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield transformers
    finally:
        logging.set_verbosity(before)


def _settings(transformers: Any, content: dict[str, Any]) -> Any:
    """The configuration object, set up for training without a cache."""
    kind = content["model_type"]
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if kind not in known:
        close = difflib.get_close_matches(kind, list(known.keys()), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ImportModelError(
            f"model type '{kind}' is unknown to transformers {transformers.__version__}{hint}"
        )
    # Weights on disk may be quantised or half precision; the architecture is what is asked for.
    dropped = ("quantization_config", "dtype", "torch_dtype", "transformers_version")
    given = {k: v for k, v in content.items() if k not in dropped and k != "model_type"}
    try:
        settings = transformers.AutoConfig.for_model(kind, **given)
    except Exception as error:
        raise ImportModelError(
            f"configuration of '{kind}' is not valid: {one_line(error)}"
        ) from error
    for field in _DEPTHS:
        layers = getattr(settings, field, None)
        if isinstance(layers, int) and layers < 1:
            # Some models have a name of their own for it.
            own = getattr(settings, "attribute_map", {}).get(field, field)
            written = own if own in content else field
            raise ImportModelError(
                f"configuration of '{kind}': {written} is {layers}, expected at least 1"
            )
    settings.use_cache = False
    if getattr(settings, "decoder_start_token_id", 0) is None or (
        settings.is_encoder_decoder and not hasattr(settings, "decoder_start_token_id")
    ):
        settings.decoder_start_token_id = getattr(settings, "pad_token_id", None) or 0
    return settings


def _task(transformers: Any, settings: Any, content: dict[str, Any]) -> tuple[str, Any]:
    """What the model is trained on, and transformers' class of such models."""
    architecture = str((content.get("architectures") or [""])[0])
    wanted = [t for suffix, t in _TASK_OF_SUFFIX.items() if architecture.endswith(suffix)]
    for task in wanted or list(_AUTO_CLASS):
        auto = getattr(transformers, _AUTO_CLASS[task])
        if type(settings) in auto._model_mapping:
            return task, auto
    what = f"architecture '{architecture}'" if architecture else "this model type"
    raise ImportModelError(
        f"'{content['model_type']}': {what} has no loss that can be imported; expected a language "
        "model (causal, masked, sequence to sequence) or a classifier; build the model yourself "
        "and pass it to import_torch with loss=..."
    )


def _length(settings: Any, asked: int | None) -> int:
    if asked is None:
        raise ImportModelError(
            "the sequence length is needed for a model of tokens: pass sequence_length (--seq)"
        )
    if asked < 1:
        raise ImportModelError(f"sequence_length is {asked}, expected at least 1")
    relative = hasattr(settings, "relative_attention_num_buckets")
    most = getattr(settings, "max_position_embeddings", None)
    if most and not relative and asked > most:
        raise ImportModelError(
            f"sequence_length is {asked}, the model has {most} positions: pass at most {most}, or "
            "raise max_position_embeddings in the configuration"
        )
    return asked


def _build(auto: Any, settings: Any) -> Any:
    import torch

    problem: Exception | None = None
    # Some models have no fused attention.
    for attention in ("sdpa", "eager"):
        try:
            with torch.device("meta"):
                model = auto.from_config(
                    settings, attn_implementation=attention, dtype=torch.float32
                )
            return model.train()
        except Exception as error:
            problem = problem or error
    assert problem is not None
    raise ImportModelError(
        f"transformers cannot build '{settings.model_type}' from this configuration: "
        f"{one_line(problem)}"
    ) from problem


def _inputs(settings: Any, task: str, batch: int, length: int | None) -> dict[str, Any]:
    """Meta tensors of the right shapes, labels included."""
    import torch

    def ids(*shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.long, device="meta")

    if task == "image":
        # Some configurations hold these for a part of the model, some (ResNet) not at all.
        vision = getattr(settings, "vision_config", None) or settings
        size = getattr(vision, "image_size", None) or _IMAGE_SIZE
        height, width = (size, size) if isinstance(size, int) else size
        channels = getattr(vision, "num_channels", 3)
        pixels = torch.zeros((batch, channels, height, width), device="meta")
        return {"pixel_values": pixels, "labels": ids(batch)}
    assert length is not None
    if task == "sequence":
        settings.problem_type = "single_label_classification"
        return {"input_ids": ids(batch, length), "labels": ids(batch)}
    return {"input_ids": ids(batch, length), "labels": ids(batch, length)}
