"""A run's memory, traffic and life, as the Run page shows them."""

import os
import time
from pathlib import Path

from bokeh.plotting import figure

from hetplanner.errors import InvalidInput
from hetplanner.plots.live import Lifelines, RunMemory, SwarmLife, TrafficMap
from hetplanner.plots.notebook.stills import shown
from hetplanner.runs.events import life_spans, run_events
from hetplanner.runs.loads import link_loads, site_loads
from hetplanner.runs.reader import RunReader
from hetplanner.runs.swarm_history import EVENTS_FILE, SwarmHistory


def memory_of_run(run: RunReader) -> figure:
    """Memory of every rank over the steps so far."""
    live = RunMemory()
    live.update(run.read_all())
    return shown(live)


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
    live = Lifelines()
    spans = life_spans(run, status, now_s)
    live.update(spans, run_events(run, status), run.labels, status.created_unix_s)
    return shown(live)


def swarm_life(run: RunReader | str | os.PathLike[str]) -> figure:
    """Who served which stage of a swarm when; joins, deaths and moves as marks, commits above.

    Args:
        run: of an elastic plan, or the folder of one.

    Raises:
        InvalidInput: no coordinator has written there.
    """
    folder = run.directory.path if isinstance(run, RunReader) else Path(run)
    history = SwarmHistory(folder).read_all()
    if history.first_s is None:
        raise InvalidInput(f"{folder.name}: holds no events of a swarm ({EVENTS_FILE}); give a run of an elastic plan")
    live = SwarmLife()
    live.update(history)
    return shown(live)
