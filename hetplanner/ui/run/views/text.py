"""Text from the trained model."""

from html import escape
from typing import Any

import panel as pn
import panel_material_ui as pmui

from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.run.models.text import MAX_PROMPT
from hetplanner.ui.run.views.section import Section
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.widgets.binding import bind, on_click
from hetplanner.ui.widgets.buttons import Button
from hetplanner.ui.widgets.cards import CODE_STYLE, COLOURS, FONT, Words, card, full_width, html_pane, page, set_html


class TextSection(Section):
    """A prompt, a button, and what the model makes of it."""

    signals = ("status", "detail_changed")

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        super().__init__(model, session, dark)
        text = model.text
        small: dict[str, Any] = {"size": "small", "margin": (6, 6)}
        self.prompt = pmui.TextAreaInput(
            label="Prompt", rows=3, max_length=MAX_PROMPT, sizing_mode="stretch_width", margin=(8, 14)
        )
        bind(self.prompt, text, "prompt", session)
        numbers = [
            bind(pmui.IntInput(label="Bytes", start=1, end=2000, width=110, **small), text, "tokens", session),
            bind(
                pmui.FloatInput(label="Temperature", start=0.0, end=5.0, step=0.1, width=130, **small),
                text,
                "temperature",
                session,
            ),
            bind(pmui.IntInput(label="Seed", start=0, end=2**31 - 1, width=110, **small), text, "seed", session),
        ]
        self.generate = Button(label="Generate", icon="edit_note", variant="contained", margin=(10, 6))
        on_click(self.generate, lambda _: text.generate())
        self.words = Words()
        self.error = html_pane(margin=(0, 14, 6, 14))
        self.output = html_pane(margin=(4, 14, 14, 14))
        self.view = page(
            full_width(
                card(
                    "Text from the trained model",
                    self.words.view,
                    self.prompt,
                    pn.Row(*numbers, self.generate, margin=(0, 8)),
                    self.error,
                    self.output,
                )
            )
        )
        text.param.watch(lambda _: self.show(), ["busy", "text", "error"])
        session.param.watch(lambda _: self.show(), "unlocked")

    def show(self) -> None:
        """The button's state, the text, or why there is none."""
        text, model = self.model.text, self.model
        ready = model.has_model
        self.generate.disabled = text.busy or not ready
        self.generate.label = "Generating…" if text.busy else "Generate"
        if not ready:
            self.words.set("A model is saved when a run ends or is stopped; then it can write here.")
        elif not self.session.unlocked:
            self.words.set("Generating starts a process: type the launch token above and press Unlock.")
        else:
            self.words.set("A process of its own loads the model and writes on from the prompt; it takes some seconds.")
        style = f"{FONT}font-size:13px;color:{COLOURS['bad']}"
        set_html(self.error, f'<div style="{style}" role="alert">{escape(text.error)}</div>' if text.error else "")
        shown = f'<pre tabindex="0" style="{CODE_STYLE}" data-generated>{escape(text.text)}</pre>' if text.text else ""
        set_html(self.output, shown)
