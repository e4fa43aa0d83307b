"""VaultGemma (Google 2025): Gemma 2 without the norms after attention and MLP."""

from __future__ import annotations

from dataclasses import replace

from . import gemma2
from .base import Block

ARCHES = ("vaultgemma",)


class VaultGemma(gemma2.Gemma2):
    block = Block


MODEL = VaultGemma

# --- checkpoint ---

_GEMMA2 = gemma2.HF["Gemma2ForCausalLM"]
HF = {
    "VaultGemmaForCausalLM": replace(
        _GEMMA2,
        arch="vaultgemma",
        tensors={name: source for name, source in _GEMMA2.tensors.items() if ".post_" not in name},
    )
}
