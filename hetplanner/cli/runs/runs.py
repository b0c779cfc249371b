"""hetplanner runs list|show|label|steps|export|fetch|send|report|stop|drain|kill|rejoin|sample."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from hetplanner.cli.output import AsJson, bold, console, print_json, print_json_line, table
from hetplanner.swarm.launch.requests import PeerAct
from hetplanner.units import short_bytes, short_seconds

if TYPE_CHECKING:
    from hetplanner.runs.run import Run

SHOWN_EXPERTS = 16
"""Of an op."""
app = typer.Typer(no_args_is_help=True, help="List, inspect and stop runs and their peers; sample from trained models.")

PeerName = Annotated[str, typer.Argument(metavar="PEER", help="Id of a peer, as the run's Swarm section lists them.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, part of it, 'last', or its directory.")]


@app.command("list")
def list_runs(
    text: Annotated[str, typer.Option(help="Only runs whose id, name, notes or tags contain this.")] = "",
    tag: Annotated[str, typer.Option(help="Only runs with this tag.")] = "",
    state: Annotated[str, typer.Option(help="Only runs in this state, such as running or failed.")] = "",
    as_json: AsJson = False,
) -> None:
    """List runs, oldest first; the last steps' time stands with its difference from the prediction."""
    from hetplanner.errors import InvalidInput
    from hetplanner.runs.annotations import known_annotations, matches
    from hetplanner.runs.directory import find_run
    from hetplanner.runs.reading.recent import recent_step_s
    from hetplanner.runs.run import list_runs as registered
    from hetplanner.runs.status import CONTINUED, State

    states = (*get_args(State), CONTINUED)
    if state and state not in states:
        raise InvalidInput(f"--state: must be one of {', '.join(states)}, got {state!r:.60}")
    every = [(status, known_annotations(find_run(status.run)[1].path)) for status in registered()]
    listed = [(status, said) for status, said in every if matches(said, status.run, status.word, text, tag, state)]
    found = [(status, said, *recent_step_s(find_run(status.run)[1])) for status, said in listed]
    if as_json:
        rows = (
            status.model_dump(mode="json")
            | said.model_dump(mode="json")
            | {"measured_step_s": measured_s, "predicted_step_s": predicted_s}
            for status, said, measured_s, predicted_s in found
        )
        print_json(list(rows))
        return
    runs = table("Runs", "run", "name", "state", "ranks", "last steps", "message", right=("ranks", "last steps"))
    for status, said, measured_s, predicted_s in found:
        runs.add_row(
            status.run,
            " ".join((said.name, *(f"#{tag}" for tag in said.tags))).strip(),
            status.word + (" (rehearsal)" if status.rehearsal else ""),
            str(status.ranks),
            _step_text(measured_s, predicted_s),
            "; ".join((status.message, *status.degraded)),
        )
    nothing = "no run fits" if every else "no runs yet; start one with: hetplanner train plan.json"
    console.print(runs if found else nothing)


def _step_text(measured_s: float | None, predicted_s: float | None) -> str:
    """'816 ms, +12%' for a step that takes 12 % longer than predicted."""
    if measured_s is None:
        return "–"
    drift = f", {measured_s / predicted_s - 1.0:+.0%}" if predicted_s else ""
    return short_seconds(measured_s) + drift


@app.command()
def label(
    run: RunName,
    name: Annotated[str | None, typer.Option(help="A name for lists and legends; '' removes it.")] = None,
    notes: Annotated[str | None, typer.Option(help="Notes on the run; '' removes them.")] = None,
    tags: Annotated[str | None, typer.Option(help="Tags, comma-separated; '' removes them.")] = None,
    as_json: AsJson = False,
) -> None:
    """Give a run a name, notes and tags; without an option, show them."""
    from hetplanner.runs.annotations import read_annotations, tags_of, write_annotations
    from hetplanner.runs.directory import find_run

    run_id, directory = find_run(run)
    said = read_annotations(directory.path)
    given = {"name": name, "notes": notes, "tags": None if tags is None else tags_of(tags)}
    changes = {field: value for field, value in given.items() if value is not None}
    if changes:
        said = said.replace(**changes)
        write_annotations(directory.path, said)
    if as_json:
        print_json({"id": run_id} | said.model_dump(mode="json"))
        return
    console.print(f"{run_id}: {said.name or 'no name'}")
    console.print("\n".join(filter(None, (", ".join(f"#{tag}" for tag in said.tags), said.notes))))


