"""Undo, redo and drafts: what one page or two do to one cluster."""

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.ui.cluster.models import drafts
from hetplanner.ui.cluster.models.drafts import Draft, DraftStore, Step
from hetplanner.ui.cluster.models.editor import Editor
from tests.support.plans.factories import small_cluster

TWO, THREE, FOUR = small_cluster(2), small_cluster(3), small_cluster(4)


@pytest.fixture
def store():
    return DraftStore()


@pytest.fixture
def editor(store):
    one = Editor(store)
    one.begin(TWO)
    return one


def test_changes_are_undone_and_made_again_in_words(editor):
    editor.apply(THREE, "added d2")
    editor.apply(FOUR, "added d3")
    assert (editor.cluster, editor.words, editor.undo_words, editor.redo_words) == (FOUR, "added d3", "added d3", "")
    editor.undo()
    assert (editor.cluster, editor.words) == (THREE, "Undone: added d3")
    assert (editor.undo_words, editor.redo_words) == ("added d2", "added d3")
    editor.undo()
    editor.undo()  # nothing left: nothing happens
    assert (editor.cluster, editor.undo_words) == (TWO, "")
    editor.redo()
    assert (editor.cluster, editor.words) == (THREE, "added d2")
    editor.apply(TWO, "deleted d2")
    assert editor.redo_words == ""


def test_a_change_to_the_same_is_no_step(editor):
    editor.apply(small_cluster(2), "nothing")
    assert (editor.undo_words, editor.draft_id) == ("", "")


def test_excluded_devices_are_steps_too_and_leave_with_their_device(editor):
    editor.apply(THREE, "added d2")
    editor.exclude(["d2", "d0", "unknown"], "excluded 2 devices")
    assert editor.excluded == ("d0", "d2")
    editor.include(["d2"], "included d2")
    assert editor.excluded == ("d0",)
    editor.undo()
    editor.apply(TWO, "deleted d2")
    assert editor.excluded == ("d0",)
    editor.undo()
    assert editor.excluded == ("d0", "d2")
    editor.undo()
    assert editor.excluded == ()


def test_watchers_of_the_cluster_hear_of_nothing_else(editor):
    heard = []
    editor.param.watch(lambda *events: heard.extend(e.name for e in events), ["cluster", "excluded", "words"])
    editor.exclude(["d1"], "excluded d1")
    assert heard == ["excluded", "words"]


def test_the_history_is_bounded_in_steps_and_weight(editor, monkeypatch):
    monkeypatch.setattr(drafts, "MAX_STEPS", 5)
    for i in range(20):
        editor.apply((THREE, FOUR)[i % 2], f"change {i}")
    undone = 0
    while editor.undo_words:
        editor.undo()
        undone += 1
    assert undone == 4
    monkeypatch.setattr(drafts, "MAX_WEIGHT", 1)
    editor.apply(TWO, "one")
    editor.apply(THREE, "two")
    assert editor.undo_words == "two"  # one step back is always kept
    editor.undo()
    assert editor.undo_words == ""


def test_old_steps_keep_no_matrices():
    draft = Draft(Step(THREE.replace()))
    assert draft.step.cluster.latency_s_DD.shape == (3, 3)
    draft.push(Step(FOUR, (), "more"))
    assert not any("_DD" in name for name in vars(draft.steps[0].cluster))
    assert draft.steps[0].cluster == THREE


def test_a_reload_finds_the_draft_with_its_history(editor, store):
    assert editor.draft_id == ""
    editor.apply(THREE, "added d2")
    reloaded = Editor(store)
    reloaded.begin(TWO)
    assert reloaded.open(editor.draft_id)
    assert (reloaded.cluster, reloaded.undo_words) == (THREE, "added d2")
    assert not reloaded.open("unknown")
    assert reloaded.cluster == THREE


def test_two_pages_of_a_draft_lose_no_edit(editor, store):
    editor.apply(THREE, "added d2")
    other = Editor(store)
    other.open(editor.draft_id)
    other.apply(FOUR, "added d3")
    with pytest.raises(InvalidInput, match=r"another page has just changed this draft \(added d3\)"):
        editor.apply(TWO, "deleted d2")
    assert editor.cluster == FOUR  # shown, so that the person can decide
    editor.apply(TWO, "deleted two")
    with pytest.raises(InvalidInput, match="deleted two"):
        other.undo()
    assert other.sync() == ""
    other.undo()
    assert editor.sync() == "undone: deleted two"
    assert editor.cluster == FOUR
    # A change given as a function is made from the newest state, seen or not.
    other.edit(lambda cluster: cluster.replace(name="renamed"), "renamed")
    editor.edit(lambda cluster: cluster.replace(description="described"), "described")
    assert (editor.cluster.name, editor.cluster.description) == ("renamed", "described")


def test_the_store_forgets_the_draft_untouched_for_longest():
    store = DraftStore(most=2)
    first, second, third = (Draft(Step(TWO)) for _ in range(3))
    for draft in (first, second, first, third):
        store.keep(draft)
    assert [store.get(d.id) is d for d in (first, second, third)] == [True, False, True]
    light = DraftStore(most_weight=2 * first.weight)
    for draft in (first, second, third):
        light.keep(draft)
    assert [light.get(d.id) is d for d in (first, second, third)] == [False, True, True]
