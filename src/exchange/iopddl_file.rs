//! The contest's JSON, as it is read.

use std::fmt;
use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

use super::header::Object;
use super::numbers::{Whole, append, number, number_or_null};

/// A whole file. Fields that the definition does not name are passed over.
#[derive(Deserialize)]
pub(super) struct FileIn {
    pub problem: Object<ProblemIn>,
}

#[derive(Deserialize)]
pub(super) struct ProblemIn {
    #[serde(default)]
    pub name: String,
    pub nodes: Object<NodesIn>,
    pub edges: Object<EdgesIn>,
    #[serde(default, deserialize_with = "number_or_null")]
    pub usage_limit: Option<u64>,
}

#[derive(Deserialize)]
pub(super) struct NodesIn {
    #[serde(deserialize_with = "intervals")]
    pub intervals: Vec<(u64, u64)>,
    pub costs: Ragged<u64>,
    pub usages: Ragged<u64>,
}

#[derive(Deserialize)]
pub(super) struct EdgesIn {
    pub nodes: Ragged<u32>,
    pub costs: Interned,
}

/// Lists of different lengths, in one piece of memory.
#[derive(Clone, Debug)]
pub(super) struct Ragged<T> {
    values: Vec<T>,
    ends: Vec<usize>,
}

impl<T> Default for Ragged<T> {
    fn default() -> Self {
        Self { values: Vec::new(), ends: Vec::new() }
    }
}

impl<T> Ragged<T> {
    /// Number of lists.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// A list.
    pub fn get(&self, index: usize) -> &[T] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.values[start..self.ends[index]]
    }
}

/// Lists of which equal ones are held once.
#[derive(Clone, Debug, Default)]
pub(super) struct Interned {
    different: Ragged<u64>,
    ids: Vec<u32>,
}

impl Interned {
    /// Number of lists.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Which of the different lists it is.
    pub fn id(&self, index: usize) -> u32 {
        self.ids[index]
    }

    /// A list.
    pub fn get(&self, index: usize) -> &[u64] {
        self.different.get(self.ids[index] as usize)
    }
}

/// Reads one list and appends it.
struct Append<'a, T>(&'a mut Vec<T>);

impl<'de, T: Whole> DeserializeSeed<'de> for Append<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        append(from, self.0)
    }
}

impl<'de, T: Whole> Deserialize<'de> for Ragged<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ListsVisitor<T>(Ragged<T>);

        impl<'de, T: Whole> Visitor<'de> for ListsVisitor<T> {
            type Value = Ragged<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of lists, each entry {}", T::RANGE)
            }

            fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Ragged<T>, A::Error> {
                let lists = &mut self.0;
                while seq.next_element_seed(Append(&mut lists.values))?.is_some() {
                    lists.ends.push(lists.values.len());
                }
                Ok(self.0)
            }
        }

        from.deserialize_seq(ListsVisitor(Ragged::default()))
    }
}

impl<'de> Deserialize<'de> for Interned {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ListsVisitor;

        impl<'de> Visitor<'de> for ListsVisitor {
            type Value = Interned;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of lists, each entry {}", u64::RANGE)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Interned, A::Error> {
                let mut found = Interned::default();
                let mut by_hash: FxHashMap<u64, Vec<u32>> = FxHashMap::default();
                let mut list: Vec<u64> = Vec::new();
                while seq.next_element_seed(Append(&mut list))?.is_some() {
                    let mut hasher = FxHasher::default();
                    list.hash(&mut hasher);
                    let same = by_hash.entry(hasher.finish()).or_default();
                    let different = &mut found.different;
                    let known = same.iter().find(|&&id| different.get(id as usize) == list);
                    let id = match known {
                        Some(&id) => id,
                        None => {
                            let id = u32::try_from(different.len())
                                .map_err(|_| A::Error::custom("more than 2^32 edges"))?;
                            different.values.extend_from_slice(&list);
                            different.ends.push(different.values.len());
                            same.push(id);
                            id
                        }
                    };
                    found.ids.push(id);
                    list.clear();
                }
                Ok(found)
            }
        }

        from.deserialize_seq(ListsVisitor)
    }
}

fn intervals<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(u64, u64)>, D::Error> {
    #[derive(Deserialize)]
    struct Interval(
        #[serde(deserialize_with = "number")] u64,
        #[serde(deserialize_with = "number")] u64,
    );

    let intervals = Vec::<Interval>::deserialize(from)?;
    Ok(intervals.into_iter().map(|Interval(lower, upper)| (lower, upper)).collect())
}
