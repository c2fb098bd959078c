//! Numbers as files hold them, with messages that say what is expected.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::ser::Serializer;

/// A type of whole numbers.
pub(super) trait Whole: Sized {
    /// What is expected, in words.
    const RANGE: &'static str;
    /// The number, if it is in range.
    fn from_u64(value: u64) -> Option<Self>;
}

impl Whole for u64 {
    const RANGE: &'static str = "a whole number from 0 to 2^64 - 1";
    fn from_u64(value: u64) -> Option<Self> {
        Some(value)
    }
}

impl Whole for u32 {
    const RANGE: &'static str = "a whole number from 0 to 2^32 - 2";
    fn from_u64(value: u64) -> Option<Self> {
        // The largest stands for "not chosen" elsewhere.
        u32::try_from(value).ok().filter(|&value| value < u32::MAX)
    }
}

impl Whole for usize {
    const RANGE: &'static str = u32::RANGE;
    fn from_u64(value: u64) -> Option<Self> {
        u32::from_u64(value).map(|value| value as usize)
    }
}

/// A whole number.
#[derive(Clone, Copy)]
pub(super) struct Number<T>(pub T);

impl<'de, T: Whole> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor<T>(PhantomData<T>);

        impl<T: Whole> Visitor<'_> for NumberVisitor<T> {
            type Value = Number<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::RANGE)
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
                let refused = || E::invalid_value(Unexpected::Unsigned(value), &self);
                T::from_u64(value).map(Number).ok_or_else(refused)
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
                match u64::try_from(value) {
                    Ok(value) => self.visit_u64(value),
                    Err(_) => Err(E::invalid_value(Unexpected::Signed(value), &self)),
                }
            }
        }

        deserializer.deserialize_u64(NumberVisitor(PhantomData))
    }
}

/// A whole number; for `deserialize_with`.
pub(super) fn number<'de, D: Deserializer<'de>, T: Whole>(from: D) -> Result<T, D::Error> {
    Number::deserialize(from).map(|Number(value)| value)
}

/// A whole number or null; for `deserialize_with`.
pub(super) fn number_or_null<'de, D: Deserializer<'de>, T: Whole>(
    from: D,
) -> Result<Option<T>, D::Error> {
    Ok(Option::<Number<T>>::deserialize(from)?.map(|Number(value)| value))
}

/// A list of whole numbers; for `deserialize_with`.
pub(super) fn numbers<'de, D: Deserializer<'de>, T: Whole>(from: D) -> Result<Vec<T>, D::Error> {
    let mut values = Vec::new();
    append(from, &mut values)?;
    values.shrink_to_fit();
    Ok(values)
}

/// A list of whole numbers that may be absent; for `deserialize_with`.
pub(super) fn some_numbers<'de, D: Deserializer<'de>, T: Whole>(
    from: D,
) -> Result<Option<Vec<T>>, D::Error> {
    numbers(from).map(Some)
}

/// Appends a list of whole numbers.
pub(super) fn append<'de, D: Deserializer<'de>, T: Whole>(
    from: D,
    values: &mut Vec<T>,
) -> Result<(), D::Error> {
    struct ListVisitor<'a, T>(&'a mut Vec<T>);

    impl<'de, T: Whole> Visitor<'de> for ListVisitor<'_, T> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list, each entry {}", T::RANGE)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
            while let Some(Number(value)) = seq.next_element()? {
                self.0.push(value);
            }
            Ok(())
        }
    }

    from.deserialize_seq(ListVisitor(values))
}

const INFINITY: &str = "infinity";

/// A factor: a number of at least 1, or the word for infinity, which JSON has no number for.
pub(super) mod factor {
    use super::{Deserialize, Deserializer, Error, Factor, INFINITY, Serializer, Unexpected};

    pub(in super::super) fn serialize<S: Serializer>(
        value: &f64,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        if value.is_finite() { to.serialize_f64(*value) } else { to.serialize_str(INFINITY) }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<f64, D::Error> {
        let Factor(value) = Factor::deserialize(from)?;
        if value >= 1.0 {
            return Ok(value);
        }
        Err(D::Error::invalid_value(Unexpected::Float(value), &"a number of at least 1"))
    }
}

/// A factor or null.
pub(super) mod factor_or_null {
    use super::{Deserialize, Deserializer, Factor, Serializer, factor};

    pub(in super::super) fn serialize<S: Serializer>(
        value: &Option<f64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => factor::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Factor>::deserialize(from)?.map(|Factor(value)| value))
    }
}

/// A number, or the word for infinity.
struct Factor(f64);

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FactorVisitor;

        impl Visitor<'_> for FactorVisitor {
            type Value = Factor;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number of at least 1, or {INFINITY:?}")
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Factor, E> {
                Ok(Factor(value))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Factor, E> {
                Ok(Factor(value as f64))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Factor, E> {
                if value == INFINITY {
                    return Ok(Factor(f64::INFINITY));
                }
                Err(E::invalid_value(Unexpected::Str(value), &self))
            }
        }

        deserializer.deserialize_any(FactorVisitor)
    }
}
