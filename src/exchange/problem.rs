//! Cost graphs as documents.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::Stored;
use super::error::{FileError, Result};
use super::header::{Format, Kind, Object, Version};
use super::input::{self, ReadOptions};
use super::numbers::{number, numbers, some_numbers};
use super::output;
use crate::ids::{FactorId, NodeId, TableId};
use crate::problem::{Aggregate, CostGraph, Table};
use crate::units::Resolution;

/// Problems.
struct ProblemKind;

impl Kind for ProblemKind {
    const NAME: &'static str = "tensoropt-problem";
    const VERSION: u64 = 1;
}

/// Writes a problem to a file; compressed if its name ends in `.gz`.
///
/// The file appears whole or not at all. Equal problems give equal bytes.
///
/// # Arguments
///
/// * `resolution`: the size of one step of each objective, if the costs have units.
///
/// # Errors
///
/// [`FileError::Io`]; [`FileError::Format`] if `resolution` has not one entry per objective.
pub fn save_problem(
    path: impl AsRef<Path>,
    graph: &CostGraph,
    resolution: Option<&[Resolution]>,
) -> Result<()> {
    let path = path.as_ref();
    let document = ProblemOut::new(graph, resolution).map_err(|error| error.named(path))?;
    output::save(path, &document)
}

/// Writes a problem as JSON.
///
/// # Errors
///
/// As [`save_problem`].
pub fn write_problem(
    writer: impl Write,
    graph: &CostGraph,
    resolution: Option<&[Resolution]>,
) -> Result<()> {
    let document = ProblemOut::new(graph, resolution)?;
    output::document(writer, &document).map_err(|source| FileError::Io { path: None, source })
}

/// Reads a problem from a file that [`save_problem`] wrote, compressed or not.
///
/// # Returns
///
/// The same graph: tables, nodes and factors in the same order.
///
/// # Errors
///
/// [`FileError::Io`]; [`FileError::Format`] if the content is no problem, with the place;
/// [`FileError::Stopped`].
pub fn load_problem(path: impl AsRef<Path>, options: ReadOptions) -> Result<Stored<CostGraph>> {
    input::load(path.as_ref(), |file: File| read_problem(file, options))
}

/// Reads a problem, compressed or not.
///
/// # Errors
///
/// As [`load_problem`].
pub fn read_problem(reader: impl Read, options: ReadOptions) -> Result<Stored<CostGraph>> {
    let document: ProblemIn = input::document(reader, options)?;
    document.problem.0.build()
}

#[derive(Serialize)]
struct ProblemOut<'a> {
    format: Format<ProblemKind>,
    version: Version<ProblemKind>,
    problem: GraphOut<'a>,
}

impl<'a> ProblemOut<'a> {
    fn new(graph: &'a CostGraph, resolution: Option<&'a [Resolution]>) -> Result<Self> {
        let problem = GraphOut::new(graph, resolution)?;
        Ok(Self { format: Format::default(), version: Version::default(), problem })
    }
}

/// A graph as it is written.
#[derive(Serialize)]
pub(super) struct GraphOut<'a> {
    #[serde(serialize_with = "aggregates_out")]
    aggregate: &'a CostGraph,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolution: Option<Vec<f64>>,
    #[serde(serialize_with = "tables_out")]
    tables: &'a CostGraph,
    #[serde(serialize_with = "nodes_out")]
    nodes: &'a CostGraph,
    #[serde(serialize_with = "factors_out")]
    factors: &'a CostGraph,
}

impl<'a> GraphOut<'a> {
    pub(super) fn new(graph: &'a CostGraph, resolution: Option<&[Resolution]>) -> Result<Self> {
        if let Some(resolution) = resolution {
            check_resolution(resolution.len(), graph.objectives())?;
        }
        let resolution =
            resolution.map(|steps| steps.iter().map(|step| step.step()).collect::<Vec<_>>());
        Ok(Self { aggregate: graph, resolution, tables: graph, nodes: graph, factors: graph })
    }
}

#[derive(Serialize)]
struct TableOut<'a> {
    shape: &'a [u32],
    #[serde(skip_serializing_if = "Option::is_none")]
    alternatives: Option<Vec<u32>>,
    costs: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    factor: Option<f64>,
}

#[derive(Serialize)]
struct FactorOut {
    scope: Vec<u32>,
    table: u32,
}

fn aggregates_out<S: Serializer>(graph: &CostGraph, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_seq(graph.aggregates().iter().map(|aggregate| match aggregate {
        Aggregate::Sum => AggregateName::Sum,
        Aggregate::Max => AggregateName::Max,
    }))
}

fn tables_out<S: Serializer>(graph: &CostGraph, to: S) -> std::result::Result<S::Ok, S::Error> {
    let ids = (0..graph.tables() as u32).map(TableId);
    // Every number below the count is a table.
    to.collect_seq(ids.filter_map(|id| graph.table(id).ok()).map(|table| {
        let counts = table.offsets().windows(2).map(|pair| pair[1] - pair[0]);
        let plain = counts.clone().all(|count| count == 1);
        TableOut {
            shape: table.dims(),
            alternatives: (!plain).then(|| counts.collect()),
            costs: table.costs(),
            factor: (table.factor() != 1.0).then(|| table.factor()),
        }
    }))
}

fn nodes_out<S: Serializer>(graph: &CostGraph, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_seq((0..graph.nodes() as u32).map(|node| graph.node_table_id(NodeId(node)).0))
}

