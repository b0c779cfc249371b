"""An imitation of the clouds' metadata service: `python metadata_service.py ADDRESS PORT FILE`, answers by path."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Metadata:
    """Answers by path; a path without answer is 404. `asked`: method, path and headers of each request."""

    def __init__(self, answers, where=("127.0.0.1", 0)):
        self.answers, self.asked = answers, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
                text = outer.answers.get(self.path)
                self.send_response(200 if text is not None else 404)
                self.end_headers()
                self.wfile.write((text or "").encode())

            do_PUT = do_GET

            def log_message(self, *words):
                pass

        self._server = ThreadingHTTPServer(where, Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class _Answers(dict):
    """What stands in a file now."""

    def __init__(self, path):
        self._path = path

    def get(self, path):
        return json.loads(self._path.read_text()).get(path)


if __name__ == "__main__":
    Metadata(_Answers(Path(sys.argv[3])), (sys.argv[1], int(sys.argv[2])))
    threading.Event().wait()
