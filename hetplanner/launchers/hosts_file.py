"""The hosts file: how each host of a plan is reached. TOML, written by a person.

    format = "hetplanner/hosts@1"
    ssh_config = "~/.ssh/lab_config"       # else the user's own configuration of ssh
    port = 29500                           # of the store, on the plan's first host
    encrypted = true                       # a VPN such as WireGuard carries the addresses; default: false
    lost_s = 45                            # seconds of silence after which a host is given up
    return_s = 180                         # seconds for a lost host to come back when the run is started again
    [hosts.gpu-a]                          # a host of the plan
    ssh = "me@gpu-a.lab"                   # what `ssh` is given; default: the host's name
    address = "10.0.0.5"                   # where the other hosts reach it; default: the host part of `ssh`
    python = "/opt/venv/bin/python"        # with hetplanner; default "python3"
    folder = "~/hetplanner-runs"           # where runs write there
    slurm = "node17"                       # its name in Slurm, then also the default of `ssh`; default: the host's name
    kubernetes = "node17"                  # its node's name in Kubernetes, as `slurm`
    notice = "aws"                         # or gcp, azure: the cloud that says before it takes the host; default: none
    [slurm]                                # with --launcher slurm
    options = ["--partition=gpu", "--time=1-00:00:00"]   # more of sbatch's own, see `man sbatch`
    [kubernetes]                           # with --launcher kubernetes; these are the defaults
    image = "hetplanner"                   # with hetplanner for its `python3`
    namespace = "default"
    claim = "hetplanner"                   # a volume claim for the files of runs, which all nodes can write

A host of the plan that is not listed is called by its own name.
"""

import hashlib
import ipaddress
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from hetplanner.cluster.model import Cluster
from hetplanner.errors import InvalidInput
from hetplanner.liveness.notices import Cloud
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.placement import ranks_by_host
from hetplanner.reading import reader
from hetplanner.schema import Name, Noun, check_format, checked, one_line, read_text

HOSTS_VERSION = 1
MAX_HOSTS_BYTES = 2**20
MAX_HOSTS = 4096
DEFAULT_PORT = 29_500
DEFAULT_FOLDER = "~/hetplanner-runs"
_TARGET = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*"
SLURM_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
NODE_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
"""A value of the label that Kubernetes gives each node."""
_ADDRESS = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?"


