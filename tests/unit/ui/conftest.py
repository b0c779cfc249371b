"""The page's view-models, with a search service that only keeps what it was asked for."""

import pytest

from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from tests.unit.ui.shell.test_ui_models import SAMPLES, TOKEN, FakeService


@pytest.fixture
def app(tmp_path):
    """A session with a small problem."""
    made = PlannerApp(LaunchGuard(TOKEN), FakeService(), SAMPLES, tmp_path)
    made.cluster.sample = "laptop_8_cities"
    made.plan.preset = "tiny-gpt"
    return made
