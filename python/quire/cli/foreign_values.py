"""Convert the values of other programs' options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Values", "ours_of"]

Values: TypeAlias = "list[str] | None"
"""Values for Quire's option, which is given once for each; None if it need not be given."""


def ours_of(how: str, value: str) -> Values:
    """Convert a value by its row's ``how``.  ValueError with the expected form if that is impossible."""
    return _HOW[how](value)


def _each(value: str) -> Values:
    return [part for part in (part.strip() for part in value.split(",")) if part]


def _not_negative(value: str) -> Values:
    return None if value.startswith("-") else [value]


def _mask(value: str) -> Values:
    low, _, high = value.partition("-")
    if not (low.isdecimal() and (high or low).isdecimal()) or not int(low) <= int(high or low) < 1024:
        raise ValueError("expected a range of processors, LOW-HIGH")
    return [f"{sum(1 << i for i in range(int(low), int(high or low) + 1)):x}"]


def _device(value: str) -> Values:
    return ["cpu" if value.lower() == "none" else value]


def _split_mode(value: str) -> Values:
    if value not in ("layer", "none", "auto"):
        raise ValueError("expected layer or none, because matrices are never split between devices")
    return [value]


def _on_off(value: str) -> Values:
    return ["off" if value in ("off", "0", "false") else "on"]


def _auto_or_none(value: str) -> Values:
    return ["none" if value.lower() in ("off", "0", "false", "no") else "auto"]


def _load_mode(value: str) -> Values:
    modes = {"auto": None, "mmap": "mmap", "none": "copy", "mlock": "lock", "mmap+mlock": "lock", "dio": "copy"}
    if value not in modes:
        raise ValueError(f"expected one of {', '.join(modes)}")
    mode = modes[value]
    return None if mode is None else [mode]


def _sampler_letters(value: str) -> Values:
    from ..params.stages import STAGE_LETTERS

    unknown = sorted(set(value) - set(STAGE_LETTERS))
    if unknown:
        raise ValueError(f"expected letters from {''.join(STAGE_LETTERS)}")
    return [";".join(STAGE_LETTERS[letter] for letter in value)]


def _reasoning_format(value: str) -> Values:
    if value == "deepseek-legacy":
        raise ValueError("expected auto, none or deepseek")
    return ["auto" if value == "deepseek" else value]


def _human(value: str) -> Values:
    """Expand ``32k`` or ``1M``; ``auto`` and -1 mean the model's own value, None."""
    if value in ("auto", "-1"):
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", value)
    if found is None:
        raise ValueError("expected a number such as 4096 or 32k")
    factor = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20}[found[2]]
    return [str(int(float(found[1]) * factor))]


def _vllm_dtype(value: str) -> Values:
    known = {"auto": "auto", "bfloat16": "bf16", "float16": "f16", "half": "f16"}
    if value not in known:
        raise ValueError("expected auto, bfloat16 or float16 (or --kv-dtype q8_0, q5_1 or q4_0)")
    return [known[value]]


def _json_list(value: str) -> Values:
    try:
        found = json.loads(value)
    except ValueError:
        return _each(value)
    return [str(each) for each in found] if isinstance(found, list) else [str(found)]


def _quiet_level(value: str) -> Values:
    return [""] if value in ("warning", "error", "critical") else None


def _duration(value: str) -> Values:
    from ..server.keep_alive import seconds_of

    return [str(seconds_of(value))]


def _ollama_format(value: str) -> Values:
    """Turn the word ``json`` into the schema ``{}``, which allows any JSON; other values are schemas already."""
    return ["{}" if value == "json" else value]


def _think(value: str) -> Values:
    """Convert Ollama's ``think``: on, off, or a level; ``max`` becomes the highest level that templates know."""
    known = {"true": "on", "false": "off", "max": "high"} | {level: level for level in ("low", "medium", "high")}
    if value not in known:
        raise ValueError("expected true, false, low, medium or high")
    return [known[value]]


def _spec_type(value: str) -> Values:
    """Convert llama.cpp's kinds of speculation, separated by commas.  A draft model is used if one is given."""
    kinds = [kind for kind in value.split(",") if kind]
    if kinds == ["none"]:
        return ["off"]
    if all(kind.startswith("ngram") for kind in kinds):
        return ["lookup"]
    found = {"draft-mtp": "mtp", "draft-eagle3": "auto", "draft-simple": "auto"}
    if len(kinds) == 1 and kinds[0] in found:
        return [found[kinds[0]]]
    if all(kind in found or kind.startswith("ngram") for kind in kinds):
        return ["auto"]
    raise ValueError(f"expected none, ngram-... or {', '.join(found)}")


_HOW: dict[str, Callable[[str], Values]] = {
    "same": lambda value: [value],
    "each": _each,
    "not_negative": _not_negative,
    "parallel": lambda value: None if value in ("-1", "0") else [value],
    "mask": _mask,
    "device": _device,
    "split_mode": _split_mode,
    "auto_or_none": _auto_or_none,
    "on_off": _on_off,
    "load_mode": _load_mode,
    "sampler_letters": _sampler_letters,
    "reasoning_format": _reasoning_format,
    "human": _human,
    "vllm_dtype": _vllm_dtype,
    "json_list": _json_list,
    "quiet_level": _quiet_level,
    "duration": _duration,
    "ollama_format": _ollama_format,
    "think": _think,
    "spec_type": _spec_type,
}
