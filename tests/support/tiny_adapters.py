"""LoRA adapters for tiny checkpoints, as llama.cpp converts them and as PEFT writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from quire.gguf import GGUFWriter
from tiny_checkpoints import write_safetensors

Array = npt.NDArray[np.float32]
# As PEFT 0.21 writes it if only rank and alpha are set.
PEFT_CONFIG: dict[str, Any] = {
    "alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None, "auto_mapping": None,
    "base_model_name_or_path": "somebody/a-model", "bias": "none", "corda_config": None, "ensure_weight_tying": False,
    "eva_config": None, "exclude_modules": None, "fan_in_fan_out": False, "inference_mode": True,
    "init_lora_weights": True, "kasa_config": None, "layer_replication": None, "layers_pattern": None,
    "layers_to_transform": None, "loftq_config": {}, "lora_alpha": 16, "lora_bias": False, "lora_dropout": 0.1,
    "lora_ga_config": None, "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None,
    "monteclora_config": None, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 4,
    "rank_pattern": {}, "revision": None, "target_parameters": None, "task_type": "CAUSAL_LM",
    "trainable_token_indices": None, "use_bdlora": None, "use_dora": False, "use_qalora": False, "use_rslora": False,
    "velora_config": None,
}  # fmt: skip


def write_gguf_adapter(
    path: Path, tensors: Mapping[str, Array], keys: Mapping[str, str | float | None] | None = None
) -> Path:
    """Write a Llama adapter.  ``keys`` changes or adds keys; None leaves one out."""
    every = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 6.0} | dict(keys or {})
    arch = every.pop("general.architecture", "llama")
    with GGUFWriter(path, str(arch)) as writer:
        for key, value in every.items():
            if value is not None:
                writer.set(key, value, "string" if isinstance(value, str) else "f32")
        for name, array in tensors.items():
            writer.add_tensor(name, "f32", array.shape)
        for name, array in tensors.items():
            writer.write(name, np.ascontiguousarray(array))
    return path


def write_peft_adapter(
    folder: Path, halves: Mapping[str, Array], config: Mapping[str, Any], dtype: str = "F32"
) -> Path:
    """Write a folder like PEFT.  ``halves`` are named by modules with ``.lora_A`` and ``.lora_B``.

    Vectors and halves of embeddings have their whole names.
    """
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(PEFT_CONFIG | dict(config)), encoding="utf-8")
    tensors = {
        f"base_model.model.{name}{'' if half.ndim == 1 or '.lora_embedding_' in name else '.weight'}": np.ascontiguousarray(
            half
        )
        for name, half in halves.items()
    }
    write_safetensors(folder / "adapter_model.safetensors", tensors, dtype)
    return folder
