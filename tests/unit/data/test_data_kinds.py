"""Every kind of data: what it gives, which workload it fits, and what is said of files that are broken."""

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from PIL import Image

from hetplanner.data import images, text
from hetplanner.data.interface import is_held_out
from hetplanner.data.need import ImageNeed, TokenNeed, need_of
from hetplanner.data.registry import KINDS, absolute_data, check_data, open_data
from hetplanner.errors import InvalidInput
from hetplanner.workload.workload import Workload
from tests.support.plans.factories import image_workload, tiny_workload
from tests.support.processes.imported import imported

TEXT = "So long as the river flows, stones grow round. "
GPT = tiny_workload()  # bytes, sequences of 32
PICTURES = image_workload((3, 12, 16), classes=3)


def make_texts(folder: Path) -> Path:
    folder.mkdir()
    for i in range(60):
        (folder / f"{i}.txt").write_text(f"<{i}>" + TEXT * 3)
    return folder


def make_tokens(folder: Path) -> Path:
    folder.mkdir()
    np.arange(5000, dtype="<u2").__mod__(256).tofile(folder / "train.bin")
    np.arange(400, dtype="<u2").__mod__(256).tofile(folder / "val.bin")
    return folder


def make_dataset(folder: Path) -> Path:
    rows = [f"<{i}>" + TEXT for i in range(40)] + [None, ""]
    Dataset.from_dict({"text": rows, "stars": list(range(42))}).save_to_disk(folder)
    return folder


def make_images(folder: Path) -> Path:
    for label, colour in enumerate(("blue", "green", "red")):
        (folder / colour).mkdir(parents=True)
        for i in range(12):
            picture = np.zeros((20, 30, 3), dtype=np.uint8)
            picture[..., 2 - label] = 200 + i
            Image.fromarray(picture).save(folder / colour / f"{i}.png")
    return folder


def make_digits(folder: Path) -> str:
    return "digits"


CASES: list[tuple[str, Callable[[Path], Any], Workload]] = [
    ("text", make_texts, GPT),
    ("tokens", make_tokens, GPT),
    ("datasets", make_dataset, GPT),
    ("images", make_images, PICTURES),
    ("digits", make_digits, image_workload()),
]


def test_every_kind_is_tried() -> None:
    assert {name for name, _, _ in CASES} == {kind.name for kind in KINDS}


