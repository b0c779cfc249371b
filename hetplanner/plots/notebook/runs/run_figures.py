"""A run's memory, hosts, traffic and life, as the Run page shows them."""

import os
import time
from pathlib import Path

from bokeh.plotting import figure

from hetplanner.cost.elastic.swarm_costs import expected_speeds, group_names
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plots.live import HostLoads, HostTraffic, Lifelines, RunMemory, SwarmLife, SwarmWiring, TrafficMap
from hetplanner.plots.notebook.stills import shown, still
from hetplanner.runs.reading.events import life_spans, run_events
from hetplanner.runs.reading.loads import link_loads, site_loads
from hetplanner.runs.reading.reader import RunReader
from hetplanner.runs.reading.swarm_history import EVENTS_FILE, SwarmHistory


def memory_of_run(run: RunReader) -> figure:
    """Memory of every rank over the steps so far."""
    return still(RunMemory(), run.read_all())


def load_of_hosts(run: RunReader) -> figure:
    """Share in use of every host's processors (solid) and GPUs (dashed), by all that ran there."""
    return still(HostLoads(), run.read_all())


def traffic_of_hosts(run: RunReader) -> figure:
    """What every host sent (solid) and received (dashed) through its network cards; one host alone over loopback."""
    return still(HostTraffic(), run.read_all())


def traffic_of_run(run: RunReader) -> figure:
    """What the ranks have sent between sites, against what the links carry."""
    run.read_all()
    live = TrafficMap()
    live.show_loads(run.plan.problem.cluster, site_loads(run, link_loads(run)))
    return shown(live)


def life_of_run(run: RunReader) -> figure:
    """What every rank was doing from start to end, with checkpoints, restarts and failures."""
    run.read_all()
    status = run.status()
    now_s = status.ended_unix_s if status.ended_unix_s is not None else time.time()
    spans = life_spans(run, status, now_s)
    return still(Lifelines(), spans, run_events(run, status), run.labels, status.created_unix_s)


def swarm_life(run: RunReader | str | os.PathLike[str]) -> figure:
    """Who served which stage of a swarm when; joins, deaths and moves as marks, commits above.

    Args:
        run: of an elastic plan, or the folder of one.

    Raises:
        InvalidInput: no coordinator has written there.
    """
    folder, history = _history_of(run)
    plan = _elastic_plan(run, folder)
    return still(SwarmLife(), history, None, group_names(plan) if plan else None)


def swarm_flow(run: RunReader | str | os.PathLike[str], last: int = 20) -> figure:
    """Which way a swarm's micro-batches went from stage to stage, and how fast each peer was by its own work.

    Args:
        run: of an elastic plan, or the folder of one.
        last: committed steps to sum up, at most `swarm_history.KEPT_STEPS`.

    Raises:
        InvalidInput: no coordinator has written there, or none that tells what the peers did; `last` is below 1.
    """
    folder, history = _history_of(run)
    flow = history.flow(last)
    if not flow.peers:
        raise InvalidInput(f"{folder.name}: tells of no step what its peers did; runs of older versions do not")
    plan = _elastic_plan(run, folder)
    of_plan = (len(plan.stages), None, expected_speeds(plan), group_names(plan)) if plan is not None else ()
    return still(SwarmWiring(), flow, *of_plan)


def _elastic_plan(run: RunReader | str | os.PathLike[str], folder: Path) -> ElasticPlan | None:
    """The plan of a swarm's run; None for a bare folder of a coordinator."""
    reader = run if isinstance(run, RunReader) else RunReader(folder)
    plan = reader.any_plan if reader.directory.plan_file.exists() else None
    return plan if isinstance(plan, ElasticPlan) else None


def _history_of(run: RunReader | str | os.PathLike[str]) -> tuple[Path, SwarmHistory]:
    folder = run.directory.path if isinstance(run, RunReader) else Path(run)
    history = SwarmHistory(folder).read_all()
    if history.first_s is None:
        raise InvalidInput(f"{folder.name}: holds no events of a swarm ({EVENTS_FILE}); give a run of an elastic plan")
    return folder, history
