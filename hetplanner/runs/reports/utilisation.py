"""How busy a run's devices are over the model's width: the square-cube law, measured.

    utilisation    share of a step in which a rank computes (forward and backward), mean over ranks

Predicted is the simulation from the ranks' own profiles, written before the first step; measured is the median over
steps. `hetplanner.cost.square_cube` has what both come near where many micro-batches are in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median

from hetplanner.errors import InvalidInput
from hetplanner.runs.reading.reader import RunReader
from hetplanner.simulator.terms import steps_with_beginning, terms_of_ranks

TRACED_STEPS = 20
"""Steps that are looked at, the last ones."""


@dataclass(frozen=True, slots=True)
class Utilisation:
    """One run.

    Attributes:
        hidden: width of its model.
        predicted, measured: share of a step in which a rank computes.
        least, most: of the steps measured.
    """

    hidden: int
    predicted: float
    measured: float
    least: float
    most: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0


def utilisation_of_run(run: RunReader) -> Utilisation:
    """What share of a run's steps its ranks compute, measured and predicted.

    Args:
        run: of a transformer by formula, with at least two whole steps behind it.

    Raises:
        InvalidInput: the model has no hidden size, or nothing was predicted or measured yet.
    """
    name, config = run.directory.path.name, run.plan.problem.workload.transformer
    if config is None:
        raise InvalidInput(f"{name}: trains a captured model, of which no hidden size is known")
    shares = _shares(run.read_all())
    prediction = run.prediction()
    if not shares or prediction is None:
        raise InvalidInput(f"{name}: must have a prediction and two measured steps; wait for them")
    predicted = float(prediction["terms"]["compute"]) / float(prediction["step_s"])
    return Utilisation(config.hidden, predicted, median(shares), min(shares), max(shares))


def _shares(run: RunReader) -> list[float]:
    """Of every step with a known beginning: the share in which a rank computes, mean over ranks."""
    trace = run.trace(TRACED_STEPS)
    steps = [terms_of_ranks(trace, run.plan, step) for step in steps_with_beginning(trace) if step > 0]
    return [fmean(terms.compute / terms.step_s for terms in ranks) for ranks in steps]
