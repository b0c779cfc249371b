"""A run's report as one HTML file that needs nothing else: scripts, styles and data are inside, no request is made."""

import time
from collections.abc import Iterable, Sequence
from html import escape

from bokeh.embed import file_html
from bokeh.plotting import figure
from bokeh.resources import INLINE, Resources

from hetplanner.plots.live import Lifelines, LossCurve, RunMemory, RunTerms, StepTimes, ThroughputCurve, Timeline
from hetplanner.plots.live.traffic_map import TrafficMap
from hetplanner.runs.audit import audit_records
from hetplanner.runs.comparison import WORDS
from hetplanner.runs.events import RunEvent, life_spans, run_events
from hetplanner.runs.loads import LinkLoad, link_loads, site_loads
from hetplanner.runs.report import RunReport, report_run
from hetplanner.runs.run import Run
from hetplanner.runs.status import RunStatus
from hetplanner.runs.stragglers import stragglers
from hetplanner.units import short_bytes, short_rate, short_seconds

MAX_ROWS = 64
TIMELINE_STEPS = 3
# 'unsafe-eval': the map's CustomJS; nothing may be loaded from anywhere.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:;"
    " font-src data:"
)
_STYLE = """
body{font:15px/1.5 Roboto,Helvetica,Arial,sans-serif;color:#20242a;background:#fafbfc;margin:0 auto;max-width:1180px;
padding:24px}h1{font-size:24px;margin:0 0 4px}h2{font-size:17px;margin:28px 0 8px}.lead{font-size:16px;margin:10px 0}
table{border-collapse:collapse;font-size:13px;width:100%;background:#fff}td,th{border:1px solid #dfe3e8;padding:4px 8px;
text-align:left;vertical-align:top;overflow-wrap:anywhere}th{background:#f1f3f6;font-weight:600;overflow-wrap:normal}
td.n{text-align:right;white-space:nowrap}.card{background:#fff;border:1px solid #dfe3e8;border-radius:6px;padding:8px}
.two{display:grid;grid-template-columns:1fr 1fr;gap:12px}@media(max-width:900px){.two{grid-template-columns:1fr}}
pre{background:#14181d;color:#d7dde4;padding:10px;border-radius:4px;white-space:pre-wrap;overflow-wrap:anywhere;
font-size:12px}.bad{color:#b3261e}.muted{color:#5b6570;font-size:13px}
"""

_TEMPLATE = (
    '{% block preamble %}<meta http-equiv="Content-Security-Policy" content="'
    + _POLICY
    + '"><style>'
    + _STYLE
    + """</style>{% endblock %}
{% block resources %}{% for text in library %}<script>{{ text | safe }}</script>{% endfor %}{% endblock %}
{% block contents %}{% for kind, part in parts %}{% if kind == "figure" %}
<div class="card">{{ embed(roots[part]) }}</div>{% else %}{{ part | safe }}{% endif %}{% endfor %}{% endblock %}
"""
)


def report_page(run: Run, found: RunReport | None = None) -> str:
    """The whole page as text.

    Args:
        run: going on or over; it is read as far as it has come.
        found: its report, where there is one already.

    Raises:
        InvalidInput: its plan, settings or status cannot be read.
    """
    found, status = found or report_run(run, run.id), run.status()
    loads = link_loads(run)
    events = run_events(run, status, audit_records(run.home, run=run.id))
    figures = _figures(run, status, loads, events, found)
    parts = [
        _head(run, status, found),
        _late(run, found),
        '<h2>Loss and step time</h2><div class="two">',
        *(figures[name] for name in ("loss", "times", "terms", "throughput")),
        "</div><h2>Where a step's time goes, by term</h2>",
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
        _events_table(events),
        _last_words(status),
        "<h2>Settings</h2>",
        _settings_table(run),
    ]
    shown = [part for part in parts if isinstance(part, figure)]
    for i, part in enumerate(shown):
        part.name = f"figure_{i}"
    # The text travels as a variable: what others wrote is never read as a template. The library is our choice, not
    # file_html's: that adds links to what Panel may have registered in this process.
    library = Resources(mode="inline", components=["bokeh"]).js_raw
    variables = {
        "library": library,
        "parts": [("figure", p.name) if isinstance(p, figure) else ("text", p) for p in parts],
    }
    return file_html(
        shown,
        INLINE,
        title=f"{run.id} · hetplanner run report",
        template=_TEMPLATE,
        template_variables=variables,
        suppress_callback_warning=True,  # there is no server: nobody has to answer when a figure's width changes
    )


# -- figures --------------------------------------------------------------------------------------


