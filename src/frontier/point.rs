//! Cost vectors and how they combine: [`CostVector`], [`Packed2`], [`Wide`].

use std::cmp::Ordering;
use std::fmt;

/// A cost vector with its algebra. Lower is better in every objective.
///
/// The order (`Ord`) is lexicographic, objective 0 first. [`combine`](Self::combine) is
/// associative, commutative and monotone in both arguments and never lowers an objective, which is
/// all that the kernels rely on: the combination of two lower corners bounds the combinations of
/// everything above them, whether an objective adds up by sum or by maximum.
pub trait CostVector: Copy + Send + Sync + Eq + Ord + fmt::Debug + 'static {
    /// What must be known to combine two vectors: nothing (`()`) for packed sums, the aggregate of
    /// each objective for [`Wide`].
    type Algebra: Copy + Send + Sync + fmt::Debug;

    /// Number of objectives.
    const OBJECTIVES: usize;

    /// The algebra in which every objective adds up by sum.
    const SUMS: Self::Algebra;

    /// The vector of zeros: neutral for [`combine`](Self::combine), whatever the algebra.
    const ZERO: Self;

    /// The largest vector that the type can hold, in every objective. As a limit it excludes
    /// nothing.
    const UNLIMITED: Self;

    /// Adds, or takes the maximum, objective by objective.
    ///
    /// The caller excludes overflow (a problem whose costs could add up beyond the type is refused
    /// when it is built). Overflow panics in builds with overflow checks.
    #[must_use]
    fn combine(self, other: Self, algebra: &Self::Algebra) -> Self;

    /// Whether `self` is at most `other` in every objective (weak dominance: equal vectors
    /// dominate each other).
    #[must_use]
    fn dominates(&self, other: &Self) -> bool;

    /// The cost in one objective.
    #[must_use]
    fn get(&self, objective: usize) -> u64;

    /// The vector with the given costs.
    ///
    /// # Panics
    ///
    /// If `costs` does not hold [`OBJECTIVES`](Self::OBJECTIVES) values that fit the type.
    #[must_use]
    fn from_slice(costs: &[u64]) -> Self;

    /// Whether an objective adds up by maximum (rather than by sum).
    #[must_use]
    fn is_max(algebra: &Self::Algebra, objective: usize) -> bool;

    /// An upper limit from caps per objective: inclusive, `u64::MAX` (or anything beyond the type)
    /// for none. A point is within the limit exactly if it [`dominates`](Self::dominates) it.
    ///
    /// # Panics
    ///
    /// If `caps` does not hold [`OBJECTIVES`](Self::OBJECTIVES) values.
    #[must_use]
    fn limit(caps: &[u64]) -> Self;
}

/// Two 32-bit costs, both summed, in one word: objective 0 in the upper half.
///
/// One addition adds both, and the order of the words is the lexicographic order.
///
/// # Example
///
/// ```
/// use tensoropt::frontier::{CostVector, Packed2};
///
/// let sum = Packed2::new(3, 10).combine(Packed2::new(1, 5), &());
/// assert_eq!(sum, Packed2::new(4, 15));
/// assert!(Packed2::new(3, 15).dominates(&sum));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Packed2(u64);

impl Packed2 {
    /// The vector `(x, y)`.
    #[inline]
    #[must_use]
    pub const fn new(x: u32, y: u32) -> Self {
        Self((x as u64) << 32 | y as u64)
    }

    /// Objective 0.
    #[inline]
    #[must_use]
    pub const fn x(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Objective 1.
    #[inline]
    #[must_use]
    pub const fn y(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for Packed2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.x(), self.y())
    }
}

impl CostVector for Packed2 {
    type Algebra = ();
    const OBJECTIVES: usize = 2;
    const SUMS: () = ();
    const ZERO: Self = Self(0);
    const UNLIMITED: Self = Self(u64::MAX);

