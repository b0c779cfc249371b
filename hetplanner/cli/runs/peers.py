"""hetplanner peer join|certificates: devices that take part in an elastic run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hetplanner.cli.output import AsJson, console, print_json

app = typer.Typer(no_args_is_help=True, help="Bring a device into an elastic run; make a swarm's certificates.")


@app.command()
def join(
    address: Annotated[
        str,
        typer.Argument(metavar="RUN|ADDRESS", help="A run of yours on this machine, or HOST:PORT of its coordinator."),
    ],
    name: Annotated[str | None, typer.Option(help="Id of this peer, none twice; default: drawn.")] = None,
    certificates: Annotated[
        Path | None, typer.Option(help="Folder of the swarm's certificates; of a run on this machine its own.")
    ] = None,
    host: Annotated[str, typer.Option(help="By which the other peers reach this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="To listen on; 0: a free one.")] = 0,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda (the first GPU), cuda:N, or auto.")] = "cpu",
    tensor: Annotated[
        int, typer.Option(help="Devices of this machine that are the peer together, from --device on: 1, 2, 4 or 8.")
    ] = 1,
    sharding: Annotated[str, typer.Option(help="What they divide: tensor, zero2 or zero3.")] = "tensor",
    checkpoints: Annotated[Path, typer.Option(help="Folder of this peer's checkpoints.")] = Path("checkpoints"),
    notice: Annotated[
        str | None,
        typer.Option(help="aws, gcp or azure: leave in time when this cloud says that it takes the machine."),
    ] = None,
) -> None:
    """Join an elastic run with this machine. Ctrl-C leaves at a step boundary, SIGTERM within 20 s."""
    from hetplanner.errors import InvalidInput
    from hetplanner.liveness.notices import CLOUDS
    from hetplanner.swarm.wire.addresses import check_address

    if notice not in (None, *CLOUDS):
        raise InvalidInput(f"--notice: must be one of {', '.join(CLOUDS)}, got {notice!r:.60}")
    _check_group(tensor, sharding)
    inside: tuple[str, ...] = ()
    if ":" not in address:
        address, certificates, inside = _place_of(address)
    check_address(address, certificates)
    arguments = [*inside, sys.executable, "-m", "hetplanner.swarm.main", "peer", address]
    arguments += ["--host", host, "--port", str(port)]
    arguments += ["--device", device, "--degree", str(tensor), "--sharding", sharding]
    arguments += ["--checkpoints", str(checkpoints)]
    arguments += [f"--name={name}"] if name is not None else []
    arguments += [f"--notice={notice}"] if notice is not None else []
    arguments += ["--certificates", str(certificates)] if certificates is not None else []
    os.execv(sys.executable, arguments)  # signals go straight to the peer


def _check_group(degree: int, sharding: str) -> None:
    """Refuses what no peer can be, whatever it trains. Raises InvalidInput."""
    from hetplanner.errors import InvalidInput
    from hetplanner.workload.tensor_degrees import DEGREES, SHARDINGS

    if degree not in DEGREES:
        raise InvalidInput(f"--tensor: must be one of {', '.join(map(str, DEGREES))}, got {degree}")
    if sharding not in SHARDINGS:
        raise InvalidInput(f"--sharding: must be one of {', '.join(SHARDINGS)}, got {sharding!r:.60}")
    if degree == 1 and sharding != "tensor":
        raise InvalidInput(f"--sharding: {sharding} is for groups of devices; give --tensor 2 or more")


def _place_of(name: str) -> tuple[str, Path | None, tuple[str, ...]]:
    """A local run's coordinator, its certificates, and what takes a process into its network. Raises InvalidInput."""
    from hetplanner.errors import InvalidInput
    from hetplanner.launchers.isolate import inside
    from hetplanner.plan.elastic.model import ElasticPlan
    from hetplanner.runs.reading.swarm_history import SwarmHistory
    from hetplanner.runs.run import open_run

    run = open_run(name)
    if not isinstance(run.plan, ElasticPlan):
        raise InvalidInput(f"run {run.id}: its plan is static: no peer can join it")
    if run.config.emulate_links:  # the others wait for rounds on emulated links, which a peer from outside lacks
        raise InvalidInput(f"run {run.id}: its links are emulated; a peer can join a run without --emulate-links")
    status, address = run.status(), SwarmHistory(run.path).read_all().address
    if status.state not in ("starting", "running") or status.pid is None or address is None:
        raise InvalidInput(f"run {run.id}: is {status.state}; only a running swarm can be joined")
    certificates = run.path / "certificates"
    return address, certificates if certificates.is_dir() else None, inside(status.pid)


@app.command()
def certificates(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made if missing.")],
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long they are valid.")] = 365,
    as_json: AsJson = False,
) -> None:
    """Make the certificates of a swarm: an authority, and one for its members. Copy all but authority.key to hosts."""
    from hetplanner.swarm.wire.certificates import make_certificates

    files = [str(path) for path in make_certificates(folder, days)]
    if as_json:
        print_json({"files": files})
    else:
        console.print("\n".join(files))
