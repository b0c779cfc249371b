"""Real ranks copy their checkpoints to an S3 server on loopback; another home fetches them and goes on."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.settings import WiringSettings
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.audit import audit_records
from hetplanner.runs.agent.client import AgentClient
from hetplanner.runs.reading.events import RunEvent, run_events
from hetplanner.runs.run import Run
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, swarm_plan
from tests.support.processes.patience import until
from tests.support.training.real_ranks import start_ranks

pytestmark = pytest.mark.distributed

WORKLOAD = preset("tiny-gpt", global_batch=8, micro_batch=2)
PLAN = chain_plan([3, 1], [WORKLOAD.boundaries[1]], workload=WORKLOAD)
SETTINGS = {"checkpoint_every": 2, "checkpoints_kept": 1, "copy_to": "s3://kept/copies"}


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """Moto's server with a bucket; the environment has its address and keys, as a user's would."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    keys = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "some", "AWS_SECRET_ACCESS_KEY": "words",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in keys.items():
                patch.setenv(name, value)

            def answers() -> bool:
                with socket.socket() as probe:
                    return probe.connect_ex(("127.0.0.1", port)) == 0

            until(answers, 60)
            boto3.client("s3").create_bucket(Bucket="kept")
            yield
    finally:
        process.kill()
        process.wait()


def called(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output + str(result.exception or "")


def events_of(run: Run) -> list[RunEvent]:
    return run_events(run, run.status(), audit_records(run.home, run=run.id))


def test_a_run_goes_on_elsewhere_from_its_copy(
    client: AgentClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = client.start(PLAN, TrainConfig(steps=8, **SETTINGS))
    assert whole.wait(120).state == "finished", whole.log(None)
    whole.read_all()
    told = [event.text for event in events_of(whole) if event.kind == "copied"]
    assert any("of step 8" in text for text in told)
    names = [one["Key"] for one in boto3.client("s3").list_objects_v2(Bucket="kept")["Contents"]]
    assert sorted(name.removeprefix(f"copies/{whole.id}/") for name in names) == [
        "checkpoints/step-00000008/manifest.json",
        *(f"checkpoints/step-00000008/rank-{rank}.safetensors" for rank in range(4)),
        "plan.json",
        "run.json",
    ]
    code, text = called("runs", "fetch", f"s3://kept/copies/{whole.id}", "-o", str(tmp_path / "fetched"))
    assert code == 0, text
    more = client.start(PLAN, TrainConfig(steps=10, resume=str(tmp_path / "fetched")))
    straight = client.start(PLAN, TrainConfig(steps=10))
    for run in (more, straight):
        assert run.wait(120).state == "finished", run.log(None)
        run.read_all()
    assert more.losses() == straight.losses()[8:], "equal to the bit"


def test_a_swarm_goes_on_elsewhere_from_its_copy(client: AgentClient, tmp_path: Path) -> None:
    plan = swarm_plan([2, 1], [WORKLOAD.boundaries[1]], workload=WORKLOAD)
    plan = plan.replace(wiring=WiringSettings(trainers=1, slots=4))
    whole = client.start(plan, TrainConfig(steps=6, **(SETTINGS | {"checkpoint_every": 3})))
    assert whole.wait(120).state == "finished", whole.log(None)
    found = boto3.client("s3").list_objects_v2(Bucket="kept", Prefix=f"copies/{whole.id}/")
    names = [one["Key"] for one in found["Contents"]]
    assert sorted(name.rpartition("/")[2] for name in names) == [
        "plan.json",
        "run.json",
        *(f"stage-{stage}-lineage-0-step-6.safetensors" for stage in (0, 1)),
    ]
    code, text = called("runs", "fetch", f"s3://kept/copies/{whole.id}", "-o", str(tmp_path / "fetched"))
    assert code == 0, text
    other = chain_plan([4], [], workload=WORKLOAD)
    more = client.start(other, TrainConfig(steps=9, resume=str(tmp_path / "fetched")))
    straight = client.start(other, TrainConfig(steps=9))
    for run in (more, straight):
        assert run.wait(120).state == "finished", run.log(None)
        run.read_all()
    assert [loss for _, loss in more.losses()] == pytest.approx([loss for _, loss in straight.losses()[6:]], rel=1e-5)


def test_a_bucket_that_refuses_is_told_before_a_run_begins(client: AgentClient) -> None:
    config = TrainConfig(steps=2, checkpoint_every=1, copy_to="s3://not-there/copies")
    with pytest.raises(InvalidInput, match=r"^copy_to: s3://not-there/copies: the store refuses: .*bucket") as told:
        client.start(PLAN, config)
    assert "words" not in str(told.value)


def test_a_rank_tells_it_before_its_first_step(tmp_path: Path) -> None:
    config = TrainConfig(steps=2, checkpoint_every=1, copy_to="s3://not-there/copies")
    ranks = start_ranks(chain_plan([4], [], workload=WORKLOAD), config, tmp_path / "by-hand")
    assert ranks.wait() == [1]
    assert "the store refuses" in ranks.lines(0, "error")[0]["text"]
    assert not ranks.lines(0, "step")


def test_a_store_that_is_lost_leaves_training_and_checkpoints_alone(client: AgentClient, tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    config = TrainConfig(steps=100_000, checkpoint_every=50, checkpoints_kept=9, copy_to=f"file://{mount}")
    run = client.start(PLAN, config)
    until(lambda: (mount / run.id / "checkpoints").exists() or run.status().is_over, 60)
    (mount / run.id / "checkpoints").rename(tmp_path / "lost")
    (mount / run.id / "checkpoints").write_text("no folder")

    def is_told() -> bool:
        run.read_all()
        return any("is not copied: file://" in event.text for event in events_of(run) if event.kind == "degraded")

    until(lambda: is_told() or run.status().is_over, 60)
    before = len(run.losses())
    until(lambda: len(run.read_all().losses()) > before + 50 or run.status().is_over, 60)
    run.stop()
    assert run.wait(120).state == "stopped", run.log(None)
    assert is_told()
    assert len(os.listdir(run.path / "checkpoints")) > 1
