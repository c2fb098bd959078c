//! A JSON document as a tree that can be damaged in ways that no parser of values would keep:
//! fields that are there twice, numbers beyond any type.

use super::Rng;

/// A document. Leaves are kept as they are written.
#[derive(Clone, Debug)]
pub enum Json {
    Leaf(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

use Json::{Leaf, List, Object};

/// What a change must be answered with, if it is refused.
#[derive(Debug)]
pub struct Change {
    /// What was done, for the message of a failing test.
    pub what: String,
    /// One of these is in the complaint; any complaint will do if there are none.
    pub names: Vec<String>,
}

/// What leaves are replaced by. The last three are no JSON.
const LEAVES: [&str; 26] = [
    "0",
    "-0",
    "-1",
    "1",
    "7",
    "4294967294",
    "4294967295",
    "18446744073709551614",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "1e18",
    "1e300",
    "0.5",
    "1e-400",
    "\"7\"",
    "\"\"",
    "\"sum\"",
    "\"a\\u0000\\nb\"",
    "null",
    "true",
    "[]",
    "{}",
    "NaN",
    "-Infinity",
    "1e999",
];

impl Json {
    /// Reads a well-formed text without spaces.
    pub fn parse(text: &str) -> Self {
        let (tree, rest) = Self::read(text.trim());
        assert!(rest.is_empty(), "well-formed");
        tree
    }

    fn read(text: &str) -> (Self, &str) {
        if let Some(mut rest) = text.strip_prefix('[') {
            let mut items = Vec::new();
            while !rest.starts_with(']') {
                let (item, after) = Self::read(rest);
                items.push(item);
                rest = after.strip_prefix(',').unwrap_or(after);
            }
            return (List(items), &rest[1..]);
        }
        if let Some(mut rest) = text.strip_prefix('{') {
            let mut fields = Vec::new();
            while !rest.starts_with('}') {
                let (key, after) = Self::read(rest);
                let Leaf(key) = key else { panic!("a key is a string") };
                let (value, after) = Self::read(after.strip_prefix(':').expect("a colon"));
                fields.push((key.trim_matches('"').to_owned(), value));
                rest = after.strip_prefix(',').unwrap_or(after);
            }
            return (Object(fields), &rest[1..]);
        }
        let end = match text.strip_prefix('"') {
            Some(inner) => 2 + inner.find('"').expect("no quote is escaped"),
            None => text.find([',', ']', '}', ':']).unwrap_or(text.len()),
        };
        (Leaf(text[..end].to_owned()), &text[end..])
    }

    pub fn write(&self, out: &mut String) {
        let mut between = "";
        match self {
            Leaf(text) => out.push_str(text),
            List(items) => {
                out.push('[');
                for item in items {
                    out.push_str(between);
                    item.write(out);
                    between = ",";
                }
                out.push(']');
            }
            Object(fields) => {
                out.push('{');
                for (key, value) in fields {
                    out.push_str(&format!("{between}\"{key}\":"));
                    value.write(out);
                    between = ",";
                }
                out.push('}');
            }
        }
    }

    /// One random change somewhere.
    pub fn change(&mut self, rng: &mut Rng) -> Change {
        let donor = self.pick(rng, String::new()).0.clone();
        let (place, path) = self.pick(rng, String::new());
        // Where a place is refused as a whole, its parent is named.
        let parent = path.rfind(['.', '[']).map_or("", |end| &path[..end]).to_owned();
        if rng.chance(10) {
            *place = donor;
            return Change { what: format!("{path}: another part"), names: Vec::new() };
        }
        let change = |what: String, names: Vec<String>| Change { what, names };
        let some = |rng: &mut Rng, n: usize| rng.below(n.max(1) as u64) as usize;
        match place {
            Leaf(text) => {
                let new = LEAVES[some(rng, LEAVES.len())];
                let what = format!("{path}: {text} -> {new}");
                *text = new.to_owned();
                // What fits its place may be wrong only where it is used.
                let fits = new == "\"sum\"" || new.bytes().all(|b| b.is_ascii_digit());
                let names = if fits { Vec::new() } else { vec![path, parent] };
                change(what, names)
            }
            List(items) if items.is_empty() || rng.chance(20) => {
                *place = List(vec![place.clone()]);
                change(format!("{path}: in a list"), vec![path])
            }
            List(items) => {
                let at = some(rng, items.len());
                let what = ["cut", "without", "doubled", "turned"][some(rng, 4)];
                match what {
                    "cut" => items.truncate(at),
                    "without" => drop(items.remove(at)),
                    "doubled" => items.insert(at, items[at].clone()),
                    _ => items.reverse(),
                }
                change(format!("{path}: {what} at {at}"), Vec::new())
            }
            Object(fields) => {
                let at = some(rng, fields.len());
                let Some((key, value)) = fields.get(at).cloned() else {
                    return change("nothing".into(), Vec::new());
                };
                let what = ["without", "doubled", "renamed"][some(rng, 3)];
                let named = match what {
                    "without" => fields.remove(at).0,
                    "doubled" => {
                        fields.insert(at, (key.clone(), value));
                        key.clone()
                    }
                    _ => {
                        fields[at].0 = format!("{key}x");
                        key.clone()
                    }
                };
                // An absent field may be given a default that then does not fit the others.
                let names = if what == "without" { vec![named, path.clone()] } else { vec![named] };
                change(format!("{path}: {key} {what}"), names)
            }
        }
    }

    /// A random part, and how messages call it.
    fn pick(&mut self, rng: &mut Rng, path: String) -> (&mut Self, String) {
        let children = match self {
            Leaf(_) => 0,
            List(items) => items.len(),
            Object(fields) => fields.len(),
        };
        if children == 0 || rng.chance(15) {
            return (self, path);
        }
        let child = rng.below(children as u64) as usize;
        match self {
            Leaf(_) => unreachable!("no children"),
            List(items) => items[child].pick(rng, format!("{path}[{child}]")),
            Object(fields) => {
                let (key, value) = &mut fields[child];
                let dot = if path.is_empty() { "" } else { "." };
                value.pick(rng, format!("{path}{dot}{key}"))
            }
        }
    }
}
