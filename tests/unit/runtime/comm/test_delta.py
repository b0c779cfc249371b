"""Changes instead of activations: both ends remember the same, and errors shrink from visit to visit."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from hetplanner.codecs.spec import Codec
from hetplanner.codecs.torch_codecs import tensor_codec
from hetplanner.errors import InvalidInput
from hetplanner.plan.action import Kind
from hetplanner.plan.model import LinkCodec, Plan, Stage
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.variants.schedules import interleave
from hetplanner.runtime.comm.delta import ChangingEnd, SampleMemory
from hetplanner.runtime.comm.wire import CPU
from hetplanner.schedule.order import make_schedule
from hetplanner.schema import checked
from tests.support.models.dags import cut_plan
from tests.support.models.programs import residual_workload
from tests.support.plans.factories import chain_plan, small_cluster, tiny_workload
from tests.support.training.threaded_ranks import ThreadedRanks

INT4, DELTA4 = Codec(name="int4"), Codec(name="int4", delta=True)


def with_codec(plan: Plan, codec: Codec) -> Plan:
    """All activations in one codec; gradients dense."""
    paths = [plan.path_of_micro_batch(m) for m in range(plan.problem.workload.num_micro_batches)]
    pairs = sorted({(plan.ranks[a], plan.ranks[b]) for path in paths for a, b in pairwise(path)})
    rules = [LinkCodec(from_device=a, to_device=b, role="activation", codec=codec) for a, b in pairs]
    return plan.replace(link_codecs=tuple(rules))


def short_text(tmp_path: Path, num_bytes: int = 700) -> str:
    """A text of few windows."""
    rng = np.random.default_rng(0)
    path = tmp_path / "short.txt"
    path.write_bytes(bytes(rng.choice(np.frombuffer(b"abc de", dtype=np.uint8), num_bytes)))
    return str(path)


def ends(boundary: int = 3, num_samples: int = 6, most_bytes: int = 2**20) -> list[ChangingEnd]:
    """Sender and receiver behind the first layer of a tiny GPT; micro-batches of two."""
    workload = tiny_workload(layers=2)
    memories = [SampleMemory(workload, boundary, num_samples, most_bytes, CPU) for _ in range(2)]
    return [ChangingEnd(tensor_codec(DELTA4), memory) for memory in memories]


def passed(pair: list[ChangingEnd], x: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """What arrives."""
    data = torch.empty(DELTA4.wire_bytes(x.numel(), 4), dtype=torch.uint8)
    pair[0].visit(np.array(ids)).encode(x, data)
    return pair[1].visit(np.array(ids)).decode(data, x.numel())


def plainly(x: torch.Tensor) -> torch.Tensor:
    data = torch.empty(INT4.wire_bytes(x.numel(), 4), dtype=torch.uint8)
    tensor_codec(INT4).encode(x, data)
    return tensor_codec(INT4).decode(data, x.numel())


def test_errors_shrink_with_changes() -> None:
    pair, start, drift = ends(), torch.randn(2048), torch.randn(2048)
    assert torch.equal(passed(pair, start, [0, 1]), plainly(start)), "the first visit is the plain codec's"
    for visit in range(1, 6):
        x = start + 0.02 * visit * drift
        assert (passed(pair, x, [0, 1]) - x).norm() < 0.2 * (plainly(x) - x).norm()


def test_both_ends_remember_the_same_whatever_comes() -> None:
    pair = ends(num_samples=6, most_bytes=4 * 1024 * 2 + 5)  # room for four of them
    assert [end.memory.num_rows for end in pair] == [4, 4]
    for ids in ([0, 5], [3, 3], [4, 1], [3, 0], [5, 5], [2, 3]):
        x = torch.randn(2048) * 10
        y = passed(pair, x, ids)
        assert torch.equal(pair[0].memory.row_NE, pair[1].memory.row_NE)
        for place, sample in enumerate(ids):
            if sample < 4 and sample not in ids[place + 1 :]:
                assert torch.equal(pair[1].memory.row_NE[sample], y.view(2, -1)[place].half())
    first = torch.randn(2048)
    assert torch.equal(passed(pair, first, [4, 5]), plainly(first)), "no room: sent plainly, the second time too"


def test_what_is_no_number_is_forgotten() -> None:
    pair, x = ends(), torch.randn(2048)
    broken = x.clone()
    broken[7] = torch.nan
    broken[1500] = 1e6
    assert passed(pair, broken, [0, 1]).isnan().any(), "a diverging run shows"
    assert pair[0].memory.row_NE.isfinite().all()
    assert torch.equal(pair[0].memory.row_NE, pair[1].memory.row_NE)
    assert passed(pair, x, [0, 1]).isfinite().all()


def plans() -> dict[str, Plan]:
    """Plans of every schedule; replicas, and a residual network cut inside a block."""
    chain = chain_plan([3, 1], [2, 4], workload=tiny_workload(layers=2, global_batch=8))
    interleaved = interleave(chain_plan([4], [2], workload=tiny_workload(layers=4, global_batch=8)), 2)
    skips = residual_workload(global_batch=16)
    return {
        "1f1b": chain,
        "gpipe": chain.replace(schedule="gpipe"),
        "interleaved": interleaved,
        "skips": cut_plan(skips, [3], [1, 1], small_cluster(2)),
    }


@pytest.mark.parametrize("name", plans())
def test_both_ends_visit_in_the_same_order(name: str) -> None:
    plan = plans()[name]
    visits: dict[tuple, list[int]] = {}
    for action in make_schedule(plan).actions:
        if action.role == "activation" and action.kind in (Kind.SEND, Kind.RECV):
            key = (action.kind, action.stage, action.rank, action.peer)
            visits.setdefault(key, []).append(action.micro_batch)
    sent = {key: order for key, order in visits.items() if key[0] is Kind.SEND}
    assert sent
    assert all(order == visits[Kind.RECV, s, b, a] for (_, s, a, b), order in sent.items())


@pytest.mark.parametrize("name", plans())
def test_ranks_remember_the_same_after_several_epochs(name: str, tmp_path: Path) -> None:
    plan = with_codec(plans()[name], DELTA4)
    data = None if plan.problem.workload.program else short_text(tmp_path)
    ranks = ThreadedRanks(plan, TrainConfig(steps=4, data=data, warmup_steps=0, delta_cache_bytes=2**21))
    for step in range(4):
        ranks.run_step(step)
        before = [memory.row_NE.clone() for e in ranks.executors for memory in e.memories.values()]
    ranks.each(lambda executor: executor.run_validation())
    after = [memory.row_NE for e in ranks.executors for memory in e.memories.values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "validation leaves memories alone"
    keys = {key for e in ranks.executors for key in e.memories}
    assert keys
    for boundary, a, b in keys:
        one, two = (ranks.executors[r].memories[boundary, a, b].row_NE for r in (a, b))
        assert one.any()
        assert torch.equal(one, two)


def test_plan_and_bytes_are_as_without_it() -> None:
    plan = with_codec(chain_plan([4], [2]), DELTA4)
    assert plan.boundary_bytes(0, 0, 1, "activation") == with_codec(plan, INT4).boundary_bytes(0, 0, 1, "activation")
    assert str(DELTA4) == "int4 delta"
    assert DELTA4.work().encode > INT4.work().encode
    assert "delta" in Plan.model_validate_json(plan.model_dump_json(by_alias=True)).link_codecs[0].codec.__repr__()
    assert Codec.model_validate({"name": "int4"}) == INT4, "files without the field keep their meaning"


def test_refuses_delta_elsewhere() -> None:
    with pytest.raises(InvalidInput, match="delta: belongs to int8 and int4 only, got topk"):
        checked(Codec, {"name": "topk", "ratio": 4.0, "delta": True}, "codec")
    rule = {"from_device": "a", "to_device": "b", "role": "gradient", "codec": DELTA4}
    with pytest.raises(InvalidInput, match="activations only"):
        checked(LinkCodec, rule, "rule")
    stage = {"first_op": 0, "end_op": 1, "replicas": (("a",),), "in_flight": 1, "reduce_codec": DELTA4}
    with pytest.raises(InvalidInput, match="gradients have error_feedback"):
        checked(Stage, stage, "stage")
