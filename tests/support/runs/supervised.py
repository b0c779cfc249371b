"""A supervisor of runs, ticked by the test that waits for it."""

from tests.support.processes import patience


def until(supervisor, condition):
    """Ticks until the condition holds."""
    patience.until(lambda: condition() or supervisor.tick(), lambda: [r.status for r in supervisor._runs.values()])


def end_runs(supervisor):
    """Stops what runs, and waits for it."""
    for run_id in supervisor.live_ids:
        supervisor.stop(run_id)
    until(supervisor, lambda: supervisor.num_live == 0)


def reach(supervisor, run_id, state):
    """The run's status once it is in this state."""
    until(supervisor, lambda: supervisor.status(run_id).state == state)
    return supervisor.status(run_id)
