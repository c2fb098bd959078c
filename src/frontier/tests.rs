//! Each kernel by itself, at sizes at which the dispatch would not choose it, against its naive
//! twin.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

type Sides<C> = Vec<(Vec<C>, Vec<C>)>;

fn terms_of<C>(sides: &Sides<C>) -> Vec<Term<'_, C>> {
    sides.iter().map(|(left, right)| Term { left, right }).collect()
}

/// Frontiers of small numbers with ties, or of large ones up to `top`; anti-correlated, or of a
/// scale that changes over orders of magnitude.
fn frontiers<C: CostVector>(top: u64, size: usize) -> BoxedStrategy<Vec<C>> {
    let small = vec(vec(0..12u64, C::OBJECTIVES), 0..size);
    let anti = vec(vec(0..=top / 8, C::OBJECTIVES), 0..size).prop_map(move |mut points| {
        for point in &mut points {
            point[0] = top - point[1..].iter().sum::<u64>().min(top);
        }
        points
    });
    let log = vec(vec((0..top.ilog2(), 0..=top), C::OBJECTIVES), 0..size).prop_map(|points| {
        points
            .into_iter()
            .map(|point| point.into_iter().map(|(shift, cost)| cost >> shift).collect())
            .collect()
    });
    prop_oneof![small, anti, log]
        .prop_map(|points: Vec<Vec<u64>>| {
            naive::prune(&points.iter().map(|p| C::from_slice(p)).collect::<Vec<_>>())
        })
        .boxed()
}

fn sides<C: CostVector>(top: u64, terms: usize, size: usize) -> BoxedStrategy<Sides<C>> {
    vec((frontiers(top, size), frontiers(top, size)), 0..terms).boxed()
}

fn limits<C: CostVector>(top: u64) -> BoxedStrategy<Option<C>> {
    proptest::option::of(vec(prop_oneof![0..24u64, 0..=2 * top], C::OBJECTIVES))
        .prop_map(|caps| caps.map(|caps| C::limit(&caps)))
        .boxed()
}

/// A kernel by itself.
type Kernel<C> = fn(
    &<C as CostVector>::Algebra,
    &[Term<'_, C>],
    Option<C>,
    &mut Vec<C>,
    &mut Scratch<C>,
    &mut Work,
);

fn check<C: CostVector>(
    kernel: Kernel<C>,
    algebra: &C::Algebra,
    sides: &Sides<C>,
    limit: Option<C>,
) -> Result<(), TestCaseError> {
    let terms = terms_of(sides);
    let (mut out, mut scratch, mut work) = (vec![C::ZERO], Scratch::new(), Work::default());
    for _ in 0..2 {
        kernel(algebra, &terms, limit, &mut out, &mut scratch, &mut work);
        prop_assert_eq!(&out, &naive::union_of_sums(algebra, &terms, limit));
    }
    Ok(())
}

fn by_pairs<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
    out: &mut Vec<C>,
    _scratch: &mut Scratch<C>,
    work: &mut Work,
) {
    pairs::by_pairs(algebra, terms, limit, out, work);
}

fn by_maximum<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
    out: &mut Vec<C>,
    _scratch: &mut Scratch<C>,
    work: &mut Work,
) {
    pairs::by_maximum(algebra, terms, limit, out, work);
}