def _figures(
    run: Run, status: RunStatus, loads: Sequence[LinkLoad], events: Sequence[RunEvent], found: RunReport
) -> dict[str, figure]:
    loss, times, rate = LossCurve(), StepTimes(), ThroughputCurve()
    loss.update([s for s, _ in found.losses], [v for _, v in found.losses], found.validation)
    timed = [(s.step, s.step_s, s.num_tokens / s.step_s) for s in run.steps() if s.step_s]
    steps = [step for step, _, _ in timed]
    times.update(steps, [s for _, s, _ in timed], found.step_s.get("predicted"), found.step_s.get("catalog"))
    rate.update(steps, [r for _, _, r in timed])
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
    began = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(status.created_unix_s))
    shape = f"{len(plan.stages)} stages × {max(len(s.replicas) for s in plan.stages)} replicas, {len(plan.ranks)} ranks"
    rate = run.tokens_per_s()
    facts = [
        ("State", status.state + (f", {status.message}" if status.message not in ("", status.state) else "")),
        ("Begun", began),
        ("Model", f"{problem.workload.name}, {problem.workload.dtype}, {shape}"),
        ("Cluster", f"{problem.cluster.name}, {len(problem.cluster.devices)} devices"),
        ("Steps", f"{found.steps} of {found.planned_steps}"),
        ("Loss", f"{found.losses[0][1]:.4f} → {found.losses[-1][1]:.4f}" if found.losses else "–"),
        ("Throughput", f"{rate:,.0f} tokens/s" if rate else "–"),
        ("Sent", f"{short_bytes(run.bytes_boundary)} between stages, {short_bytes(run.bytes_reduce)} for reductions"),
    ]
    failed = ' class="bad"' if status.state == "failed" else ""
    rows = [(escape(name), f"<span{failed if name == 'State' else ''}>{escape(text)}</span>") for name, text in facts]
    body = "".join(f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in rows)
    lead = f'<p class="lead">{escape(rehearsal)}{escape(found.difference)}</p>'
    return f"<h1>{escape(run.id)}</h1>{lead}<table>{body}</table>"


def _late(run: Run, found: RunReport) -> str:
    late, late_s = run.late
    lines = [s.text for s in stragglers(found.ranks, found.links, found.step_s.get("measured"))[:3]]
    if late:
        lines.append(f"The emulator handed over {late} deliveries late, {short_seconds(late_s)} in all.")
    return "".join(f'<p class="bad">{escape(line)}</p>' for line in lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> str:
    """A table whose last `numbers` columns are right-aligned; every cell is escaped."""
    shown = list(rows)
    first = len(head) - numbers
    body = "".join(
        "<tr>" + "".join(f"<td{' class=n' if i >= first else ''}>{escape(c)}</td>" for i, c in enumerate(row)) + "</tr>"
        for row in shown[:MAX_ROWS]
    )
    more = f'<p class="muted">… and {len(shown) - MAX_ROWS} more</p>' if len(shown) > MAX_ROWS else ""
    return f"<table><tr>{''.join(f'<th>{escape(h)}</th>' for h in head)}</tr>{body}</table>{more}"


def _terms_table(found: RunReport) -> str:
    sources = [s for s in ("catalog", "predicted", "measured", "refitted") if s in found.terms]
    rows = [[words, *(short_seconds(getattr(found.terms[s], n)) for s in sources)] for n, words in WORDS.items()]
    rows.append(["step", *(short_seconds(found.step_s[s]) for s in sources)])
    return _table(["term", *sources], rows, len(sources))


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
    return _table(head, rows, len(WORDS) + 1)


def _loads_table(loads: Sequence[LinkLoad]) -> str:
    if not loads:
        return '<p class="muted">No link was counted.</p>'
    rows = [
        [
            f"rank {x.source} · {x.source_device} → rank {x.target} · {x.target_device}",
            ", ".join(sorted(x.by_role)),
            short_bytes(x.bytes_per_step),
            short_rate(x.bytes_per_s),
            short_rate(x.limit_bytes_per_s),
            f"{100 * x.share:.1f} %",
            short_seconds(x.wait_s),
            str(x.late),
        ]
        for x in loads
    ]
    head = ["link", "what", "bytes a step", "rate", "limit", "used", "waited a step", "late"]
    return _table(head, rows, 6)


def _events_table(events: Sequence[RunEvent]) -> str:
    rows = [
        [
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e.time_s)),
            "" if e.rank is None else f"rank {e.rank}",
            e.text,
        ]
        for e in events
    ]
    return _table(["when", "who", "what"], rows[-MAX_ROWS:], 0)


def _last_words(status: RunStatus) -> str:
    if not status.last_lines:
        return ""
    who = "the launcher" if status.failed_rank is None else f"rank {status.failed_rank}"
    return f"<h2>Last words of {who}</h2><pre>{escape(chr(10).join(status.last_lines))}</pre>"


def _settings_table(run: Run) -> str:
    settings = run.config.model_dump(mode="json")
    rows = [[name.replace("_", " "), "–" if value is None else str(value)] for name, value in settings.items()]
    return _table(["setting", "value"], rows, 0)
