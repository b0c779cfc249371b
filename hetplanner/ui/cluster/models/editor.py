"""The current cluster and its changes: every edit of any page part goes through one editor, with undo and redo.

    editor.apply(new_cluster, "link Oregon – Tokyo: 2 Gbit/s")      # made from editor.cluster
    editor.edit(lambda cluster: moved(cluster, ...), "moved Oregon")  # made from the newest, if pages share a draft

Both raise InvalidInput; call them within `session.reporting()`.
"""

from collections.abc import Callable, Iterable, Set
from typing import Any

import param

from hetplanner.cluster.model import Cluster
from hetplanner.errors import InvalidInput
from hetplanner.ui.cluster.models.drafts import Draft, DraftStore, Step


class Editor(param.Parameterized):
    """What one session edits. Watch `cluster`, `excluded` or, for every change, `words`.

    Attributes:
        cluster: the cluster as it stands; None where nothing is drawn yet. Read it, change it by `apply` or `edit`.
        excluded: ids of devices that plans must not use, in the order of the cluster.
        words: the newest change, in words.
        draft_id: what the page's address remembers; '' as long as nothing was changed.
    """

    cluster = param.ClassSelector(class_=Cluster, default=None)
    excluded: Any = param.Parameter(default=())
    words = param.String(default="")
    draft_id = param.String(default="")

    def __init__(self, store: DraftStore, **params: Any) -> None:
        super().__init__(**params)
        self._store = store
        self._draft = Draft(Step(None))
        self._seen = 0

    # -- changes ----------------------------------------------------------------------------------

    def begin(self, cluster: Cluster | None) -> None:
        """What the page opens with: nothing that could be undone, and no draft yet."""
        self._draft, self.draft_id = Draft(Step(cluster)), ""
        self._show("")

    def apply(self, cluster: Cluster | None, words: str, *, excluded: Iterable[str] | None = None) -> None:
        """A change that was made from `self.cluster`; one like what there is changes nothing.

        Args:
            cluster: as it should be; None empties it.
            words: what changed, as one reads it beside Undo ("moved Oregon").
            excluded: likewise; None keeps those that are still there.

        Raises:
            InvalidInput: if another page changed the draft in the meantime. Its change is shown then.
        """
        with self._draft.lock:
            self._refuse_stale()
            changed = self._push(cluster, words, excluded)
        if changed:
            self._show(words)

    def edit(self, change: Callable[[Cluster | None], Cluster | None], words: str) -> None:
        """Applies `change` to the newest state, also if another page made it. Raises what `change` raises."""
        with self._draft.lock:
            changed = self._push(change(self._draft.step.cluster), words, None)
        self._show(words if changed else self.words)

    def exclude(self, device_ids: Iterable[str], words: str) -> None:
        """Plans must not use these devices either."""
        self._choose(words, add=set(device_ids))

    def include(self, device_ids: Iterable[str], words: str) -> None:
        """Plans may use these devices again."""
        self._choose(words, drop=set(device_ids))

    def _choose(self, words: str, add: Set[str] = frozenset(), drop: Set[str] = frozenset()) -> None:
        with self._draft.lock:
            now = self._draft.step
            changed = self._push(now.cluster, words, (set(now.excluded) | add) - drop)
        self._show(words if changed else self.words)

    def undo(self) -> None:
        """Takes the newest change back. Raises InvalidInput if another page made one in the meantime."""
        if words := self._stepped(Draft.undo):
            self._show(f"Undone: {words}")

    def redo(self) -> None:
        """Makes the change again that was taken back last. Raises as `undo`."""
        if words := self._stepped(Draft.redo):
            self._show(words)

    def _stepped(self, step: Callable[[Draft], str]) -> str:
        with self._draft.lock:
            self._refuse_stale()
            words = step(self._draft)
            self._store.keep(self._draft)
        return words

    def _push(self, cluster: Cluster | None, words: str, excluded: Iterable[str] | None) -> bool:
        """A new step; False if it is like the one there is."""
        now = self._draft.step
        chosen = set(now.excluded if excluded is None else excluded)
        left_out = tuple(d for d in cluster.device_ids if d in chosen) if cluster is not None else ()
        if cluster == now.cluster and left_out == now.excluded:
            return False
        self._draft.push(Step(cluster, left_out, words))
        self._store.keep(self._draft)
        return True

    # -- two pages with one draft -----------------------------------------------------------------

    def open(self, draft_id: str) -> bool:
        """Goes on with a draft that is kept; False if it is not there (any more)."""
        draft = self._store.get(draft_id)
        if draft is None:
            return False
        self._draft = draft
        self._store.keep(draft)
        self._show("")
        return True

    def sync(self) -> str:
        """Takes what another page did to the draft; that in words, or ''. Cheap: a page calls it at every beat."""
        if self._seen == self._draft.version:
            return ""
        said = self._draft.said
        self._show(said)
        return said

    def _refuse_stale(self) -> None:
        said = self.sync()
        if said:
            raise InvalidInput(f"cluster: another page has just changed this draft ({said}); look, and do it again")

    def _show(self, words: str) -> None:
        """Makes this page see the draft as it stands."""
        draft = self._draft
        self._seen = draft.version
        changes: dict[str, Any] = {"excluded": draft.step.excluded}
        if draft.step.cluster is not self.cluster:
            changes["cluster"] = draft.step.cluster
        if self._store.get(draft.id) is draft:
            changes["draft_id"] = draft.id
        with param.parameterized.discard_events(self):
            self.words = words
        self.param.update(**changes)
        self.param.trigger("words")  # also when the same was done again

    # -- what the page says -----------------------------------------------------------------------

    @property
    def undo_words(self) -> str:
        """What Undo would take back, or ''."""
        return self._draft.step.words if self._draft.at else ""

    @property
    def redo_words(self) -> str:
        """What Redo would make again, or ''."""
        later = self._draft.steps[self._draft.at + 1 :]
        return later[0].words if later else ""
