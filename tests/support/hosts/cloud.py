"""The metadata service that a cloud gives a host of a bed, and its notice that the host will be taken away."""

import json
import sys
from pathlib import Path

from tests.support.hosts import netns
from tests.support.hosts.host_bed import HostBed

ADDRESS = "169.254.169.254"
SERVICE = Path(__file__).with_name("metadata_service.py")
TOKEN = {"/latest/api/token": "token"}
NOTICE = {"/latest/meta-data/spot/instance-action": json.dumps({"action": "terminate", "time": "2026-11-25T15:00:00Z"})}


class Aws:
    """As a spot instance of AWS has it, from the start to `close` or the end of the bed."""

    def __init__(self, bed: HostBed, host: str) -> None:
        self._place = bed.namespace(host), "addr"
        netns.inside(*self._place, "add", f"{ADDRESS}/32", "dev", "lo")
        self._file = bed.folder / f"metadata-{host}.json"
        self._file.write_text(json.dumps(TOKEN))
        self._process = bed.popen(host, [sys.executable, str(SERVICE), ADDRESS, "80", str(self._file)])

    def give_notice(self) -> None:
        """Says that the machine will be taken away."""
        whole = self._file.with_suffix(".new")
        whole.write_text(json.dumps(TOKEN | NOTICE))
        whole.rename(self._file)

    def close(self) -> None:
        """Ends the service."""
        self._process.kill()
        self._process.wait()
        netns.inside(*self._place, "del", f"{ADDRESS}/32", "dev", "lo")
