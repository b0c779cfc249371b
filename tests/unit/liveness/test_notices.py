"""Notices of clouds, from an imitation of each one's metadata service on loopback."""

import json
import time

import pytest

from hetplanner.liveness import notices
from hetplanner.liveness.notices import NoticeWatcher, notice
from tests.support.hosts.metadata_service import Metadata
from tests.support.processes.patience import until

GONE = {"action": "terminate", "time": "2026-11-25T15:00:00Z"}


ACTION = "/latest/meta-data/spot/instance-action"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


def azure(*events):
    return json.dumps({"DocumentIncarnation": 1, "Events": list(events)})


def event(kind, *machines):
    return {
        "EventId": "1",
        "EventType": kind,
        "Resources": list(machines),
        "NotBefore": "Wed, 25 Nov 2026 15:00:00 GMT",
    }


QUIET = {
    "aws": {"/latest/api/token": "a-token"},
    "gcp": {PREEMPTED: "FALSE"},
    "azure": {EVENTS: azure(event("Preempt", "other"), event("Reboot", "mine")), NAME: "mine"},
}
TOLD = {
    "aws": QUIET["aws"] | {ACTION: json.dumps(GONE)},
    "gcp": {PREEMPTED: "TRUE"},
    "azure": QUIET["azure"] | {EVENTS: azure(event("Preempt", "other", "mine"))},
}
WORDS = {
    "aws": "AWS will terminate this machine at 2026-11-25T15:00:00Z",
    "gcp": "GCP takes this machine away",
    "azure": "Azure will preempt this machine, not before Wed, 25 Nov 2026 15:00:00 GMT",
}


@pytest.fixture
def service():
    made = Metadata({})
    yield made
    made.close()


@pytest.mark.parametrize("cloud", notices.CLOUDS)
def test_a_notice_is_told_once_there_is_one(service, cloud):
    service.answers = QUIET[cloud]
    assert notice(cloud, service.address) is None
    service.answers = TOLD[cloud]
    assert notice(cloud, service.address) == WORDS[cloud]


def test_each_cloud_is_asked_as_it_wants(service):
    for cloud in notices.CLOUDS:
        service.answers = TOLD[cloud]
        notice(cloud, service.address)
    seen = {(method, path): headers for method, path, headers in service.asked}
    assert seen["PUT", "/latest/api/token"]["x-aws-ec2-metadata-token-ttl-seconds"]
    assert seen["GET", ACTION]["x-aws-ec2-metadata-token"] == "a-token"
    assert seen["GET", PREEMPTED]["metadata-flavor"] == "Google"
    assert seen["GET", EVENTS]["metadata"] == seen["GET", NAME]["metadata"] == "true"


@pytest.mark.parametrize("cloud", notices.CLOUDS)
@pytest.mark.parametrize("text", ["", "<html>sign in</html>", "[]", "{}", '{"Events": [3]}', '"TRUE"', "null"])
def test_whoever_else_answers_is_no_notice(service, cloud, text):
    service.answers = dict.fromkeys(("/latest/api/token", ACTION, PREEMPTED, EVENTS, NAME), text)
    with pytest.raises(OSError, match=r"the answer is not that of|HTTP Error"):
        notice(cloud, service.address)


def test_no_proxy_is_asked(service, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    service.answers = TOLD["gcp"]
    assert notice("gcp", service.address) == WORDS["gcp"]


def test_a_watcher_waits_out_silence_and_tells_once(service, monkeypatch, caplog):
    monkeypatch.setattr(notices, "EVERY_S", 0.01)
    told = []
    watcher = NoticeWatcher("aws", told.append, service.address)
    until(lambda: service.asked, "nobody asks")
    service.answers = QUIET["aws"]
    time.sleep(0.1)
    assert told == []
    service.answers = TOLD["aws"]
    until(lambda: told, "the notice is not told")
    count = len(service.asked)
    time.sleep(0.1)
    assert (told, len(service.asked)) == ([WORDS["aws"]], count)
    watcher.close()


def test_a_closed_watcher_asks_no_more(service, monkeypatch):
    monkeypatch.setattr(notices, "EVERY_S", 0.01)
    service.answers = QUIET["gcp"]
    watcher = NoticeWatcher("gcp", lambda words: None, service.address)
    until(lambda: service.asked, "nobody asks")
    watcher.close()
    watcher._thread.join(5)
    assert not watcher._thread.is_alive()
