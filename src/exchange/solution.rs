//! Solutions as documents, with the problem that they solve.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use serde::de::Deserializer;
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::Stored;
use super::error::{FileError, Result};
use super::header::{Format, Kind, Object, Version};
use super::input::{self, ReadOptions};
use super::numbers::{factor, factor_or_null, number, number_or_null, numbers, some_numbers};
use super::output;
use super::problem::{GraphIn, GraphOut};
use crate::contraction::{Choice, Expand};
use crate::plan::{Plan, check};
use crate::problem::CostGraph;
use crate::solve::{Certificate, Counters, Least, Peak, Quantity, Solution, SolveOptions, Status};
use crate::units::Resolution;

/// Solutions.
struct SolutionKind;

impl Kind for SolutionKind {
    const NAME: &'static str = "tensoropt-solution";
    const VERSION: u64 = 1;
}

/// Writes a solution with all plans and its problem to a file; compressed if its name ends in
/// `.gz`.
///
/// The file appears whole or not at all. Equal solutions give equal bytes, for any number of
/// threads.
///
/// # Errors
///
/// [`FileError::Io`]; [`FileError::Format`] if `resolution` has not one entry per objective, or a
/// plan fails its self-check.
pub fn save_solution(
    path: impl AsRef<Path>,
    solution: &Solution,
    resolution: Option<&[Resolution]>,
) -> Result<()> {
    let path = path.as_ref();
    let plans = solution.plans().map_err(|error| FileError::at("points", error).named(path))?;
    let document = SolutionOut::new(solution, resolution, &plans);
    output::save(path, &document.map_err(|error| error.named(path))?)
}

/// Writes a solution as JSON.
///
/// # Errors
///
/// As [`save_solution`].
pub fn write_solution(
    writer: impl Write,
    solution: &Solution,
    resolution: Option<&[Resolution]>,
) -> Result<()> {
    let plans = solution.plans().map_err(|error| FileError::at("points", error))?;
    let document = SolutionOut::new(solution, resolution, &plans)?;
    output::document(writer, &document).map_err(|source| FileError::Io { path: None, source })
}

/// Reads a solution from a file that [`save_solution`] wrote, compressed or not.
///
/// Every plan's cost is added up from the problem in the file and compared with its point.
///
/// # Errors
///
/// [`FileError::Io`]; [`FileError::Format`] if the content is no solution, with the place;
/// [`FileError::Stopped`].
pub fn load_solution(path: impl AsRef<Path>, options: ReadOptions) -> Result<Stored<Solution>> {
    input::load(path.as_ref(), |file: File| read_solution(file, options))
}

/// Reads a solution, compressed or not.
///
/// # Errors
///
/// As [`load_solution`].
pub fn read_solution(reader: impl Read, options: ReadOptions) -> Result<Stored<Solution>> {
    input::document::<SolutionIn>(reader, options)?.build()
}

#[derive(Serialize)]
struct SolutionOut<'a> {
    format: Format<SolutionKind>,
    version: Version<SolutionKind>,
    problem: GraphOut<'a>,
    #[serde(with = "StatusName")]
    status: Status,
    #[serde(with = "factor")]
    factor: f64,
    #[serde(with = "CertificateFields")]
    certificate: Certificate,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak: Option<PeakEntry>,
    least: Vec<LeastEntry>,
    #[serde(with = "CounterFields")]
    counters: Counters,
    #[serde(serialize_with = "points_out")]
    points: &'a [Plan],
}

impl<'a> SolutionOut<'a> {
    fn new(
        solution: &'a Solution,
        resolution: Option<&[Resolution]>,
        plans: &'a [Plan],
    ) -> Result<Self> {
        Ok(Self {
            format: Format::default(),
            version: Version::default(),
            problem: GraphOut::new(solution.graph(), resolution)?,
            status: solution.status(),
            factor: solution.factor(),
            certificate: solution.certificate(),
            peak: solution.peak_parts().map(PeakEntry),
            least: solution.least().iter().copied().map(LeastEntry::from).collect(),
            counters: solution.counters(),
            points: plans,
        })
    }
}

#[derive(Serialize)]
struct PointOut<'a> {
    costs: &'a [u64],
    configurations: &'a [u32],
    #[serde(skip_serializing_if = "all_first")]
    node_alternatives: &'a [u32],
    #[serde(skip_serializing_if = "all_first")]
    factor_alternatives: &'a [u32],
}

