"""What a swarm begins with when none of its processes is alive: its own last checkpoint, another run's, or nothing.

The launcher writes that into the decision log before it starts the coordinator. No torch.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
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
from hetplanner.errors import HetplannerError, InvalidInput, last_line
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import load_any_plan, load_elastic_plan
from hetplanner.plan.files.resumable import PLAN_FILE, carried_steps, check_carried, check_goes_on, other_plan
from hetplanner.plan.files.stage_checkpoints import (
    FOLDER,
    checkpoint_path,
    is_there,
    is_whole,
    lineage_of,
    of_first_lineage,
)
from hetplanner.plan.files.train_files import CONFIG_FILE, load_config, resume_chain
from hetplanner.plan.train import TrainConfig
from hetplanner.reading import reader
from hetplanner.swarm.decision_file import DECISIONS_FILE, DecisionFile
from hetplanner.swarm.spec import SwarmSpec
from hetplanner.weights.adapters import common_digest, initial_weights

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
        if saved := _newest_saved(one, stages, is_good):
            return one, saved
    return None


def _newest_saved(run_dir: Path, stages: int, is_good: IsGood) -> dict[int, Version] | None:
    checkpoints = read_ledger(run_dir).checkpoints
    for step in sorted(checkpoints, reverse=True):
        saved = checkpoints[step]
        if len(saved) == stages and all(is_good(run_dir / FOLDER, stage, v) for stage, v in saved.items()):
            return saved
    return None


@dataclass(frozen=True)
class Source:
    """A checkpoint that a swarm can go on from.

    Attributes:
        run_dir: of its run.
        step: steps that are done there.
        saved: what each stage's was saved as; None: it is of another plan.
    """

    run_dir: Path
    step: int
    saved: dict[int, Version] | None


def find_source(plan: ElasticPlan, resume: str, *, read_files: bool = True) -> Source:
    """The checkpoint that a swarm goes on from, of its own plan or of another, static ones among them.

    Args:
        plan: of the swarm.
        resume: directory of the run to go on from.
        read_files: whether files are read to see that they are whole.

    Raises:
        InvalidInput: there is none.
    """
    why = ""
    for run_dir in resume_chain(resume):
        old = other_plan(run_dir, plan)
        if old is None:
            if saved := _newest_saved(run_dir, len(plan.stages), is_whole if read_files else is_there):
                return Source(run_dir, saved[0].step, saved)
            continue
        for item in carried_steps(run_dir, plan):
            try:
                if isinstance(item, str):
                    raise InvalidInput(item)
                if read_files:
                    check_carried(run_dir, old, item)
                return Source(run_dir, item, None)
            except InvalidInput as error:
                why = why or f"{run_dir}: {error}"
    raise InvalidInput(
        f"resume: {why or f'{resume} holds no whole checkpoint; runs write them with --checkpoint-every N'}"
    )


def check_swarm_resumable(plan: ElasticPlan, config: TrainConfig, *, read_files: bool = True) -> int:
    """Refuses to go on from a run that this plan and these settings cannot go on from.

    Args:
        plan, config: of the new run.
        read_files: see `find_source`.

    Returns:
        Steps that are done there; 0 if the settings resume nothing.

    Raises:
        InvalidInput: there is no whole checkpoint, or it is of another model or seed, or nothing is left to do.
    """
    if config.resume is None:
        return 0
    source = find_source(plan, config.resume, read_files=read_files)
    check_goes_on(source.run_dir, source.step, config)
    return source.step


def refuse_another_run(plan: ElasticPlan, config: TrainConfig, source: Path) -> None:
    """Refuses a run of another plan or seed, for swarms whose checkpoints lie on hosts. Raises InvalidInput."""
    if load_any_plan(source / PLAN_FILE).digest() != plan.digest():
        raise InvalidInput(
            f"resume: {source}: is of another plan; a swarm whose checkpoints lie on hosts goes on with its first plan"
        )
    seed = load_config(source / CONFIG_FILE).seed
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
            adopted = _adopt(run_dir, resume, ledger.boot, lineage)
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


def with_initial_weights(spec: SwarmSpec, ledger: Ledger) -> SwarmSpec:
    """The description of a swarm that begins with a model folder's weights, if its settings name one.

    Args:
        spec: of the swarm.
        ledger: what it has decided; one with a checkpoint needs no folder.

    Raises:
        InvalidInput: the folder does not fit, see `check_weights`.
    """
    if spec.train.init_from is None or ledger.newest_checkpoint(spec.num_stages) is not None:
        return spec
    weights = initial_weights(spec.train.init_from, spec.train.adapter, spec.workload)
    return spec.replace(init_digest=common_digest(weights))


def _adopt(run_dir: Path, resume: str, boot: int, lineage: int) -> list[Decision]:
    """Takes another run's checkpoint over, as this one's."""
    plan, folder = load_elastic_plan(run_dir / PLAN_FILE), run_dir / FOLDER
    source = find_source(plan, resume)
    version = Version(lineage, source.step)
    folder.mkdir(parents=True, exist_ok=True)
    if source.saved is None:
        _convert(run_dir, source.run_dir, version)
    try:
        for stage, was in (source.saved or {}).items():
            path = checkpoint_path(folder, stage, version)
            path.unlink(missing_ok=True)
            _link_or_copy(checkpoint_path(source.run_dir / FOLDER, stage, was), path)
    except OSError as error:
        raise InvalidInput(f"resume: the checkpoint of {source.run_dir} cannot be copied: {error.strerror}") from None
    saved = [CheckpointSaved(boot, stage, version) for stage in range(len(plan.stages))]
    return [Resumed(boot, version, str(source.run_dir)), *saved]


def _convert(run_dir: Path, source: Path, version: Version) -> None:
    """Writes the stages' files from a checkpoint of another plan; torch stays in a process of its own."""
    argv = [sys.executable, "-m", "hetplanner.swarm.launch.convert_checkpoint"]
    done = subprocess.run(
        [*argv, str(run_dir), str(source), str(version.lineage), str(version.step)], stderr=subprocess.PIPE, check=False
    )
    if done.returncode == errno.ENOSPC:
        raise OSError(errno.ENOSPC, "no space for the weights of the run to go on from")
    if done.returncode:
        raise InvalidInput(f"resume: {last_line(done.stderr)}")


def _link_or_copy(source: Path, path: Path) -> None:
    """A file that is never changed may have two names; on another file system it is copied."""
    try:
        os.link(source, path)
    except OSError:
        with drafted(path, sync=True) as draft:
            shutil.copyfile(source, draft)
