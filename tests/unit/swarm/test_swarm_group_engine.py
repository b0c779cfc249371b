"""The leader of a peer that is a group of devices: what it tells the others, what it refuses, when it gives up."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hetplanner.elastic.protocol.identity import Token, Version
from hetplanner.errors import InvalidInput, RunError
from hetplanner.swarm.peer.engine import Sum
from hetplanner.swarm.peer.group.leader import GroupEngine
from hetplanner.swarm.peer.group.processes import check_group
from hetplanner.swarm.peer.state import StageState
from tests.support.swarms.swarm_runs import small_spec

WORKLOAD = small_spec().workload


class Others:
    """Stands for the other members: keeps what they are told."""

    def __init__(self, failure: str | None = None) -> None:
        self.told: list[tuple[str, Any]] = []
        self._failure = failure

    def call(self, name: str, arguments: list[Any]) -> None:
        self.told.append((name, arguments))

    def failure(self, patience_s: float = 0.0) -> str | None:
        return self._failure


def leader(others: Others, **methods: Any) -> GroupEngine:
    own = SimpleNamespace(spec=small_spec(lease_s=0.05), speeds=None, **methods)
    return GroupEngine(own, others)  # type: ignore[arg-type]


def test_others_are_told_of_work_in_bytes_and_of_no_tensor_of_the_whole_stage() -> None:
    others, tokens = Others(), (Token(1, 0, 7), Token(2, 0, 8))
    engine = leader(others, **dict.fromkeys(("forward", "fold", "keep_sum", "load"), lambda *given: given))
    part = memoryview(b"abc")
    assert engine.forward(("a", 1), 3, 2, [part, part])[3] == [part, part], "the leader's own are as they came"
    engine.fold(tokens)
    engine.keep_sum(1, Sum(torch.ones(5), 2, 0.5))
    engine.load(StageState(0, Version(0, 3), 9, {"weights": torch.ones(5)}), Version(0, 3))
    names, arguments = zip(*others.told, strict=True)
    assert names == ("forward", "fold", "keep_sum", "load")
    assert arguments[0] == [("a", 1), 3, 2, [b"abc", b"abc"]]
    assert arguments[1] == [tokens]
    total, state = arguments[2][1], arguments[3][0]
    assert (total.gradient.numel(), total.count, total.loss_sum) == (0, 2, 0.5)
    assert (state.tensors, state.num_steps) == ({}, 9)
    assert engine.speeds is None
    assert len(others.told) == 4, "what is read of the leader is its alone"


def test_a_broken_exchange_says_which_device_has_ended() -> None:
    def broken() -> None:
        raise RuntimeError("Connection closed by peer")

    with pytest.raises(RunError, match="device 1 of this peer's group has ended with -9"):
        leader(Others("device 1 of this peer's group has ended with -9"), drop=broken).drop()
    with pytest.raises(RunError, match="the group cannot go on: Connection closed by peer"):
        leader(Others(), drop=broken).drop()


def test_work_that_takes_longer_than_a_lease_is_a_failure_and_a_long_load_is_none() -> None:
    found: dict[str, str | None] = {}

    def slow(name: str) -> Any:
        def work() -> None:
            time.sleep(0.1)
            found[name] = engine.failure()

        return work

    engine = leader(Others(), drop=slow("drop"), digest=slow("digest"))
    engine.drop()
    engine.digest()
    assert found == {"drop": "a device of this peer's group has not answered for 0.05 s", "digest": None}
    assert engine.failure() is None


@pytest.mark.parametrize(
    ("degree", "sharding", "changes", "message"),
    [
        (8, "tensor", {}, "tensor parallelism over 8 devices: 4 heads are no multiple of 8; use 4"),
        (4, "zero3", {}, r"ZeRO 3 over 4 devices: 2 samples .* cannot be divided by 4; use 2, or micro-batches of"),
        (2, "tensor", {"optimizer": "adafactor"}, "groups: adafactor needs whole matrices"),
    ],
)
def test_a_group_that_cannot_share_the_model_is_refused(degree, sharding, changes, message) -> None:
    check_group(2, sharding, WORKLOAD)
    with pytest.raises(InvalidInput, match=message):
        check_group(degree, sharding, WORKLOAD.replace(**changes))
