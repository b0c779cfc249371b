"""A run's report as one HTML file."""

import time
from collections.abc import Sequence
from html import escape

from bokeh.plotting import figure

from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plots.html_page import html_page, html_table
from hetplanner.plots.live import (
    AccuracyCurve,
    ExpertLoads,
    Lifelines,
    LossCurve,
    PerplexityCurve,
    RunMemory,
    RunTerms,
    StepTimes,
    ThroughputCurve,
    Timeline,
)
from hetplanner.plots.live.maps.traffic_map import TrafficMap
from hetplanner.plots.report_parts import events_table, head, last_words, note, settings_table, state_facts
from hetplanner.plots.swarm_report_page import swarm_report_page
from hetplanner.reading import reader
from hetplanner.runs.agent.audit import audit_records
from hetplanner.runs.reading.events import RunEvent, life_spans, run_events
from hetplanner.runs.reading.loads import LOAD_HEAD, LinkLoad, link_loads, site_loads
from hetplanner.runs.reports.comparison import WORDS
from hetplanner.runs.reports.report import RunReport, report_run
from hetplanner.runs.reports.stragglers import stragglers
from hetplanner.runs.run import Run
from hetplanner.runs.status import RunStatus
from hetplanner.units import short_bytes, short_seconds

TIMELINE_STEPS = 3


@reader("run folder", at="run.directory.path")
def report_page(run: Run, found: RunReport | None = None) -> str:
    """The whole page as text.

    Args:
        run: going on or over, of a static or an elastic plan; it is read as far as it has come.
        found: the report of a static one, where there is one already.

    Raises:
        InvalidInput: its plan, settings or status cannot be read.
    """
    if isinstance(run.any_plan, ElasticPlan):
        return swarm_report_page(run)
    found, status = found or report_run(run, run.id), run.status()
    loads = link_loads(run)
    events = run_events(run, status, audit_records(run.home, run=run.id))
    figures = _figures(run, status, loads, events, found)
    parts = [
        _head(run, status, found),
        _late(run, found),
        '<h2>Loss and step time</h2><div class="two">',
        *(figures[name] for name in ("loss", "times", "terms", "throughput")),
        "</div>",
        *_held_out(run, found),
        "<h2>Where a step's time goes, by term</h2>",
        _terms_table(found),
        "<h2>Last steps, rank by rank</h2>",
        figures["timeline"],
        _ranks_table(found),
        "<h2>Traffic against the links' limits</h2>",
        figures["traffic"],
        _loads_table(loads),
        "<h2>Memory</h2>",
        figures["memory"],
        "<h2>What happened</h2>",
        figures["life"],
        events_table([(e.time_s, "" if e.rank is None else f"rank {e.rank}", e.text) for e in events]),
        last_words(status),
        "<h2>Settings</h2>",
        settings_table(run),
    ]
    return html_page(f"{run.id} · hetplanner run report", parts)


def _held_out(run: Run, found: RunReport) -> list[str | figure]:
    """What was evaluated, the last of it in a sentence; and what each expert took."""
    parts: list[str | figure] = []
    if found.evaluations:
        last, perplexity, accuracy = found.evaluations[-1], PerplexityCurve(), AccuracyCurve()
        perplexity.update(found.evaluations)
        accuracy.update(found.evaluations)
        parts += ["<h2>Held-out data</h2>", f"<p>Loss after {last.step + 1} steps: {escape(str(last))}.</p>"]
        parts += ['<div class="two">', perplexity.figure, accuracy.figure, "</div>"]
    if loads := run.expert_loads():
        experts = ExpertLoads()
        experts.update(loads)
        parts += ["<h2>Tokens of each expert</h2>", experts.figure]
    return parts


# -- figures --------------------------------------------------------------------------------------


