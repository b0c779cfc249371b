"""hetplanner agent and hetplanner dashboard, the two programs that stay, and what prepares an installation for them."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from hetplanner.cli.output import AsJson, console, print_json


def agent() -> None:
    """Own runs in the foreground, until interrupted; normally started by itself when a run is launched."""
    from hetplanner.runs.agent.service import serve_agent

    serve_agent()


def dashboard(
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 5006,
    show: Annotated[bool, typer.Option(help="Open a browser.")] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on. 0.0.0.0 accepts other machines; they need the token.")
    ] = "127.0.0.1",
) -> None:
    """Serve the dashboard on the loopback interface; prints a link that opens it once, with the right to launch."""
    from hetplanner.ui.serve import serve_dashboard

    serve_dashboard(port=port, open_browser=show, host=host)


def kernels(as_json: AsJson = False) -> None:
    """Compile the planners' kernels now, once per installation, so that the first search is at full speed at once."""
    from hetplanner.planners.search.compiled_parts import PARTS
    from hetplanner.planners.search.kernel_parts import compile_parts

    start_s = time.monotonic()
    for count, part in enumerate(compile_parts(), 1):
        if not as_json:
            console.print(f"kernels {count} of {len(PARTS)}: {PARTS[part]}")
    if as_json:
        print_json({"parts": list(PARTS), "seconds": time.monotonic() - start_s})
