"""What a browser sends when it opens, uses and leaves a page, without drawing: cheap enough for thousands of loads."""

import asyncio
import json
import re
import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

PATIENCE_S = 120.0
_TOKEN = re.compile(r'"token":"([^"]+)"')


class PageClient:
    """One load of a page. `roots` is the document as it was pulled: plain data.

    Args:
        url: of the page.
        cookie: header that lets in, where the server asks for one.
    """

    def __init__(self, url: str, cookie: str = "") -> None:
        self.url = url
        self.roots: list[Any] = []
        self._headers = {"Cookie": cookie} if cookie else {}
        self._socket: WebSocketClientConnection | None = None
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> "PageClient":
        """Asks for the page, then for its document, and says that it is drawn."""
        request = HTTPRequest(self.url, headers=self._headers, request_timeout=PATIENCE_S)
        html = (await AsyncHTTPClient().fetch(request)).body.decode()
        found = _TOKEN.search(html)
        assert found is not None, html[:500]
        address = urlsplit(self.url)
        origin = {"Origin": f"{address.scheme}://{address.netloc}"}
        request = HTTPRequest(
            f"ws://{address.netloc}{address.path}/ws", headers=self._headers | origin, request_timeout=PATIENCE_S
        )
        self._socket = await websocket_connect(request, subprotocols=["bokeh", found[1]], max_message_size=100 * 2**20)
        ready = self._expect("ACK")
        self._reader = asyncio.create_task(self._read(self._socket))
        await asyncio.wait_for(ready, PATIENCE_S)
        self.roots = (await self._ask("PULL-DOC-REQ", {}))["doc"]["roots"]
        await self.raise_event("document_ready")
        return self

    async def raise_event(self, name: str) -> None:
        """Sends an event of the document without values."""
        body = {"type": "event", "name": name, "values": {"type": "map"}}
        await self._change({"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": body})

    async def set(self, model_id: str, attribute: str, value: Any) -> None:
        """Changes an attribute of a model, as a widget does; returns when the server has taken it."""
        await self._change({"kind": "ModelChanged", "model": {"id": model_id}, "attr": attribute, "new": value})

    async def send(self, model_id: str, data: Any) -> None:
        """Sends a message of one of our components; returns when the server has taken it."""
        values = {"type": "map", "entries": [["model", {"id": model_id}], ["data", data]]}
        body = {"type": "event", "name": "data_event", "values": values}
        await self._change({"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": body})

    async def close(self) -> None:
        """Leaves the page."""
        assert self._socket is not None
        assert self._reader is not None
        self._socket.close()
        await asyncio.wait_for(self._reader, PATIENCE_S)

    async def _change(self, change: dict[str, Any]) -> None:
        await self._ask("PATCH-DOC", {"events": [change]})

    async def _ask(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        assert self._socket is not None
        msgid = secrets.token_hex(16)
        answer = self._expect(msgid)
        for part in ({"msgid": msgid, "msgtype": kind}, {}, content):
            await self._socket.write_message(json.dumps(part))
        found: dict[str, Any] = await asyncio.wait_for(answer, PATIENCE_S)
        return found

    def _expect(self, msgid: str) -> "asyncio.Future[Any]":
        self._answers[msgid] = asyncio.get_running_loop().create_future()
        return self._answers[msgid]

    async def _read(self, socket: WebSocketClientConnection) -> None:
        """Takes messages: header, metadata, content, and two parts for every buffer."""
        while (text := await socket.read_message()) is not None:
            header = json.loads(text)
            parts = [await socket.read_message() for _ in range(2 + 2 * header.get("num_buffers", 0))]
            answer = self._answers.pop(header.get("reqid", header["msgtype"]), None)
            if answer is not None and parts[1] is not None:
                answer.set_result(json.loads(parts[1]))
        for answer in self._answers.values():
            answer.set_exception(ConnectionError(f"{socket.close_code} {socket.close_reason}"))


def models(part: Any) -> Iterator[dict[str, Any]]:
    """Models of a document, or of a part of it, as they were sent."""
    if isinstance(part, dict):
        if part.get("type") == "object" and "id" in part:
            yield part
        for value in part.values():
            yield from models(value)
    elif isinstance(part, list):
        for value in part:
            yield from models(value)
