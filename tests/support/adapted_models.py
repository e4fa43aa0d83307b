"""Models that transformers lacks, assembled from parts of its models."""

from __future__ import annotations

import collections
import copy
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer
from transformers.models.smollm3.modeling_smollm3 import SmolLM3DecoderLayer

Config = Mapping[str, Any]


def layers_of_other_sizes(model: Any, config: Config) -> None:
    """OpenELM: layers have different numbers of heads and units."""
    n_heads, n_kv_heads, factors = (config[name] for name in ("num_query_heads", "num_kv_heads", "ffn_multipliers"))
    width, divisor = config["model_dim"], config["ffn_dim_divisor"]
    for i, (n_head, n_kv_head, factor) in enumerate(zip(n_heads, n_kv_heads, factors, strict=True)):
        own = copy.deepcopy(model.config)
        own.num_attention_heads, own.num_key_value_heads = n_head, n_kv_head
        own.intermediate_size = round(factor * width / divisor) * divisor
        model.model.layers[i] = Qwen3DecoderLayer(own, i)


def with_layer_norms(model: Any, config: Config) -> None:
    """Jais: layer norms, scores divided by the head size, scaled embeddings and logits."""
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
    """Nothing, or one product with the rows."""

    def __init__(self, width: int, is_product: bool) -> None:
        super().__init__()
        self.linear_attn = torch.nn.Linear(width, width, bias=False) if is_product else None

    def forward(self, hidden_states: torch.Tensor, **_: object) -> tuple[torch.Tensor, None]:
        return (torch.zeros_like(hidden_states) if self.linear_attn is None else self.linear_attn(hidden_states)), None


