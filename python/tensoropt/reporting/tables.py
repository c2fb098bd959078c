"""Plain text tables."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["format_table"]


def format_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], align: str, indent: str = "  "
) -> str:
    """Lay out rows in aligned columns.

    Parameters
    ----------
    headers : sequence of str
    rows : sequence of sequence of str
        Every row as long as the headers.
    align : str
        One letter per column: ``<`` or ``>``.
    indent : str
        Put before every line.

    Returns
    -------
    str
        Lines without trailing spaces, joined by newlines.

    Raises
    ------
    ValueError
        If a row or ``align`` has another length than ``headers``.

    Examples
    --------
    >>> print(format_table(["name", "n"], [["a", "10"], ["bcd", "2"]], "<>", indent=""))
    name   n
    a     10
    bcd    2
    """
    if any(len(row) != len(headers) for row in rows) or len(align) != len(headers):
        raise ValueError(f"rows and align must have the {len(headers)} columns of the headers")
    widths = [max(len(row[i]) for row in (headers, *rows)) for i in range(len(headers))]
    lines = []
    for row in (headers, *rows):
        cells = (f"{cell:{a}{w}}" for cell, a, w in zip(row, align, widths, strict=True))
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)
