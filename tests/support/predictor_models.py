"""Tiny checkpoints with a layer that predicts later tokens, and its equations with transformers' layers.

transformers ignores such layers.  So the model is opened with one more layer, which has the predicting layer's weights,
and that layer is run alone on the input defined by the equations of DeepSeek-V3 (2024, section 2.2) and its siblings.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_checkpoints import N_VOCAB, class_of, config_of, shapes_of, weight_of, write_checkpoint, write_safetensors

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Kind:
    """A kind of predicting layer.

    ``block`` has the layers whose shapes it has, by the beginnings of tensor names.  ``prefix`` and ``names`` give the
    names of its tensors in checkpoints, by llama.cpp's names.  ``fields`` are those of a configuration with it as an
    ordinary layer.  ``adds_one`` tells that 1 is added to the weights of norms.
    """

    block: dict[str, int]
    prefix: str
    names: dict[str, str]
    fields: dict[str, list[str]]
    adds_one: bool = False
    is_normed: bool = True
    has_own_head: bool = False


def _numbered(
    n: int, fields: dict[str, list[str]], *, like: int = -1, has_own_head: bool = False, norm: str = "shared_head.norm"
) -> Kind:
    layer = f"model.layers.{n}."
    names = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head_norm": norm}
    names |= {"embed_tokens": "embed_tokens", "shared_head_head": "shared_head.head"}
    full = {name: f"{layer}{each}.weight" for name, each in names.items()}
    return Kind({"": like % n}, layer, full, fields, has_own_head=has_own_head)


_QWEN = Kind(
    {"": 4},
    "mtp.layers.0.",
    {
        "eh_proj": "mtp.fc.weight",
        "enorm": "mtp.pre_fc_norm_embedding.weight",
        "hnorm": "mtp.pre_fc_norm_hidden.weight",
        "shared_head_norm": "mtp.norm.weight",
    },
    {"layer_types": ["full_attention"]},
    adds_one=True,
)
# MiMo's layer is dense, with a window.  Only files are read, so its names are made up.
_MIMO = Kind(
    {"self_attn": 1, "mlp": 0, "": 1},
    "model.layers.4.",
    {name: f"predictor.{name}.weight" for name in ("eh_proj", "enorm", "hnorm", "shared_head_norm")},
    {"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
    is_normed=False,
)
KINDS = {
    "glm4moe": _numbered(4, {}, has_own_head=True),
    "deepseek2-v3": _numbered(3, {}),
    "deepseek2-glm": _numbered(3, {"mlp_layer_types": ["sparse"]}),
    "deepseek32": _numbered(3, {}),
    "glm-dsa": _numbered(3, {}, like=1),
    "hy_v3": _numbered(3, {}, norm="final_layernorm"),
    "qwen35": _QWEN,
    "qwen35moe": _QWEN,
    "qwen3next": _QWEN,
    "mimo2": _MIMO,
}


def n_layer_of(name: str) -> int:
    n = config_of(name)["num_hidden_layers"]
    assert isinstance(n, int)
    return n


def kind_of(name: str) -> Kind:
    """Return the kind, with the number of the last attention layer if the block is like that one."""
    kind, kinds = KINDS[name], config_of(name).get("layer_types")
    if not kind.adds_one or not isinstance(kinds, list):
        return kind
    return Kind({"": max(i for i, each in enumerate(kinds) if each == "full_attention")}, kind.prefix, kind.names,
                kind.fields, adds_one=True)  # fmt: skip


def block_shapes(name: str) -> dict[str, list[int]]:
    """Return the block's shapes, by the part of the name after the layer's number."""
    kind, found = kind_of(name), {}
    for tensor, shape in shapes_of(name).items():
        for part, layer in kind.block.items():
            inner = tensor.removeprefix(f"model.layers.{layer}.")
            first = next(each for each in kind.block if inner.startswith(each))
            if inner != tensor and first == part:
                found[inner] = shape
    return found


def predictor_tensors(name: str) -> dict[str, Array]:
    """Return the predicting layer's tensors, under the names in its checkpoint."""
    kind, dim = kind_of(name), int(config_of(name)["hidden_size"])  # type: ignore[call-overload]
    shapes = {f"{kind.prefix}{inner}": shape for inner, shape in block_shapes(name).items()}
    shapes |= {kind.names["eh_proj"]: [dim, 2 * dim]}
    shapes |= {kind.names[norm]: [dim] for norm in ("enorm", "hnorm", "shared_head_norm")}
    if kind.has_own_head:
        shapes |= {kind.names[matrix]: [N_VOCAB, dim] for matrix in ("embed_tokens", "shared_head_head")}
    return {tensor: weight_of(name, tensor, tuple(shape)) for tensor, shape in shapes.items()}


