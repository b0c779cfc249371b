"""The launcher kubernetes: its file against the published schemas of Kubernetes and JobSet, and what is in it."""

import json
import re

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

from hetplanner.errors import InvalidInput
from hetplanner.launchers.hosts_file import HostEntry, Hosts, Kubernetes, read_hosts
from hetplanner.launchers.kubernetes import MAX_NAME, KubernetesLauncher, jobset_name
from hetplanner.plan.files.plan_files import load_plan
from hetplanner.plan.files.train_files import load_config
from hetplanner.plan.train import TrainConfig
from tests.support.plans.factories import chain_plan, hosted

VERSION = "1.31"
HOSTILE = 'a": $(HETPLANNER_ADDRESS)  # - kind: Pod'


def plan_on(*names, kind=None):
    """2 × 2 with a rank on each host, or two on each of two."""
    cluster = hosted({f"d{i}": names[i * len(names) // 4] for i in range(4)})
    if kind is not None:
        cluster = cluster.replace(devices=tuple(device.replace(kind=kind) for device in cluster.devices))
    return chain_plan(shares=(2, 2), cuts=(4,), cluster=cluster)


def objects(plan, tmp_path, hosts=None, **settings):
    """What the file holds, as kubectl reads it: settings, network policy, JobSet."""
    request = KubernetesLauncher(hosts).request(plan, tmp_path / "run", TrainConfig(**settings))
    found = list(yaml.safe_load_all(request.file))
    assert [each["kind"] for each in found] == ["ConfigMap", "NetworkPolicy", "JobSet"]
    return found


def pods(jobset):
    return [job["template"]["spec"]["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]]


def checked(found):
    """By the strict schemas of Kubernetes (no unknown field), and the one that JobSet's operator publishes."""
    settings, policy, jobset = found
    kubernetes_validate.validate(settings, VERSION, strict=True)
    kubernetes_validate.validate(policy, VERSION, strict=True)
    for job in jobset["spec"]["replicatedJobs"]:
        one = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": job["template"]["spec"]}
        kubernetes_validate.validate(one, VERSION, strict=True)
    parsed = JobsetV1alpha2JobSet.from_dict(jobset)
    assert parsed.to_dict() == jobset, "a field that JobSet does not know is left out"


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a", "b", "c", "d"), (HOSTILE, "b")])
@pytest.mark.parametrize("kind", [None, "H100", "MI300X"])
def test_a_file_is_valid_by_the_published_schemas(names, kind, tmp_path):
    hosts = Hosts(hosts={HOSTILE: HostEntry(kubernetes="a")}) if HOSTILE in names else None
    checked(objects(plan_on(*names, kind=kind), tmp_path, hosts, max_restarts=3))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda job: job.update(replica=1),
        lambda job: job["template"]["spec"].update(backofLimit=1),
        lambda job: job["template"]["spec"]["template"]["spec"].update(nodeselector={}),
        lambda job: job["template"]["spec"]["template"]["spec"]["containers"][0].update(command="python3"),
    ],
)
def test_the_schemas_find_what_is_wrong(spoil, tmp_path):
    found = objects(plan_on("a", "b"), tmp_path)
    spoil(found[2]["spec"]["replicatedJobs"][0])
    with pytest.raises((kubernetes_validate.ValidationError, AssertionError, ValueError)):
        checked(found)


def test_the_file_holds_plan_and_settings_as_they_were(tmp_path):
    plan = plan_on("a", "b")
    settings = objects(plan, tmp_path, steps=7, learning_rate=3e-4)[0]
    for name, text in settings["data"].items():
        (tmp_path / name).write_text(text)
    assert load_plan(tmp_path / "plan.json") == plan
    assert load_config(tmp_path / "run.json") == TrainConfig(steps=7, learning_rate=3e-4)


def test_each_host_has_one_pod_on_its_node_with_its_ranks(tmp_path):
    hosts = Hosts(
        port=29_600,
        hosts={"a": HostEntry(kubernetes="node-17"), "b": HostEntry(kubernetes="node-18", python="/not/in/the/image")},
        kubernetes=Kubernetes(image="registry.lab/hetplanner:1", namespace="lab", claim="runs"),
    )
    found = objects(plan_on("a", "b"), tmp_path, hosts, max_restarts=3)
    assert {each["metadata"]["namespace"] for each in found} == {"lab"}
    jobset = found[2]
    assert jobset["spec"]["failurePolicy"] == {"maxRestarts": 3}
    assert [pod["nodeSelector"] for pod in pods(jobset)] == [
        {"kubernetes.io/hostname": "node-17"},
        {"kubernetes.io/hostname": "node-18"},
    ]
    for node, pod in enumerate(pods(jobset)):
        (container,) = pod["containers"]
        assert pod["restartPolicy"] == "Never"  # a rank that is lost ends all of them, and JobSet begins again
        assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "runs"}
        assert container["image"] == "registry.lab/hetplanner:1"
        assert container["command"][0] == "python3"
        assert f"--rdzv-conf=rank={node}" in container["command"]
        env = {each["name"]: each for each in container["env"]}
        assert env["HETPLANNER_HOST"]["value"] == "ab"[node]
        assert env["HETPLANNER_ADDRESS"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
        where = "$(HETPLANNER_ADDRESS)" if node == 0 else "run-run-host-0-0-0.run-run"
        assert f"--rdzv-endpoint={where}:29600" in container["command"]
        assert "resources" not in container


@pytest.mark.parametrize(("kind", "resource"), [("H100", "nvidia.com/gpu"), ("MI300X", "amd.com/gpu")])
def test_a_pod_asks_for_as_many_gpus_as_it_has_ranks(kind, resource, tmp_path):
    plan = plan_on("a", "b", kind=kind)
    for pod in pods(objects(plan, tmp_path)[2]):
        assert pod["containers"][0]["resources"] == {"limits": {resource: "2"}}
    assert "resources" not in pods(objects(plan, tmp_path, device="cpu")[2])[0]["containers"][0]


def test_names_of_hosts_are_text_and_put_no_variable_in(tmp_path):
    hosts = Hosts(hosts={HOSTILE: HostEntry(kubernetes="a")})
    (first, _) = pods(objects(plan_on(HOSTILE, "b"), tmp_path, hosts)[2])
    env = {each["name"]: each.get("value") for each in first["containers"][0]["env"]}
    assert env["HETPLANNER_HOST"] == HOSTILE.replace("$", "$$")  # Kubernetes reads $$ as $


def test_only_pods_of_the_run_reach_its_pods(tmp_path):
    spec = objects(plan_on("a", "b"), tmp_path)[1]["spec"]
    own = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": "run-run"}}
    assert spec == {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]}


def test_a_host_whose_name_no_node_has_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="is no name of a Kubernetes node; give one in the hosts file"):
        objects(plan_on("a b", "c"), tmp_path, Hosts(hosts={"a b": HostEntry(ssh="a.lab")}))


@pytest.mark.parametrize(
    ("line", "law"),
    [
        ('image = "a b"', r"kubernetes\.image: must be an image's name, such as registry\.lab/hetplanner:1, got 'a b'"),
        ('image = ""', r"kubernetes\.image: must be an image's name"),
        ('namespace = "Lab"', r"kubernetes\.namespace: must be a name of small letters, digits and -.*got 'Lab'"),
        ('claim = "../etc"', r"kubernetes\.claim: must be a name of small letters"),
        ('command = "id"', "kubernetes"),
    ],
)
def test_a_hosts_file_that_is_wrong_is_told(line, law, tmp_path):
    (tmp_path / "hosts.toml").write_text(f'format = "hetplanner/hosts@1"\n[kubernetes]\n{line}\n')
    with pytest.raises(InvalidInput, match=law):
        read_hosts(tmp_path / "hosts.toml")


def test_two_hosts_on_one_node_are_refused(tmp_path):
    hosts = Hosts(hosts={name: HostEntry(kubernetes="node-17", ssh=name) for name in "ab"})
    with pytest.raises(InvalidInput, match="hosts: a and b have one kubernetes, node-17"):
        objects(plan_on("a", "b"), tmp_path, hosts)


def test_a_run_that_goes_on_from_one_of_this_machine_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="resume: pods do not have the folder of a run of this machine"):
        objects(plan_on("a", "b"), tmp_path, resume=str(tmp_path))


def test_a_plan_that_no_config_map_holds_is_refused(tmp_path, monkeypatch):
    plan = plan_on("a", "b")
    text = json.dumps(objects(plan, tmp_path)[0]["data"]["plan.json"])
    monkeypatch.setattr("hetplanner.launchers.kubernetes.MAX_CONFIG_MAP_BYTES", len(text) // 2)
    with pytest.raises(InvalidInput, match=r"plan: takes .* as a file, and a ConfigMap of Kubernetes holds"):
        objects(plan, tmp_path)


@pytest.mark.parametrize("run", ["run", "20261125-140000-tiny-gpt-3f9a", "A run's directory", "-", "x" * 200, "Ünï"])
def test_a_jobsets_name_is_a_label_that_leaves_room_for_pods(run):
    name = jobset_name(run)
    assert len(name) <= MAX_NAME
    assert len(f"{name}-host-9999-0-0-abcde") <= 63
    assert re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", name)
    assert jobset_name(run) == name != jobset_name(f"{run}x")
