//! Buffers that the kernels reuse.

/// Reusable buffers of the kernels: after a few calls nothing is allocated any more. They carry no
/// state between calls; one per thread.
#[derive(Debug)]
pub struct Scratch<C> {
    pub(super) points: Vec<C>,
}

impl<C> Default for Scratch<C> {
    fn default() -> Self {
        Self { points: Vec::new() }
    }
}

impl<C> Scratch<C> {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}
