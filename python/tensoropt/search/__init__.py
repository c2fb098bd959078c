"""From a graph and a cluster to the frontier of strategies."""
