"""The measured profile on the Cluster page: from files, what of it is used, and as a download."""

import io
import re

import param

from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.profiles.files import merge_profiles, profile_from_json, profile_to_json
from hetplanner.profiles.imports.registry import imported_profile
from hetplanner.profiles.layer_table import layer_table
from hetplanner.profiles.model import Profile
from hetplanner.ui.settings.models.problem import ProblemSettings
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import counted, sources_text

MAX_ROWS = 10_000
"""A larger profile takes the page's time at every change of a setting."""
MAX_SHOWN = 40
NO_PROFILE = (
    "A profile holds measured seconds of the model's layers; they go before the rates of the cluster file and the"
    " catalog. Make one on each kind of device: hetplanner profile MODEL -o profile.json\n"
    "Files of other tools (CSV, Sailor, Metis, AMP) are read as measured on the model that is chosen."
)
COLLECTIVES_USE = (
    "Step times use them for the exchange in groups that divide samples (zero2, zero3), and in groups that divide"
    " layers where the profile has no layers of their degree."
)
_OWN_FILE = re.compile(rb'"format"\s*:\s*"hetplanner/')
_OPTIONS = {
    "--dtype": "number format",
    "--seq-len": "tokens/sequence",
    "--layers": "layers",
    "--kind": "kind of device",
}
"""Options of the command line, by which remedies name the page's fields."""


class ProfileModel(param.Parameterized):
    """The profile itself is a setting of the problem; `settings.profile` is shown as it is there.

    Attributes:
        kind: of the devices, for other tools' files that do not say it.
        error: why the last files were refused.
    """

    kind = param.String(default="")
    error = param.String(default="")

    def __init__(self, session: Session, settings: ProblemSettings, **params: object) -> None:
        super().__init__(**params)
        self.session, self.settings = session, settings

    # -- what a person does -----------------------------------------------------------------------

    def take_files(self, files: dict[str, bytes]) -> bool:
        """Profile files, merged, or files of another tool, measured on the model that is chosen; by name."""
        try:
            profile = self._read(files)
        except HetplannerError as error:
            self.error = _of_page(str(error))
            return False
        self.error = ""
        self.settings.profile = profile
        self.session.notify("success", f"Profile {profile.name}: {counted(len(profile.rows), 'row')}.")
        return True

    def _read(self, files: dict[str, bytes]) -> Profile:
        if any(_OWN_FILE.search(content) for content in files.values()):
            profile = merge_profiles([profile_from_json(content, name) for name, content in files.items()])
        else:
            profile = imported_profile(files, self.settings.workload(), self.kind.strip()[:120] or None)
        count = len(profile.rows) + len(profile.collectives)
        if count > MAX_ROWS:
            raise InvalidInput(
                f"profile {profile.name!r:.60}: must have at most {MAX_ROWS:,} rows here, has {count:,};"
                " plan on the command line, hetplanner plan --profile"
            )
        return profile

    def refuse_files(self, text: str) -> None:
        """Says beside the button why files did not come; the loaded profile stays."""
        self.error = text

    def remove(self) -> None:
        """Plans without a profile."""
        self.error = ""
        self.settings.profile = None

    def download(self) -> io.BytesIO:
        """The loaded profile as a file."""
        profile = self.settings.profile
        return io.BytesIO() if profile is None else io.BytesIO(profile_to_json(profile).encode())

    # -- in words ---------------------------------------------------------------------------------

    @property
    def lead(self) -> str:
        """The loaded profile's name, before `text`; '' without one."""
        return "" if self.settings.profile is None else f"{self.settings.profile.name}:"

    @property
    def text(self) -> str:
        """What the loaded profile is of, and who measured it; without one, what a profile is."""
        profile = self.settings.profile
        if profile is None:
            return NO_PROFILE
        source = f"\nSource: {profile.source}" if profile.source else ""
        return f"{profile.model}, {profile.dtype}, {profile.seq_len:,} tokens a sample{source}"

    @property
    def misfit(self) -> str:
        """Why the loaded profile is not used; '' if it is."""
        try:
            why = self.settings.misfit(self.settings.workload())
        except HetplannerError:  # the side bar tells
            return ""
        return f"Not used: {_of_page(why)}" if why else ""

    @property
    def sources(self) -> str:
        """Where the compute seconds come from, by kind of device; '' where there is no problem yet."""
        try:
            return sources_text(self.settings.problem())
        except HetplannerError:
            return ""

    @property
    def collectives_use(self) -> str:
        """Which numbers use the measured collectives; '' where none were measured, or the profile is not used."""
        profile = self.settings.profile
        return COLLECTIVES_USE if profile is not None and profile.collectives and not self.misfit else ""

    def table(self) -> tuple[list[str], list[list[str]], str]:
        """Head and first rows of the loaded profile's layers, and how many more there are, in words."""
        profile = self.settings.profile
        if profile is None:
            return [], [], ""
        more = len(profile.rows) - MAX_SHOWN
        return *layer_table(profile, MAX_SHOWN), f"… and {more:,} more" if more > 0 else ""


def _of_page(text: str) -> str:
    """A remedy in the page's terms."""
    for option, words in _OPTIONS.items():
        text = text.replace(option, words)
    return text