def _figures(
    run: Run, status: RunStatus, loads: Sequence[LinkLoad], events: Sequence[RunEvent], found: RunReport
) -> dict[str, figure]:
    loss, times, rate = LossCurve(), StepTimes(), ThroughputCurve()
    loss.update([s for s, _ in found.losses], [v for _, v in found.losses], found.validation)
    timed = [(s.step, s.step_s, s.num_tokens / s.step_s) for s in run.steps() if s.step_s]
    steps = [step for step, _, _ in timed]
    times.update(steps, [s for _, s, _ in timed], found.step_s.get("predicted"), found.step_s.get("catalog"))
    rate.update(steps, [r for _, _, r in timed], run.plan.problem.workload.token_word)
    terms, memory, timeline, life, traffic = RunTerms(height=300), RunMemory(), Timeline(), Lifelines(), TrafficMap()
    terms.update(found)
    memory.update(run)
    timeline.update(run.trace(TIMELINE_STEPS))
    now_s = status.ended_unix_s or time.time()
    life.update(life_spans(run, status, now_s), events, run.plan.ranks, status.created_unix_s)
    traffic.show_loads(run.plan.problem.cluster, site_loads(run, loads))
    made = {"loss": loss, "times": times, "throughput": rate, "terms": terms, "memory": memory}
    made |= {"timeline": timeline, "life": life, "traffic": traffic}
    return {name: live.figure for name, live in made.items()}


# -- text and tables ------------------------------------------------------------------------------


def _head(run: Run, status: RunStatus, found: RunReport) -> str:
    plan, problem = run.plan, run.plan.problem
    rehearsal = f"Rehearsal of {problem.rehearsal_of}. " if problem.rehearsal_of else ""
    shape = f"{len(plan.stages)} stages × {max(len(s.replicas) for s in plan.stages)} replicas, {len(plan.ranks)} ranks"
    rate = run.tokens_per_s()
    facts = [
        *state_facts(status),
        ("Model", f"{problem.workload.name}, {problem.workload.dtype}, {shape}"),
        ("Cluster", f"{problem.cluster.name}, {len(problem.cluster.devices)} devices"),
        ("Steps", f"{found.steps} of {found.planned_steps}"),
        ("Loss", f"{found.losses[0][1]:.4f} → {found.losses[-1][1]:.4f}" if found.losses else "–"),
        ("Throughput", f"{rate:,.0f} {problem.workload.token_word}/s" if rate else "–"),
        ("Sent", f"{short_bytes(run.bytes_boundary)} between stages, {short_bytes(run.bytes_reduce)} for reductions"),
    ]
    return head(run.id, rehearsal + found.difference, facts, failed=status.word in ("failed", "preempted"))


def _late(run: Run, found: RunReport) -> str:
    late, late_s = run.late
    lines = [s.text for s in stragglers(found.ranks, found.links, found.step_s.get("measured"))[:3]]
    if late:
        lines.append(f"The emulator handed over {late} deliveries late, {short_seconds(late_s)} in all.")
    return "".join(f'<p class="bad">{escape(line)}</p>' for line in lines)


def _terms_table(found: RunReport) -> str:
    sources = [s for s in ("catalog", "predicted", "measured", "refitted") if s in found.terms]
    rows = [[words, *(short_seconds(getattr(found.terms[s], n)) for s in sources)] for n, words in WORDS.items()]
    rows.append(["step", *(short_seconds(found.step_s[s]) for s in sources)])
    return html_table(["term", *sources], rows, len(sources))


def _ranks_table(found: RunReport) -> str:
    head = ["rank", "device", *(f"{w}, predicted → measured" for w in WORDS.values()), "memory"]
    rows = [
        [
            str(r.rank),
            r.device,
            *(
                " → ".join("–" if t is None else short_seconds(getattr(t, n)) for t in (r.predicted, r.measured))
                for n in WORDS
            ),
            short_bytes(r.memory_bytes) if r.memory_bytes else "–",
        ]
        for r in found.ranks
    ]
    return html_table(head, rows, len(WORDS) + 1)


def _loads_table(loads: Sequence[LinkLoad]) -> str:
    if not loads:
        return note("No link was counted.")
    rows = [[f"rank {x.source} · {x.source_device} → rank {x.target} · {x.target_device}", *x.texts] for x in loads]
    return html_table(LOAD_HEAD, rows, 6)
