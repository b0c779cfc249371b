"""The report of a swarm's run as one HTML file."""

import time

from bokeh.plotting import figure

from hetplanner.cost.elastic.swarm_costs import expected_speeds, group_names
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plots.data.swarms.swarm_wiring import speed_text
from hetplanner.plots.html_page import html_page, html_table
from hetplanner.plots.live import LossCurve, StagePeers, StepTimes, SwarmLife, SwarmWiring, ThroughputCurve
from hetplanner.plots.report_parts import events_table, head, last_words, note, settings_table, state_facts
from hetplanner.reading import reader
from hetplanner.runs.agent.audit import audit_records
from hetplanner.runs.reading.events import run_events
from hetplanner.runs.reading.swarm_history import SwarmHistory
from hetplanner.runs.reports.swarm_report import SwarmReport, report_swarm
from hetplanner.runs.run import Run
from hetplanner.runs.status import RunStatus
from hetplanner.units import short_bytes, short_seconds

WORDS = {
    "join": "came", "left": "left", "lost": "lost", "cut off": "cut off", "gone": "gone", "refused": "refused",
    "move": "moves", "trainer lost": "trainers lost", "restart": "coordinators restarted", "cut": "links cut",
    "set back": "set back to a checkpoint", "work lost": "rounds short of work", "garbage": "garbage",
    "restarted": "processes started again", "not restarted": "processes lost for good", "preempted": "preempted",
    "trouble": "problems",
}  # fmt: skip
PHASE_WORDS = {
    "prepare": "all say what they hold",
    "reduce": "the peers of a stage add up",
    "persist": "the decision goes to the disk",
    "commit": "all take the step",
    "abort": "given up",
}


@reader("run folder", at="run.directory.path")
def swarm_report_page(run: Run, found: SwarmReport | None = None) -> str:
    """The whole page as text.

    Args:
        run: of an elastic plan, going on or over; it is read as far as it has come.
        found: its report, where there is one already.

    Raises:
        InvalidInput: its plan, settings or status cannot be read, or its plan is static.
    """
    history = SwarmHistory(run.path).read_all()
    found, status, plan = found or report_swarm(run, run.id, history), run.status(), run.any_plan
    assert isinstance(plan, ElasticPlan)  # else there is no such report
    parts = [
        _head(run, plan, status, found),
        "<h2>Loss and throughput</h2>",
        *_curves(run, found),
        "<h2>Joins, deaths, moves and commits</h2>",
        *_life(plan, status, history),
        "<h2>Who did what</h2>",
        *_work(plan, history, found),
        "<h2>Who went, and what was done again</h2>",
        _losses(found),
        "<h2>Closing a step</h2>",
        _closing(found),
        "<h2>What happened</h2>",
        _events(run, status, history),
        last_words(status),
        "<h2>Settings</h2>",
        settings_table(run),
        *(["<h2>What this report does not know</h2>", *map(note, found.unknown)] if found.unknown else []),
    ]
    return html_page(f"{run.id} · hetplanner run report", parts)


def _head(run: Run, plan: ElasticPlan, status: RunStatus, found: SwarmReport) -> str:
    problem = plan.problem
    counts = " + ".join(str(len(stage.peers)) for stage in plan.stages)
    trainers = f"{plan.wiring.trainers} trainer{'s' if plan.wiring.trainers != 1 else ''}"
    rates = {name: f"{rate:,.0f} {problem.workload.token_word}/s" for name, rate in found.tokens_per_s.items()}
    facts = [
        *state_facts(status),
        ("Model", f"{problem.workload.name}, {problem.workload.dtype}"),
        ("Plan", f"elastic, {len(plan.stages)} stages with {counts} peers at the start, {trainers}"),
        ("Cluster", f"{problem.cluster.name}, {len(problem.cluster.devices)} devices"),
        ("Peers", _happenings(found) or "–"),
        ("Steps", f"{found.steps} of {found.planned_steps}"),
        ("Loss", f"{found.losses[0][1]:.4f} → {found.losses[-1][1]:.4f}" if found.losses else "–"),
        ("Throughput", f"{rates['measured']} over all steps" if "measured" in rates else "–"),
        ("By the cost model", f"{rates['steady_state']}, steady state, with all peers of the start"),
        ("Sent", f"{short_bytes(run.bytes_boundary)} between stages, {short_bytes(run.bytes_reduce)} for averaging"),
    ]
    rehearsal = f"Rehearsal of {problem.rehearsal_of}. " if problem.rehearsal_of else ""
    return head(run.id, rehearsal + found.difference, facts, failed=status.word in ("failed", "preempted"))


