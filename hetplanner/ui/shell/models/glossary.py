"""The words of the pages, each defined once: a sentence, and where it helps a picture of a step's time."""

from dataclasses import dataclass
from html import escape

from hetplanner.cost.terms import TERM_SENTENCES

_COLOURS = {"compute": "#4477AA", "transfer": "#EE6677", "reduction": "#228833"}
"""As in the figures of costs."""


@dataclass(frozen=True)
class Term:
    """A word and its meaning.

    Attributes:
        sentence: what it is, in one sentence.
        bars: rows of a picture; each row is (kind, width) pairs, kind a key of the colours or '' for nothing done.
        marked: kinds that the word is about; the picture shows the others faintly.
    """

    sentence: str
    bars: tuple[tuple[tuple[str, int], ...], ...] = ()
    marked: tuple[str, ...] = ()

    def picture(self) -> str:
        """The picture as SVG; '' without one."""
        if not self.bars:
            return ""
        parts = []
        for row, bar in enumerate(self.bars):
            left = 0
            for kind, width in bar:
                opacity = 1 if kind in self.marked else 0.25
                look = (
                    f'fill="{_COLOURS[kind]}" opacity="{opacity}"'
                    if kind
                    else f'fill="none" stroke="currentColor" stroke-dasharray="3 2" opacity="{opacity}"'
                )
                parts.append(f'<rect x="{left + 1}" y="{row * 16 + 1}" width="{width - 2}" height="12" {look}/>')
                left += width
        width = max(sum(width for _, width in bar) for bar in self.bars)
        size = f'width="{width}" height="{16 * len(self.bars)}"'
        return f'<svg {size} role="img" aria-label="{escape(self.sentence)}">{"".join(parts)}</svg>'


_STEP = (
    (("compute", 60), ("transfer", 24), ("", 40), ("compute", 40), ("reduction", 36)),
    (("", 40), ("compute", 60), ("transfer", 24), ("compute", 40), ("reduction", 36)),
)
"""Two devices in one step."""

_TERMS = Term(
    "; ".join(f"{word}: {sentence}" for word, sentence in TERM_SENTENCES.items()) + ".",
    _STEP,
    ("compute", "", "transfer", "reduction"),
)

GLOSSARY = {
    "Step time": Term("The time from the start of one optimizer step to the start of the next.", _STEP, ("compute",)),
    "Throughput": Term("Tokens of the global batch divided by the step time."),
    "Idle": Term(
        "The share of the devices' time in which they compute nothing: they wait for others, for transfers or for a"
        " gradient reduction.",
        _STEP,
        ("", "transfer", "reduction"),
    ),
    "Waiting": Term(
        f"The share of the devices' time in which {TERM_SENTENCES['waiting']}.",
        _STEP,
        ("",),
    ),
    "Tightest memory": Term(
        "The device that the plan fills most: weights, gradients, optimizer state, and all micro-batches that may be in"
        " flight at its stage, compared with the device's memory without the part of driver and libraries."
    ),
    "Memory in use": Term(
        "The most that a device holds at one time of the simulated step, where it comes nearest to its memory. It is"
        " less than the plan allows for where fewer micro-batches come together than may be in flight."
    ),
    "Busiest link": Term("The link that carries bytes for the greatest share of the step."),
    "Cost terms against baselines": _TERMS,
    "Where each stage's time goes": _TERMS,
    "Where a step's time goes, mean over ranks": _TERMS,
    "Convergence": Term(
        "The best plan so far over the seconds of the search, with the median and the middle 80 % of the plans that"
        " the search holds, the baselines and the lower bound."
    ),
    "Stage × replica": Term(
        "One column a stage, one row a replica: the device that computes this stage for this replica, in the colour of"
        " its site."
    ),
    "Shapes tried": Term(
        "Each mark is a number of stages and of replicas, at the value of the best plan met with it; the larger, the"
        " longer it was searched."
    ),
    "Where the best placement comes from": Term(
        "Each mark is a placement on the way to the best one, a line joins it to its parents. Annealing changes one"
        " placement in small steps; a crossing takes parts of two."
    ),
    "Time against cost": Term(
        "Each point is a plan that no other one beats in both step time and dollars per million tokens."
    ),
    "Memory per device": Term(
        "The memory that the plan reserves on each device, or on a group of devices together: weights, their gradients,"
        " optimizer states, the activations of all micro-batches that may be in flight, and buffers: temporaries of a"
        " backward and messages. The outline is the memory less what driver and libraries take; it is orange from 90 %"
        " of it, red above it."
    ),
    "Late deliveries": Term("Messages that the emulated links handed over too late: this machine was busy."),
    "rank order": Term("The best plan whose devices serve stages in the order of the file, in any shape."),
    "lower bound": Term("No plan of this problem can be below it; the best one may lie above."),
}
