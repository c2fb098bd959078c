"""The tables that ship with the package: read once, never changed."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["device_table", "instance_table", "link_table", "normalize"]


def _read(name: str) -> dict[str, Any]:
    text = files("tensoropt.cluster").joinpath("data").joinpath(name).read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


@cache
def device_table() -> dict[str, Any]:
    """Return the device table (``data/devices.json``)."""
    return _read("devices.json")


@cache
def link_table() -> dict[str, Any]:
    """Return the link table (``data/links.json``)."""
    return _read("links.json")


@cache
def instance_table() -> dict[str, Any]:
    """Return cloud instances with dated prices (``data/instances.json``)."""
    return _read("instances.json")


def normalize(name: str) -> str:
    """Return `name` in lower case with everything but letters and digits removed."""
    return "".join(c for c in name.lower() if c.isalnum())
