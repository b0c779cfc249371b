"""One torchrun per host: the lines to paste where nothing of ours may start them."""

from pathlib import Path

from hetplanner.errors import InvalidInput
from hetplanner.launchers.hosts_file import Hosts, PlacedHost, is_public, place_hosts
from hetplanner.launchers.interface import LAUNCH, WORKER_MODULE, HostCommand, LaunchRequest
from hetplanner.liveness.notices import NOTICE_VARIABLE
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.placement import ADDRESS_VARIABLE, HOST_VARIABLE
from hetplanner.plan.train import TrainConfig, check_runnable

RENDEZVOUS = "hetplanner"
"""Our rendezvous backend (an entry point of `torchrun.handlers`): ranks stay where the plan has them."""
TORCHRUN = ("-m", "torch.distributed.run")
UNENCRYPTED = (
    "traffic between the hosts is neither encrypted nor authenticated: any machine on their network can read and change"
    " it; use a network of your own, or WireGuard"
)
EMULATED = "emulate_links: hosts have links of their own; leave it out, or take --launcher local"
PUBLIC = "host {name}: {address} is a public address, and {rest}"


class TorchrunLauncher:
    """Writes the command of every host, and starts none."""

    name = "torchrun"

    def __init__(self, hosts: Hosts | None = None) -> None:
        """A launcher.

        Args:
            hosts: how the plan's hosts are reached; None calls each by its own name.
        """
        self.hosts = hosts or Hosts()

    def request(self, plan: AnyPlan, run_dir: Path, config: TrainConfig) -> LaunchRequest:
        """One torchrun a host; `run_dir` with plan.json and run.json is to be copied to every host.

        Raises:
            InvalidInput: the plan is elastic, its links are emulated, or the hosts file does not fit it.
        """
        placed = checked_hosts(plan, config, self.hosts)
        commands = host_commands(placed, self.hosts.port, [str(run_dir)] * len(placed), TORCHRUN)
        warnings, by_hand = network_warnings(placed, self.hosts), "paste its lines (--dry-run) on the hosts"
        return LaunchRequest(self.name, run_dir, commands, warnings, by_hand=by_hand)


def checked_hosts(plan: AnyPlan, config: TrainConfig, hosts: Hosts) -> tuple[PlacedHost, ...]:
    """The plan's hosts. Raises InvalidInput where a launch over hosts cannot express plan or settings."""
    if isinstance(plan, ElasticPlan):
        raise InvalidInput("plan: this launcher starts no swarm; take --launcher ssh or local, or give a static plan")
    if config.emulate_links:
        raise InvalidInput(EMULATED)
    check_runnable(plan)
    return place_hosts(plan, hosts)


def host_commands(
    placed: tuple[PlacedHost, ...], port: int, folders: list[str], starting: tuple[str, ...] = LAUNCH
) -> tuple[HostCommand, ...]:
    """What each host runs.

    Args:
        placed: the plan's hosts, in the order of their node rank.
        port: of the store, on the first one.
        folders: of the run, on each; a relative one lies in the user's home folder.
        starting: what Python runs there to start ranks.
    """
    endpoint = f"{placed[0].address}:{port}"
    return tuple(
        HostCommand(
            host.name,
            (
                *(host.program, *starting),
                f"--rdzv-backend={RENDEZVOUS}",
                f"--rdzv-endpoint={endpoint}",
                f"--nnodes={len(placed)}",
                f"--rdzv-conf=rank={host.node}",
                f"--nproc-per-node={len(host.ranks)}",
                "--max-restarts=0",
                "--log-dir=/dev/null",  # ranks write their own
                *("-m", WORKER_MODULE, f"{folder}/plan.json"),
            ),
            {HOST_VARIABLE: host.name, ADDRESS_VARIABLE: host.address, "OMP_NUM_THREADS": "1"}
            | ({NOTICE_VARIABLE: host.notice} if host.notice else {}),
            len(host.ranks),
        )
        for host, folder in zip(placed, folders, strict=True)
    )


def network_warnings(placed: tuple[PlacedHost, ...], hosts: Hosts) -> tuple[str, ...]:
    """What a person should know of the traffic between hosts; nothing of a plan on one.

    A public address is told even where the hosts file calls its network encrypted: a VPN has addresses of its own.
    """
    if len(placed) == 1:
        return ()
    public = [PUBLIC.format(name=h.name, address=h.address, rest=UNENCRYPTED) for h in placed if is_public(h.address)]
    return tuple(public) or (() if hosts.encrypted else (UNENCRYPTED,))
