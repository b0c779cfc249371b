"""Kept plans on disk: safe names, never overwritten, whatever several pages do."""

import os
import threading
from pathlib import Path

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import load_plan
from hetplanner.runs.plan_store import MAX_KEPT, MAX_NAME, PlanStore, is_safe, safe_name
from tests.support.plans.factories import chain_plan

PLAN = chain_plan([8, 8], [3])


@pytest.fixture
def store(tmp_path):
    return PlanStore(tmp_path)


def names(store: PlanStore) -> list[str]:
    return sorted(each.name for each in store.kept())


def test_nothing_is_made_before_something_is_kept(store, tmp_path):
    assert store.kept() == []
    assert list(tmp_path.iterdir()) == []


def test_a_kept_plan_is_a_plan_file_of_the_owner_alone(store, tmp_path):
    assert store.keep(PLAN, "  first try ") == "first try"
    path = tmp_path / "plans" / "first try.json"
    assert load_plan(path) == PLAN == store.load("first try")
    assert (tmp_path / "plans").stat().st_mode & 0o777 == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["first try.json"]


def test_a_taken_name_is_refused_and_a_free_one_offered(store):
    store.keep(PLAN, "it")
    with pytest.raises(InvalidInput, match="a plan called 'it' is kept already"):
        store.keep(PLAN, "it")
    assert store.free_name("it") == "it 2"
    assert store.free_name("IT") == "IT 2", "some file systems tell no case apart"
    assert store.free_name("other") == "other"


def test_of_two_pages_that_keep_under_one_name_one_wins_and_the_other_is_told(tmp_path):
    plans = [chain_plan([8, 8], [3]), chain_plan([8, 8], [4])]
    outcome: list[object] = [None, None]
    start = threading.Barrier(2)

    def keep(n: int) -> None:
        start.wait()
        try:
            outcome[n] = PlanStore(tmp_path).keep(plans[n], "same")
        except InvalidInput as error:
            outcome[n] = error

    threads = [threading.Thread(target=keep, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(each).__name__ for each in outcome) == ["InvalidInput", "str"]
    assert PlanStore(tmp_path).load("same") == plans[outcome.index("same")]


def test_rename_takes_no_other_plans_place(store):
    store.keep(PLAN, "a")
    store.keep(chain_plan([16], [3]), "b")
    with pytest.raises(InvalidInput, match="kept already"):
        store.rename("a", "b")
    assert store.rename("a", "a") == "a"
    assert store.rename("a", "c") == "c"
    assert names(store) == ["b", "c"]
    assert store.load("c") == PLAN
    with pytest.raises(InvalidInput, match="cannot be renamed"):
        store.rename("a", "d")


def test_what_was_deleted_can_be_kept_again_and_is_missed_by_others(store, tmp_path):
    store.keep(PLAN, "a")
    gone = store.delete("a")
    with pytest.raises(InvalidInput, match="no 'a' any more"):
        PlanStore(tmp_path).load("a")
    store.keep(gone, "a")
    assert names(store) == ["a"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        ".",
        "..",
        "../a",
        "a/b",
        "a\\b",
        ".hidden",
        "-rf",
        "a\0b",
        "a\nb",
        "<b>x</b>",
        "a,b",
        "x" * 61,
        "con:",
        "a.",
    ],
)
def test_names_that_are_more_than_a_name_are_refused(store, name, tmp_path):
    assert not is_safe(name)
    for act in (store.load, store.delete, store.discard, lambda n: store.keep(PLAN, n)):
        with pytest.raises(InvalidInput, match="name: must be"):
            act(name)
    assert not (tmp_path / "plans").exists()


@pytest.mark.parametrize(
    "text", ["gpt3-xl 8 × 8, 4.1 s", "../../etc/passwd", "<script>", "", "日本", "x" * 500, "a" * 59 + " . b"]
)
def test_any_text_gives_a_safe_name(store, text):
    assert is_safe(safe_name(text))
    assert len(safe_name(text)) <= MAX_NAME
    store.keep(PLAN, store.free_name(text))


def test_foreign_files_and_links_are_not_in_the_store(store, tmp_path):
    store.keep(PLAN, "mine")
    folder = tmp_path / "plans"
    (folder / "notes.txt").write_text("x")
    (folder / ".draft.json").write_text("x")
    (folder / "sub.json").mkdir()
    os.symlink(folder / "mine.json", folder / "link.json")
    assert names(store) == ["mine"]


def test_a_file_that_was_spoilt_says_what_is_wrong_and_can_be_discarded(store, tmp_path):
    store.keep(PLAN, "a")
    (tmp_path / "plans" / "a.json").write_text('{"format": "hetplanner/plan@9"}')
    with pytest.raises(InvalidInput, match="newer than this hetplanner reads"):
        store.load("a")
    store.discard("a")
    assert store.kept() == []


def test_the_store_has_an_end(store, tmp_path):
    folder: Path = tmp_path / "plans"
    store.keep(PLAN, "p")
    for n in range(MAX_KEPT - 1):
        (folder / f"n{n}.json").write_text("{}")
    with pytest.raises(InvalidInput, match=f"there are {MAX_KEPT} already; delete some"):
        store.keep(PLAN, "one more")
