"""Write a checkpoint's sampling defaults as GGUF keys, and warn of those that Quire does not follow."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import LoadError, UnsupportedError
from ...params.sampling import PARAMETERS
from ..reading import Fields, read_config, read_json

if TYPE_CHECKING:
    from ...files.gguf import GGUFWriter

__all__ = ["write_sampling"]

_LOG = logging.getLogger("quire")
# Fields of generation_config.json that apply to sampling only, with their GGUF keys.
_TRUNCATION = {name: PARAMETERS[name].gguf for name in ("temperature", "top_p", "min_p", "typical_p")}
# Fields that also apply to greedy decoding.
_ALWAYS = {"repetition_penalty": PARAMETERS["repetition_penalty"].gguf}
_TOP_K, _NEVER = PARAMETERS["top_k"].gguf, PARAMETERS["bad_token_ids"].gguf
_FOLLOWED = {*_TRUNCATION, *_ALWAYS, "top_k", "do_sample", "suppress_tokens", "bad_words_ids", "eos_token_id"}
# Fields that would change the answer but are not followed, with the values that have no effect.
_NOT_FOLLOWED: Mapping[str, tuple[object, ...]] = {
    "max_length": (20,),
    "max_new_tokens": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "max_time": (),
    "stop_strings": ([],),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "top_h": (),
    "epsilon_cutoff": (0, 0.0, 1.0),
    "eta_cutoff": (0, 0.0, 1.0),
    "encoder_repetition_penalty": (1, 1.0),
    "encoder_no_repeat_ngram_size": (0,),
    "no_repeat_ngram_size": (0,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({}, []),
    "token_healing": (False,),
    "guidance_scale": (1, 1.0),
    "watermarking_config": (),
    "penalty_alpha": (0, 0.0),
    "dola_layers": (),
    "diversity_penalty": (0, 0.0),
    "constraints": ([],),
    "force_words_ids": ([],),
}
# Fields without effect here: memory use, outputs other than the answer, speculation (which samples from the same
# distribution), beam weights (there are no beams), padding, encoders, and the program that wrote the file.
_WITHOUT_EFFECT = {
    "early_stopping", "length_penalty", "use_mtp", "use_cache", "cache_implementation", "cache_config", "max_cache_len",
    "renormalize_logits", "remove_invalid_values", "output_attentions", "output_hidden_states", "output_scores",
    "output_logits", "return_dict_in_generate", "pad_token_id", "bos_token_id", "decoder_start_token_id",
    "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "speculation_type", "compile_config",
    "disable_compile", "continuous_batching_config", "low_memory", "prefill_chunk_size", "transformers_version",
    "_from_model_config", "_commit_hash",
}  # fmt: skip
# Fields of speech models that describe the vocabulary, or the timestamps of words.  Transcripts follow Whisper's rules,
# with their usual numbers (engine/requests/whisper.py).
_OF_SPEECH: Mapping[str, tuple[object, ...]] = {
    "begin_suppress_tokens": (), "is_multilingual": (), "lang_to_id": (), "task_to_id": (),
    "no_timestamps_token_id": (), "prev_sot_token_id": (), "max_initial_timestamp_index": (50,), "max_length": (),
    "forced_decoder_ids": (), "return_timestamps": (), "alignment_heads": (), "median_filter_width": (),
    "language": (), "task": (),
}  # fmt: skip


def write_sampling(writer: GGUFWriter, folder: Path) -> None:
    """Write the sampling defaults of ``generation_config.json``, or of ``config.json`` if it is absent.

    ``do_sample`` false becomes temperature 0.  A warning names fields that would change the answer but are not
    followed.  Raises LoadError for a value of the wrong type.
    """
    config, path = read_config(folder), folder / "generation_config.json"
    advice = Fields("generation_config.json", read_json(path)) if path.is_file() else _of_configuration(config)
    _check_start(advice, config)
    if advice.has("do_sample") and not advice.flag("do_sample"):
        writer.set(_TRUNCATION["temperature"], 0.0, "f32")
    else:
        for name, key in _TRUNCATION.items():
            if advice.has(name):
                writer.set(key, advice.number(name), "f32")
        if advice.has("top_k"):
            writer.set(_TOP_K, advice.integer("top_k"), "i32")
    for name, key in _ALWAYS.items():
        if advice.has(name):
            writer.set(key, advice.number(name), "f32")
    never, whole = _suppressed(advice, config.get("vocab_size"))
    if never:
        writer.set(_NEVER, never, "u32[]")
    left = [name for name in advice.names() if advice.has(name) and not _is_followed(name, advice.value(name))]
    if config.get("model_type") == "whisper":
        known = {name for name, values in _OF_SPEECH.items() if not values or advice.value(name) in values}
        left = [name for name in left if name not in known]
    if left or not whole:
        names = ", ".join(sorted([*left, *([] if whole else ["bad_words_ids"])]))
        _LOG.warning("[convert] ignoring sampling fields of %s that Quire does not follow: %s", advice.where, names)


def _check_start(advice: Fields, config: Mapping[str, object]) -> None:
    """Check the start token of an encoder-decoder model, which models/t5.py reads from config.json."""
    start = advice.value("decoder_start_token_id")
    known = config.get("decoder_start_token_id", config.get("pad_token_id", 0))
    if config.get("is_encoder_decoder") is True and start not in (None, known):
        raise UnsupportedError(
            f"[convert] 'decoder_start_token_id' of {advice.where} is {start}: expected {known}, as in config.json"
        )


def _of_configuration(config: Mapping[str, object]) -> Fields:
    """Return the sampling fields of ``config.json``, where older checkpoints keep them.

    As in transformers, decoding is greedy unless ``do_sample`` is true.
    """
    known = (_FOLLOWED | set(_NOT_FOLLOWED)) - {"max_length"}
    if config.get("do_sample") is not True:
        known -= {*_TRUNCATION, "top_k", "do_sample"}
    return Fields("config.json", {name: value for name, value in config.items() if name in known})


def _is_followed(name: str, value: object) -> bool:
    if name in _NOT_FOLLOWED:
        return any(value == neutral and type(value) is type(neutral) for neutral in _NOT_FOLLOWED[name])
    return name in _FOLLOWED or name in _WITHOUT_EFFECT


def _suppressed(advice: Fields, n_vocab: object) -> tuple[list[int], bool]:
    """Return the tokens that are never drawn, and whether these cover everything that the fields exclude.

    They do not if an excluded word has several tokens.
    """
    ends = advice.value("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    words = [[id] for id in _ids(advice, "suppress_tokens")]
    listed = advice.value("bad_words_ids") or []
    if not isinstance(listed, list) or not all(isinstance(word, list) for word in listed):
        raise LoadError(f"[convert] 'bad_words_ids' of {advice.where} is not a list of lists of token ids")
    words += [_checked(advice, "bad_words_ids", word) for word in listed if word not in [[end] for end in ends]]
    found = {word[0] for word in words if len(word) == 1}
    if isinstance(n_vocab, int):
        found = {id for id in found if id < n_vocab}
    return sorted(found), all(len(word) == 1 for word in words)


def _ids(advice: Fields, name: str) -> list[int]:
    values = advice.value(name)
    if values is not None and not isinstance(values, list):
        raise LoadError(
            f"[convert] {name!r} of {advice.where} is {type(values).__name__}: expected a list of token ids"
        )
    return _checked(advice, name, values or [])


def _checked(advice: Fields, name: str, values: list[object]) -> list[int]:
    ids = [id for id in values if isinstance(id, int) and not isinstance(id, bool) and 0 <= id < 2**31]
    if len(ids) != len(values):
        raise LoadError(f"[convert] {name!r} of {advice.where} is {values!r:.80}: expected token ids")
    return ids
