"""The problem a planner solves: cluster, workload, objective, constraints."""

from collections import Counter
from functools import cached_property
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hetplanner.cluster.model import Cluster, nearest_names
from hetplanner.cluster.parts import name_parts, parts_of
from hetplanner.codecs.spec import DEFAULT_MAX_RATIO, AllowedCodec
from hetplanner.plan.groups import WorkerGroup, check_groups
from hetplanner.plan.reducers.names import REDUCER_NAMES, ReducerName
from hetplanner.profiles.match import check_profile
from hetplanner.profiles.model import Profile
from hetplanner.schema import Name, Noun, Text
from hetplanner.workload.optimizers import ELEMENTWISE
from hetplanner.workload.tensor_degrees import Sharding, TensorDegree
from hetplanner.workload.workload import Workload

Objective = Literal["step-time", "cost", "dtfm"]
Degree = Annotated[int, Field(strict=True, ge=1, le=4096)]


class Constraints(Noun):
    """What a planner may choose. None = free.

    Attributes:
        excluded: devices that must not be used.
        pinned: stage (counted from 0) that a device must serve, by device.
        codecs: what may travel between stages and in gradient reductions (there int4 and top-k with error feedback);
            more than `none` changes the numbers trained. `topk`: the weakest ratio that is enough on each link;
            `adatopk`: ratios by FusionLLM's rule. The two exclude each other.
        codec_block: elements that share a scale (int8, int4).
        max_ratio: greatest compression by top-k, dense bytes over bytes sent; the slowest link's with `adatopk`.
        reducers: how the replicas of a stage may add up their gradients; all give the same sums.
        max_local_steps: most steps that replicas may take by themselves before they average what changed (DiLoCo);
            more than 1 changes the numbers trained.
        fragments: in how many pieces they average it, one after the other (at most one a step); see `Plan.fragments`.
        tensor: how many devices of a host may serve a replica as one group.
        sharding: what the devices of a group may divide, see `WorkerGroup`; the search chooses.
        zero: 1 shards the optimizer's states over the replicas of a stage (ZeRO stage 1): each steps its shard of the
            weights, and the others gather it. 0: every replica has all states.
    """

    stages: Degree | None = None
    replicas: Degree | None = None
    excluded: tuple[Name, ...] = ()
    pinned: dict[Name, Annotated[int, Field(strict=True, ge=0, le=4095)]] = Field(default_factory=dict)
    codecs: Annotated[tuple[AllowedCodec, ...], Field(min_length=1)] = ("none",)
    codec_block: Annotated[int, Field(strict=True, ge=16, le=65536)] = 256
    max_ratio: Annotated[float, Field(strict=True, ge=1, le=1e5)] = DEFAULT_MAX_RATIO
    reducers: Annotated[tuple[ReducerName, ...], Field(min_length=1)] = REDUCER_NAMES
    max_local_steps: Annotated[int, Field(strict=True, ge=1)] = 1
    fragments: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    tensor: Annotated[tuple[TensorDegree, ...], Field(min_length=1, exclude_if=lambda value: value == (1,))] = (1,)
    sharding: Annotated[tuple[Sharding, ...], Field(min_length=1, exclude_if=lambda value: value == ("tensor",))] = (
        "tensor",
    )
    zero: Annotated[Literal[0, 1], Field(exclude_if=lambda value: value == 0)] = 0

    @model_validator(mode="after")
    def _one_rule_for_ratios(self) -> Self:
        if {"topk", "adatopk"} <= set(self.codecs):
            raise ValueError("codecs: topk and adatopk are two rules for the same ratios; allow one of them")
        return self

    @model_validator(mode="after")
    def _replicas_are_equal_in_every_step(self) -> Self:
        if self.zero and self.max_local_steps > 1:
            raise ValueError(
                "zero: replicas that take local steps each need all states of the optimizer; use max_local_steps 1 or"
                " zero 0"
            )
        if self.zero and self.reducers == ("central-ps",):
            raise ValueError(
                "zero: with reducer central-ps one replica keeps all states of the optimizer; allow sharded-ps, ring or"
                " hierarchical"
            )
        return self

    @model_validator(mode="after")
    def _there_are_groups_to_divide(self) -> Self:
        if self.sharding != ("tensor",) and self.tensor == (1,):
            raise ValueError(
                f"sharding: {self.sharding[0]} is for groups of devices, and tensor allows single devices alone; allow"
                " larger groups, such as tensor 1,2,4"
            )
        return self

    @property
    def first_reducer(self) -> ReducerName:
        """Of the allowed reducers the one that a planner starts from."""
        return next(name for name in REDUCER_NAMES if name in self.reducers)


