"""The dashboard: `panel serve apps/planner.py --warm --address 127.0.0.1 --port 5006`."""

from pathlib import Path

from hetplanner.ui.shell.views.shell import planner_page

planner_page(Path(__file__).resolve().parents[1] / "sample_clusters").servable()
