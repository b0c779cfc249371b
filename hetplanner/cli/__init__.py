"""The command line. Each file here holds one group of commands; `main` maps errors to exit codes."""

from hetplanner.cli.app import main

__all__ = ["main"]
