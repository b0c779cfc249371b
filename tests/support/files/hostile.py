"""Names that a browser would run if they became markup, and a cluster and runs that bear them."""

import json
from pathlib import Path

from hetplanner.cluster.model import Cluster
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.directory import create_run_directory
from hetplanner.runs.status import RunStatus, write_status
from hetplanner.schema import checked
from tests.support.plans.factories import chain_plan

IMG = "<img src=x onerror=window.pwned='img'>"
SVG = "\"'><svg onload=window.pwned='svg'>"
SCRIPT = "</script><script>window.pwned='script'</script>"
TEMPLATE = "@{index}{safe} ${7*7} {{7*7}} $$\\href{javascript:alert(1)}{x}$$"
NAMES = (IMG, SVG, SCRIPT, TEMPLATE)
MARKUP = ("<img", "<svg onload", "<script>window")


def hostile_cluster() -> Cluster:
    """Four devices at four sites; every name that a file may give is hostile."""
    names = [f"{name} {i}" for i, name in enumerate(NAMES)]
    links = [{"from": a, "to": b, "latency": "10 ms", "bandwidth": "50 Mbit/s"} for a in names for b in names]
    data = {
        "format": "hetplanner/cluster@1",
        "name": IMG,
        "sites": [{"name": n, "latitude": 10.0 * i, "longitude": 30.0 * i} for i, n in enumerate(names)],
        "hosts": [{"id": f"host {n}", "site": n} for n in names],
        "devices": [{"id": f"d {n}", "kind": "CPU generic", "host": f"host {n}"} for n in names],
        "site_links": links,
    }
    return checked(Cluster, {k: v for k, v in data.items() if k != "format"}, "hostile", from_file=True)


def hostile_plan():
    """Two stages with two replicas on the hostile cluster, for a model of a hostile name."""
    plan = chain_plan(shares=(8, 8), cuts=(5,), cluster=hostile_cluster())
    workload = plan.problem.workload.replace(name=SCRIPT)
    return plan.replace(problem=plan.problem.replace(workload=workload, rehearsal_of=IMG))


def hostile_run(home: Path) -> str:
    """A failed run whose plan, messages and logs are hostile; returns its id."""
    run_id, directory = create_run_directory(hostile_plan(), TrainConfig(steps=5, data="/no/" + IMG), home=home)
    status = RunStatus(
        run=run_id, state="failed", message=f"rank 1 died: {SVG}", created_unix_s=1.0, started_unix_s=2.0,
        ended_unix_s=9.0, ranks=4, failed_rank=1, last_lines=NAMES, rehearsal=True,
    )  # fmt: skip
    write_status(directory.status_file, status)
    step = {"type": "step", "loss_sum": 20.0, "num_tokens": 10, "boundary_bytes": 5, "reduce_bytes": 0,
            "grad_norm": None, "memory_bytes": 1}  # fmt: skip
    for rank in range(4):
        lines: list[dict] = [{"type": "phase", "name": "training", "time_s": 1.0}, {"type": "origin", "unix_s": 2.0}]
        lines += [step | {"step": i, "start_s": i * 1.0, "end_s": i + 0.5} for i in range(3)]
        lines.append({"type": "error", "message": IMG, "traceback": SVG})
        directory.telemetry_file(rank).write_text("".join(json.dumps(line) + "\n" for line in lines))
        directory.log_file(rank).write_text("\n".join(NAMES) + "\n")
    directory.launcher_log.write_text("\n".join(NAMES) + "\n")
    return run_id
