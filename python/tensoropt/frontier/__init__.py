"""What a search returns: the frontier of strategies, and the sweep over device counts."""

from .frontier import Distance, Frontier, FrontierCosts, GraphSummary
from .points import LazyPoints
from .sweep import Sweep, SweepRow

__all__ = [
    "Distance",
    "Frontier",
    "FrontierCosts",
    "GraphSummary",
    "LazyPoints",
    "Sweep",
    "SweepRow",
]
