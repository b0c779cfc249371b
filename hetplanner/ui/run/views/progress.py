"""Loss, step time and throughput as they grow, where a step's time goes, evaluations and the loads of experts."""

from hetplanner.plots.live import (
    AccuracyCurve,
    ExpertLoads,
    LossCurve,
    PerplexityCurve,
    RunTerms,
    StepTimes,
    ThroughputCurve,
)
from hetplanner.runs.reading.reader import RunReader
from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.run.views.section import Section
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.widgets.cards import Words, card, chart, full_width, page, show_if, side_by_side

HEIGHT = 280


class Progress(Section):
    """Four figures and the largest difference in a sentence; below, what a run evaluates and its experts, if any."""

    signals = ("steps_changed", "detail_changed")

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        super().__init__(model, session, dark)
        self.loss = LossCurve(height=HEIGHT, dark=dark)
        self.times = StepTimes(height=HEIGHT, dark=dark)
        self.terms = RunTerms(height=HEIGHT, dark=dark)
        self.throughput = ThroughputCurve(height=HEIGHT, dark=dark)
        self.perplexity, self.accuracy = (kind(height=HEIGHT, dark=dark) for kind in (PerplexityCurve, AccuracyCurve))
        self.experts = ExpertLoads(height=HEIGHT, dark=dark)
        self.figures = [self.loss, self.times, self.terms, self.throughput]
        self.figures += [self.perplexity, self.accuracy, self.experts]
        self.difference, self.evaluated = Words(), Words()
        self.held_out = side_by_side(
            card("Perplexity on held-out data", chart(self.perplexity)),
            card("Accuracy on held-out data", chart(self.accuracy)),
        )
        self.loads = full_width(card("Tokens of each expert", chart(self.experts)))
        self.view = page(
            side_by_side(
                card("Loss", chart(self.loss), self.evaluated.view),
                card("Step time: measured, predicted from profile, catalog", chart(self.times)),
            ),
            side_by_side(
                card("Where a step's time goes, mean over ranks", chart(self.terms), self.difference.view),
                card("Throughput", chart(self.throughput)),
            ),
            self.held_out,
            self.loads,
        )
        self._steps_shown: tuple[object, int] = (None, -1)

    def show(self) -> None:
        """Curves only where there are new steps."""
        detail = self.model.detail
        self.terms.update(detail.comparison if detail is not None else None)
        found = None if detail is None else detail.comparison
        self.difference.set((found.difference or found.summary) if found else "")  # the summary's numbers stand above
        reader = self.model.reader
        self._show_held_out(reader)
        steps = reader.steps() if reader is not None else []
        if reader is None or not steps:
            self.loss.update([], [])
            self.times.update([], [])
            self.throughput.update([], [])
            self._steps_shown = (None, -1)
            return
        validation = reader.validation_losses()
        shown = (reader, len(steps) + len(validation))
        if shown == self._steps_shown:
            return
        self._steps_shown = shown
        losses = [(s.step, s.loss) for s in steps if s.loss is not None]
        self.loss.update([s for s, _ in losses], [v for _, v in losses], validation)
        timed = [(s.step, s.step_s, s.num_tokens / s.step_s) for s in steps if s.step_s]
        prediction = reader.prediction() or {}
        numbers = [step for step, _, _ in timed]
        self.times.update(numbers, [s for _, s, _ in timed], prediction.get("step_s"), prediction.get("catalog_step_s"))
        self.throughput.update(numbers, [rate for _, _, rate in timed], reader.any_plan.problem.workload.token_word)

    def _show_held_out(self, reader: RunReader | None) -> None:
        """Evaluations and loads of experts; a run without them has no cards for them."""
        evaluations = reader.evaluations() if reader is not None else []
        last = evaluations[-1] if evaluations else None
        self.evaluated.set("" if last is None else f"Loss on held-out data after {last.step + 1} steps: {last}")
        self.perplexity.update(evaluations)
        self.accuracy.update(evaluations)
        show_if(self.held_out, bool(evaluations))
        loads = reader.expert_loads() if reader is not None else {}
        self.experts.update(loads)
        show_if(self.loads, bool(loads))
