"""From a graph and a cluster to the frontier of strategies."""

from .driver import search
from .sweep import sweep

__all__ = ["search", "sweep"]
