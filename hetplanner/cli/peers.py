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
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="HOST:PORT of the run's coordinator.")],
    name: Annotated[str | None, typer.Option(help="Id of this peer, none twice; default: drawn.")] = None,
    certificates: Annotated[
        Path | None, typer.Option(help="Folder of the swarm's certificates; needed beyond loopback.")
    ] = None,
    host: Annotated[str, typer.Option(help="By which the other peers reach this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="To listen on; 0: a free one.")] = 0,
    device: Annotated[str, typer.Option(help="What computes: cpu, cuda (the first GPU), cuda:N, or auto.")] = "cpu",
    checkpoints: Annotated[Path, typer.Option(help="Folder of this peer's checkpoints.")] = Path("checkpoints"),
) -> None:
    """Join an elastic run with this machine. Ctrl-C leaves at a step boundary; SIGTERM at once."""
    arguments = [sys.executable, "-m", "hetplanner.swarm.main", "peer", address, "--host", host, "--port", str(port)]
    arguments += ["--device", device, "--checkpoints", str(checkpoints)]
    arguments += [f"--name={name}"] if name is not None else []
    arguments += ["--certificates", str(certificates)] if certificates is not None else []
    os.execv(sys.executable, arguments)  # signals go straight to the peer


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
