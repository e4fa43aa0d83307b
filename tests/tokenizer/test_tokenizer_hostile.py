"""Hostile vocabularies: each key in turn missing, of another type, out of range or of another length.

Oracle: loading a vocabulary either raises a typed error, or gives a tokenizer that encodes any text.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from quire.errors import QuireError
from quire.gguf import GGUFReader, GGUFWriter
from quire.tokenizer import Tokenizer

VOCABULARIES = ["bert-bge", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "starcoder"]
N_TOKENS = 600  # the first tokens of each vocabulary
Value = tuple[object, str]

HOSTILE: list[Value] = [
    (0, "u32"), (1, "u32"), (3, "u32"), (2**31 - 1, "u32"), (2**32 - 1, "u32"), (2**63, "u64"), (-1, "i32"),
    (0.0, "f32"), (float("nan"), "f32"), (float("inf"), "f32"), ("x", "string"), (True, "bool"), ([1, 2], "u32[]"),
    ([], "u32[]"), (["a"], "string[]"), ([float("nan")], "f32[]"), (None, ""),
]  # fmt: skip
HOSTILE_TOKENS: list[Value] = [
    ([""] * N_TOKENS, "string[]"), (["a"] * N_TOKENS, "string[]"), (["<0x-1>", "<0xZZ>", "<0x100>"] * 200, "string[]"),
]  # fmt: skip
TEXTS = ["Hello world é你 <s></s><|im_start|> 123  \n", "", "\ud7ff \U0001f600" * 3]


def small_vocabulary(path: Path) -> dict[str, Value]:
    metadata = GGUFReader(path).metadata
    keys: dict[str, Value] = {}
    for key in metadata:
        kind = metadata.type_of(key)
        value: object = list(metadata.strings(key)) if kind == "string[]" else metadata[key]
        if kind.endswith("[]"):
            value = list(value)[: N_TOKENS // 2 if key.endswith("merges") else N_TOKENS]  # type: ignore[call-overload]
        if key.endswith("_token_id") and int(value) >= N_TOKENS:  # type: ignore[call-overload]
            value = 5
        if key.startswith("tokenizer."):
            keys[key] = (value, kind)
    return keys


def variants(key: str, value: Value) -> list[Value]:
    """The hostile values of a key."""
    others = list(HOSTILE)
    if isinstance(value[0], list):
        others += [(value[0][:-1], value[1]), (value[0] + value[0][:1], value[1])]
    return others + (HOSTILE_TOKENS if key == "tokenizer.ggml.tokens" else [])


def use(path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(path)
    for text in TEXTS:
        tokenizer.decode(tokenizer.encode(text))
        tokenizer.encode(text, parse_special=True)
    tokenizer.decode([0, 1, 2, N_TOKENS - 1])
    assert tokenizer.all_token_bytes()


@pytest.mark.parametrize("name", VOCABULARIES)
def test_hostile_keys_are_errors_or_load(shared: Path, tmp_path: Path, name: str) -> None:
    source = shared / "vocab" / f"ggml-vocab-{name}.gguf"
    if not source.exists():
        pytest.skip(f"{source.name} is not there")
    keys, out = small_vocabulary(source), tmp_path / "x.gguf"

    def write(changed: dict[str, Value]) -> None:
        with GGUFWriter(out, "llama") as writer:
            for key, (value, kind) in (keys | changed).items():
                if value is not None:
                    writer.set(key, value, kind)  # type: ignore[arg-type]

    write({})
    use(out)
    refusals = []
    for key, value in keys.items():
        for other in variants(key, value):
            write({key: other})
            try:
                use(out)
            except QuireError as error:
                refusals.append(str(error))
    assert len(refusals) > 4 * len(keys)
    assert all(text.startswith("[") for text in refusals)
