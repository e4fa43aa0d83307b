"""Read vocabularies from GGUF metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire._tokenizer.packed import PackedStrings
from quire.errors import LoadError, UnsupportedError
from quire.files.gguf import NUMBER_CODES, Metadata
from quire.files.ollama import open_model_file
from quire.tokenizer.marks import with_marks_apart
from quire.tokenizer.pretokenizers import BY_NAME, Alphabet, PreTokenizer, named
from quire.tokenizer.vocabulary import (
    BYTE_TOKEN,
    END_IDS,
    SCORED,
    SPACE_PREFIX,
    SPECIAL_KEYS,
    AddedTokenRule,
    CaseRules,
    Family,
    SpaceRules,
    TokenKind,
    Vocabulary,
)

__all__ = ["read_gguf", "read_metadata", "vocabulary_of_metadata"]

MODEL, PRE = "tokenizer.ggml.model", "tokenizer.ggml.pre"
TOKENS, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
# Keys that change how a file's vocabulary is read, and that a file may lack.
READ_KEYS = frozenset(
    {
        PRE, "tokenizer.chat_template", SPACE_PREFIX, *SPECIAL_KEYS.values(),
        *(f"tokenizer.ggml.add_{name}" for name in ("bos_token", "eos_token", "sep_token", "space_prefix")),
        "tokenizer.ggml.remove_extra_whitespaces", "tokenizer.ggml.normalizer.lowercase",
        "tokenizer.ggml.normalizer.strip_accents",
    }
)  # fmt: skip
# Keys outside tokenizer.* that the options of added tokens depend on.
MODEL_KEYS = ("general.name", "general.architecture")


@dataclass(frozen=True)
class FamilyDefaults:
    """Defaults of a family, for keys that a file lacks."""

    ids: Mapping[str, int] = field(default_factory=dict)
    before: str = "bos"
    after: str = "eos"
    add_before: bool = False
    add_after: bool = False
    spaces: SpaceRules = field(default_factory=SpaceRules)


FAMILIES = {
    Family.BYTE_PAIR: FamilyDefaults(),
    Family.SCORED_PAIR: FamilyDefaults(
        {"bos": 1, "eos": 2, "unk": 0}, add_before=True, spaces=SpaceRules("every", write_spaces=True)
    ),
    Family.CHARACTER_PAIR: FamilyDefaults(),
    Family.UNIGRAM: FamilyDefaults(
        {"eos": 1, "unk": 2, "pad": 0}, add_after=True, spaces=SpaceRules(write_spaces=True)
    ),
    Family.WORD_PIECE: FamilyDefaults(
        {"cls": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103}, "cls", "sep", add_before=True, add_after=True
    ),
    Family.LONGEST_MATCH: FamilyDefaults(),
    Family.LEAST_COST: FamilyDefaults({"bos": 1, "eos": 2, "unk": 0, "pad": 3}),
}


OVER_CHARACTERS = {name for name, known in BY_NAME.items() if known.alphabet is Alphabet.CHARACTERS}


def read_gguf(path: str | os.PathLike[str]) -> Vocabulary:
    """Read the vocabulary of a GGUF file.  Raises LoadError and UnsupportedError."""
    return read_metadata(open_model_file(path).metadata)


def read_metadata(stored: Metadata) -> Vocabulary:
    """Read the vocabulary of a file's keys.  Raises LoadError and UnsupportedError."""
    packed = [key for key in _packed_keys(stored) if key in stored and stored.type_of(key) == "string[]"]
    keys = [key for key in stored if key.startswith("tokenizer.") and key not in packed]
    keys += [key for key in MODEL_KEYS if key in stored]
    metadata = {key: _value(stored, key) for key in keys}
    metadata.update((key, PackedStrings(*stored.packed_strings(key))) for key in packed)
    return vocabulary_of_metadata(metadata)


def _value(stored: Metadata, key: str) -> object:
    """Return a key's value, with arrays of numbers as memoryviews.

    Importing NumPy takes longer than everything else that a small model does before its first token.
    """
    return stored.packed_numbers(key) if stored.type_of(key) in NUMBER_CODES else stored[key]


def _packed_keys(stored: Metadata) -> tuple[str, ...]:
    """Return the keys that native code reads in packed form."""
    texts = {key: stored[key] for key in (MODEL, PRE) if key in stored and stored.type_of(key) == "string"}
    model, pre = texts.get(MODEL), texts.get(PRE)
    over_bytes = model == Family.BYTE_PAIR.value and pre not in OVER_CHARACTERS
    return (TOKENS, MERGES) if over_bytes else (MERGES,)


