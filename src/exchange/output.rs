//! Writing: a file appears whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};
use serde::Serialize;

use super::error::{FileError, Result};

const BUFFER: usize = 1 << 16;
/// Names tried for the file on the way.
const ATTEMPTS: u32 = 100;

/// Writes a document as JSON and a line break.
pub(super) fn document(mut writer: impl Write, document: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut writer, document)?;
    writer.write_all(b"\n")
}

/// Writes a document to a file; compressed if its name ends in `.gz`. Equal documents give equal
/// bytes.
pub(super) fn save(path: &Path, document: &impl Serialize) -> Result<()> {
    try_save(path, document).map_err(|error| FileError::io(path, error))
}

fn try_save(path: &Path, document: &impl Serialize) -> io::Result<()> {
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    // Behind a link the file that it leads to is replaced, not the link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    if fs::metadata(&target).is_ok_and(|data| !data.is_file()) {
        // A pipe or a device cannot be replaced; a directory is refused here.
        return fill(&OpenOptions::new().write(true).open(&target)?, document, packed);
    }
    let temporary = Temporary::beside(&target)?;
    fill(&temporary.file, document, packed)?;
    temporary.file.sync_all()?;
    temporary.rename(&target)
}

fn fill(file: &File, document: &impl Serialize, packed: bool) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(BUFFER, file);
    if packed {
        // Neither a time nor a name: the bytes depend on the document alone.
        let gzip = GzBuilder::new().write(file, Compression::new(6));
        // Numbers come one by one, and every piece costs the compressor a call.
        let mut text = BufWriter::with_capacity(BUFFER, gzip);
        self::document(&mut text, document)?;
        file = text.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?;
    } else {
        self::document(&mut file, document)?;
    }
    file.flush()
}

/// A file that is removed unless it is renamed.
struct Temporary {
    file: File,
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// A new file in the same folder, so that renaming it is one step.
    fn beside(target: &Path) -> io::Result<Self> {
        let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "this names no file");
        let name = target.file_name().ok_or_else(no_name)?;
        let mut tried = 0;
        loop {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}.{tried}.tmp", std::process::id()));
            let path = target.with_file_name(hidden);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Self { file, path, renamed: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < ATTEMPTS => {
                    tried += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn rename(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // Nothing can be done about a file that cannot be removed.
            let _ = fs::remove_file(&self.path);
        }
    }
}
