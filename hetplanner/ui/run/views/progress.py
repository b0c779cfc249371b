"""Loss, step time and throughput as they grow, and where a step's time goes."""

from hetplanner.plots.live import LossCurve, RunTerms, StepTimes, ThroughputCurve
from hetplanner.ui.run.models.run import RunModel
from hetplanner.ui.run.views.section import Section
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.widgets.cards import Words, card, chart, page, side_by_side

HEIGHT = 280


class Progress(Section):
    """Four figures and the largest difference in a sentence."""

    signals = ("steps_changed", "detail_changed")

    def __init__(self, model: RunModel, session: Session, dark: bool) -> None:
        super().__init__(model, session, dark)
        self.loss = LossCurve(height=HEIGHT, dark=dark)
        self.times = StepTimes(height=HEIGHT, dark=dark)
        self.terms = RunTerms(height=HEIGHT, dark=dark)
        self.throughput = ThroughputCurve(height=HEIGHT, dark=dark)
        self.figures = [self.loss, self.times, self.terms, self.throughput]
        self.difference = Words()
        self.view = page(
            side_by_side(
                card("Loss", chart(self.loss)),
                card("Step time: measured, predicted from profile, catalog", chart(self.times)),
            ),
            side_by_side(
                card("Where a step's time goes, mean over ranks", chart(self.terms), self.difference.view),
                card("Throughput", chart(self.throughput)),
            ),
        )
        self._steps_shown: tuple[object, int] = (None, -1)

    def show(self) -> None:
        """Curves only where there are new steps."""
        detail = self.model.detail
        self.terms.update(detail.comparison if detail is not None else None)
        found = None if detail is None else detail.comparison
        self.difference.set((found.difference or found.summary) if found else "")  # the summary's numbers stand above
        reader = self.model.reader
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
