//! The laws of the Pareto algebra, and every fast kernel against its naive twin.

use proptest::collection::vec;
use proptest::prelude::*;
use tensoropt::frontier::{
    CostVector, Located, Packed2, Scratch, Term, Wide, WideAlgebra, Work, is_frontier, locate,
    naive, prune, thin, trim, union, union_of_sums,
};

/// Costs of several magnitudes: with many ties, with few, near the ends of the range.
fn cost(top: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..6u64,
        2 => 0..40u64,
        3 => 0..=top,
        1 => (top - 3)..=top,
        1 => Just(0),
    ]
}

/// Points that are anti-correlated or not, few or many.
fn points<C: CostVector>(top: u64, sizes: std::ops::Range<usize>) -> BoxedStrategy<Vec<C>> {
    let anti = move |mut point: Vec<u64>| {
        let rest: u64 = point[1..].iter().map(|c| c / C::OBJECTIVES as u64).sum();
        point[0] = top - rest.min(top);
        point
    };
    let one = move || vec(cost(top), C::OBJECTIVES);
    prop_oneof![
        vec(one(), sizes.clone()),
        vec(one().prop_map(anti), sizes.clone()),
        vec(vec(0..4u64, C::OBJECTIVES), sizes),
    ]
    .prop_map(|points| points.iter().map(|point| C::from_slice(point)).collect())
    .boxed()
}

fn frontier<C: CostVector>(top: u64, sizes: std::ops::Range<usize>) -> BoxedStrategy<Vec<C>> {
    points::<C>(top, sizes).prop_map(|points| naive::prune(&points)).boxed()
}

fn terms_of<C>(sides: &[(Vec<C>, Vec<C>)]) -> Vec<Term<'_, C>> {
    sides.iter().map(|(left, right)| Term { left, right }).collect()
}

fn sum<C: CostVector>(algebra: &C::Algebra, left: &[C], right: &[C]) -> Vec<C> {
    let mut out = Vec::new();
    let (scratch, work) = (&mut Scratch::new(), &mut Work::default());
    union_of_sums(algebra, &[Term { left, right }], None, &mut out, scratch, work);
    out
}

fn unite<C: CostVector>(frontiers: &[&[C]]) -> Vec<C> {
    let mut out = Vec::new();
    union(frontiers, &mut out, &mut Scratch::new(), &mut Work::default());
    out
}

fn check_prune<C: CostVector>(points: &[C]) -> Result<(), TestCaseError> {
    let scratch = &mut Scratch::new();
    let mut fast = points.to_vec();
    prune(&mut fast, scratch);
    prop_assert_eq!(&fast, &naive::prune(points));
    prop_assert!(is_frontier(&fast));
    let once = fast.clone();
    prune(&mut fast, scratch);
    prop_assert_eq!(fast, once);
    Ok(())
}

fn check_sums<C: CostVector>(
    algebra: &C::Algebra,
    sides: &[(Vec<C>, Vec<C>)],
    limit: Option<C>,
) -> Result<(), TestCaseError> {
    let terms = terms_of(sides);
    let expected = naive::union_of_sums(algebra, &terms, limit);
    let (mut out, mut work) = (vec![C::ZERO], Work::default());
    let scratch = &mut Scratch::new();
    union_of_sums(algebra, &terms, limit, &mut out, scratch, &mut work);
    prop_assert_eq!(&out, &expected);
    prop_assert_eq!(work.calls, 1);
    prop_assert_eq!(work.points, expected.len() as u64);
    prop_assert!(work.candidates >= work.points);
    // Again: buffers and counters carry nothing over.
    let mut twice = work;
    union_of_sums(algebra, &terms, limit, &mut out, scratch, &mut twice);
    prop_assert_eq!(&out, &expected);
    work += work;
    prop_assert_eq!(twice, work);
    for point in &expected {
        let found = locate(algebra, &terms, point);
        prop_assert_eq!(found, naive::locate(algebra, &terms, point));
        let Some(Located { term, left, right }) = found else {
            return Err(TestCaseError::fail("a point of the sum was not located"));
        };
        let pair = terms[term].left[left].combine(terms[term].right[right], algebra);
        prop_assert_eq!(&pair, point);
    }
    Ok(())
}

fn check_cover<C: CostVector>(
    points: &[C],
    delta: f64,
    at_most: usize,
    exact: Option<usize>,
) -> Result<(), TestCaseError> {
    let scratch = &mut Scratch::new();
    let mut kept = points.to_vec();
    let factor = trim(&mut kept, delta, exact, scratch);
    prop_assert!(is_frontier(&kept));
    prop_assert!(kept.iter().all(|point| points.contains(point)));
    prop_assert!(factor <= (1.0 + delta) * (1.0 + 1e-12), "{} for {}", factor, delta);
    prop_assert!(naive::cover_factor(points, &kept, exact) <= factor);

    let mut kept = points.to_vec();
    let factor = thin(&mut kept, at_most, exact, scratch);
    prop_assert!(is_frontier(&kept));
    prop_assert!(kept.len() <= at_most.max(1 << (C::OBJECTIVES - 1)));
    prop_assert!(factor.is_finite() && factor >= 1.0);
    prop_assert!(naive::cover_factor(points, &kept, exact) <= factor);
    if points.len() <= at_most {
        prop_assert_eq!(kept.len(), points.len());
        prop_assert_eq!(factor, 1.0);
    }
    Ok(())
}