fn factors_out<S: Serializer>(graph: &CostGraph, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_seq((0..graph.factors() as u32).map(FactorId).map(|factor| FactorOut {
        scope: graph.scope(factor).iter().map(|node| node.0).collect(),
        table: graph.factor_table_id(factor).0,
    }))
}

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum AggregateName {
    Sum,
    Max,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProblemIn {
    #[serde(rename = "format")]
    _format: Format<ProblemKind>,
    #[serde(rename = "version")]
    _version: Version<ProblemKind>,
    problem: Object<GraphIn>,
}

/// A graph as it is read, before anything is known to fit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GraphIn {
    aggregate: Vec<AggregateName>,
    #[serde(default)]
    resolution: Option<Vec<f64>>,
    tables: Vec<Object<TableIn>>,
    #[serde(deserialize_with = "numbers")]
    nodes: Vec<u32>,
    factors: Vec<Object<FactorIn>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableIn {
    #[serde(deserialize_with = "numbers")]
    shape: Vec<u32>,
    #[serde(default, deserialize_with = "some_numbers")]
    alternatives: Option<Vec<u32>>,
    #[serde(deserialize_with = "numbers")]
    costs: Vec<u64>,
    #[serde(default)]
    factor: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FactorIn {
    #[serde(deserialize_with = "numbers")]
    scope: Vec<u32>,
    #[serde(deserialize_with = "number")]
    table: u32,
}

impl GraphIn {
    /// The graph, once everything fits.
    pub(super) fn build(self) -> Result<Stored<CostGraph>> {
        let at = |place: String| move |error: crate::Error| FileError::at(place, error);
        let aggregates: Vec<Aggregate> = self.aggregate.into_iter().map(Aggregate::from).collect();
        let mut graph = CostGraph::new(&aggregates).map_err(at("problem.aggregate".to_owned()))?;
        let resolution = self.resolution.map(|steps| resolution(&steps, aggregates.len()));
        let resolution = resolution.transpose()?;
        let mut tables = Vec::with_capacity(self.tables.len());
        for (i, Object(table)) in self.tables.into_iter().enumerate() {
            let place = || format!("problem.tables[{i}]");
            let table = table.build(aggregates.len(), place)?;
            tables.push(graph.add_table(table).map_err(at(place()))?);
        }
        let find = |table: u32, place: &dyn Fn() -> String| {
            let found = tables.get(table as usize).copied();
            let (count, none) = (tables.len(), "the file has");
            let what = || format!("there is no table {table}: {none} {count}, counted from 0");
            found.ok_or_else(|| FileError::at(place(), what()))
        };
        for (i, table) in self.nodes.into_iter().enumerate() {
            let place = || format!("problem.nodes[{i}]");
            graph.add_node(find(table, &place)?).map_err(at(place()))?;
        }
        for (i, Object(FactorIn { scope, table })) in self.factors.into_iter().enumerate() {
            let table = find(table, &|| format!("problem.factors[{i}].table"))?;
            if let Some(j) = scope.iter().position(|&node| node as usize >= graph.nodes()) {
                return Err(FileError::at(
                    format!("problem.factors[{i}].scope[{j}]"),
                    format!(
                        "there is no node {}: the file has {}, counted from 0",
                        scope[j],
                        graph.nodes()
                    ),
                ));
            }
            let scope: Vec<NodeId> = scope.into_iter().map(NodeId).collect();
            let added = graph.add_factor(&scope, table);
            added.map_err(at(format!("problem.factors[{i}]")))?;
        }
        Ok(Stored { value: graph, resolution })
    }
}

impl TableIn {
    fn build(self, objectives: usize, place: impl Fn() -> String) -> Result<Table> {
        let Self { shape, alternatives, costs, factor } = self;
        let table = match alternatives {
            None => Table::dense(&shape, objectives, &costs, None),
            Some(counts) => {
                // Tables of more cells than fit are refused below.
                let cells = shape.iter().try_fold(1u32, |cells, &dim| cells.checked_mul(dim));
                if let Some(cells) = cells.filter(|&cells| cells as usize != counts.len()) {
                    let what = format!(
                        "{} entries, expected one per cell of shape {shape:?} ({cells})",
                        counts.len()
                    );
                    return Err(FileError::at(format!("{}.alternatives", place()), what));
                }
                let offsets = offsets(&counts, || format!("{}.alternatives", place()))?;
                Table::with_alternatives(&shape, objectives, &offsets, &costs)
            }
        };
        let table = table.and_then(|table| table.with_factor(factor.unwrap_or(1.0)));
        table.map_err(|error| FileError::at(place(), error))
    }
}

/// Where each cell's alternatives begin, and the end.
fn offsets(counts: &[u32], place: impl Fn() -> String) -> Result<Vec<u32>> {
    let mut offsets = Vec::with_capacity(counts.len() + 1);
    let mut end = 0u32;
    offsets.push(end);
    for &count in counts {
        end = end.checked_add(count).ok_or_else(|| {
            FileError::at(place(), "more than 2^32 - 1 alternatives: give each cell fewer")
        })?;
        offsets.push(end);
    }
    Ok(offsets)
}

fn resolution(steps: &[f64], objectives: usize) -> Result<Vec<Resolution>> {
    check_resolution(steps.len(), objectives)?;
    let step = |(i, &step): (usize, &f64)| {
        Resolution::new(step)
            .map_err(|error| FileError::at(format!("problem.resolution[{i}]"), error))
    };
    steps.iter().enumerate().map(step).collect()
}

fn check_resolution(entries: usize, objectives: usize) -> Result<()> {
    if entries == objectives {
        return Ok(());
    }
    Err(FileError::at(
        "problem.resolution",
        format!("{entries} entries, expected one per objective ({objectives})"),
    ))
}

impl From<AggregateName> for Aggregate {
    fn from(name: AggregateName) -> Self {
        match name {
            AggregateName::Sum => Self::Sum,
            AggregateName::Max => Self::Max,
        }
    }
}
