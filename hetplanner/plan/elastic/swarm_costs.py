"""What a swarm's peers and stages cost, as far as placing and moving peers depends on it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SwarmCosts:
    """Speeds, loads and times of an elastic plan, from the cost model or measured.

    Attributes:
        load_S: every stage's share of the model's work.
        speed: micro-batches a second that a device would take through the whole model, by device of the start.
        download_s: until a peer that joins or moves has its stage's state.
        steady_tokens_per_s: of a steady-state step.
        tokens: of a micro-batch.
        overhead_s: of a micro-batch, what links, fill and averaging add to the weakest stage's compute in such a step.
    """

    load_S: tuple[float, ...]
    speed: dict[str, float]
    download_s: float
    steady_tokens_per_s: float
    tokens: float
    overhead_s: float
