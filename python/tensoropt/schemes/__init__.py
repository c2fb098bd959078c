"""Data parallel, ZeRO, Megatron tensor and sequence parallel, expert parallel: without a search."""

from tensoropt.schemes.build import LeftOut, NamedScheme, SchemeBuilder, Schemes, named_schemes

__all__ = ["LeftOut", "NamedScheme", "SchemeBuilder", "Schemes", "named_schemes"]
