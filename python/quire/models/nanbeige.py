"""Nanbeige 4.2 (Nanbeige 2026): Llama whose layers run several times, with the output norm between the passes."""

from __future__ import annotations

import copy
from dataclasses import replace

from ..checkpoints.mapping import computed
from ..errors import LoadError
from ..nn import GatedMLP, Keys, Step, Tensor, Weights, frequency_factors, rope_spec
from . import llama
from .base import Block, Decoder, DenseConfig, Layer, Mixer, SandwichBlock
from .llama import Attention

ARCHES = ("nanbeige",)
MAX_LAYERS = 512


class Again:
    """A block that runs once more, with a cache of its own."""

    def __init__(self, block: Block | SandwichBlock, layer: int) -> None:
        self.block = copy.copy(block)
        self.block.attention = copy.copy(block.attention)
        self.block.attention.layer = layer  # type: ignore[attr-defined]

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return self.block(x, step)


class Normed:
    """A block whose output is normalized, as between two passes."""

    def __init__(self, block: Mixer, norm: Layer) -> None:
        self.block, self.norm = block, norm

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return self.norm(self.block(x, step))


class Nanbeige(Decoder):
    """Files store q and k interleaved, as for Llama, and the layers once; each pass has its own rows in the cache."""

    block: type[Block] | type[SandwichBlock] = Block

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        n, n_pass = config.n_layer, keys.integer("num_loops", 1, low=1, high=MAX_LAYERS)
        if n * n_pass > MAX_LAYERS:
            raise LoadError(f"[{keys.arch}] num_loops {n_pass} is out of range: expected at most {MAX_LAYERS // n}")
        is_normed = not keys.flag("skip_loop_final_norm", False)
        factors = frequency_factors(weights, config.n_rot)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="interleaved", factors=factors)
        blocks = [
            self.block(
                config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim)
            )
            for i, block in enumerate(weights.blocks(n))
        ]
        again: list[Mixer] = [Again(block, i + k * n) for k in range(1, n_pass) for i, block in enumerate(blocks)]
        super().__init__(replace(config, n_layer=n * n_pass), weights, [*blocks, *again])
        if is_normed:
            ends = set(range(n - 1, n * (n_pass - 1), n))
            self.blocks = [Normed(block, self.norm) if i in ends else block for i, block in enumerate(self.blocks)]


MODEL = Nanbeige

# --- checkpoint ---

_LLAMA = llama.HF["LlamaForCausalLM"]
HF = {
    "NanbeigeForCausalLM": replace(
        _LLAMA,
        arch="nanbeige",
        keys={
            **_LLAMA.keys,
            "num_loops": computed("u32", lambda config: config.integer("num_loops", 1, low=1)),
            "skip_loop_final_norm": computed("bool", lambda config: config.flag("skip_loop_final_norm", False)),
        },
    )
}
