"""Small graphs in which memory is easily forgotten, and a climb to choices that need the most.

Random choices seldom meet the worst. A climb changes one choice or a few neighbouring ones at a
time, and goes on from whatever brings the replayed peak nearer to its bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from random_choices import Choice, random_choice
from tensoropt.cost.tables import TIME, Tables
from tensoropt.graph import Graph, GraphBuilder
from tensoropt.sharding.decisions import Link, Node

__all__ = ["GRAPHS", "climb"]

ROWS = 16


class _Net:
    """Short names for a few families."""

    def __init__(self, name: str) -> None:
        self.b = GraphBuilder(name)
        self.count = 0

    def number(self) -> int:
        self.count += 1
        return self.count

    def linear(self, x: str, shape: tuple[int, ...], inner: int, weight: str = "") -> str:
        n = self.number()
        w = weight or self.b.parameter(f"w{n}", (shape[-1], inner))
        return self.b.op("linear", (x, w), shape, name=f"linear{n}", weight="nk")

    def elementwise(self, op: str, shape: tuple[int, ...], *operands: str) -> str:
        return self.b.op("elementwise", operands, shape, name=f"{op}{self.number()}", op=op)

    def view(self, x: str, shape: tuple[int, ...]) -> str:
        return self.b.op("view", (x,), shape, name=f"view{self.number()}")

    def turn(self, x: str, shape: tuple[int, ...], perm: list[int]) -> str:
        return self.b.op("transpose", (x,), shape, name=f"turn{self.number()}", perm=perm)

    def build(self, x: str, shape: tuple[int, ...]) -> Graph:
        dims = list(range(len(shape)))
        loss = self.b.op("reduce", (x,), (), name="loss", op="mean", dims=dims, keepdim=False)
        return self.b.build(loss, batch_size=8)


def convolutional() -> Graph:
    """Like AlexNet: what a pool makes is flattened for the first of two products."""
    net = _Net("convolutional")
    same = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    half = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0]}
    x = net.b.input("x", (8, 4, 16, 16))
    w = net.b.parameter("w", (8, 4, 3, 3))
    x = net.b.op("convolution", (x, w), (8, 8, 16, 16), name="conv", transposed=False, **same)
    x = net.elementwise("relu", (8, 8, 16, 16), x)
    x = net.b.op("pool", (x,), (8, 8, 8, 8), name="pool", mode="max", **half)
    x = net.linear(net.view(x, (8, 512)), (8, 512), 512)
    x = net.elementwise("relu", (8, 512), x)
    return net.build(net.linear(x, (8, 64), 512), (8, 64))


def views() -> Graph:
    """Two products behind views of one tensor, to which their results lead back."""
    net = _Net("views")
    x = net.linear(net.b.input("x", (8, 16, 32)), (8, 16, 32), 32)
    a = net.linear(net.view(x, (128, 32)), (128, 32), 32)
    c = net.linear(net.turn(x, (8, 32, 16), [0, 2, 1]), (8, 32, 16), 16)
    c = net.view(net.turn(c, (8, 16, 32), [0, 2, 1]), (128, 32))
    return net.build(net.elementwise("mul", (128, 32), a, c), (128, 32))


def chain_of_views() -> Graph:
    """A gather before a view and a gather behind it."""
    net = _Net("chain of views")
    x = net.linear(net.b.input("x", (8, 8, 8)), (8, 8, 128), 8)
    x = net.linear(net.view(x, (64, 128)), (64, 16), 128)
    x = net.elementwise("gelu", (64, 16), x)
    return net.build(net.linear(x, (64, 16), 16), (64, 16))


def small_between_large() -> Graph:
    """Weights much larger than what the operators between them need, and the other way round."""
    net = _Net("small between large")
    widths = (8, 512, 8, 256, 16)
    x = net.b.input("x", (ROWS, widths[0]))
    for inner, width in zip(widths[:-1], widths[1:], strict=True):
        x = net.elementwise("gelu", (ROWS, width), net.linear(x, (ROWS, width), inner))
    return net.build(x, (ROWS, widths[-1]))


def tied() -> Graph:
    """A weight that two products read, by rows and by columns."""
    net = _Net("tied")
    w = net.b.parameter("w", (64, 64))
    x = net.elementwise("gelu", (8, 64), net.linear(net.b.input("x", (8, 64)), (8, 64), 64, w))
    x = net.b.op("linear", (x, w), (8, 64), name="back", weight="kn")
    return net.build(x, (8, 64))


def tied_view() -> Graph:
    """A weight that one product reads as it is, another transposed."""
    net = _Net("tied view")
    w = net.b.parameter("w", (64, 64))
    x = net.b.op("matmul", (net.b.input("x", (8, 64)), w), (8, 64), name="there")
    x = net.elementwise("gelu", (8, 64), x)
    x = net.b.op("matmul", (x, net.turn(w, (64, 64), [1, 0])), (8, 64), name="back")
    return net.build(x, (8, 64))


def squared_weight() -> Graph:
    """A weight that one product reads twice."""
    net = _Net("squared weight")
    w = net.b.parameter("w", (64, 64))
    p = net.b.op("matmul", (w, w), (64, 64), name="square")
    x = net.b.op("matmul", (net.b.input("x", (8, 64)), p), (8, 64), name="product")
    return net.build(x, (8, 64))


def tied_embedding() -> Graph:
    net = _Net("tied embedding")
    w = net.b.parameter("w", (128, 32))
    ids, targets = (net.b.input(n, (8, 16), dtype="int64") for n in ("ids", "targets"))
    x = net.b.op("embedding", (ids, w), (8, 16, 32), name="look up")
    x = net.linear(net.linear(x, (8, 16, 32), 32), (8, 16, 128), 32, w)
    return net.b.build(net.b.op("cross_entropy", (x, targets), (), name="loss"), batch_size=8)


def sums(kind: str, last: str, rows: int = ROWS, width: int = 16, inner: int = 8) -> Graph:
    """Additions of products, which may be pending sums, in an order that lets some wait."""
    net = _Net(f"{kind} sums, {last}")
    inputs = iter([net.b.input(f"x{i}", (rows, inner)) for i in range(4)])
    shape = (rows, width)

    def product(x: str = "") -> str:
        return net.linear(x or next(inputs), shape, width if x else inner)

    def add(*operands: str) -> str:
        return net.elementwise("add", shape, *operands)

    if kind == "tree":
        left = add(product(), product())
        x = add(left, add(product(), product()))
    elif kind == "waiting":
        first, second, third, fourth = (product() for _ in range(4))
        x = add(add(add(first, second), third), fourth)
    elif kind == "nested":
        first, second, third, fourth = (product() for _ in range(4))
        x = add(first, add(second, add(third, fourth)))
    elif kind == "parallel":
        start = product()
        x = add(add(start, product(start)), product(start))
    elif kind == "skip":
        start = product()
        x = add(start, product(product(net.elementwise("gelu", shape, product()))))
    else:
        x = net.elementwise("mul", shape, product(), product())
        x = net.elementwise("mul", shape, add(x, product()), product())
    if last == "product":
        x = product(x)
    elif last == "gelu":
        x = net.elementwise("gelu", shape, x)
    return net.build(x, shape)


def late_reader() -> Graph:
    """A wide tensor that a narrow product reads again after a branch: its gradient waits."""
    net = _Net("late reader")
    x = net.linear(net.b.input("x", (ROWS, 8)), (ROWS, 64), 8)
    y = net.linear(net.linear(x, (ROWS, 8), 64), (ROWS, 64), 8)
    y = net.linear(net.elementwise("gelu", (ROWS, 64), y), (ROWS, 8), 64)
    return net.build(net.elementwise("mul", (ROWS, 8), y, net.linear(x, (ROWS, 8), 64)), (ROWS, 8))


def rotations() -> Graph:
    """Rotary positions: tensors that nobody keeps wait, parts of them behind views."""
    net = _Net("rotations")
    whole, half = (ROWS, 64), (ROWS, 32)

    def part(x: str, start: int) -> str:
        name = f"part{net.number()}"
        span = {"dim": 1, "start": start, "stop": start + 32, "step": 1}
        return net.b.op("slice", (x,), half, name=name, **span)

    def rotate(x: str) -> str:
        scaled = net.b.op(
            "elementwise", (x,), whole, name=f"cos{net.number()}", op="mul", scalars=[None, 2.0]
        )
        low, high = part(x, 0), part(x, 32)
        high = net.elementwise("neg", half, high)
        turned = net.b.op("concat", (high, low), whole, name=f"turned{net.number()}", dim=1)
        return net.elementwise("add", whole, scaled, turned)

    q, k = (net.linear(net.b.input(n, (ROWS, 8)), whole, 8) for n in "xy")
    q = rotate(q)
    return net.build(net.elementwise("mul", whole, q, rotate(k)), whole)


def additions_of_one() -> Graph:
    """A tensor that only additions read, far apart, and that nobody keeps."""
    net = _Net("additions of one")
    shape = (ROWS, 64)
    x, y, z, u = (net.linear(net.b.input(n, (ROWS, 8)), shape, 8) for n in "xyzu")
    z = net.elementwise("add", shape, z, net.elementwise("add", shape, x, y))
    z = net.elementwise("add", shape, net.elementwise("add", shape, u, x), z)
    return net.build(net.elementwise("gelu", shape, z), shape)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "convolutional": convolutional,
    "views": views,
    "chain of views": chain_of_views,
    "small between large": small_between_large,
    "tied": tied,
    "tied view": tied_view,
    "squared weight": squared_weight,
    "tied embedding": tied_embedding,
    "late reader": late_reader,
    "rotations": rotations,
    "additions of one": additions_of_one,
    "tree": lambda: sums("tree", "product"),
    "waiting": lambda: sums("waiting", "gelu"),
    "nested": lambda: sums("nested", "mean", rows=64, width=64, inner=4),
    "parallel": lambda: sums("parallel", "mean"),
    "skip": lambda: sums("skip", "product"),
    "products": lambda: sums("products", "product", rows=64, width=64, inner=4),
}


def climb(
    tables: Tables,
    rng: np.random.Generator,
    steps: int,
    height: Callable[[Choice], float],
    recompute: float = 0.0,
) -> Iterator[tuple[Choice, float]]:
    """Choices one after the other, each near the highest so far, and their heights.

    Parameters
    ----------
    tables : Tables
    rng : numpy.random.Generator
    steps : int
    height : callable
        Of a choice; infinite if it should not be left.
    recompute : float
        Share of blocks that are recomputed at the start.
    """
    links_of: dict[Node, list[Link]] = defaultdict(list)
    for link in tables.decisions.links:
        for node in dict.fromkeys((link.source, link.target)):
            links_of[node].append(link)
    best = random_choice(tables, rng, recompute)
    highest = height(best)
    yield best, highest
    for _ in range(steps):
        choice = _near(tables, links_of, best, rng)
        if choice is None:
            continue
        found = height(choice)
        yield choice, found
        if found >= highest:
            best, highest = choice, found


def _near(
    tables: Tables, links_of: dict[Node, list[Link]], choice: Choice, rng: np.random.Generator
) -> Choice | None:
    """Change one link's alternative, or up to four neighbouring nodes; ``None`` if that fails."""
    nodes, links, redo = dict(choice[0]), dict(choice[1]), list(choice[2])
    if redo and rng.random() < 0.1:
        block = rng.integers(len(redo))
        redo[block] = not redo[block]
        return nodes, links, redo
    if rng.random() < 0.25:
        link = list(links)[rng.integers(len(links))]
        links[link] = int(rng.choice(_alternatives(tables, nodes, link)))
        return nodes, links, redo
    picked = [list(nodes)[rng.integers(len(nodes))]]
    while rng.random() < 0.5 and len(picked) < 4 and links_of[picked[-1]]:
        around = links_of[picked[-1]]
        link = around[rng.integers(len(around))]
        other = link.source if link.target == picked[-1] else link.target
        if other in picked:
            break
        picked.append(other)
    undecided = set(picked)
    for node in picked:
        allowed = np.isfinite(tables.node(node).costs[:, TIME])
        for link in links_of[node]:
            costs = tables.link(link).costs[0, ..., TIME]
            if link.target == node and link.source not in undecided:
                allowed = allowed & np.isfinite(costs[nodes[link.source]])
            elif link.source == node and link.target not in undecided:
                allowed = allowed & np.isfinite(costs[:, nodes[link.target]])
        if not allowed.any():
            return None
        nodes[node] = int(rng.choice(np.nonzero(allowed)[0]))
        undecided.remove(node)
    for link in dict.fromkeys(link for node in picked for link in links_of[node]):
        found = _alternatives(tables, nodes, link)
        if not len(found):
            return None
        if links[link] not in found or rng.random() < 0.3:
            links[link] = int(rng.choice(found))
    return nodes, links, redo


def _alternatives(tables: Tables, nodes: dict[Node, int], link: Link) -> np.ndarray:
    cell = tables.link(link).costs[:, nodes[link.source], nodes[link.target], TIME]
    return np.nonzero(np.isfinite(cell))[0]
