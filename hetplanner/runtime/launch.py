"""Starts a host's ranks: `python -m hetplanner.runtime.launch`, with torchrun's options.

It is torchrun, but ranks are forks of it where that is sound. On a machine with a GPU they are programs: a fork of what
has looked for GPUs can use none.
"""

import argparse
import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server import WorkerSpec
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.elastic.rendezvous import RendezvousParameters

from hetplanner.errors import HetplannerError
from hetplanner.liveness.processes import end_process
from hetplanner.plan.files.plan_files import load_plan
from hetplanner.runtime.comm.rendezvous import BACKEND, ON_LOOPBACK, create_handler
from hetplanner.runtime.forked_ranks import ForkAgent, ForkedRank
from hetplanner.runtime.late_imports import late_imports
from hetplanner.runtime.worker import parse_arguments

WORKER_MODULE = "hetplanner.runtime.worker"
PRELOADED = (
    "hetplanner.runtime.session",
    "hetplanner.plan.files.train_files",
)
HEEDED = {"nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_conf", "rdzv_id", "node_rank"}
HEEDED |= {"max_restarts", "log_dir", "module", "training_script", "training_script_args"}
"""Options that forks heed; with another one ranks are programs."""


def asks_for_forks(parser: argparse.ArgumentParser, options: argparse.Namespace) -> bool:
    """Whether forks do all that a command line asks for: our worker and rendezvous, no restarts, no log folder."""
    given = {name for name, value in vars(options).items() if value != parser.get_default(name)}
    is_worker = options.module and options.training_script == WORKER_MODULE
    is_bare = options.max_restarts == 0 and options.log_dir == os.devnull
    return bool(is_worker and is_bare and options.rdzv_backend in (BACKEND, ON_LOOPBACK) and given <= HEEDED)


def can_fork() -> bool:
    """Whether a fork of this process is as good as a new one: Linux, no GPU, and no thread but this one."""
    if sys.platform != "linux" or torch.accelerator.is_available():
        return False
    return len(os.listdir("/proc/self/task")) == 1  # a fork has none of the others, but may have what they held


def preload(plan_file: Path) -> None:
    """Loads what ranks of a plan need; pages of what is loaded stay shared. A rank tells what is missing or wrong."""
    for name in (*PRELOADED, *_late_imports(plan_file)):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _late_imports(plan_file: Path) -> tuple[str, ...]:
    try:
        plan = load_plan(plan_file)
    except (HetplannerError, OSError):
        return ()
    return late_imports(plan.problem.workload, (stage.recompute for stage in plan.stages))


def run_forks(options: argparse.Namespace) -> None:
    """Runs this host's ranks to their end. Raises ChildFailedError, InvalidInput, SignalException."""
    config, _, _ = torchrun.config_from_args(options)
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        **config.rdzv_configs,
    )
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=WORKER_MODULE,
        rdzv_handler=create_handler(parameters),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
    )
    ranks = [ForkedRank(options.training_script_args) for _ in range(config.nproc_per_node)]
    result = ForkAgent(spec, ranks).run()
    if result.is_failed():
        raise ChildFailedError(WORKER_MODULE, result.failures)


@record
def main(arguments: Sequence[str] | None = None) -> None:
    """The command. Raises what torchrun raises, which has Python say so and end with exit code 1."""
    parser = torchrun.get_args_parser()
    options = parser.parse_args(arguments)
    if asks_for_forks(parser, options):
        preload(parse_arguments(options.training_script_args).plan)
        if can_fork():
            run_forks(options)
            return
    torchrun.run(options)


if __name__ == "__main__":
    main()
    end_process(0)
