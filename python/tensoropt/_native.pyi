"""The solver core: Pareto frontiers of cost graphs on numpy arrays.

A cost graph has nodes, each of which takes one of its configurations, and costs on nodes and
between them. Costs are vectors of one to four objectives, lower is better, and add up over the
graph by sum or by maximum. `solve` finds every choice for which no other is at least as good in all
objectives: the exact Pareto frontier, whatever the shape of the graph.

Nothing here knows of neural networks.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Contraction",
    "CostGraph",
    "IopddlEvaluation",
    "IopddlProblem",
    "Solution",
    "contract",
    "solve",
]

@final
class CostGraph:
    """A graph of choices with vector costs.

    Parameters
    ----------
    aggregate : sequence of {"sum", "max"}, optional
        How each objective adds up over nodes and edges; one to four entries. The default is
        ``("sum", "sum")``.
    resolution : sequence of float, optional
        The size of one step of each objective in the units of the costs, for example
        ``(1e-9, 512)`` for seconds and bytes. Costs are rounded to the nearest number of steps,
        once; everything after is exact. Without it costs are whole numbers, taken as they are.

    Raises
    ------
    ProblemError
        If there are not one to four objectives, an aggregate is unknown, or a resolution is not a
        positive finite number.

    Notes
    -----
    Cost arrays may be int64, uint64 or float64 (other integers and floats are converted). In a
    float array ``inf`` marks an impossible entry; one infinite objective makes the whole cost
    vector impossible. NaN and negative costs are refused.

    Equal tables are held once, so a thousand equal layers cost one. A graph may be changed while
    another thread solves it; that search goes on with the graph as it was.

    Examples
    --------
    Two nodes of two configurations, and an edge that charges for disagreement:

    >>> import tensoropt as to
    >>> node = [[1, 8], [4, 2]]
    >>> edge = [[[0, 0], [1, 1]], [[1, 1], [0, 0]]]
    >>> graph = to.CostGraph.from_arrays([node, node], [(0, 1, edge)])
    >>> result = to.solve(graph)
    >>> result.costs.tolist()
    [[2, 16], [6, 11], [8, 4]]
    >>> result.assignments.tolist()
    [[0, 0], [1, 0], [1, 1]]
    """

    def __new__(
        cls,
        aggregate: Sequence[str] | None = None,
        resolution: Sequence[float] | None = None,
    ) -> CostGraph: ...
    @staticmethod
    def from_arrays(
        nodes: Sequence[ArrayLike],
        edges: Sequence[tuple[int, int, ArrayLike]] | None = None,
        aggregate: Sequence[str] | None = None,
        resolution: Sequence[float] | None = None,
    ) -> CostGraph:
        """Build a graph of nodes and edges in one call.

        Parameters
        ----------
        nodes : sequence of array, each of shape (K_v, D)
            The cost vector of each configuration of each node.
        edges : sequence of (u, v, array of shape (K_u, K_v, D)), optional
            The cost vector of each pair of configurations of nodes `u` and `v`. Several edges
            between the same nodes, in either direction, add up.
        aggregate : sequence of {"sum", "max"}, optional
            How each objective adds up; ``("sum", "sum")`` by default.
        resolution : sequence of float, optional
            The size of one step of each objective; see `CostGraph`.

        Returns
        -------
        CostGraph

        Raises
        ------
        ProblemError
            If a shape does not fit, an edge names a node that is not there or one node twice, a
            cost is NaN or negative, or costs could add up beyond 64 bits. The message names the
            node or edge and the entry.
        """

    def add_table(self, costs: ArrayLike, impossible: ArrayLike | None = None) -> int:
        """Add a cost table, or find an equal one.

        Parameters
        ----------
        costs : array of shape (K_1, ..., K_r, D)
            A cost vector for each combination of configurations of `r` nodes.
        impossible : bool array of shape (K_1, ..., K_r), optional
            Which combinations are impossible; their costs are ignored.

        Returns
        -------
        int
            The id of the table in this graph.

        Raises
        ------
        ProblemError
            If a shape does not fit or a cost is NaN or negative.
        """

    def add_table_with_alternatives(
        self, shape: Sequence[int], offsets: ArrayLike, costs: ArrayLike, factor: float = 1.0
    ) -> int:
        """Add a table whose cells hold any number of alternatives.

        Parameters
        ----------
        shape : sequence of int
            Configurations of each node, (K_1, ..., K_r).
        offsets : int array of shape (K_1 * ... * K_r + 1,)
            The index of each cell's first alternative, in row-major order, and the number of all
            alternatives at the end. A cell without alternatives is impossible.
        costs : array of shape (alternatives, D)
            The cost vectors.
        factor : float, default 1.0
            The factor within which the alternatives cover the true ones, as those of a trimmed
            `Contraction` do. `Solution.factor` includes it.

        Returns
        -------
        int
            The id of the table in this graph.

        Raises
        ------
        ProblemError
            If the offsets fall or do not match, a cost is NaN, negative or infinite, or the factor
            is below 1.
        """

    def add_contraction(self, contraction: Contraction) -> int:
        """Add the table of a contracted graph, to be used as a factor as often as it occurs.

        Parameters
        ----------
        contraction : Contraction
            Of a graph with the same objectives and the same resolution.

        Returns
        -------
        int
            The id of the table in this graph.

        Raises
        ------
        ProblemError
            If objectives or resolution differ.
        """

    def add_node(self, table: int) -> int:
        """Add a node with as many configurations as its table has cells.

        Parameters
        ----------
        table : int
            The id of a table of one axis.

        Returns
        -------
        int
            The index of the node.

        Raises
        ------
        ProblemError
            If there is no such table, it has more than one axis, or costs could now add up beyond
            64 bits.
        """

    def add_factor(self, scope: Sequence[int], table: int) -> int:
        """Add costs over the configurations of some nodes; an edge if there are two.

        Parameters
        ----------
        scope : sequence of int
            The nodes, each once.
        table : int
            The id of a table with one axis per node, in that order.

        Returns
        -------
        int
            The index of the factor.

        Raises
        ------
        ProblemError
            If a node or the table is not there, a node is named twice, the shapes do not fit, or
            costs could now add up beyond 64 bits.
        """

    def configurations(self, node: int) -> int:
        """Return the number of configurations of a node.

        Raises
        ------
        ProblemError
            If there is no such node.
        """

    def scope(self, factor: int) -> tuple[int, ...]:
        """Return the nodes of a factor.

        Raises
        ------
        ProblemError
            If there is no such factor.
        """

    def save(self, path: str | PathLike[str]) -> None:
        """Write the graph to a file, to be read with `load`.

        The file is JSON, compressed if the name ends in ``.gz``. It appears whole or not at all;
        equal graphs give equal bytes.

        Parameters
        ----------
        path : path-like

        Raises
        ------
        OSError
            If the file cannot be written.
        """

    @staticmethod
    def load(path: str | PathLike[str], *, max_bytes: int | None = None) -> CostGraph:
        """Read a graph from a file that `save` wrote, compressed or not.

        Parameters
        ----------
        path : path-like
        max_bytes : int, default 2**30
            The most bytes of text, counted after unpacking; bounds time and memory.

        Returns
        -------
        CostGraph
            The same tables, nodes and factors under the same numbers, and the same resolution.

        Raises
        ------
        OSError
            If the file cannot be read.
        FileFormatError
            If it is damaged, or no graph that this release can read; names the place in the file.
        """

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""

    @property
    def num_factors(self) -> int:
        """Number of factors; an edge is a factor of two nodes."""

    @property
    def num_tables(self) -> int:
        """Number of different tables."""

    @property
    def aggregate(self) -> tuple[str, ...]:
        """How each objective adds up: "sum" or "max"."""

    @property
    def resolution(self) -> tuple[float, ...] | None:
        """The size of one step of each objective, or None."""

@final
class Solution:
    """The frontier that `solve` found. Points lie in lexicographic order of their costs.

    Arrays are made when first asked for and cannot be written to.
    """

    @property
    def costs(self) -> NDArray[Any]:
        """Cost vectors, shape (points, D).

        int64, or float64 in the units of the costs if the graph has a resolution. With `peak`, all
        D objectives are here as they are; see `peak` for their sum.
        """

    @property
    def assignments(self) -> NDArray[np.int32]:
        """The configuration of each node in each point's plan, shape (points, nodes)."""

    @property
    def node_alternatives(self) -> NDArray[np.int32]:
        """The alternative taken in the cell of each node, shape (points, nodes)."""

    @property
    def alternatives(self) -> NDArray[np.int32]:
        """The alternative taken in the cell of each factor, shape (points, factors)."""

    @property
    def peak(self) -> NDArray[Any] | None:
        """Resident plus transient, shape (points,), if `solve` was given a peak."""

    @property
    def status(self) -> str:
        """Why the search ended.

        "optimal" (the whole frontier, exactly), "epsilon" (within `factor` of it), "heuristic" (the
        same, where no exact answer is in reach), "infeasible", "time_limit", "work_limit" or
        "stopped".
        """

    @property
    def factor(self) -> float:
        """The proven factor: every true point has a point here at most this many times as costly.

        1.0 if the frontier is exact, infinity if nothing is proven.
        """

    @property
    def certificate(self) -> dict[str, Any]:
        """How the factor was proven.

        "a_priori" is the factor carried along while points were dropped, "certified" the one proven
        afterwards by exact optima of that many "weights" (None if that was not needed).
        """

    @property
    def least(self) -> list[tuple[int | str, float, float | None]]:
        """If infeasible, what each capped quantity could reach: (quantity, cap, least value).

        The quantity is an objective's index or "peak". The least value is that of any plan when
        caps are ignored, None if there is no plan at all.
        """

    @property
    def counters(self) -> dict[str, int]:
        """What the search did, such as sums compared; the same for any number of threads."""

    def plan(self, point: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Return one plan, without making those of all points.

        Parameters
        ----------
        point : int
            The index of a point.

        Returns
        -------
        assignment : int array of shape (nodes,)
            As a row of `assignments`.
        node_alternatives : int array of shape (nodes,)
            As a row of `node_alternatives`.
        alternatives : int array of shape (factors,)
            As a row of `alternatives`.

        Raises
        ------
        ProblemError
            If there is no such point.
        """

    def save(self, path: str | PathLike[str]) -> None:
        """Write the solution, all plans and the problem to a file, to be read with `load`.

        The file is JSON, compressed if the name ends in ``.gz``. It appears whole or not at all;
        equal solutions give equal bytes, for any number of threads.

        Parameters
        ----------
        path : path-like

        Raises
        ------
        OSError
            If the file cannot be written.
        """

    @staticmethod
    def load(path: str | PathLike[str], *, max_bytes: int | None = None) -> Solution:
        """Read a solution from a file that `save` wrote, compressed or not.

        Every plan's cost is added up again from the problem in the file.

        Parameters
        ----------
        path : path-like
        max_bytes : int, default 2**30
            The most bytes of text, counted after unpacking; bounds time and memory.

        Returns
        -------
        Solution
            The same, but for "peak_bytes" in `counters`, which is 0.

        Raises
        ------
        OSError
            If the file cannot be read.
        FileFormatError
            If it is damaged, or no solution that this release can read, or a plan does not cost
            what the file says; names the place in the file.
        """

    def __len__(self) -> int: ...

@final
class Contraction:
    """A graph contracted to a table over a few of its nodes.

    The costs of the kept nodes, and of factors among kept nodes only, are not included: they belong
    to the graph around it.
    """

    @property
    def keep(self) -> tuple[int, ...]:
        """The kept nodes, one per axis of the table."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of configurations of each kept node."""

    @property
    def offsets(self) -> NDArray[np.uint32]:
        """The index of each cell's first alternative and their number, shape (cells + 1,)."""

    @property
    def costs(self) -> NDArray[Any]:
        """Cost vectors of all alternatives, shape (alternatives, D); as `Solution.costs`."""

    @property
    def factor(self) -> float:
        """The proven factor of its cells' frontiers: 1.0 if they are exact."""

    def expand(
        self, cells: ArrayLike, alternatives: ArrayLike
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Return the choices behind alternatives of cells.

        Parameters
        ----------
        cells : int array of shape (m,)
            Row-major over the kept nodes, as `numpy.ravel_multi_index` gives them.
        alternatives : int array of shape (m,)
            The position of an alternative within its cell.

        Returns
        -------
        assignments : int array of shape (m, nodes)
            The configuration of each node of the contracted graph, kept ones included.
        node_alternatives : int array of shape (m, nodes)
            The alternative taken in each node's cell; -1 for kept nodes.
        alternatives : int array of shape (m, factors)
            The alternative taken in each factor's cell; -1 for factors among kept nodes only.

        Raises
        ------
        ProblemError
            If there is no such cell or alternative, or the lengths differ.
        """

@final
class IopddlProblem:
    """An instance of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism.

    Every node takes one of its strategies, which has a cost and a usage of memory. An edge names
    nodes and has a cost for each combination of their strategies. The usage of a node counts at
    each point of time of its half-open interval. What is sought is the assignment of least cost
    whose usage is within the limit at every point of time. Costs of 10**18 and above mean that
    something is impossible.

    Instances are read with `IopddlProblem.load`.

    References
    ----------
    M. D. Moffitt and P. Fegade, "The ASPLOS 2025 / EuroSys 2025 Contest on Intra-Operator
    Parallelism for Distributed Deep Learning", ASPLOS 2025, volume 3.

    Examples
    --------
    >>> import json, tempfile, pathlib
    >>> import tensoropt as to
    >>> nodes = {"intervals": [[0, 9], [3, 5]], "costs": [[15], [10, 1]]}
    >>> nodes["usages"] = [[30], [20, 40]]
    >>> edges = {"nodes": [[0, 1]], "costs": [[7, 2]]}
    >>> file = {"problem": {"name": "two", "usage_limit": 50, "nodes": nodes, "edges": edges}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "two.json"
    ...     _ = path.write_text(json.dumps(file))
    ...     problem = to.IopddlProblem.load(path)
    >>> problem
    <IopddlProblem: 'two', 2 nodes, 1 edges, usage limit 50>
    >>> problem.evaluate([0, 1])
    <IopddlEvaluation: cost 18, peak usage 70 at 3, over the limit>
    >>> to.solve(problem.cost_graph()).costs.tolist()
    [[18]]
    """

    @staticmethod
    def load(path: str | PathLike[str], *, max_bytes: int | None = None) -> IopddlProblem:
        """Read an instance from a file, compressed or not.

        Parameters
        ----------
        path : path-like
        max_bytes : int, default 2**30
            The most bytes of text, counted after unpacking; bounds time and memory.

        Returns
        -------
        IopddlProblem

        Raises
        ------
        OSError
            If the file cannot be read.
        FileFormatError
            If it is no instance; names the place in the file.
        """

    @property
    def name(self) -> str:
        """The name of the instance."""

    @property
    def usage_limit(self) -> int | None:
        """The most memory that may be used at any point of time, or None."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""

    @property
    def num_edges(self) -> int:
        """Number of edges."""

    def costs(self, node: int) -> NDArray[np.uint64]:
        """Return the cost of each strategy of a node, shape (strategies,).

        Raises
        ------
        ProblemError
            If there is no such node.
        """

    def usages(self, node: int) -> NDArray[np.uint64]:
        """Return the usage of each strategy of a node, shape (strategies,).

        Raises
        ------
        ProblemError
            If there is no such node.
        """

    def interval(self, node: int) -> tuple[int, int]:
        """Return when a node's usage counts: from the first point of time up to the second.

        Raises
        ------
        ProblemError
            If there is no such node.
        """

    def scope(self, edge: int) -> tuple[int, ...]:
        """Return the nodes that an edge names.

        Raises
        ------
        ProblemError
            If there is no such edge.
        """

    def edge_costs(self, edge: int) -> NDArray[np.uint64]:
        """Return the costs of an edge, one axis per node that it names.

        Raises
        ------
        ProblemError
            If there is no such edge.
        """

    def evaluate(self, assignment: ArrayLike) -> IopddlEvaluation:
        """Tell what an assignment costs, and its peak usage.

        Parameters
        ----------
        assignment : int array of shape (nodes,)
            The strategy of each node, such as a row of `Solution.assignments`.

        Returns
        -------
        IopddlEvaluation

        Raises
        ------
        ProblemError
            If there is not one strategy per node, or a node has no such strategy.
        """

    def usage_profile(self, assignment: ArrayLike) -> list[tuple[int, int]]:
        """Return the usage over time of an assignment.

        Parameters
        ----------
        assignment : int array of shape (nodes,)
            The strategy of each node.

        Returns
        -------
        list of (int, int)
            The points of time at which some node's usage begins or ends, ascending, and what is
            used from there to the next one.

        Raises
        ------
        ProblemError
            If there is not one strategy per node, or a node has no such strategy.
        """

    def cost_graph(
        self, nodes: ArrayLike | None = None, times: Sequence[int] | None = None
    ) -> CostGraph:
        """Return the problem, or a part of it, without the limit on usage.

        With the limit as a cap on the usage at some points of time, the cost found is a lower bound
        on that of the whole problem, and its plan is a solution if the usage happens to fit at all
        times.

        Parameters
        ----------
        nodes : int array of shape (n,), optional
            The nodes of the part, each once, in the order that they will have; all by default.
            Edges to other nodes are left out.
        times : sequence of int, optional
            Up to three points of time; each adds an objective, the usage then.

        Returns
        -------
        CostGraph
            The first objective is the cost; impossible entries are impossible.

        Raises
        ------
        ProblemError
            If a node is not there or named twice, there are too many times, or costs could add up
            beyond 64 bits.
        """

@final
class IopddlEvaluation:
    """What an assignment costs by the rules of the contest."""

    @property
    def cost(self) -> int:
        """The sum of the costs of all nodes and edges, impossible ones as they are in the file."""

    @property
    def impossible(self) -> str | None:
        """The first node or edge whose cost means that the choice is impossible, or None.

        Such as "node 3" or "edge 17"; nodes come before edges.
        """

    @property
    def peak_usage(self) -> int:
        """The largest usage at any point of time."""

    @property
    def peak_time(self) -> int | None:
        """The first point of time with that usage; None if nothing is used at any time."""

    @property
    def within_limit(self) -> bool:
        """Whether the peak is within the limit, if there is one."""

    @property
    def feasible(self) -> bool:
        """Whether the assignment is a solution: possible, and within the limit."""

def solve(
    graph: CostGraph,
    epsilon: float = 0.0,
    threads: int | None = None,
    caps: Sequence[float | None] | None = None,
    *,
    peak: tuple[int, int] | tuple[int, int, float | None] | None = None,
    known: NDArray[np.float64] | None = None,
    time_limit_s: float | None = None,
    work_limit: int | None = None,
    max_points: int | None = None,
    max_table_cells: int | None = None,
    heuristic: bool = True,
    max_bytes: int | None = None,
    progress: Callable[[dict[str, Any]], object] | None = None,
) -> Solution:
    """Find the Pareto frontier of a cost graph.

    The interpreter is free for other threads meanwhile, and Ctrl-C stops the search.

    Parameters
    ----------
    graph : CostGraph
        The problem.
    epsilon : float, default 0.0
        Every point of the true frontier has a returned point that is at most ``1 + epsilon`` times
        as costly in every objective. 0 is exact.
    threads : int, optional
        Threads of the search's own pool; all cores by default. The result does not depend on it.
    caps : sequence of float or None, optional
        The largest value allowed in each objective, in the units of the costs.
    peak : (resident, transient) or (resident, transient, cap), optional
        Two objectives that are one to you, such as memory that stays (a "sum") and memory that
        comes and goes (a "max"). The frontier is then over their sum and the other objectives.
    known : (n, D) float array, optional
        Cost vectors that you reached elsewhere, in the units of the costs; with `peak` one column
        less, without the transient objective and with the peak in the place of the resident one.
        What they cover need not be found, which saves work; points that one of them dominates are
        not returned, and `Solution.factor` speaks of both together.
    time_limit_s : float, optional
        Stop after this time with the best points so far. The result then depends on the machine.
    work_limit : int, optional
        Stop after this many sums of points, with the best points so far. Deterministic.
    max_points : int, optional
        Return at most this many points; `Solution.factor` says what is lost.
    max_table_cells : int, optional
        The largest table that an elimination may make; 2**24 by default.
    heuristic : bool, default True
        Whether a graph that would need a larger table gets a frontier of plans with the factor by
        which it may be off (status "heuristic") instead of a `LimitError`.
    max_bytes : int, optional
        Bytes of all frontiers held at a time; 2**32 by default.
    progress : callable, optional
        Called a few times a second from this thread with a dict of "passes", "fraction" (0 to 1, of
        the present pass), "pairs", "points" and "bytes". What it raises stops the search.

    Returns
    -------
    Solution
        An infeasible problem is a solution without points whose status says so.

    Raises
    ------
    ProblemError
        If an option is out of range, contradicts another or does not fit the graph.
    LimitError
        If the frontiers outgrow `max_bytes`, or no exact answer exists within `max_table_cells` and
        `heuristic` is false; names the nodes that depend on each other too densely.

    Examples
    --------
    >>> import tensoropt as to
    >>> graph = to.CostGraph.from_arrays([[[1, 8], [4, 2]], [[0, 3], [1, 1]]])
    >>> to.solve(graph).costs.tolist()
    [[1, 11], [2, 9], [4, 5], [5, 3]]
    >>> to.solve(graph, caps=(None, 9)).costs.tolist()
    [[2, 9], [4, 5], [5, 3]]
    """

def contract(
    graph: CostGraph,
    keep: Sequence[int],
    epsilon: float = 0.0,
    threads: int | None = None,
    caps: Sequence[float | None] | None = None,
    *,
    time_limit_s: float | None = None,
    work_limit: int | None = None,
    max_table_cells: int | None = None,
    max_bytes: int | None = None,
    progress: Callable[[dict[str, Any]], object] | None = None,
) -> Contraction:
    """Eliminate all nodes but a few: a block that occurs often is contracted once.

    Parameters
    ----------
    graph : CostGraph
        The block.
    keep : sequence of int
        The nodes at its boundary, each once.
    epsilon, threads, caps, time_limit_s, work_limit, max_table_cells, max_bytes, progress
        As in `solve`; `caps` hold for the costs included.

    Returns
    -------
    Contraction

    Raises
    ------
    ProblemError
        If a kept node is not there or named twice, or an option is out of range.
    LimitError
        If the table or an intermediate one is larger than a limit allows, or a time or work limit
        is reached: half a block has no use.

    Examples
    --------
    A chain of two edges becomes one:

    >>> import tensoropt as to
    >>> node, edge = [[0, 1], [1, 0]], [[[0, 0], [2, 2]], [[2, 2], [0, 0]]]
    >>> chain = to.CostGraph.from_arrays([node] * 3, [(0, 1, edge), (1, 2, edge)])
    >>> from tensoropt._native import contract
    >>> block = contract(chain, keep=[0, 2])
    >>> block.shape, block.offsets.tolist()
    ((2, 2), [0, 1, 3, 5, 6])
    >>> outer = to.CostGraph()
    >>> ends = [outer.add_node(outer.add_table(node)) for _ in range(2)]
    >>> outer.add_factor(ends, outer.add_contraction(block))
    0
    >>> to.solve(outer).costs.tolist() == to.solve(chain).costs.tolist()
    True
    """
