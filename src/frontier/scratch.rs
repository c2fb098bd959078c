//! Buffers that the kernels reuse.

use super::blocks::Block;
use super::boxes::Tree;
use super::space::Buffers;
use super::staircase::Staircase;
use super::trim::Covers;

/// Reusable buffers of the kernels: after a few calls nothing is allocated any more. They carry no
/// state between calls; one per thread.
#[derive(Debug)]
pub struct Scratch<C> {
    pub(super) points: Vec<C>,
    pub(super) trees: Vec<Tree<C>>,
    pub(super) samples: [Vec<C>; 2],
    pub(super) covers: Covers,
    pub(super) space: Buffers,
    pub(super) floors: Vec<u64>,
    pub(super) staircase: Staircase,
    pub(super) hulls: [Vec<u32>; 2],
    pub(super) blocks: Vec<Block>,
    pub(super) next_blocks: Vec<Block>,
}

impl<C> Default for Scratch<C> {
    fn default() -> Self {
        Self {
            points: Vec::new(),
            trees: Vec::new(),
            samples: [Vec::new(), Vec::new()],
            covers: Covers::default(),
            space: Buffers::default(),
            floors: Vec::new(),
            staircase: Staircase::default(),
            hulls: Default::default(),
            blocks: Vec::new(),
            next_blocks: Vec::new(),
        }
    }
}

impl<C> Scratch<C> {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}