@pytest.mark.parametrize(("name", "make", "workload"), CASES, ids=[case[0] for case in CASES])
def test_a_kind_gives_what_the_workload_reads(name: str, make: Any, workload: Workload, tmp_path: Path) -> None:
    data = str(make(tmp_path / "data"))
    check_data(data, workload)
    source, again = open_data(data, workload), open_data(data, workload)
    need = need_of(workload)
    for split in ("train", "validation"):
        num = source.num_samples(split)
        assert num > 0
        ids_B = np.array([0, num - 1, num // 2])
        inputs, labels = source.inputs(split, ids_B), source.labels(split, ids_B)
        assert labels.dtype == np.int64
        if isinstance(need, TokenNeed):
            assert inputs.shape == labels.shape == (3, need.seq_len)
            assert inputs.dtype == np.int64
            assert np.array_equal(inputs[:, 1:], labels[:, :-1])
        else:
            assert inputs.shape == (3, *need.shape)
            assert inputs.dtype == np.float32
            assert labels.shape == (3,)
            assert -1 <= inputs.min() < inputs.max() <= 1
        assert np.array_equal(again.inputs(split, ids_B), inputs)
    assert source.num_samples("train") > 3 * source.num_samples("validation")


def test_without_data_a_model_reads_what_every_machine_has() -> None:
    assert open_data(None, GPT).num_samples("train") > 1000
    assert open_data(None, image_workload()).num_samples("train") == 1618


def test_words_stay_and_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_data("digits") == "digits"
    assert absolute_data(None) is None
    assert absolute_data("texts") == str(tmp_path / "texts")


# -- text ---------------------------------------------------------------------------------------------


def _all(source: Any) -> bytes:
    parts = [source.inputs(split, np.arange(source.num_samples(split))).astype(np.uint8).tobytes()
             for split in ("train", "validation")]  # fmt: skip
    return b"".join(parts)


def test_text_is_read_file_by_file(tmp_path: Path) -> None:
    folder = make_texts(tmp_path / "data")
    (folder / "image.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("secret")
    text = _all(open_data(str(folder), GPT))
    assert b"PNG" not in text
    assert b"secret" not in text
    assert sum(f"<{i}>".encode() in text for i in range(60)) > 55, "the last window of a split is cut off"
    assert b"\0" in text


def test_windows_follow_each_other_over_the_borders_of_files(tmp_path: Path) -> None:
    first, second = [n for n in ("a.txt", "b.txt", "c.txt", "d.txt") if not is_held_out(n)][:2]
    (tmp_path / first).write_bytes(bytes(range(1, 51)))
    (tmp_path / second).write_bytes(bytes(range(51, 251)))
    (tmp_path / "empty.txt").touch()
    source = open_data(str(tmp_path), GPT)
    text = bytes([*range(1, 51), 0, *range(51, 251)])
    windows_NT = source.inputs("train", np.arange(source.num_samples("train")))
    assert windows_NT.astype(np.uint8).tobytes() == text[: windows_NT.size]


def test_one_file_is_split_in_itself(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(TEXT * 100)
    source = open_data(str(tmp_path / "book.txt"), GPT)
    assert source.num_samples("train") == (len(TEXT) * 90 - 1) // 32
    assert source.num_samples("validation") == (len(TEXT) * 10 - 1) // 32


def test_a_file_that_shrinks_is_named(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(TEXT * 100)
    source = open_data(str(tmp_path), GPT)
    (tmp_path / "book.txt").write_text(TEXT)
    with pytest.raises(InvalidInput, match=r"book.txt got shorter"):
        source.inputs("train", np.array([20]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "data is neither a file nor a folder; workload .* takes .*a folder of text files"),
        (lambda p: p.mkdir(), r"data holds no text \(.c, .*; add some"),
        (lambda p: (p.mkdir(), (p / "a.txt").write_text("short")), "5 tokens .* fewer than one sequence .* --seq-len"),
        (lambda p: (p.mkdir(), (p / "a.txt").touch()), "holds no text"),
        (lambda p: p.write_bytes(b"PK\3\4"), "holds nothing that it reads"),
    ],
)
def test_bad_text_is_refused_with_the_remedy(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "data")
    with pytest.raises(InvalidInput, match=message):
        check_data(str(tmp_path / "data"), GPT)


def test_links_count_as_what_they_lead_to(tmp_path: Path) -> None:
    folder = make_texts(tmp_path / "data")
    sizes = open_data(str(folder), GPT).num_samples("train")
    for name, target in (("loop.txt", "loop.txt"), ("gone.txt", "nothing.txt"), ("up", "..")):
        (folder / name).symlink_to(target)
    assert open_data(str(folder), GPT).num_samples("train") == sizes
    before = set(text.text_files(folder))
    (folder / "link.txt").symlink_to(folder / "7.txt")
    assert set(text.text_files(folder)) - before == {str(folder / "link.txt")}


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_texts(tmp_path / "data")

    def refuse(path: str, *args: Any, **kwargs: Any) -> Any:  # chmod would not stop root
        if path.endswith("/7.txt"):
            raise PermissionError(13, "Permission denied")
        return open(path, *args, **kwargs)

    monkeypatch.setattr(text, "open", refuse, raising=False)
    with pytest.raises(InvalidInput, match=r"7\.txt cannot be read: Permission denied; make it readable"):
        check_data(str(folder), GPT)


# -- token files --------------------------------------------------------------------------------------


def test_tokens_are_mapped_and_validated_on_val_bin(tmp_path: Path) -> None:
    source = open_data(str(make_tokens(tmp_path / "data")), GPT)
    assert (source.num_samples("train"), source.num_samples("validation")) == (4999 // 32, 399 // 32)
    assert isinstance(source.train.ids, np.memmap)
    assert list(source.inputs("train", np.array([2]))[0]) == list(range(64, 96))


def test_wide_ids_say_so_in_a_json_file(tmp_path: Path) -> None:
    np.arange(1000, dtype="<u4").__mod__(256).tofile(tmp_path / "book.bin")
    info = {"format": "hetplanner/tokens@1", "dtype": "uint32", "vocab": 256}
    (tmp_path / "book.json").write_text(json.dumps(info))
    source = open_data(str(tmp_path / "book.bin"), GPT)
    assert list(source.labels("train", np.array([0]))[0]) == list(range(1, 33))
    (tmp_path / "book.json").write_text(json.dumps(info | {"vocab": 50257}))
    with pytest.raises(InvalidInput, match=r"book.json: vocab must be at most the 256 of workload .*, got 50257"):
        check_data(str(tmp_path / "book.bin"), GPT)
    (tmp_path / "book.json").write_text(json.dumps(info | {"dtype": "object"}))
    with pytest.raises(InvalidInput, match=r"book.json: dtype: .*'uint16' or 'uint32'"):
        check_data(str(tmp_path / "book.bin"), GPT)


def test_an_id_beyond_the_vocabulary_is_found_wherever_it_is(tmp_path: Path) -> None:
    ids = np.zeros(5000, dtype="<u2")
    ids[4321] = 256
    ids.tofile(tmp_path / "train.bin")
    message = "holds token id 256, but workload .* knows 0 to 255; take the model's own tokenizer"
    with pytest.raises(InvalidInput, match=message):
        check_data(str(tmp_path), GPT)
    source = open_data(str(tmp_path), GPT)  # a rank would meet it in its batch
    with pytest.raises(InvalidInput, match=message):
        source.inputs("train", np.array([4321 // 32]))


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "holds 0 tokens"), (b"123", "3 bytes, no whole number of uint16")]
)
def test_bad_token_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "train.bin").write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        check_data(str(tmp_path), GPT)


# -- saved data sets ----------------------------------------------------------------------------------


def test_texts_of_a_saved_data_set_are_joined(tmp_path: Path) -> None:
    text = _all(open_data(str(make_dataset(tmp_path / "data")), GPT))
    expected = b"\0".join(f"<{i}>{TEXT}".encode() for i in range(40))
    assert text[:1000] == expected[:1000]


def test_token_columns_win_over_text_and_order_is_kept(tmp_path: Path) -> None:
    rows = [list(range(i, i + i % 5)) for i in range(200)]
    whole = Dataset.from_dict({"input_ids": rows, "text": ["x" * 40] * 200})
    chosen = whole.select(range(199, -1, -1))  # an index over the rows
    DatasetDict(train=chosen, test=whole).save_to_disk(tmp_path / "data")
    source = open_data(str(tmp_path / "data"), GPT)
    flat = [token for row in rows[::-1] for token in row]
    assert list(source.inputs("train", np.array([3]))[0]) == flat[96:128]
    assert list(source.inputs("validation", np.array([0]))[0]) == [token for row in rows for token in row][:32]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"stars": [1, 2]}, r"has the columns stars \(int64\); none is called input_ids"),
        ({"input_ids": [[1], [300] * 99]}, "holds token id 300"),
        ({"text": ["a", "b"]}, "fewer than one sequence"),
    ],
)
def test_bad_data_sets_are_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    Dataset.from_dict(columns).save_to_disk(tmp_path / "data")
    with pytest.raises(InvalidInput, match=message):
        check_data(str(tmp_path / "data"), GPT)


