"""Solar Pro (Upstage 2024): Llama whose later layers also read the hidden states before earlier ones."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import Fields, computed
from ..errors import LoadError, UnsupportedError
from ..nn import Keys, Step, Tensor, Weights
from . import llama
from .base import Mixer

ARCHES = ("solar",)


class SkipConnection:
    """A block that mixes a hidden state from before an earlier block into its input."""

    def __init__(self, block: Mixer, layer: int, kept: dict[int, Tensor], *, source: int, weight: float) -> None:
        self.block, self.layer, self.kept, self.source, self.weight = block, layer, kept, source, weight

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        self.kept[self.layer] = x
        if self.source >= 0:
            x = self.kept[self.source] * self.weight + x * (1.0 - self.weight)
        return self.block(x, step)


class Solar(llama.Windowless):
    """The key counts layers from 1; 0 means none."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        super().__init__(keys, weights, n_vocab)
        sources = keys.integers("skip_connection.sources", n := self.config.n_layer, high=n)
        weight, kept = keys.number("skip_connection.weight"), dict[int, Tensor]()
        for i, source in enumerate(sources):
            if source > i + 1:
                raise LoadError(
                    f"[{keys.arch}] skip_connection.sources: layer {i} cannot read the later layer {source - 1}"
                )
        self.blocks = [
            SkipConnection(block, i, kept, source=sources[i] - 1, weight=weight) for i, block in enumerate(self.blocks)
        ]


MODEL = Solar

# --- checkpoint ---


def _sources(config: Fields) -> list[int]:
    """Return the layer before which each layer's second input is taken, plus 1: bskcn_1 for bskcn_3, 2 for 4."""
    given = {n: config.items(f"bskcn_{n}") for n in (1, 2, 3, 4)}
    last, sources = {1: 0, 2: 0}, []
    for i in range(config.integer("num_hidden_layers")):
        last |= {n: i + 1 for n in (1, 2) if i in given[n]}
        read = [n - 2 for n in (3, 4) if i in given[n]]
        if len(read) > 1 or any(last[n] == 0 for n in read):
            raise UnsupportedError(
                f"[convert] unsupported 'bskcn_3' or 'bskcn_4': layer {i} reads two states, or none yet"
            )
        sources.append(last[read[0]] if read else 0)
    return sources


def _weight(config: Fields) -> float:
    """Return the weight of the second input: the last of two, which is for inference."""
    weights = config.items("bskcn_tv") or [0.9, 0.8]
    if len(weights) != 2 or not isinstance(weights[1], float | int):
        raise UnsupportedError("[convert] unsupported 'bskcn_tv': expected two numbers")
    return float(weights[1])


_LLAMA = llama.HF["LlamaForCausalLM"]
HF = {
    "SolarForCausalLM": replace(
        _LLAMA,
        arch="solar",
        keys={
            **_LLAMA.keys,
            "skip_connection.sources": computed("u32[]", _sources),
            "skip_connection.weight": computed("f32", _weight),
        },
        checks=(),
        unused=(*_LLAMA.unused, "sliding_window"),  # full attention, as in vLLM
    )
}