fn all_pairs<C: CostVector>(
    algebra: &C::Algebra,
    terms: &[Term<'_, C>],
    limit: Option<C>,
    out: &mut Vec<C>,
    scratch: &mut Scratch<C>,
    work: &mut Work,
) {
    pairs::all_pairs(algebra, terms, limit, out, work);
    space::prune(out, &mut scratch.space);
}

const PACKED_TOP: u64 = (u32::MAX / 2) as u64;
const WIDE_TOP: u64 = u64::MAX / 2 - 1;

fn mixed<const D: usize>() -> impl Strategy<Value = WideAlgebra<D>> {
    proptest::array::uniform::<_, D>(any::<bool>()).prop_map(|max| WideAlgebra { max })
}

proptest! {
    #[test]
    fn pairs_of_packed(sides in sides(PACKED_TOP, 4, 40), limit in limits(PACKED_TOP)) {
        check::<Packed2>(by_pairs, &(), &sides, limit)?;
    }

    #[test]
    fn sift_of_packed(sides in sides(PACKED_TOP, 4, 40), limit in limits(PACKED_TOP)) {
        check::<Packed2>(pairs::by_sift, &(), &sides, limit)?;
    }

    #[test]
    fn sift_of_wide(sides in sides(WIDE_TOP, 4, 40), limit in limits(WIDE_TOP)) {
        check::<Wide<2>>(pairs::by_sift, &WideAlgebra::SUM, &sides, limit)?;
    }

    #[test]
    fn blocks_of_packed(sides in sides(PACKED_TOP, 4, 90), limit in limits(PACKED_TOP)) {
        check::<Packed2>(blocks::by_blocks, &(), &sides, limit)?;
    }

    #[test]
    fn blocks_of_wide(sides in sides(WIDE_TOP, 4, 90), limit in limits(WIDE_TOP)) {
        check::<Wide<2>>(blocks::by_blocks, &WideAlgebra::SUM, &sides, limit)?;
    }

    #[test]
    fn maximum_of_wide(
        sides in sides(WIDE_TOP, 4, 40),
        limit in limits(WIDE_TOP),
        first in any::<bool>(),
        other in any::<bool>(),
    ) {
        let algebra = WideAlgebra { max: [first, other | !first] };
        check::<Wide<2>>(by_maximum, &algebra, &sides, limit)?;
    }

    #[test]
    fn all_pairs_of_three(
        sides in sides(WIDE_TOP, 4, 40),
        limit in limits(WIDE_TOP),
        algebra in mixed::<3>(),
    ) {
        check::<Wide<3>>(all_pairs, &algebra, &sides, limit)?;
    }

    #[test]
    fn boxes_of_three(
        sides in sides(WIDE_TOP, 4, 40),
        limit in limits(WIDE_TOP),
        algebra in mixed::<3>(),
    ) {
        check::<Wide<3>>(boxes::by_boxes, &algebra, &sides, limit)?;
    }

    #[test]
    fn boxes_of_four(
        sides in sides(WIDE_TOP, 3, 30),
        limit in limits(WIDE_TOP),
        algebra in mixed::<4>(),
    ) {
        check::<Wide<4>>(boxes::by_boxes, &algebra, &sides, limit)?;
    }
}

/// A stream of numbers that is the same everywhere (splitmix64).
pub(super) fn numbers(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Two sorted columns of random numbers, one ascending and one descending.
fn staircase(size: usize, seed: u64, shift: u32) -> Vec<Packed2> {
    let mut next = numbers(seed);
    let mut column = || {
        let mut column: Vec<u32> =
            (0..size).map(|_| (next() >> 34) as u32 >> (next() % u64::from(shift + 1))).collect();
        column.sort_unstable();
        column
    };
    let (xs, ys) = (column(), column());
    let mut points: Vec<Packed2> =
        xs.iter().zip(ys.iter().rev()).map(|(&x, &y)| Packed2::new(x, y)).collect();
    prune(&mut points, &mut Scratch::new());
    points
}

/// Sums so large that all levels of the block search and its refreshes take part.
#[test]
fn large_sums_agree_between_kernels() {
    for (terms, size, shift) in [(1, 700, 0), (1, 700, 20), (5, 250, 0), (5, 250, 12)] {
        let sides: Sides<Packed2> = (0..terms)
            .map(|k| (staircase(size, 2 * k, shift), staircase(size, 2 * k + 1, shift)))
            .collect();
        let terms = terms_of(&sides);
        let (mut scratch, mut work) = (Scratch::new(), Work::default());
        let (mut expected, mut out) = (Vec::new(), Vec::new());
        pairs::by_pairs(&(), &terms, None, &mut expected, &mut work);
        assert!(is_frontier(&expected) && expected.len() > 300);
        pairs::by_sift(&(), &terms, None, &mut out, &mut scratch, &mut work);
        assert_eq!(out, expected, "by_sift, {size} points, shift {shift}");
        let before = work.visited;
        blocks::by_blocks(&(), &terms, None, &mut out, &mut scratch, &mut work);
        assert_eq!(out, expected, "by_blocks, {size} points, shift {shift}");
        let pairs: usize = terms.iter().map(|t| t.left.len() * t.right.len()).sum();
        assert!(work.visited - before < pairs as u64 / 3, "by_blocks looks at too many pairs");

        let cap = expected[expected.len() / 3];
        let limit = Packed2::new(u32::MAX, cap.y());
        blocks::by_blocks(&(), &terms, Some(limit), &mut out, &mut scratch, &mut work);
        assert_eq!(out, expected[expected.len() / 3..]);
        pairs::by_sift(&(), &terms, Some(limit), &mut out, &mut scratch, &mut work);
        assert_eq!(out, expected[expected.len() / 3..]);
    }
}

/// Three and four objectives at sizes at which the trees have several levels and the grid is fine.
#[test]
fn large_sums_agree_in_space() {
    fn side<const D: usize>(size: usize, seed: u64) -> Vec<Wide<D>> {
        let mut next = numbers(seed);
        let mut points: Vec<Wide<D>> = (0..size)
            .map(|_| {
                let mut point = [0; D];
                point.iter_mut().skip(1).for_each(|cost| *cost = next() >> 40);
                point[0] = (D as u64) * (1 << 24) - point.iter().sum::<u64>() + (next() >> 43);
                Wide(point)
            })
            .collect();
        prune(&mut points, &mut Scratch::new());
        points
    }
    fn agree<const D: usize>(size: usize, algebra: WideAlgebra<D>) {
        let (a, b, c) = (side::<D>(size, 1), side::<D>(size, 2), side::<D>(size / 2, 3));
        let terms = [Term { left: &a, right: &b }, Term { left: &c, right: &b }];
        let (mut scratch, mut work) = (Scratch::new(), Work::default());
        let (mut expected, mut out) = (Vec::new(), Vec::new());
        all_pairs(&algebra, &terms, None, &mut expected, &mut scratch, &mut work);
        assert!(is_frontier(&expected));
        boxes::by_boxes(&algebra, &terms, None, &mut out, &mut scratch, &mut work);
        assert_eq!(out, expected);
        let limit = Wide([3 << 24; D]);
        boxes::by_boxes(&algebra, &terms, Some(limit), &mut out, &mut scratch, &mut work);
        expected.retain(|point| point.dominates(&limit));
        assert_eq!(out, expected);
    }
    agree::<3>(150, WideAlgebra::SUM);
    agree::<3>(150, WideAlgebra { max: [false, true, false] });
    agree::<4>(60, WideAlgebra::SUM);
}

/// Filtering at sizes at which grid, chunks and divide and conquer take part.
#[test]
fn large_sets_are_filtered_right() {
    fn agree<const D: usize>(size: usize, bits: u32, spread: u32) {
        let mut next = numbers(u64::from(bits) + size as u64);
        let points: Vec<Wide<D>> = (0..size)
            .map(|_| {
                let mut point = [0; D];
                point.iter_mut().skip(1).for_each(|cost| *cost = next() >> (64 - bits));
                point[0] = (D as u64) << bits;
                point[0] -= point[1..].iter().sum::<u64>();
                point[0] += (next() >> (64 - bits)) >> spread;
                Wide(point)
            })
            .collect();
        let mut fast = points.clone();
        prune(&mut fast, &mut Scratch::new());
        assert_eq!(fast, naive::prune(&points), "{size} points of {bits} bits");
    }
    for (bits, spread) in [(3, 1), (10, 8), (40, 38), (40, 4)] {
        agree::<2>(3000, bits, spread);
        agree::<3>(3000, bits, spread);
        agree::<4>(2000, bits, spread);
    }
}

/// The profile is a staircase whatever the order of insertion, and its chunks split and vanish.
#[test]
fn profile_is_the_frontier_of_what_was_inserted() {
    let mut next = numbers(7);
    let mut profile = space::Profile::default();
    for bits in [4, 12, 30] {
        profile.clear();
        let mut inserted: Vec<Wide<2>> = Vec::new();
        for _ in 0..3000 {
            let y = next() >> (64 - bits);
            let z = (1 << bits) - y + (next() >> (64 - bits + 3));
            let fresh = !inserted.iter().any(|p| p.dominates(&Wide([y, z])));
            assert_eq!(profile.insert(y, z), fresh);
            inserted.push(Wide([y, z]));
        }
        let frontier = naive::prune(&inserted);
        for y in frontier.iter().map(|p| p.0[0]) {
            let lowest = frontier.iter().rfind(|p| p.0[0] <= y).map(|p| (p.0[0], p.0[1]));
            assert_eq!(profile.lowest(y), lowest);
        }
        // A step below everything leaves nothing else.
        assert!(profile.insert(0, 0));
        assert_eq!(profile.lowest(u64::MAX), Some((0, 0)));
    }
}
