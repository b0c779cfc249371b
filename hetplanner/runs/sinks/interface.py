"""The one interface of sinks: points of a run in, each of them kept elsewhere once.

To add a sink: one file with a class that has what `Sink` asks for, an entry in `registry.SINKS`, an extra of the same
name in pyproject.toml; the conformance tests then run over it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

METRICS: Mapping[str, str] = {
    "loss": "mean loss of the global batch, nats a token or sample",
    "validation_loss": "mean loss on held-out data, nats a token or sample",
    "validation_perplexity": "e to the loss on held-out data",
    "validation_accuracy": "share of held-out targets that the model gives the greatest score",
    "learning_rate": "learning rate of the optimiser",
    "grad_norm": "norm of the whole gradient before clipping",
    "step_seconds": "end of this step minus end of the one before, on rank 0",
    "predicted_step_seconds": "seconds of a step as predicted before the first one",
    "tokens_per_second": "tokens of the step over its seconds",
    "samples_per_second": "samples of the step over its seconds",
    "memory_bytes": "resident in main memory, all ranks",
    "device_memory_bytes": "held on accelerators, all ranks",
    "boundary_bytes": "bytes across stage boundaries in the step, on the wire, all ranks",
    "reduce_bytes": "bytes for reductions in the step, on the wire, all ranks",
    "sent_bytes": "bytes sent since the first step, on the wire, all ranks",
}
"""Name of a metric -> what it is. Seconds and bytes are SI."""
ALWAYS = "sent_bytes"
"""Every point has this metric; it is the last one of a point."""


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a run.

    Attributes:
        step: from 0.
        time_s: unix time at which rank 0 ended it.
        values: by name of METRICS, in their order; what is not known is left out.
    """

    step: int
    time_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a sink may say of a run beside its points; no path of this machine is among it.

    Attributes:
        run: its id.
        name: as a person called it, else its id.
        model: name of the workload.
        settings: of training and plan, as plain values.
    """

    run: str
    name: str
    model: str
    tags: tuple[str, ...]
    settings: Mapping[str, Any]


class Sink(Protocol):
    """Where points go. Any method may raise what its library raises, the constructor may not.

    Attributes:
        modules: what must be importable.
        place: where the points are, for a person; holds no password.
    """

    modules: ClassVar[tuple[str, ...]]
    place: str

    def __init__(self, facts: RunFacts, folder: Path) -> None:
        """A sink that is not open.

        Args:
            facts: of the run.
            folder: of all sinks of the run; exists.
        """
        ...

    @classmethod
    def check(cls) -> None:
        """Refuses what can be known to fail before a run starts. Raises InvalidInput."""
        ...

    def held(self, sent: int) -> int:
        """The last step that is there already, -1 without any.

        Args:
            sent: the last step that was sent, as the run's folder remembers.
        """
        ...

    def write(self, points: Sequence[Point]) -> None:
        """Keeps points, in the order of their steps and later than those before."""
        ...

    def close(self, state: str | None) -> None:
        """Ends the writing.

        Args:
            state: how the run ended, such as 'finished'; None while it goes on.
        """
        ...
