"""The kubernetes launcher: a file for kubectl, with a JobSet of one pod on each of the plan's nodes.

    kubectl create -f run.yaml

JobSet is the operator of https://jobset.sigs.k8s.io (API jobset.x-k8s.io/v1alpha2); it must be installed. The image has
hetplanner for its `python3`. Plan and settings are in a ConfigMap. All pods write to one folder of one volume claim,
so that folder is the run. A network policy lets these pods alone reach each other.
"""

import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.launchers.hosts_file import NODE_NAME, Hosts, Kubernetes, PlacedHost
from hetplanner.launchers.interface import ATTEMPT_VARIABLE, HostCommand, LaunchRequest
from hetplanner.launchers.torchrun import checked_hosts, host_commands, network_warnings
from hetplanner.plan.files.plan_files import AnyPlan, plan_to_data
from hetplanner.plan.files.train_files import config_to_data
from hetplanner.plan.model import Plan
from hetplanner.plan.placement import ADDRESS_VARIABLE, HOST_VARIABLE, planned_gpus
from hetplanner.plan.train import TrainConfig
from hetplanner.units import short_bytes

RUNS, SETTINGS = "/hetplanner", "/etc/hetplanner"
"""Where a pod has the claim, and the ConfigMap."""
JOBSET_API = "jobset.x-k8s.io/v1alpha2"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
ATTEMPT_LABEL = "jobset.sigs.k8s.io/restart-attempt"
MAX_CONFIG_MAP_BYTES = 2**20 - 2**12
"""Kubernetes takes 1 MiB; the rest is left to its own fields."""
GRACE_S = 60
"""A pod that is told to end has so long: its ranks save what they hold."""
MAX_NAME = 38
"""Characters of a JobSet's name: with `-host-9999-0-0-abcde` it is a pod's, and at most 63."""
GPU_RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
"""What the vendors' device plugins call a GPU."""


class KubernetesLauncher:
    """Writes the file, and starts nothing."""

    name = "kubernetes"

    def __init__(self, hosts: Hosts | None = None) -> None:
        """A launcher.

        Args:
            hosts: which node each of the plan's hosts is; None calls each by its own name.
        """
        self.hosts = hosts or Hosts()

    def request(self, plan: AnyPlan, run_dir: Path, config: TrainConfig) -> LaunchRequest:
        """What each pod runs, and the file.

        Raises:
            InvalidInput: the plan is elastic or too large, its links are emulated, or the hosts file does not fit it.
                Also where a host has no name that Kubernetes takes for a node, or the run goes on from another one.
        """
        hosts = checked_hosts(plan, config, self.hosts)
        assert isinstance(plan, Plan)  # others were refused
        if config.resume is not None:
            raise InvalidInput(
                "resume: pods do not have the folder of a run of this machine; on Kubernetes a run goes on by itself"
                " under --max-restarts, or take --launcher ssh"
            )
        for host in hosts:
            if not re.fullmatch(NODE_NAME, host.kubernetes):
                raise InvalidInput(
                    f"hosts: {host.kubernetes!r:.80} is no name of a Kubernetes node; give one in the hosts file:"
                    ' kubernetes = "NODE"'
                )
        name = jobset_name(run_dir.name)
        pods = tuple(replace(host, python="python3", address=f"{name}-{_job(host)}-0-0.{name}") for host in hosts)
        arguments = ("-o", f"{RUNS}/{name}", f"{SETTINGS}/plan.json")
        commands = tuple(
            replace(command, argv=(*command.argv[:-1], *arguments))
            for command in host_commands(pods, self.hosts.port, [SETTINGS] * len(pods))
        )
        settings = self.hosts.kubernetes or Kubernetes()
        gpus = [Counter(kind.vendor for kind in planned_gpus(plan, config.device, pod.ranks)) for pod in pods]
        jobs = [_replicated_job(*each, settings, name) for each in zip(pods, commands, gpus, strict=True)]
        files = {"plan.json": plan_to_data(plan), "run.json": config_to_data(config)}
        objects = [
            _object("v1", "ConfigMap", name, settings, data=_texts(files)),
            _object("networking.k8s.io/v1", "NetworkPolicy", name, settings, spec=_policy(name)),
            _object(JOBSET_API, "JobSet", name, settings, spec=_jobset(name, config.max_restarts, jobs)),
        ]
        warnings = network_warnings(pods, self.hosts)
        by_hand = "save its file (--dry-run) and give it to `kubectl create -f`"
        return LaunchRequest(self.name, run_dir, commands, warnings, by_hand=by_hand, file=_yaml(objects))


