"""Times the solver and its frontier operations against peers, in one run on one machine.

    pip install numpy scipy moocore pytoulbar2 ortools      # and this package, built with --release
    python tools/peers.py [--quick] [--chain FILE.npz]

Peers that are not installed are left out. Every answer is compared with ours. Frontier operations
are timed in the program `kernel` (one thread, data in memory), moocore in this process. Of solvers
the building of their model is left out; that of ours, and all strategies, are included.
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import tensoropt

ROOT = Path(__file__).resolve().parent.parent
SCALE = 10**9


@dataclass
class Row:
    """A line of the table."""

    what: str
    ours_s: float
    peer: str = ""
    peer_s: float | None = None
    aim: str = ""
    remark: str = ""

    def text(self) -> str:
        """The line."""
        peer = "" if self.peer_s is None else f"{self.peer_s:.4g}"
        ratio = "" if self.peer_s is None else f"{self.peer_s / self.ours_s:.3g}"
        cells = (self.what, self.peer, peer, f"{self.ours_s:.4g}", ratio, self.aim, self.remark)
        return "| " + " | ".join(cells) + " |"


def show(row: Row) -> None:
    """Prints a line as soon as it is known."""
    print(row.text(), flush=True)


def peer(name: str) -> ModuleType | None:
    """A peer, if it is installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name} is not installed: left out", file=sys.stderr)
        return None


def timed(call: Callable[[], Any], repeat: int = 1) -> tuple[float, Any]:
    """The least seconds of some calls, and what the last returned."""
    least, answer = float("inf"), None
    for _ in range(repeat):
        begin = time.perf_counter()
        answer = call()
        least = min(least, time.perf_counter() - begin)
    return least, answer


# ------------------------------------------------------------------ frontier operations


