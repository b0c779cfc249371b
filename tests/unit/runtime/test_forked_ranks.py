"""Ranks that are forks of their launcher begin, speak and end as programs that torchrun starts."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.distributed.elastic.agent.server import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.run import get_args_parser

from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.runtime import forked_ranks
from hetplanner.runtime.comm.rendezvous import ON_LOOPBACK, create_handler
from hetplanner.runtime.forked_ranks import HANDLED, ForkAgent, ForkedRank, rank_environment
from hetplanner.runtime.launch import WORKER_MODULE, asks_for_forks, can_fork
from tests.support.plans.factories import chain_plan
from tests.support.processes.patience import until

WRITES_ENVIRONMENT = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1] + os.environ['RANK'], 'w'))"


@pytest.fixture(autouse=True)
def signal_handlers():
    before = {signum: signal.getsignal(signum) for signum in HANDLED}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def ended(rank: ForkedRank) -> int | None:
    until(lambda: rank.poll() is not None)
    return rank.exit_code


def test_a_rank_ends_with_its_exit_code_and_what_it_says_is_heard(capfd, tmp_path, monkeypatch):
    for number, name in ((1, "stdout"), (2, "stderr")):  # as they are in a launcher, which pytest's are not
        monkeypatch.setattr(sys, name, os.fdopen(number, "w", closefd=False))
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    def code_of(*arguments: str, **environment: str) -> int | None:
        rank = ForkedRank(arguments)
        rank.begin({"RANK": "0"} | environment)
        return ended(rank)

    assert code_of("--help") == 0
    assert "One rank of a run" in capfd.readouterr().out
    assert code_of("plan.json", "--no-such-option") == 2
    assert "unrecognized arguments" in capfd.readouterr().err
    assert code_of(str(tmp_path / "none.json"), RANK="3") == 1
    assert "hetplanner worker: " in capfd.readouterr().err
    assert "none.json" in (tmp_path / "none-run" / "log-3.txt").read_text()


def test_a_rank_has_a_session_of_its_own_and_no_descriptor_of_its_launcher(monkeypatch):
    monkeypatch.setattr(forked_ranks, "run_to_exit", lambda arguments: time.sleep(600))
    reader, writer = os.pipe()
    rank = ForkedRank(["plan.json"])
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"", "the rank holds the pipe open"
        assert os.getsid(rank.pid) == rank.pid
        rank.begin({})
        os.kill(rank.pid, signal.SIGTERM)
        assert ended(rank) == -signal.SIGTERM
    finally:
        os.close(reader)
        rank.send(signal.SIGKILL)


def test_ranks_that_were_never_begun_end_with_their_launcher(monkeypatch):
    monkeypatch.setattr(forked_ranks, "run_to_exit", lambda arguments: os._exit(0))
    first, second = ForkedRank([]), ForkedRank([])  # the second one has a copy of the first one's pipe
    os.close(first._writer)  # as the kernel does where the launcher is killed
    assert ended(first) == 1
    assert second.poll() is None
    os.close(second._writer)
    assert ended(second) == 1


def spec_of(entrypoint: str, arguments: tuple[str, ...], num_ranks: int, endpoint: str = "127.0.0.1:0") -> WorkerSpec:
    handler = create_handler(RendezvousParameters(ON_LOOPBACK, endpoint, "a-run", 1, 1))
    return WorkerSpec("default_role", num_ranks, handler, entrypoint=entrypoint, args=arguments, max_restarts=0)


def test_environments_are_those_that_torchs_own_agent_gives(monkeypatch, tmp_path):
    def write_environment(arguments: list[str]) -> None:
        Path(f"{arguments[0]}{os.environ['RANK']}").write_text(json.dumps(dict(os.environ)))
        os._exit(0)

    monkeypatch.setattr(forked_ranks, "run_to_exit", write_environment)
    ranks = [ForkedRank([f"{tmp_path}/fork-"]) for _ in range(2)]
    agent = ForkAgent(spec_of(WORKER_MODULE, (), 2), ranks)
    assert agent.run().return_values == {0: None, 1: None}
    program = spec_of(sys.executable, ("-c", WRITES_ENVIRONMENT, f"{tmp_path}/program-"), 2)
    LocalElasticAgent(program, DefaultLogsSpecs(log_dir=os.devnull)).run()
    for rank in range(2):
        fork, other = (json.loads((tmp_path / f"{kind}-{rank}").read_text()) for kind in ("fork", "program"))
        given = rank_environment(agent.get_worker_group(), rank).keys() - {"MASTER_PORT"}
        assert fork["MASTER_PORT"].isdecimal()
        assert {name: fork[name] for name in given} == {name: other[name] for name in given}
        no_gpu = {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
        assert other.keys() - fork.keys() <= no_gpu


def test_where_a_rank_is_killed_the_others_are_told_to_end_and_it_is_named_first(monkeypatch):
    def run(arguments: list[str]) -> None:
        if os.environ["RANK"] == "2":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    monkeypatch.setattr(forked_ranks, "run_to_exit", run)
    ranks = [ForkedRank([]) for _ in range(4)]
    result = ForkAgent(spec_of(WORKER_MODULE, (), 4), ranks).run()
    assert result.is_failed()
    codes = [(rank, failure.exitcode) for rank, failure in result.failures.items()]
    assert codes == [(2, -signal.SIGKILL), *((rank, -signal.SIGTERM) for rank in (0, 1, 3))]
    assert [failure.pid for failure in result.failures.values()] == [ranks[r].pid for r in (2, 0, 1, 3)]


def test_ranks_end_where_the_hosts_cannot_meet():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        ranks = [ForkedRank([]) for _ in range(2)]
        with pytest.raises(InvalidInput, match="the port is in use"):
            ForkAgent(spec_of(WORKER_MODULE, (), 2, endpoint), ranks).run()
    assert [rank.exit_code for rank in ranks] == [-signal.SIGTERM] * 2


def asked(*changed: str, module: str = WORKER_MODULE, backend: str = ON_LOOPBACK) -> bool:
    parser = get_args_parser()
    line = [f"--rdzv-backend={backend}", "--rdzv-endpoint=127.0.0.1:0", "--nproc-per-node=4", "--max-restarts=0"]
    return asks_for_forks(parser, parser.parse_args([*line, "--log-dir=/dev/null", *changed, "-m", module, "p.json"]))


def test_only_a_command_line_all_of_which_forks_heed_has_forks():
    assert asked()
    assert asked("--nnodes=2", "--rdzv-conf=rank=1", "--node-rank=1")
    for option in ("--max-restarts=1", "--log-dir=logs", "--redirects=3", "--tee=3", "--virtual-local-rank"):
        assert not asked(option)
    assert not asked(module="another.module")
    assert not asked(backend="c10d")


def test_a_process_with_a_thread_or_a_gpu_is_not_forked(monkeypatch):
    monkeypatch.setattr(os, "listdir", lambda path: ["1"])
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert can_fork()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert not can_fork()
    monkeypatch.undo()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert not can_fork()
    done.set()
    thread.join()


@pytest.mark.parametrize("recompute", [False, True, None], ids=["kept", "recomputed", "no plan"])
def test_loading_what_ranks_need_starts_no_thread(recompute, tmp_path):
    """Else ranks would not be forks, and no one would notice. What recomputation needs is loaded only for it."""
    if recompute is not None:
        plan = chain_plan([2], [])
        stages = tuple(stage.replace(recompute=recompute) for stage in plan.stages)
        save_plan(plan.replace(stages=stages), tmp_path / "plan.json")
    code = (
        "import sys, pathlib; from hetplanner.runtime.launch import can_fork, preload;"
        " preload(pathlib.Path('plan.json')); print(can_fork(), 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == f"{not torch.accelerator.is_available()} {bool(recompute)}\n", done.stderr
