"""The side bar: model, shape, search settings, start and stop."""

from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.ui.models.app import PlannerApp
from hetplanner.ui.models.plan import OBJECTIVES
from hetplanner.ui.views.binding import bind, on_click, upload_button
from hetplanner.ui.views.cards import Words, heading

_SMALL: dict[str, Any] = {"size": "small", "sizing_mode": "stretch_width", "margin": (4, 8)}


def settings_view(app: PlannerApp) -> pn.Column:
    """What the side bar holds."""
    return pn.Column(*_model_part(app), *_shape_part(app), *_search_part(app), sizing_mode="stretch_width", margin=0)


def _pair(*widgets: Any) -> pn.Row:
    return pn.Row(*widgets, sizing_mode="stretch_width", margin=0)


def _number(app: PlannerApp, name: str, text: str, hint: str = "") -> pmui.IntInput:
    bounds = app.plan.param[name].bounds
    widget = pmui.IntInput(label=text, start=bounds[0], end=bounds[1], description=hint, **_SMALL)
    return bind(widget, app.plan, name, app.session)


def _model_part(app: PlannerApp) -> list[Any]:
    plan = app.plan
    preset = bind(pmui.Select(label="Model", options=plan.param.preset.objects, **_SMALL), plan, "preset", app.session)

    def take(files: dict[str, bytes]) -> None:
        plan.upload_model(*next(iter(files.items())))

    upload = upload_button("config.json or workload", ".json", app.session, take)
    name = Words(margin=(2, 10))

    def show_uploaded(*_: Any) -> None:
        name.set(plan.uploaded_text)

    sizes = {
        name: _number(app, name, text)
        for name, text in (
            ("layers", "Layers"),
            ("seq_len", "Tokens/sequence"),
            ("global_batch", "Global batch"),
            ("micro_batch", "Micro-batch"),
        )
    }

    def lock_fixed(*_: Any) -> None:
        for key, widget in sizes.items():
            widget.disabled = key in plan.fixed_settings

    for show in (show_uploaded, lock_fixed):
        plan.param.watch(show, ["uploaded", "preset"])
        show()
    return [
        heading("Model"),
        preset,
        upload,
        name.view,
        _pair(sizes["layers"], sizes["seq_len"]),
        _pair(sizes["global_batch"], sizes["micro_batch"]),
    ]


def _shape_part(app: PlannerApp) -> list[Any]:
    codecs = pmui.MultiChoice(
        label="Codecs allowed", options=app.plan.param.codecs.objects, sizing_mode="stretch_width", margin=(4, 8)
    )
    ratio = pmui.FloatInput(
        label="Greatest ratio (topk, adatopk)",
        start=app.plan.param.max_ratio.bounds[0],
        end=app.plan.param.max_ratio.bounds[1],
        step=10.0,
        description="Dense bytes over bytes sent.",
        **_SMALL,
    )
    free = "0 lets the planner choose."
    return [
        heading("Shape"),
        _pair(_number(app, "stages", "Stages", free), _number(app, "replicas", "Replicas", free)),
        bind(codecs, app.plan, "codecs", app.session),
        bind(ratio, app.plan, "max_ratio", app.session),
    ]


def _search_part(app: PlannerApp) -> list[Any]:
    plan, session = app.plan, app.session
    objective = bind(pmui.Select(label="Objective", options=OBJECTIVES, **_SMALL), plan, "objective", session)
    planner = bind(pmui.Select(label="Planner", options=plan.param.planner.objects, **_SMALL), plan, "planner", session)
    starts = bind(pmui.Select(label="Starts", options=plan.param.starts.objects, **_SMALL), plan, "starts", session)
    budget = pmui.FloatInput(
        label="Budget (s)", start=plan.param.budget_s.bounds[0], end=plan.param.budget_s.bounds[1], step=5.0, **_SMALL
    )
    start = pmui.Button(
        label="Search", icon="play_arrow", variant="contained", sizing_mode="stretch_width", margin=(8, 8)
    )
    stop = pmui.Button(
        label="Stop", icon="stop", variant="outlined", color="error", sizing_mode="stretch_width", margin=(8, 8)
    )
    on_click(start, lambda _: app.search())
    on_click(stop, lambda _: plan.stop())
    bar = pmui.LinearProgress(value=0, variant="determinate", sizing_mode="stretch_width", margin=(2, 8))
    text = Words(margin=(2, 10, 4, 10), size=12)

    def show_state(*_: Any) -> None:
        start.disabled, stop.disabled = plan.searching, not plan.searching
        waiting = plan.state == "starting" and not plan.points
        bar.variant = "indeterminate" if waiting else "determinate"
        bar.value = round(100 * plan.progress)
        text.set(plan.progress_text)

    plan.param.watch(show_state, ["state", "phase", "points_changed"])
    show_state()
    return [
        heading("Search"),
        objective,
        _pair(planner, starts),
        _pair(_number(app, "seed", "Seed"), bind(budget, plan, "budget_s", session)),
        _pair(start, stop),
        bar,
        text.view,
    ]