def test_a_broken_data_set_is_refused_in_one_line(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data")
    arrow = next((tmp_path / "data").glob("*.arrow"))
    arrow.write_bytes(arrow.read_bytes()[:100])
    with pytest.raises(InvalidInput, match="cannot be read as a saved Hugging Face data set") as caught:
        check_data(str(tmp_path / "data"), GPT)
    assert "\n" not in str(caught.value)


# -- pictures -----------------------------------------------------------------------------------------


def test_classes_are_sub_folders_by_name(tmp_path: Path) -> None:
    source = open_data(str(make_images(tmp_path / "data")), PICTURES)
    for split in ("train", "validation"):
        ids_B = np.arange(source.num_samples(split))
        pictures, labels_B = source.inputs(split, ids_B), source.labels(split, ids_B)
        assert list(2 - pictures.mean(axis=(2, 3)).argmax(axis=1)) == list(labels_B)


def test_labels_decode_no_picture(tmp_path: Path) -> None:
    folder = make_images(tmp_path / "data")
    source = open_data(str(folder), PICTURES)
    for path in folder.rglob("*.png"):
        path.unlink()
    assert set(source.labels("train", np.arange(source.num_samples("train")))) == {0, 1, 2}


def test_digits_are_enlarged_to_the_programs_shape() -> None:
    small = open_data("digits", image_workload((1, 8, 8))).inputs("train", np.array([0]))[0]
    large = open_data("digits", image_workload((3, 24, 16))).inputs("train", np.array([0]))[0]
    assert large.shape == (3, 24, 16)
    assert np.array_equal(large[0], large[2])
    assert abs(large.mean() - small[:, :, 1:7].mean()) < 0.25


def _bomb() -> bytes:
    """A PNG of a few bytes that says it has 10^10 pixels."""
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(b"\0" * 1000))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_bomb(), r"5\.png has .* pixels, at most 50000000 are read; make it smaller"),
        (b"no picture", r"5\.png is no image"),
        (b"", r"5\.png is no image"),
    ],
)
def test_a_file_that_is_no_picture_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    folder = make_images(tmp_path / "data")
    (folder / "green" / "5.png").write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        check_data(str(folder), PICTURES)


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "webp"])
def test_a_truncated_picture_is_named(tmp_path: Path, suffix: str) -> None:
    folder = make_images(tmp_path / "data")
    path = folder / "red" / f"cut.{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InvalidInput, match=rf"cut\.{suffix} (cannot be decoded|is no image)"):
        check_data(str(folder), PICTURES)


