"""Tiny EAGLE-3 heads in published form, and the paper's equations with transformers' layers.

The head's layer is transformers' Llama attention with wider inputs, its MLP and its norms.  The hidden states come from
transformers' own model, through hooks before its layers and after the last one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_checkpoints import N_VOCAB, class_of, config_of, shapes_of, weight_of, write_checkpoint

Array = npt.NDArray[Any]
N_KNOWN = 200  # tokens of the head
LAYER = "midlayer."
DTYPES = {"float32": "F32", "int64": "I64", "bool": "BOOL"}


def head_config(name: str, **changes: object) -> dict[str, object]:
    """Return the configuration of a head for a tiny model; None leaves a field out."""
    dim = config_of(name)["hidden_size"]
    fields: dict[str, object] = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": dim, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu",
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
        "vocab_size": N_VOCAB, "draft_vocab_size": N_KNOWN, "tie_word_embeddings": False, "attention_bias": False,
        "torch_dtype": "float32", "pretraining_tp": 1, "bos_token_id": 256, "eos_token_id": 257,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2], **changes,
    }  # fmt: skip
    return {key: value for key, value in fields.items() if value is not None or key == "rope_scaling"}


def known_tokens(n: int = N_KNOWN) -> Array:
    """Return the model's token for each token of the head, in no particular order."""
    return np.random.default_rng(3).permutation(N_VOCAB)[:n].astype(np.int64)


def head_shapes(config: Mapping[str, object], n_states: int = 3) -> dict[str, list[int]]:
    c: Mapping[str, Any] = config
    dim, heads, kv = (
        c["hidden_size"],
        c["num_attention_heads"] * c["head_dim"],
        c["num_key_value_heads"] * c["head_dim"],
    )
    ffn, of_model = c["intermediate_size"], n_states * c.get("target_hidden_size", dim)
    shapes = {"fc.weight": [dim, of_model], "norm.weight": [dim]}
    shapes |= {
        f"{LAYER}{norm}.weight": [dim] for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    }
    shapes |= {f"{LAYER}self_attn.{part}_proj.weight": [n, 2 * dim] for part, n in (("q", heads), ("k", kv), ("v", kv))}
    shapes |= {f"{LAYER}self_attn.o_proj.weight": [dim, heads], f"{LAYER}mlp.down_proj.weight": [dim, ffn]}
    shapes |= {f"{LAYER}mlp.{part}_proj.weight": [ffn, dim] for part in ("gate", "up")}
    if c.get("attention_bias"):
        shapes |= {
            f"{LAYER}self_attn.{part}_proj.bias": [n] for part, n in (("q", heads), ("k", kv), ("v", kv), ("o", dim))
        }
    shapes |= {"lm_head.weight": [c.get("draft_vocab_size", c["vocab_size"]), dim]}
    if c.get("norm_before_fc"):
        shapes["input_norm.weight"] = [of_model]
    if c.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": [of_model // n_states] for i in range(n_states)}
    return shapes


def head_tensors(config: Mapping[str, object], *, has_embedding: bool = False, n_states: int = 3) -> dict[str, Array]:
    """Return random tensors under the names in checkpoints."""
    shapes = head_shapes(config, n_states)
    if has_embedding:
        shapes["embed_tokens.weight"] = [N_VOCAB, int(config["hidden_size"])]  # type: ignore[call-overload]
    tensors: dict[str, Array] = {name: weight_of("eagle", name, tuple(shape)) for name, shape in shapes.items()}
    if (n := config.get("draft_vocab_size", N_VOCAB)) != N_VOCAB:
        tensors |= maps_of(known_tokens(n))  # type: ignore[arg-type]
    return tensors


def maps_of(tokens: Array) -> dict[str, Array]:
    """Return the tensors that tell which tokens a head knows."""
    is_known = np.zeros(N_VOCAB, bool)
    is_known[tokens] = True
    return {"d2t": tokens - np.arange(len(tokens)), "t2d": is_known}


