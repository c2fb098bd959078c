//! What operators and moves cost.

/// How the rows of a result lie on the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Anywhere, in any order.
    Scattered,
    /// Rows of one key on one worker.
    Hashed,
    /// In the order of the key.
    Sorted,
}

/// A step of a query, with the numbers of rows that it is expected to see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operator {
    /// Reads a table of so many rows.
    Scan(f64),
    /// Brings so many rows into order, or leaves that to later steps.
    Order(f64),
    /// Joins so many rows with so many.
    Join(f64, f64),
    /// Groups so many rows into so many.
    Group(f64, f64),
}

/// Seconds, and bytes that are held to the end or worked in.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds.
    pub time_s: f64,
    /// Bytes held until the query ends.
    pub held_bytes: f64,
    /// Bytes worked in.
    pub working_bytes: f64,
}

/// A way to run an operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method {
    /// Its name.
    pub name: &'static str,
    /// How every input must lie.
    pub needs: Rows,
    /// How the output lies.
    pub gives: Rows,
    /// What it costs.
    pub cost: Cost,
}

/// A way to bring rows from one operator to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    /// Its name.
    pub name: &'static str,
    /// What it costs.
    pub cost: Cost,
}

const ROW_BYTES: f64 = 64.0;
const MIB: f64 = 1024.0 * 1024.0;

impl Operator {
    /// The ways to run it.
    pub fn methods(self) -> Vec<Method> {
        use Rows::{Hashed, Scattered, Sorted};
        let method = |name, needs, gives, time_s, held_bytes, working_bytes| Method {
            name,
            needs,
            gives,
            cost: Cost { time_s, held_bytes, working_bytes },
        };
        match self {
            Self::Scan(rows) => vec![
                method("sequential scan", Scattered, Scattered, rows * 1e-7, 0.0, MIB),
                method("index scan", Scattered, Sorted, rows * 5e-7, rows * 8.0, MIB / 4.0),
            ],
            Self::Order(rows) => {
                let sort_s = rows * rows.max(2.0).log2() * 5e-9;
                vec![
                    method("no sort", Scattered, Scattered, 0.0, 0.0, 0.0),
                    method("sort in memory", Scattered, Sorted, sort_s, 0.0, rows * ROW_BYTES),
                    method("sort on disk", Scattered, Sorted, 4.0 * sort_s, 0.0, 2.0 * MIB),
                ]
            }
            Self::Join(left, right) => {
                let table = right * 1.5 * ROW_BYTES;
                let pairs_s = left * right * 1e-10;
                vec![
                    method("hash join", Hashed, Hashed, (left + right) * 1e-7, table, MIB),
                    method("merge join", Sorted, Sorted, (left + right) * 2e-7, 0.0, MIB / 2.0),
                    method("nested loop", Scattered, Scattered, pairs_s, 0.0, MIB / 8.0),
                ]
            }
            Self::Group(rows, groups) => vec![
                method("hash group", Hashed, Hashed, rows * 1.5e-7, groups * ROW_BYTES, MIB),
                method("sorted group", Sorted, Sorted, rows * 1e-7, 0.0, MIB / 8.0),
            ],
        }
    }

    /// The rows that come out.
    pub fn rows(self) -> f64 {
        match self {
            Self::Scan(rows) | Self::Order(rows) => rows,
            Self::Join(left, right) => left.max(right),
            Self::Group(_, groups) => groups,
        }
    }
}

/// The ways to bring rows that lie in one way to where they lie in another; none if only a sort can
/// do that.
pub fn moves(rows: f64, gives: Rows, needs: Rows) -> Vec<Move> {
    let bytes = rows * ROW_BYTES;
    let way = |name, time_s, held_bytes, working_bytes| Move {
        name,
        cost: Cost { time_s, held_bytes, working_bytes },
    };
    match (gives, needs) {
        (_, Rows::Scattered) => vec![way("stay", 0.0, 0.0, 0.0)],
        (gives, needs) if gives == needs => vec![way("stay", 0.0, 0.0, 0.0)],
        (_, Rows::Hashed) => vec![
            way("spool and send", bytes / 4e9, bytes, MIB),
            way("send as they come", bytes / 1e9, 0.0, 4.0 * MIB),
        ],
        _ => Vec::new(),
    }
}
