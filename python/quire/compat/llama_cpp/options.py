"""Translate the arguments of ``Llama``'s constructor."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from ...errors import UnsupportedError
from ...params.engine_options import cache_dtype_of
from ..ignored import note_ignored, refuse_set, refuse_unknown

__all__ = ["engine_options", "pretrained"]

_LOG = logging.getLogger("quire")
_PLACE = "llama_cpp.Llama"
# Types of the cache by ggml's numbers.
_KV_DTYPES = {0: "f32", 1: "f16", 2: "q4_0", 7: "q5_1", 8: "q8_0", 30: "bf16"}
# Arguments without effect here, with llama-cpp-python's defaults.
_IGNORED: Mapping[str, object] = {
    "n_ubatch": 512, "n_threads_batch": None,
    "logits_all": False, "embedding": False, "offload_kqv": True, "op_offload": None, "swa_full": None,
    "flash_attn": False, "last_n_tokens_size": 64, "numa": False, "no_perf": False, "draft_model": None,
    "verbose": True, "chat_format": None, "spm_infill": False, "rpc_servers": None, "use_mmap": True,
    "kv_unified": True,
}  # fmt: skip
# Arguments that would change what the model computes.
_REFUSED: Mapping[str, object] = {
    "vocab_only": False, "pooling_type": -1, "lora_base": None, "chat_handler": None, "tokenizer": None,
}  # fmt: skip
# Arguments that replace keys of the file, with the values that do not.
_ROPE: Mapping[str, object] = {
    "rope_freq_base": 0.0, "rope_freq_scale": 0.0, "yarn_ext_factor": -1.0, "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_orig_ctx": 0,
}  # fmt: skip
_SCALINGS = {0: "none", 1: "linear", 2: "yarn"}


def engine_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of ``quire.LLM``.  UnsupportedError or TypeError names one that has no counterpart."""
    known = {"n_gpu_layers", "n_ctx", "n_batch", "n_threads", "use_mlock", "type_k", "type_v", "seed"}
    known |= {"lora_path", "lora_scale", "split_mode", "main_gpu", "tensor_split", "kv_overrides", "rope_scaling_type"}
    refuse_unknown("Llama", given, {*known, *_IGNORED, *_REFUSED, *_ROPE})
    refuse_set(_PLACE, given, _REFUSED)
    note_ignored(_PLACE, given, _IGNORED)
    options: dict[str, Any] = {"n_ctx": given.get("n_ctx", 512) or None}  # 0: what the model was trained on
    if given.get("n_threads"):
        options["threads"] = given["n_threads"]
    if given.get("n_batch"):
        options["max_step_tokens"] = given["n_batch"]
    if given.get("use_mlock"):
        options["load"] = "lock"
    if given.get("lora_path") is not None:
        options["adapters"] = ((os.fspath(given["lora_path"]), given.get("lora_scale", 1.0)),)
    if given.get("kv_overrides"):
        options["override_kv"] = given["kv_overrides"]
    options |= {name: given[name] for name, usual in _ROPE.items() if given.get(name, usual) != usual}
    if (scaling := given.get("rope_scaling_type", -1)) != -1:
        if scaling not in _SCALINGS:
            raise UnsupportedError(f"[{_PLACE}] rope_scaling_type {scaling} is unsupported: expected -1, 0, 1 or 2")
        options["rope_scaling"] = _SCALINGS[scaling]
    kinds = {name: given[name] for name in ("type_k", "type_v") if given.get(name) is not None}
    for name, kind in kinds.items():
        if kind not in _KV_DTYPES:
            raise UnsupportedError(
                f"[{_PLACE}] {name} {kind} is unsupported: expected {', '.join(_KV_DTYPES.values())}"
            )
    if kinds:
        options["kv_dtype"] = cache_dtype_of(*(_KV_DTYPES.get(kinds.get(name, -1)) for name in ("type_k", "type_v")))
    options["device"] = "cpu"  # as in llama-cpp-python unless layers are requested
    if given.get("n_gpu_layers"):
        options["device"] = _device()
        if given["n_gpu_layers"] > 0 and options["device"] != "cpu":
            options["n_gpu_layers"] = given["n_gpu_layers"]
        options |= _split_options(given)
    return options


def _split_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for several devices.  Mode 1, layers on all of them, is the default."""
    mode = given.get("split_mode", 1)
    if mode not in (0, 1):
        raise UnsupportedError(f"[{_PLACE}] split_mode {mode} is not supported: expected 0 or 1")
    shares = given.get("tensor_split")
    options: dict[str, Any] = {"split_mode": "none"} if mode == 0 else {}
    if mode == 0 and given.get("main_gpu"):
        options["main_gpu"] = given["main_gpu"]
    if mode == 1 and shares is not None:
        options["tensor_split"] = tuple(shares)
    return options


def _device() -> str:
    """Return the first GPU, or the CPU with a warning."""
    from ...hardware import has_gpu

    if has_gpu():
        return "gpu"
    _LOG.warning("[%s] no GPU found that this build supports: running on the CPU", _PLACE)
    return "cpu"


def pretrained(
    repo_id: str, filename: str | None, local_dir: str | os.PathLike[str] | None, cache_dir: str | None
) -> str:
    """Return the path of a file of the hub, downloaded if needed.  UnsupportedError without ``huggingface_hub``."""
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise UnsupportedError(
            f"[{_PLACE}] from_pretrained needs huggingface_hub, which is not installed: pip install quire-llm[hub]"
        ) from error
    import fnmatch

    pattern = filename or "*.gguf"
    names = sorted(name for name in hub.list_repo_files(repo_id) if fnmatch.fnmatch(name, pattern))
    if len(names) != 1:
        found = ", ".join(names[:10]) or "none"
        raise UnsupportedError(
            f"[{_PLACE}] filename {pattern!r} does not name one file of {repo_id}: it matches {found}"
        )
    folder = None if local_dir is None else os.fspath(local_dir)
    return hub.hf_hub_download(repo_id, names[0], cache_dir=cache_dir, local_dir=folder)