def vocabulary_of_metadata(metadata: Mapping[str, object]) -> Vocabulary:
    """Make a vocabulary from GGUF keys and values.

    Raises:
        LoadError: A value is missing, has the wrong type or is inconsistent with others.
        UnsupportedError: The family or pre-tokenizer is unsupported.
    """
    family, pre_tokenizer = _family(metadata)
    defaults = FAMILIES[family]
    texts = _strings(metadata, TOKENS)
    special_ids = {name: id for name, id in defaults.ids.items() if id < len(texts)}
    special_ids |= {name: _integer(metadata, key) for name, key in SPECIAL_KEYS.items() if key in metadata}
    for name, id in special_ids.items():
        if not 0 <= id < len(texts):
            raise LoadError(f"[tokenizer] {SPECIAL_KEYS[name]} is {id}: the vocabulary has {len(texts)} tokens")
    prefix_ids, suffix_ids = _around(metadata, defaults, special_ids, pre_tokenizer)
    kinds = _kinds(metadata, texts, family)
    prefix = "tokenizer.chat_template"
    found = Vocabulary(
        texts=texts,
        kinds=kinds,
        merges=_strings(metadata, MERGES) if family in (Family.BYTE_PAIR, Family.CHARACTER_PAIR) else (),
        pre_tokenizer=pre_tokenizer,
        special_ids=special_ids,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        doubles_separator=_doubles_separator(metadata, family),
        end_ids=_end_ids(metadata),
        added=_added_rules(metadata, texts, kinds),
        chat_templates={
            key[len(prefix) + 1 :] or "default": _string(metadata, key)
            for key in metadata
            if key == prefix or key.startswith(prefix + ".")
        },
        family=family,
        scores=_scores(metadata, len(texts)) if family in SCORED else (),
        spaces=_spaces(metadata, defaults.spaces)
        if family in (Family.SCORED_PAIR, Family.UNIGRAM)
        else SpaceRules(write_spaces=pre_tokenizer.write_spaces),
        character_map=_bytes(metadata, "tokenizer.ggml.precompiled_charsmap"),
        case=_case(metadata, family),
    )
    return with_marks_apart(found, guess_unknown=True)


def _family(metadata: Mapping[str, object]) -> tuple[Family, PreTokenizer]:
    """Return the family and the pre-tokenizer; one of their two names may determine both."""
    name = _string(metadata, MODEL)
    known = {family.value: family for family in Family} | {"whitespace": Family.CHARACTER_PAIR}
    if name not in known:
        raise UnsupportedError(
            f"[tokenizer] unsupported tokenizer.ggml.model {name!r}: supported are {', '.join(known)}"
        )
    if known[name] not in (Family.BYTE_PAIR, Family.CHARACTER_PAIR):
        return known[name], PreTokenizer(())
    pre_tokenizer = named(_string(metadata, PRE, "default") if name == Family.BYTE_PAIR.value else name)
    by_bytes = pre_tokenizer.alphabet is Alphabet.BYTES
    return Family.BYTE_PAIR if by_bytes else Family.CHARACTER_PAIR, pre_tokenizer


