"""Mistral's tekken.json: ids against a search by ranks, prompts against mistral-common's."""

from __future__ import annotations

import base64
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from quire.chat.template import ChatTemplate
from quire.errors import LoadError
from quire.tokenizer import Tokenizer
from quire.tokenizer.from_gguf import vocabulary_of_metadata
from quire.tokenizer.mistral_chat import mistral_template
from quire.tokenizer.tekken import read_tekken, special_texts
from token_texts import random_texts

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
N_MARKS = 40


@cache
def words() -> list[bytes]:
    """All bytes, and pieces that grow from earlier ones, so that many have several splits."""
    rng = random.Random(11)
    found = [bytes([byte]) for byte in range(256)]
    known = set(found)
    texts = [text.encode() for text in random_texts(200, seed=11)] + [b"ababaabbaaab" * 3, b"aaaaaaaaaaaa"]
    while len(found) < 900:
        text = rng.choice(texts)
        begin = rng.randrange(len(text) + 1)
        piece = text[begin : begin + rng.randint(2, 5)]
        if (
            len(piece) > 1
            and piece not in known
            and any(piece[:i] in known and piece[i:] in known for i in range(1, len(piece)))
        ):
            known.add(piece)
            found.append(piece)
    return found


def tekken(**changed: Any) -> dict[str, Any]:
    vocab = [{"rank": i, "token_bytes": base64.b64encode(word).decode()} for i, word in enumerate(words())]
    n = len(vocab) - 5  # as in published files, models lack the last ones
    config = {
        "pattern": PATTERN,
        "default_vocab_size": n + N_MARKS,
        "default_num_special_tokens": N_MARKS,
        "version": "v3",
    }
    return {"config": {**config, **changed}, "vocab": vocab}