class NoMLP(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


def layers_of_other_parts(model: Any, config: Config) -> None:
    """DeciLM: layers with different numbers of heads and units, or without attention or MLP."""
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


class GatedUnit(torch.nn.Module):
    def __init__(self, width: int, n: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(width, n, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(n, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def weights_of_chosen(scores: torch.Tensor, n_used: int, *, is_normalized: bool) -> torch.Tensor:
    """Return the experts' probabilities, 0 for those that are not chosen."""
    best = torch.topk(torch.softmax(scores, -1), n_used)
    weights = torch.zeros_like(scores).scatter(-1, best.indices, best.values)
    return weights / weights.sum(-1, keepdim=True) if is_normalized else weights


class Experts(torch.nn.Module):
    """Experts that all compute every token (Shazeer et al. 2017), plus shared experts."""

    def __init__(self, width: int, config: Config, names: tuple[str, str]) -> None:
        super().__init__()
        n, n_shared = (config[name] for name in names)
        n_units = config["moe_intermediate_size"]
        self.n_used, self.is_normalized = config["num_experts_per_tok"], config["norm_topk_prob"]
        self.gate = torch.nn.Linear(width, n, bias=False)
        self.experts = torch.nn.ModuleList(GatedUnit(width, n_units) for _ in range(n))
        self.shared_experts = GatedUnit(width, n_shared * n_units)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = weights_of_chosen(self.gate(x), self.n_used, is_normalized=self.is_normalized)
        routed = sum(weights[..., i, None] * expert(x) for i, expert in enumerate(self.experts))
        return routed + self.shared_experts(x)


def with_experts(names: tuple[str, str]) -> Callable[[Any, Config], None]:
    """DeepSeek MoE and Ling: experts in all but the first layers; ``names`` are the fields with their numbers."""

    def adapt(model: Any, config: Config) -> None:
        for layer in model.model.layers[config["first_k_dense_replace"] :]:
            layer.mlp = Experts(model.config.hidden_size, config, names)

    return adapt


def with_normalized_head(model: Any, config: Config) -> None:
    """Ling: the head's columns have length 1 if the configuration says so."""
    with_experts(("num_experts", "num_shared_experts"))(model, config)
    if not config.get("norm_head"):
        return
    model.lm_head.register_forward_pre_hook(
        lambda module, given: (given[0] / torch.linalg.vector_norm(module.weight, dim=0),)
    )


class SharingExperts(torch.nn.Module):
    """Grove MoE (Wu et al. 2025): pairs of experts, each with a small expert, weighed as often as one is chosen."""

    def __init__(self, width: int, config: Config) -> None:
        super().__init__()
        n, n_small = config["num_experts"], config["num_experts"] // 2
        self.n_used, self.gate = config["num_experts_per_tok"], torch.nn.Linear(width, n, bias=False)
        self.experts = torch.nn.ModuleList(GatedUnit(width, config["moe_intermediate_size"]) for _ in range(n))
        self.chunk_experts = torch.nn.ModuleList(GatedUnit(width, config["head_dim"]) for _ in range(n_small))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = weights_of_chosen(self.gate(x), self.n_used, is_normalized=True)
        large = torch.stack([weights[..., i, None] * expert(x) for i, expert in enumerate(self.experts)]).sum(0)
        pairs = weights.unflatten(-1, (-1, 2)).sum(-1)
        small = torch.stack([pairs[..., i, None] * expert(x) for i, expert in enumerate(self.chunk_experts)]).sum(0)
        return large + 0.05 * small


def with_small_experts(model: Any, config: Config) -> None:
    for layer in model.model.layers:
        layer.mlp = SharingExperts(config["hidden_size"], config)


class UngatedExperts(torch.nn.Module):
    """Nomic's experts: no gates, and one bias for the sum."""

    def __init__(self, width: int, n: int, n_units: int) -> None:
        super().__init__()
        self.mlp = torch.nn.Module()
        self.mlp.w1, self.mlp.w2 = (torch.nn.Parameter(torch.empty(n * n_units, width)) for _ in range(2))
        self.bias, self.shape = torch.nn.Parameter(torch.empty(width)), (n, n_units, width)

    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        up, down = self.mlp.w1.view(self.shape), self.mlp.w2.view(self.shape)
        hidden = torch.nn.functional.gelu(torch.einsum("btd,eud->bteu", x, up))
        return torch.einsum("bteu,eud,bte->btd", hidden, down, weights) + self.bias


class UngatedMixture(torch.nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.n_used, self.router = config["moe_top_k"], torch.nn.Module()
        self.router.layer = torch.nn.Linear(config["n_embd"], config["num_experts"], bias=False)
        self.experts = UngatedExperts(config["n_embd"], config["num_experts"], config["n_inner"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router.layer(x)
        return self.experts(x, weights_of_chosen(scores, self.n_used, is_normalized=False))


def with_ungated_experts(model: Any, config: Config) -> None:
    """Nomic BERT with experts: in every second layer."""
    for i, layer in enumerate(model.layers):
        if i % config["moe_every_n_layers"] == 1:
            layer.mlp = UngatedMixture(config)


class NoPositions(torch.nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1)


class GatedGELU(torch.nn.Module):
    def __init__(self, width: int, n: int) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(width, 2 * n, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.dense(x).chunk(2, -1)
        return torch.nn.functional.gelu(gate) * up


def without_positions(model: Any, config: Config) -> None:
    """Jina BERT: linear biases, which are in the mask, and gated units."""
    model.embeddings.position_embeddings = NoPositions()
    for layer in model.encoder.layer:
        layer.intermediate = GatedGELU(config["hidden_size"], config["intermediate_size"])


class Unit(torch.nn.Module):
    """A gated unit; ``names`` are those of the gate, the up projection and the down projection."""

    def __init__(
        self, width: int, n: int, names: tuple[str, str, str], activation: Callable[..., torch.Tensor]
    ) -> None:
        super().__init__()
        sizes = ((width, n), (width, n), (n, width))
        for name, size in zip(names, sizes, strict=True):
            self.add_module(name, torch.nn.Linear(*size, bias=False))
        self.names, self.activation = names, activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(self.activation(gate(x)) * up(x))


class Mixture(torch.nn.Module):
    """Experts that all compute every token; ``router`` is the name of the matrix that scores them."""

    def __init__(
        self, router: str, width: int, units: list[Unit], weigh: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        self.add_module(router, torch.nn.Linear(width, len(units), bias=False))
        self.router, self.experts, self.weigh = router, torch.nn.ModuleList(units), weigh

    def of(self, x: torch.Tensor, routed: torch.Tensor) -> torch.Tensor:
        weights = self.weigh(getattr(self, self.router)(routed))
        return sum(weights[..., i, None] * expert(x) for i, expert in enumerate(self.experts))


ARCTIC = ("w1", "w3", "w2")


def with_experts_beside(model: Any, config: Config) -> None:
    """Arctic: the MLP is as wide as the model, and experts read the layer's input."""
    width, n_used = config["hidden_size"], config["num_experts_per_tok"]
    silu = torch.nn.functional.silu

    class Layer(LlamaDecoderLayer):
        def __init__(self, own: Any, i: int) -> None:
            super().__init__(own, i)
            self.mlp = torch.nn.Identity()
            self.residual_mlp = Unit(width, width, ARCTIC, silu)
            self.residual_layernorm = copy.deepcopy(self.input_layernorm)
            units = [Unit(width, config["intermediate_size"], ARCTIC, silu) for _ in range(config["num_local_experts"])]
            weigh = functools.partial(weights_of_chosen, n_used=n_used, is_normalized=True)
            self.block_sparse_moe = Mixture("gate", width, units, weigh)

        def forward(self, hidden_states: torch.Tensor, **more: Any) -> torch.Tensor:
            x = hidden_states
            x = x + self.self_attn(hidden_states=self.input_layernorm(x), **more)[0]
            x = x + self.residual_mlp(self.residual_layernorm(x))
            y = self.post_attention_layernorm(hidden_states)
            return x + self.block_sparse_moe.of(y, y)

    for i in range(len(model.model.layers)):
        model.model.layers[i] = Layer(model.config, i)


def with_early_routers(model: Any, config: Config) -> None:
    """SmallThinker: the router reads the layer's input."""
    width, n_used = config["hidden_size"], config["moe_num_active_primary_experts"]

    def weigh(scores: torch.Tensor) -> torch.Tensor:
        best = torch.topk(scores, n_used)
        is_softmax = config.get("moe_primary_router_apply_softmax", False)
        odds = torch.softmax(best.values, -1) if is_softmax else torch.sigmoid(best.values)
        return torch.zeros_like(scores).scatter(-1, best.indices, odds / odds.sum(-1, keepdim=True))

    class Layer(SmolLM3DecoderLayer):
        def __init__(self, own: Any, i: int) -> None:
            super().__init__(own, i)
            units = [
                Unit(width, config["moe_ffn_hidden_size"], ("gate", "up", "down"), torch.relu)
                for _ in range(config["moe_num_primary_experts"])
            ]
            self.mlp = torch.nn.Identity()
            self.block_sparse_moe = Mixture("primary_router", width, units, weigh)

        def forward(self, hidden_states: torch.Tensor, **more: Any) -> torch.Tensor:
            x = hidden_states + self.self_attn(hidden_states=self.input_layernorm(hidden_states), **more)[0]
            return x + self.block_sparse_moe.of(self.post_attention_layernorm(x), hidden_states)

    for i in range(len(model.model.layers)):
        model.model.layers[i] = Layer(model.config, i)


class Ungated(torch.nn.Module):
    """An MLP with squared ReLU and without a gate."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.up_proj = torch.nn.Linear(width, units, bias=False)
        self.down_proj = torch.nn.Linear(units, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down_proj(torch.relu(self.up_proj(x)) ** 2)
        return y


def without_gates(model: Any, config: Config) -> None:
    """PLM: MLPs with squared ReLU."""
    for layer in model.model.layers:
        layer.mlp = Ungated(config["hidden_size"], config["intermediate_size"])


class Repeated(torch.nn.ModuleList):
    """Layers, of which slices return those of all passes."""

    def __getitem__(self, index: Any) -> Any:
        return self.__dict__["passes"][index] if isinstance(index, slice) else super().__getitem__(index)


def with_passes(model: Any, config: Config) -> None:
    """Nanbeige: the layers run several times, with the output norm between the passes."""
    layers, passes, n_pass = list(model.model.layers), [], config.get("num_loops") or config["total_ut_steps"]
    for k in range(n_pass):
        for i, layer in enumerate(layers):
            own, attention = copy.copy(layer), copy.copy(layer.self_attn)
            attention.layer_idx = len(passes)
            own._modules = {**layer._modules, "self_attn": attention}
            own._forward_hooks = collections.OrderedDict()
            if i == len(layers) - 1 and k < n_pass - 1 and not config.get("skip_loop_final_norm"):
                own.register_forward_hook(lambda module, given, out: model.model.norm(out))
            passes.append(own)
    model.model.layers = Repeated(layers)
    model.model.layers.__dict__["passes"] = passes
    model.config.num_hidden_layers = len(passes)


class Sandwich(LlamaDecoderLayer):
    """A layer with norms after attention and MLP too."""

    def __init__(self, own: Any, i: int) -> None:
        super().__init__(own, i)
        self.input_layernorm_2 = copy.deepcopy(self.input_layernorm)
        self.post_attention_layernorm_2 = copy.deepcopy(self.input_layernorm)

    def forward(self, hidden_states: torch.Tensor, **more: Any) -> torch.Tensor:
        y = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **more)[0]
        x = hidden_states + self.input_layernorm_2(y)
        return x + self.post_attention_layernorm_2(self.mlp(self.post_attention_layernorm(x)))


def with_skip_connections(model: Any, config: Config) -> None:
    """Solar: the inputs of layers in bskcn_3 and bskcn_4 are mixed with those that bskcn_1 and bskcn_2 name."""
    kept: dict[int, torch.Tensor] = {}
    share = config["bskcn_tv"][1]

    def mixed(i: int) -> Callable[[Any, Any], tuple[torch.Tensor, ...]]:
        def hook(module: Any, given: Any) -> tuple[torch.Tensor, ...]:
            x, *more = given
            for n in (1, 2):
                if i in config[f"bskcn_{n}"]:
                    kept[n] = x
            for n in (1, 2):
                if i in config[f"bskcn_{n + 2}"]:
                    x = kept[n] * share + x * (1 - share)
            return x, *more

        return hook

    for i, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(mixed(i))


class SideBySide(LlamaDecoderLayer):
    """A layer whose attention and MLP have the same input."""

    def __init__(self, own: Any, i: int) -> None:
        super().__init__(own, i)
        self.post_attention_layernorm = torch.nn.Identity()

    def forward(self, hidden_states: torch.Tensor, **more: Any) -> torch.Tensor:
        y = self.input_layernorm(hidden_states)
        return hidden_states + self.self_attn(hidden_states=y, **more)[0] + self.mlp(y)


def with_parallel_layers(model: Any, config: Config) -> None:
    """PLaMo: attention and MLP in parallel."""
    for i in range(len(model.model.layers)):
        model.model.layers[i] = SideBySide(model.config, i)


def with_passes_of_sandwiches(model: Any, config: Config) -> None:
    """Ouro: the layers have norms after attention and MLP, and run several times."""
    for i in range(len(model.model.layers)):
        model.model.layers[i] = Sandwich(model.config, i)
    with_passes(model, config)


def with_biases_of_outputs(model: Any, config: Config) -> None:
    """TeleChat: only the matrices that write to the residual have biases."""
    width = config["hidden_size"]
    for layer in model.model.layers:
        layer.self_attn.o_proj = torch.nn.Linear(layer.self_attn.o_proj.in_features, width)
        layer.mlp.down_proj = torch.nn.Linear(config["ffn_hidden_size"], width)


class GatedGelu(torch.nn.Module):
    """GTE's MLP: a gate with GELU below the other half of one matrix, and a bias only for the output."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.up_gate_proj = torch.nn.Linear(width, 2 * units, bias=False)
        self.down_proj = torch.nn.Linear(units, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, gate = self.up_gate_proj(x).chunk(2, dim=-1)
        y: torch.Tensor = self.down_proj(torch.nn.functional.gelu(gate) * up)
        return y


def with_gates_of_gelu(model: Any, config: Config) -> None:
    """GTE: gated MLPs, and frequencies by the NTK rule."""
    encoder = getattr(model, "roberta", model)
    for layer in encoder.layers:
        layer.mlp = GatedGelu(config["hidden_size"], config["intermediate_size"])
    if scaling := config.get("rope_scaling"):
        rotation, n = encoder.rotary_emb, config["hidden_size"] // config["num_attention_heads"]
        powers = torch.arange(0, n, 2).float() / n
        rotation.inv_freq = (config["rope_theta"] * scaling["factor"]) ** -powers / scaling["factor"] ** (2 / n)


def with_projected_tokens(model: Any, config: Config) -> None:
    """CLIP and SigLIP: transformers projects the pooled token's state only."""
    projection = model.text_projection if hasattr(model, "text_projection") else model.head

    def project(module: Any, given: object, output: Any) -> Any:
        output["last_hidden_state"] = projection(output["last_hidden_state"])
        return output

    model.register_forward_hook(project)


ADAPTED: dict[str, Callable[[Any, Config], None]] = {
    "ArcticForCausalLM": with_experts_beside,
    "GroveMoeForCausalLM": with_small_experts,
    "NanbeigeForCausalLM": with_passes,
    "SolarForCausalLM": with_skip_connections,
    "PlamoForCausalLM": with_parallel_layers,
    "OuroForCausalLM": with_passes_of_sandwiches,
    "TeleChat2ForCausalLM": with_biases_of_outputs,
    "PLMForCausalLM": without_gates,
    "SmallThinkerForCausalLM": with_early_routers,
    "DeepseekForCausalLM": with_experts(("n_routed_experts", "n_shared_experts")),
    "DeepseekOCRForCausalLM": with_experts(("n_routed_experts", "n_shared_experts")),
    "BailingMoeForCausalLM": with_normalized_head,
    "nomic-bert-moe": with_ungated_experts,
    "JinaBertModel": without_positions,
    "NewModel": with_gates_of_gelu,
    "NewForSequenceClassification": with_gates_of_gelu,
    "OpenELMForCausalLM": layers_of_other_sizes,
    "JAISLMHeadModel": with_layer_norms,
    "CLIPTextModelWithProjection": with_projected_tokens,
    "SiglipTextModel": with_projected_tokens,
    "DeciLMForCausalLM": layers_of_other_parts,
}
