//! The loop: [`eliminate`] removes all nodes but those that are kept.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::cells::strides;
use super::engine::{Engine, JoinSpec, Op};
use super::guard::Guard;
use super::leaf::View;
use super::meter::Halt;
use super::order::{Order, Priority};
use super::trace::{Instance, Source, Trace};
use crate::error::Error;
use crate::frontier::CostVector;
use crate::ids::{FactorId, NodeId, TableId};
use crate::problem::{CostGraph, Table};

/// Factors of one node beyond which those over the same nodes are added up first.
const LARGE_BUCKET: usize = 12;

/// What a contraction may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Cells of one table.
    pub cells: usize,
    /// Bytes of all frontiers.
    pub bytes: u64,
}

/// Eliminates every node that is not kept. The answer is a table over the kept nodes, in the order
/// given, of everything but the kept nodes' own costs and the factors among them.
///
/// # Errors
///
/// [`Halt`] if a limit is hit or the meter says so.
pub(crate) fn eliminate<C: CostVector>(
    graph: &CostGraph,
    view: &View,
    keep: &[NodeId],
    limits: Limits,
    engine: &mut Engine<'_, C>,
) -> Result<Trace<C>, Halt> {
    let mut network = Network::new(graph, view, keep, limits, engine);
    let mut order = Order::new(graph.nodes());
    let mut kept = vec![false; graph.nodes()];
    for node in keep {
        kept[node.index()] = true;
    }
    for node in (0..graph.nodes() as u32).filter(|&node| !kept[node as usize]) {
        order.set(node, network.priority(node));
    }
    let meter = network.engine.meter();
    meter.total.store(order.len() as u64, Relaxed);
    meter.done.store(0, Relaxed);
    while let Some(node) = order.pop() {
        let made = network.remove(node)?;
        for neighbour in network.instances[made].scope.clone() {
            if order.contains(neighbour) {
                order.set(neighbour, network.priority(neighbour));
            }
        }
        meter.done.fetch_add(1, Relaxed);
    }
    network.finish(keep)
}

/// Repeats an elimination step by step on what another view shows, without the points that a guard
/// drops.
///
/// # Errors
///
/// [`Halt`] if a limit is hit or the meter says so.
pub(crate) fn repeat<C: CostVector>(
    trace: &Trace<C>,
    graph: &CostGraph,
    view: &View,
    guard: &Guard,
    limits: Limits,
    engine: &mut Engine<'_, C>,
) -> Result<Trace<C>, Halt> {
    let mut leaves: Vec<Option<Arc<Op<C>>>> = vec![None; graph.tables()];
    let mut shown = |engine: &mut Engine<'_, C>, table: &Table, slot: TableId| {
        let slot = slot.index();
        Arc::clone(leaves[slot].get_or_insert_with(|| engine.shown(table, slot, view)))
    };
    let mut instances: Vec<Instance<C>> = Vec::with_capacity(trace.instances.len());
    let meter = engine.meter();
    meter.total.store(trace.instances.len() as u64, Relaxed);
    for (index, instance) in trace.instances.iter().enumerate() {
        meter.done.store(index as u64, Relaxed);
        let op = match &instance.source {
            Source::Unit => engine.unit(),
            &Source::Node(node) => {
                let id = NodeId(node);
                shown(engine, graph.node_table(id), graph.node_table_id(id))
            }
            &Source::Factor(factor) => {
                let id = FactorId(factor);
                shown(engine, graph.factor_table(id), graph.factor_table_id(id))
            }
            Source::Join { left, right, spec, .. } => {
                let (left, right) = (&instances[*left].op, &instances[*right].op);
                engine.join(left, right, spec, guard.table(index))?
            }
        };
        if engine.bytes > limits.bytes {
            let cluster = instance.scope.iter().map(|&node| NodeId(node)).collect();
            return Err(Error::Bytes { cluster, bytes: engine.bytes, limit: limits.bytes }.into());
        }
        let (scope, source) = (instance.scope.clone(), instance.source.clone());
        instances.push(Instance { op, scope, source });
    }
    Ok(Trace { algebra: engine.algebra, instances })
}

/// The factors that are left, and everything that was.
struct Network<'n, 'm, C: CostVector> {
    dims: Vec<u32>,
    limits: Limits,
    engine: &'n mut Engine<'m, C>,
    instances: Vec<Instance<C>>,
    alive: Vec<bool>,
    /// For each node the instances that mention it; may hold dead ones.
    mentions: Vec<Vec<usize>>,
}