def write(folder: Path, values: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tekken.json").write_text(json.dumps(values))
    return folder


def by_rank(word: bytes) -> list[int]:
    """Join the pair that makes the token of the lowest rank, the leftmost first, until none is left."""
    ranks = {text: rank for rank, text in enumerate(words()[:-5])}
    if word in ranks:
        return [ranks[word] + N_MARKS]
    parts = [bytes([byte]) for byte in word]
    while len(parts) > 1:
        rank, at = min((ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1))
        if rank == len(ranks):
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [ranks[part] + N_MARKS for part in parts]


def test_ids_equal_those_of_a_search_by_ranks(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(write(tmp_path / "folder", tekken()))
    again = vocabulary_of_metadata(tokenizer.vocabulary.gguf_metadata())
    assert again.merges == tokenizer.vocabulary.merges
    rng = random.Random(2)
    for _ in range(300):  # one word each: the splitting of texts is that of published files, which has its own tests
        word = "".join(rng.choice("abAe") for _ in range(rng.randint(1, 14))).lower()
        assert list(tokenizer.encode(word)) == [1, *by_rank(word.encode())]
    for text in random_texts(40, seed=3):
        ids = list(tokenizer.encode(text))
        assert tokenizer.decode(ids[1:]) == text


def test_control_tokens_come_first_and_are_never_read_from_text(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", tekken())
    marks = special_texts(folder / "tekken.json")
    assert (marks[:5], marks[19], marks[20], marks[39]) == (
        ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], "[TOOL_CONTENT]", "<SPECIAL_20>", "<SPECIAL_39>",
    )  # fmt: skip
    tokenizer = Tokenizer.from_pretrained(folder)
    assert min(tokenizer.encode("[INST] <s>")[1:]) >= N_MARKS
    listed = tekken()
    listed["special_tokens"] = [
        {"rank": i, "token_str": text, "is_control": True} for i, text in reversed([*enumerate(("<s>", "</s>", "[X]"))])
    ]
    vocabulary = read_tekken(write(folder, listed) / "tekken.json")
    assert list(vocabulary.texts[:4]) == ["<s>", "</s>", "[X]", "<SPECIAL_3>"]
    assert vocabulary.special_ids == {"bos": 0, "eos": 1}
    listed["special_tokens"] = [{"rank": 0, "token_str": None}, {"rank": 1, "token_str": "<s>"}]
    assert read_tekken(write(folder, listed) / "tekken.json").special_ids == {"bos": 1}


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"config": None}, "config is"),
        ({"config": {"default_num_special_tokens": 40}}, "default_vocab_size"),
        ({"config": {"default_num_special_tokens": 1 << 23}}, "default_num_special_tokens is 8388608"),
        ({"vocab": [{"rank": 0, "token_bytes": "AA=="}]}, "vocab does not list"),
        ({"vocab": [{"rank": i, "token_bytes": "AA=="} for i in range(900)]}, "a token twice"),
        ({"vocab": [{"rank": 1, "token_bytes": "AA=="} for i in range(900)]}, "another rank"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"} for i in range(900)]}, "not base64"),
        ({"vocab": [{"rank": 0, "token_bytes": "AAAA" * 1366} for i in range(900)]}, "token 0 has 4098 bytes"),
        ({"special_tokens": [{"rank": 1, "token_str": "a"}]}, "ranks of special_tokens"),
        ({"special_tokens": [{"rank": i, "token_str": "a"} for i in range(2)]}, "different texts"),
        ({"special_tokens": [{"rank": i, "token_str": f"<{i}>"} for i in range(41)]}, "different texts"),
    ],
)
def test_malformed_files_are_named(change: dict[str, object], pattern: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", {**tekken(), **change})
    with pytest.raises(LoadError, match=pattern):
        Tokenizer.from_pretrained(folder)


TOOL = {
    "type": "function",
    "function": {
        "name": "weather", "description": "Wéather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Use tools."},
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant", "content": "",
        "tool_calls": [
            {"id": f"abcdefgh{i}", "type": "function",
             "function": {"name": "weather", "arguments": json.dumps({"city": city}, ensure_ascii=False)}}
            for i, city in (("i", "Paris"), ("j", "Łódź"))
        ],
    },
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": "sunny, 3°"},
    {"role": "tool", "tool_call_id": "abcdefghj", "name": "weather", "content": "rain"},
    {"role": "assistant", "content": "Sunny."},
    {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "now?"}]},
]  # fmt: skip
_TOOLS = f"[AVAILABLE_TOOLS]{json.dumps([TOOL], ensure_ascii=False)}[/AVAILABLE_TOOLS]"
_LISTED = (
    '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, '
    '{"name": "weather", "arguments": {"city": "Łódź"}, "id": "abcdefghj"}]</s>'
)
_RESULTS = (
    "[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]sunny, 3°[/TOOL_RESULTS]"
    "[TOOL_RESULTS]abcdefghj[TOOL_CONTENT]rain[/TOOL_RESULTS]Sunny.</s>"
)
_SYSTEM = "<s>[SYSTEM_PROMPT]Use tools.[/SYSTEM_PROMPT]"
# The texts of mistral-common's ids for the same messages and tools.
PROMPTS = {
    "v3": (
        f"<s>[INST]Weather?[/INST]{_LISTED}"
        '[TOOL_RESULTS]{"content": "sunny, 3°", "call_id": "abcdefghi"}[/TOOL_RESULTS]'
        '[TOOL_RESULTS]{"content": "rain", "call_id": "abcdefghj"}[/TOOL_RESULTS]Sunny.</s>'
        f"{_TOOLS}[INST]Use tools.\n\nAnd\n\nnow?[/INST]"
    ),
    "v7": f"{_SYSTEM}[INST]Weather?[/INST]{_LISTED}{_RESULTS}{_TOOLS}[INST]And\n\nnow?[/INST]",
    "v11": (
        f'{_SYSTEM}[INST]Weather?[/INST][TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{{"city": "Paris"}}'
        f'[TOOL_CALLS]weather[CALL_ID]abcdefghj[ARGS]{{"city": "Łódź"}}</s>{_RESULTS}{_TOOLS}[INST]And\n\nnow?[/INST]'
    ),
    "v13": (
        f'{_SYSTEM}{_TOOLS}[INST]Weather?[/INST][TOOL_CALLS]weather[ARGS]{{"city": "Paris"}}'
        '[TOOL_CALLS]weather[ARGS]{"city": "Łódź"}</s>[TOOL_RESULTS]sunny, 3°[/TOOL_RESULTS]'
        "[TOOL_RESULTS]rain[/TOOL_RESULTS]Sunny.</s>[INST]And\n\nnow?[/INST]"
    ),
}


@pytest.mark.parametrize("version", list(PROMPTS))
def test_prompts_equal_those_of_mistral_common(version: str) -> None:
    source = mistral_template(version, ["[IMG]"])
    assert source is not None
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    assert template.render(HISTORY, tools=[TOOL]) == PROMPTS[version]


def test_thoughts_are_written_where_the_tokenizer_has_marks_for_them() -> None:
    question = {"role": "user", "content": "2+2?"}
    turn = {"role": "assistant", "content": "4", "reasoning_content": "hm"}
    for marks, thought in ((["[THINK]"], "[THINK]hm[/THINK]"), ([], "")):
        source = mistral_template("v13", marks)
        assert source is not None
        rendered = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render([question, turn])
        assert rendered == f"<s>[INST]2+2?[/INST]{thought}4</s>"
    assert mistral_template("v99", []) is None