def jobset_name(run: str) -> str:
    """A name that Kubernetes takes, of a run's folder."""
    slug = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    name = f"run-{slug or 'x'}"
    if len(name) > MAX_NAME or slug != run:  # two folders may have one slug
        name = f"{name[: MAX_NAME - 9].rstrip('-')}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"
    return name


def _job(host: PlacedHost) -> str:
    return f"host-{host.node}"


def _object(api: str, kind: str, name: str, settings: Kubernetes, **fields: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": settings.namespace}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}


def _texts(files: dict[str, dict[str, Any]]) -> dict[str, str]:
    texts = {name: json.dumps(data, indent=1) + "\n" for name, data in files.items()}
    size = sum(len(text.encode()) for text in texts.values())
    if size > MAX_CONFIG_MAP_BYTES:
        texts = {name: json.dumps(data, separators=(",", ":")) for name, data in files.items()}
        size = sum(len(text.encode()) for text in texts.values())
    if size > MAX_CONFIG_MAP_BYTES:
        raise InvalidInput(
            f"plan: takes {short_bytes(size)} as a file, and a ConfigMap of Kubernetes holds"
            f" {short_bytes(MAX_CONFIG_MAP_BYTES)}; take --launcher ssh"
        )
    return texts


def _policy(name: str) -> dict[str, Any]:
    """Only pods of this run reach its pods."""
    own = {"matchLabels": {JOBSET_LABEL: name}}
    return {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]}


def _jobset(name: str, max_restarts: int, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    network = {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True}
    return {"network": network, "failurePolicy": {"maxRestarts": max_restarts}, "replicatedJobs": jobs}


def _replicated_job(
    host: PlacedHost, command: HostCommand, gpus: Counter[str], settings: Kubernetes, name: str
) -> dict[str, Any]:
    """The job of one host: one pod, on its node, that is never started again by itself."""
    # Its own name may not be known to the DNS yet when a pod starts: the store listens at the pod's address.
    own = f"--rdzv-endpoint={host.address}:"
    argv = [
        f"--rdzv-endpoint=$({ADDRESS_VARIABLE}):{word.removeprefix(own)}" if word.startswith(own) else _literal(word)
        for word in command.argv
    ]
    given = {key: value for key, value in command.env.items() if key not in (HOST_VARIABLE, ADDRESS_VARIABLE)}
    env: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in given.items()]
    env.append({"name": HOST_VARIABLE, "value": _literal(host.name)})
    fields = {ADDRESS_VARIABLE: "status.podIP", ATTEMPT_VARIABLE: f"metadata.labels['{ATTEMPT_LABEL}']"}
    env += [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]
    container = {
        "name": "ranks",
        "image": settings.image,
        "command": argv,
        "env": env,
        "volumeMounts": [
            {"name": "runs", "mountPath": RUNS},
            {"name": "settings", "mountPath": SETTINGS, "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    limits = {GPU_RESOURCES[vendor]: str(count) for vendor, count in gpus.items() if vendor in GPU_RESOURCES}
    if limits:
        container["resources"] = {"limits": limits}
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "nodeSelector": {"kubernetes.io/hostname": host.kubernetes},
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": settings.claim}},
            {"name": "settings", "configMap": {"name": name}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},  # NCCL's; the default is 64 MiB
        ],
    }
    job = {
        "backoffLimit": 0,
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 1,
        "template": {"spec": pod},
    }
    return {"name": _job(host), "replicas": 1, "template": {"spec": job}}


def _literal(text: str) -> str:
    """Text in which Kubernetes puts no variable: it reads $$ as one $."""
    return text.replace("$", "$$")


def _yaml(objects: list[dict[str, Any]]) -> str:
    import yaml  # not before it is needed: the command line answers at once

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the one in C is tens of times as fast

    class Dumper(base):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Dumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=2**30)
