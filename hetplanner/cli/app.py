"""Entry point: one typer application; commands import what they need only when they run."""

import sys
from typing import Any

import typer

from hetplanner.cli import cluster, model, services
from hetplanner.cli import profile as profiling
from hetplanner.cli.planning import calibrate as calibrating
from hetplanner.cli.planning import compare as comparing
from hetplanner.cli.planning import pareto as fronts
from hetplanner.cli.planning import plan as planning
from hetplanner.cli.planning import rehearse as rehearsing
from hetplanner.cli.planning import simulate as simulating
from hetplanner.cli.runs import peers, runs
from hetplanner.cli.runs import train as training
from hetplanner.errors import EXIT_INTERRUPTED, HetplannerError
from hetplanner.reading import noting

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer may bring its own copy of click; this is the base of usage errors in the copy it uses."""

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
app.command("compare")(comparing.compare)
app.command("pareto")(fronts.pareto)
app.command("simulate")(simulating.simulate)
app.command("rehearse")(rehearsing.rehearse)
app.command("train")(training.train)
app.add_typer(runs.app, name="runs")
app.add_typer(peers.app, name="peer")
app.command("profile")(profiling.profile)
app.command("calibrate")(calibrating.calibrate)
app.command("kernels")(services.kernels)
app.command("agent")(services.agent)
app.command("dashboard")(services.dashboard)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"hetplanner {version('hetplanner')}")
        raise typer.Exit


@app.callback()
def options(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_print_version, is_eager=True),
) -> None:
    """Options before the command hold for every command."""


def main() -> None:
    """Runs the command line; exit codes: 0 fine, 2 bad input, 3 infeasible, 4 failed, 75 preempted, 130 interrupted."""
    try:
        with noting(_print_note):
            code = app(standalone_mode=False)
    except UsageError as error:
        code = _report_usage(error)
    except (KeyboardInterrupt, typer.Abort):
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
    except Exception as error:  # a defect of ours: still one line, the traceback is for --debug
        if "--debug" in sys.argv:
            raise
        text = " ".join(str(error).split())[:300]
        print(f"hetplanner: internal error: {type(error).__name__}: {text}; --debug shows where", file=sys.stderr)
        code = 1
    sys.exit(code or 0)


def _print_note(text: str) -> None:
    print(f"hetplanner: warning: {text}", file=sys.stderr)


def _report_usage(error: Any) -> int:
    """One line about a wrong flag or argument; the help page where nothing was asked for at all."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    command = error.ctx.command_path if error.ctx else "hetplanner"
    message = " ".join(error.format_message().split())
    print(f"hetplanner: {message} (see '{command} --help')", file=sys.stderr)
    return 2
