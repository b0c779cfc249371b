"""Pods of a JobSet on a `HostBed`: what a file for kubectl asks for, done with namespaces and mounts.

The bed's hosts are the nodes. A pod has its node's address, the claim and the settings where the file mounts them, its
environment and its command; names of pods are known some time after they have started. When a pod fails, all are ended,
and all begin again as often as the file says, as JobSet does.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.support.hosts import netns
from tests.support.hosts.host_bed import HostBed
from tests.support.processes.patience import HANG_S, until

NAMES_LATE_S = 1.5
"""A pod's name is known so long after it has started."""
ATTEMPT = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"
START = 'for mount in $MOUNTS; do mount --bind "${mount%%:*}" "${mount#*:}"; done; exec "$@"'


class PodBed:
    """The nodes, and one claim that all of them can write.

    Attributes:
        attempts: how often the pods were started again.
        pods: by node, of the last attempt.
    """

    def __init__(self, bed: HostBed) -> None:
        self.bed, self.folder = bed, bed.folder / "pods"
        self.claim = self.folder / "claim"
        self.claim.mkdir(parents=True)
        self.attempts = 0
        self.pods: dict[str, subprocess.Popen[str]] = {}

    def run(self, file: str, meanwhile: Callable[[int], None] = lambda attempt: None) -> bool:
        """Does what kubectl and the operator would; whether all pods have succeeded in the end.

        Args:
            file: for `kubectl create -f`.
            meanwhile: called in each attempt once its pods have started.
        """
        settings, _, jobset = yaml.safe_load_all(file)
        (self.folder / "settings").mkdir(exist_ok=True)
        for name, text in settings["data"].items():
            (self.folder / "settings" / name).write_text(text)
        spec = jobset["spec"]
        with _mount_points(_paths(spec)):
            for attempt in range(spec["failurePolicy"]["maxRestarts"] + 1):
                self.attempts = attempt
                if self._attempt(jobset, meanwhile):
                    return True
        return False

    def _attempt(self, jobset: Mapping[str, Any], meanwhile: Callable[[int], None]) -> bool:
        known = self.folder / "hosts"
        known.write_text("127.0.0.1 localhost\n")
        for job in reversed(jobset["spec"]["replicatedJobs"]):  # the first one, with the store, is known last
            pod = job["template"]["spec"]["template"]["spec"]
            node = pod["nodeSelector"]["kubernetes.io/hostname"]
            self.pods[node] = self._start(pod, node)
            time.sleep(NAMES_LATE_S)
            name = f"{jobset['metadata']['name']}-{job['name']}-0-0.{jobset['spec']['network']['subdomain']}"
            with known.open("a") as file:
                file.write(f"{self.bed.address(node)} {name}\n")
        meanwhile(self.attempts)
        until(self._is_over, lambda: f"the pods do not end: {self.words()}")
        failed = any(pod.poll() != 0 for pod in self.pods.values())
        for node, pod in self.pods.items():
            if pod.poll() is None:
                self.end(node)
            pod.wait(HANG_S)
        return not failed

    def _is_over(self) -> bool:
        codes = [pod.poll() for pod in self.pods.values()]
        return any(codes) or all(code == 0 for code in codes)

    def _start(self, pod: Mapping[str, Any], node: str) -> subprocess.Popen[str]:
        (container,) = pod["containers"]
        facts = {"status.podIP": self.bed.address(node), ATTEMPT: str(self.attempts)}
        env: dict[str, str] = {}
        for each in container["env"]:
            given = each.get("value")
            env[each["name"]] = (
                facts[each["valueFrom"]["fieldRef"]["fieldPath"]] if given is None else _put_in(given, env)
            )
        places = {"runs": self.claim, "settings": self.folder / "settings"}
        mounts = [f"{places[m['name']]}:{m['mountPath']}" for m in container["volumeMounts"] if m["name"] in places]
        mounts.append(f"{self.folder / 'hosts'}:/etc/hosts")
        argv = [_put_in(word, env) for word in container["command"]]
        assert argv[0] == "python3"
        argv[0] = sys.executable
        with (self.folder / f"{node}-{self.attempts}.txt").open("w") as log:
            return self.bed.popen(
                node, ["sh", "-ec", START, "pod", *argv], env=env | {"MOUNTS": " ".join(mounts)}, stdout=log, stderr=log
            )

    def end(self, node: str) -> None:
        """Tells a pod to end, as the kubelet does: its first process alone."""
        self.pods[node].send_signal(signal.SIGTERM)

    def ranks(self, node: str) -> list[int]:
        """Processes of ranks on a node."""
        found = []
        for pid in netns.processes(self.bed.namespace(node)):
            with suppress(FileNotFoundError):
                if Path(f"/proc/{pid}/comm").read_text().startswith("rank "):
                    found.append(pid)
        return found

    def words(self) -> str:
        """What the pods have said, for a failing test."""
        paths = [*self.folder.glob("*.txt"), *self.claim.glob("*/*.txt")]
        return "\n".join(f"{path}: {path.read_text(errors='replace')[-2000:]}" for path in paths)


def _put_in(text: str, env: Mapping[str, str]) -> str:
    """Variables as Kubernetes puts them in: $(NAME), and $$ for $."""
    return re.sub(r"\$(?:\$|\(([^)]*)\))", lambda m: "$" if m[1] is None else env.get(m[1], m[0]), text)


def _paths(spec: Mapping[str, Any]) -> list[Path]:
    pod = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return [Path(m["mountPath"]) for m in pod["containers"][0]["volumeMounts"] if m["name"] != "shared-memory"]


@contextmanager
def _mount_points(paths: list[Path]) -> Iterator[None]:
    """Folders on this machine over which each pod mounts its own; they are gone afterwards."""
    made = [path for path in paths if not path.exists()]
    for path in made:
        path.mkdir()
    try:
        yield
    finally:
        for path in made:
            path.rmdir()