def write_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write a safetensors file with several types."""
    header: dict[str, object] = {}
    offset = 0
    for name, values in tensors.items():
        ends = [offset, offset + values.nbytes]
        header[name] = {"dtype": DTYPES[str(values.dtype)], "shape": list(values.shape), "data_offsets": ends}
        offset += values.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(each.tobytes() for each in tensors.values()))


def write_head(folder: Path, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_tensors(folder / "model.safetensors", tensors)
    return folder


class HeadOracle:
    """transformers' model with a head."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, object], tensors: Mapping[str, Array]) -> None:
        import torch
        import transformers
        from transformers.models.llama import modeling_llama as llama

        self.torch, self.c = torch, config
        self.w = {key: torch.from_numpy(np.ascontiguousarray(values)) for key, values in tensors.items()}
        write_checkpoint(folder, name)
        kind = getattr(transformers, class_of(name))
        self.model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        own = {
            key: value for key, value in config.items() if key not in ("architectures", "rope_theta", "rope_scaling")
        }
        c = transformers.LlamaConfig(**own, rope_parameters=self._rope(config), attn_implementation="eager")
        self.rotary, self.attention = llama.LlamaRotaryEmbedding(c), llama.LlamaAttention(c, 0).eval()
        self.mlp = llama.LlamaMLP(c).eval()
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            getattr(self.attention, part).weight = torch.nn.Parameter(self.w[f"{LAYER}self_attn.{part}.weight"])
            if config.get("attention_bias"):
                getattr(self.attention, part).bias = torch.nn.Parameter(self.w[f"{LAYER}self_attn.{part}.bias"])
        for part in ("gate_proj", "up_proj", "down_proj"):
            getattr(self.mlp, part).weight = torch.nn.Parameter(self.w[f"{LAYER}mlp.{part}.weight"])

    @staticmethod
    def _rope(config: Mapping[str, object]) -> dict[str, object]:
        scaling: Any = config.get("rope_scaling") or {"rope_type": "default"}
        return {"rope_theta": config["rope_theta"], **scaling}

    def _norm(self, x: Any, name: str) -> Any:
        return x * self.torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + float(self.c["rms_norm_eps"])) * self.w[name]  # type: ignore[arg-type]

    def states(self, ids: Sequence[int]) -> list[Any]:
        """Return the input of each layer and the output of the last one, before the norm: ``[tokens, dim]`` each."""
        layers, found = self.model.model.layers, []
        hooks = [
            layer.register_forward_pre_hook(lambda _, args, kw: found.append((args or [kw["hidden_states"]])[0]), with_kwargs=True)
            for layer in layers
        ]  # fmt: skip
        hooks.append(
            layers[-1].register_forward_hook(
                lambda _, args, out: found.append(out[0] if isinstance(out, tuple) else out)
            )
        )
        with self.torch.no_grad():
            self.model(self.torch.tensor([list(ids)]), use_cache=False)
        for hook in hooks:
            hook.remove()
        return [state[0] for state in found]

    def features(self, ids: Sequence[int], layers: Sequence[int] = (0, 1, 2)) -> Any:
        """Return the model's features for the head, ``[tokens, dim]``."""
        states = [self.states(ids)[layer] for layer in layers]
        if self.c.get("fc_norm"):
            states = [self._norm(state, f"fc_norm.{i}.weight") for i, state in enumerate(states)]
        together = self.torch.cat(states, -1)
        if self.c.get("norm_before_fc"):
            together = self._norm(together, "input_norm.weight")
        return together @ self.w["fc.weight"].T

    def predict(self, ids: Sequence[int], features: Any) -> tuple[Any, Any]:
        """Return the logits after each of ``ids``, given features of one position before, and the head's features."""
        torch, n = self.torch, len(ids)
        embedding = self.w.get("embed_tokens.weight", self.model.get_input_embeddings().weight)
        with torch.no_grad():
            normed = self._norm(features, f"{LAYER}hidden_norm.weight")
            token = self._norm(embedding[torch.tensor(list(ids))], f"{LAYER}input_layernorm.weight")
            both = torch.cat([token, normed], -1)[None]
            mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
            attended = self.attention(both, self.rotary(both, torch.arange(n)[None]), mask)[0][0]
            x = (normed if self.c.get("norm_before_residual") else features) + attended
            x = x + self.mlp(self._norm(x, f"{LAYER}post_attention_layernorm.weight"))
            y = self._norm(x, "norm.weight")
            logits = y @ self.w.get("lm_head.weight", self.model.get_output_embeddings().weight).T
            return logits, y if self.c.get("norm_output") else x


