"""A session that ended is freed as a whole, in whatever state it was left."""

import asyncio
import gc
import logging
import subprocess
import sys
import time
import weakref
from pathlib import Path

import panel as pn
import pytest
from panel.io.state import set_curdoc
from tornado.ioloop import IOLoop

from hetplanner.ui.jobs import compute
from hetplanner.ui.shell.models.session import PAGES
from hetplanner.ui.shell.views import shell
from tests.support.pages.page_client import PageClient
from tests.support.processes import own_loop
from tests.unit.ui.plan.test_ui_search import finish
from tests.unit.ui.shell.test_ui_models import FakeService

REPOSITORY = Path(__file__).resolve().parents[4]
SOON_MS = 200
PATIENCE_S = 120.0


@pytest.fixture
def home(tmp_path, monkeypatch, no_agent_stays):
    monkeypatch.setattr(compute, "_workers", {})
    yield tmp_path
    for one in compute._workers.values():
        one.close()


@pytest.fixture
def run_id(home):
    """Of a run that streams."""
    command = [sys.executable, str(REPOSITORY / "tests/support/runs/streamed_run.py"), str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()
        process.kill()


async def until(true, what):
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


async def do(act):
    """Changes a session under its document's lock, as a page's own callbacks do."""
    done = asyncio.get_running_loop().create_future()

    def locked():
        try:
            with pn.io.hold():
                done.set_result(act())
        except Exception as error:
            done.set_exception(error)

    pn.state.curdoc.add_next_tick_callback(locked)
    await asyncio.wait_for(done, PATIENCE_S)


async def look_around(page):
    for name in (*PAGES[1:], PAGES[0]):
        await do(lambda name=name: setattr(page.app.session, "page", name))


async def just_opened(page):
    pass


async def told_something(page):
    await do(lambda: page.app.session.notify("error", "news"))
    await until(lambda: page.notices.notifications, "no notice")


async def met_an_unexpected_error(page):
    await do(lambda: pn.config.exception_handler(RuntimeError("nobody thought of this")))
    await until(lambda: page.notices.notifications, "no notice")


async def edited_and_undone(page):
    editor = page.app.cluster.editor
    first = editor.cluster.devices[0].id
    await do(lambda: editor.apply(editor.cluster, "excluded a device", excluded=[first]))
    await look_around(page)
    await do(editor.undo)


async def searched(page):
    await do(page.app.search)
    await do(lambda: finish(page.app))
    await look_around(page)


async def still_searching(page):
    await do(page.app.search)
    await look_around(page)


def expire(server):
    """Else sessions live on for 15 s, in case their pages come back."""
    for session in server.get_sessions():
        session.request_expiration()


def living(named):
    """Names of the parts that are still there."""
    gc.unfreeze()
    gc.collect()
    return [name for name, part in named.items() if part() is not None]


async def use_of(use, home):
    """Opens a page in a server of this process, uses and leaves it; weak references to what the session was.

    An empty page comes before: Panel's first session starts a task for all, whose context holds its document for good.
    """
    opened = []

    def made():
        page = shell.planner_page(REPOSITORY / "sample_clusters", service=FakeServiceThatWarms(), home=home)
        opened.append((SHELLS.pop(), pn.state.curdoc))
        return page

    server = pn.serve(
        {"planner": made, "empty": pn.Column}, port=0, show=False, start=False, verbose=False, loop=IOLoop.current(),
        check_unused_sessions_milliseconds=SOON_MS,
    )  # fmt: skip
    server.start()
    try:
        url = f"http://localhost:{server.port}"
        await (await PageClient(f"{url}/empty").open()).close()
        client = await PageClient(f"{url}/planner").open()
        ((page, document),) = opened
        opened.clear()
        with set_curdoc(document):
            await use(page)
        app = page.app
        models = [value for value in vars(app).values() if hasattr(value, "param")]
        views = list(page._views.values())
        whole = [page, page.page, page.notices, app, document, *models, *views, *document.models]
        named = {f"{type(part).__name__} {number}": weakref.ref(part) for number, part in enumerate(whole)}
        del page, document, app, models, views, whole
        await client.close()
        expire(server)
        await until(lambda: not server.get_sessions(), "the session does not expire")
        return named
    finally:
        server.stop()


SHELLS = []


class FakeServiceThatWarms(FakeService):
    def warm(self):
        pass


class NotedShell(shell.Shell):
    """Noted for the test, until it takes it."""

    def __init__(self, app):
        super().__init__(app)
        SHELLS.append(self)


def left_of(use, home):
    """Parts of a session that live on after it was used so, and ended."""
    named, deadline = own_loop.finish(use_of(use, home)), time.monotonic() + PATIENCE_S
    while (left := living(named)) and time.monotonic() < deadline:
        time.sleep(0.2)  # what was being computed for it ends first
    return left


@pytest.fixture(scope="module", autouse=True)
def first_page(tmp_path_factory):
    """Opened once in this process: parts of the first page live on, with what Panel sets up once for all."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shell, "Shell", NotedShell)
        own_loop.finish(use_of(just_opened, tmp_path_factory.mktemp("home")))


@pytest.fixture(autouse=True)
def noted(monkeypatch):
    monkeypatch.setattr(shell, "Shell", NotedShell)
    SHELLS.clear()
    logging.disable(logging.INFO)  # pytest keeps records, and those what they speak of
    yield
    logging.disable(logging.NOTSET)


async def used_in_many_ways(page):
    """One page for what has never left anything alone: opening two pages takes seconds."""
    for use in (told_something, met_an_unexpected_error, edited_and_undone):
        await use(page)


@pytest.mark.parametrize("use", [just_opened, used_in_many_ways, searched, still_searching])
def test_an_ended_session_leaves_nothing(use, home):
    assert left_of(use, home) == []


def test_a_session_that_watched_a_run_leaves_nothing(run_id, home):
    async def watched(page):
        await do(lambda: setattr(page.app.session, "page", "run"))
        await do(lambda: page.app.run.select(run_id))
        await until(lambda: page.app.run.status is not None, "no status")
        await look_around(page)

    assert left_of(watched, home) == []
