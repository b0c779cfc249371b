"""The side bar: model, settings, and the buttons that start, stop and go on with a search."""

from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.widgets.binding import bind, on_click, upload_button
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import ErrorWords, Words, html_pane, progress_bar, set_html
from hetplanner.ui.widgets.form import SettingsPanel

_BUTTON: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": (3, 5)}
_IN_SIGHT = {"position": "sticky", "bottom": "0", "z-index": "2", "background": "var(--panel-surface-color)"}
"""Open groups may be longer than the window: the buttons stay."""


def settings_view(app: PlannerApp) -> pn.Column:
    """What the side bar holds."""
    form = SettingsPanel(app.settings, app.search, margin=(0, 10))
    search = pn.Column(*_search_part(app), sizing_mode="stretch_width", margin=0, styles=_IN_SIGHT)
    return pn.Column(*_model_part(app), form, search, sizing_mode="stretch_width", margin=0)


def _pair(*widgets: Any) -> pn.Row:
    return pn.Row(*widgets, sizing_mode="stretch_width", margin=(0, 5))


def _model_part(app: PlannerApp) -> list[Any]:
    plan = app.plan
    preset = pmui.Select(
        label="Model",
        options=plan.param.preset.objects,
        size="small",
        sizing_mode="stretch_width",
        margin=(14, 10, 2, 10),  # below the header, which would cut its label
    )
    bind(preset, plan, "preset", app.session)

    def take(files: dict[str, bytes]) -> bool:
        return plan.upload_model(*next(iter(files.items())))

    upload = upload_button(
        "config.json or workload", take, plan.refuse_model, larger="a larger workload is planned on the command line"
    )
    name, refused = Words(margin=(2, 10)), ErrorWords(margin=(2, 10))

    def show_uploaded(*_: Any) -> None:
        name.set(plan.model_text)
        refused.set(plan.upload_error)

    plan.param.watch(show_uploaded, ["uploaded", "preset", "upload_error"])
    show_uploaded()
    return [preset, upload, refused.view, name.view]


def _search_part(app: PlannerApp) -> list[Any]:
    plan = app.plan
    start = Button(label="Search", icon="play_arrow", variant="contained", **_BUTTON)
    stop = Button(label="Stop", icon="stop", variant="outlined", color="error", **_BUTTON)
    resume = Button(label="Resume", icon="redo", variant="outlined", **_BUTTON)
    reseed = Button(label="Other seed", icon="casino", variant="outlined", **_BUTTON)
    on_click(start, lambda _: app.search())
    on_click(stop, lambda _: plan.stop())
    on_click(resume, lambda _: app.resume())
    on_click(reseed, lambda _: app.reseed())
    bar = html_pane(margin=(6, 10, 4, 10))
    text = Words(margin=(2, 10, 6, 10), size=12)

    def show_state(*_: Any) -> None:
        start.disabled, stop.disabled = plan.searching, not plan.searching
        resume.disabled, reseed.disabled = not plan.can_resume, not plan.can_reseed
        set_html(bar, progress_bar(plan.bar))
        text.set(plan.progress_text)

    plan.param.watch(show_state, ["state", "phase", "plan", "cluster", "planner", "points_changed", "clock_changed"])
    show_state()
    return [_pair(start, stop), _pair(resume, reseed), bar, text.view]
