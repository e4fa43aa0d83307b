"""Read ``adapter_config.json`` of PEFT's LoRA adapters.

Each field that PEFT knows is followed, has no effect, or is rejected by name.  Other fields are ignored with a warning;
PEFT ignores them too.

Source: PEFT's ``LoraConfig``, versions 0.3 to 0.21.
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
# Fields about an adapter's origin and training.  Initial values have no effect, as the file contains the trained ones.
_WITHOUT_EFFECT = (
    "auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version",
    "lora_dropout", "runtime_config", "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
    "qalora_group_size",
)  # fmt: skip
# Fields whose effect Quire does not compute, with the values that have none.  Null and empty values have none either.
_FIXED: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",), "bias": ("none",), "use_qalora": (False,), "use_bdlora": (False,),
    "lora_bias": (False,), "ensure_weight_tying": (False,), "trainable_token_indices": (),
    "layer_replication": (), "megatron_config": (), "arrow_config": (), "kasa_config": (),
    "monteclora_config": (), "velora_config": (), "invocation_string": (),
}  # fmt: skip
# Initializations that leave the model's weights unchanged.  With the others, the adapter needs changed weights.
_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")


class PeftConfig:
    """The fields of ``adapter_config.json``.

    Raises LoadError for a missing or malformed field, UnsupportedError for one that asks for something Quire does not
    compute.
    """

    def __init__(self, folder: Path) -> None:
        fields = Fields(CONFIG, read_json(folder / CONFIG, "adapter"), "adapter")
        if not fields.has("peft_type"):
            raise LoadError(f"[adapter] 'peft_type' is missing in {CONFIG}")
        for name, permitted in _FIXED.items():
            value = fields.value(name)
            if value not in permitted and value not in (None, [], {}):
                words = " or ".join(map(_shown, permitted)) or "absent"
                raise UnsupportedError(f"[adapter] '{name}' of {CONFIG} is {_shown(value)}: expected {words}")
        beginning = fields.value("init_lora_weights")
        if beginning is not None and beginning not in _BEGINNINGS:
            raise UnsupportedError(
                f"[adapter] 'init_lora_weights' of {CONFIG} is {_shown(beginning)}: expected"
                f" {', '.join(map(_shown, _BEGINNINGS))}, as others may need changed model weights (save the adapter"
                " with PEFT's save_pretrained and path_initial_model_for_weight_conversion)"
            )
        fields.flag("fan_in_fan_out", False)
        self.base_name = fields.text("base_model_name_or_path", "")
        self.rank = fields.integer("r", 8, low=1)
        self.alpha = _finite("lora_alpha", fields.number("lora_alpha", 8.0))
        self._is_rank_stabilized = fields.flag("use_rslora", False)
        self.has_magnitudes = fields.flag("use_dora", False)
        # The adapter applies from the last of these in a prompt on (Greenewald et al. 2025, "aLoRA").
        self.invocation = tuple(_integers(fields, "alora_invocation_tokens"))
        parameters = _texts(fields, "target_parameters")
        self._parameters = [parameters] if isinstance(parameters, str) else parameters
        saved = _texts(fields, "modules_to_save")
        self._saved = [saved] if isinstance(saved, str) else saved
        ranks, alphas = fields.inner("rank_pattern"), fields.inner("alpha_pattern")
        self._match_time = MatchTime()
        self._ranks = [(self._end(one, "rank_pattern"), ranks.integer(one, low=1)) for one in ranks.names()]
        self._alphas = [(self._end(one, "alpha_pattern"), _finite(one, alphas.number(one))) for one in alphas.names()]
        if not fields.has("target_modules"):
            raise LoadError(f"[adapter] 'target_modules' is missing in {CONFIG}")
        self._targets, self._excluded = self._names(fields, "target_modules"), self._names(fields, "exclude_modules")
        self._layers, lists = _integers(fields, "layers_to_transform"), _texts(fields, "layers_pattern")
        lists = [lists] if isinstance(lists, str) else lists
        # Each with whether it is a plain name.
        self._lists = [
            (self._expression(rf".*\.{one}\.", "layers_pattern"), one.isidentifier()) for one in lists if one
        ]
        if unknown := fields.unread(_WITHOUT_EFFECT):
            names = ", ".join(f"{name:.80}" for name in unknown[:8])
            _LOG.warning("[adapter] ignoring fields of %s that PEFT does not know: %s", CONFIG, names)

    def rank_of(self, module: str) -> int:
        """Return the rank that the configuration gives a module."""
        return _by_pattern(self._ranks, module, self.rank)

    def factor_of(self, module: str, rank: int) -> float:
        """Return the factor that the module's ``B A`` is multiplied by."""
        alpha = _by_pattern(self._alphas, module, self.alpha)
        return alpha / math.sqrt(rank) if self._is_rank_stabilized else alpha / rank

    def targets_parameter(self, module: str) -> bool:
        """Return whether the module's pair is that of a parameter, such as the matrices of all experts."""
        while module.endswith(".base_layer"):
            module = module.removesuffix(".base_layer")
        return any(f".{module}".endswith("." + name.rpartition(".")[0]) for name in self._parameters if "." in name)

    def saves(self, module: str) -> bool:
        """Return whether the configuration replaces a module as a whole."""
        return any(module.endswith(name) for name in self._saved if name)

    def targets(self, module: str) -> bool:
        """Return whether the configuration adapts a module.  PEFT ignores the tensors of other modules."""
        if self._excluded and _is_named(self._excluded, module):
            return False
        if isinstance(self._targets, Expression):
            return self._targets.text.lower() == "all-linear" or _is_named(self._targets, module)
        if not _is_named(self._targets, module):
            return False
        return module in self._targets or not self._layers or self._layer_of(module) in self._layers

    def _layer_of(self, module: str) -> int | None:
        """Return the number after a layer list's name; the last one, as PEFT's expressions begin with ``.*``."""
        parts = module.split(".")
        numbers = [i for i in range(len(parts) - 2, 0, -1) if parts[i].isdecimal() and len(parts[i]) < 10]
        if not self._lists:
            return next((int(parts[i]) for i in numbers if i > 1), None)
        for expression, is_name in self._lists:
            found = [int(parts[i]) for i in numbers if expression.fullmatch(".".join([*parts[:i], ""]))]
            if len(found) > 1 and not is_name:
                raise UnsupportedError(
                    f"[adapter] 'layers_pattern' of {CONFIG} matches several lists of layers in '{module:.80}':"
                    " expected one"
                )
            if found:
                return found[0]
        return None

    def _names(self, fields: Fields, name: str) -> Expression | Sequence[str]:
        found = _texts(fields, name)
        return self._expression(found, name) if isinstance(found, str) else found

    def _end(self, text: str, name: str) -> Expression:
        """Return an expression that matches module names or the ends of them."""
        return self._expression(rf"(.*\.)?({text})$", name)

    def _expression(self, text: str, name: str) -> Expression:
        return Expression(text, f"[adapter] '{name}' of {CONFIG}", match_time=self._match_time)


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _finite(name: str, value: float) -> float:
    if not abs(value) < 2.0**64:  # NaN as well
        raise LoadError(f"[adapter] '{name}' of {CONFIG} is {value}: expected a magnitude below 2^64")
    return value


def _texts(fields: Fields, name: str) -> str | Sequence[str]:
    """Return a field that has an expression or a list of names."""
    value = fields.value(name)
    if value is None:
        return ()
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return value
    raise LoadError(f"[adapter] '{name}' of {CONFIG} is {_shown(value)}: expected a string or a list of strings")


def _integers(fields: Fields, name: str) -> Sequence[int]:
    value = fields.value(name)
    values = [] if value is None else value if isinstance(value, list) else [value]
    numbers = [one for one in values if type(one) is int]
    if len(numbers) != len(values):
        raise LoadError(f"[adapter] '{name}' of {CONFIG} is {_shown(value)}: expected a number or a list of numbers")
    return numbers


def _is_named(names: Expression | Sequence[str], module: str) -> bool:
    """Return whether an expression matches the module, or one of several names is its name or the end of it."""
    if isinstance(names, Expression):
        return names.fullmatch(module)
    return any(f".{module}".endswith(f".{name}") for name in names)


def _by_pattern(values: Sequence[tuple[Expression, _T]], module: str, default: _T) -> _T:
    """Return the value of the first pattern that matches the module."""
    return next((value for pattern, value in values if pattern.match(module)), default)