def _like(pattern: str, wanted: str, more: str = "") -> AfterValidator:
    """Refuses a text that is not wholly like the pattern."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {wanted}, got {text!r:.80}{more}")
        return text

    return AfterValidator(check)


def _program(text: str) -> str:
    if not text.isprintable() or text.strip() != text or text.startswith("-"):
        raise ValueError(f"must be a program's name or path, got {text!r:.80}")
    return text


def _folder(text: str) -> str:
    if not text.isprintable() or not (text.startswith(("/", "~/"))):
        raise ValueError(f"must be an absolute path, or begin with ~/, got {text!r:.80}")
    return text.rstrip("/") or "/"


_target = _like(
    _TARGET, "HOST or USER@HOST of letters, digits and . _ -", "; for ports, jump hosts and keys give ssh_config"
)
_address = _like(_ADDRESS, "an IPv4 address or a name that has one")
_kubernetes_name = _like(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", "a name of small letters, digits and -, such as gpu-lab")
_option = _like(r"--[a-z][a-z-]*(?:=[!-~]+)?", "a long option of sbatch without blanks, such as --partition=gpu")
_image = _like(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]*", "an image's name, such as registry.lab/hetplanner:1")
Target = Annotated[str, Field(min_length=1, max_length=255), _target]
Address = Annotated[str, Field(min_length=1, max_length=253), _address]
Program = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_program)]
HostFolder = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_folder)]
SlurmName = Annotated[str, Field(max_length=64, pattern=f"^{SLURM_NAME}$")]
NodeName = Annotated[str, Field(pattern=f"^{NODE_NAME}$")]
KubernetesName = Annotated[str, Field(max_length=63), _kubernetes_name]
SlurmOption = Annotated[str, Field(max_length=1000), _option]


class HostEntry(Noun):
    """How one host is reached, see the module; None: by its name."""

    ssh: Target | None = None
    address: Address | None = None
    python: Program = "python3"
    folder: HostFolder = DEFAULT_FOLDER
    slurm: SlurmName | None = None
    kubernetes: NodeName | None = None
    notice: Cloud | None = None


class Slurm(Noun):
    """What sbatch is told beyond the plan."""

    options: Annotated[tuple[SlurmOption, ...], Field(max_length=50)] = ()


class Kubernetes(Noun):
    """What the pods of a run share.

    Attributes:
        image: has hetplanner for its `python3`.
        claim: a PersistentVolumeClaim that all nodes can write (ReadWriteMany), for the files of runs.
    """

    image: Annotated[str, Field(max_length=500), _image] = "hetplanner"
    namespace: KubernetesName = "default"
    claim: KubernetesName = "hetplanner"


class Hosts(Noun):
    """Content of a hosts file.

    Attributes:
        ssh_config: absolute path of a configuration for ssh; None: the user's own.
        port: of the store at which all ranks meet, on the plan's first host.
        encrypted: whether the network of the addresses encrypts traffic, as WireGuard does.
        lost_s: seconds of silence after which a host is lost.
        return_s: seconds for which a lost host is waited for when a run is started again.
        hosts: by the plan's names.
        slurm, kubernetes: for the launchers of these names.
    """

    ssh_config: Annotated[str, Field(max_length=4000)] | None = None
    port: Annotated[int, Field(strict=True, ge=1024, le=65_535)] = DEFAULT_PORT
    encrypted: Annotated[bool, Field(strict=True)] = False
    lost_s: Annotated[int, Field(strict=True, ge=2, le=3_600)] = 45
    return_s: Annotated[int, Field(strict=True, ge=1, le=86_400)] = 180
    hosts: Annotated[dict[Name, HostEntry], Field(max_length=MAX_HOSTS)] = Field(default_factory=dict)
    slurm: Slurm | None = None
    kubernetes: Kubernetes | None = None


@dataclass(frozen=True)
class PlacedHost:
    """A host of a plan, its ranks, and how it is reached.

    Attributes:
        name: the plan's.
        node: its number among the plan's hosts, torchrun's node rank.
        slurm, kubernetes: its name there.
        notice: the cloud that says before it takes the host.
        ranks: the plan's, ascending; of a swarm, numbers of its peers.
    """

    name: str
    node: int
    ranks: tuple[int, ...]
    ssh: str
    address: str
    python: str
    folder: str
    slurm: str
    kubernetes: str
    notice: Cloud | None = None

    @property
    def run_folder(self) -> str:
        """The folder of this host's runs alone, since hosts may share a disk; it may begin with ~/."""
        slug = re.sub(r"[^A-Za-z0-9_-]+", "-", self.name).strip("-")[:60]
        if slug != self.name:  # two names may have one slug
            slug = f"{slug or 'host'}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"
        return f"{self.folder.rstrip('/')}/{slug}"

    @property
    def program(self) -> str:
        """`python`, as a shell in the user's home folder takes it when it is quoted."""
        return from_home(self.python)


def from_home(path: str) -> str:
    """A path that may begin with ~/, as it is called from the home folder: ssh begins there, and quotes keep ~."""
    return path.removeprefix("~/")


@reader("hosts file", at="path")
def read_hosts(path: Path) -> Hosts:
    """The hosts in a file; a relative `ssh_config` lies beside it. Raises InvalidInput."""
    text = read_text(path, MAX_HOSTS_BYTES)
    place = path.name
    try:
        data = tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(one_line(f"{path}: not TOML: {error}")) from None
    except ValueError:  # Python reads no whole number of more than some thousand digits
        raise InvalidInput(one_line(f"{path}: holds a number of too many digits")) from None
    hosts = checked(Hosts, check_format(data, "hosts", HOSTS_VERSION, place), place)
    if hosts.ssh_config is None:
        return hosts
    config = path.absolute().parent / Path(hosts.ssh_config).expanduser()
    if not config.is_file():
        raise InvalidInput(f"{place}: ssh_config: {config} is no file; correct it, or remove the line")
    return hosts.replace(ssh_config=str(config))


