"""Hosts for tests: network namespaces with addresses, limited links and an sshd each, on one Linux machine, as root.

    with HostBed([HostSpec("a", rate_bits=50e6), HostSpec("b", rate_bits=20e6)]) as bed:
        bed.run("a", ["ping", "-c1", bed.address("b")])
        bed.run("head", ["ssh", "-F", str(bed.ssh_config), "b", "true"])

`head` stands for the machine of the user: it is at every site at once, and its own link has no limit. The hosts of a
site hang on a bridge, which lives in a namespace of the site's own. Several sites: each of these namespaces is its
site's router too, and has a link to every other. Nothing is added to the machine's own network. How links are limited,
and what was found about it, says `hosts.shaping`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from hetplanner.cluster.model import Cluster
from hetplanner.schema import checked
from tests.support.hosts import netns, ssh_server
from tests.support.hosts.host_tools import program
from tests.support.hosts.shaping import limit
from tests.support.processes.patience import until

HEAD = "head"
TOOLS = ("ip", "tc", "ping", "sysctl", "sshd", "ssh", "ssh-keygen")
PORT = "eth0"
"""The network interface of a host."""
LATENCY_S, INSIDE_HOST_S = 50e-6, 20e-6
"""One way, between namespaces and inside one: assumed; nothing delays packets but the machine itself."""
INSIDE_HOST_BITS = 10e9


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host to make.

    Attributes:
        rate_bits, rate_in_bits: most bits/s that leave and enter it, frames counted whole; None: no limit.
        site: where it is; hosts of one site are on one bridge.
    """

    name: str
    rate_bits: float | None = None
    rate_in_bits: float | None = None
    site: str = "here"