def kernel(sides: list[np.ndarray], repeat: int) -> tuple[float, np.ndarray]:
    """Our operation on points or on two frontiers: seconds, and the points left."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"side{i}" for i in range(len(sides))]
        for path, side in zip(paths, sides, strict=True):
            header = np.array([side.shape[1]], dtype="<u8")
            path.write_bytes(header.tobytes() + side.astype("<u8").tobytes())
        out = Path(folder) / "out"
        program = ROOT / target / "release" / "kernel"
        command = [str(program), str(repeat), str(out), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        points = np.frombuffer(out.read_bytes(), dtype="<u8").reshape(-1, sides[0].shape[1])
    return float(done.stdout.split()[0]), points


def ordered(points: np.ndarray) -> np.ndarray:
    """Points in lexicographic order, each once."""
    return np.unique(points.astype(np.uint64), axis=0)


def cloud(count: int, objectives: int, rng: np.random.Generator) -> np.ndarray:
    """Anti-correlated points: about a simplex, a thousandth thick in two objectives."""
    weights = rng.exponential(size=(count, objectives))
    points = weights / weights.sum(axis=1, keepdims=True)
    thickness = 0.001 if objectives == 2 else 0.02
    return ((points + thickness * rng.random(points.shape)) * SCALE).astype(np.uint64)


def front(count: int, rng: np.random.Generator) -> np.ndarray:
    """An anti-correlated frontier of two objectives: two sorted columns of uniform numbers."""
    columns = np.sort(rng.integers(0, SCALE, size=(2, count), dtype=np.uint64), axis=1)
    points = np.stack([columns[0], columns[1][::-1]], axis=1)
    return kernel([points], 1)[1]


def compare_filters(moocore: ModuleType, rng: np.random.Generator) -> None:
    """Filtering."""
    for objectives, aim in ((2, ">= 20"), (3, ">= 5")):
        points = cloud(1_000_000, objectives, rng)
        as_floats = points.astype(float)
        peer_s, expected = timed(lambda data=as_floats: moocore.filter_dominated(data), 3)
        ours_s, found = kernel([points], 5)
        same(found, ordered(expected))
        what = f"filter 1e6 points, {objectives} objectives"
        show(Row(what, ours_s, "moocore", peer_s, aim, f"{len(found):,} left"))


def compare_sums(moocore: ModuleType, quick: bool, rng: np.random.Generator) -> None:
    """Minkowski sums."""

    def outer(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        sums = (left[:, None, :] + right[None, :, :]).reshape(-1, 2)
        return moocore.filter_dominated(sums)

    for count, aim in ((1_000, ">= 80"), (10_000, ">= 200")):
        if quick and count > 1_000:
            continue
        left, right = front(count, rng), front(count, rng)
        sides = left.astype(float), right.astype(float)
        repeat = 3 if count <= 1_000 else 1
        peer_s, expected = timed(lambda sides=sides: outer(*sides), repeat)
        ours_s, found = kernel([left, right], 20 if count <= 1_000 else 5)
        same(found, ordered(expected))
        what = f"sum of two frontiers of {count:,} points"
        show(Row(what, ours_s, "numpy + moocore", peer_s, aim, f"{len(found):,} left"))


def same(found: np.ndarray, expected: np.ndarray) -> None:
    """A peer that answers otherwise is no peer."""
    if not np.array_equal(found, expected):
        sys.exit(f"the answers differ: {len(found)} points, the peer has {len(expected)}")


# ------------------------------------------------------------------ a chain


def random_chain(nodes: int, k: int, tables: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """A chain of anti-correlated costs up to about 1000; `tables` different ones take turns."""
    rng = np.random.default_rng(1)

    def table(shape: tuple[int, ...]) -> np.ndarray:
        share = rng.integers(0, 1000, shape)
        noise = rng.integers(0, 100, (*shape, 2))
        return np.stack([share, 1000 - share], axis=-1) + noise

    own = [table((k,)) for _ in range(tables)]
    between = [table((k, k)) for _ in range(tables)]
    return (
        [own[i % tables] for i in range(nodes)],
        [between[i % tables] for i in range(nodes - 1)],
    )


def ours(nodes: list[np.ndarray], edges: list[np.ndarray], epsilon: float = 0.0) -> Any:
    """The frontier with a strategy for every point."""
    between = [(i, i + 1, table) for i, table in enumerate(edges)]
    graph = tensoropt.CostGraph.from_arrays(nodes, between)
    solution = tensoropt.solve(graph, epsilon=epsilon)
    if len(solution.assignments) != len(solution):
        sys.exit("strategies are missing")
    return solution


def highs(nodes: list[np.ndarray], edges: list[np.ndarray]) -> Callable[[], int] | None:
    """One scalar optimum as an integer programme, by HiGHS."""
    if peer("scipy") is None:
        return None
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    k = nodes[0].shape[0]
    singles, pairs = len(nodes) * k, k * k
    costs = np.concatenate([table.sum(axis=-1).ravel() for table in [*nodes, *edges]])
    rows, columns, values, right = [], [], [], []

    def constraint(plus: np.ndarray, minus: list[int], equals: int) -> None:
        row = len(right)
        rows.extend([row] * (len(plus) + len(minus)))
        columns.extend([*plus, *minus])
        values.extend([1] * len(plus) + [-1] * len(minus))
        right.append(equals)

    for node in range(len(nodes)):
        constraint(node * k + np.arange(k), [], 1)
    for edge in range(len(edges)):
        cells = singles + edge * pairs + np.arange(pairs).reshape(k, k)
        for j in range(k):
            constraint(cells[j], [edge * k + j], 0)
            constraint(cells[:, j], [(edge + 1) * k + j], 0)
    matrix = coo_array((values, (rows, columns)), shape=(len(right), len(costs))).tocsr()
    integral = np.concatenate([np.ones(singles), np.zeros(len(costs) - singles)])

    def solve() -> int:
        answer = milp(
            costs,
            constraints=LinearConstraint(matrix, right, right),
            integrality=integral,
            bounds=Bounds(0, 1),
            options={"mip_rel_gap": 0},
        )
        return round(answer.fun)

    return solve


def toulbar2(nodes: list[np.ndarray], edges: list[np.ndarray]) -> Callable[[], int] | None:
    """One scalar optimum as a cost function network, by toulbar2."""
    module = peer("pytoulbar2")
    if module is None:
        return None
    k = nodes[0].shape[0]
    network = module.CFN(ubinit=10**9)
    for i, table in enumerate(nodes):
        network.AddVariable(f"x{i}", range(k))
        network.AddFunction([f"x{i}"], [int(cost) for cost in table.sum(axis=-1)])
    for i, table in enumerate(edges):
        costs = [int(cost) for cost in table.sum(axis=-1).ravel()]
        network.AddFunction([f"x{i}", f"x{i + 1}"], costs)
    return lambda: round(network.Solve()[1])


def cp_sat(
    nodes: list[np.ndarray], edges: list[np.ndarray], limit_s: float
) -> Callable[[], int | None] | None:
    """One scalar optimum by CP-SAT; None if it is not proven in time."""
    if peer("ortools") is None:
        return None
    from ortools.sat.python import cp_model

    k = nodes[0].shape[0]
    model = cp_model.CpModel()
    chosen = [[model.new_bool_var("") for _ in range(k)] for _ in nodes]
    terms, weights = [], []
    for variables, table in zip(chosen, nodes, strict=True):
        model.add_exactly_one(variables)
        terms.extend(variables)
        weights.extend(int(cost) for cost in table.sum(axis=-1))
    for edge, table in enumerate(edges):
        cells = [[model.new_bool_var("") for _ in range(k)] for _ in range(k)]
        for j in range(k):
            model.add(sum(cells[j]) == chosen[edge][j])
            model.add(sum(row[j] for row in cells) == chosen[edge + 1][j])
            terms.extend(cells[j])
            weights.extend(int(cost) for cost in table.sum(axis=-1)[j])
    model.minimize(cp_model.LinearExpr.weighted_sum(terms, weights))

    def solve() -> int | None:
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = limit_s
        solver.parameters.num_workers = os.cpu_count() or 1
        status = solver.solve(model)
        return round(solver.objective_value) if status == cp_model.OPTIMAL else None

    return solve


def compare_chain(stored: Path | None, limit_s: float) -> None:
    """The whole frontier of a chain against one optimum of a weighted sum."""
    if stored is None:
        nodes, edges = random_chain(100, 16, 100)
    else:
        with np.load(stored) as data:
            nodes, edges = list(data["node"]), list(data["edge"])
    ours_s, solution = timed(lambda: ours(nodes, edges), 3)
    least = int(solution.costs.sum(axis=1).min())
    what = f"chain of {len(nodes)} nodes of 16: all {len(solution):,} points and strategies"
    show(Row(what, ours_s, aim="<= 0.5 s", remark=solution.status))
    peers: tuple[tuple[str, Any, str], ...] = (
        ("HiGHS, one optimum", highs(nodes, edges), ">= 1"),
        ("toulbar2, one optimum", toulbar2(nodes, edges), ""),
        ("CP-SAT, one optimum", cp_sat(nodes, edges, limit_s), ""),
    )
    for name, solve, aim in peers:
        if solve is None:
            continue
        peer_s, optimum = timed(solve)
        if optimum not in (least, None):
            sys.exit(f"the answers differ: {name} says {optimum}, we say {least}")
        remark = "same optimum" if optimum else f"not proven within {limit_s:g} s"
        show(Row("the same chain", ours_s, name, peer_s, aim, remark))


def long_chain() -> None:
    """What no peer does."""
    nodes, edges = random_chain(10_000, 16, 4)
    ours_s, solution = timed(lambda: ours(nodes, edges, 1e-3))
    remark = f"{solution.status}, factor {solution.factor:.6f}, {len(solution):,} points"
    show(Row("chain of 10,000 nodes, 4 tables, 0.1 %", ours_s, aim="<= 10 s", remark=remark))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out what takes minutes")
    parser.add_argument("--chain", type=Path, help="a chain to use: arrays `node` and `edge`")
    parser.add_argument("--limit", type=float, default=60, help="seconds for CP-SAT")
    arguments = parser.parse_args()
    command = ["cargo", "build", "--release", "--quiet", "--locked", "-p", "bench-programs"]
    subprocess.run([*command, "--bin", "kernel"], cwd=ROOT, check=True)
    print("| what | peer | peer, s | ours, s | ratio | aim | |")
    print("|---|---|---|---|---|---|---|")
    rng = np.random.default_rng(0)
    moocore = peer("moocore")
    if moocore is not None:
        compare_filters(moocore, rng)
        compare_sums(moocore, arguments.quick, rng)
    compare_chain(arguments.chain, 5 if arguments.quick else arguments.limit)
    long_chain()


if __name__ == "__main__":
    main()