def _happenings(found: SwarmReport) -> str:
    return ", ".join(f"{found.counts[kind]} {words}" for kind, words in WORDS.items() if found.counts.get(kind))


def _curves(run: Run, found: SwarmReport) -> list[str | figure]:
    timed = [(s.step, s.step_s, s.num_tokens / s.step_s) for s in run.steps() if s.step_s]
    shown: list[figure] = []
    if found.losses:
        loss = LossCurve()
        loss.update([s for s, _ in found.losses], [v for _, v in found.losses])
        shown.append(loss.figure)
    if timed:
        steps, rate, times = [step for step, _, _ in timed], ThroughputCurve(), StepTimes()
        rate.update(steps, [r for _, _, r in timed], run.any_plan.problem.workload.token_word)
        steady_s = found.step_s["steady_state"]
        times.update(steps, [s for _, s, _ in timed], *((steady_s,) if found.emulated else (None, steady_s)))
        shown += [rate.figure, times.figure]
    if not shown:
        return [note("No step was committed.")]
    return ['<div class="two">', *shown, "</div>"]


def _life(plan: ElasticPlan, status: RunStatus, history: SwarmHistory) -> list[str | figure]:
    if history.first_s is None:
        return [note("The coordinator has reported no peer.")]
    now_s = None if status.is_over else time.time()
    life, peers = SwarmLife(height=420), StagePeers()
    life.update(history, now_s, group_names(plan))
    peers.update(history, len(plan.stages), now_s)
    return [life.figure, "<h2>Peers of every stage over time</h2>", peers.figure]


def _work(plan: ElasticPlan, history: SwarmHistory, found: SwarmReport) -> list[str | figure]:
    if not found.peers:
        return [note("No peer has served.")]
    rows = [
        [
            f"stage {p.stage}",
            p.name,
            p.end,
            "–" if p.micro_batches is None else str(p.micro_batches),
            "–" if p.share is None else f"{p.share:.1%}",
            speed_text(p.speed),
            speed_text(p.expected),
            short_seconds(p.served_s),
        ]
        for p in found.peers
    ]
    columns = ["", "peer", "at the end", "micro-batches", "of its stage", "measured", "by the plan", "served"]
    table = html_table(columns, rows, 5)
    flow = history.flow()
    if not flow.peers:
        return [table]
    wiring = SwarmWiring()
    wiring.update(flow, len(plan.stages), None, expected_speeds(plan), group_names(plan))
    steps = f"Which way micro-batches went in steps {flow.first_step} to {flow.last_step}; the table is of all steps."
    return [table, note(steps), wiring.figure]


def _losses(found: SwarmReport) -> str:
    lost = [(f"peers lost: {reason}", count) for reason, count in found.failures.items()]
    lost += [(WORDS[kind], found.counts.get(kind, 0)) for kind in ("left", "cut off", "gone", "refused")]
    lost += [(WORDS[kind], found.counts.get(kind, 0)) for kind in ("trainer lost", "restarted", "not restarted")]
    lost += [(WORDS[kind], found.counts.get(kind, 0)) for kind in ("cut", "restart", "preempted", "set back")]
    lost += [(WORDS[kind], found.counts.get(kind, 0)) for kind in ("work lost", "garbage", "trouble")]
    rows = [[words, str(count)] for words, count in lost if count]
    if found.redone:
        rows.append(["micro-batches done again in part: two passes contributed", str(found.redone)])
    if found.given_up:
        rows.append(["attempts to close a step given up", str(found.given_up)])
    return html_table(["what", "how often"], rows, 1) if rows else note("None: no peer has left, no work was repeated.")


def _closing(found: SwarmReport) -> str:
    if not found.closing:
        return note("No attempt to close a step was told of.")
    rows = [
        [f"{c.phase}: {PHASE_WORDS[c.phase]}", str(c.times), short_seconds(c.median_s), short_seconds(c.most_s)]
        for c in found.closing
    ]
    table = html_table(["phase", "times", "median", "longest"], rows, 3)
    return table + note(f"{found.closed} attempts closed their step, {found.given_up} were given up and tried again.")


def _events(run: Run, status: RunStatus, history: SwarmHistory) -> str:
    of_the_run = [(e.time_s, "the run", e.text) for e in run_events(run, status, audit_records(run.home, run=run.id))]
    of_peers = [(m.time_s, m.peer or "the swarm", m.text) for m in history.marks]
    return events_table(sorted([*of_the_run, *of_peers], key=lambda row: row[0]))
