//! From measured costs to the integers that the solver adds up: [`Resolution`].

use crate::error::{Error, Result};

/// The size of one integer step of an objective, for example `1e-9` seconds or 512 bytes.
///
/// Costs are converted once, at the door; everything after is exact. Two objectives whose sums
/// stay below 2^32 steps take the fastest path of the solver.
///
/// # Example
///
/// ```
/// use tensoropt::units::Resolution;
///
/// let nanosecond = Resolution::new(1e-9)?;
/// assert_eq!(nanosecond.encode(2.5e-6)?, Some(2500));
/// assert_eq!(nanosecond.encode(f64::INFINITY)?, None); // impossible
/// assert!(nanosecond.encode(-1.0).is_err());
/// # Ok::<(), tensoropt::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resolution(f64);

impl Resolution {
    /// One step of the given size.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] unless `step` is a positive finite number.
    pub fn new(step: f64) -> Result<Self> {
        if step.is_finite() && step > 0.0 {
            Ok(Self(step))
        } else {
            Err(Error::Option {
                option: "resolution",
                what: format!("expected a positive finite number, got {step}"),
            })
        }
    }

    /// The size of one step.
    #[must_use]
    pub const fn step(self) -> f64 {
        self.0
    }

    /// The nearest number of steps; `None` if the cost is infinite, which means impossible.
    ///
    /// # Errors
    ///
    /// [`Error::Cost`] if `value` is negative or not a number, [`Error::TooLarge`] if it is finite
    /// and beyond 64 bits.
    pub fn encode(self, value: f64) -> Result<Option<u64>> {
        if value.is_nan() || value < 0.0 {
            return Err(Error::Cost { value });
        }
        if value == f64::INFINITY {
            return Ok(None);
        }
        let steps = (value / self.0).round();
        // 2^64 as f64; the largest f64 below it converts exactly.
        if steps >= 18_446_744_073_709_551_616.0 {
            return Err(Error::TooLarge { value, resolution: self.0 });
        }
        Ok(Some(steps as u64))
    }

    /// The cost of a number of steps.
    #[must_use]
    pub fn decode(self, steps: u64) -> f64 {
        steps as f64 * self.0
    }
}
