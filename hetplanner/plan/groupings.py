"""The ways in which a problem's hosts can be divided into groups.

Hosts of the same make (equal counts of equal kinds) are divided alike. A host's devices of one kind form as many groups
of the chosen degree as they fill; those left over serve by themselves, and so do devices that are pinned. What the
members of a group divide, layers or samples, is chosen with the degree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

from hetplanner.errors import InvalidInput
from hetplanner.plan.groups import WorkerGroup
from hetplanner.plan.problem import Problem
from hetplanner.workload.tensor_degrees import DEGREES, SHARDING_WORDS, Sharding, TensorDegree, why_not

Make = tuple[tuple[str, int], ...]
"""Kinds of a host's usable devices, with how many there are of each."""


class Division(NamedTuple):
    """How the devices of a host are grouped."""

    degree: TensorDegree
    sharding: Sharding


ALONE = Division(1, "tensor")
Divisions = tuple[Division, ...]
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
    def options(self) -> tuple[Divisions, ...]:
        """By make: divisions whose groups some kind of the host fills; single devices where none does."""
        allowed = self._allowed
        options = [tuple(d for d in allowed if d.degree <= max(count for _, count in make)) for make in self.makes]
        if not any(options):
            least = min(allowed).degree
            raise InvalidInput(
                f"constraints.tensor: no host has {least} usable devices of one kind; allow a smaller degree"
            )
        return tuple(option or (ALONE,) for option in options)

    @cached_property
    def left_out_text(self) -> str:
        """'not searched: groups of 8: 4 heads are no multiple of 8; use 4': allowed degrees that no plan can have."""
        workload, wanted = self.problem.workload, self.problem.constraints
        most = max((count for make in self.makes for _, count in make), default=0)
        found = []
        for degree in sorted(set(wanted.tensor) - {1}):
            if degree > most:
                found.append(f"groups of {degree}: no host has {degree} usable devices of one kind")
                continue
            for sharding in dict.fromkeys(wanted.sharding):
                words = "" if sharding == "tensor" else f" by {SHARDING_WORDS[sharding]}"
                reason = why_not(workload, degree, sharding)
                found += [f"groups of {degree}{words}: {reason}"] if reason else []
        return f"not searched: {'; '.join(found)}" if found else ""

    @property
    def count(self) -> int:
        """How many groupings there are."""
        return prod(map(len, self.options))

    def alike(self) -> list[Divisions]:
        """One division for all hosts, or that of the greatest degree below it that a host fills; the smallest first."""
        found = [tuple(_greatest_below(wanted, option) for option in self.options) for wanted in self._allowed]
        return list(dict.fromkeys(found))

    def all(self) -> Iterator[Divisions]:
        """Every grouping."""
        return product(*self.options)

    def neighbours(self, divisions: Divisions) -> list[Divisions]:
        """Groupings with another division for one make; of makes with the most devices first."""
        return [
            (*divisions[:m], division, *divisions[m + 1 :])
            for m, option in enumerate(self.options)
            for division in option
            if division != divisions[m]
        ]

    def groups(self, divisions: Divisions) -> tuple[WorkerGroup, ...]:
        """The groups of a grouping, in the cluster's order."""
        division_of = dict(zip(self.makes, divisions, strict=True))
        found: list[WorkerGroup] = []
        for devices in self._hosts.values():
            degree, sharding = division_of[self._make(devices)]
            by_kind: dict[str, list[str]] = {}
            for device in devices if degree > 1 else ():
                if device not in self.problem.constraints.pinned:
                    by_kind.setdefault(self._kind[device], []).append(device)
            for members in by_kind.values():
                whole = len(members) // degree * degree
                found += [
                    WorkerGroup(devices=tuple(members[i : i + degree]), sharding=sharding)
                    for i in range(0, whole, degree)
                ]
        return tuple(found)

    @cached_property
    def _allowed(self) -> Divisions:
        """By degree, then as the constraints name them."""
        workload, wanted = self.problem.workload, self.problem.constraints
        degrees, shardings = sorted(set(wanted.tensor)), list(dict.fromkeys(wanted.sharding))
        fitting = tuple(
            Division(degree, sharding) if degree > 1 else ALONE
            for degree in degrees
            for sharding in shardings
            if not why_not(workload, degree, sharding)
        )
        if not fitting:
            first = shardings[0]
            works = ", ".join(str(degree) for degree in DEGREES if not why_not(workload, degree, first))
            words = "" if first == "tensor" else f" by {SHARDING_WORDS[first]}"
            raise InvalidInput(
                f"constraints.tensor: degree {degrees[0]}{words}: {why_not(workload, degrees[0], first)}"
                f" (degrees that work: {works})"
            )
        return tuple(dict.fromkeys(fitting))

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


def _greatest_below(wanted: Division, option: Divisions) -> Division:
    """Of a make's divisions the one that is nearest to what all hosts shall have."""
    alike = (d for d in option if d.degree <= wanted.degree and (d == ALONE or d.sharding == wanted.sharding))
    return max(alike, key=lambda division: division.degree, default=option[0])
