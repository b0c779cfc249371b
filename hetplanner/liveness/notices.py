"""Notices of clouds: a machine is told some time before it is taken away.

The metadata service of each cloud is at one address that only the machine itself reaches. No torch.

Sources: AWS, "Spot Instance interruption notices" (tokens of IMDSv2). GCP, "Create and manage Spot VMs" (the metadata
value `preempted`). Azure, "Scheduled Events for Linux VMs" (event types Preempt and Terminate).
"""

import contextlib
import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Literal

log = logging.getLogger(__name__)

Cloud = Literal["aws", "gcp", "azure"]
NOTICE_VARIABLE = "HETPLANNER_NOTICE"
"""Names the cloud whose notices a worker looks for."""
ADDRESS = "http://169.254.169.254"
EVERY_S = 2.0
ANSWER_S = 2.0
MAX_BYTES = 2**16
TOKEN_S = 21_600
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a service behind a proxy is another machine's


def notice(cloud: Cloud, address: str = ADDRESS) -> str | None:
    """What a cloud says of this machine's end, in words; None: nothing.

    Args:
        cloud: whose machine this is.
        address: of its metadata service.

    Raises:
        OSError: there is no answer, or none that is understood.
    """
    try:
        return _ASKED[cloud](address)
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # another service answers
        raise OSError(f"{address}: the answer is not that of {cloud}: {error}"[:300]) from None


def _aws(address: str) -> str | None:
    token = _get(f"{address}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}, "PUT")
    try:
        text = _get(f"{address}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    found = json.loads(text)
    return f"AWS will {found['action']!s:.40} this machine at {found['time']!s:.40}"


def _gcp(address: str) -> str | None:
    text = _get(f"{address}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}).strip()
    if text not in ("TRUE", "FALSE"):
        raise ValueError(f"{text!r:.60}")
    return "GCP takes this machine away" if text == "TRUE" else None


def _azure(address: str) -> str | None:
    headers = {"Metadata": "true"}
    found = json.loads(_get(f"{address}/metadata/scheduledevents?api-version=2020-07-01", headers))
    events = [event for event in found["Events"] if event["EventType"] in ("Preempt", "Terminate")]
    if not events:
        return None
    name = _get(f"{address}/metadata/instance/compute/name?api-version=2021-02-01&format=text", headers).strip()
    for event in events:
        if name in event["Resources"]:
            return f"Azure will {event['EventType'].lower()} this machine, not before {event['NotBefore']!s:.40}"
    return None


_ASKED: dict[Cloud, Callable[[str], str | None]] = {"aws": _aws, "gcp": _gcp, "azure": _azure}
CLOUDS = tuple(_ASKED)


def _get(url: str, headers: Mapping[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    with _DIRECT.open(request, timeout=ANSWER_S) as answer:
        text: bytes = answer.read(MAX_BYTES)
    return text.decode()


class NoticeWatcher:
    """Asks every `EVERY_S` seconds, in a thread of its own, until there is a notice or it is closed.

    Args:
        cloud: whose machine this is.
        told: called once, from that thread, with the words of a notice.
        address: of the metadata service.
    """

    def __init__(self, cloud: Cloud, told: Callable[[str], object], address: str = ADDRESS) -> None:
        self._cloud, self._told, self._address = cloud, told, address
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it; an answer may be waited for a moment longer."""
        self._closed.set()

    def _run(self) -> None:
        answers = None
        while not self._closed.is_set():
            found = None
            try:
                found, why = notice(self._cloud, self._address), ""
            except OSError as error:
                why = str(error)
            if answers != (not why):  # a service that comes and goes is told each time
                answers = not why
                log.info("notices of %s: %s", self._cloud, why or "its metadata service answers")
            if found is not None:
                log.warning("%s", found)
                with contextlib.suppress(RuntimeError):  # the loop that is told may have ended
                    self._told(found)
                return
            self._closed.wait(EVERY_S)
