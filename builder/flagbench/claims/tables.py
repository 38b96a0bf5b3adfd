"""Reads the table in a file, in whichever form it is."""

from __future__ import annotations

from flagbench.claims.columns import column
from flagbench.claims.forms.csv_form import read_csv
from flagbench.claims.forms.markdown_form import read_markdown
from flagbench.claims.forms.yaml_form import read_structured
from flagbench.claims.table import Table, TableError
from flagbench.terminal import brief

MOST_ROWS = 5_000


def read_table(content: bytes, name: str) -> Table:
    """The table in the bytes of a file; `name` is what errors call it.

    Raises TableError (exit code 3) for what is not UTF-8 or UTF-16 with a byte order mark, is empty, is not one of
    FORMATS, has no column that is known, or more than MOST_ROWS rows.
    """
    text = _decoded(content, name)
    if not text.strip():
        raise TableError(f"{name} is empty")
    table = read_markdown(text) or read_structured(text, name) or read_csv(text, name)
    if not table.rows:
        raise TableError(f"{name} has a header, but no rows")
    if len(table.rows) > MOST_ROWS:
        raise TableError(
            f"{name} has {len(table.rows):,} rows; at most {MOST_ROWS:,} are read", remedy="split the file by case"
        )
    if not any(map(column, table.headers)) and not any(row.nested for row in table.rows):
        shown = ", ".join(brief(header, 40) for header in table.headers[:8])
        raise TableError(
            f"{name} has no column that is known: {shown}",
            remedy="name the columns as in docs/lint-a-table.md, for example device, devices, precision, p_core, mfu",
        )
    return table


def _decoded(content: bytes, name: str) -> str:
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise TableError(
            f"{name} is not {encoding[:6].rstrip('-').upper()} text: {error.reason} at byte {error.start}",
            remedy="save the table as UTF-8",
        ) from None
    if "\0" in text:
        raise TableError(f"{name} is not text: it has a NUL character", remedy="save the table as CSV, UTF-8")
    return text
