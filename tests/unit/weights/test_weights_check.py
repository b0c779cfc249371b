"""Model folders that are not what a plan needs: one line each, before any step."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from hetplanner.errors import InvalidInput
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.resuming import check_init_from
from hetplanner.weights.check import check_weights
from hetplanner.weights.header import read_header
from hetplanner.workload.capturing.capture import capture_config
from hetplanner.workload.huggingface import workload_from_config
from hetplanner.workload.workload import Workload
from tests.support.models import model_folders
from tests.support.models.captured_models import captured_here
from tests.support.plans.factories import swarm_plan

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model_folders.model_folder(tmp_path / "model", "llama")


@pytest.fixture
def workload(folder: Path) -> Workload:
    return workload_from_config(folder, micro_batch=2, seq_len=16, dtype="float32")


def shards(folder: Path) -> list[Path]:
    found = sorted(folder.glob("model-*.safetensors"))
    assert len(found) > 2
    return found


def change_index(folder: Path, change: Callable[[dict], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def change_tensor(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    file = folder / json.loads((folder / INDEX).read_text())["weight_map"][name]
    tensors = load_file(file)
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, file)


def cut_shard(folder: Path) -> None:
    os.truncate(shards(folder)[1], shards(folder)[1].stat().st_size - 4)


def cut_header(folder: Path) -> None:
    os.truncate(shards(folder)[1], 40)


def lose_shard(folder: Path) -> None:
    shards(folder)[1].unlink()


def point_outside(folder: Path) -> None:
    (folder.parent / "other.safetensors").write_bytes(shards(folder)[0].read_bytes())
    change_index(folder, lambda homes: homes.update({"model.norm.weight": "../other.safetensors"}))


def exchange_shards(folder: Path) -> None:
    first, second, *_ = shards(folder)
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def only_pickles(folder: Path) -> None:
    for path in (*shards(folder), folder / INDEX):
        path.unlink()
    torch.save({}, folder / "pytorch_model.bin")


def only_config(folder: Path) -> None:
    for path in (*shards(folder), folder / INDEX):
        path.unlink()


def extra_tensor(folder: Path) -> None:
    first = shards(folder)[0]
    save_file(load_file(first) | {"adapter.weight": torch.ones(3, 3)}, first)
    change_index(folder, lambda homes: homes.update({"adapter.weight": first.name}))


def lose_tensor(folder: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    file = folder / json.loads((folder / INDEX).read_text())["weight_map"][name]
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, file)
    change_index(folder, lambda homes: homes.pop(name))


def many_words(folder: Path) -> None:
    vocab = {f"w{i}": i for i in range(96)}
    added = [{"id": 96, "content": "<pad>"}]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": added}))


def reshape(folder: Path) -> None:
    change_tensor(folder, "model.layers.0.mlp.up_proj.weight", lambda tensor: tensor.T)


def to_integers(folder: Path) -> None:
    change_tensor(folder, "model.norm.weight", lambda tensor: tensor.to(torch.int8))


def to_doubles(folder: Path) -> None:
    change_tensor(folder, "model.norm.weight", lambda tensor: tensor.double())


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut shard": (cut_shard, r"model-0000\d-of-0000\d\.safetensors: is cut off: .* take a new copy"),
    "cut header": (cut_header, r"is no safetensors file, or cut off in its header"),
    "lost shard": (lose_shard, r"file 'model-0000\d-of-0000\d\.safetensors' is missing from .*; download the folder"),
    "path outside": (point_outside, r"file '\.\./other\.safetensors' must be the name of a \.safetensors file in"),
    "exchanged shards": (exchange_shards, r"does not fit model\.safetensors\.index\.json: tensor '.*' is not in"),
    "pickles only": (only_pickles, r"holds pickled weights only, which can run code; convert them .*save_pretrained"),
    "config only": (only_config, r"holds neither model\.safetensors nor model\.safetensors\.index\.json; save"),
    "extra tensor": (extra_tensor, r"tensor 'adapter\.weight' \[3, 3\] is not in the plan's model"),
    "lost tensor": (lose_tensor, r"tensor 'model\.layers\.1\.mlp\.up_proj\.weight' of the plan's model is missing"),
    "many words": (many_words, r"its tokenizer has 97 words, the model only 96"),
    "shape": (reshape, r"up_proj\.weight' has shape \[32, 48\], the plan's model \[48, 32\]"),
    "integers": (to_integers, r"'model\.norm\.weight' is of type I8, and must be F32 or BF16 or F16"),
    "doubles": (to_doubles, r"'model\.norm\.weight' is of type F64, and must be F32 or BF16 or F16"),
    "heads": (
        lambda f: change_config(f, num_attention_heads=8, head_dim=4),
        r"is another model than the plan's: heads is 8, .* 4",
    ),
    "layers": (lambda f: change_config(f, num_hidden_layers=3), r"another model than the plan's: layers is 3"),
    "quantized": (lambda f: change_config(f, quantization_config={}), r"holds quantized weights"),
    "no config": (lambda f: (f / "config.json").unlink(), r"config\.json: no such file"),
    "no map": (lambda f: (f / INDEX).write_text("{}"), r"weight_map: must give a file for every tensor"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_in_one_line(name: str, folder: Path, workload: Workload) -> None:
    check_weights(str(folder), workload)
    spoil, message = BAD[name]
    spoil(folder)
    with pytest.raises(InvalidInput, match=message) as refused:
        check_weights(str(folder), workload)
    assert "\n" not in str(refused.value)


def test_a_config_that_lies_about_shapes_is_refused(folder: Path) -> None:
    change_config(folder, intermediate_size=40)
    lied_to = workload_from_config(folder, micro_batch=2, seq_len=16, dtype="float32")
    with pytest.raises(InvalidInput, match=r"has shape \[.*48.*\], the plan's model \[.*40.*\]"):
        check_weights(str(folder), lied_to)


def test_a_captured_model_knows_its_config(folder: Path) -> None:
    captured = capture_config(folder, micro_batch=2, seq_len=16)
    check_weights(str(folder), captured)
    change_config(folder, num_attention_heads=8, num_key_value_heads=4)
    with pytest.raises(InvalidInput, match="another model than the plan's: num_attention_heads is 8, the plan has 4"):
        check_weights(str(folder), captured)


def test_other_shapes_of_our_own_are_no_plain_transformer(folder: Path, workload: Workload) -> None:
    shared = workload.replace(transformer=workload.transformer.replace(shared_layers=2))
    with pytest.raises(InvalidInput, match="holds a plain transformer, and the plan's model has shared layers"):
        check_weights(str(folder), shared)


def test_a_folder_is_checked_for_a_swarm_too(folder: Path, workload: Workload) -> None:
    fits = swarm_plan([1, 1], [workload.boundaries[1]], workload=workload)
    check_init_from(fits, TrainConfig(init_from=str(folder)), is_here=True)
    with pytest.raises(InvalidInput, match="another model than the plan's"):
        check_init_from(swarm_plan([1, 1], [3]), TrainConfig(init_from=str(folder)), is_here=True)


def test_a_missing_folder_is_refused(workload: Workload, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nothing: does not exist; give a folder"):
        check_weights(str(tmp_path / "nothing"), workload)


def header(path: Path, text: bytes, length: int | None = None, data: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.mark.parametrize(
    ("text", "data", "message"),
    [
        (b"[]", b"", "header must be a JSON object"),
        (b"{", b"", "not JSON"),
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', b"1234", "does not fit its 4 bytes"),
        (b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', b"1234", "greater than or equal to 0"),
        (b'{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,4]}}', b"1234", "element type 'F4' is unknown"),
        (b'{"a":{"dtype":"I8","shape":[4],"data_offsets":[4,8]}}', b"12345678", "overlaps another or leaves a hole"),
        (b'{"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}', b"12345", "is too long"),
        (b'{"a":{"dtype":"I8","shape":[4],"data_offsets":[4,0]}}', b"1234", "does not fit its -4 bytes"),
    ],
)
def test_a_header_is_held_to_the_format(text: bytes, data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_header(header(tmp_path / "x.safetensors", text, data=data))


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    path = header(tmp_path / "x.safetensors", b"{}", length=2**31)
    os.truncate(path, 2**32)  # sparse
    with pytest.raises(InvalidInput, match="its header must be at most"):
        read_header(path)


def test_a_constant_of_the_model_must_have_its_values(tmp_path: Path) -> None:
    sizes = {f"{side}_{what}": size for side in ("encoder", "decoder")
             for what, size in (("layers", 1), ("attention_heads", 4), ("ffn_dim", 32))}  # fmt: skip
    config = transformers.BartConfig(vocab_size=96, d_model=32, max_position_embeddings=24, **sizes)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "bart")
    with captured_here():
        workload = capture_config(tmp_path / "bart", micro_batch=1, seq_len=8)
    assert "final_logits_bias" not in check_weights(str(tmp_path / "bart"), workload).parts
    model.final_logits_bias.fill_(0.5)
    model.save_pretrained(tmp_path / "bart")
    with pytest.raises(InvalidInput, match="'final_logits_bias' is a constant, which has other values"):
        check_weights(str(tmp_path / "bart"), workload)


def test_experts_that_the_workload_lacks_are_named(tmp_path: Path) -> None:
    path = model_folders.model_folder(tmp_path / "model", "mixtral")
    with captured_here():
        workload = capture_config(path, micro_batch=2, seq_len=16)
    known = workload.huggingface
    assert known is not None
    for name, patterns in (("lm_head.weight", ("a.*",)), ("model.layers.0.mlp.experts.down_proj", ("a.*",) * 5)):
        changed = workload.replace(huggingface=known.replace(stored_experts={name: patterns}))
        with pytest.raises(InvalidInput, match=r"is no weight of experts of \d parts each; capture the model again"):
            check_weights(str(path), changed)
    change_index(path, lambda names: names.pop("model.layers.0.block_sparse_moe.experts.1.w3.weight"))
    with pytest.raises(InvalidInput, match=r"experts\.1\.w3\.weight"):
        check_weights(str(path), workload)
