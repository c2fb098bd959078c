//! The pair behind a sum: [`find`].

use std::cmp::Ordering;

use crate::frontier::{CostVector, Located, Term, locate};

/// Finds a pair of points that adds up to exactly `point`: in the first term that has one, the
/// first from the left.
///
/// With sums the lexicographic order of what two points add up to rises with either, so one walk
/// through both sides at once, one rising and one falling, finds the pair; where one side is much
/// shorter, each of its points is searched for in the other. With a maximum the order is of no use,
/// and [`locate`] does what it can.
///
/// # Complexity
///
/// With sums `O(min(n + m, n log m))` per term for sides of `n <= m` points.
pub(crate) fn find<'a, C: CostVector>(
    algebra: &C::Algebra,
    terms: impl Iterator<Item = Term<'a, C>>,
    point: &C,
) -> Option<Located> {
    let sums = (0..C::OBJECTIVES).all(|objective| !C::is_max(algebra, objective));
    terms.enumerate().find_map(|(term, Term { left, right })| {
        // The shorter side first, in whichever order it was given.
        let swap = left.len() > right.len();
        let (short, long) = if swap { (right, left) } else { (left, right) };
        let (i, j) = if short.is_empty() {
            return None;
        } else if !sums {
            let found = locate(algebra, &[Term { left: short, right: long }], point)?;
            (found.left, found.right)
        } else if short.len() * long.len().ilog2().max(1) as usize <= short.len() + long.len() {
            search(algebra, short, long, point)?
        } else {
            walk(algebra, short, long, point)?
        };
        let (left, right) = if swap { (j, i) } else { (i, j) };
        Some(Located { term, left, right })
    })
}

fn search<C: CostVector>(
    algebra: &C::Algebra,
    short: &[C],
    long: &[C],
    point: &C,
) -> Option<(usize, usize)> {
    let candidates = short.iter().enumerate().filter(|(_, a)| a.dominates(point));
    for (i, a) in candidates {
        if let Ok(j) = long.binary_search_by(|b| a.combine(*b, algebra).cmp(point)) {
            return Some((i, j));
        }
    }
    None
}

fn walk<C: CostVector>(
    algebra: &C::Algebra,
    short: &[C],
    long: &[C],
    point: &C,
) -> Option<(usize, usize)> {
    let (mut i, mut j) = (0, long.len());
    while i < short.len() && j > 0 {
        match short[i].combine(long[j - 1], algebra).cmp(point) {
            Ordering::Less => i += 1,
            Ordering::Greater => j -= 1,
            Ordering::Equal => return Some((i, j - 1)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::{Packed2, Wide, WideAlgebra};

    fn curve(n: u32, step: u32) -> Vec<Packed2> {
        (0..n).map(|i| Packed2::new(i * step + i % 3, (n - i) * step - i % 2)).collect()
    }

    #[test]
    fn every_sum_is_found() {
        for (n, m) in [(1, 40), (3, 40), (40, 40), (40, 2)] {
            let (left, right) = (curve(n, 5), curve(m, 7));
            for a in &left {
                for b in &right {
                    let point = a.combine(*b, &());
                    let empty = Term { left: &left[..0], right: &right[..] };
                    let term = Term { left: &left[..], right: &right[..] };
                    let found = find(&(), [empty, term].into_iter(), &point).unwrap();
                    assert_eq!(found.term, 1);
                    assert_eq!(left[found.left].combine(right[found.right], &()), point);
                }
            }
        }
    }

    #[test]
    fn what_is_no_sum_is_not_found() {
        let (left, right) = (curve(40, 4), curve(40, 8));
        let term = Term { left: &left[..], right: &right[..] };
        assert_eq!(find(&(), [term].into_iter(), &Packed2::new(1_000_000, 1)), None);
        assert_eq!(find(&(), [term].into_iter(), &Packed2::new(0, 0)), None);
    }

    #[test]
    fn maxima_are_found() {
        let algebra = WideAlgebra { max: [false, true] };
        let left = [Wide([1, 9]), Wide([4, 2])];
        let right = [Wide([0, 5]), Wide([3, 0])];
        let term = Term { left: &left[..], right: &right[..] };
        let found = find(&algebra, [term].into_iter(), &Wide([7, 2])).unwrap();
        assert_eq!((found.left, found.right), (1, 1));
    }
}
