"""What each host of a swarm runs: its peers, on the first host the coordinator and the trainers too."""

from collections.abc import Sequence

from hetplanner.launchers.hosts_file import PlacedHost
from hetplanner.launchers.interface import SWARM_HOST_MODULE, HostCommand
from hetplanner.liveness.notices import NOTICE_VARIABLE
from hetplanner.plan.placement import ADDRESS_VARIABLE, COORDINATOR_VARIABLE, HOST_VARIABLE

AVERAGED = (
    "activations travel encrypted, but gradients that are averaged inside a stage do not: any machine on the hosts'"
    " network can read and change them; use a network of your own, or WireGuard"
)


def swarm_commands(placed: Sequence[PlacedHost], port: int, folders: Sequence[str]) -> tuple[HostCommand, ...]:
    """What each host runs.

    Args:
        placed: the plan's hosts; the first one has the coordinator.
        port: of the coordinator.
        folders: of the run, on each; a relative one lies in the user's home folder.
    """
    coordinator = f"{placed[0].address}:{port}"
    return tuple(
        HostCommand(
            host.name,
            (host.program, "-m", SWARM_HOST_MODULE, f"{folder}/plan.json"),
            {
                HOST_VARIABLE: host.name,
                ADDRESS_VARIABLE: host.address,
                COORDINATOR_VARIABLE: coordinator,
                "OMP_NUM_THREADS": "1",
            }
            | ({NOTICE_VARIABLE: host.notice} if host.notice else {}),
            len(host.ranks),
        )
        for host, folder in zip(placed, folders, strict=True)
    )