def write_deep(folder: Path, name: str, n_layer: int) -> Path:
    """Write a checkpoint of random weights with more layers than the tiny ones."""
    shapes = {}
    for tensor, shape in shapes_of(name).items():
        if tensor.startswith("model.layers.0."):
            shapes |= {tensor.replace("layers.0.", f"layers.{i}."): shape for i in range(n_layer)}
        elif not tensor.startswith("model.layers."):
            shapes[tensor] = shape
    write_checkpoint(folder, name, shapes)
    fields = {**config_of(name), "num_hidden_layers": n_layer}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def write_agreeing(target: Path, head: Path, name: str, **changes: object) -> None:
    """Write a model whose next token depends mostly on the last one, and a head that mostly agrees with it.

    The head's attention sees only its own row and returns the embedding from which the model computes logits.
    Features, of the model or of the head, have little influence.
    """
    fields = {**config_of(name), "tie_word_embeddings": False}
    tensors = {tensor: weight_of(name, tensor, tuple(shape)) for tensor, shape in shapes_of(name).items()}
    dim = int(fields["hidden_size"])  # type: ignore[call-overload]
    tensors.setdefault("lm_head.weight", weight_of(name, "lm_head.weight", (N_VOCAB, dim)))
    for tensor, values in tensors.items():
        if tensor.endswith(("o_proj.weight", "down_proj.weight", "down_proj", "out_proj.weight")):
            tensors[tensor] = values * np.float32(0.008)
    write_checkpoint(target, name)
    (target / "config.json").write_text(json.dumps(fields))
    write_tensors(target / "model.safetensors", tensors)
    config = head_config(
        name, num_key_value_heads=4, head_dim=dim // 4, norm_before_residual=True, draft_vocab_size=250, **changes
    )
    own, tokens = head_tensors(config), known_tokens(250)
    first = np.eye(dim, 2 * dim, dtype=np.float32)
    own[f"{LAYER}input_layernorm.weight"] = np.ones(dim, np.float32)
    for part, factor in (("q", 5.0), ("k", 5.0), ("v", 20.0)):
        own[f"{LAYER}self_attn.{part}_proj.weight"] = first * np.float32(factor)
    own[f"{LAYER}self_attn.o_proj.weight"] = np.eye(dim, dtype=np.float32)
    own[f"{LAYER}mlp.down_proj.weight"] = own[f"{LAYER}mlp.down_proj.weight"] * np.float32(0.008)
    own["norm.weight"] = tensors["model.norm.weight"] + np.float32(name.startswith("qwen35"))
    own["lm_head.weight"] = np.ascontiguousarray(tensors["lm_head.weight"][tokens])
    write_head(head, config, own)


def write_head_file(
    head: Path,
    model: Path,
    out: Path,
    keys: Mapping[str, tuple[Any, str]] | None = None,
    tensors: Mapping[str, tuple[Array, str]] | None = None,
) -> Path:
    """Write the head like llama.cpp's converter, with the vocabulary of its model's file.

    ``keys`` and ``tensors``, with their types, replace or extend its own.
    """
    from quire.checkpoints.conversion import CheckpointReader
    from quire.gguf import GGUFReader, GGUFWriter

    source = GGUFReader(model).metadata
    scratch = out.with_suffix(".scratch")
    scratch.mkdir()
    with CheckpointReader(head, scratch, "f32") as reader, GGUFWriter(out, "eagle3") as writer:
        for metadata, of_head in ((reader.metadata, True), (source, False)):
            for key in metadata:
                if key.startswith("tokenizer." if not of_head else "eagle3.") and key not in (keys or {}):
                    kind = metadata.type_of(key)
                    writer.set(key, metadata.strings(key) if kind == "string[]" else metadata[key], kind)  # type: ignore[arg-type]
        for key, (value, kind) in (keys or {}).items():
            writer.set(key, value, kind)  # type: ignore[arg-type]
        all_tensors = {info.name: (reader.tensor(info.name).numpy(), str(info.dtype)) for info in reader.tensors}
        all_tensors |= tensors or {}
        for name, (values, dtype) in all_tensors.items():
            writer.add_tensor(name, dtype, values.shape)
        for name, (values, _) in all_tensors.items():
            writer.write(name, values)
    return out
