"""hetplanner agent and hetplanner dashboard: the two programs that stay."""

from __future__ import annotations

from typing import Annotated

import typer


def agent() -> None:
    """Own runs in the foreground, until interrupted; normally started by itself when a run is launched."""
    from hetplanner.runs.agent import serve_agent

    serve_agent()


def dashboard(
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 5006,
    show: Annotated[bool, typer.Option(help="Open a browser.")] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on. 0.0.0.0 lets others in, who see nothing without the token.")
    ] = "127.0.0.1",
) -> None:
    """Serve the dashboard on the loopback interface; prints a link that opens it once, with the right to launch."""
    from hetplanner.ui.serve import serve_dashboard

    serve_dashboard(port=port, open_browser=show, host=host)
