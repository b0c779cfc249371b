"""What the reports of static runs and of swarms say alike, as HTML whose foreign words are escaped."""

import time
from collections.abc import Sequence
from html import escape

from hetplanner.plots.html_page import MAX_ROWS, html_table
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.status import RunStatus

Fact = tuple[str, str]
Row = tuple[float, str, str]


def head(title: str, lead: str, facts: Sequence[Fact], *, failed: bool) -> str:
    """The name of a run, a sentence about it, and facts of which the first is its state."""
    bad = ' class="bad"' if failed else ""
    body = "".join(
        f"<tr><th>{escape(name)}</th><td><span{bad if i == 0 else ''}>{escape(text)}</span></td></tr>"
        for i, (name, text) in enumerate(facts)
    )
    return f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p><table>{body}</table>'


def state_facts(status: RunStatus) -> list[Fact]:
    """State and beginning of a run."""
    began = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(status.created_unix_s))
    state = status.word + (f", {status.message}" if status.message not in ("", status.state) else "")
    return [("State", state), ("Begun", began)]


def events_table(events: Sequence[Row]) -> str:
    """The last of (unix time, who, what), oldest first."""
    rows = [[time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s)), who, what] for time_s, who, what in events]
    earlier = len(rows) - MAX_ROWS
    note = f'<p class="muted">{earlier} earlier ones are left out.</p>' if earlier > 0 else ""
    return note + html_table(["when", "who", "what"], rows[-MAX_ROWS:], 0)


def last_words(status: RunStatus) -> str:
    """Of the process whose end was the run's, if there are any."""
    if not status.last_lines:
        return ""
    who = "the launcher" if status.failed_rank is None else f"rank {status.failed_rank}"
    return f"<h2>Last words of {who}</h2><pre>{escape(chr(10).join(status.last_lines))}</pre>"


def settings_table(run: RunReader) -> str:
    """How it is trained."""
    settings = run.config.model_dump(mode="json")
    rows = [[name.replace("_", " "), "–" if value is None else str(value)] for name, value in settings.items()]
    return html_table(["setting", "value"], rows, 0)


def note(text: str) -> str:
    """What there is instead of a figure or table."""
    return f'<p class="muted">{escape(text)}</p>'
