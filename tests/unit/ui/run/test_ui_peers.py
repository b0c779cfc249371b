"""Peers of a rehearsal that a page has leave or kills: locked without the token, done by the agent, or refused."""

import time
from types import SimpleNamespace

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.ui.run.views.swarm import PeerButtons
from hetplanner.ui.widgets.cards import is_shown
from tests.support.files.hostile import NAMES
from tests.support.plans.factories import small_cluster, swarm_plan
from tests.unit.swarm.test_swarm_life import BOOT, commit, model_of, peer_event, write_events

PLAN = swarm_plan([2, 1], [4], cluster=small_cluster(3))


class FakeAgent:
    """Does what it is asked, but for a peer that was asked before."""

    def __init__(self):
        self.asked = []

    def ask_peer(self, run, peer, act):
        if peer in [p for _, p, _ in self.asked]:
            raise InvalidInput(f"peer {peer}: has been asked to leave already")
        self.asked.append((run, peer, act))


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """Two pages that see one run of a swarm, the first with its token typed; and the agent of both."""
    agent, (model, directory) = FakeAgent(), model_of(tmp_path, PLAN, monkeypatch)
    other = type(model)(model.session.__class__(SimpleNamespace(check=lambda text: False)), None, tmp_path)
    for one in (model, other):
        one.peers._agent = lambda: agent
    write_events(directory.path, BOOT, *(peer_event(101.0, "serving", p, s) for p, s in (("a", 0), ("b", 0), ("c", 1))))
    model.session.unlocked = True
    for one in (model, other):
        one.beat()
    return SimpleNamespace(first=model, second=other, agent=agent, folder=directory.path)


def settled(model):
    deadline = time.monotonic() + 30
    while model.peers.asking:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        model.beat()


def test_a_chosen_peer_is_asked_for_by_the_page_that_has_the_token(pages):
    buttons = PeerButtons(pages.first, pages.first.session)
    peers = pages.first.peers
    assert peers.stage_of == {"a": 0, "b": 0, "c": 1}
    assert buttons.name.options == {"choose one": "", "a": "a", "b": "b", "c": "c"}
    assert buttons.drain.disabled
    buttons.name.value = "b"
    assert not buttons.drain.disabled
    assert not buttons.kill.disabled
    buttons.drain.clicks += 1
    settled(pages.first)
    assert pages.agent.asked == [(pages.first.selected, "b", "drain")]
    assert "b leaves between two steps." in str(buttons.words.view.object)
    write_events(pages.folder, peer_event(103.0, "gone", "b", 0) | {"how": "left", "reason": ""}, commit(104.0, 1))
    pages.first.beat()
    assert peers.stage_of == {"a": 0, "c": 1}
    assert (peers.peer, buttons.drain.disabled) == ("", True)
    assert peers.gone == [], "it is none of the plan's: nobody here could start it again"


def test_a_move_changes_no_choice_of_the_menu(pages):
    buttons = PeerButtons(pages.first, pages.first.session)
    buttons.name.value = "b"
    before = dict(buttons.name.options)
    assert "b serves stage 0." in str(buttons.words.view.object)
    write_events(
        pages.folder, peer_event(103.0, "gone", "b", 0) | {"how": "move"}, peer_event(104.0, "serving", "b", 1)
    )
    pages.first.beat()
    assert buttons.name.options == before, "a click on a label that has changed meanwhile would be refused"
    assert "b serves stage 1." in str(buttons.words.view.object)


def test_a_peer_that_was_killed_is_brought_back(pages):
    peers, buttons = pages.first.peers, PeerButtons(pages.first, pages.first.session)
    write_events(
        pages.folder, peer_event(103.0, "serving", "d0", 0), peer_event(104.0, "gone", "d0", 0) | {"how": "lost"}
    )
    pages.first.beat()
    assert buttons.name.options["d0"] == "d0"
    buttons.name.value = "d0"
    assert "d0 has left; it can be brought back." in str(buttons.words.view.object)
    assert (buttons.back.disabled, buttons.kill.disabled) == (False, True)
    peers.ask("kill")
    assert pages.agent.asked == []
    buttons.back.clicks += 1
    settled(pages.first)
    assert pages.agent.asked == [(pages.first.selected, "d0", "rejoin")]
    assert "d0 comes back." in str(buttons.words.view.object)


def test_a_page_without_the_token_asks_for_nothing_whatever_it_sends(pages):
    buttons = PeerButtons(pages.second, pages.second.session)
    assert "Type the launch token" in str(buttons.words.view.object)
    buttons.name.value = "a"
    assert buttons.kill.disabled
    for act in ("drain", "kill"):
        pages.second.peers.ask(act)
        assert pages.second.peers.refusal.startswith(f"{act}: type the launch token first")
    assert pages.agent.asked == []
    pages.second.session.unlocked = True
    for name in ("", "trainer-0", "coordinator", "../x", "1", *NAMES):
        pages.second.peers.peer = name
        pages.second.peers.ask("kill")
    assert pages.agent.asked == []


def test_the_second_of_two_pages_is_told_beside_its_button_that_it_came_too_late(pages):
    pages.second.session.unlocked = True
    buttons = PeerButtons(pages.second, pages.second.session)
    for model in (pages.first, pages.second):
        model.peers.peer = "a"
        model.peers.ask("drain")
        settled(model)
    assert len(pages.agent.asked) == 1
    assert pages.second.session.notices == []
    assert "peer a: has been asked to leave already" in buttons.refusal.view.object
    assert is_shown(buttons.refusal.view)
    buttons.name.value = "c"
    assert not is_shown(buttons.refusal.view)


def test_the_only_peer_of_a_stage_is_named_as_such(pages):
    peers = pages.first.peers
    peers.peer = "a"
    assert peers.warning == ""
    peers.peer = "c"
    assert peers.warning.startswith("The only peer of stage 1")
    peers.ask("drain")
    settled(pages.first)
    assert peers.words.startswith("c serves on: stage 1 has no other peer; it leaves once one serves there")


def test_names_that_would_be_markup_are_options_and_nothing_else(pages):
    write_events(pages.folder, *(peer_event(102.0, "serving", name, 1) for name in NAMES))
    buttons = PeerButtons(pages.first, pages.first.session)
    pages.first.beat()
    assert set(NAMES) <= set(buttons.name.options.values())
    buttons.name.value = NAMES[0]
    pages.first.peers.ask("kill")
    settled(pages.first)
    assert NAMES[0] not in str(buttons.words.view.object)
    assert "&lt;img" in str(buttons.words.view.object)
