"""How peers change their stage while a swarm trains: what a plan says of it."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from hetplanner.schema import Noun, Seconds

RebalancerName = Literal["throughput", "queue", "none"]
REBALANCER_NAMES: tuple[RebalancerName, ...] = get_args(RebalancerName)
Placement = Literal["neediest", "random"]


class Rebalancing(Noun):
    """A policy and its settings.

    Attributes:
        policy: `throughput` (ours: measured speeds and simulated relocation), `queue` (the paper's queue lengths),
            `none`.
        period: seconds between two looks at the swarm; `throughput` also looks at every join, death and arrival.
        hysteresis: least relative gain of the stage that a move helps if stages have one peer, for `throughput`; it
            falls with the root of their peers. Much less than the noise of measured speeds makes peers wander.
        horizon: seconds for which a gain is counted, the download's among them: a move whose download takes all of
            them gains nothing.
        joiners: where a peer that joins goes: to the stage with the least capacity, or to any.

    Source: Ryabinin et al. 2023 (SWARM, arXiv 2301.11913) for `queue`, ours the others.
    """

    policy: RebalancerName = "throughput"
    period: Annotated[Seconds, Field(gt=0)] = 60.0
    hysteresis: Annotated[float, Field(strict=True, ge=0, le=10)] = 0.12
    horizon: Annotated[Seconds, Field(gt=0)] = 600.0
    joiners: Placement = "neediest"
