"""A tiny Whisper with random weights, and its vocabulary: bytes, then special tokens, then timestamps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tiny_checkpoints import tokenizer_json

from .whisper import ENCODER, N_MELS, PROCESSOR, halved

SPECIAL = (
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|fr|>", "<|translate|>", "<|transcribe|>",
    "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
)  # fmt: skip
END, START = 259, 260
NO_TIMES = END + len(SPECIAL) - 1
FIRST_TIME = NO_TIMES + 1
NEVER = [7, 33, 65, START, 264, 265, 266, 267, 268]
N_CTX = 64


def make() -> Any:
    """Return transformers' model."""
    import torch
    import transformers

    torch.manual_seed(4)
    config = transformers.WhisperConfig(
        **ENCODER, vocab_size=FIRST_TIME + 1501, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=80,
        max_target_positions=N_CTX, decoder_start_token_id=START, bos_token_id=END, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    model = halved(transformers.WhisperForConditionalGeneration(config).eval())
    with torch.no_grad():  # or text would never be likelier than all timestamps together
        model.model.decoder.embed_tokens.weight[FIRST_TIME:] *= 0.35
    languages = {text: END + i for i, text in enumerate(SPECIAL) if len(text) == 6}
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=START, eos_token_id=END, pad_token_id=END, bos_token_id=END, max_length=N_CTX,
        suppress_tokens=NEVER, begin_suppress_tokens=[32, END], is_multilingual=True, lang_to_id=languages,
        task_to_id={"translate": 264, "transcribe": 265}, no_timestamps_token_id=NO_TIMES, prev_sot_token_id=267,
        max_initial_timestamp_index=50, return_timestamps=False,
    )  # fmt: skip
    return model


def save(model: Any, folder: Path) -> None:
    """Save it with its tokenizer."""
    model.save_pretrained(folder)
    words = tokenizer_json()
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added: Any = words["added_tokens"]
    added += [{"id": END + i, "content": text, "special": True} for i, text in enumerate(SPECIAL)]
    added += [{"id": FIRST_TIME + i, "content": f"<|{i / 50:.2f}|>", "special": False} for i in range(1501)]
    words["added_tokens"] = [{**plain, **token} for token in added]
    words["pre_tokenizer"] = words["decoder"] = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
    }  # fmt: skip
    before, after = (
        [{"SpecialToken": {"id": text, "type_id": 0}} for text in texts]
        for texts in (("<|startoftranscript|>", "<|notimestamps|>"), ("<|endoftext|>",))
    )
    words["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [*before, {"Sequence": {"id": "A", "type_id": 0}}, *after],
        "pair": [*before, *({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")), *after],
        "special_tokens": {text: {"id": text, "ids": [END + i], "tokens": [text]} for i, text in enumerate(SPECIAL)},
    }
    (folder / "tokenizer.json").write_text(json.dumps(words))
    tokens = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[0], "unk_token": SPECIAL[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps({**tokens, "tokenizer_class": "WhisperTokenizer"}))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))


def features(samples: np.ndarray) -> Any:
    """Return what transformers' extractor makes of a sound: padded to 30 seconds, or longer."""
    import transformers

    extractor = transformers.WhisperFeatureExtractor(feature_size=N_MELS)
    extractor._torch_extract_fbank_features = extractor._np_extract_fbank_features
    is_long = len(samples) > 480_000
    padding: dict[str, Any] = {"padding": "longest", "truncation": False} if is_long else {"padding": "max_length"}
    options = {"sampling_rate": 16_000, "return_attention_mask": True, "return_tensors": "pt"}
    return extractor(samples, **options, **padding)


def spans(segments: Sequence[Any]) -> list[tuple[float, float, list[int]]]:
    return [
        (round(float(each["start"]), 3), round(float(each["end"]), 3), each["tokens"].tolist()) for each in segments
    ]
