//! What is to be planned.

use std::rc::Rc;

use tensoropt::Contraction;

use crate::operators::Operator;

/// Operators, and which of them feed which.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub(crate) steps: Vec<Operator>,
    /// From, to.
    pub(crate) feeds: Vec<(usize, usize)>,
    pub(crate) views: Vec<Use>,
}

/// A query made to be used in others, planned up to its ends.
#[derive(Debug)]
pub struct View {
    pub(crate) query: Query,
    /// The steps that are also steps of the query around it: first and last.
    pub(crate) ends: [usize; 2],
    pub(crate) block: Contraction,
}

/// A view in its place, between two steps.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub view: Rc<View>,
    pub between: [usize; 2],
}

impl Query {
    /// An empty query.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an operator and what feeds it; returns its number.
    pub fn step(&mut self, operator: Operator, inputs: &[usize]) -> usize {
        let step = self.steps.len();
        self.steps.push(operator);
        self.feeds.extend(inputs.iter().map(|&input| (input, step)));
        step
    }

    /// Puts a view between two steps, which must be the same operators as the view's ends.
    pub fn view(&mut self, view: &Rc<View>, between: [usize; 2]) {
        self.views.push(Use { view: Rc::clone(view), between });
    }

    /// Number of operators, without those inside views.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// The operator of a step.
    ///
    /// # Panics
    ///
    /// If there is no such step.
    pub fn operator(&self, step: usize) -> Operator {
        self.steps[step]
    }

    /// Whether there is no operator.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The same query with the operators of views as its own. Those of the query keep their
    /// numbers, those of each view follow in the view's order, without its ends.
    pub fn inlined(&self) -> Self {
        let mut flat = Self { views: Vec::new(), ..self.clone() };
        for Use { view, between } in &self.views {
            let mut number = vec![0; view.query.len()];
            for (step, &operator) in view.query.steps.iter().enumerate() {
                number[step] = match view.ends.iter().position(|&end| end == step) {
                    Some(end) => between[end],
                    None => flat.step(operator, &[]),
                };
            }
            let feeds = view.query.feeds.iter().map(|&(from, to)| (number[from], number[to]));
            flat.feeds.extend(feeds);
        }
        flat
    }
}
