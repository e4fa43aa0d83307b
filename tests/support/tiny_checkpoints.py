"""Random tiny checkpoints of every architecture, the same on every machine: weights depend only on names.

The tests use them, and tests/references/make_references.py, which computes their answers with transformers and writes a
file in references/models for each, with the shapes of its tensors.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from siblings import sibling_of

REFERENCES = Path(__file__).resolve().parents[1] / "references" / "models"
N_VOCAB = 272  # 256 bytes, 3 special tokens, the rest unused
# The source text of encoder-decoder models, while the decoder's text varies.
SOURCE = [(7 * i + 3) % 256 for i in range(45)]

_COMMON = {
    "vocab_size": N_VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "bos_token_id": 256, "eos_token_id":
    257, "hidden_act": "silu", "torch_dtype": "float32",
}  # fmt: skip


TINY = Path(__file__).resolve().parents[1] / "tiny"
# Names of references/models, with the fields of their configurations that differ from the common ones.
# Architectures that read sounds, without a tiny configuration here: tests/media/test_whisper_live.py has one.
HEARING = {"whisper"}
CONFIGS: dict[str, dict[str, object]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(TINY.glob("*.json"))
}
KEPT_NULLS = ("q_lora_rank",)  # null differs from absence
# Tensors that transformers saves although they follow from the configuration.
MADE_TENSORS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
# Prefixes of models that add 1 to the weights of norms, and prefixes of exceptions.
ONE_IS_ADDED, NONE_IS_ADDED = (
    ("gemma", "vaultgemma", "recurrent-gemma", "qwen35", "qwen3next", "step35", "muse", "minimax-m3", "plamo3"),
    ("gemma3n", "gemma4"),
)


def class_of(name: str) -> str:
    """Return transformers' class."""
    (kind,) = CONFIGS[name]["architectures"]  # type: ignore[misc]
    return str(kind)


def config_of(name: str) -> dict[str, object]:
    """Return the checkpoint's config.json without null fields, except ``KEPT_NULLS``."""
    fields = {**_COMMON, **CONFIGS[name]}
    return {key: value for key, value in fields.items() if value is not None or key in KEPT_NULLS}


def shapes_of(name: str) -> dict[str, list[int]]:
    """Return the shapes of the tensors that transformers saves for the checkpoint or its sibling."""
    with np.load(REFERENCES / f"{name}.npz") as stored:
        shapes: dict[str, list[int]] = json.loads(str(stored["shapes"]))
    return shapes


def weight_of(checkpoint: str, tensor: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return the values of a tensor, a function of its name."""
    rng = np.random.default_rng(zlib.crc32(f"{checkpoint}/{tensor}".encode()))
    values = np.asarray(rng.standard_normal(shape))
    if tensor.endswith("tid2eid"):  # experts of each token, of at least twice as many
        return rng.standard_normal((shape[0], 2 * shape[1])).argsort(axis=1)[:, : shape[1]]  # type: ignore[return-value]
    if "norm" in tensor.replace("norm_attn_norm.attn", "").lower():  # the name of DBRX's attention
        is_added = checkpoint.startswith(ONE_IS_ADDED) and not checkpoint.startswith(NONE_IS_ADDED)
        return (0.1 * values + (0.0 if is_added and "linear_attn" not in tensor else 1.0)).astype(np.float32)
    if tensor.endswith("bias"):
        return (0.2 * values).astype(np.float32)
    size = 0.5 if "adapter_list" in tensor else 1.5  # Zamba 2's: beside the matrices that they change
    scale = 0.3 if "embed" in tensor else size * (shape[-1] if shape else 1) ** -0.5
    return (scale * values).astype(np.float32)


def byte_characters() -> list[str]:
    """Return the printable character for each byte (Radford et al. 2019)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def tokenizer_json() -> dict[str, object]:
    """Return a byte-level BPE without merges, in which every byte is a token."""
    vocab = {character: i for i, character in enumerate(byte_characters())}
    special = [{"id": 256 + i, "content": text, "special": True} for i, text in enumerate(("<s>", "</s>", "<pad>"))]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    return {
        "version": "1.0", "added_tokens": special, "normalizer": None, "pre_tokenizer": byte_level, "post_processor":
        None, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }  # fmt: skip


def stored_as(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """Return numbers as safetensors stores them; for BF16, they must be exactly representable."""
    if values.dtype.kind == "i":
        return values
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16) if dtype == "F16" else values


def write_safetensors(path: Path, tensors: dict[str, npt.NDArray[np.float32]], dtype: str = "F32") -> None:
    """Write tensors as a safetensors file of F32, F16 or BF16."""
    header, offset = {}, 0
    tensors = {name: stored_as(values, dtype) for name, values in tensors.items()}
    for name, values in tensors.items():
        kind = "I64" if values.dtype.kind == "i" else dtype
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(values.tobytes() for values in tensors.values()))


def write_checkpoint(folder: Path, name: str, shapes: dict[str, list[int]] | None = None, n_shards: int = 1) -> None:
    """Write a checkpoint folder like transformers; ``shapes`` by tensor name default to those of the reference."""
    shapes = shapes_of(name) if shapes is None else shapes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(name)))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False})
    )
    tensors = {tensor: weight_of(name, tensor, tuple(shape)) for tensor, shape in shapes.items()}
    if sibling := sibling_of(name, class_of(name)):
        tensors = sibling.published(config_of(name), tensors)
    if n_shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    where = {}
    for i in range(n_shards):
        shard = f"model-{i + 1:05}-of-{n_shards:05}.safetensors"
        names = list(tensors)[i::n_shards]
        write_safetensors(folder / shard, {tensor: tensors[tensor] for tensor in names})
        where |= dict.fromkeys(names, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def write_reranker(folder: Path) -> None:
    """Write a classifier of pairs with one score, whose tokenizer joins the two texts."""
    write_checkpoint(folder, "xlm-roberta-rank")
    words = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ends = {"sep": ["</s>", 257], "cls": ["<s>", 256], "trim_offsets": True, "add_prefix_space": False}
    words["post_processor"] = {"type": "RobertaProcessing", **ends}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    words["added_tokens"] = [{**token, **plain} for token in words["added_tokens"]]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    words["pre_tokenizer"] = words["decoder"] = level
    (folder / "tokenizer.json").write_text(json.dumps(words))
