"""Entry point: one typer application; commands import what they need only when they run."""

import sys

import click
import typer

from hetplanner.cli import cluster, model, planning, runs, services, training
from hetplanner.errors import HetplannerError

EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="hetplanner",
    help="Plan, rehearse and run the training of large models on unlike GPUs over slow and uneven networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cluster.app, name="cluster")
app.add_typer(model.app, name="workload")
app.command("plan")(planning.plan)
app.command("simulate")(planning.simulate)
app.command("train")(training.train)
app.add_typer(runs.app, name="runs")
app.command("agent")(services.agent)
app.command("dashboard")(services.dashboard)


@app.callback()
def options(debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error.")) -> None:
    """Options before the command hold for every command."""


def main() -> None:
    """Runs the command line. Exit codes: 0 fine, 2 bad input, 3 infeasible, 4 the run failed, 130 interrupted."""
    try:
        code = app(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "hetplanner"
        print(f"hetplanner: {error.format_message()} (see '{command} --help')", file=sys.stderr)
        code = 2
    except (KeyboardInterrupt, click.Abort):
        print("hetplanner: interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except HetplannerError as error:
        if "--debug" in sys.argv:
            raise
        print(f"hetplanner: {error}", file=sys.stderr)
        code = error.exit_code
    except BrokenPipeError:
        sys.stderr.close()  # the reader (head, less) has gone; nothing is left to say
        code = 0
    sys.exit(code or 0)
