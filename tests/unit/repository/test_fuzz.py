"""Every reader is known to the fuzz, and damaged files of every kind are read or refused in a line that names them."""

import pytest

from tests.support.files.fuzz import fuzz
from tests.support.files.readers import READERS

CASES = 24
SEED = 1


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_valid_files_are_read(reader, tmp_path):
    for name, content in reader.files().items():
        path = tmp_path / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o600)
    reader.read(tmp_path)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_damaged_files_are_read_or_refused_in_a_line(reader):
    found = fuzz(reader, range(round(CASES * reader.share) + 1), SEED)
    assert [failure.text for failure in found.others] == []
    assert [failure.text for failure in found.unforeseen] == []
