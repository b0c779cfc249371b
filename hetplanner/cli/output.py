"""How commands speak: JSON for scripts on stdout, tables for people, progress and notices on stderr."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hetplanner.errors import one_line

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of tables.")]

PIPED_WIDTH = 160
"""Columns when the output goes to a file or a pipe, which has no width of its own."""


class PlainConsole(Console):
    """Prints text as it stands: names in files may look like Rich's markup, or hold what a terminal obeys."""

    def render_str(self, text: str, **options: Any) -> Text:
        """See Rich's; also titles and cells of tables come here."""
        return super().render_str(_printable(text), **{**options, "emoji": False, "markup": False})


def _printable(text: str) -> str:
    return "\n".join(map(one_line, text.split("\n")))


def bold(text: str) -> Text:
    """A piece of a line, for `console.print`."""
    return Text(_printable(text), style="bold")


console = PlainConsole(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
notices = PlainConsole(stderr=True, highlight=False)


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    json.dump(data, sys.stdout, indent=1, allow_nan=False)
    sys.stdout.write("\n")


def print_json_line(data: Any) -> None:
    """One JSON object on one line, flushed, for followers."""
    sys.stdout.write(json.dumps(data, allow_nan=False) + "\n")
    sys.stdout.flush()


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table; columns named in `right` are aligned to the right."""
    result = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        aligned = column in right
        result.add_column(column, justify="right" if aligned else "left", no_wrap=aligned, overflow="fold")
    return result


def bar(share: float, width: int = 24) -> str:
    """A bar of block characters for a share between 0 and 1."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return "█" * filled + "·" * (width - filled)


@contextmanager
def progress_line(text: str, total: float | None = None) -> Iterator[tuple[Callable[..., None], Callable[[], bool]]]:
    """A progress line on a terminal while a search runs; Ctrl-C ends the search, not the program.

    Args:
        text: what it says first.
        total: of what it counts, if known.

    Yields:
        ``(show, stopped)``: `show` takes `description`, `completed` and `total`, as Rich does; `stopped` tells the
        search to end.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from hetplanner.planners.search.interrupts import Interrupts

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with (
        Interrupts() as stopped,
        Progress(*columns, console=notices, transient=True, disable=not sys.stderr.isatty()) as progress,
    ):
        yield partial(progress.update, progress.add_task(text, total=total)), stopped
