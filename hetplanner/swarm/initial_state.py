"""What a swarm begins with when none of its processes is alive: its own last checkpoint, another run's, or nothing.

The launcher writes that into the decision log before it starts the coordinator. No torch.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from hetplanner.atomic_files import drafted, remove_drafts
from hetplanner.elastic.coordinator.decisions import (
    CheckpointSaved,
    Decision,
    Ledger,
    Resumed,
    decode_decisions,
    lose_damaged,
    replay_decisions,
    set_back_to_saved,
)
from hetplanner.elastic.protocol.identity import Version
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import load_elastic_plan
from hetplanner.plan.files.train_files import load_config, resume_chain
from hetplanner.plan.train import TrainConfig
from hetplanner.reading import reader
from hetplanner.swarm.decision_file import DECISIONS_FILE, DecisionFile
from hetplanner.swarm.peer.checkpoint_files import FOLDER, checkpoint_path, is_whole, lineage_of, of_first_lineage

log = logging.getLogger(__name__)

IsGood = Callable[[Path, int, Version], bool]
"""Whether a stage's checkpoint in a folder can be taken."""


@reader("decision log", at="run_dir")
def read_ledger(run_dir: Path) -> Ledger:
    """What a run has decided so far; nothing where it has no log. Raises InvalidInput: it cannot be read."""
    try:
        return replay_decisions(decode_decisions((run_dir / DECISIONS_FILE).read_bytes()))
    except FileNotFoundError:
        return Ledger()
    except OSError as error:
        raise InvalidInput(f"{run_dir / DECISIONS_FILE}: cannot be read: {error.strerror}") from None
    except HetplannerError as error:
        raise InvalidInput(f"{run_dir}: {error}") from None


def find_checkpoint(run_dir: Path, stages: int, is_good: IsGood = is_whole) -> tuple[Path, dict[int, Version]] | None:
    """The run whose checkpoint of all stages one would go on from, and what each stage's was saved as.

    That is the run itself, or, as long as it has none, the run that it has gone on from.

    Args:
        run_dir: of the run.
        stages: of its model.
        is_good: what to look at.

    Raises:
        InvalidInput: a run's files cannot be read.
    """
    for one in resume_chain(str(run_dir)):
        ledger = read_ledger(one)
        for step in sorted(ledger.checkpoints, reverse=True):
            saved = ledger.checkpoints[step]
            if len(saved) == stages and all(is_good(one / FOLDER, stage, v) for stage, v in saved.items()):
                return one, saved
    return None


def check_swarm_resumable(plan: ElasticPlan, config: TrainConfig, is_good: IsGood = is_whole) -> int:
    """Refuses to go on from a run that this plan and these settings cannot go on from.

    Args:
        plan, config: of the new run.
        is_good: see `find_checkpoint`; `is_there` looks at names alone.

    Returns:
        Steps that are done there; 0 if the settings resume nothing.

    Raises:
        InvalidInput: there is no whole checkpoint, or it is of another plan or seed, or nothing is left to do.
    """
    if config.resume is None:
        return 0
    run_dir = Path(config.resume)
    found = find_checkpoint(run_dir, len(plan.stages), is_good)
    if found is None:
        raise InvalidInput(
            f"resume: {run_dir} holds no whole checkpoint of all {len(plan.stages)} stages; runs write them with"
            " --checkpoint-every N"
        )
    source, saved = found
    refuse_another_run(plan, config, source)
    step = saved[0].step
    if step >= config.steps:
        raise InvalidInput(
            f"resume: {source} has done {step} steps, so {config.steps} leave nothing to do; give more steps"
        )
    return step


def refuse_another_run(plan: ElasticPlan, config: TrainConfig, source: Path) -> None:
    """Refuses a run of another plan or seed. Raises InvalidInput."""
    if load_elastic_plan(source / "plan.json").digest() != plan.digest():
        raise InvalidInput(f"resume: {source}: is of another plan; a run goes on with the plan that it began with")
    seed = load_config(source / "run.json").seed
    if seed != config.seed:
        raise InvalidInput(f"resume: {source} was begun with seed {seed}, got {config.seed}; give the same seed")


