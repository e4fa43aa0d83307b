"""Replace keys of a model's file by the options that name others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import UnsupportedError
from ...files.changed_keys import override_keys
from ...nn.llama_cpp_keys import LLAMA_CPP_KEYS
from ...tokenizer.from_gguf import READ_KEYS

if TYPE_CHECKING:
    from ...files.changed_keys import KeyValue
    from ...files.gguf import GGUFReader
    from ...params.engine_options import EngineConfig

__all__ = ["apply_overrides"]

# Options and the keys that they replace, below the architecture's name.
_ROPE = {
    "rope_scaling": "rope.scaling.type",
    "rope_scale": "rope.scaling.factor",
    "rope_freq_base": "rope.freq_base",
    "yarn_orig_ctx": "rope.scaling.original_context_length",
    "yarn_ext_factor": "rope.scaling.yarn_ext_factor",
    "yarn_attn_factor": "rope.scaling.yarn_attn_factor",
    "yarn_beta_slow": "rope.scaling.yarn_beta_slow",
    "yarn_beta_fast": "rope.scaling.yarn_beta_fast",
}
# llama.cpp's values for those of the model's file.
_UNSET = {
    "rope_freq_base": (0,),
    "yarn_orig_ctx": (0,),
    **dict.fromkeys(("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast"), (-1,)),
}


def apply_overrides(reader: GGUFReader, config: EngineConfig) -> None:
    """Let a reader return the keys that the options name instead of the file's.

    Raises:
        RequestError: A value has another type than the file's.
        UnsupportedError: No model reads such a key.
    """
    arch = reader.metadata.text("general.architecture")
    values: dict[str, KeyValue] = {}
    for name, key in _ROPE.items():
        if (value := getattr(config, name)) is not None and value not in _UNSET.get(name, ()):
            values[f"{arch}.{key}"] = value
    if config.rope_freq_scale:
        values[f"{arch}.rope.scaling.factor"] = 1.0 / config.rope_freq_scale
    for key, one in config.override_kv:
        if key not in reader.metadata and not _is_read(key, arch):
            raise UnsupportedError(f"[engine] override_kv: unknown key '{key:.80}' for architecture {arch}")
        values[key] = one
    if values:
        override_keys(reader, values)


def _is_read(key: str, arch: str) -> bool:
    """Return whether models of the architecture may have the key."""
    name = key.removeprefix(f"{arch}.")
    return key in READ_KEYS or (name != key and name in LLAMA_CPP_KEYS)
