"""Tells what the models behind a page know of the current plan, in HOME/state.json; runs before a server of stories.

A story compares what the page shows with it.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from hetplanner.atomic_files import write_whole
from hetplanner.ui.plan.models.carry import CarryModel
from hetplanner.ui.shell.models.texts import seconds_text
from tests.support.pages import report_unheld  # noqa: F401

SETTINGS = ("stages", "replicas", "global_batch", "seq_len", "objective", "preset")
set_state = CarryModel._set


def set_and_tell(self: CarryModel, state: str, reason: str = "") -> None:
    """In place of `CarryModel._set`."""
    set_state(self, state, reason)
    plan = self.plan.plan
    told = {
        "state": self.state,
        "words": self.words,
        "step": None if plan is None or plan.estimate is None else seconds_text(plan.estimate.step_s),
        "fits": plan is not None and not reason and plan.problem == self.plan.problem(),
        "settings": {name: getattr(self.plan, name) for name in SETTINGS},
        "cluster": self.plan.cluster.name,
    }
    write_whole(Path(os.environ["HETPLANNER_HOME"]) / "state.json", json.dumps(told))


CarryModel._set = set_and_tell
