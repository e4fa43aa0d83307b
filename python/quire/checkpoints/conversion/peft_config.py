"""``adapter_config.json`` of PEFT's LoRA adapters: every field is honoured, without effect, or refused by name.

Fields that PEFT does not know are ignored, as PEFT itself does, and named in a warning.

Facts of the format: PEFT's ``LoraConfig``, versions 0.3 to 0.21.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ...errors import LoadError, UnsupportedError
from ...files.expressions import Expression, MatchTime
from ..reading import Fields, read_json

__all__ = ["CONFIG", "PeftConfig"]

_T = TypeVar("_T")
_LOG = logging.getLogger("quire")
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
        self._match_time = MatchTime()
        self._ranks = [(self._end(one, "rank_pattern"), ranks.integer(one, low=1)) for one in ranks.names()]
        self._alphas = [(self._end(one, "alpha_pattern"), _finite(one, alphas.number(one))) for one in alphas.names()]
        if not fields.has("target_modules"):
            raise LoadError(f"[adapter] 'target_modules' must be in {CONFIG} but is not")
        self._targets, self._excluded = self._names(fields, "target_modules"), self._names(fields, "exclude_modules")
        self._layers, lists = _integers(fields, "layers_to_transform"), _texts(fields, "layers_pattern")
        lists = [lists] if isinstance(lists, str) else lists
        # With whether each is a plain name.
        self._lists = [
            (self._expression(rf".*\.{one}\.", "layers_pattern"), one.isidentifier()) for one in lists if one
        ]
        if unknown := fields.unread(_WITHOUT_EFFECT):
            names = ", ".join(f"{name:.80}" for name in unknown[:8])
            _LOG.warning("[adapter] ignoring fields of %s that PEFT does not know: %s", CONFIG, names)

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
        if isinstance(self._targets, Expression):
            return self._targets.text.lower() == "all-linear" or _is_named(self._targets, module)
        if not _is_named(self._targets, module):
            return False
        return module in self._targets or not self._layers or self._layer_of(module) in self._layers

    def _layer_of(self, module: str) -> int | None:
        """The number behind the name of a list of layers; the last one, as PEFT's expressions begin with ``.*``."""
        parts = module.split(".")
        numbers = [i for i in range(len(parts) - 2, 0, -1) if parts[i].isdecimal() and len(parts[i]) < 10]
        if not self._lists:
            return next((int(parts[i]) for i in numbers if i > 1), None)
        for expression, is_name in self._lists:
            found = [int(parts[i]) for i in numbers if expression.fullmatch(".".join([*parts[:i], ""]))]
            if len(found) > 1 and not is_name:
                raise UnsupportedError(
                    f"[adapter] 'layers_pattern' of {CONFIG} must describe one list of layers in '{module:.80}' but"
                    " describes several"
                )
            if found:
                return found[0]
        return None

    def _names(self, fields: Fields, name: str) -> Expression | Sequence[str]:
        found = _texts(fields, name)
        return self._expression(found, name) if isinstance(found, str) else found

    def _end(self, text: str, name: str) -> Expression:
        """What describes modules, or the end of their names."""
        return self._expression(rf"(.*\.)?({text})$", name)

    def _expression(self, text: str, name: str) -> Expression:
        return Expression(text, f"[adapter] '{name}' of {CONFIG}", match_time=self._match_time)


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _finite(name: str, value: float) -> float:
    if not abs(value) < 2.0**64:  # NaN as well
        raise LoadError(f"[adapter] '{name}' of {CONFIG} must be finite, and below 2^64, but is {value}")
    return value


def _texts(fields: Fields, name: str) -> str | Sequence[str]:
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


def _is_named(names: Expression | Sequence[str], module: str) -> bool:
    """Whether an expression describes a module, or one of several names is its own, or the end of it."""
    if isinstance(names, Expression):
        return names.fullmatch(module)
    return any(f".{module}".endswith(f".{name}") for name in names)


def _by_pattern(values: Sequence[tuple[Expression, _T]], module: str, default: _T) -> _T:
    """The value of the first pattern that matches."""
    return next((value for pattern, value in values if pattern.match(module)), default)