def hosts_template(plan: AnyPlan) -> str:
    """A hosts file for a plan, in which each host is called by its own name, and what may be said is a comment."""
    lines = [f'format = "hetplanner/hosts@{HOSTS_VERSION}"', f"port = {DEFAULT_PORT}"]
    for host in ranks_by_host(plan):
        name = json.dumps(host)  # a string of JSON is one of TOML
        lines += ["", f"[hosts.{name}]"]
        lines += ['# ssh = "USER@HOST"', '# address = "10.0.0.5"', '# python = "/opt/venv/bin/python"']
    return "\n".join([*lines, ""])


def place_hosts(plan: AnyPlan, hosts: Hosts) -> tuple[PlacedHost, ...]:
    """The plan's hosts in the order of their node rank, each with how it is reached.

    Raises:
        InvalidInput: the file names hosts that the plan's cluster does not have, two have one address, or a name that
            is no name for ssh is not listed.
    """
    return _placed_all(plan.problem.cluster, ranks_by_host(plan), hosts)


def place_cluster(cluster: Cluster, hosts: Hosts) -> tuple[PlacedHost, ...]:
    """All hosts of a cluster, without ranks, each with how it is reached. Raises InvalidInput as `place_hosts` does."""
    return _placed_all(cluster, {host.id: () for host in cluster.hosts}, hosts)


def _placed_all(cluster: Cluster, ranks_of: Mapping[str, tuple[int, ...]], hosts: Hosts) -> tuple[PlacedHost, ...]:
    _refuse_unknown(cluster, hosts)
    placed = [_placed(name, node, ranks, hosts) for node, (name, ranks) in enumerate(ranks_of.items())]
    for field in ("address", "ssh", "slurm", "kubernetes"):
        known: dict[str, str] = {}
        for host in placed:
            value = getattr(host, field)
            other = known.setdefault(value, host.name)
            if other != host.name:
                raise InvalidInput(
                    f"hosts: {other} and {host.name} have one {field}, {value}; give each its own in the hosts file"
                )
    return tuple(placed)


def _refuse_unknown(cluster: Cluster, hosts: Hosts) -> None:
    known = [host.id for host in cluster.hosts]
    for name in hosts.hosts:
        if name not in known:
            near = get_close_matches(name, known, 1)
            listed = f"{', '.join(known[:8])}{', …' if len(known) > 8 else ''}"
            hint = f"did you mean {near[0]!r}?" if near else f"it has {listed}"
            raise InvalidInput(f"hosts.{name:.80}: the cluster has no such host; {hint}")


def _placed(name: str, node: int, ranks: tuple[int, ...], hosts: Hosts) -> PlacedHost:
    entry = hosts.hosts.get(name, HostEntry())
    called = entry.slurm or entry.kubernetes or name
    if entry.ssh is None and not re.fullmatch(_TARGET, called):
        raise InvalidInput(
            f'hosts: {name!r:.80} is no name that ssh takes; list it in the hosts file, with ssh = "USER@HOST"'
        )
    ssh = entry.ssh or called
    address = entry.address or ssh.rpartition("@")[2]
    if not re.fullmatch(_ADDRESS, address):
        raise InvalidInput(f"hosts.{name:.80}: {address!r:.80} is no address; give one in the hosts file")
    names = (entry.slurm or name, entry.kubernetes or name)
    return PlacedHost(name, node, ranks, ssh, address, entry.python, entry.folder, *names, entry.notice)


def is_public(address: str) -> bool:
    """Whether an address is one of the internet's; a name is not looked up."""
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False