def _around(
    metadata: Mapping[str, object],
    defaults: FamilyDefaults,
    special_ids: Mapping[str, int],
    pre_tokenizer: PreTokenizer,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids to add before and after a text."""
    before, after = defaults.before, defaults.after
    if before == "cls" and "tokenizer.ggml.cls_token_id" not in metadata and "bos" in special_ids:
        before = "bos"
    by_default = defaults.add_before or pre_tokenizer.add_bos
    # Some files of such pre-tokenizers wrongly say False.
    add_before = _boolean(metadata, "tokenizer.ggml.add_bos_token", by_default) or pre_tokenizer.always_bos
    key = "tokenizer.ggml.add_sep_token" if after == "sep" else "tokenizer.ggml.add_eos_token"
    add_after = _boolean(metadata, key, defaults.add_after)
    return (
        (special_ids[before],) if add_before and before in special_ids else (),
        (special_ids[after],) if add_after and after in special_ids else (),
    )


def _doubles_separator(metadata: Mapping[str, object], family: Family) -> bool | None:
    """Read from the separator's key whether pairs have two separators; None if the file does not say."""
    key = "tokenizer.ggml.add_sep_token"
    return None if family is Family.WORD_PIECE or key not in metadata else _boolean(metadata, key, False)


def _end_ids(metadata: Mapping[str, object]) -> tuple[int, ...]:
    values = _listed(metadata.get(END_IDS, []))
    if not isinstance(values, list) or not set(map(type, values)) <= {int}:
        raise LoadError(f"[tokenizer] {END_IDS} is {type(values).__name__}: expected an array of ids")
    return tuple(values)


def _spaces(metadata: Mapping[str, object], defaults: SpaceRules) -> SpaceRules:
    prefix = _boolean(metadata, "tokenizer.ggml.add_space_prefix", defaults.prefix != "none")
    merge_extra = _boolean(metadata, "tokenizer.ggml.remove_extra_whitespaces", False)
    scheme = _string(metadata, SPACE_PREFIX, "every")
    if scheme not in ("every", "first", "every-once", "first-once"):
        raise LoadError(f"[tokenizer] {SPACE_PREFIX} is {scheme!r}: expected every, first, every-once or first-once")
    stretches, _, once = scheme.partition("-")
    return SpaceRules(
        stretches if prefix else "none", merge_extra=merge_extra, write_spaces=True, prefix_once=bool(once)
    )


def _case(metadata: Mapping[str, object], family: Family) -> CaseRules:
    is_words = family is Family.WORD_PIECE
    lowercase = _boolean(metadata, "tokenizer.ggml.normalizer.lowercase", is_words)
    if not is_words:
        return CaseRules(lowercase, strip_accents=False)
    return CaseRules(lowercase, _boolean(metadata, "tokenizer.ggml.normalizer.strip_accents", lowercase))


def _packed(value: object) -> memoryview | None:
    """Return an array of numbers, NumPy's included, as a memoryview; None for other values."""
    try:
        return None if isinstance(value, bytes) else memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _listed(value: object) -> object:
    packed = _packed(value)
    return value if packed is None else packed.tolist()


def _scores(metadata: Mapping[str, object], n: int) -> list[float]:
    key = "tokenizer.ggml.scores"
    values = _listed(metadata.get(key))
    if not isinstance(values, list) or not set(map(type, values)) <= {int, float}:
        raise LoadError(f"[tokenizer] {key} is {type(values).__name__}: expected an array of numbers")
    if len(values) != n:
        raise LoadError(f"[tokenizer] {key} has {len(values)} entries for {n} tokens: expected one per token")
    return values


def _bytes(metadata: Mapping[str, object], key: str) -> bytes:
    value = metadata.get(key, b"")
    packed = _packed(value)
    if packed is not None and packed.format in ("b", "B"):
        return packed.tobytes()
    if not isinstance(value, bytes):
        raise LoadError(f"[tokenizer] {key} is {type(value).__name__}: expected an array of bytes")
    return value


def _added_rules(
    metadata: Mapping[str, object], texts: Sequence[str], kinds: Sequence[int]
) -> tuple[AddedTokenRule, ...]:
    """Return the stripping of added tokens.

    GGUF does not store it, so it depends on the model's name and follows the publishers' own files.
    """
    name = metadata.get("general.name")
    model = name.lower() if isinstance(name, str) else ""
    pre, architecture = metadata.get("tokenizer.ggml.pre"), metadata.get("general.architecture")
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code") or architecture in ("nomic-bert-moe", "jina-bert-v3"):
        return tuple(AddedTokenRule(id, left_strip=True) for id, text in enumerate(texts) if text == "<mask>")
    if "modern-bert" in model:
        return tuple(AddedTokenRule(id, left_strip=True) for id, text in enumerate(texts) if text == "[MASK]")
    if "phi-3" not in model and "phi3" not in model:
        return ()
    marked = (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED)
    kept = ("<unk>", "<s>", "<|endoftext|>")
    return tuple(
        AddedTokenRule(id, right_strip=True)
        for id, kind in enumerate(kinds)
        if (kind in marked or texts[id] == "</s>") and texts[id] not in kept
    )


def _kinds(metadata: Mapping[str, object], texts: Sequence[str], family: Family) -> list[int]:
    key = "tokenizer.ggml.token_type"
    values = metadata.get(key)
    if values is None:
        return [TokenKind.NORMAL] * len(texts)
    kinds = list(values) if isinstance(values, list) else _listed(values)
    if not isinstance(kinds, list):
        raise LoadError(f"[tokenizer] {key} is {type(values).__name__}: expected an array")
    if family is Family.CHARACTER_PAIR and len(kinds) == len(texts):  # some files mark byte tokens as normal
        for id, text in enumerate(texts):
            if kinds[id] == TokenKind.NORMAL and len(text) == 6 and BYTE_TOKEN.fullmatch(text):
                kinds[id] = TokenKind.BYTE
    used = set(kinds)
    allowed = set(TokenKind) - {TokenKind.BYTE} if family is Family.BYTE_PAIR else set(TokenKind)
    for odd in used - allowed:
        raise LoadError(f"[tokenizer] {key} has the unknown token type {odd}: expected 1 to {max(allowed)}")
    return kinds


def _string(metadata: Mapping[str, object], key: str, default: str | None = None) -> str:
    value = metadata.get(key, default)
    if not isinstance(value, str):
        raise LoadError(f"[tokenizer] {key} is {'missing' if value is None else repr(value)}: expected a string")
    return value


def _strings(metadata: Mapping[str, object], key: str) -> Sequence[str]:
    value = metadata.get(key)
    if isinstance(value, PackedStrings):
        return value
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise LoadError(f"[tokenizer] {key} is {type(value).__name__}: expected an array of strings")
    return value


def _integer(metadata: Mapping[str, object], key: str) -> int:
    value = metadata[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise LoadError(f"[tokenizer] {key} is {value!r}: expected an integer")
    return value


def _boolean(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise LoadError(f"[tokenizer] {key} is {value!r}: expected a boolean")
    return value
