"""Tables, plots, explanations and files: how results are shown and kept."""

from .describe import describe
from .diff import diff
from .explain import explain
from .tables import format_table
from .units import format_bytes, format_seconds, parse_bytes, parse_seconds

__all__ = [
    "describe",
    "diff",
    "explain",
    "format_bytes",
    "format_seconds",
    "format_table",
    "parse_bytes",
    "parse_seconds",
]