impl<'n, 'm, C: CostVector> Network<'n, 'm, C> {
    fn new(
        graph: &CostGraph,
        view: &View,
        keep: &[NodeId],
        limits: Limits,
        engine: &'n mut Engine<'m, C>,
    ) -> Self {
        let nodes = 0..graph.nodes() as u32;
        let mut network = Self {
            dims: nodes.clone().map(|node| graph.configurations(NodeId(node))).collect(),
            limits,
            engine,
            instances: Vec::new(),
            alive: Vec::new(),
            mentions: vec![Vec::new(); graph.nodes()],
        };
        let mut leaves: Vec<Option<Arc<Op<C>>>> = vec![None; graph.tables()];
        for node in nodes.filter(|node| !keep.contains(&NodeId(*node))) {
            let id = NodeId(node);
            let (table, slot) = (graph.node_table(id), graph.node_table_id(id).index());
            let op = leaves[slot].get_or_insert_with(|| network.engine.shown(table, slot, view));
            let op = Arc::clone(op);
            network.add(Instance { op, scope: vec![node], source: Source::Node(node) });
        }
        for factor in 0..graph.factors() as u32 {
            let id = FactorId(factor);
            let scope = graph.scope(id);
            if scope.iter().all(|node| keep.contains(node)) {
                continue;
            }
            let (table, slot) = (graph.factor_table(id), graph.factor_table_id(id).index());
            let op = leaves[slot].get_or_insert_with(|| network.engine.shown(table, slot, view));
            let op = Arc::clone(op);
            let scope = scope.iter().map(|node| node.0).collect();
            network.add(Instance { op, scope, source: Source::Factor(factor) });
        }
        network
    }

    fn add(&mut self, instance: Instance<C>) -> usize {
        let index = self.instances.len();
        for &node in &instance.scope {
            self.mentions[node as usize].push(index);
        }
        self.instances.push(instance);
        self.alive.push(true);
        index
    }

    /// The living factors that mention a node.
    fn bucket(&mut self, node: u32) -> Vec<usize> {
        let alive = &self.alive;
        let mentions = &mut self.mentions[node as usize];
        mentions.retain(|&instance| alive[instance]);
        mentions.clone()
    }

    fn priority(&mut self, node: u32) -> Priority {
        let bucket = self.bucket(node);
        let mut scope: Vec<u32> =
            bucket.iter().flat_map(|&i| self.instances[i].scope.iter().copied()).collect();
        scope.sort_unstable();
        scope.dedup();
        let cells: f64 = scope.iter().map(|&n| f64::from(self.dims[n as usize]).log2()).sum();
        let points: f64 = bucket.iter().map(|&i| self.instances[i].op.cells.density().log2()).sum();
        let height = bucket.iter().map(|&i| self.instances[i].op.height).max().unwrap_or(0);
        Priority::new(scope.len() - 1, height, cells + points)
    }

    /// Replaces the factors that mention a node by one that does not.
    fn remove(&mut self, node: u32) -> Result<usize, Halt> {
        let mut bucket = self.bucket(node);
        if bucket.len() > LARGE_BUCKET {
            bucket = self.add_up_equal_scopes(bucket, node)?;
        }
        self.reduce(&mut bucket, 2, node)?;
        match bucket[..] {
            [a, b] => self.join(a, Some(b), Some(node), node),
            [a] => self.join(a, None, Some(node), node),
            _ => Err(Error::Internal(format!("a node without costs: node {node}")).into()),
        }
    }

    /// Adds up factors over the same nodes, smallest first, so that a hub's thousands of messages
    /// take a balanced tree of sums.
    fn add_up_equal_scopes(&mut self, bucket: Vec<usize>, node: u32) -> Result<Vec<usize>, Halt> {
        let mut groups: BTreeMap<Vec<u32>, Vec<usize>> = BTreeMap::new();
        for instance in bucket {
            let mut scope = self.instances[instance].scope.clone();
            scope.sort_unstable();
            groups.entry(scope).or_default().push(instance);
        }
        let last = if groups.len() == 1 { 2 } else { 1 };
        let mut rest = Vec::new();
        for group in groups.into_values() {
            rest.extend(self.add_up(group, last, node)?);
        }
        rest.sort_unstable();
        Ok(rest)
    }

    /// Adds up factors, smallest first, until at most `last` are left.
    fn add_up(&mut self, group: Vec<usize>, last: usize, node: u32) -> Result<Vec<usize>, Halt> {
        let size = |network: &Self, i: usize| (network.instances[i].op.cells.points.len(), i);
        let mut heap: BinaryHeap<_> = group.into_iter().map(|i| Reverse(size(self, i))).collect();
        while heap.len() > last {
            if let (Some(Reverse((_, a))), Some(Reverse((_, b)))) = (heap.pop(), heap.pop()) {
                let sum = self.join(a, Some(b), None, node)?;
                heap.push(Reverse(size(self, sum)));
            }
        }
        Ok(heap.into_iter().map(|Reverse((_, i))| i).collect())
    }

    /// Adds up pairs, the one with the smallest result first, until at most `last` are left.
    fn reduce(&mut self, bucket: &mut Vec<usize>, last: usize, node: u32) -> Result<(), Halt> {
        while bucket.len() > last {
            let mut best = (f64::INFINITY, 0, 1);
            for j in 1..bucket.len() {
                for i in 0..j {
                    let points = self.predict(bucket[i], bucket[j]);
                    if points < best.0 {
                        best = (points, i, j);
                    }
                }
            }
            let (_, i, j) = best;
            let (a, b) = (bucket[i], bucket[j]);
            bucket.remove(j);
            bucket.remove(i);
            bucket.push(self.join(a, Some(b), None, node)?);
        }
        Ok(())
    }

