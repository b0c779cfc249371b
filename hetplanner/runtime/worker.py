"""One rank of a run, by `launch` or torchrun: `torchrun --nproc-per-node=N -m hetplanner.runtime.worker plan.json`.

torch is imported late: first the log file, the phases and the stop signals are in place, so that a slow or failing
start can be seen.
"""

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.liveness.heartbeat import Heartbeat
from hetplanner.liveness.notices import CLOUDS, NOTICE_VARIABLE, NoticeWatcher
from hetplanner.liveness.processes import end_process
from hetplanner.runtime.measure.host_load import HostLoad
from hetplanner.runtime.measure.telemetry import Telemetry
from hetplanner.runtime.watch import StopWatcher, block_signals

if TYPE_CHECKING:
    from hetplanner.plan.model import Plan
    from hetplanner.plan.train import TrainConfig

log = logging.getLogger(__name__)

ATTEMPT_VARIABLE = "HETPLANNER_ATTEMPT"
"""Set by the agent when it starts a run again: how often it has."""


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="hetplanner.runtime.worker",
        description="One rank of a run; start it with torchrun. Settings of a run.json next to PLAN hold.",
    )
    parser.add_argument(
        "plan", type=Path, metavar="PLAN", help="plan.json; its folder is the run's if it has a run.json"
    )
    parser.add_argument("--steps", type=int, help="optimiser steps")
    parser.add_argument("--seed", type=int, help="of weights, data and dropout")
    parser.add_argument("--data", help="path of text, tokens, a data set or images; or 'digits'")
    parser.add_argument(
        "--emulate-links", action="store_true", default=None, help="delay transfers as the plan's links do"
    )
    parser.add_argument("-o", "--output", type=Path, help="the run's folder (default: PLAN's name with -run)")
    return parser.parse_args(arguments)


