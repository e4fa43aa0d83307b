"""Biases that a configuration denies: transformers ignores them even if the checkpoint has them."""

from __future__ import annotations

import re

from ..reading.fields import Fields

__all__ = ["denying_field"]

_ATTENTION = r"\.self_attn\.(q|k|v|o|qkv)_proj\.bias$"
_MLP = r"\.mlp\.(.+\.)?(gate|up|down|gate_up)_proj\.bias$"
# Fields of transformers' classes, and the tensors that a model has only if they are true.
_BIASES = {
    "attention_bias": re.compile(_ATTENTION),
    "attention_out_bias": re.compile(r"\.self_attn\.o_proj\.bias$"),
    "mlp_bias": re.compile(_MLP),
    "use_bias": re.compile(f"{_ATTENTION}|{_MLP}"),
}


def denying_field(tensor: str, config: Fields) -> str:
    """Return the field that denies this bias; empty if none does, or if transformers reads no such field."""
    if not tensor.endswith(".bias"):
        return ""
    fields = [name for name, pattern in _BIASES.items() if pattern.search(tensor) and config.has_default(name)]
    # A field for the output projection alone takes precedence over the one for all of attention.
    field = "attention_out_bias" if "attention_out_bias" in fields else next(iter(fields), "")
    if not field:
        return ""
    value = config.value(field) if config.has(field) or config.is_null(field) else config.default(field)
    return "" if value else field
