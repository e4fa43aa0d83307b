"""A checkpoint's tokenizer as GGUF keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LoadError, UnsupportedError
from .checkpoint import Fields, read_json

if TYPE_CHECKING:
    from ..gguf import GGUFWriter

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

# The published splitting patterns, by the name that files know them by.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST: "llama-bpe",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST: "qwen2",
}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id with their types, and the merges in order."""

    tokens: list[str]
    types: list[int]
    merges: list[str]
    pre: str


def _steps(pre_tokenizer: object) -> list[Mapping[str, object]]:
    if not isinstance(pre_tokenizer, dict):
        raise UnsupportedError("[convert] the tokenizer must be a byte-level BPE but has no pre_tokenizer")
    if pre_tokenizer.get("type") == "Sequence":
        inner = pre_tokenizer.get("pretokenizers")
        return [step for step in inner if isinstance(step, dict)] if isinstance(inner, list) else []
    return [pre_tokenizer]


def pre_tokenizer_name(pre_tokenizer: object) -> str:
    """GGUF's name for the way text is split.  UnsupportedError for one that it has none for."""
    steps = _steps(pre_tokenizer)
    kinds = [step.get("type") for step in steps]
    if not steps or kinds[-1] != "ByteLevel":
        raise UnsupportedError(f"[convert] the tokenizer must be a byte-level BPE but splits by {kinds}")
    if steps[-1].get("add_prefix_space"):
        raise UnsupportedError("[convert] 'add_prefix_space' of the tokenizer must be false but is true")
    own_split = bool(steps[-1].get("use_regex", True))
    if kinds == ["ByteLevel"] and own_split:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and own_split and steps[0].get("individual_digits"):
        return "starcoder"
    if kinds == ["Split", "ByteLevel"] and not own_split:
        pattern = steps[0].get("pattern")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        if (
            isinstance(regex, str)
            and regex in SPLITS
            and steps[0].get("behavior") == "Isolated"
            and not steps[0].get("invert")
        ):
            return SPLITS[regex]
    raise UnsupportedError(
        f"[convert] the tokenizer must split text in a known way (gpt-2, starcoder, {', '.join(SPLITS.values())})"
    )


def read_vocabulary(folder: Path, n_vocab: int) -> Vocabulary:
    """From ``tokenizer.json``; ids that it leaves out are filled with unused tokens."""
    root = read_json(folder / "tokenizer.json")
    model = root.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
        raise UnsupportedError("[convert] the tokenizer must be a byte-level BPE but is something else")
    if root.get("normalizer") not in (None, {"type": "NFC"}):
        raise UnsupportedError("[convert] the tokenizer's normalizer must be none or NFC")
    vocab, merges = model.get("vocab"), model.get("merges")
    added = root.get("added_tokens") or []
    if not isinstance(vocab, dict) or not isinstance(merges, list) or not isinstance(added, list):
        raise LoadError("[convert] tokenizer.json must hold a vocabulary, merges and added tokens")
    tokens: dict[int, tuple[str, int]] = {}
    for text, number in vocab.items():
        tokens[_id(number, n_vocab)] = (str(text), NORMAL)
    for entry in added:
        fields = Fields("added_tokens of tokenizer.json", entry if isinstance(entry, dict) else {})
        kind = CONTROL if fields.flag("special", False) else USER_DEFINED
        tokens[_id(fields.integer("id"), n_vocab)] = (fields.text("content"), kind)
    filled = [tokens.get(i, (f"[PAD{i}]", UNUSED)) for i in range(n_vocab)]
    pairs = [" ".join(merge) if isinstance(merge, list) else str(merge) for merge in merges]
    return Vocabulary(
        [text for text, _ in filled], [kind for _, kind in filled], pairs, pre_tokenizer_name(root.get("pre_tokenizer"))
    )


def _id(number: object, n_vocab: int) -> int:
    if not isinstance(number, int) or not 0 <= number < n_vocab:
        raise LoadError(f"[convert] token ids must be below vocab_size, {n_vocab}, but one is {number!r}")
    return number


def _content(value: object) -> str | None:
    """A special token is a string, or an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_template(folder: Path, config: Mapping[str, object]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def write_vocabulary(writer: GGUFWriter, folder: Path, n_vocab: int) -> None:
    """Tokens, merges, special ids, chat template."""
    vocabulary = read_vocabulary(folder, n_vocab)
    writer.set("tokenizer.ggml.model", "gpt2")
    writer.set("tokenizer.ggml.pre", vocabulary.pre)
    writer.set("tokenizer.ggml.tokens", vocabulary.tokens, "string[]")
    writer.set("tokenizer.ggml.token_type", vocabulary.types, "i32[]")
    writer.set("tokenizer.ggml.merges", vocabulary.merges, "string[]")
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    ids = {text: i for i, text in enumerate(vocabulary.tokens)}
    for field, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        text = _content(config.get(f"{field}_token"))
        if text is not None and text in ids:
            writer.set(f"tokenizer.ggml.{key}_token_id", ids[text], "u32")
    for field in ("bos", "eos"):
        value = config.get(f"add_{field}_token")
        if isinstance(value, bool):
            writer.set(f"tokenizer.ggml.add_{field}_token", value)
    if not isinstance(config.get("add_bos_token"), bool):
        writer.set("tokenizer.ggml.add_bos_token", _adds_bos(folder))
    template = _chat_template(folder, config)
    if template is not None:
        writer.set("tokenizer.chat_template", template)


def _adds_bos(folder: Path) -> bool:
    """Whether the post-processor puts a special token first, as llama 3's does."""
    post = read_json(folder / "tokenizer.json").get("post_processor")
    steps = post.get("processors", [post]) if isinstance(post, dict) else []
    for step in steps if isinstance(steps, list) else []:
        single = step.get("single") if isinstance(step, dict) and step.get("type") == "TemplateProcessing" else None
        if isinstance(single, list) and single and isinstance(single[0], dict) and "SpecialToken" in single[0]:
            return True
    return False
