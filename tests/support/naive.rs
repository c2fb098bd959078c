//! Variable elimination without any idea: every table is made whole, all pairs of points are added,
//! a point goes if another is at least as good. Reaches further than enumeration, shares nothing
//! with the library but the problem.

use std::collections::BTreeSet;

use tensoropt::{Aggregate, CostGraph, FactorId, NodeId, Table};

type Front = Vec<Vec<u64>>;

/// Costs over a few nodes, ascending.
struct Factor {
    scope: Vec<usize>,
    /// Row-major.
    cells: Vec<Front>,
}

/// The exact frontier, sorted.
pub fn eliminate(graph: &CostGraph) -> Front {
    let dims: Vec<usize> =
        (0..graph.nodes() as u32).map(|n| graph.configurations(NodeId(n)) as usize).collect();
    let own = (0..dims.len()).map(|n| factor(&[n], graph.node_table(NodeId(n as u32)), &dims));
    let between = (0..graph.factors() as u32).map(FactorId).map(|id| {
        let scope: Vec<usize> = graph.scope(id).iter().map(|node| node.index()).collect();
        factor(&scope, graph.factor_table(id), &dims)
    });
    let mut factors: Vec<Factor> = own.chain(between).collect();
    let mut left: BTreeSet<usize> = (0..dims.len()).collect();
    while !left.is_empty() {
        let cells = |&node: &usize| -> usize {
            neighbours(&factors, node).iter().map(|&n| dims[n]).product()
        };
        let node = left.iter().copied().min_by_key(cells).expect("some are left");
        left.remove(&node);
        let scope: Vec<usize> = neighbours(&factors, node).into_iter().collect();
        let (with, without) = factors.into_iter().partition(|f: &Factor| f.scope.contains(&node));
        factors = without;
        let made = joined(graph.aggregates(), &with, node, &scope, &dims);
        factors.push(made);
    }
    factors.iter().fold(vec![vec![0; graph.objectives()]], |sum, factor| {
        added(graph.aggregates(), &sum, &factor.cells[0])
    })
}

fn neighbours(factors: &[Factor], node: usize) -> BTreeSet<usize> {
    let with = factors.iter().filter(|factor| factor.scope.contains(&node));
    with.flat_map(|factor| factor.scope.iter().copied()).filter(|&other| other != node).collect()
}

fn factor(scope: &[usize], table: &Table, dims: &[usize]) -> Factor {
    let mut sorted = scope.to_vec();
    sorted.sort_unstable();
    let cells = choices(&sorted, dims).into_iter().map(|chosen| {
        let at: Vec<u32> = scope
            .iter()
            .map(|node| chosen[sorted.iter().position(|other| other == node).unwrap()] as u32)
            .collect();
        pruned(table.alternatives(table.cell(&at).unwrap()).map(<[u64]>::to_vec).collect())
    });
    Factor { cells: cells.collect(), scope: sorted }
}

/// All configurations of some nodes, row-major.
fn choices(scope: &[usize], dims: &[usize]) -> Vec<Vec<usize>> {
    scope.iter().fold(vec![Vec::new()], |all, &node| {
        let with =
            |chosen: Vec<usize>| (0..dims[node]).map(move |k| [chosen.clone(), vec![k]].concat());
        all.into_iter().flat_map(with).collect()
    })
}

/// The sum of some factors with one of their nodes chosen best.
fn joined(
    aggregates: &[Aggregate],
    factors: &[Factor],
    node: usize,
    scope: &[usize],
    dims: &[usize],
) -> Factor {
    let cell = |chosen: Vec<usize>| {
        let mut union = Vec::new();
        for k in 0..dims[node] {
            let mut sum = vec![vec![0; aggregates.len()]];
            for factor in factors {
                let at = factor.scope.iter().fold(0, |at, &n| {
                    let here = scope.iter().position(|&other| other == n).map(|i| chosen[i]);
                    at * dims[n] + here.unwrap_or(k)
                });
                sum = added(aggregates, &sum, &factor.cells[at]);
            }
            union.extend(sum);
        }
        pruned(union)
    };
    Factor { cells: choices(scope, dims).into_iter().map(cell).collect(), scope: scope.to_vec() }
}

fn added(aggregates: &[Aggregate], left: &Front, right: &Front) -> Front {
    let combine = |a: &[u64], b: &[u64]| -> Vec<u64> {
        let pairs = a.iter().zip(b).zip(aggregates);
        pairs
            .map(|((&a, &b), aggregate)| match aggregate {
                Aggregate::Sum => a + b,
                Aggregate::Max => a.max(b),
            })
            .collect()
    };
    pruned(left.iter().flat_map(|a| right.iter().map(|b| combine(a, b))).collect())
}

/// The nondominated points, sorted. What dominates a point comes before it.
pub fn pruned(mut points: Front) -> Front {
    points.sort_unstable();
    points.dedup();
    let mut kept: Front = Vec::new();
    for point in points {
        if !kept.iter().rev().any(|q| q.iter().zip(&point).all(|(a, b)| a <= b)) {
            kept.push(point);
        }
    }
    kept
}
