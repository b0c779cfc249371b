"""The dashboard in a notebook's cell, shown in a frame.

Where the Jupyter server has the launcher's tile, the frame shows that page: it comes from the notebook's own address,
through every proxy that the notebook itself comes through.

Elsewhere it is a server of its own on the loopback interface: the one of `hetplanner dashboard`, behind the same gate,
as a process of its own (a busy kernel must not stop the page, nor the page the kernel) that ends with the kernel. Only
the pages of Jupyter servers of this user on this machine may show it in a frame.
"""

import json
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
from hetplanner.ui.notebook import jupyter

START_S = 60.0
_LINK = re.compile(r"http://[^\s/]+:(\d+)(/\S+token=\S+)")

_BOX = """
<div id="{id}" style="font:14px/1.5 Roboto,Helvetica,Arial,sans-serif">
<div class="words" style="padding:4px 0"></div>
<iframe title="hetplanner" style="display:none;width:100%;height:{height}px;border:1px solid #c9ccc9;border-radius:6px">
</iframe></div>
<script>(() => {{
  const box = document.getElementById("{id}"), frame = box.querySelector("iframe")
  const words = box.querySelector(".words"), name = location.hostname
  const offer = (address, text) => {{
    const link = document.createElement("a")
    Object.assign(link, {{href: address, target: "_blank", rel: "noopener", textContent: text}})
    words.append(link)
  }}
  const show = (address, path) => {{
    offer(address, "Open the dashboard in a tab of its own")
    frame.src = path
    frame.style.display = "block"
  }}
{script}
}})()</script>
"""

# The frame must have the notebook's own host name: browsers send the cookie within one site alone, and to them
# localhost and 127.0.0.1 are two. An editor's window has no host of its own; it forwards ports of what it links to.
_ON_THIS_MACHINE = """
  if (["localhost", "127.0.0.1"].includes(name)) {{
    show(`http://${{name}}:{port}/planner`, `http://${{name}}:{port}{path}`)
  }} else if (location.protocol.startsWith("vscode")) {{
    offer("http://localhost:{port}{path}", "Open the dashboard")
    words.append(" (opens once; from a remote window, forward port {port} if the editor has not done so)")
  }} else {{
    words.textContent = "The dashboard listens only on the machine of the kernel, as http://localhost:{port}."
      + " To see it here, install jupyter-server-proxy and hetplanner beside the Jupyter server and start that anew."
      + " Or: ssh -L {port}:localhost:{port} to that machine, and open this notebook through such a tunnel."
  }}
"""

# JupyterLab and Notebook say their base URL in one place, the classic notebook in another.
_BEHIND_JUPYTER = """
  const told = document.getElementById("jupyter-config-data")
  const base = told ? JSON.parse(told.textContent).baseUrl : document.body.dataset.baseUrl
  if (base) {{
    const address = new URL("{path}", new URL(base, location.origin + "/").href.replace(/\\/?$/, "/")).href
    show(address, address)
  }} else {{
    words.append("Open the dashboard in a browser that is logged in to your Jupyter server: ")
    {link}
  }}
"""


def framed_html(port: int, path: str, height: int) -> str:
    """A cell's output that shows a server at a port of the kernel's machine where the browser is there as well."""
    return _html(_ON_THIS_MACHINE.format(port=port, path=escape(path)), height)


def _html(script: str, height: int) -> str:
    return _BOX.format(id=f"hetplanner-{os.urandom(6).hex()}", height=height, script=script)  # shown again: another id


class JupyterDashboard:
    """The dashboard that the launcher's tile opens; as the value of a cell it is shown there.

    Attributes:
        height: of the frame, in pixels.
    """

    def __init__(self, height: int) -> None:
        self.height = height

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        where = jupyter.address()
        link = f"offer({json.dumps(where)}, {json.dumps(where)})" if where else f'words.append("…/{jupyter.PATH}")'
        script = _BEHIND_JUPYTER.format(path=jupyter.PATH, link=link)
        return {"text/plain": repr(self), "text/html": _html(script, self.height)}

    def __repr__(self) -> str:
        return f"JupyterDashboard({jupyter.address() or jupyter.PATH})"


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
            [sys.executable, "-m", "hetplanner.ui.notebook.framed", *origins],
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
        html = framed_html(self.port, self._address[2], self.height)
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
    """`python -m hetplanner.ui.notebook.framed ORIGIN …`: serves until stdin closes."""
    from hetplanner.ui.serve import serve_dashboard

    def end_with_kernel() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end_with_kernel, daemon=True).start()
    serve_dashboard(0, frames_from=sys.argv[1:])


if __name__ == "__main__":
    main()