def take_over(run_dir: Path, source: Path) -> None:
    """Takes the checkpoints that another run has on this host as this run's own, under the names of a first lineage.

    Nothing is done where this run has some already.

    Raises:
        InvalidInput: they cannot be copied.
        OSError: the disk is full.
    """
    folder = run_dir / FOLDER
    if folder.is_dir():
        return
    try:
        folder.mkdir()
        for path in sorted((source / FOLDER).glob("stage-*.safetensors"), key=lambda path: lineage_of(path.name)):
            (folder / of_first_lineage(path.name)).unlink(missing_ok=True)
            _link_or_copy(path, folder / of_first_lineage(path.name))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        raise InvalidInput(f"resume: the checkpoints of {source} cannot be copied: {error.strerror}") from None


def adopt_from_hosts(run_dir: Path, source: Path, stages: int, names: Collection[str]) -> None:
    """Decides to go on from the newest checkpoint of another run that the hosts together have.

    Args:
        run_dir: of the new swarm, on its coordinator's host; it has decided nothing.
        source: of the other run, on the same host.
        stages: of the model.
        names: of the other run's checkpoints on all hosts.

    Raises:
        InvalidInput: there is none.
        OSError: the log cannot be written.
    """

    def is_there(folder: Path, stage: int, version: Version) -> bool:
        return checkpoint_path(folder, stage, version).name in names

    found = find_checkpoint(source, stages, is_there)
    if found is None:
        raise InvalidInput(f"resume: of {source} the hosts have no whole checkpoint of all {stages} stages")
    run, saved = found
    version = Version(0, saved[0].step)
    decisions = DecisionFile(run_dir / DECISIONS_FILE)
    try:
        decisions.append(Resumed(0, version, str(run)))
        for stage in saved:
            decisions.append(CheckpointSaved(0, stage, version))
    finally:
        decisions.close()


def begin(run_dir: Path, stages: int, resume: str | None = None, elsewhere: Collection[str] = frozenset()) -> Ledger:
    """Decides what a swarm begins with, of which no process is alive.

    Args:
        run_dir: of the swarm.
        stages: of its model.
        resume: the run whose checkpoint a swarm takes that has none of its own.
        elsewhere: names of checkpoints that peers have on other hosts.

    Raises:
        InvalidInput: that run has none, or it cannot be copied.
        RunError: the log is damaged, or a coordinator holds it.
        OSError: the log cannot be written.
    """
    folder = run_dir / FOLDER
    if folder.is_dir():
        remove_drafts(folder)
    decisions = DecisionFile(run_dir / DECISIONS_FILE)
    try:
        ledger = replay_decisions(decisions.decisions)

        def is_saved(stage: int, version: Version) -> bool:
            return checkpoint_path(folder, stage, version).name in elsewhere or is_whole(folder, stage, version)

        first: list[Decision] = [*lose_damaged(ledger, stages, is_saved)]
        if resume is not None and ledger.newest_checkpoint(stages) is None:
            lineage = ledger.version.lineage + bool(decisions.decisions)
            adopted = _adopt(Path(resume), folder, stages, ledger.boot, lineage)
            for decision in adopted:
                ledger.take(decision)
            first += adopted
        first += set_back_to_saved(ledger, stages)
        for decision in first:
            log.info("%s", decision)
            decisions.append(decision)
    finally:
        decisions.close()
    return ledger


def _adopt(source: Path, folder: Path, stages: int, boot: int, lineage: int) -> list[Decision]:
    """Takes another run's checkpoint over, as this one's."""
    found = find_checkpoint(source, stages)
    if found is None:
        raise InvalidInput(f"resume: {source} holds no whole checkpoint of all {stages} stages")
    run_dir, saved = found
    version = Version(lineage, saved[0].step)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stage, was in saved.items():
            path = checkpoint_path(folder, stage, version)
            path.unlink(missing_ok=True)
            _link_or_copy(checkpoint_path(run_dir / FOLDER, stage, was), path)
    except OSError as error:
        raise InvalidInput(f"resume: the checkpoint of {run_dir} cannot be copied: {error.strerror}") from None
    return [Resumed(boot, version, str(run_dir)), *(CheckpointSaved(boot, stage, version) for stage in saved)]


def _link_or_copy(source: Path, path: Path) -> None:
    """A file that is never changed may have two names; on another file system it is copied."""
    try:
        os.link(source, path)
    except OSError:
        with drafted(path, sync=True) as draft:
            shutil.copyfile(source, draft)
