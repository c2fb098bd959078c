//! Identifiers of the parts of a problem.
//!
//! Each is an index in the order in which its kind was added; they are distinct types so that a
//! node cannot be mistaken for a factor.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The index in the order of addition.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

id!(
    /// A node (variable) of a [`CostGraph`](crate::CostGraph).
    NodeId,
    "node"
);
id!(
    /// A factor (edge, or cost term of any number of nodes) of a [`CostGraph`](crate::CostGraph).
    FactorId,
    "factor"
);
id!(
    /// An interned cost table of a [`CostGraph`](crate::CostGraph).
    TableId,
    "table"
);
