//! What a document says it is: its format and version; and objects, which are no lists.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::numbers;

/// Fields by name. What serde derives would take a list of their values as well, so that a file
/// could be read in another order than it was meant.
pub(super) struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with named fields")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        from.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// A kind of document.
pub(super) trait Kind {
    const NAME: &'static str;
    const VERSION: u64;
}

/// The name of a kind of document; reads no other.
pub(super) struct Format<K>(PhantomData<K>);

/// The version of a kind of document; reads none that is newer.
pub(super) struct Version<K>(PhantomData<K>);

impl<K> Default for Format<K> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<K> Default for Version<K> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<K: Kind> Serialize for Format<K> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(K::NAME)
    }
}

impl<K: Kind> Serialize for Version<K> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(K::VERSION)
    }
}

impl<'de, K: Kind> Deserialize<'de> for Format<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct NameVisitor<K>(PhantomData<K>);

        impl<K: Kind> Visitor<'_> for NameVisitor<K> {
            type Value = Format<K>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", K::NAME)
            }

            fn visit_str<E: Error>(self, found: &str) -> Result<Self::Value, E> {
                if found == K::NAME {
                    return Ok(Format(PhantomData));
                }
                let expected = K::NAME;
                Err(E::custom(format_args!("this is a {found:?} file, expected {expected:?}")))
            }
        }

        from.deserialize_str(NameVisitor(PhantomData))
    }
}

impl<'de, K: Kind> Deserialize<'de> for Version<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let found: u64 = numbers::number(from)?;
        if (1..=K::VERSION).contains(&found) {
            return Ok(Self(PhantomData));
        }
        Err(D::Error::custom(format_args!(
            "version {found} of the format {:?}, this release reads 1 to {}: use a newer release \
             of tensoropt",
            K::NAME,
            K::VERSION
        )))
    }
}