class HostBed:
    """Hosts in namespaces of their own, from `with` to its end.

    Args:
        hosts: their names are unique; `head` is taken.
        site_rates: bits/s from one site to another, and back unless that is given too; else a link has no limit.
        congestion: the algorithm of TCP between hosts; Linux's usual one, whatever this machine's is.

    Raises:
        BedError: a program is missing and cannot be installed, or the kernel refuses.
    """

    def __init__(
        self,
        hosts: Sequence[HostSpec],
        *,
        site_rates: Mapping[tuple[str, str], float] | None = None,
        congestion: str = "cubic",
    ) -> None:
        self.hosts = {host.name: host for host in hosts}
        assert len(self.hosts) == len(hosts), "names of hosts must be unique"
        assert HEAD not in self.hosts, f"{HEAD} is the user's machine"
        self.sites = tuple(dict.fromkeys(host.site for host in hosts))
        given = dict(site_rates or {})
        self.site_rates = {(b, a): rate for (a, b), rate in given.items()} | given
        self.congestion = congestion
        self.prefix = netns.new_prefix()
        self._started: list[subprocess.Popen[str]] = []

    # -- from with to its end -----------------------------------------------------------------------

    def __enter__(self) -> Self:
        for name in TOOLS:
            program(name)
        netns.remove_leftovers()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.prefix}-"))
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes, then removes namespaces and folder; a second time does nothing."""
        for namespace in netns.of_prefix(self.prefix):
            netns.remove(namespace)
        for process in self._started:
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _build(self) -> None:
        self._key = self.folder / "key"
        ssh_server.make_key(self._key)
        for site in self.sites:
            self._add_site(site)
        for a, b in combinations(self.sites, 2):
            self._join_sites(a, b)
        self._add_head()
        for name in self.hosts:
            ssh_server.write_server(self.folder / name, self.address(name), self._key)
            self.boot_host(name)
        addresses = {name: self.address(name) for name in self.hosts}
        self.ssh_config = ssh_server.write_client(self.folder, self._key, addresses)

    # -- names and addresses ------------------------------------------------------------------------

    def namespace(self, name: str) -> str:
        """The namespace of a host, or of `head`."""
        return f"{self.prefix}-host-{name}"

    def address(self, name: str) -> str:
        """The IPv4 address of a host; of `head` the one at the first site."""
        if name == HEAD:
            return "10.77.0.254"
        return f"10.77.{self.sites.index(self.hosts[name].site)}.{list(self.hosts).index(name) + 1}"

    def home(self, name: str) -> Path:
        """The home folder of whoever comes to a host by ssh."""
        return self.folder / name / "home"

    def _net(self, site: str) -> str:
        return f"{self.prefix}-net-{site}"

    def _port(self, name: str) -> str:
        return f"port{list(self.hosts).index(name)}"

    # -- the network --------------------------------------------------------------------------------

    def _add_site(self, site: str) -> None:
        net = self._net(site)
        netns.add(net)
        netns.inside(net, "link", "add", "bridge", "type", "bridge")
        netns.inside(net, "addr", "add", f"10.77.{self.sites.index(site)}.253/24", "dev", "bridge")
        netns.inside(net, "link", "set", "bridge", "up")
        netns.setting(net, "ipv4/ip_forward", "1")

    def _join_sites(self, a: str, b: str) -> None:
        """A link of two routers, limited each way by the one that sends."""
        i, j = self.sites.index(a), self.sites.index(b)
        _veth((self._net(a), f"to{j}"), (self._net(b), f"to{i}"))
        for here, there, own in ((a, b, 0), (b, a, 1)):
            net, index = self._net(here), self.sites.index(there)
            netns.inside(net, "addr", "add", f"10.78.{i * len(self.sites) + j}.{own}/31", "dev", f"to{index}")
            via = f"10.78.{i * len(self.sites) + j}.{1 - own}"
            netns.inside(net, "route", "add", f"10.77.{index}.0/24", "via", via)
            limit(net, f"to{index}", self.site_rates.get((here, there)), own=False)

    def _add_head(self) -> None:
        """The user's machine, with an interface at every site: no link between sites carries what it sends."""
        netns.add(self.namespace(HEAD))
        for index, site in enumerate(self.sites):
            self._plug(HEAD, f"eth{index}", site, "head", f"10.77.{index}.254")

    def _add_host(self, name: str) -> None:
        spec, namespace = self.hosts[name], self.namespace(name)
        netns.add(namespace)
        self._plug(name, PORT, spec.site, self._port(name), self.address(name))
        if len(self.sites) > 1:
            via = f"10.77.{self.sites.index(spec.site)}.253"
            netns.inside(namespace, "route", "add", "10.77.0.0/16", "via", via, "congctl", self.congestion)
        limit(namespace, PORT, spec.rate_bits, own=True)
        limit(self._net(spec.site), self._port(name), spec.rate_in_bits, own=False)

    def _plug(self, name: str, interface: str, site: str, port: str, address: str) -> None:
        """A cable from a machine to a port of its site's bridge."""
        namespace, net = self.namespace(name), self._net(site)
        _veth((namespace, interface), (net, port))
        # A machine that boots again has the network card that its peers remember.
        card = "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))
        netns.inside(namespace, "link", "set", interface, "address", card)
        netns.inside(net, "link", "set", port, "master", "bridge")
        netns.inside(namespace, "addr", "add", f"{address}/24", "dev", interface, "noprefixroute")
        route = (f"10.77.{self.sites.index(site)}.0/24", "dev", interface, "src", address)
        netns.inside(namespace, "route", "add", *route, "congctl", self.congestion)

    def set_rate(self, name: str, rate_bits: float | None) -> None:
        """Another limit of what leaves a host, from now on; `cluster` still states the first one."""
        limit(self.namespace(name), PORT, rate_bits, own=True)

    # -- processes ----------------------------------------------------------------------------------

    def run(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on a host to its end, in this process's environment and `env`, and returns what it said."""
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more
        return subprocess.run(self.command(name, argv), env=os.environ | (env or {}), check=False, **options)

    def popen(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **more: Any
    ) -> subprocess.Popen[str]:
        """Starts a command on a host; the process has the command's id, and is ended with the bed."""
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "text": True} | more
        process = subprocess.Popen(self.command(name, argv), env=os.environ | (env or {}), **options)
        self._started.append(process)
        return process

    def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """The command that becomes `argv` on a host."""
        return netns.entering(self.namespace(name), argv)

    def ssh(self, name: str, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """`ssh NAME WORDS` on `head`."""
        return self.run(HEAD, [program("ssh"), "-F", str(self.ssh_config), name, *words], **more)

    # -- what befalls hosts -------------------------------------------------------------------------

    def processes(self, name: str) -> list[psutil.Process]:
        """Processes on a host, but for its sshd."""
        found = []
        for pid in netns.processes(self.namespace(name)):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.name() != "sshd":
                    found.append(process)
        return found

    def cut(self, name: str) -> None:
        """Takes a host off the network, at the port of its switch; its processes go on."""
        self._set_port(name, "down")

    def join(self, name: str) -> None:
        """Undoes `cut`."""
        self._set_port(name, "up")

    def _set_port(self, name: str, state: str) -> None:
        netns.inside(self._net(self.hosts[name].site), "link", "set", self._port(name), state)

    def kill_host(self, name: str, *, silently: bool = False) -> None:
        """Kills every process of a host, sshd too; `silently`: as a power cut does, so that no peer hears of it."""
        if silently:
            self.cut(name)
        netns.kill_all(self.namespace(name))

    def boot_host(self, name: str) -> None:
        """A host with nothing but its sshd: the first time, or after `kill_host`; its files are still there."""
        if self.namespace(name) in netns.of_prefix(self.prefix):
            netns.kill_all(self.namespace(name))
            # Sockets that still wait for an answer keep the old namespace alive a while, but not its cable.
            netns.inside(self.namespace(name), "link", "del", PORT)
            netns.remove(self.namespace(name))
        self._add_host(name)
        folder = self.folder / name
        with (folder / "sshd.log").open("w") as log:
            server = self.popen(name, ssh_server.server_argv(folder / "sshd_config"), stdout=log, stderr=log)
        until(lambda: ssh_server.serves(folder / "sshd.log", server), f"the sshd of {name} does not listen")

    # -- what a plan knows of it --------------------------------------------------------------------

    def cluster(self, devices_per_host: int | Mapping[str, int] = 1) -> Cluster:
        """The cluster with the rates as they were asked for: CPU devices `HOST-0`, `HOST-1`, …

        The links of a site are as fast as its fastest host; what a host's own limit is, its NIC says.
        """
        counts = dict.fromkeys(self.hosts, devices_per_host) if isinstance(devices_per_host, int) else devices_per_host
        data = {
            "name": "test-bed",
            "sites": [{"name": s, "latitude": 0, "longitude": 10 * i} for i, s in enumerate(self.sites)],
            "hosts": [{"id": h.name, "site": h.site} | _nic(h) for h in self.hosts.values()],
            "devices": [
                {"id": f"{name}-{i}", "kind": "CPU generic", "host": name}
                for name in self.hosts
                for i in range(counts.get(name, 0))
            ],
            "site_links": [self._site_link(a, b) for a in self.sites for b in self.sites],
            "host_links": [
                {"host": name, "latency": INSIDE_HOST_S, "bandwidth": INSIDE_HOST_BITS / 8} for name in self.hosts
            ],
        }
        return checked(Cluster, data, "test bed")

    def _site_link(self, a: str, b: str) -> dict[str, Any]:
        rates = [h.rate_bits or INSIDE_HOST_BITS for h in self.hosts.values()]
        bits = max(rates) if a == b else self.site_rates.get((a, b), max(rates))
        return {"from": a, "to": b, "latency": LATENCY_S, "bandwidth": bits / 8, "source": "specified"}


def _nic(host: HostSpec) -> dict[str, float]:
    rates = {"nic_out": host.rate_bits, "nic_in": host.rate_in_bits}
    return {name: bits / 8 for name, bits in rates.items() if bits is not None}


def _veth(one: tuple[str, str], other: tuple[str, str]) -> None:
    """A cable between two namespaces: (namespace, interface) of both ends, both up."""
    netns.inside(one[0], "link", "add", one[1], "type", "veth", "peer", "name", other[1], "netns", other[0])
    for namespace, interface in (one, other):
        netns.inside(namespace, "link", "set", interface, "up")
