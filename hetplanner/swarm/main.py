"""One process of a swarm: `python -m hetplanner.swarm.main coordinator|peer|trainer ...`.

A peer or trainer asks the coordinator what is trained. SIGTERM ends this process alone: a peer leaves
between two steps, the coordinator has a checkpoint written. SIGINT to the coordinator ends the run, with its model.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hetplanner.errors import HetplannerError, InvalidInput, Preempted, RunError
from hetplanner.liveness.heartbeat import Heartbeat
from hetplanner.liveness.notices import CLOUDS, NoticeWatcher
from hetplanner.liveness.processes import end_process, end_with_parent
from hetplanner.swarm.peer.group.processes import Members, check_group
from hetplanner.workload.tensor_degrees import DEGREES, SHARDINGS

if TYPE_CHECKING:
    import torch

    from hetplanner.swarm.driver import Driver
    from hetplanner.swarm.peer.group.leader import Engine
    from hetplanner.swarm.spec import SwarmSpec
    from hetplanner.swarm.wire.certificates import Credentials

log = logging.getLogger(__name__)

SPEC_FILE = "swarm.json"
JOIN_S = 60.0
PATIENCE_S = 2.0
"""Without an answer for so long, a joiner looks whether it is refused."""


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="hetplanner.swarm.main", description="One process of a swarm.")
    roles = parser.add_subparsers(dest="role", required=True)
    for role in ("coordinator", "peer", "trainer"):
        one = roles.add_parser(role)
        one.add_argument("--certificates", type=Path, help="folder made by `hetplanner peer certificates`")
        one.add_argument("--host", default="127.0.0.1", help="by which the others reach this process")
        one.add_argument("--port", type=int, default=0)
        one.add_argument("--log", type=Path, help="log file; default: standard error")
        one.add_argument("--tied", action="store_true", help="end when the parent process ends")
        one.add_argument("--seed", type=int, help="of ties and names")
        one.add_argument("--heartbeat", type=int, help="place in the file of heartbeats that the environment names")
        one.add_argument("--proxy", default="", help="HOST:PORT of an HTTP proxy that calls go through")
        if role == "coordinator":
            one.add_argument("run_dir", type=Path, help=f"holds {SPEC_FILE}; gets log, telemetry and model")
            one.add_argument("--fresh", action="store_true", help="no other process of the swarm is alive")
            continue
        one.add_argument("address", help="of the coordinator")
        one.add_argument("--name", help="id of this process; none twice")
        if role == "peer":
            one.add_argument(
                "--speed", type=_speeds, help="micro-batches per second to emulate by waiting; A,B,C: in every stage"
            )
            one.add_argument("--links", type=Path, help="folder of a rehearsal whose links are emulated")
            one.add_argument("--at", help="device of the rehearsal's cluster that this peer emulates")
            one.add_argument("--device", default="cpu", help="device: cpu, cuda, cuda:N, or auto")
            one.add_argument("--turn", type=int, default=0, help="number of its first device on its host")
            one.add_argument("--degree", type=int, default=1, choices=DEGREES, help="devices that are this peer")
            one.add_argument("--sharding", default="tensor", choices=SHARDINGS, help="what they divide")
            one.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
            one.add_argument("--folder", action="append", default=[], help="of first weights: a model, then adapters")
            one.add_argument("--notice", choices=CLOUDS, help="the cloud that says before it takes this machine away")
        else:
            one.add_argument("--slots", type=int, default=4, help="micro-batches under way at once")
    return parser.parse_args(arguments)


def _speeds(text: str) -> tuple[float, ...]:
    speeds = tuple(map(float, text.split(",")))
    if not all(0 < speed < math.inf for speed in speeds):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text!r:.60}")
    return speeds


def main(arguments: list[str] | None = None) -> int:
    """Runs a process to its end. The exit code is 0, or an error's."""
    parsed = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    os.umask(0o077)  # what a run writes is its user's
    if parsed.tied:
        end_with_parent(signal.SIGKILL)
    _redirect(parsed.log)
    parsed.beat = Heartbeat.of_rank(parsed.heartbeat, 0) if parsed.heartbeat is not None else Heartbeat()
    parsed.beat.enter("importing")
    failure: HetplannerError | None = None
    try:
        # Before gRPC is loaded: its threads would be missing in the other members.
        degree = parsed.degree if parsed.role == "peer" else 1
        parsed.members = Members(degree, parsed.sharding) if degree > 1 else None
        asyncio.run(_run(parsed))
    except HetplannerError as error:
        failure = error
    finally:
        log.info("ended after %.1f s of CPU time", sum(os.times()[:2]))
    if failure is None:
        return 0
    sys.stderr.write(f"{failure}\n")  # the last line says why it ended
    return failure.exit_code


def _redirect(path: Path | None) -> None:
    if path is not None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it reports every connection that breaks
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", force=True)


async def _run(parsed: argparse.Namespace) -> None:
    from hetplanner.swarm.wire.certificates import load_credentials

    credentials = load_credentials(parsed.certificates) if parsed.certificates else None
    if parsed.role == "coordinator":
        await _coordinate(parsed, credentials)
    else:
        await _take_part(parsed, credentials)


