"""What the agent offers to a page by name: data, folders to write runs into, hosts, earlier runs to go on from.

A browser never gives a path. It gives names, and the agent looks them up in a file that its user wrote:

    # HOME/agent.toml
    [data]
    wikitext = "/data/wikitext-103.txt"
    [output]
    scratch = "/scratch/runs"
    [hosts]
    lab = "/home/me/lab-hosts.toml"

The command line and notebooks of the same user give paths as ever: they could read those files anyway.
"""

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from hetplanner.errors import InvalidInput
from hetplanner.launchers.hosts_file import Hosts, read_hosts
from hetplanner.plan.train import TrainConfig
from hetplanner.reading import reader
from hetplanner.runs.directory import RUN_ID, list_run_ids
from hetplanner.runs.home import home_directory, refuse_others, runs_directory
from hetplanner.schema import Name, Noun, checked, one_line, read_text

AGENT_TOML = "agent.toml"
MAX_OFFERS_BYTES = 2**18
MAX_OFFERS = 200


def _absolute(text: str) -> str:
    path = Path(text)
    if not (path.is_absolute() or text.startswith("~/")) or "\0" in text:
        raise ValueError(f"must be an absolute path, or begin with ~/, got {text!r:.80}")
    return text


Folder = Annotated[str, Field(max_length=4000), AfterValidator(_absolute)]
Offered = Annotated[dict[Name, Folder], Field(max_length=MAX_OFFERS)]


class AllowedPaths(Noun):
    """Content of `agent.toml`.

    Attributes:
        data: files or folders to train on, by name; of a run over hosts, `~` is the home folder on each host.
        output: folders that hold runs, by name; each run gets a new folder inside.
        hosts: hosts files, by name.
    """

    data: Offered = Field(default_factory=dict)
    output: Offered = Field(default_factory=dict)
    hosts: Offered = Field(default_factory=dict)

    @property
    def data_names(self) -> tuple[str, ...]:
        """Names of the data, in the file's order."""
        return tuple(self.data)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the output folders, in the file's order."""
        return tuple(self.output)

    @property
    def hosts_names(self) -> tuple[str, ...]:
        """Names of the hosts files, in the file's order."""
        return tuple(self.hosts)


class Choice(Noun):
    """What a page chose from the offers: names, never paths.

    Attributes:
        data: a name of `AllowedPaths.data`; None takes what belongs to the model by default.
        output: a name of `AllowedPaths.output`; None takes the home's `runs/`.
        hosts: a name of `AllowedPaths.hosts`, to run there by ssh or as a Slurm job; None runs on the agent's machine.
        resume: id of an earlier run of the same plan to go on from.
    """

    data: Name | None = None
    output: Name | None = None
    hosts: Name | None = None
    resume: Annotated[str, Field(pattern=RUN_ID.pattern)] | None = None


def allowed_paths_file(home: Path | None = None) -> Path:
    """Where the offers are written: `HOME/agent.toml`."""
    return (home or home_directory()) / AGENT_TOML


@reader("file of offers", name=AGENT_TOML)
def read_allowed_paths(home: Path | None = None) -> AllowedPaths:
    """The offers of a home; none if the file is missing.

    Raises:
        InvalidInput: the file is not what it should be, or others than this user own or may write it or its folder.
    """
    file = allowed_paths_file(home)
    if not file.exists():
        return AllowedPaths()
    refuse_others(file.parent, file.parent.stat())  # so no other user exchanges the file after this check
    refuse_others(file, file.stat())
    text = read_text(file, MAX_OFFERS_BYTES)
    try:
        data = tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(one_line(f"{file}: not TOML: {error}")) from None
    except ValueError:  # Python reads no whole number of more than some thousand digits
        raise InvalidInput(
            one_line(f"{file}: holds a number of too many digits; every offer is a path in quotes")
        ) from None
    return checked(AllowedPaths, data, AGENT_TOML)


def settle(choice: Choice, config: TrainConfig, home: Path | None = None) -> tuple[TrainConfig, Path | None]:
    """The configuration with what the names stand for, and the folder that the run's own folder goes into.

    Args:
        choice: what a page asked for.
        config: its other settings, which may not hold a path.
        home: whose offers.

    Returns:
        The complete configuration, and the output folder; None for the home's `runs/`.

    Raises:
        InvalidInput: a path is given, or a name is not offered.
    """
    paths = config.data, config.eval_data, config.resume, config.init_from, config.adapter, config.copy_to
    if any(path is not None for path in paths):
        raise InvalidInput(
            "request: config: data, eval_data, resume, init_from, adapter and copy_to are paths;"
            " a page chooses from the offered names"
        )
    offers = read_allowed_paths(home)
    data = _offered("data", choice.data, offers.data)
    if data is not None and choice.hosts is None:
        data = str(Path(data).expanduser())
    named = _offered("output", choice.output, offers.output)
    output = None if named is None else Path(named).expanduser()
    resume = None
    if choice.resume is not None:
        if choice.resume not in list_run_ids(home):
            raise InvalidInput(f"resume: there is no run {choice.resume}; choose one of the list")
        resume = (runs_directory(home) / choice.resume).resolve()
    if output is not None and not output.is_dir():
        raise InvalidInput(f"output: {choice.output} of {AGENT_TOML} is no folder; make it, or correct its path")
    return config.replace(data=data, resume=resume and str(resume)), output


def allowed_hosts(name: str, home: Path | None = None) -> Hosts:
    """The hosts in the file that a name stands for.

    Raises:
        InvalidInput: it is not offered, is not right, or others than this user may write it.
    """
    named = _offered("hosts", name, read_allowed_paths(home).hosts)
    assert named is not None
    path = Path(named).expanduser()
    if path.exists():
        refuse_others(path, path.stat())  # it names programs that are run
    return read_hosts(path)


def _offered(kind: str, name: str | None, offered: dict[str, str]) -> str | None:
    if name is None:
        return None
    if name not in offered:
        known = ", ".join(offered) or "none"
        raise InvalidInput(f"{kind}: {name!r:.80} is not offered by the agent ({known:.300}); add it to {AGENT_TOML}")
    return offered[name]
