"""Versioned JSON documents: written atomically and reproducibly, read with suspicion."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tensoropt.errors import FileFormatError, TensorOptError

__all__ = ["Reader", "damage_named", "peek_format", "read_document", "to_json", "write_document"]

GZIP_MAGIC = b"\x1f\x8b"


def write_document(
    path: str | PathLike[str], document: Mapping[str, Any], *, indent: int | None
) -> None:
    """Write a document as JSON; compressed if the name ends in ``.gz``.

    Equal documents give equal bytes. The file appears whole or not at all.
    """
    target = Path(path)
    data = (to_json(document, indent) + "\n").encode()
    if target.suffix == ".gz":
        data = gzip.compress(data, compresslevel=6, mtime=0)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", os.fspath(target.parent))
    try:
        _replace(target, data)
    except OSError as error:  # said of the file that was asked for, not of one on the way to it
        raise OSError(error.errno, error.strerror, os.fspath(target)) from error


def _replace(target: Path, data: bytes) -> None:
    if target.exists() and not target.is_file():  # a pipe or a device cannot be replaced
        target.write_bytes(data)
        return
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # mkstemp makes files private; a result is as readable as any other new file.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def to_json(value: Any, indent: int | None = 1) -> str:
    """Return values as JSON text, numpy's numbers included."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, indent=indent, separators=separators, allow_nan=False, default=_plain)


def peek_format(path: str | PathLike[str]) -> str | None:
    """Return the format that a file says it has, None if it is no document of ours.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    with open(path, "rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    try:
        with gzip.open(path) if packed else open(path, "rb") as source:
            head = source.read(256).decode(errors="replace")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return None
    # Documents are written with these two fields first.
    match = re.match(r'\s*\{\s*"format"\s*:\s*"([^"]*)"', head)
    return match.group(1) if match else None


def read_document(path: str | PathLike[str], kind: str, version: int) -> Reader:
    """Read a document that :func:`write_document` wrote.

    Parameters
    ----------
    path : path-like
    kind : str
        Expected value of the field ``format``.
    version : int
        Newest version that is understood.

    Raises
    ------
    OSError
        If the file cannot be read.
    FileFormatError
        If it is not JSON, of another kind, or of an unknown version.
    """
    name = os.fspath(path)
    data = Path(path).read_bytes()
    try:
        if data[:2] == GZIP_MAGIC:
            data = gzip.decompress(data)
        document = json.loads(data)
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"{name}: damaged or truncated gzip data ({error})") from None
    except (ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{name}: not JSON, or damaged or truncated ({error}); expected a '{kind}' file"
        ) from None
    found = document.get("format") if isinstance(document, dict) else None
    if found != kind:
        what = f"a '{found}' file" if isinstance(found, str) else "some other JSON"
        raise FileFormatError(f"{name}: {what}, expected a '{kind}' file")
    reader = Reader(document, name)
    written = reader.integer("version")
    if written < 1:
        raise reader.fail("version", f"an integer from 1 to {version}")
    if written > version:
        raise FileFormatError(
            f"{name}: version {written} of the format '{kind}', this release reads up to "
            f"{version}: use a newer release of tensoropt"
        )
    return reader


@contextmanager
def damage_named(where: str) -> Iterator[None]:
    """Turn whatever values that no check foresaw lead to into a complaint about the file.

    Parameters
    ----------
    where : str
        The file.

    Raises
    ------
    FileFormatError
    """
    try:
        yield
    except TensorOptError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{where}: a value is out of range or of the wrong kind ({error}): the file was "
            "changed or damaged; save it again"
        ) from error


class Reader:
    """Typed access to the fields of a JSON object; every complaint names the field.

    Parameters
    ----------
    value : Any
        What should be a JSON object.
    where : str
        The file, and the place in it.
    """

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FileFormatError(f"{where}: expected an object, found {_kind(value)}")
        self.value: dict[str, Any] = value
        self.where = where

    def fail(self, field: str, expected: str) -> FileFormatError:
        """Return the error for a field that is not as expected."""
        if field not in self.value:
            return FileFormatError(f"{self.where}: field '{field}' is missing, expected {expected}")
        return FileFormatError(
            f"{self.where}: field '{field}' is {_kind(self.value[field])}, expected {expected}"
        )

    def text(self, field: str) -> str:
        """Read a string."""
        value = self.value.get(field)
        if not isinstance(value, str):
            raise self.fail(field, "a string")
        return value

    def integer(self, field: str, least: int = 0) -> int:
        """Read an integer that is at least ``least``."""
        value = self.value.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.fail(field, f"an integer >= {least}")
        return value

    def optional_integer(self, field: str, least: int = 0) -> int | None:
        """Read an integer or null."""
        if field in self.value and self.value[field] is None:
            return None
        return self.integer(field, least)

    def number(self, field: str) -> float:
        """Read a number that is not negative."""
        value = self.value.get(field)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value < math.inf
        ):
            raise self.fail(field, "a finite number >= 0")
        return float(value)

    def array(self, field: str) -> list[Any]:
        """Read a list of anything."""
        value = self.value.get(field)
        if not isinstance(value, list):
            raise self.fail(field, "a list")
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        """Read a list of strings."""
        value = self.value.get(field)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.fail(field, "a list of strings")
        return tuple(value)

    def mapping(self, field: str) -> dict[str, Any]:
        """Read an object as it is."""
        value = self.value.get(field)
        if not isinstance(value, dict):
            raise self.fail(field, "an object")
        return value

    def object(self, field: str) -> Reader:
        """Read an object, field by field."""
        return Reader(self.mapping(field), f"{self.where}: {field}")

    def objects(self, field: str) -> list[Reader]:
        """Read a list of objects."""
        return [
            Reader(value, f"{self.where}: {field}[{i}]")
            for i, value in enumerate(self.array(field))
        ]


def _plain(value: Any) -> Any:
    """Turn numpy's numbers into Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be written to a file")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    return "a list" if isinstance(value, list) else "an object"
