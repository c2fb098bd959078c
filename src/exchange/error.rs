//! What can be wrong with a file: [`FileError`].

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of reading or writing a file.
pub(super) type Result<T> = std::result::Result<T, FileError>;

/// The longest piece of a message that comes out of a file, in characters.
const LONGEST: usize = 200;

/// A file that cannot be read or written, or is not what it says it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system refused to read or write.
    #[error("{}{source}", prefix(.path.as_deref()))]
    Io {
        /// The file, if it has a name.
        path: Option<PathBuf>,
        /// What the system said.
        source: io::Error,
    },
    /// The content is damaged, or not what is expected.
    #[error("{}{place}{}{what}", prefix(.path.as_deref()), if .place.is_empty() { "" } else { ": " })]
    Format {
        /// The file, if it has a name.
        path: Option<PathBuf>,
        /// The place in the JSON document, such as `problem.tables[3].costs[17]`; empty for the
        /// whole.
        place: String,
        /// What was found, what was expected, and what to do.
        what: String,
    },
    /// The caller asked to stop.
    #[error("{}reading was stopped", prefix(.path.as_deref()))]
    Stopped {
        /// The file, if it has a name.
        path: Option<PathBuf>,
    },
}

impl FileError {
    /// A complaint about a place in a document.
    pub(super) fn at(place: impl Into<String>, what: impl fmt::Display) -> Self {
        Self::Format {
            path: None,
            place: one_line(&place.into()),
            what: one_line(&what.to_string()),
        }
    }

    /// The system's refusal.
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: Some(path.into()), source }
    }

    /// The error with the name of the file.
    pub(super) fn named(mut self, name: &Path) -> Self {
        let (Self::Io { path, .. } | Self::Format { path, .. } | Self::Stopped { path }) =
            &mut self;
        *path = Some(name.into());
        self
    }
}

fn prefix(path: Option<&Path>) -> String {
    path.map(|path| format!("{}: ", path.display())).unwrap_or_default()
}

/// Text without line breaks, and shortened in the middle if it is long: a file may quote anything.
pub(super) fn one_line(text: &str) -> String {
    let line: Vec<char> =
        text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if line.len() <= 2 * LONGEST {
        return line.into_iter().collect();
    }
    let (head, tail) = (&line[..LONGEST], &line[line.len() - LONGEST..]);
    format!("{} ... {}", head.iter().collect::<String>(), tail.iter().collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_quotes_are_shortened() {
        let line = one_line(&format!("found \"{}\", expected\na number", "x".repeat(1 << 20)));
        assert!(line.len() < 3 * LONGEST);
        assert!(line.starts_with("found \"xxx") && line.ends_with("expected\u{fffd}a number"));
    }

    #[test]
    fn messages_name_what_is_known() {
        let error = FileError::at("nodes[3]", "expected a table");
        assert_eq!(error.to_string(), "nodes[3]: expected a table");
        assert_eq!(
            error.named(Path::new("a.json")).to_string(),
            "a.json: nodes[3]: expected a table"
        );
        assert_eq!(FileError::at("", "cut short").to_string(), "cut short");
    }
}
