//! Reading: gzip or not, bounded, and errors that name the place.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::error::{FileError, Result};
use super::header::Object;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BUFFER: usize = 1 << 16;
/// Bytes between two looks at the caller.
const BYTES_PER_TICK: u64 = 4 << 20;

/// How a file is read.
///
/// Reading holds what the file describes and a small buffer: at most about 4 bytes for each byte of
/// text, so that `max_bytes` bounds memory too, for compressed files as well.
#[non_exhaustive]
pub struct ReadOptions<'a> {
    /// The most bytes of JSON, counted after unpacking: 1 GiB by default.
    pub max_bytes: u64,
    /// Called every few megabytes with the bytes read so far; breaking stops.
    pub watch: Option<&'a mut dyn FnMut(u64) -> ControlFlow<()>>,
}

impl Default for ReadOptions<'_> {
    fn default() -> Self {
        Self { max_bytes: 1 << 30, watch: None }
    }
}

impl<'a> ReadOptions<'a> {
    /// Sets [`max_bytes`](Self::max_bytes).
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Sets [`watch`](Self::watch).
    #[must_use]
    pub fn with_watch(mut self, watch: &'a mut dyn FnMut(u64) -> ControlFlow<()>) -> Self {
        self.watch = Some(watch);
        self
    }
}

/// Reads a file with a function that reads a stream.
pub(super) fn load<T>(path: &Path, read: impl FnOnce(File) -> Result<T>) -> Result<T> {
    let file = File::open(path).map_err(|error| FileError::io(path, error))?;
    read(file).map_err(|error| error.named(path))
}

/// One JSON document, and nothing after it.
pub(super) fn document<T: DeserializeOwned>(reader: impl Read, options: ReadOptions) -> Result<T> {
    let mut raw = BufReader::with_capacity(BUFFER, reader);
    // Before the first byte is looked at, so that a broken disk is not taken for a broken file.
    let head = raw.fill_buf().map_err(|source| FileError::Io { path: None, source })?;
    if head.starts_with(&GZIP_MAGIC) {
        parse(Bounded::new(MultiGzDecoder::new(raw), options))
    } else {
        parse(Bounded::new(raw, options))
    }
}

fn parse<T: DeserializeOwned, R: Read>(reader: Bounded<R>) -> Result<T> {
    let max_bytes = reader.max_bytes;
    let reader = BufReader::with_capacity(BUFFER, reader);
    let mut json = serde_json::Deserializer::from_reader(reader);
    let Object(value) = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let place = error.path().to_string();
        // The whole document is a dot to that crate.
        let place = if place == "." { String::new() } else { place };
        failure(place, error.into_inner(), max_bytes)
    })?;
    json.end().map_err(|error| failure(String::new(), error, max_bytes))?;
    Ok(value)
}

fn failure(place: String, error: serde_json::Error, max_bytes: u64) -> FileError {
    match error.classify() {
        Category::Io => stream_failure(place, io::Error::from(error), max_bytes),
        Category::Data => FileError::at(place, error),
        Category::Eof => FileError::at(
            place,
            format!("the document ends too early ({error}): the file was cut short, copy it again"),
        ),
        Category::Syntax => FileError::at(
            place,
            format!("no valid JSON ({error}): the file is damaged, or of another kind"),
        ),
    }
}

fn stream_failure(place: String, error: io::Error, max_bytes: u64) -> FileError {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(Halt::Limit) => FileError::at(
            place,
            format!(
                "more than max_bytes = {max_bytes} bytes of text: raise max_bytes if you trust \
                 the file"
            ),
        ),
        Some(Halt::Stopped) => FileError::Stopped { path: None },
        None if error.raw_os_error().is_some() => FileError::Io { path: None, source: error },
        None => FileError::at(
            place,
            format!("damaged or truncated gzip data ({error}): copy the file again"),
        ),
    }
}

/// Why a stream ends early.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Halt {
    #[error("the limit is reached")]
    Limit,
    #[error("stopped")]
    Stopped,
}

/// A stream that ends with an error after a number of bytes, and lets the caller look in between.
struct Bounded<'a, R> {
    inner: R,
    max_bytes: u64,
    read: u64,
    next_tick: u64,
    watch: Option<&'a mut dyn FnMut(u64) -> ControlFlow<()>>,
}

impl<'a, R> Bounded<'a, R> {
    fn new(inner: R, options: ReadOptions<'a>) -> Self {
        let ReadOptions { max_bytes, watch } = options;
        Self { inner, max_bytes, read: 0, next_tick: 0, watch }
    }
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read >= self.next_tick {
            self.next_tick = self.read + BYTES_PER_TICK;
            if self.watch.as_mut().is_some_and(|watch| watch(self.read).is_break()) {
                return Err(io::Error::other(Halt::Stopped));
            }
        }
        let count = self.inner.read(buffer)?;
        self.read += count as u64;
        if self.read > self.max_bytes {
            return Err(io::Error::other(Halt::Limit));
        }
        Ok(count)
    }
}
