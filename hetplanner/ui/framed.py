"""The dashboard in a notebook's cell: a server of its own on the loopback interface, shown in a frame.

The server is the one of `hetplanner dashboard`, behind the same gate, as a process of its own (a busy kernel must not
stop the page, nor the page the kernel) that ends with the kernel. Only the pages of Jupyter servers of this user on
this machine may show it in a frame.
"""

import os
import re
import subprocess
import sys
import threading
from collections import deque
from html import escape
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from hetplanner.errors import RunError

START_S = 60.0
_LINK = re.compile(r"http://[^\s/]+:(\d+)(/\S+token=\S+)")

# The frame must have the notebook's own host name: browsers send the cookie within one site alone, and to them
# localhost and 127.0.0.1 are two.
_FRAME = """
<div id="{id}" style="font:14px/1.5 Roboto,Helvetica,Arial,sans-serif">
<div class="words" style="padding:4px 0"></div>
<iframe title="hetplanner" style="display:none;width:100%;height:{height}px;border:1px solid #c9ccc9;border-radius:6px">
</iframe></div>
<script>(() => {{
  const box = document.getElementById("{id}"), frame = box.querySelector("iframe")
  const words = box.querySelector(".words"), name = location.hostname
  if (!["localhost", "127.0.0.1"].includes(name)) {{
    words.textContent = "The dashboard listens only on the machine of the kernel, as http://localhost:{port}."
      + " From here: ssh -L {port}:localhost:{port} to that machine, or open this notebook through such a tunnel."
    return
  }}
  const link = document.createElement("a")
  link.href = `http://${{name}}:{port}/planner`
  link.target = "_blank"
  link.rel = "noopener"
  link.textContent = "Open the dashboard in a tab of its own"
  words.append(link)
  frame.src = `http://${{name}}:{port}{path}`
  frame.style.display = "block"
}})()</script>
"""


class Dashboard:
    """A dashboard that runs beside the kernel; as the value of a cell it is shown there.

    Attributes:
        port: of the server, on the loopback interface.
        height: of the frame, in pixels.
    """

    def __init__(self, height: int, origins: list[str], home: Path | None = None) -> None:
        self.height = height
        self.port = 0
        self._said: deque[str] = deque(maxlen=20)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hetplanner.ui.framed", *origins],
            stdin=subprocess.PIPE,  # never written to: it closes when the kernel ends
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            env=os.environ | ({"HETPLANNER_HOME": str(home)} if home is not None else {}),
            start_new_session=True,  # interrupting a cell does not end the page
        )
        assert self._process.stdout is not None
        self._address: re.Match[str] | None = None
        self._answered = threading.Event()
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        if not self._answered.wait(START_S) or self._address is None:
            self.close()
            last = "; ".join(list(self._said)[-3:]) or "it said nothing"
            raise RunError(f"dashboard: its server did not start within {START_S:g} s: {last}"[:600])
        self.port = int(self._address[1])

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            self._address = self._address or _LINK.search(line)
            if self._address is not None:
                self._answered.set()
            elif line.strip():
                self._said.append(line.strip()[:300])
        self._answered.set()

    @property
    def is_alive(self) -> bool:
        """Whether its server runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the server; runs go on."""
        if self.is_alive:
            self._process.terminate()
            self._process.wait(10)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        if not self.is_alive or self._address is None:
            return {"text/plain": repr(self)}
        box = f"hetplanner-{os.urandom(6).hex()}"  # a cell may show it again
        html = _FRAME.format(id=box, port=self.port, path=escape(self._address[2]), height=self.height)
        return {"text/plain": repr(self), "text/html": html}

    def __repr__(self) -> str:
        if not self.is_alive or self._address is None:
            return "Dashboard(closed)"
        return f"Dashboard({self._address[0]})"


def jupyter_origins() -> list[str]:
    """Origins of this user's Jupyter servers on this machine, under both names of the loopback interface."""
    try:
        from jupyter_server.serverapp import list_running_servers
    except ImportError:
        return []
    addresses = [urlsplit(str(info["url"])) for info in list_running_servers()]
    ports = sorted({(a.scheme, a.port or (443 if a.scheme == "https" else 80)) for a in addresses})
    return [f"{scheme}://{name}:{port}" for scheme, port in ports for name in ("localhost", "127.0.0.1")]


def main() -> None:
    """`python -m hetplanner.ui.framed ORIGIN …`: serves until stdin closes."""
    from hetplanner.ui.serve import serve_dashboard

    def end_with_kernel() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end_with_kernel, daemon=True).start()
    serve_dashboard(0, frames_from=sys.argv[1:])


if __name__ == "__main__":
    main()
