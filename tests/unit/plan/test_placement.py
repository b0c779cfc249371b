"""Ranks of hosts: who runs where, and what is refused."""

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.plan.model import Plan
from hetplanner.plan.placement import check_host, host_of_rank, rank_on_host, ranks_by_host
from tests.support.plans.factories import chain_plan, hosted


@pytest.fixture
def plan() -> Plan:
    """Ranks 0 to 3 on hosts gpu-b, gpu-a, gpu-b, gpu-c."""
    cluster = hosted({"d0": "gpu-b", "d1": "gpu-a", "d2": "gpu-b", "d3": "gpu-c"})
    return chain_plan([4, 4], [3], cluster=cluster)


def test_hosts_come_in_the_order_of_their_first_rank(plan: Plan) -> None:
    assert ranks_by_host(plan) == {"gpu-b": (0, 2), "gpu-a": (1,), "gpu-c": (3,)}
    assert [host_of_rank(plan, rank) for rank in range(4)] == ["gpu-b", "gpu-a", "gpu-b", "gpu-c"]


def test_a_process_has_the_rank_of_its_place_on_its_host(plan: Plan) -> None:
    assert [rank_on_host(plan, "gpu-b", local, 2) for local in range(2)] == [0, 2]
    assert rank_on_host(plan, "gpu-c", 0, 1) == 3


@pytest.mark.parametrize(
    ("host", "processes", "message"),
    [
        ("gpu-d", 1, r"HETPLANNER_HOST: 'gpu-d' is no host of the plan \(gpu-b, gpu-a, gpu-c\); did you mean 'gpu-"),
        ("gpu-b", 1, r"host gpu-b: 1 processes were started, but the plan has 2 devices there \(d0, d2\); use --nproc"),
        ("gpu-a", 3, r"host gpu-a: 3 processes were started, but the plan has 1 devices there \(d1\)"),
    ],
)
def test_a_host_or_number_that_is_not_planned_is_refused(plan: Plan, host: str, processes: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        rank_on_host(plan, host, 0, processes)


@pytest.mark.parametrize(
    ("rank", "said", "hostname"),
    [
        (0, "gpu-b", "anything"),
        (0, "gpu-b", "gpu-b"),
        (1, None, "gpu-a"),
        (1, None, "gpu-a.lab.example"),
        (3, "gpu-c", "x"),
    ],
)
def test_a_rank_on_its_host_is_accepted(plan: Plan, rank: int, said: str | None, hostname: str) -> None:
    check_host(plan, rank, said, hostname)


@pytest.mark.parametrize(
    ("rank", "said", "hostname", "message"),
    [
        (0, None, "gpu-a", r"rank 0: runs on host 'gpu-a', but the plan has it \(device d0\) on 'gpu-b'"),
        (0, "gpu-b", "gpu-c.lab", r"rank 0: runs on host 'gpu-c', but the plan has it \(device d0\) on 'gpu-b'"),
        (1, "gpu-b", "x", r"rank 1: runs on host 'gpu-b', but the plan has it \(device d1\) on 'gpu-a'"),
        (
            1,
            None,
            "ip-10-0-0-1",
            r"host 'gpu-a', and this machine is called 'ip-10-0-0-1', which is no host .* HETP",
        ),
    ],
)
def test_a_rank_on_another_host_is_refused_with_both_names(
    plan: Plan, rank: int, said: str | None, hostname: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_host(plan, rank, said, hostname)
