"""What the Export page shows: the plan file's text, and the lines that run it elsewhere."""

import json

from hetplanner.plan.files import plan_to_data
from hetplanner.plan.model import Plan

MAX_SHOWN = 300_000


def plan_text(plan: Plan) -> str:
    """The plan file, as `save_plan` writes it."""
    return json.dumps(plan_to_data(plan), indent=1) + "\n"


def shown_text(plan: Plan) -> str:
    """The plan file as the page shows it: cut where a browser would suffer."""
    text = plan_text(plan)
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[:MAX_SHOWN]}\n… {len(text) - MAX_SHOWN:,} characters more: download the file"


def cli_lines(plan: Plan | None) -> str:
    """Simulate the plan, then run it here on emulated links."""
    lines = ["hetplanner simulate plan.json --trace trace.json   # open trace.json in Perfetto"]
    if plan is not None and plan.problem.rehearsal_of is None and len(plan.ranks) > 8:
        lines.append("# a plan of this size needs its hosts; on one machine rehearse it (Run page)")
    lines += [
        "hetplanner train plan.json --emulate-links --steps 100",
        "hetplanner runs list",
    ]
    return "\n".join(lines)


def torchrun_line(plan: Plan | None) -> str:
    """What `hetplanner train` runs, for one machine and for several by hand."""
    ranks = len(plan.ranks) if plan is not None else 4
    return (
        "# run.json (steps, seed, data) stands beside plan.json;\n"
        "# `hetplanner train plan.json --emulate-links --dry-run` prints the exact command of this machine\n"
        "OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo \\\n"
        "torchrun --rdzv-backend=hetplanner-loopback --rdzv-endpoint=127.0.0.1:29511 --nnodes=1 \\\n"
        f"  --nproc-per-node={ranks} --max-restarts=0 -m hetplanner.runtime.worker plan.json"
    )


def notebook_snippet(plan: Plan | None) -> str:
    """The plan in a notebook."""
    return (
        "import hetplanner as hp\n"
        'plan = hp.load_plan("plan.json")\n'
        "plan.estimate\n"
        "hp.plots.gantt(hp.simulate(plan))\n"
        "run = hp.launch(plan, emulate_links=True, steps=100)"
    )