class Problem(Noun):
    """One planning task.

    Attributes:
        rehearsal_of: names the larger problem this one rehearses on one machine.
        profile: measured seconds of the workload's layers; kinds of devices that it has no rows of compute at the rate
            of the cluster file or the catalog.
        groups: devices that serve a replica together; those in none serve by themselves. None: a search chooses them
            within `constraints.tensor`.
    """

    cluster: Cluster
    workload: Workload
    objective: Objective = "step-time"
    constraints: Constraints = Constraints()
    rehearsal_of: Text | None = None
    profile: Annotated[Profile | None, Field(exclude_if=lambda value: value is None)] = None
    groups: Annotated[tuple[WorkerGroup, ...] | None, Field(exclude_if=lambda value: value is None)] = None

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        known = set(self.cluster.device_ids)
        for i, device in enumerate(self.constraints.excluded):
            if device not in known:
                raise ValueError(
                    f"constraints.excluded[{i}]: unknown device {device!r:.60}; {nearest_names(device, known)}"
                )
        self._check_pins(known)
        return self

    def _check_pins(self, known: set[str]) -> None:
        """Refuses pins that no plan can honour."""
        wanted, most_stages = self.constraints, self.workload.most_stages
        for device, stage in wanted.pinned.items():
            place = f"constraints.pinned.{device!r:.60}"
            if device not in known:
                raise ValueError(f"{place}: unknown device; {nearest_names(device, known)}")
            if device in wanted.excluded:
                raise ValueError(f"{place}: the device is excluded too; drop one of the two")
            if stage >= (wanted.stages or most_stages):
                text = f"{self.workload.most_stages_text}, so as many stages"
                most = f"{wanted.stages} stages" if wanted.stages else text
                raise ValueError(
                    f"{place}: must be below {wanted.stages or most_stages} (there are {most}), got {stage}"
                )
        counts = Counter(wanted.pinned.values())
        for stage, count in counts.items():
            if wanted.replicas is not None and count > wanted.replicas:
                raise ValueError(
                    f"constraints.pinned: {count} devices are pinned to stage {stage}, which has {wanted.replicas}"
                    " replicas; pin fewer or allow more replicas"
                )

    @model_validator(mode="after")
    def _profile_is_of_the_workload(self) -> Self:
        if self.profile is not None:
            check_profile(self.profile, self.workload)
        return self

    @model_validator(mode="after")
    def _groups_are_possible(self) -> Self:
        if self.groups and self.objective == "dtfm":
            raise ValueError("groups: objective dtfm knows no groups of devices; use step-time or cost")
        check_groups(self.groups or (), self.cluster, self.workload, self.constraints.excluded)
        return self

    @model_validator(mode="after")
    def _states_can_be_sharded(self) -> Self:
        if self.constraints.zero and self.workload.optimizer not in ELEMENTWISE:
            raise ValueError(
                f"constraints.zero: {self.workload.optimizer} needs whole matrices, and each replica would have a shard"
                f" of them; use optimizer {' or '.join(ELEMENTWISE)}, or zero 0"
            )
        return self

    @model_validator(mode="after")
    def _usable_devices_are_connected(self) -> Self:
        if self.cluster.has_gaps and self.constraints.excluded:
            ids = self.usable_devices
            rows = [self.cluster.device_index(d) for d in ids]
            parts = parts_of(self.cluster.joined_DD[np.ix_(rows, rows)])
            if len(parts) > 1:
                names = name_parts(parts, [self.cluster.site_of(d).name for d in ids], ids)
                raise ValueError(
                    f"constraints.excluded: without these devices the others fall into {len(parts)} parts without a"
                    f" link between them: {names}; exclude fewer, or all but one part"
                )
        return self

    @property
    def usable_devices(self) -> tuple[str, ...]:
        """Ids of the devices a plan may use, in file order; of a group its first alone."""
        excluded = {
            *self.constraints.excluded,
            *(device for group in self.groups or () for device in group.devices[1:]),
        }
        return tuple(d for d in self.cluster.device_ids if d not in excluded)

    @property
    def sample_members(self) -> int:
        """Devices of the largest group that divides samples; 0 where none does."""
        return max((group.degree for group in self.groups or () if group.sharding != "tensor"), default=0)

    @property
    def layer_members(self) -> int:
        """Devices of the largest group that divides layers; 1 where none does."""
        return max((group.degree for group in self.groups or () if group.sharding == "tensor"), default=1)

    @property
    def whole_weights(self) -> int:
        """Devices of the largest group whose members keep whole weights (ZeRO 2); 0 where none does."""
        return max((group.degree for group in self.groups or () if group.sharding == "zero2"), default=0)

    @property
    def is_grouping_open(self) -> bool:
        """Whether a search has to choose groups first."""
        return self.groups is None and self.constraints.tensor != (1,)

    def degree_of(self, device: str) -> int:
        """How many devices serve where a plan names this one."""
        return len(self.members_of(device))

    def sharding_of(self, device: str) -> Sharding:
        """What the devices divide that serve where a plan names this one; of a single device `tensor`."""
        return self._shardings.get(device, "tensor")

    def members_of(self, device: str) -> tuple[str, ...]:
        """The devices that serve where a plan names this one: it alone, or those of its group."""
        return self._members.get(device, (device,))

    def worker_name(self, device: str) -> str:
        """'h0-0', or of a group 'h0-0(×4)': by its first device, with how many serve together."""
        degree = self.degree_of(device)
        return device if degree == 1 else f"{device}(×{degree})"

    @cached_property
    def _members(self) -> dict[str, tuple[str, ...]]:
        return {group.leader: group.devices for group in self.groups or ()}

    @cached_property
    def _shardings(self) -> dict[str, Sharding]:
        return {group.leader: group.sharding for group in self.groups or ()}