    /// The points that the sum of two factors may have.
    fn predict(&self, a: usize, b: usize) -> f64 {
        let (a, b) = (&self.instances[a], &self.instances[b]);
        let extra = b.scope.iter().filter(|node| !a.scope.contains(node));
        let cells: f64 =
            a.scope.iter().chain(extra).map(|&node| f64::from(self.dims[node as usize])).product();
        cells * a.op.cells.density() * b.op.cells.density()
    }

    /// Joins two factors (or one, with nothing) over all their nodes but the eliminated one.
    fn join(
        &mut self,
        a: usize,
        b: Option<usize>,
        eliminated: Option<u32>,
        cause: u32,
    ) -> Result<usize, Halt> {
        let mut scope = self.instances[a].scope.clone();
        if let Some(b) = b {
            let extra = self.instances[b].scope.iter().filter(|node| !scope.contains(node));
            let extra: Vec<u32> = extra.copied().collect();
            scope.extend(extra);
        }
        scope.retain(|&node| Some(node) != eliminated);
        self.join_over(scope, a, b, eliminated, cause)
    }

    fn join_over(
        &mut self,
        scope: Vec<u32>,
        a: usize,
        b: Option<usize>,
        eliminated: Option<u32>,
        cause: u32,
    ) -> Result<usize, Halt> {
        let right = match b {
            Some(b) => b,
            None => {
                let op = self.engine.unit();
                self.add(Instance { op, scope: Vec::new(), source: Source::Unit })
            }
        };
        self.check_cells(&scope, cause)?;
        let spec = Arc::new(self.spec(&scope, a, right, eliminated));
        let (left_op, right_op) =
            (Arc::clone(&self.instances[a].op), Arc::clone(&self.instances[right].op));
        let op = self.engine.join(&left_op, &right_op, &spec, None)?;
        if self.engine.bytes > self.limits.bytes {
            let cluster = scope.iter().map(|&node| NodeId(node)).collect();
            let (bytes, limit) = (self.engine.bytes, self.limits.bytes);
            return Err(Error::Bytes { cluster, bytes, limit }.into());
        }
        self.alive[a] = false;
        self.alive[right] = false;
        let source = Source::Join { left: a, right, spec, eliminated };
        Ok(self.add(Instance { op, scope, source }))
    }

    fn check_cells(&self, scope: &[u32], cause: u32) -> Result<(), Halt> {
        let cells = scope
            .iter()
            .fold(1u128, |cells, &node| cells.saturating_mul(u128::from(self.dims[node as usize])));
        let limit = self.limits.cells;
        if cells <= limit as u128 {
            return Ok(());
        }
        let cluster = scope.iter().map(|&node| NodeId(node)).collect();
        Err(Error::TableCells { node: NodeId(cause), cluster, cells, limit }.into())
    }

    fn spec(&self, scope: &[u32], a: usize, b: usize, eliminated: Option<u32>) -> JoinSpec {
        let (a, b) = (&self.instances[a], &self.instances[b]);
        let steps = |instance: &Instance<C>| {
            let strides = strides(&instance.op.cells.dims);
            let nodes = instance.scope.clone();
            move |node: u32| nodes.iter().position(|&n| n == node).map_or(0, |axis| strides[axis])
        };
        let (left, right) = (steps(a), steps(b));
        JoinSpec {
            dims: scope.iter().map(|&node| self.dims[node as usize]).collect(),
            left: scope.iter().map(|&node| left(node)).collect(),
            right: scope.iter().map(|&node| right(node)).collect(),
            inner: eliminated.map_or(1, |node| self.dims[node as usize]),
            inner_left: eliminated.map_or(0, &left),
            inner_right: eliminated.map_or(0, &right),
        }
    }

    /// Adds up what is left, over exactly the kept nodes in their order.
    fn finish(mut self, keep: &[NodeId]) -> Result<Trace<C>, Halt> {
        let scope: Vec<u32> = keep.iter().map(|node| node.0).collect();
        let cause = scope.first().copied().unwrap_or_default();
        let mut rest: Vec<usize> = (0..self.instances.len()).filter(|&i| self.alive[i]).collect();
        if scope.is_empty() {
            rest = self.add_up(rest, 1, cause)?;
        } else {
            self.reduce(&mut rest, 2, cause)?;
        }
        match rest[..] {
            [] => {
                let op = self.engine.unit();
                let unit = self.add(Instance { op, scope: Vec::new(), source: Source::Unit });
                self.join_over(scope, unit, None, None, cause)?;
            }
            [a] if a + 1 == self.instances.len() && self.instances[a].scope == scope => {}
            [a] => {
                self.join_over(scope, a, None, None, cause)?;
            }
            [a, b, ..] => {
                self.join_over(scope, a, Some(b), None, cause)?;
            }
        }
        Ok(Trace { algebra: self.engine.algebra, instances: self.instances })
    }
}
