"""Why the page sends something small now and then: a race in Panel leaves messages that wait for the next ones."""

import asyncio

import pytest
from bokeh.document import Document
from panel.io import document as panel_document

from tests.support.processes.own_loop import finish


class Socket:
    pass


class Protocol:
    def create(self, _kind, events):
        return events[0]


class Connection:
    _socket = Socket()
    protocol = Protocol()


@pytest.fixture
def sent(monkeypatch):
    """What was sent, and the futures of sending it."""
    messages, futures = [], []

    def send(_connection, events=None, msg=None):
        messages.append(msg)
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1:]

    monkeypatch.setitem(panel_document.extra_socket_handlers, Socket, send)
    return messages, futures


def test_panel_leaves_a_message_that_the_next_one_takes_along(sent):
    """If this fails, Panel has mended it: `Address.pulse` and `BEATS_PER_PULSE` can go."""
    messages, futures = sent

    async def act():
        document, connections = Document(), [Connection()]
        panel_document.schedule_write_events(document, connections, ["curve"])
        await asyncio.sleep(0)
        futures[0].set_result(None)  # the first task will go on in the next turn of the loop, before the second begins
        panel_document.schedule_write_events(document, connections, ["map"])
        await asyncio.sleep(0.1)
        left = list(messages)
        panel_document.schedule_write_events(document, connections, ["pulse"])
        await asyncio.sleep(0)
        for future in futures[1:]:
            future.set_result(None)
        await asyncio.sleep(0.1)
        return left

    left = finish(act())
    assert left == ["curve"]
    assert messages == ["curve", "map", "pulse"]