@app.command()
def export(
    run: RunName,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    step: Annotated[
        int | None, typer.Option(help="Take the checkpoint of this step, not the model at the end.")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Of a run of adapters: add them to the model's weights and write it whole.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's model as a Hugging Face folder, or its adapters as PEFT's; `from_pretrained` loads both."""
    from hetplanner.runs.exporting import export_model
    from hetplanner.runs.run import open_run

    reader, out = open_run(run), folder.expanduser().absolute()
    done = export_model(reader, out, step, merge=merge)
    if as_json:
        print_json({"id": reader.id, "step": done, "folder": str(out)})
    else:
        console.print(f"model of {reader.id} after {done} steps written to {out}")


@app.command()
def fetch(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="A run's copy, such as s3://bucket/folder/RUN.")],
    step: Annotated[int | None, typer.Option(help="Take the checkpoint of this step, not the newest.")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="A new folder, in place of one of the runs.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a run that was trained with --copy-to: plan, settings and a checkpoint to go on from."""
    from hetplanner.runs.fetching import fetch_copy

    run_id, folder, done = fetch_copy(address, out, step)
    if as_json:
        print_json({"id": run_id, "step": done, "folder": str(folder)})
    else:
        console.print(f"run {run_id} with the checkpoint of step {done} written to {folder}")
        console.print(f"go on: hetplanner train {folder / 'plan.json'} --resume {out or run_id} --steps N")


@app.command()
def steps(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids, parts of them, or 'last'.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write here instead of the terminal.")] = None,
) -> None:
    """Write the steps of runs as CSV: loss, step time, throughput, and seconds, bytes and dollars spent."""
    from hetplanner.runs.annotations import known_annotations
    from hetplanner.runs.reading.series import runs_csv
    from hetplanner.runs.run import open_run
    from hetplanner.schema import check_writable, write_text

    if out is not None:
        check_writable(out)
    opened = {run.id: run for run in map(open_run, runs)}
    for run in opened.values():
        run.read_all()
    text = runs_csv(opened, {name: known_annotations(run.path) for name, run in opened.items()})
    if out is None:
        sys.stdout.write(text)
    else:
        write_text(out, text)
        console.print(f"{len(opened)} run(s) written to {out}")


@app.command()
def send(
    run: RunName,
    to: Annotated[list[str], typer.Option(help="A sink: tensorboard, wandb, mlflow, prometheus; repeatable.")],
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run is over; one sink only.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send a run's curves to another program. What is there already is not sent again."""
    from hetplanner.errors import InvalidInput
    from hetplanner.runs.run import open_run
    from hetplanner.runs.sinks.registry import check_sinks
    from hetplanner.runs.sinks.sending import send as send_run

    sinks = check_sinks(to)
    if follow and len(sinks) > 1:
        raise InvalidInput(f"to: must be one sink with --follow, got {len(sinks)}; start a command for each")
    reader = open_run(run)
    for sink in sinks:
        record = send_run(open_run(reader.path), sink, follow=follow)
        if as_json:
            print_json_line({"id": reader.id, "sink": sink, "step": record.step, "place": record.place})
        else:
            console.print(str(record))


@app.command()
def show(run: RunName, as_json: AsJson = False) -> None:
    """Show one run: state, loss, measured against predicted step time, bytes."""
    from hetplanner.runs.run import open_run

    reader = open_run(run)
    status = reader.status()
    summary = reader.summary()
    if as_json:
        print_json(
            {"path": str(reader.path)}
            | status.model_dump(mode="json")
            | {"summary": summary, "expert_loads": reader.expert_loads()}
        )
        return
    console.print(bold(reader.id), status.word, status.message, sep="  ")
    for text in status.degraded:
        console.print(f"warning: {text}")
    if reader.plan.problem.rehearsal_of:
        console.print(f"rehearsal of {reader.plan.problem.rehearsal_of}")
    console.print(f"{reader.plan.problem.workload.name}, {len(reader.labels)} ranks, in {reader.path}")
    rows = table("", "what", "value")
    for name, value in summary.items():
        words = name.replace("_", " ").replace("tokens", reader.any_plan.problem.workload.token_word)
        rows.add_row(words, _shown(name, value))
    console.print(rows)
    if loads := reader.expert_loads():
        experts = table("Tokens of experts", "op", "least", "most", "of each", right=("least", "most"))
        for op, tokens in loads.items():
            least, most = (f"{share / max(1, sum(tokens)):.1%}" for share in (min(tokens), max(tokens)))
            experts.add_row(op, least, most, " ".join(f"{count:,}" for count in tokens[:SHOWN_EXPERTS]))
        console.print(experts)


@app.command()
def report(
    run: RunName,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write the last steps here, with queues and memory, for Perfetto / Chrome."),
    ] = None,
    steps: Annotated[int, typer.Option(help="How many of the last steps to read.", min=1)] = 20,
    out: Annotated[
        Path | None, typer.Option("--refit", "-o", "--out", help="Write the cluster as the run showed it here.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the whole report here, as one HTML file that needs no network.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold a run against its prediction, term by term and link by link, and fit the model to it again.

    Of a swarm: who did what, who went, and how its steps stand to the plan's steady-state one.
    """
    from hetplanner.calibration.model import apply_calibration
    from hetplanner.cli.runs.report import print_report
    from hetplanner.cluster.formats.cluster_files import save_cluster
    from hetplanner.errors import InvalidInput
    from hetplanner.plan.elastic.model import ElasticPlan
    from hetplanner.runs.reports.report import report_run
    from hetplanner.runs.run import open_run
    from hetplanner.schema import check_writable, write_text

    for path in (trace, out, html):
        if path is not None:
            check_writable(path)
    reader = open_run(run)
    if isinstance(reader.any_plan, ElasticPlan):
        _report_swarm(reader, {"--trace": trace, "--out": out}, html, as_json)
        return
    found = report_run(reader, reader.id, steps)
    cluster = reader.plan.problem.cluster
    fitted = apply_calibration(found.calibration, cluster) if found.calibration is not None else None
    if out is not None:
        if fitted is None:
            raise InvalidInput(f"run {reader.id}: no step was measured, so there is nothing to fit {out} to")
        save_cluster(fitted, out)
    if trace is not None:
        write_text(trace, json.dumps(reader.trace(steps).to_perfetto()))
    if html is not None:
        from hetplanner.plots.report_page import report_page

        write_text(html, report_page(reader, found))
    if as_json:
        data: dict[str, Any] = found.to_data()
        paths = {"trace": trace, "out": out, "html": html}
        print_json(data | {name: str(path) if path else None for name, path in paths.items()})
        return
    print_report(found, fitted)
    if trace is not None:
        console.print(f"trace written to {trace}; open it at ui.perfetto.dev or in chrome://tracing")
    if out is not None:
        console.print(f"calibrated cluster written to {out}")
    if html is not None:
        console.print(f"report written to {html}; open it in any browser")


def _report_swarm(reader: Run, not_told: Mapping[str, Path | None], html: Path | None, as_json: bool) -> None:
    from hetplanner.cli.runs.swarm_report import print_swarm_report
    from hetplanner.errors import InvalidInput
    from hetplanner.plots.swarm_report_page import swarm_report_page
    from hetplanner.runs.reports.swarm_report import report_swarm
    from hetplanner.schema import write_text

    for option, path in not_told.items():
        if path is not None:
            raise InvalidInput(f"{option}: needs spans, and a swarm ({reader.id}) records none; remove the option")
    found = report_swarm(reader, reader.id)
    if html is not None:
        write_text(html, swarm_report_page(reader, found))
    if as_json:
        print_json(found.to_data() | {"html": str(html) if html else None})
        return
    print_swarm_report(found)
    if html is not None:
        console.print(f"report written to {html}; open it in any browser")


def _shown(name: str, value: object) -> str:
    if value is None or value == []:
        return "–"
    if isinstance(value, int | float):
        if name.startswith("bytes"):
            return short_bytes(value)
        if name.endswith("_s") and name != "tokens_per_s":
            return short_seconds(value)
        return f"{value:,.4g}" if isinstance(value, float) else str(value)
    return str(value)


@app.command()
def stop(run: RunName, as_json: AsJson = False) -> None:
    """Stop a run; it saves its model and ends within seconds."""
    from hetplanner.runs.run import open_run

    reader = open_run(run)
    began = time.monotonic()
    status = reader.status()
    if not status.is_over:
        status = reader.stop()
    if as_json:
        print_json({"id": reader.id, "state": status.state, "seconds": time.monotonic() - began})
    else:
        console.print(f"{reader.id}: {status.state}")


@app.command()
def drain(run: RunName, peer: PeerName, as_json: AsJson = False) -> None:
    """Have a peer of a running swarm leave between two steps; the only one of a stage waits for another."""
    _ask_peer(run, peer, "drain", as_json)


@app.command()
def kill(run: RunName, peer: PeerName, as_json: AsJson = False) -> None:
    """Kill a peer of a running swarm, to see the swarm go on without it."""
    _ask_peer(run, peer, "kill", as_json)


@app.command()
def rejoin(run: RunName, peer: PeerName, as_json: AsJson = False) -> None:
    """Have a peer of a running swarm that has left or was killed come back."""
    _ask_peer(run, peer, "rejoin", as_json)


def _ask_peer(run: str, peer: str, act: PeerAct, as_json: bool) -> None:
    from hetplanner.runs.reading.peer_orders import what_follows
    from hetplanner.runs.reading.swarm_history import SwarmHistory
    from hetplanner.runs.run import open_run

    reader = open_run(run)
    words = what_follows(act, peer, SwarmHistory(reader.path).read_all())
    reader.ask_peer(peer, act)
    if as_json:
        print_json({"id": reader.id, "peer": peer, "asked": act, "follows": words})
    else:
        console.print(f"{reader.id}: {words}")


@app.command()
def sample(
    run: RunName,
    prompt: Annotated[str, typer.Argument(help="Text to go on from.")],
    tokens: Annotated[int, typer.Option(help="Bytes to generate.", min=1, max=10_000)] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest byte.", min=0.0)] = 0.8,
    seed: Annotated[int, typer.Option(help="Of the draw.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Generate text from the model that a run has trained."""
    from hetplanner.runs.run import open_run
    from hetplanner.runs.sampling import sample_text

    reader = open_run(run)
    text = sample_text(reader.path, prompt, tokens=tokens, temperature=temperature, seed=seed, name=reader.id)
    if as_json:
        print_json({"id": reader.id, "prompt": prompt, "text": text})
    else:
        sys.stdout.write(text + "\n")


@app.command()
def reorder(
    run: RunName,
    out: Annotated[Path, typer.Option("-o", "--out", help="Write the plan here.")] = Path("reordered.json"),
    as_json: AsJson = False,
) -> None:
    """Order the actions of a run's plan anew, for the seconds that its ranks measured."""
    from hetplanner.plan.files.plan_files import save_plan
    from hetplanner.runs.reports.reordering import reorder_run
    from hetplanner.runs.run import open_run
    from hetplanner.schema import check_writable

    check_writable(out)
    found = reorder_run(open_run(run))
    gain = 1.0 - found.after_s / found.before_s
    if gain > 0:
        save_plan(found.plan, out)
    if as_json:
        seconds = {"before_s": found.before_s, "after_s": found.after_s}
        print_json(seconds | {"order_scale": found.plan.order_scale, "out": str(out) if gain > 0 else None})
    elif gain > 0:
        console.print(
            f"step {short_seconds(found.before_s)} → {short_seconds(found.after_s)} simulated ({-gain:.1%}) by another"
            f" order of actions; plan written to {out}"
        )
    else:
        console.print(f"no other order of actions is faster than the plan's: {short_seconds(found.before_s)} a step")
