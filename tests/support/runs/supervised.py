"""A supervisor of runs, ticked by the test that waits for it."""

from tests.support.processes import patience


def until(supervisor, condition):
    """Ticks until the condition holds."""
    patience.until(lambda: condition() or supervisor.tick(), lambda: [r.status for r in supervisor._runs.values()])


def reach(supervisor, run_id, state):
    """The run's status once it is in this state."""
    until(supervisor, lambda: supervisor.status(run_id).state == state)
    return supervisor.status(run_id)
