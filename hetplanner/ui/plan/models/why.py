"""Why this plan: what its gain over a launcher's plan of the same shape is made of, and what holds it back."""

from dataclasses import dataclass
from typing import Any

import param

from hetplanner.plan.model import Plan
from hetplanner.planners.variants.attribution import CHOICE_WORDS
from hetplanner.ui.jobs.compute import ComputeWorker, Ticket
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import percent_text, seconds_text, shape_text, value_text

INTERLEAVED = "its devices serve several stages each; a launcher has no plan of this shape to compare it with."
WORTH_SAYING = 0.005
FEW_TRIED = 1000
"""After fewer placements nothing is concluded from a search that found no better one."""


@dataclass(frozen=True)
class Part:
    """A choice of the plan (or several together), its share of the gain, and what the plan takes with it."""

    name: str
    share: float
    value: str


class WhyModel(param.Parameterized):
    """Explains one plan at a time; the numbers come from the compute worker's process."""

    plan = param.ClassSelector(class_=Plan, default=None, doc="What is explained; None: nothing yet.")
    gain = param.Dict(default=None, allow_None=True, doc="Of `Gain.to_data`; {}: there is no baseline.")
    error = param.String(default="")
    waiting = param.Boolean(default=False)

    def __init__(self, session: Session, compute: ComputeWorker, **params: Any) -> None:
        super().__init__(**params)
        self._session, self._compute = session, compute
        self._ticket: Ticket | None = None

    def explain(self, plan: Plan | None) -> None:
        """Asks for the explanation of a plan; what was said of another one goes."""
        if plan is self.plan and (self.waiting or self.gain is not None):
            return
        self._ticket = None
        ask = plan is not None and not plan.is_interleaved
        self.param.update(plan=plan, gain=None, error="" if ask or plan is None else INTERLEAVED, waiting=ask)
        if plan is not None and ask:
            self._ticket = self._compute.ask(f"{self._session.id} why", "explain", plan, None, self._session.answered)

    def poll(self) -> None:
        """Takes the answer when it is there."""
        ticket = self._ticket
        if ticket is None or not ticket.done:
            return
        self._ticket = None
        self.param.update(gain=ticket.result, error=ticket.error, waiting=False)

    @property
    def parts(self) -> list[Part]:
        """The choices in the order in which they are made: what gains most comes first."""
        rows = self.gain["parts"].items() if self.gain else ()
        return [Part(name, row["share"], value_text(row["value"], self._objective)) for name, row in rows]

    @property
    def baseline(self) -> str:
        """What the plan is compared with takes."""
        return value_text(self.gain["baseline"], self._objective) if self.gain else ""

    @property
    def sentence(self) -> str:
        """Why this plan, in one plain sentence."""
        plan, gain = self.plan, self.gain
        if plan is None:
            return ""
        if self.error:
            return self.error
        if gain is None:
            return "Comparing the plan with the same shape as a launcher places it …"
        shape = shape_text(plan)
        if not gain:
            return f"{shape} as a launcher places them do not fit the devices' memory; this plan does."
        if not gain["parts"]:
            same = f"It is no better than {shape} as a launcher places them, with equal layers"
            tried = plan.provenance.evaluations
            if plan.provenance.budget is not None and tried < FEW_TRIED:
                return f"{same}, but only {tried:,} placements were tried: search longer."
            return f"{same}: here the placement of devices does not matter."
        value, base = value_text(gain["value"], self._objective), self.baseline
        lead = (
            f"It {_VERBS[self._objective]} {value} instead of the {base} of {shape} as a launcher places them"
            " (devices in file order, equal layers, usual depth)"
        )
        shares = [part for part in self.parts if part.share >= WORTH_SAYING]
        said = [f"{percent_text(part.share, 0)} from its {_named(part.name)}" for part in shares[:4]]
        worse = [part for part in self.parts if part.share <= -WORTH_SAYING]
        costs = [f"its {_named(part.name)} cost {percent_text(-part.share, 0)}" for part in worse]
        paid = f" ({_joined(costs)} of it)" if costs else ""
        return f"{lead}; of what that saves, {_joined(said)}{paid}."

    @property
    def bottleneck(self) -> str:
        """What holds the plan back, and what its removal would gain."""
        estimate = self.plan.estimate if self.plan is not None else None
        return "" if estimate is None else bottleneck_text(estimate)

    @property
    def _objective(self) -> str:
        return self.plan.problem.objective if self.plan is not None else "step-time"


_VERBS = {"step-time": "takes", "cost": "costs", "dtfm": "is scored"}


def bottleneck_text(estimate: Any) -> str:
    """'links Tokyo ↔ London: without it a step would take 3.2 s (23 % less)'."""
    bottleneck, step_s = estimate.bottleneck, estimate.step_s
    gain = 1.0 - bottleneck.step_s_without / step_s if step_s > 0 else 0.0
    if gain < WORTH_SAYING:
        return f"{bottleneck.name}, but without it a step would be no shorter: nothing single holds it back"
    without = f"{seconds_text(bottleneck.step_s_without)} ({percent_text(gain, 0)} less)"
    return f"{bottleneck.name}; if it took no time, a step would take {without}"


def _named(name: str) -> str:
    """A choice in words; several together without their explanations."""
    return CHOICE_WORDS[name] if name in CHOICE_WORDS else _joined(name.split(" + "))


def _joined(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
