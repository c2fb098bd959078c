"""Random legal choices from cost tables, and what the tables themselves say that they cost."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tensoropt.cost.tables import RECOMPUTE_TIME, RESIDENT, SAVED, TIME, TRANSIENT, Tables
from tensoropt.sharding.decisions import Link, Node

Choice = tuple[dict[Node, int], dict[Link, int], list[bool]]


def random_choice(tables: Tables, rng: np.random.Generator, recompute: float = 0.0) -> Choice:
    """Pick configurations in order, each among those its decided neighbours allow.

    Something is always allowed: whatever is replicated can be read from anywhere.
    """
    decisions = tables.decisions
    links_of: dict[Node, list[Link]] = defaultdict(list)
    for link in decisions.links:
        links_of[link.source].append(link)
        links_of[link.target].append(link)
    nodes: dict[Node, int] = {}
    # Tied parameters first: their readers must be able to get what they hold.
    order = sorted(decisions.nodes, key=lambda n: n.kind == "parameter" and n not in _tied(tables))
    order = [n for n in order if n in _tied(tables)] + [n for n in order if n not in _tied(tables)]
    for node in order:
        allowed = np.isfinite(tables.node(node).costs[:, TIME])
        for link in links_of[node]:
            costs = tables.link(link).costs[0, ..., TIME]
            if link.target == node and link.source in nodes:
                allowed = allowed & np.isfinite(costs[nodes[link.source]])
            elif link.source == node and link.target in nodes:
                allowed = allowed & np.isfinite(costs[:, nodes[link.target]])
        nodes[node] = int(rng.choice(np.nonzero(allowed)[0]))
    links = {}
    for link in decisions.links:
        cell = tables.link(link).costs[:, nodes[link.source], nodes[link.target], TIME]
        links[link] = int(rng.choice(np.nonzero(np.isfinite(cell))[0]))
    redo = [bool(rng.random() < recompute) for _ in decisions.graph.blocks]
    return nodes, links, redo


def _tied(tables: Tables) -> set[Node]:
    groups = tables.decisions.groups
    return {Node("parameter", i) for i, g in enumerate(groups) if len(g.readers) > 1}


def table_costs(tables: Tables, choice: Choice) -> tuple[float, float, float]:
    """Time, resident and transient bytes by adding up table entries, blocks as the search does."""
    nodes, links, redo = choice
    decisions = tables.decisions
    time = resident = transient = 0.0
    block_saved: dict[int, float] = defaultdict(float)
    block_need: dict[int, float] = defaultdict(float)
    rows = [(decisions.block_of.get(n), tables.node(n).costs[k]) for n, k in nodes.items()]
    rows += [
        (
            decisions.block_of_link(link),
            tables.link(link).costs[alternative, nodes[link.source], nodes[link.target]],
        )
        for link, alternative in links.items()
    ]
    for block, row in rows:
        time += row[TIME]
        resident += row[RESIDENT]
        if block is not None and redo[block]:
            time += row[RECOMPUTE_TIME]
            block_saved[block] += row[SAVED]
            block_need[block] = max(block_need[block], row[TRANSIENT])
        else:
            resident += row[SAVED]
            transient = max(transient, row[TRANSIENT])
    for block, need in block_need.items():
        transient = max(transient, need + block_saved[block])
    return time, resident, transient
