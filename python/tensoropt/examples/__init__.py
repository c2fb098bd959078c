"""Well-known networks built directly in the neutral form, without torch.

They serve demonstrations, tests and measurements. Each function builds one family of models from
its sizes; :func:`named` knows published models by name.

Two choices hold for all of them. Linears act on ``(batch, sequence, feature)`` tensors without
flattening, so that batch and sequence can both be sharded; query, key and value are separate
linears, so that sharded heads need no redistribution.
"""

from .recurrent import lstm_language_model
from .registry import named, names
from .transformers import encoder, mixture_of_experts, transformer, vit
from .vision import resnet, unet

__all__ = [
    "encoder",
    "lstm_language_model",
    "mixture_of_experts",
    "named",
    "names",
    "resnet",
    "transformer",
    "unet",
    "vit",
]