def test_a_long_folder_is_checked_in_parts_spread_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_images(tmp_path / "data")
    decoded: list[Path] = []
    monkeypatch.setattr(images, "CHECKED_BYTES", 4 * (folder / "red" / "1.png").stat().st_size)
    monkeypatch.setattr(images, "_decoded", lambda path, need: decoded.append(path))
    check_data(str(folder), PICTURES)
    assert 3 <= len(decoded) <= 6
    assert len({path.parent for path in decoded}) > 1


# -- what fits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("hf_gpt2", TokenNeed("hf_gpt2", 16, 256)),
        ("tied_loss", TokenNeed("tied_loss", 5, 16)),
        ("hf_resnet", ImageNeed("hf_resnet", 1, 32, 32, 10)),
    ],
)
def test_a_captured_model_tells_its_need(name: str, need: TokenNeed | ImageNeed) -> None:
    from hetplanner.capture.assemble import capture_workload
    from tests.support.models.captured_models import FACTORIES

    assert need_of(capture_workload(FACTORIES[name], name)) == need


def test_a_program_tells_its_need() -> None:
    assert need_of(PICTURES) == ImageNeed("pictures", 3, 12, 16, 3)
    assert need_of(GPT) == TokenNeed(GPT.name, 32, 256)
    program = PICTURES.program.replace(inputs=(4, 5), inputs_dtype="float32")
    with pytest.raises(InvalidInput, match=r"no kind of data gives inputs float32 \[4, 5\]"):
        need_of(PICTURES.replace(program=program))
    with pytest.raises(InvalidInput, match="without a program"):
        need_of(PICTURES.replace(program=None))


@pytest.mark.parametrize(
    ("make", "workload", "message"),
    [
        (make_images, GPT, "holds no text"),
        (make_digits, GPT, "is the word digits .* does not read"),
        (make_tokens, PICTURES, r"is token ids in a \.bin file, .* give a folder with a sub-folder of images"),
        (make_texts, PICTURES, "holds nothing that it reads; workload pictures takes a folder with a sub-folder"),
        (make_images, image_workload((3, 8, 8), classes=2), "has 3 classes, but workload pictures tells 2 apart"),
        (make_digits, image_workload((1, 8, 8), classes=9), "digits has 10 classes"),
        (make_digits, image_workload((4, 8, 8)), "1 or 3 channels, its inputs have 4"),
        (make_texts, GPT.replace(transformer=GPT.transformer.replace(vocab=100)), "vocab must be at least 256"),
        (make_dataset, GPT.replace(transformer=GPT.transformer.replace(vocab=100)), "vocab must be at least 256"),
    ],
)
def test_data_that_does_not_fit_is_refused(tmp_path: Path, make: Any, workload: Workload, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_data(str(make(tmp_path / "data")), workload)


def test_checking_imports_no_torch() -> None:
    code = (
        "from hetplanner.data.registry import check_data; from tests.support.plans.factories import *;"
        "check_data(None, image_workload()); check_data(None, tiny_workload())"
    )
    assert imported(code, "torch") == []
