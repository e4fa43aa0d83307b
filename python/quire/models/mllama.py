"""Llama 3.2 Vision (Meta 2024), text: Llama 3.1 without the layers that attend to images, which text skips."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ..checkpoints.mapping import Array, Checkpoint, Fields, Source, Target, computed, tensor
from ..checkpoints.mapping.rope import Entry
from ..errors import LoadError
from . import llama

# --- checkpoint ---

_PUBLISHED = [3, 8, 13, 18, 23, 28, 33, 38]


def _own_layers(config: Fields) -> list[int]:
    """Return the numbers of the layers that attend to text."""
    n, listed = config.integer("num_hidden_layers", 40), config.value("cross_attention_layers")
    across = _PUBLISHED if listed is None else listed
    if not isinstance(across, list) or not all(isinstance(i, int) for i in across):
        raise LoadError(f"[convert] 'cross_attention_layers' of {config.where} is {listed!r:.60}: expected numbers")
    return [i for i in range(n) if i not in across]


def _rows_of_text(x: Array, config: Fields) -> Array:
    """Drop the last rows of the embedding, which stand for images."""
    rows: Array = x[: config.integer("vocab_size", 128256)].copy()
    return rows


@dataclass(frozen=True)
class _WithoutImages(Checkpoint):
    """Layers that attend to text follow each other in files."""

    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        table: dict[str, str | Source] = {}
        for name, entry in self.tensors.items():
            source = Source.of(entry)
            for ours, theirs in enumerate(_own_layers(config)) if "{i}" in name else [(0, 0)]:
                names = tuple(one.replace("{i}", str(theirs)) for one in source.names)
                table[name.replace("{i}", str(ours))] = replace(source, names=names)
        across = {*range(config.integer("num_hidden_layers", 40))} - {*_own_layers(config)}
        ignored = tuple(f"*layers.{i}.*" for i in across)
        named = Checkpoint(**{**vars(self), "tensors": table, "ignored": (*self.ignored, *ignored)})
        found = named.targets(config, entries, there)
        for i in range(len(_own_layers(config))):
            if not any(target.name.startswith(f"blk.{i}.") for target in found):
                raise LoadError(f"[convert] the checkpoint lacks the tensors of layer {_own_layers(config)[i]}")
        return found


_LLAMA = vars(llama.HF["LlamaForCausalLM"])
_TEXT = {
    **_LLAMA,
    "keys": {**llama.KEYS, "block_count": computed("u32", lambda config: len(_own_layers(config)))},
    "tensors": {**llama.TENSORS, "token_embd": tensor("model.embed_tokens", change=_rows_of_text)},
    "has_empty_layers": True,
    "homes": (("model.", "model.language_model."), ("", "language_model."), ("model.", "language_model.")),
    "ignored": (*_LLAMA["ignored"], "*vision_model.*", "*multi_modal_projector.*"),
    "unused": (*_LLAMA["unused"], "vision_config", "image_token_*", "dropout", "cross_attention_layers"),
    "section": "text_config",
}
HF = {
    "MllamaForCausalLM": _WithoutImages(**_TEXT),
    "MllamaForConditionalGeneration": _WithoutImages(**_TEXT),
}
