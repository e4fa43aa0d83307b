"""The role of a tensor, by its name, and the tensors that are not quantized."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

__all__ = ["Role", "is_quantizable", "role_of"]


class Role(Enum):
    """The roles of tensors that their types depend on."""

    OUTPUT = "output"
    EMBEDDING = "embedding"
    QKV = "attn_qkv.weight"
    KV_B = "attn_kv_b.weight"
    V = "attn_v.weight"
    K = "attn_k.weight"
    Q = "attn_q.weight"
    ATTENTION_OUT = "attn_output.weight"
    UP = "ffn_up"
    GATE = "ffn_gate"
    DOWN = "ffn_down"
    OTHER = ""

    @property
    def is_value(self) -> bool:
        """True if it produces the values of attention, which suffer most from few bits."""
        return self in (Role.V, Role.QKV, Role.KV_B)


_BY_PART = tuple(role for role in Role if role not in (Role.OUTPUT, Role.EMBEDDING, Role.OTHER))
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")

# Tensors that are small, or not used as matrices, and therefore kept unchanged.
_KEPT_PARTS = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight",
    "time_mix_first.weight", "time_mix_lerp_fused.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight",
    *(f"time_mix_{letter}{i}.weight" for letter, n in (("w", 3), ("v", 3), ("a", 3)) for i in range(n)),
    "time_mix_g1.weight", "time_mix_g2.weight",
    ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger",
    "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
_KEPT_NAMES = ("position_embd.weight", "token_types.weight", "task_types.weight", "rel_embd.weight")
_KEPT_BY_ARCHITECTURE = {
    "deepseek4": ("hc_", "_compressor_ape", "indexer_compressor_gate"),
    "glm5-next": (
        "hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate",
        "indexer_compressor_ape",
        "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight", "ssm_beta.weight",
        "attn_kv_a_mqa.weight", "attn_k_b.weight", "attn_v_b.weight",
    ),
}  # fmt: skip


def role_of(name: str) -> Role:
    """Return the role of the tensor with this name."""
    if name == "output.weight":
        return Role.OUTPUT
    if name in _EMBEDDINGS:
        return Role.EMBEDDING
    return next((role for role in _BY_PART if role.value in name), Role.OTHER)


def is_quantizable(name: str, shape: Sequence[int], architecture: str) -> bool:
    """Return True if a tensor (shape in NumPy order) may get another type."""
    if all(n == 1 for n in shape[:-1]) or not name.endswith("weight") or name in _KEPT_NAMES:
        return False
    kept = (*_KEPT_PARTS, *_KEPT_BY_ARCHITECTURE.get(architecture, ()))
    return not any(part in name for part in kept)
