"""Files of published repositories with tiny weights.

``tests/published`` has the fields of the repositories' files.  Sizes are those of a tiny checkpoint, so that its
weights fit.  All other fields are as published, except those in ``small``, whose length is that of a head.  ``absent``
are sizes that the repository does not have under the tiny checkpoint's name.  ``checked`` tells that the names of the
fields were compared with a public copy of the file; other rows were written from general knowledge of the model.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tiny_checkpoints import config_of

FOLDER = Path(__file__).resolve().parents[1] / "published"
SIZES = frozenset(
    [
        "vocab_size",
        "padded_vocab_size",
        "hidden_size",
        "intermediate_size",
        "intermediate_size_mlp",
        "num_hidden_layers",
        "num_layers",
        "num_decoder_layers",
        "n_layer",
        "n_layers",
        "depth",
        "num_attention_heads",
        "num_key_value_heads",
        "num_kv_heads",
        "num_heads",
        "n_head",
        "n_heads",
        "head_dim",
        "kv_channels",
        "multi_query_group_num",
        "max_position_embeddings",
        "n_positions",
        "n_ctx",
        "max_seq_len",
        "seq_length",
        "n_embd",
        "n_embed",
        "n_inner",
        "d_model",
        "d_ff",
        "d_kv",
        "dim",
        "hidden_dim",
        "ffn_hidden_size",
        "query_pre_attn_scalar",
        "global_head_dim",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts",
        "num_local_experts",
        "num_experts_per_tok",
        "moe_every_n_layers",
        "moe_top_k",
        "first_k_dense_replace",
        "n_group",
        "topk_group",
        "kv_lora_rank",
        "q_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "rotary_dim",
        "layer_types",
        "type_vocab_size",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "cls_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
        "image_token_index",
        "boi_token_index",
        "eoi_token_index",
        "mm_tokens_per_image",
        "patch_size",
        "out_hidden_size",
        "num_position_embeddings",
        "image_size",
        "window_size",
        "deepstack_visual_indexes",
        "fullatt_block_indexes",
        "spatial_merge_size",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "hidden_size_per_layer_input",
        "vocab_size_per_layer_input",
        "num_kv_shared_layers",
        "altup_num_inputs",
        "altup_active_idx",
        "laurel_rank",
        "activation_sparsity_pattern",
        "no_rope_layers",
        "moe_layers",
        "full_attn_idxs",
        "conv_L_cache",
        "attention_chunk_size",
        "floor_scale",
        "mamba_n_heads",
        "mamba_n_groups",
        "mamba_d_state",
        "mamba_d_head",
        "mamba_d_conv",
        "mamba_expand",
        "mamba_chunk_size",
        "state_size",
        "conv_kernel",
        "expand",
        "time_step_rank",
    ]
)
_SECTIONS = ("text_config", "vision_config")
Row = Mapping[str, Any]


def rows(kind: str) -> dict[str, Row]:
    """Return the rows of one kind of file, by repository, with the tiny checkpoint to use as its weights."""
    found: dict[str, Row] = json.loads((FOLDER / f"{kind}.json").read_text(encoding="utf-8"))
    return found


def configuration(row: Row) -> dict[str, Any]:
    """Return a repository's ``config.json`` with the sizes of its tiny checkpoint."""
    tiny = config_of(row["tiny"])
    if "text_config" not in row["config"] and isinstance(text := tiny.get("text_config"), dict):
        tiny |= text  # older files of image models have a single level
    tiny = {name: value for name, value in tiny.items() if name not in row.get("absent", ())}
    return _sized(row["config"], tiny, row.get("sized", ())) | row.get("small", {})


def _sized(published: Row, tiny: Row, sized: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Replace the sizes in a published row.  ``sized`` are paths of further fields with sizes of this repository."""
    found: dict[str, Any] = {}
    for name, value in ({name: tiny[name] for name in tiny if name in SIZES} | dict(published)).items():
        path = prefix + name
        if name in SIZES or path in sized:
            if name in tiny:
                found[name] = tiny[name]
        elif isinstance(value, dict) and name in tiny and (name in _SECTIONS or any(path in one for one in sized)):
            found[name] = _sized(value, tiny[name], sized, f"{path}.")
        else:
            found[name] = value
    return found
