"""Kimi K3 in torch, from the equations of its report: one token at a time where there is a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Config = Mapping[str, Any]


def linear(n_in: int, n_out: int) -> nn.Linear:
    return nn.Linear(n_in, n_out, bias=False)


class Unit(nn.Module):
    """``down(b tanh(gate / b) sigmoid(gate) * c tanh(up / c))``."""

    def __init__(self, c: Config, width: int, n: int, names: tuple[str, str, str]) -> None:
        super().__init__()
        self.caps, self.names = (c["activation_situ_beta"], c["activation_situ_linear_beta"]), names
        for name, layer in zip(names, (linear(width, n), linear(width, n), linear(n, width)), strict=True):
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (getattr(self, name) for name in self.names)
        (b, c), g = self.caps, gate(x)
        return down(b * torch.tanh(g / b) * torch.sigmoid(g) * c * torch.tanh(up(x) / c))


PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class Router(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(c["num_experts"], c["hidden_size"]))
        self.e_score_correction_bias = nn.Parameter(torch.empty(c["num_experts"]))


class Experts(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c, width, latent, n = c, c["hidden_size"], c["routed_expert_hidden_size"], c["moe_intermediate_size"]
        self.gate = Router(c)
        self.experts = nn.ModuleList(Unit(c, latent, n, ("w1", "w3", "w2")) for _ in range(c["num_experts"]))
        self.shared_experts = Unit(c, width, n * c["num_shared_experts"], PROJECTIONS)
        self.routed_expert_down_proj, self.routed_expert_up_proj = linear(width, latent), linear(latent, width)
        self.routed_expert_norm = nn.RMSNorm(latent, c["rms_norm_eps"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        c, out, low = self.c, [], self.routed_expert_down_proj(x)
        odds = torch.sigmoid(x @ self.gate.weight.T)
        for row, into in zip(odds, low, strict=True):
            ranked = (row + self.gate.e_score_correction_bias).view(c["num_expert_group"], -1)
            best = ranked.topk(2, -1).values.sum(-1).topk(c["topk_group"]).indices
            mask = torch.full_like(ranked, -torch.inf).index_fill(0, best, 0.0)
            chosen = (ranked + mask).flatten().topk(c["num_experts_per_token"]).indices
            weights = row[chosen] / row[chosen].sum() * c["routed_scaling_factor"]
            out.append(sum(w * self.experts[int(e)](into) for w, e in zip(weights, chosen, strict=True)))
        return self.routed_expert_up_proj(self.routed_expert_norm(torch.stack(out))) + self.shared_experts(x)


class Delta(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        own, width = c["linear_attn_config"], c["hidden_size"]
        self.n, self.size, self.bound = own["num_heads"], own["head_dim"], own["gate_lower_bound"]
        inner, self.kernel = self.n * self.size, own["short_conv_kernel_size"]
        for x in "qkv":
            self.add_module(f"{x}_proj", linear(width, inner))
            self.add_module(f"{x}_conv1d", nn.Conv1d(inner, inner, self.kernel, groups=inner, bias=False))
        self.f_a_proj, self.f_b_proj = linear(width, self.size), linear(self.size, inner)
        self.b_proj, self.g_proj, self.o_proj = linear(width, self.n), linear(width, inner), linear(inner, width)
        self.A_log, self.dt_bias = nn.Parameter(torch.empty(self.n)), nn.Parameter(torch.empty(inner))
        self.o_norm = nn.RMSNorm(self.size, c["rms_norm_eps"])

    def convolved(self, x: torch.Tensor, name: str) -> torch.Tensor:
        y = functional.pad(getattr(self, f"{name}_proj")(x).T, (self.kernel - 1, 0))
        return functional.silu(getattr(self, f"{name}_conv1d")(y[None])[0].T).view(-1, self.n, self.size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.convolved(x, name) for name in "qkv")
        q, k = (y * torch.rsqrt((y * y).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
        rate = (self.f_b_proj(self.f_a_proj(x)) + self.dt_bias).view(-1, self.n, self.size)
        decay = torch.exp(self.bound * torch.sigmoid(torch.exp(self.A_log)[:, None] * rate))
        beta, state, out = torch.sigmoid(self.b_proj(x)), torch.zeros(self.n, self.size, self.size), []
        for t in range(len(x)):
            state = state * decay[t][..., None]
            known = torch.einsum("hk,hkv->hv", k[t], state)
            state = state + torch.einsum("hk,hv->hkv", k[t], beta[t][:, None] * (v[t] - known))
            out.append(torch.einsum("hk,hkv->hv", q[t] * self.size**-0.5, state))
        y = self.o_norm(torch.stack(out)).flatten(1)
        return self.o_proj(y * torch.sigmoid(self.g_proj(x)))


class Latent(nn.Module):
    """Attention with expanded keys and values, without positions."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        width, eps, rank = c["hidden_size"], c["rms_norm_eps"], c["kv_lora_rank"]
        self.n, self.nope, self.rope, self.v = (
            c[x] for x in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        self.q_a_proj, self.q_a_layernorm = linear(width, c["q_lora_rank"]), nn.RMSNorm(c["q_lora_rank"], eps)
        self.q_b_proj = linear(c["q_lora_rank"], self.n * (self.nope + self.rope))
        self.kv_a_proj_with_mqa, self.kv_a_layernorm = linear(width, rank + self.rope), nn.RMSNorm(rank, eps)
        self.kv_b_proj = linear(rank, self.n * (self.nope + self.v))
        self.g_proj, self.o_proj = linear(width, self.n * self.v), linear(self.n * self.v, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(len(x), self.n, -1).transpose(0, 1)
        low, shared = self.kv_a_proj_with_mqa(x).split((self.kv_a_layernorm.weight.numel(), self.rope), -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(low)).view(len(x), self.n, -1).transpose(0, 1)
        k = torch.cat([kv[..., : self.nope], shared.expand(self.n, -1, -1)], -1)
        y = functional.scaled_dot_product_attention(q[None], k[None], kv[None, ..., self.nope :], is_causal=True)[0]
        return self.o_proj(y.transpose(0, 1).flatten(1) * torch.sigmoid(self.g_proj(x)))


class Layer(nn.Module):
    def __init__(self, c: Config, i: int) -> None:
        super().__init__()
        width, eps = c["hidden_size"], c["rms_norm_eps"]
        self.self_attn = Latent(c) if i + 1 in c["linear_attn_config"]["full_attn_layers"] else Delta(c)
        is_dense = i < c["first_k_dense_replace"]
        if is_dense:
            self.mlp = Unit(c, width, c["intermediate_size"], PROJECTIONS)
        else:
            self.block_sparse_moe = Experts(c)
        self.unit = [self.mlp if is_dense else self.block_sparse_moe]  # in a list, which saves nothing
        for name in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
            self.add_module(name, nn.RMSNorm(width, eps))
        self.self_attention_res_proj, self.mlp_res_proj = linear(width, 1), linear(width, 1)


def mixed(x: torch.Tensor, bank: list[torch.Tensor], norm: nn.Module, score: nn.Module) -> torch.Tensor:
    """Attend from a layer to the residuals before it (Kimi Team 2026, equations 8 to 10)."""
    rows = torch.stack([*bank, x])
    return (torch.softmax(score(norm(rows)), 0) * rows).sum(0)


class Text(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        width, self.period = c["hidden_size"], c["attn_res_block_size"]
        self.embed_tokens = nn.Embedding(c["vocab_size"], width)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.norm, self.output_attn_res_norm = (nn.RMSNorm(width, c["rms_norm_eps"]) for _ in range(2))
        self.output_attn_res_proj = linear(width, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, bank = self.embed_tokens(ids), list[torch.Tensor]()
        for i, one in enumerate(self.layers):
            y = mixed(x, bank, one.self_attention_res_norm, one.self_attention_res_proj)
            is_first = i % self.period == 0
            if is_first:
                bank.append(x)
            y = one.self_attn(one.input_layernorm(y))
            x = y if is_first else x + y
            y = mixed(x, bank, one.mlp_res_norm, one.mlp_res_proj)
            x = x + one.unit[0](one.post_attention_layernorm(y))
        return self.norm(mixed(x, bank, self.output_attn_res_norm, self.output_attn_res_proj))


class Language(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.model, self.lm_head = Text(c), linear(c["hidden_size"], c["vocab_size"])


class KimiK3(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.language_model = Language(c["text_config"])

    def can_generate(self) -> bool:
        return True

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.model.embed_tokens

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.language_model.lm_head(self.language_model.model(ids[0]))[None]}