def planned_rank(plan_file: Path) -> int:
    """The plan's rank of this process: by the host that the launcher names, else torchrun's. Raises InvalidInput."""
    host = os.environ.get("HETPLANNER_HOST")
    if not host:
        return int(os.environ.get("RANK", "0"))
    from hetplanner.plan.files.plan_files import load_plan
    from hetplanner.plan.placement import rank_on_host

    local_rank, num_processes = (int(os.environ.get(name, "0")) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    return rank_on_host(load_plan(plan_file), host, local_rank, num_processes)


def run_directory(arguments: argparse.Namespace) -> Path:
    """The run's folder."""
    folder: Path = arguments.plan.resolve().parent
    if arguments.output is None and (folder / "run.json").is_file():
        return folder
    return Path(arguments.output or folder / f"{arguments.plan.stem}-run").resolve()


def read_settings(arguments: argparse.Namespace) -> "tuple[Plan, TrainConfig]":
    """Plan and settings: of run.json beside the plan, if there is one, but for what was typed. Raises InvalidInput."""
    from hetplanner.plan.files.plan_files import load_plan
    from hetplanner.plan.files.train_files import load_config
    from hetplanner.plan.train import TrainConfig
    from hetplanner.schema import checked

    file = arguments.plan.resolve().parent / "run.json"
    config = load_config(file) if file.is_file() else TrainConfig()
    names = ("steps", "seed", "data", "emulate_links")
    typed = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    return load_plan(arguments.plan), checked(TrainConfig, dict(config) | typed, "settings")


def write_settings(plan: "Plan", config: "TrainConfig", run_dir: Path) -> None:
    """plan.json and run.json of a run whose folder is not the plan's."""
    from hetplanner.plan.files.plan_files import save_plan
    from hetplanner.plan.files.train_files import save_config

    save_plan(plan, run_dir / "plan.json")
    save_config(config, run_dir / "run.json")


def redirect_output(run_dir: Path, rank: int) -> None:
    """Sends stdout and stderr, those of C++ included, to log-R.txt."""
    log_file = os.open(run_dir / f"log-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log_file, 1)
    os.dup2(log_file, 2)
    os.close(log_file)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")


def start_telemetry(run_dir: Path, rank: int, attempt: int = 0) -> Telemetry:
    """The rank's telemetry. Raises InvalidInput when the folder holds a run already, unless that is started again."""
    try:
        return Telemetry(run_dir / f"rank-{rank}.jsonl", rank, attempt)
    except FileExistsError:
        raise InvalidInput(f"{run_dir}: holds a run already; give another folder with -o") from None


def name_process(rank: int) -> None:
    """Has `ps -o comm` and `top` call this process by its rank; on Linux."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"rank {rank}", encoding="ascii")


def watch_host(telemetry: Telemetry) -> HostLoad | None:
    """The first rank of a host tells how busy the host is."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return None
    return HostLoad(telemetry, os.environ.get("HETPLANNER_HOST") or socket.gethostname())


def watch_notices(terminal: int, telemetry: Telemetry) -> NoticeWatcher | None:
    """The first rank of a host ends as by SIGTERM, and with it all others, when the host's cloud says that it goes."""
    cloud = os.environ.get(NOTICE_VARIABLE)
    if not cloud or os.environ.get("LOCAL_RANK", "0") != "0":
        return None

    def told(words: str) -> None:
        _tell(terminal, words)
        telemetry.write("notice", text=words, time_s=time.time())
        telemetry.flush()
        os.kill(os.getpid(), signal.SIGTERM)

    if cloud not in CLOUDS:
        raise InvalidInput(f"{NOTICE_VARIABLE}: must be one of {', '.join(CLOUDS)}, got {cloud!r:.60}")
    return NoticeWatcher(cloud, told)


def main(arguments: list[str] | None = None) -> int:
    """Runs this rank.

    Returns:
        The exit code: 0 when all steps are done or its user has stopped the run, 75 after a preemption, 1 after an
        `error` line in rank-R.jsonl and log-R.txt.
    """
    block_signals()
    os.umask(0o077)  # what a run writes is its user's
    parsed = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    attempt = int(os.environ.get(ATTEMPT_VARIABLE, "0"))
    terminal = os.dup(2)
    try:
        rank = planned_rank(parsed.plan)
    except InvalidInput as error:
        return _fail(None, error, terminal)
    name_process(rank)
    run_dir = run_directory(parsed)
    run_dir.mkdir(parents=True, exist_ok=True)
    redirect_output(run_dir, rank)
    heartbeat = Heartbeat.of_rank(rank, attempt)
    code = _run_rank(parsed, run_dir, heartbeat, terminal, rank, attempt)
    heartbeat.end(code)
    return code


def _run_rank(
    parsed: argparse.Namespace, run_dir: Path, heartbeat: Heartbeat, terminal: int, rank: int, attempt: int
) -> int:
    try:
        telemetry = start_telemetry(run_dir, rank, attempt)
    except InvalidInput as error:
        return _fail(None, error, terminal)
    watcher = StopWatcher(run_dir, heartbeat, attempt)
    load = watch_host(telemetry)
    notices = None

    def give_up() -> None:  # there is nothing to save before the stage is built
        heartbeat.end(watcher.exit_code())
        os._exit(watcher.exit_code())

    watcher.on_overdue = give_up
    watcher.start()
    try:
        heartbeat.enter("importing")
        telemetry.phase("importing")
        notices = watch_notices(terminal, telemetry)
        plan, config = read_settings(parsed)
        if rank == 0 and run_dir != parsed.plan.resolve().parent:
            write_settings(plan, config, run_dir)
        from hetplanner.runtime.comm.connect import place_from_environment
        from hetplanner.runtime.session import Session

        place = replace(place_from_environment(), rank=rank)
        session = Session(plan, config, place, run_dir, telemetry, watcher, heartbeat, attempt)
        steps = session.run()
        if steps < config.steps:
            asked = watcher.request.name.lower()
            _tell(terminal, f"ended after {steps} of {config.steps} steps, since it was asked to {asked}")
            return watcher.exit_code()
        return 0
    except Exception as error:
        return _fail(telemetry, error, terminal)
    finally:
        watcher.close()
        if load is not None:
            load.close()
        if notices is not None:
            notices.close()
        telemetry.close()


def _tell(terminal: int, line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(terminal, f"hetplanner worker: {line}\n".encode())


def _fail(telemetry: Telemetry | None, error: Exception, terminal: int) -> int:
    known = isinstance(error, HetplannerError)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    line = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    log.error("%s", line)
    trace = traceback.format_exc()
    if not isinstance(error, InvalidInput):
        log.error("%s", trace)
    if telemetry:
        telemetry.write("error", text=line, traceback=trace, time_s=time.time())
        telemetry.flush()
    _tell(terminal, line)
    return 1


def run_to_exit(arguments: list[str] | None = None) -> NoReturn:
    """Runs this rank, then ends the process."""
    end_process(main(arguments))


if __name__ == "__main__":
    run_to_exit()
