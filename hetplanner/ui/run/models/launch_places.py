"""Where a launch may run: on this machine, or on the hosts of a file that the agent offers by name."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.launchers.hosts_file import Hosts
from hetplanner.launchers.launch_file import LOCAL, Launch
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.runs.agent.allowed_paths import allowed_hosts, read_allowed_paths
from hetplanner.runs.agent.successor import LAUNCHER as SSH
from hetplanner.ui.shell.models.texts import without_paths

HERE = "this machine"
SLURM = "slurm"
_WORDS = {SSH: "over ssh", SLURM: "as a Slurm job"}


@dataclass(frozen=True)
class Place:
    """Where a launch runs.

    Attributes:
        launcher: its name.
        hosts: name of a hosts file that the agent offers; None on this machine.
    """

    launcher: str = LOCAL
    hosts: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine."""
        return self.launcher == LOCAL

    @property
    def label(self) -> str:
        """What a person chooses it by."""
        return f"{self.hosts}, {_WORDS[self.launcher]}" if self.hosts is not None else HERE

    def may_replan(self, plan: AnyPlan) -> bool:
        """Whether a run of the plan can go on there without a lost host, under a plan made anew."""
        return self.launcher == SSH and not isinstance(plan, ElasticPlan)

    def takes_connections(self, plan: AnyPlan) -> bool:
        """Whether ranks of the plan can have several connections to each other there."""
        return not self.is_local and not isinstance(plan, ElasticPlan)


THIS_MACHINE = Place()


def places_for(plan: AnyPlan, home: Path | None, earlier: Launch | None = None) -> dict[str, Place]:
    """Places by label; the first one is taken unless a person wants another.

    Args:
        plan: what shall run; a rehearsal runs on this machine alone, and Slurm starts no swarm.
        home: whose offers.
        earlier: how the run was launched whose checkpoints it goes on from: they lie there.

    Raises:
        InvalidInput: the agent's file is not right, or it offers no hosts to go on with.
    """
    if plan.problem.rehearsal_of is not None or (earlier is not None and earlier.is_local):
        return _by_label([THIS_MACHINE])
    names = read_allowed_paths(home).hosts_names
    if earlier is not None:
        if not names:
            raise InvalidInput(
                "restart: this run's hosts are not offered to pages; name its hosts file in agent.toml under [hosts],"
                " or go on with `hetplanner train --resume`"
            )
        same = [name for name in names if _read(name, home) == earlier.hosts]
        return _by_label(Place(earlier.launcher, name) for name in (*same, *names))
    places = [THIS_MACHINE]
    for name in names:
        places.append(Place(SSH, name))
        hosts = _read(name, home)
        if hosts is not None and hosts.slurm is not None and not isinstance(plan, ElasticPlan):
            places.append(Place(SLURM, name))
    return _by_label(places)


def hosts_at(place: Place, home: Path | None) -> Hosts | None:
    """The hosts of a place; None on this machine. Raises InvalidInput: its file is not right; no path is told."""
    if place.hosts is None:
        return None
    try:
        return allowed_hosts(place.hosts, home)
    except InvalidInput as error:
        raise InvalidInput(f"hosts: {without_paths(str(error)).removeprefix('hosts: ')}") from None


def _read(name: str, home: Path | None) -> Hosts | None:
    """The hosts of an offer; None where its file is not right, which is told when it is chosen."""
    try:
        return allowed_hosts(name, home)
    except HetplannerError:
        return None


def _by_label(places: Iterable[Place]) -> dict[str, Place]:
    return {place.label: place for place in places}
