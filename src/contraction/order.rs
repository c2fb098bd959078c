//! Which node goes next: [`Order`].

use std::collections::BTreeSet;

/// How much eliminating a node is expected to cost; the least goes first.
///
/// Nodes with at most one neighbour come before all others: they make no table larger than a
/// neighbour's own, so a chain is absorbed from its ends, vector times matrix, which measures
/// several times faster than contracting its middle. Among the others the least work predicted
/// goes first: the cells over the node and its neighbours times the points expected in each. Sizes
/// are those of the tables there are at that moment, so the order adapts to how frontiers grow.
///
/// Among nodes of about equal work the one whose table is made in the fewest steps goes first. So a
/// chain or a ring is absorbed from both ends in turn: frontiers grow (and errors of thinning add
/// up) along half of it only, and the halves meet in one join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Priority {
    /// 0 for nodes with at most one neighbour, else 1.
    pub class: u8,
    /// Logarithm of the work predicted, to the next power of 2.
    pub magnitude: i64,
    /// Joins on the longest way to the problem's tables.
    pub height: u32,
    /// Logarithm of the work predicted, in fixed point so that it has a total order.
    pub work: i64,
}

impl Priority {
    /// From the number of neighbours, the height of the node's tables, and the base-2 logarithm of
    /// the work.
    pub fn new(neighbours: usize, height: u32, log_work: f64) -> Self {
        let class = u8::from(neighbours > 1);
        let magnitude = if class == 0 { 0 } else { log_work.round() as i64 };
        Self { class, magnitude, height, work: (log_work * 1024.0).round() as i64 }
    }
}

/// The nodes still to be eliminated, best first; ties go to the smaller index.
#[derive(Debug, Default)]
pub(crate) struct Order {
    queue: BTreeSet<(Priority, u32)>,
    current: Vec<Option<Priority>>,
}

impl Order {
    /// An empty queue for so many nodes.
    pub fn new(nodes: usize) -> Self {
        Self { queue: BTreeSet::new(), current: vec![None; nodes] }
    }

    /// Number of nodes in the queue.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Puts a node into the queue, or moves it.
    pub fn set(&mut self, node: u32, priority: Priority) {
        if let Some(old) = self.current[node as usize].replace(priority) {
            if old == priority {
                return;
            }
            self.queue.remove(&(old, node));
        }
        self.queue.insert((priority, node));
    }

    /// Whether a node is waiting.
    pub fn contains(&self, node: u32) -> bool {
        self.current[node as usize].is_some()
    }

    /// Takes the best node out.
    pub fn pop(&mut self) -> Option<u32> {
        let (_, node) = self.queue.pop_first()?;
        self.current[node as usize] = None;
        Some(node)
    }
}
