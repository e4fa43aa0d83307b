"""A BERT tokenizer for letters, for tiny checkpoints of encoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'-"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "fox", "in", "forest", "where", "is", "##s", "light", "##house"]


def word_piece_json() -> dict[str, Any]:
    """Return tokenizer.json with BERT's templates for one text and for pairs."""
    texts = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)

    def mark(text: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": text, "type_id": kind}}

    def place(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    single = [mark("[CLS]", 0), place("A", 0), mark("[SEP]", 0)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, "special": True, **plain} for i, text in enumerate(SPECIAL)],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, place("B", 1), mark("[SEP]", 1)],
            "special_tokens": {
                text: {"id": text, "ids": [SPECIAL.index(text)], "tokens": [text]} for text in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {text: i for i, text in enumerate(texts)},
        },
    }


def write_word_pieces(folder: Path) -> None:
    """Replace a checkpoint's tokenizer."""
    (folder / "tokenizer.json").write_text(json.dumps(word_piece_json()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"})
    )
