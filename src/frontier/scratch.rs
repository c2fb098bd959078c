//! Buffers that the kernels reuse.

use super::boxes::Tree;
use super::cells::{Floors, Uneven};
use super::sift::Block;
use super::space::Buffers;
use super::trim::Covers;

/// Reusable buffers of the kernels: after a few calls nothing is allocated any more. They carry no
/// state between calls; one per thread.
#[derive(Debug)]
pub struct Scratch<C> {
    pub(super) trees: Vec<Tree<C>>,
    pub(super) samples: [Vec<C>; 2],
    pub(super) covers: Covers,
    pub(super) space: Buffers,
    pub(super) table: Vec<u64>,
    pub(super) uneven: Uneven,
    pub(super) floors: Floors,
    pub(super) hulls: [Vec<u32>; 2],
    pub(super) blocks: Vec<Block>,
    pub(super) next_blocks: Vec<Block>,
}

impl<C> Default for Scratch<C> {
    fn default() -> Self {
        Self {
            trees: Vec::new(),
            samples: [Vec::new(), Vec::new()],
            covers: Covers::default(),
            space: Buffers::default(),
            table: Vec::new(),
            uneven: Uneven::default(),
            floors: Floors::default(),
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