def trunk_tensors(name: str) -> dict[str, Array]:
    return {tensor: weight_of(name, tensor, tuple(shape)) for tensor, shape in shapes_of(name).items()}


def write_predicting(folder: Path, name: str, tensors: dict[str, Array] | None = None) -> None:
    """Write a checkpoint as published, with a layer that predicts later tokens."""
    write_checkpoint(folder, name)
    tensors = {**trunk_tensors(name), **predictor_tensors(name)} if tensors is None else tensors
    write_safetensors(folder / "model.safetensors", tensors)


def write_with_a_layer_more(folder: Path, name: str) -> dict[str, object]:
    """Write a checkpoint with the predicting layer as an ordinary one; return the configuration."""
    kind, n = kind_of(name), n_layer_of(name)
    fields = {**config_of(name), "num_hidden_layers": n + 1}
    for field, more in kind.fields.items():
        if isinstance(before := fields.get(field), list):
            fields[field] = [*before, *more]
    tensors = trunk_tensors(name)
    for inner in block_shapes(name):
        published = f"{kind.prefix}{inner}"
        tensors[f"model.layers.{n}.{inner}"] = weight_of(name, published, tuple(block_shapes(name)[inner]))
    write_checkpoint(folder, name)
    (folder / "config.json").write_text(json.dumps(fields))
    write_safetensors(folder / "model.safetensors", tensors)
    return fields


class PredictorOracle:
    """transformers' model, and the equations around its last layer."""

    def __init__(self, folder: Path, name: str) -> None:
        import torch
        import transformers

        self.torch, self.kind = torch, kind_of(name)
        fields = write_with_a_layer_more(folder, name)
        kind = getattr(transformers, class_of(name))
        whole = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        n = n_layer_of(name)
        own = predictor_tensors(name)
        self.tensors = {part: torch.from_numpy(own[full]) for part, full in self.kind.names.items() if full in own}
        self.eps, self.head = float(fields["rms_norm_eps"]), whole.lm_head.weight  # type: ignore[arg-type]
        self.embedding = whole.get_input_embeddings().weight
        self.block = self._cut(whole, [n])
        if (indexer := getattr(self.block.layers[0].self_attn, "indexer", None)) is not None:
            indexer.index_topk = 1 << 20  # Quire's layer attends to all tokens
        self.trunk = self._cut(whole, list(range(n)))

    def _cut(self, whole: Any, layers: list[int]) -> Any:
        """Return the model with some of its layers and without the last norm."""
        model = copy.deepcopy(whole.model)
        model.config.num_hidden_layers = len(layers)
        model.layers = self.torch.nn.ModuleList([model.layers[i] for i in layers])
        for field in ("layer_types", "mlp_layer_types"):
            if getattr(model.config, field, None) is not None:
                setattr(model.config, field, [getattr(whole.config, field)[i] for i in layers])
        if hasattr(model, "norm"):
            self.norm = whole.model.norm
            model.norm = self.torch.nn.Identity()
        return model

    def _rms(self, x: Any, part: str) -> Any:
        weight = self.tensors[part] + (1.0 if self.kind.adds_one else 0.0)
        return x * self.torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * weight

    def features(self, ids: list[int]) -> Any:
        """Return the model's features ``[tokens, dim]``."""
        with self.torch.no_grad():
            x = self.trunk(self.torch.tensor([ids]), use_cache=False).last_hidden_state
            return (self.norm(x) if self.kind.is_normed else x)[0]

    def predict(self, ids: list[int], features: Any) -> tuple[Any, Any]:
        """Return the logits after ``ids``, given features of one position before, and the layer's own features."""
        with self.torch.no_grad():
            embedding = self.tensors.get("embed_tokens", self.embedding)[self.torch.tensor(ids)]
            both = self.torch.cat([self._rms(embedding, "enorm"), self._rms(features, "hnorm")], -1)
            x = both @ self.tensors["eh_proj"].T
            x = self.block(inputs_embeds=x[None], use_cache=False).last_hidden_state[0]
            normed = self._rms(x, "shared_head_norm")
            logits = normed @ self.tensors.get("shared_head_head", self.head).T
            return logits, normed if self.kind.is_normed else x