/// The properties of one vector type. `$top` bounds costs so that two of them add up in the type.
macro_rules! laws {
    ($name:ident, $type:ty, $top:expr, $algebra:expr) => {
        mod $name {
            use super::*;
            const TOP: u64 = $top;

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(96))]

                #[test]
                fn prune_is_its_naive_twin(points in points::<$type>(TOP, 0..900)) {
                    check_prune(&points)?;
                }

                #[test]
                fn sums_are_their_naive_twin(
                    sides in vec((frontier(TOP, 0..60), frontier(TOP, 0..60)), 0..5),
                    caps in proptest::option::of(vec(cost(TOP), <$type>::OBJECTIVES)),
                    algebra in $algebra,
                ) {
                    check_sums::<$type>(&algebra, &sides, caps.map(|c| <$type>::limit(&c)))?;
                }

                #[test]
                fn shifts_are_their_naive_twin(
                    sides in vec((frontier(TOP, 0..160), frontier(TOP, 1..2)), 0..12),
                    algebra in $algebra,
                ) {
                    check_sums::<$type>(&algebra, &sides, None)?;
                }

                #[test]
                fn sums_commute_and_associate(
                    a in frontier::<$type>(TOP / 2, 0..30),
                    b in frontier::<$type>(TOP / 2, 0..30),
                    c in frontier::<$type>(TOP / 2, 0..30),
                    algebra in $algebra,
                ) {
                    prop_assert_eq!(sum(&algebra, &a, &b), sum(&algebra, &b, &a));
                    let left = sum(&algebra, &sum(&algebra, &a, &b), &c);
                    prop_assert_eq!(left, sum(&algebra, &a, &sum(&algebra, &b, &c)));
                    prop_assert_eq!(sum(&algebra, &a, &[<$type>::ZERO]), a);
                }

                #[test]
                fn unions_commute_associate_and_are_idempotent(
                    a in frontier::<$type>(TOP, 0..80),
                    b in frontier::<$type>(TOP, 0..80),
                    c in frontier::<$type>(TOP, 0..80),
                ) {
                    let all = unite(&[&a, &b, &c]);
                    prop_assert_eq!(&all, &naive::union(&[&a, &b, &c]));
                    prop_assert_eq!(&all, &unite(&[&c, &a, &b]));
                    prop_assert_eq!(&all, &unite(&[&unite(&[&a, &b]), &c]));
                    prop_assert_eq!(unite(&[&a, &a]), a);
                }

                #[test]
                fn sums_distribute_over_unions(
                    a in frontier::<$type>(TOP, 0..40),
                    b in frontier::<$type>(TOP, 0..40),
                    c in frontier::<$type>(TOP, 0..40),
                    algebra in $algebra,
                ) {
                    let apart = unite(&[&sum(&algebra, &a, &b), &sum(&algebra, &a, &c)]);
                    prop_assert_eq!(sum(&algebra, &a, &unite(&[&b, &c])), apart);
                }

                #[test]
                fn covers_hold_what_they_promise(
                    points in frontier::<$type>(TOP, 0..200),
                    delta in prop_oneof![Just(0.0), 0.0..0.01f64, 0.0..3.0f64],
                    at_most in 1..40usize,
                    exact in proptest::option::of(0..<$type>::OBJECTIVES),
                ) {
                    check_cover(&points, delta, at_most, exact)?;
                }
            }
        }
    };
}

/// Any mixture of sums and maxima.
fn mixed<const D: usize>() -> BoxedStrategy<WideAlgebra<D>> {
    vec(any::<bool>(), D)
        .prop_map(|max| WideAlgebra { max: max.try_into().unwrap_or([false; D]) })
        .boxed()
}

laws!(packed2, Packed2, (u32::MAX / 2) as u64, Just(()));
laws!(wide1, Wide<1>, u64::MAX / 2, mixed::<1>());
laws!(wide2, Wide<2>, u64::MAX / 2, mixed::<2>());
laws!(wide2_sums, Wide<2>, u64::MAX / 2, Just(WideAlgebra::SUM));
laws!(wide3, Wide<3>, u64::MAX / 2, mixed::<3>());
laws!(wide3_sums, Wide<3>, u64::MAX / 2, Just(WideAlgebra::SUM));
laws!(wide4, Wide<4>, u64::MAX / 2, mixed::<4>());

/// The ends of the range: sums that reach the largest number in each objective.
#[test]
fn sums_up_to_the_largest_number() -> Result<(), TestCaseError> {
    let half = u64::MAX / 2;
    for kept in [0, 1, 40] {
        let side = |extra: u64| {
            let mut side: Vec<Wide<2>> =
                (0..=kept).map(|i| Wide([half + extra - kept + i, half + extra - i])).collect();
            side.push(Wide([half + extra, half + extra - kept - 1]));
            naive::prune(&side)
        };
        check_sums(&WideAlgebra::SUM, &[(side(0), side(1)), (side(0), side(0))], None)?;
    }
    let top = Wide([u64::MAX, u64::MAX]);
    check_sums(&WideAlgebra::SUM, &[(vec![top], vec![Wide([0, 0])])], None)?;
    check_prune(&[top; 600])?;
    check_prune(&[Wide([u64::MAX; 3]); 600])?;
    Ok(())
}
