"""The tensors of Mistral's own folders, ``consolidated*.safetensors``, under the names that transformers gives them.

Mistral rotates neighbouring numbers of a head, transformers the halves, so the rows of q and k are reordered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedError
from ...files.folders import MISTRAL_STEM, is_mistral_folder
from ...files.safetensors import SafetensorsFile, SafetensorsFolder
from ..reading.folder import read_config
from .rank_files import RankTensors, has_rank_files

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..._native.core import Tensor

__all__ = ["open_tensors"]

_PARTS = {
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj", "feed_forward.gate": "block_sparse_moe.gate",
}  # fmt: skip
_WHOLE = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_OF_ENCODER = {
    "attention_norm": "attention_norm", "ffn_norm": "ffn_norm", "attention.wq": "attention.q_proj",
    "attention.wk": "attention.k_proj", "attention.wv": "attention.v_proj", "attention.wo": "attention.o_proj",
    "feed_forward.w1": "feed_forward.gate_proj", "feed_forward.w2": "feed_forward.down_proj",
    "feed_forward.w3": "feed_forward.up_proj",
}  # fmt: skip
_BESIDE = {
    "vision_encoder.patch_conv": "vision_tower.patch_conv", "vision_encoder.ln_pre": "vision_tower.ln_pre",
    "vision_language_adapter.w_in": "multi_modal_projector.linear_1",
    "vision_language_adapter.w_out": "multi_modal_projector.linear_2",
    "patch_merger.merging_layer": "multi_modal_projector.patch_merger.merging_layer",
    "pre_mm_projector_norm": "multi_modal_projector.norm",
}  # fmt: skip
_SUFFIXES = {"weight": "weight", "bias": "bias", "qscale_weight": "weight_scale", "qscale_act": "input_scale"}
_LAYER = re.compile(r"(vision_encoder\.transformer\.)?layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"feed_forward\.experts\.(\d+)\.(w[123])")
_QUANTIZER = re.compile(r"layers\.(\d+)\.attention\.(k|v|kv)_fake_quantizer\.qscale_act")


def open_tensors(folder: Path) -> SafetensorsFolder:
    """Open the tensors of a checkpoint folder in transformers' form, in Mistral's own, or in files of ranks."""
    if is_mistral_folder(folder):
        return _MistralTensors(folder)
    return RankTensors(folder) if has_rank_files(folder) else SafetensorsFolder(folder)


class _MistralTensors(SafetensorsFolder):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, MISTRAL_STEM)
        config = read_config(folder)
        text = config.get("text_config")
        has_images = isinstance(text, Mapping)
        self._n_heads = {"": config if not isinstance(text, Mapping) else text, "vision": config.get("vision_config")}
        self._stored = {_name(name, has_images): name for name in super().__iter__()}

    def _place(self, name: str) -> tuple[SafetensorsFile, str]:
        return super()._place(self._stored.get(name, name))

    def __getitem__(self, name: str) -> Tensor:
        file, stored = self._place(name)
        return file.tensor_of(stored, self.array(name))

    def array(self, name: str) -> npt.NDArray[Any]:
        """A tensor of any type; q and k with the halves of each head in turn."""
        import numpy as np

        values = super().array(name)
        found = re.search(r"\.(q|k)_proj\.(weight|bias)$", name)
        if found is None:
            return values
        config = self._n_heads["vision" if name.startswith("vision_tower.") else ""]
        assert isinstance(config, Mapping)
        n_head = config["num_attention_heads"]
        if found[1] == "k":
            n_head = config.get("num_key_value_heads", n_head)
        if not values.ndim or values.shape[0] % (2 * n_head):
            raise UnsupportedError(f"[convert] tensor '{self._stored[name]}' does not divide into {n_head} heads")
        split = values.reshape(n_head, -1, 2, *values.shape[1:])
        return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(values.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored


def _name(name: str, has_images: bool) -> str:
    """Return transformers' name of a tensor.  UnsupportedError for an unknown one."""
    before = "language_model." if has_images else ""
    module, _, last = name.rpartition(".")
    if last in _SUFFIXES:
        last = _SUFFIXES[last]
        if module in _WHOLE:
            return f"{before}{_WHOLE[module]}.{last}"
        if module in _BESIDE:
            return f"{_BESIDE[module]}.{last}"
        if (layer := _LAYER.fullmatch(module)) is not None:
            of_encoder, i, part = layer.groups()
            if of_encoder and part in _OF_ENCODER:
                return f"vision_tower.transformer.layers.{i}.{_OF_ENCODER[part]}.{last}"
            if not of_encoder and part in _PARTS:
                return f"{before}model.layers.{i}.{_PARTS[part]}.{last}"
            if not of_encoder and (expert := _EXPERT.fullmatch(part)) is not None:
                return f"{before}model.layers.{i}.block_sparse_moe.experts.{expert[1]}.{expert[2]}.{last}"
    if (scale := _QUANTIZER.fullmatch(name)) is not None:
        return f"{before}model.layers.{scale[1]}.self_attn.{scale[2]}_scale"
    raise UnsupportedError(f"[convert] unknown tensor '{name:.120}' in consolidated.safetensors")
