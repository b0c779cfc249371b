"""Text cells of CSV files that spreadsheets open: a name such as `=HYPERLINK(...)` must stay a name.

Spreadsheets run what begins like a formula. An apostrophe in front makes it text, as is customary; our readers take it
away again, so a file that was written here reads back to the same names.
"""

import re

_FORMULA = re.compile(r"'*[=+\-@\uff1d\uff0b\uff0d\uff20]")
"""What begins a formula, also in full width, behind apostrophes or none."""


def guarded(text: str) -> str:
    """A name as a cell: behind an apostrophe if it begins like a formula. Not for numbers, which may be negative."""
    return f"'{text}" if _FORMULA.match(text) else text


def unguarded(cell: str) -> str:
    """The name of a cell: the inverse of `guarded`; other cells, numbers among them, are as they are."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