fn all_first(alternatives: &&[u32]) -> bool {
    alternatives.iter().all(|&alternative| alternative == 0)
}

fn points_out<S: Serializer>(plans: &[Plan], to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_seq(plans.iter().map(|plan| PointOut {
        costs: &plan.cost,
        configurations: &plan.configurations,
        node_alternatives: &plan.node_alternatives,
        factor_alternatives: &plan.factor_alternatives,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SolutionIn {
    #[serde(rename = "format")]
    _format: Format<SolutionKind>,
    #[serde(rename = "version")]
    _version: Version<SolutionKind>,
    problem: Object<GraphIn>,
    #[serde(with = "StatusName")]
    status: Status,
    #[serde(with = "factor")]
    factor: f64,
    #[serde(with = "CertificateFields")]
    certificate: Certificate,
    #[serde(default)]
    peak: Option<PeakEntry>,
    least: Vec<Object<LeastEntry>>,
    #[serde(with = "CounterFields")]
    counters: Counters,
    points: Vec<Object<PointIn>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PointIn {
    #[serde(deserialize_with = "numbers")]
    costs: Vec<u64>,
    #[serde(deserialize_with = "numbers")]
    configurations: Vec<u32>,
    #[serde(default, deserialize_with = "some_numbers")]
    node_alternatives: Option<Vec<u32>>,
    #[serde(default, deserialize_with = "some_numbers")]
    factor_alternatives: Option<Vec<u32>>,
}

impl SolutionIn {
    /// The solution, once everything fits and every plan costs what its point says.
    fn build(self) -> Result<Stored<Solution>> {
        let Stored { value: graph, resolution } = self.problem.0.build()?;
        let peak = self.peak.map(|PeakEntry(peak)| peak);
        if let Some(peak) = peak {
            let fits = SolveOptions::default().with_peak(peak).validate(&graph);
            fits.map_err(|error| FileError::at("peak", error))?;
            let step = |objective: usize| resolution.as_ref().map(|steps| steps[objective]);
            if step(peak.resident) != step(peak.transient) {
                let what = "adds objectives of different resolutions up, expected the same one";
                return Err(FileError::at("peak", what));
            }
        }
        let least = self.least.into_iter().enumerate();
        let least = least
            .map(|(i, Object(entry))| entry.build(i, &graph, peak))
            .collect::<Result<Vec<_>>>()?;
        let points = u32::try_from(self.points.len())
            .map_err(|_| FileError::at("points", "more than 2^32 - 1 points"))?;
        let mut costs = Vec::with_capacity(self.points.len() * graph.objectives());
        let mut choices = Vec::with_capacity(self.points.len());
        for (i, Object(point)) in self.points.into_iter().enumerate() {
            costs.extend_from_slice(&point.costs);
            choices.push(point.build(i, &graph)?);
        }
        let solution = Solution {
            graph,
            threads: None,
            status: self.status,
            certificate: self.certificate,
            factor: self.factor,
            counters: self.counters,
            peak,
            costs,
            origins: (0..points).map(|point| (0, point)).collect(),
            traces: vec![Arc::new(StoredChoices(choices))],
            least,
        };
        Ok(Stored { value: solution, resolution })
    }
}

impl PointIn {
    fn build(self, index: usize, graph: &CostGraph) -> Result<Choice> {
        let place = || format!("points[{index}]");
        let length = |name: &str, got: usize, expected: usize, of: &str| {
            if got == expected {
                return Ok(());
            }
            let what = format!("{got} entries, expected one per {of} ({expected})");
            Err(FileError::at(format!("{}.{name}", place()), what))
        };
        let (nodes, factors) = (graph.nodes(), graph.factors());
        let choice = Choice {
            configurations: self.configurations,
            node_alternatives: self.node_alternatives.unwrap_or_else(|| vec![0; nodes]),
            factor_alternatives: self.factor_alternatives.unwrap_or_else(|| vec![0; factors]),
        };
        length("costs", self.costs.len(), graph.objectives(), "objective")?;
        length("configurations", choice.configurations.len(), nodes, "node")?;
        length("node_alternatives", choice.node_alternatives.len(), nodes, "node")?;
        length("factor_alternatives", choice.factor_alternatives.len(), factors, "factor")?;
        match check(graph, index, &self.costs, choice.clone()) {
            Ok(_) => Ok(choice),
            Err(crate::Error::Mismatch { readded: Some(cost), .. }) => Err(FileError::at(
                place(),
                format!(
                    "its plan costs {cost:?} by the problem in this file, but the point says \
                     {:?}: the file was changed, solve the problem again",
                    self.costs
                ),
            )),
            Err(_) => Err(FileError::at(
                place(),
                "its plan names a configuration or an alternative that the problem in this file \
                 does not have: the file was changed, solve the problem again",
            )),
        }
    }
}

/// Plans that are there already.
struct StoredChoices(Vec<Choice>);

impl Expand for StoredChoices {
    fn expand(&self, position: u32, choice: &mut Choice) -> crate::Result<()> {
        choice.clone_from(&self.0[position as usize]);
        Ok(())
    }

    fn expand_all(&self, positions: &[u32], _blank: &Choice) -> crate::Result<Vec<Choice>> {
        Ok(positions.iter().map(|&position| self.0[position as usize].clone()).collect())
    }
}

#[derive(Deserialize, Serialize)]
#[serde(remote = "Status", rename_all = "snake_case")]
enum StatusName {
    Optimal,
    Epsilon,
    Heuristic,
    Infeasible,
    TimeLimit,
    WorkLimit,
    Stopped,
}

#[derive(Deserialize, Serialize)]
#[serde(remote = "Certificate", deny_unknown_fields)]
struct CertificateFields {
    #[serde(with = "factor")]
    a_priori: f64,
    #[serde(with = "factor_or_null")]
    certified: Option<f64>,
    #[serde(deserialize_with = "number")]
    weights: usize,
}

#[derive(Deserialize, Serialize)]
#[serde(remote = "Counters", deny_unknown_fields)]
struct CounterFields {
    passes: u64,
    tables: u64,
    reused: u64,
    cells: u64,
    pairs: u64,
    visited: u64,
    points: u64,
    largest: u64,
    // They belong to a run on a machine, not to the answer.
    #[serde(skip)]
    peak_bytes: u64,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
struct PeakEntry(#[serde(with = "PeakFields")] Peak);

#[derive(Deserialize, Serialize)]
#[serde(remote = "Peak", deny_unknown_fields)]
struct PeakFields {
    #[serde(deserialize_with = "number")]
    resident: usize,
    #[serde(deserialize_with = "number")]
    transient: usize,
    #[serde(deserialize_with = "number_or_null")]
    cap: Option<u64>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct LeastEntry {
    #[serde(with = "quantity")]
    quantity: Quantity,
    #[serde(deserialize_with = "number")]
    cap: u64,
    #[serde(deserialize_with = "number_or_null")]
    reachable: Option<u64>,
}

impl From<Least> for LeastEntry {
    fn from(Least { quantity, cap, reachable }: Least) -> Self {
        Self { quantity, cap, reachable }
    }
}

impl LeastEntry {
    fn build(self, index: usize, graph: &CostGraph, peak: Option<Peak>) -> Result<Least> {
        let Self { quantity, cap, reachable } = self;
        let known = match quantity {
            Quantity::Objective(objective) => objective < graph.objectives(),
            Quantity::Peak => peak.is_some(),
        };
        if known {
            return Ok(Least { quantity, cap, reachable });
        }
        Err(FileError::at(
            format!("least[{index}].quantity"),
            format!(
                "the problem has no {quantity:?}, expected an objective below {}, or \"peak\" if \
                 the file has one",
                graph.objectives()
            ),
        ))
    }
}

/// An objective's number, or the word for the peak.
mod quantity {
    use super::{Deserialize, Deserializer, Quantity, Serializer};

    const PEAK: &str = "peak";

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Entry {
        Objective(u32),
        Word(String),
    }

    pub(super) fn serialize<S: Serializer>(value: &Quantity, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Quantity::Objective(objective) => to.serialize_u64(*objective as u64),
            Quantity::Peak => to.serialize_str(PEAK),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Quantity, D::Error> {
        match Entry::deserialize(from) {
            Ok(Entry::Objective(objective)) => Ok(Quantity::Objective(objective as usize)),
            Ok(Entry::Word(word)) if word == PEAK => Ok(Quantity::Peak),
            _ => Err(super::no_quantity()),
        }
    }
}

fn no_quantity<E: serde::de::Error>() -> E {
    E::custom("expected the number of an objective, or \"peak\"")
}
