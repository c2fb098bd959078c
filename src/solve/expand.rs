//! Many choices at once, on threads of their own: [`choices`], [`Contraction::expand_many`].

use std::sync::Arc;

use super::pool::pool;
use crate::contraction::{Choice, Contraction, Expand};
use crate::error::Result;
use crate::problem::CostGraph;

/// The choices behind points that lie in several traces, on the threads of the pool that it is
/// called in.
///
/// # Arguments
///
/// * `origins`: for each point its trace, and its position there.
pub(crate) fn choices<E: Expand + ?Sized>(
    graph: &CostGraph,
    traces: &[Arc<E>],
    origins: &[(u32, u32)],
) -> Result<Vec<Choice>> {
    let blank = Choice::new(graph.nodes(), graph.factors());
    let mut choices = vec![blank.clone(); origins.len()];
    for (trace, expand) in traces.iter().enumerate() {
        let points: Vec<usize> =
            (0..origins.len()).filter(|&point| origins[point].0 as usize == trace).collect();
        let positions: Vec<u32> = points.iter().map(|&point| origins[point].1).collect();
        for (point, choice) in points.into_iter().zip(expand.expand_all(&positions, &blank)?) {
            choices[point] = choice;
        }
    }
    Ok(choices)
}

impl Contraction {
    /// The choices behind many alternatives, much faster than one by one: what they share is looked
    /// for once, and on several threads.
    ///
    /// # Arguments
    ///
    /// * `picks`: cells and alternatives, as for [`expand`](Self::expand).
    /// * `threads`: of the pool made for it; `None` for as many as the machine has.
    ///
    /// # Errors
    ///
    /// [`Error::NoAlternative`](crate::Error::NoAlternative).
    pub fn expand_many(
        &self,
        picks: &[(usize, usize)],
        threads: Option<usize>,
    ) -> Result<Vec<Choice>> {
        pool(threads)?.install(|| self.expand_in_pool(picks))
    }
}