async def _coordinate(parsed: argparse.Namespace, credentials: Credentials | None) -> None:
    from hetplanner.schema import read_text
    from hetplanner.swarm.coordinator_process import CoordinatorProcess, open_decisions
    from hetplanner.swarm.event_log import EventLog
    from hetplanner.swarm.spec import read_spec
    from hetplanner.swarm.wire.certificates import authority_name

    spec = read_spec(read_text(parsed.run_dir / SPEC_FILE), SPEC_FILE)
    event_log = EventLog(parsed.run_dir, spec.workload.tokens_per_step)
    process = CoordinatorProcess(
        spec, credentials, open_decisions(parsed.run_dir), event_log, parsed.run_dir, parsed.proxy, fresh=parsed.fresh
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, process.stop)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, process.preempt)
    address = await process.start(parsed.host, parsed.port)
    log.info("coordinator at %s, %s", address, authority_name(credentials) if credentials else "no certificates")
    await process.run(parsed.beat)
    step = process.machine.version.step
    event_log.close("done" if process.is_over and step >= spec.train.steps else None)
    if process.error is not None:
        raise RunError(f"coordinator: {process.error}") from process.error
    if process.was_preempted and not process.is_over:
        raise Preempted(f"coordinator: told to end by SIGTERM, after step {step}")


async def _take_part(parsed: argparse.Namespace, credentials: Credentials | None) -> None:
    import torch

    from hetplanner.runtime.device import named_device

    torch.set_num_threads(1)
    device = named_device(parsed.device, parsed.turn) if parsed.role == "peer" else None
    spec = await _ask_spec(parsed.address, credentials, parsed.proxy)
    name = parsed.name or f"{parsed.role}-{secrets.token_hex(4)}"
    process: Driver
    if device is not None:
        from hetplanner.swarm.launch.links import Links
        from hetplanner.swarm.peer_process import PeerProcess

        peer = process = PeerProcess(
            name,
            spec,
            parsed.address,
            credentials,
            parsed.checkpoints,
            _engine(parsed, spec, device),
            parsed.seed,
            Links(parsed.links, parsed.at) if parsed.links else None,
            parsed.proxy,
        )
        await peer.start(parsed.host, parsed.port)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, peer.leave)
        if parsed.notice:
            NoticeWatcher(parsed.notice, lambda words: loop.call_soon_threadsafe(peer.preempt))
    else:
        from hetplanner.swarm.trainer_process import TrainerProcess

        trainer = process = TrainerProcess(
            name, spec, parsed.address, credentials, parsed.slots, parsed.seed, parsed.proxy
        )
        await trainer.start(parsed.host, parsed.port)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, trainer.ended.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, process.preempt)
    await process.run(parsed.beat)
    if process.error is not None:
        raise RunError(f"{parsed.role} {name}: {process.error}") from process.error
    if process.was_preempted:
        raise Preempted(f"{parsed.role} {name}: told to end by SIGTERM")


def _engine(parsed: argparse.Namespace, spec: SwarmSpec, device: torch.device) -> Engine:
    """What computes: of one device, or of a group. Raises InvalidInput: the group cannot share the model."""
    from hetplanner.swarm.peer.engine import StageEngine

    members: Members | None = parsed.members
    if members is None:
        return StageEngine(spec, device, parsed.speed, parsed.folder)
    from hetplanner.swarm.peer.group.leader import GroupEngine
    from hetplanner.swarm.peer.group.member_engine import MemberEngine

    check_group(members.degree, members.sharding, spec.workload)
    group, device = members.join(spec, parsed.device, parsed.turn)
    return GroupEngine(MemberEngine(spec, device, parsed.speed, parsed.folder, group), members)


async def _ask_spec(address: str, credentials: Credentials | None, proxy: str) -> SwarmSpec:
    """What is trained, from the coordinator."""
    from hetplanner.swarm.coordinator_process import CONTROL_BYTES, DESCRIPTION_QUERY
    from hetplanner.swarm.driver import Driver
    from hetplanner.swarm.spec import read_spec
    from hetplanner.swarm.wire.addresses import is_loopback
    from hetplanner.swarm.wire.endpoint import Lost
    from hetplanner.swarm.wire.refusal import why_refused

    driver = Driver(credentials, CONTROL_BYTES, proxy=proxy)
    asking = asyncio.ensure_future(driver.endpoint.query(address, DESCRIPTION_QUERY, JOIN_S))
    try:
        before = None
        while not (await asyncio.wait({asking}, timeout=PATIENCE_S))[0]:
            refusal = await why_refused(address, credentials)
            if refusal is not None and refusal == before:  # once may be a coordinator that ends or begins
                raise InvalidInput(refusal)
            before = refusal
        return read_spec(await asking, f"coordinator {address}")
    except Lost as lost:
        own = "; a run on this machine has a network of its own: hetplanner peer join RUN"
        hint = own if is_loopback(address.rpartition(":")[0]) else ""
        raise InvalidInput(f"coordinator: cannot be reached to learn the model: {lost}{hint}") from None
    finally:
        asking.cancel()
        await driver.endpoint.close()


if __name__ == "__main__":
    end_process(main())