    #[inline]
    fn combine(self, other: Self, (): &()) -> Self {
        debug_assert!(
            self.y().checked_add(other.y()).is_some(),
            "{self:?} + {other:?} exceeds 32 bits in objective 1"
        );
        Self(self.0 + other.0)
    }

    #[inline]
    fn dominates(&self, other: &Self) -> bool {
        self.x() <= other.x() && self.y() <= other.y()
    }

    #[inline]
    fn get(&self, objective: usize) -> u64 {
        match objective {
            0 => self.0 >> 32,
            1 => self.0 & 0xffff_ffff,
            _ => panic!("objective {objective} of a vector of 2"),
        }
    }

    #[inline]
    fn from_slice(costs: &[u64]) -> Self {
        let &[x, y] = costs else {
            panic!("expected 2 costs, got {}", costs.len());
        };
        match (u32::try_from(x), u32::try_from(y)) {
            (Ok(x), Ok(y)) => Self::new(x, y),
            _ => panic!("({x}, {y}) does not fit 32 bits per objective"),
        }
    }

    #[inline]
    fn is_max((): &(), _objective: usize) -> bool {
        false
    }

    fn limit(caps: &[u64]) -> Self {
        let &[x, y] = caps else {
            panic!("expected 2 caps, got {}", caps.len());
        };
        let clamp = |cap: u64| u32::try_from(cap).unwrap_or(u32::MAX);
        Self::new(clamp(x), clamp(y))
    }
}

/// `D` 64-bit costs (1 to 4), each adding up by sum or by maximum as its [`WideAlgebra`] says.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Wide<const D: usize>(pub [u64; D]);

impl<const D: usize> Ord for Wide<D> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl<const D: usize> PartialOrd for Wide<D> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    // Sorting is most of the time of some kernels and asks only this: without branches, it sorts
    // random vectors about twice as fast.
    #[inline]
    fn lt(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(&other.0)
            .rev()
            .fold(false, |rest, (mine, theirs)| (mine < theirs) | ((mine == theirs) & rest))
    }
}

impl<const D: usize> fmt::Debug for Wide<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How the objectives of a [`Wide`] vector add up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WideAlgebra<const D: usize> {
    /// For each objective: maximum (`true`) or sum (`false`).
    pub max: [bool; D],
}

impl<const D: usize> WideAlgebra<D> {
    /// Sums in every objective.
    pub const SUM: Self = Self { max: [false; D] };
}

impl<const D: usize> CostVector for Wide<D> {
    type Algebra = WideAlgebra<D>;
    const OBJECTIVES: usize = D;
    const SUMS: WideAlgebra<D> = WideAlgebra::SUM;
    const ZERO: Self = Self([0; D]);
    const UNLIMITED: Self = Self([u64::MAX; D]);

    #[inline]
    fn combine(self, other: Self, algebra: &WideAlgebra<D>) -> Self {
        let mut out = self.0;
        for ((mine, theirs), max) in out.iter_mut().zip(other.0).zip(algebra.max) {
            *mine = if max { theirs.max(*mine) } else { *mine + theirs };
        }
        Self(out)
    }

    #[inline]
    fn dominates(&self, other: &Self) -> bool {
        // Without short-circuit: a handful of comparisons without branches is faster.
        self.0.iter().zip(&other.0).fold(true, |all, (mine, theirs)| all & (mine <= theirs))
    }

    #[inline]
    fn get(&self, objective: usize) -> u64 {
        self.0[objective]
    }

    #[inline]
    fn from_slice(costs: &[u64]) -> Self {
        match costs.try_into() {
            Ok(costs) => Self(costs),
            Err(_) => panic!("expected {D} costs, got {}", costs.len()),
        }
    }

    #[inline]
    fn is_max(algebra: &WideAlgebra<D>, objective: usize) -> bool {
        algebra.max[objective]
    }

    fn limit(caps: &[u64]) -> Self {
        match caps.try_into() {
            Ok(caps) => Self(caps),
            Err(_) => panic!("expected {D} caps, got {}", caps.len()),
        }
    }
}
