"""``adapter_config.json`` of PEFT's LoRA adapters: every field is honoured, without effect, or refused by name.

Facts of the format: PEFT's ``LoraConfig``, versions 0.3 to 0.21.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ..checkpoint import Fields, read_json
from ..errors import LoadError, UnsupportedError

__all__ = ["CONFIG", "PeftConfig"]

_T = TypeVar("_T")
CONFIG = "adapter_config.json"
# Who made an adapter, and how it was trained.  Values that matrices begin with are settled by the ones in the file,
# and which layers store [in, out] by the model.
_WITHOUT_EFFECT = (
    "auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version",
    "lora_dropout", "runtime_config", "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
    "qalora_group_size",
)  # fmt: skip
# Fields, and the values that ask for nothing; what is null or empty asks for nothing, either.
_FIXED: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",), "bias": ("none",), "use_dora": (False,), "use_qalora": (False,), "use_bdlora": (False,),
    "lora_bias": (False,), "ensure_weight_tying": (False,), "modules_to_save": (), "trainable_token_indices": (),
    "target_parameters": (), "layer_replication": (), "megatron_config": (), "arrow_config": (), "kasa_config": (),
    "monteclora_config": (), "velora_config": (), "alora_invocation_tokens": (), "invocation_string": (),
}  # fmt: skip
# Ways to begin that leave the model's weights as they are.  The others train beside changed ones.
_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")


class PeftConfig:
    """The fields of ``adapter_config.json``; LoadError for what is missing or malformed, UnsupportedError for what
    Quire does not compute."""

    def __init__(self, folder: Path) -> None:
        fields = Fields(CONFIG, read_json(folder / CONFIG, "adapter"), "adapter")
        if not fields.has("peft_type"):
            raise LoadError(f"[adapter] 'peft_type' must be in {CONFIG} but is not")
        for name, permitted in _FIXED.items():
            value = fields.value(name)
            if value not in permitted and value not in (None, [], {}):
                words = " or ".join(map(_shown, permitted)) or "absent"
                raise UnsupportedError(f"[adapter] '{name}' of {CONFIG} must be {words} but is {_shown(value)}")
        beginning = fields.value("init_lora_weights")
        if beginning is not None and beginning not in _BEGINNINGS:
            raise UnsupportedError(
                f"[adapter] 'init_lora_weights' of {CONFIG} must be {', '.join(map(_shown, _BEGINNINGS))} but is"
                f" {_shown(beginning)}: others may be of a model with changed weights (PEFT's save_pretrained converts)"
            )
        fields.flag("fan_in_fan_out", False)
        self.base_name = fields.text("base_model_name_or_path", "")
        self.rank = fields.integer("r", 8, low=1)
        self.alpha = _finite("lora_alpha", fields.number("lora_alpha", 8.0))
        self._is_rank_stabilized = fields.flag("use_rslora", False)
        ranks, alphas = fields.inner("rank_pattern"), fields.inner("alpha_pattern")
        self._ranks = {pattern: ranks.integer(pattern, low=1) for pattern in ranks.names()}
        self._alphas = {pattern: _finite(pattern, alphas.number(pattern)) for pattern in alphas.names()}
        if not fields.has("target_modules"):
            raise LoadError(f"[adapter] 'target_modules' must be in {CONFIG} but is not")
        self._targets, self._excluded = _names(fields, "target_modules"), _names(fields, "exclude_modules")
        self._layers, self._lists = _integers(fields, "layers_to_transform"), _names(fields, "layers_pattern")
        fields.refuse_unread(_WITHOUT_EFFECT)

    def rank_of(self, module: str) -> int:
        """Rank that the configuration gives a module."""
        return _by_pattern(self._ranks, module, self.rank)

    def factor_of(self, module: str, rank: int) -> float:
        """What ``B A`` of the module is multiplied by."""
        alpha = _by_pattern(self._alphas, module, self.alpha)
        return alpha / math.sqrt(rank) if self._is_rank_stabilized else alpha / rank

    def targets(self, module: str) -> bool:
        """Whether the configuration adapts a module, as PEFT would leave out its tensors where not."""
        if self._excluded and _is_named(self._excluded, module):
            return False
        if isinstance(self._targets, str):
            return self._targets.lower() == "all-linear" or _is_named(self._targets, module)
        if not _is_named(self._targets, module):
            return False
        if module in self._targets or not self._layers:
            return True
        lists = [self._lists] if isinstance(self._lists, str) else self._lists
        patterns = [rf".*\.{one}\.(\d+)\." for one in lists if one] or [r".*\.[^.]*\.(\d+)\."]
        found = next((match for pattern in patterns if (match := _match(pattern, module))), None)
        return found is not None and int(found[1]) in self._layers


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _finite(name: str, value: float) -> float:
    if not abs(value) < 2.0**64:  # NaN as well
        raise LoadError(f"[adapter] '{name}' of {CONFIG} must be finite, and below 2^64, but is {value}")
    return value


def _names(fields: Fields, name: str) -> str | Sequence[str]:
    """An expression, or names."""
    value = fields.value(name)
    if value is None:
        return ()
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return value
    raise LoadError(f"[adapter] '{name}' of {CONFIG} must be a string or a list of strings but is {_shown(value)}")


def _integers(fields: Fields, name: str) -> Sequence[int]:
    value = fields.value(name)
    values = [] if value is None else value if isinstance(value, list) else [value]
    numbers = [one for one in values if type(one) is int]
    if len(numbers) != len(values):
        raise LoadError(f"[adapter] '{name}' of {CONFIG} must be a number or a list of numbers but is {_shown(value)}")
    return numbers


def _match(pattern: str, text: str, *, whole: bool = False) -> re.Match[str] | None:
    """Where an expression describes how the text begins, or all of it."""
    try:
        return re.fullmatch(pattern, text) if whole else re.match(pattern, text)
    except re.error as error:
        raise LoadError(f"[adapter] {CONFIG} must hold expressions but {pattern!r:.80} is none: {error}") from None


def _is_named(names: str | Sequence[str], module: str) -> bool:
    """Whether an expression describes a module, or one of several names is its own, or the end of it."""
    if isinstance(names, str):
        return _match(names, module, whole=True) is not None
    return any(f".{module}".endswith(f".{name}") for name in names)


def _by_pattern(values: Mapping[str, _T], module: str, default: _T) -> _T:
    """The value of the first pattern that describes the module, or the end of its name."""
    return next((value for pattern, value in values.items() if _match(rf"(.*\.)?({pattern})$", module)), default)
