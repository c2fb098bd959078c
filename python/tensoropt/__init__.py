"""Exact Pareto frontiers of strategies for training neural networks on many devices."""
