"""The command line. Each file here holds one group of commands; `main` maps errors to exit codes."""

import sys

from hetplanner.errors import EXIT_INTERRUPTED

__all__ = ["main"]


def main() -> None:
    """Runs the command line, see :func:`hetplanner.cli.app.main`; Ctrl-C is one line while it still loads, too."""
    try:
        from hetplanner.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("hetplanner: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
