"""The ways in which a problem's hosts can be divided into groups.

Hosts of the same make (equal counts of equal kinds) are divided alike. A host's devices of one kind form as many groups
of the chosen degree as they fill; those left over serve by themselves, and so do devices that are pinned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from hetplanner.errors import InvalidInput
from hetplanner.plan.groups import WorkerGroup
from hetplanner.plan.problem import Problem
from hetplanner.workload.tensor_degrees import DEGREES, TensorDegree, why_not

Make = tuple[tuple[str, int], ...]
"""Kinds of a host's usable devices, with how many there are of each."""
Degrees = tuple[TensorDegree, ...]
"""By make, in the order of :attr:`Groupings.makes`."""


@dataclass(frozen=True)
class Groupings:
    """What a problem's constraints allow.

    Raises:
        InvalidInput: when read: no allowed degree divides the model, or no host has so many equal devices.
    """

    problem: Problem

    @cached_property
    def makes(self) -> tuple[Make, ...]:
        """Those with the most devices first."""
        counts: Counter[Make] = Counter()
        for devices in self._hosts.values():
            counts[self._make(devices)] += len(devices)
        return tuple(sorted(counts, key=lambda make: (-counts[make], make)))

    @cached_property
    def options(self) -> tuple[Degrees, ...]:
        """By make: degrees that some kind of the host fills; 1 where none does."""
        allowed = self._allowed
        options = [tuple(d for d in allowed if d <= max(count for _, count in make)) for make in self.makes]
        if not any(options):
            raise InvalidInput(
                f"constraints.tensor: no host has {allowed[0]} usable devices of one kind; allow a smaller degree"
            )
        return tuple(option or (1,) for option in options)

    @property
    def count(self) -> int:
        """How many groupings there are."""
        return prod(map(len, self.options))

    def alike(self) -> list[Degrees]:
        """One degree for all hosts, or the greatest below it that a host fills; the smallest first."""
        found = [
            tuple(max((d for d in option if d <= degree), default=option[0]) for option in self.options)
            for degree in self._allowed
        ]
        return list(dict.fromkeys(found))

    def all(self) -> Iterator[Degrees]:
        """Every grouping."""
        return product(*self.options)

    def neighbours(self, degrees: Degrees) -> list[Degrees]:
        """Groupings with another degree for one make; of makes with the most devices first."""
        return [
            (*degrees[:m], degree, *degrees[m + 1 :])
            for m, option in enumerate(self.options)
            for degree in option
            if degree != degrees[m]
        ]

    def groups(self, degrees: Degrees) -> tuple[WorkerGroup, ...]:
        """The groups of a grouping, in the cluster's order."""
        degree_of = dict(zip(self.makes, degrees, strict=True))
        found: list[WorkerGroup] = []
        for devices in self._hosts.values():
            degree = degree_of[self._make(devices)]
            by_kind: dict[str, list[str]] = {}
            for device in devices if degree > 1 else ():
                if device not in self.problem.constraints.pinned:
                    by_kind.setdefault(self._kind[device], []).append(device)
            for members in by_kind.values():
                whole = len(members) // degree * degree
                found += [WorkerGroup(devices=tuple(members[i : i + degree])) for i in range(0, whole, degree)]
        return tuple(found)

    @cached_property
    def _allowed(self) -> Degrees:
        workload, wanted = self.problem.workload, sorted(set(self.problem.constraints.tensor))
        fitting = tuple(degree for degree in wanted if not why_not(workload, degree))
        if not fitting:
            works = ", ".join(str(degree) for degree in DEGREES if not why_not(workload, degree))
            raise InvalidInput(
                f"constraints.tensor: degree {wanted[0]}: {why_not(workload, wanted[0])} (degrees that work: {works})"
            )
        return fitting

    @cached_property
    def _hosts(self) -> dict[str, list[str]]:
        """Usable devices by host, in file order."""
        found: dict[str, list[str]] = {}
        for device in self.problem.usable_devices:
            found.setdefault(self.problem.cluster.host_of(device).id, []).append(device)
        return found

    @cached_property
    def _kind(self) -> dict[str, str]:
        return {device.id: device.kind for device in self.problem.cluster.devices}

    def _make(self, devices: list[str]) -> Make:
        return tuple(sorted(Counter(self._kind[device] for device in devices).items()))
