"""The ways in which a cluster's hosts can be divided into groups.

Hosts of the same make (equal counts of equal kinds) are divided alike. A host's devices of one kind form as many groups
of the chosen degree as they fill; those left over serve by themselves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from math import prod

from hetplanner.errors import InvalidInput
from hetplanner.plan.groups import DEGREES, TensorDegree, WorkerGroup, why_not
from hetplanner.plan.problem import Problem

MOST_GROUPINGS = 256
Make = tuple[tuple[str, int], ...]
"""Kinds of a host's usable devices, with how many there are of each."""


@dataclass(frozen=True)
class Grouping:
    """One way to divide the hosts.

    Attributes:
        degrees: by make, in the makes' order.
        groups: that follow.
    """

    degrees: tuple[TensorDegree, ...]
    groups: tuple[WorkerGroup, ...]

    def distance(self, other: Grouping) -> int:
        """For how many makes the degrees differ."""
        return sum(one != two for one, two in zip(self.degrees, other.degrees, strict=True))


def all_groupings(problem: Problem, *, alike: bool = False) -> list[Grouping]:
    """Groupings within the problem's constraints; first those with one degree for all hosts, the smallest first.

    `alike` leaves it at those.

    With more than :data:`MOST_GROUPINGS` choices for unlike hosts, only those with one degree for all but one make.

    Raises:
        InvalidInput: no allowed degree divides the model, or no host has so many equal devices.
    """
    allowed = _allowed(problem)
    hosts = _hosts(problem)
    makes = sorted({_make(problem, devices) for devices in hosts.values()})
    options = {make: _degrees(make, allowed) for make in makes}
    if not any(options.values()):
        raise InvalidInput(
            f"constraints.tensor: no host has {min(allowed)} usable devices of one kind; allow a smaller degree"
        )
    for make in makes:
        options[make] = options[make] or (1,)
    same = [
        {make: max((d for d in options[make] if d <= degree), default=options[make][0]) for make in makes}
        for degree in allowed
    ]
    unlike: list[dict[Make, TensorDegree]] = []
    if not alike and prod(len(options[make]) for make in makes) <= MOST_GROUPINGS:
        unlike = [dict(zip(makes, choice, strict=True)) for choice in product(*(options[make] for make in makes))]
    elif not alike:
        unlike = [choice | {make: degree} for choice in same for make in makes for degree in options[make]]
    found: dict[tuple[WorkerGroup, ...], Grouping] = {}
    for choice in (*same, *unlike):
        groups = _groups(problem, hosts, choice)
        found.setdefault(groups, Grouping(tuple(choice[make] for make in makes), groups))
    return list(found.values())


def _allowed(problem: Problem) -> tuple[TensorDegree, ...]:
    wanted = sorted(set(problem.constraints.tensor))
    fitting = tuple(degree for degree in wanted if not why_not(problem.workload, degree))
    if not fitting:
        why = why_not(problem.workload, wanted[0])
        works = [degree for degree in DEGREES if not why_not(problem.workload, degree)]
        raise InvalidInput(
            f"constraints.tensor: degree {wanted[0]}: {why} (degrees that work: {', '.join(map(str, works))})"
        )
    return fitting


def _hosts(problem: Problem) -> dict[str, list[str]]:
    """Usable devices by host, in file order."""
    found: dict[str, list[str]] = {}
    for device in problem.usable_devices:
        found.setdefault(problem.cluster.host_of(device).id, []).append(device)
    return found


def _kind(problem: Problem, device: str) -> str:
    return problem.cluster.devices[problem.cluster.device_index(device)].kind


def _make(problem: Problem, devices: list[str]) -> Make:
    return tuple(sorted(Counter(_kind(problem, device) for device in devices).items()))


def _degrees(make: Make, allowed: tuple[TensorDegree, ...]) -> tuple[TensorDegree, ...]:
    """Of the allowed degrees those that some kind of the host fills."""
    most = max(count for _, count in make)
    return tuple(degree for degree in allowed if degree <= most)


def _groups(problem: Problem, hosts: dict[str, list[str]], choice: dict[Make, TensorDegree]) -> tuple[WorkerGroup, ...]:
    groups: list[WorkerGroup] = []
    for devices in hosts.values():
        degree = choice[_make(problem, devices)]
        if degree == 1:
            continue
        by_kind: dict[str, list[str]] = {}
        for device in devices:
            if device not in problem.constraints.pinned:
                by_kind.setdefault(_kind(problem, device), []).append(device)
        for members in by_kind.values():
            whole = len(members) // degree * degree
            groups += [WorkerGroup(devices=tuple(members[i : i + degree])) for i in range(0, whole, degree)]
    return tuple(groups)
