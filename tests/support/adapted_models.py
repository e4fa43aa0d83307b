"""Parts of transformers' models put together as models have them that transformers does not know."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

Config = Mapping[str, Any]


def layers_of_other_sizes(model: Any, config: Config) -> None:
    """OpenELM: each layer has its numbers of heads and of units."""
    n_heads, n_kv_heads, factors = (config[name] for name in ("num_query_heads", "num_kv_heads", "ffn_multipliers"))
    width, divisor = config["model_dim"], config["ffn_dim_divisor"]
    for i, (n_head, n_kv_head, factor) in enumerate(zip(n_heads, n_kv_heads, factors, strict=True)):
        own = copy.deepcopy(model.config)
        own.num_attention_heads, own.num_key_value_heads = n_head, n_kv_head
        own.intermediate_size = round(factor * width / divisor) * divisor
        model.model.layers[i] = Qwen3DecoderLayer(own, i)


def with_layer_norms(model: Any, config: Config) -> None:
    """Jais: layer norms, scores divided by the size of a head, scales of embeddings and of logits."""
    width, eps = config["n_embd"], config["layer_norm_epsilon"]
    model.model.norm = torch.nn.LayerNorm(width, eps)
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = (
            torch.nn.LayerNorm(width, eps),
            torch.nn.LayerNorm(width, eps),
        )
        layer.self_attn.scaling = 1.0 / layer.self_attn.head_dim
    embedding, logits = config["mup_embeddings_scale"], config["mup_output_alpha"] * config["mup_width_scale"]
    model.model.embed_tokens.register_forward_hook(lambda module, given, out: out * embedding)
    model.lm_head.register_forward_hook(lambda module, given, out: out * logits)


class NoAttention(torch.nn.Module):
    """Nothing, or one product of the rows."""

    def __init__(self, width: int, is_product: bool) -> None:
        super().__init__()
        self.linear_attn = torch.nn.Linear(width, width, bias=False) if is_product else None

    def forward(self, hidden_states: torch.Tensor, **_: object) -> tuple[torch.Tensor, None]:
        return (torch.zeros_like(hidden_states) if self.linear_attn is None else self.linear_attn(hidden_states)), None


class NoMLP(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


def layers_of_other_parts(model: Any, config: Config) -> None:
    """DeciLM: layers with other numbers of heads and of units, or without."""
    for i, parts in enumerate(config["block_configs"]):
        own, attention, mlp = copy.deepcopy(model.config), parts["attention"], parts["ffn"]
        group, factor = attention["n_heads_in_group"], mlp["ffn_mult"]
        own.num_key_value_heads = own.num_attention_heads // (group or 1)
        own.intermediate_size = math.ceil(int(2 * (factor or 1.0) * own.hidden_size / 3) / 256) * 256
        layer = model.model.layers[i] = LlamaDecoderLayer(own, i)
        if group is None:
            layer.self_attn = NoAttention(own.hidden_size, attention["replace_with_linear"])
            if not attention["replace_with_linear"]:
                layer.input_layernorm = torch.nn.Identity()
        if factor is None:
            layer.mlp, layer.post_attention_layernorm = NoMLP(), torch.nn.Identity()


ADAPTED: dict[str, Callable[[Any, Config], None]] = {
    "OpenELMForCausalLM": layers_of_other_sizes,
    "JAISLMHeadModel": with_layer_norms,
    "DeciLMForCausalLM": layers_of_other_parts,
}
