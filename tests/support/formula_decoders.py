"""Decoders that transformers lacks, implemented in torch from their papers and published code, for whole texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from formula_models import FORMULAS as OTHERS
from torch import nn
from torch.nn import functional

Config = Mapping[str, Any]


def turned(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of a head's numbers ``x [tokens, heads, n]`` (halves), as complex numbers, by ``steps [n / 2]``."""
    angles = torch.arange(len(x))[:, None, None] * steps
    pairs = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], -1)


def frequencies(n: int, base: float) -> torch.Tensor:
    return base ** -(torch.arange(0, n, 2, dtype=torch.float64) / n)


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, cap: float = 0.0, window: int = 1 << 30
) -> torch.Tensor:
    """Causal attention of heads ``[tokens, heads, n]``; the rows' heads are joined."""
    k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    scores = cap * torch.tanh(scores / cap) if cap else scores
    ago = torch.arange(len(q))[:, None] - torch.arange(len(q))
    scores = scores.masked_fill((ago < 0) | (ago >= window), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(q), -1)


class Framed(nn.Module):
    """Embedding, layers, norm and output; a subclass gives the layers."""

    def __init__(self, c: Config, layers: list[nn.Module]) -> None:
        super().__init__()
        width, n_vocab = c["hidden_size"], c["vocab_size"]
        self.model, self.lm_head = nn.Module(), nn.Linear(width, n_vocab, bias=False)
        self.model.embed_tokens, self.model.norm = nn.Embedding(n_vocab, width), nn.RMSNorm(width, c["rms_norm_eps"])
        self.model.layers, self.c = nn.ModuleList(layers), c

    def can_generate(self) -> bool:
        return True

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.model.embed_tokens(ids[0])
        for layer in self.model.layers:
            x = layer(x)
        return {"logits": self.lm_head(self.model.norm(x))[None]}


class Gated(nn.Module):
    def __init__(self, width: int, n: int, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> None:
        super().__init__()
        self.names = names
        for name in names[:2]:
            self.add_module(name, nn.Linear(width, n, bias=False))
        self.add_module(names[2], nn.Linear(n, width, bias=False))

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (getattr(self, name) for name in self.names)
        y: torch.Tensor = down(self.activation(gate(x)) * up(x))
        return y


class GatedGeluTanh(Gated):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x, approximate="tanh")


class CappedAttention(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        width, self.n, self.n_kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.size, self.cap = c.get("head_dim", width // self.n), c.get("attn_logit_softcapping", 30.0)
        self.q_proj = nn.Linear(width, self.n * self.size, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(width, self.n_kv * self.size, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(self.n * self.size, width, bias=False)
        self.steps = frequencies(self.size, base := c.get("rope_theta", 10000.0))
        if c.get("rope_type") == "yarn":  # Peng et al. 2023, without its factor of queries and keys
            ends = [
                self.size
                * math.log(c["original_max_position_embeddings"] / (turns * 2 * math.pi))
                / (2 * math.log(base))
                for turns in (c["beta_fast"], c["beta_slow"])
            ]
            low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), self.size - 1)
            kept = 1 - ((torch.arange(self.size // 2) - low) / max(high - low, 1e-3)).clamp(0, 1)
            self.steps = self.steps * (kept + (1 - kept) / c["scaling_factor"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y(x).view(len(x), -1, self.size) for y in (self.q_proj, self.k_proj, self.v_proj))
        q, k = turned(q, self.steps).float(), turned(k, self.steps).float()
        return self.o_proj(attended(q, k, v, self.size**-0.5, cap=self.cap))


class CappedExperts(nn.Module):
    """Experts by probabilities of all, whose logits are capped."""

    def __init__(self, c: Config, n: int, names: tuple[str, str, str]) -> None:
        super().__init__()
        width, units = c["hidden_size"], c.get("moe_intermediate_size", c["intermediate_size"])
        self.gate, self.n_used = nn.Linear(width, n, bias=False), c["num_experts_per_tok"]
        self.experts = nn.ModuleList(GatedGeluTanh(width, units, names) for _ in range(n))
        self.cap = c.get("router_logit_softcapping", 30.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best = (self.cap * torch.tanh(self.gate(x) / self.cap)).softmax(-1).topk(self.n_used)
        weights = torch.zeros(len(x), len(self.experts)).scatter(-1, best.indices, best.values)
        return torch.stack([weights[:, i, None] * expert(x) for i, expert in enumerate(self.experts)]).sum(0)


class GrokLayer(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.is_second, norm = "num_local_experts" in c, lambda: nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.pre_attn_norm, self.post_attn_norm, self.pre_moe_norm, self.post_moe_norm = (norm() for _ in range(4))
        if self.is_second:
            self.self_attn, names = CappedAttention(c), ("w1", "w3", "w2")
            self.block_sparse_moe = CappedExperts(c, c["num_local_experts"], names)
            self.mlp = GatedGeluTanh(c["hidden_size"], c["intermediate_size"])
        else:
            self.attn = CappedAttention(c)
            self.moe_block = CappedExperts(c, c["num_experts"], ("linear", "linear_v", "linear_1"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attention = self.self_attn if self.is_second else self.attn
        x = x + self.post_attn_norm(attention(self.pre_attn_norm(x)))
        y = self.pre_moe_norm(x)
        z = (self.block_sparse_moe(y) + self.mlp(y)) / math.sqrt(2) if self.is_second else self.moe_block(y)
        return x + self.post_moe_norm(z)


class Grok(Framed):
    def __init__(self, c: Config) -> None:
        super().__init__(c, [GrokLayer(c) for _ in range(c["num_hidden_layers"])])

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.model.embed_tokens(ids[0]) * self.c["embedding_multiplier_scale"]
        for layer in self.model.layers:
            x = layer(x)
        logits = self.lm_head(self.model.norm(x))[None] * self.c["output_multiplier_scale"]
        cap = self.c.get("final_logit_softcapping")
        return {"logits": cap * torch.tanh(logits / cap) if cap else logits}


class MixingHeads(nn.Module):
    """RWKV-7's mixing (Peng et al. 2025) in ARWKV: the gate and the norm of heads are optional."""

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        width, self.size, self.layer = c["hidden_size"], c["head_size"], layer
        self.n, self.is_gated, self.is_normed = width // self.size, c["wkv_has_gate"], c["wkv_has_group_norm"]
        ranks = {"w": 64, "a": 64, "v": 32, "g": 128}
        for one in "rwkva" + "g" * self.is_gated:
            self.register_parameter(f"x_{one}", nn.Parameter(torch.empty(1, 1, width)))
        for one in "wa" + "v" * (layer > 0) + "g" * self.is_gated:
            for i, shape in enumerate(((1, 1, width), (width, ranks[one]), (ranks[one], width))):
                if (one, i) != ("g", 0):
                    self.register_parameter(f"{one}{i}", nn.Parameter(torch.empty(shape)))
        self.k_k, self.k_a = (nn.Parameter(torch.empty(1, 1, width)) for _ in range(2))
        self.r_k = nn.Parameter(torch.empty(self.n, self.size))
        self.receptance, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.ln_x = nn.GroupNorm(self.n, width, eps=64e-5) if self.is_normed else nn.Identity()

    def forward(self, x: torch.Tensor, first: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        before = functional.pad(x, (0, 0, 1, 0))[:-1]
        at = {one: x + (before - x) * getattr(self, f"x_{one}")[0] for one in "rwkva" + "g" * self.is_gated}
        r, k, v = self.receptance(at["r"]), self.key(at["k"]), self.value(at["v"])
        w = torch.exp(-math.exp(-0.5) * torch.sigmoid(self.w0[0] + torch.tanh(at["w"] @ self.w1) @ self.w2))
        a = torch.sigmoid(self.a0[0] + at["a"] @ self.a1 @ self.a2)
        own = v if first is None else v + (first - v) * torch.sigmoid(self.v0[0] + at["v"] @ self.v1 @ self.v2)
        unit = functional.normalize((k * self.k_k[0]).view(-1, self.n, self.size), dim=-1)
        k = k * (1 + (a - 1) * self.k_a[0])
        r, w, k, u, a = (y.view(-1, self.n, self.size) for y in (r, w, k, own, a))
        state, out = torch.zeros(self.n, self.size, self.size), []
        for t in range(len(x)):
            known = torch.einsum("hvk,hk->hv", state, unit[t])
            state = state * w[t][:, None] - torch.einsum("hv,hk->hvk", known, unit[t] * a[t])
            state = state + torch.einsum("hv,hk->hvk", u[t], k[t])
            out.append(torch.einsum("hvk,hk->hv", state, r[t]))
        y = self.ln_x(torch.stack(out).view(len(x), -1)) + ((r * k * self.r_k).sum(-1, keepdim=True) * u).flatten(1)
        if self.is_gated:
            y = y * (torch.sigmoid(at["g"] @ self.g1) @ self.g2)
        return self.output(y), v if first is None else first


class ArwkvLayer(nn.Module):
    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = nn.Module(), Gated(c["hidden_size"], c["intermediate_size"])
        self.self_attn.time_mixer = MixingHeads(c, layer)
        self.input_layernorm, self.post_attention_layernorm = (
            nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"]) for _ in range(2)
        )


class Arwkv(Framed):
    def __init__(self, c: Config) -> None:
        super().__init__(c, [ArwkvLayer(c, i) for i in range(c["num_hidden_layers"])])

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x, first = self.model.embed_tokens(ids[0]), None
        for layer in self.model.layers:
            y, first = layer.self_attn.time_mixer(layer.input_layernorm(x), first)
            x = x + y
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return {"logits": self.lm_head(self.model.norm(x))[None]}


class Offset(nn.Module):
    """A root-mean-square norm whose stored weight lacks a constant."""

    def __init__(self, n: int, eps: float, offset: float) -> None:
        super().__init__()
        self.weight, self.eps, self.offset = nn.Parameter(torch.empty(n)), eps, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight + self.offset, self.eps)


class FusedGated(nn.Module):
    def __init__(self, width: int, n: int) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(width, 2 * n, bias=False), nn.Linear(n, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(functional.silu(gate) * up)


class NormedHeads(nn.Module):
    """PLaMo's attention: heads are normed, PLaMo 2's with weights for each."""

    def __init__(self, c: Config, *, window: int, base: float) -> None:
        super().__init__()
        self.n, self.n_kv, eps = c["num_attention_heads"], c["num_key_value_heads"], c["rms_norm_eps"]
        self.size, self.is_by_head = c.get("hidden_size_per_head", c.get("head_dim")), "mamba_step" in c
        self.qkv_proj = nn.Linear(c["hidden_size"], (self.n + 2 * self.n_kv) * self.size, bias=False)
        self.o_proj = nn.Linear(self.n * self.size, c["hidden_size"], bias=False)
        if self.is_by_head:
            self.q_weight = nn.Parameter(torch.empty(self.n, self.size))
            self.k_weight = nn.Parameter(torch.empty(self.n_kv, self.size))
        else:
            self.q_norm, self.k_norm = (Offset(self.size, eps, 1.0) for _ in range(2))
        self.window, self.steps, self.eps = window, frequencies(self.size, base), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv_proj(x).view(len(x), -1, self.size).split([self.n, self.n_kv, self.n_kv], 1)
        if self.is_by_head:
            q, k = (functional.rms_norm(y, y.shape[-1:], None, self.eps) for y in (q, k))
            q, k = q * self.q_weight, k * self.k_weight
        else:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = turned(q, self.steps).float(), turned(k, self.steps).float()
        return self.o_proj(attended(q, k, v, self.size**-0.5, window=self.window))


class NormedStates(nn.Module):
    """PLaMo 2's Mamba 2, one token at a time."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        width, self.n, self.size, self.n_state = (
            c["hidden_size"], c["mamba_num_heads"], c["hidden_size_per_head"], c["mamba_d_state"],
        )  # fmt: skip
        inner, self.rank, self.eps = self.n * self.size, max(64, width // 16), c["rms_norm_eps"]
        self.in_proj, self.out_proj = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, k := c["mamba_d_conv"], groups=inner, bias=False, padding=k - 1)
        self.bcdt_proj = nn.Linear(inner, self.rank + 2 * self.n_state, bias=False)
        self.dt_proj = nn.Linear(self.rank, self.n, bias=False)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.empty(self.n)) for _ in range(3))
        self.B_norm_weight, self.C_norm_weight = (nn.Parameter(torch.empty(self.n_state)) for _ in range(2))
        self.dt_norm_weight = nn.Parameter(torch.empty(self.rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z, u = self.in_proj(x).view(len(x), self.n, -1).chunk(2, -1)
        u = functional.silu(self.conv1d(u.flatten(1).T)[:, : len(x)].T)
        b, c, dt = self.bcdt_proj(u).split([self.n_state, self.n_state, self.rank], -1)
        b, c, dt = (
            functional.rms_norm(y, y.shape[-1:], weight, self.eps)
            for y, weight in ((b, self.B_norm_weight), (c, self.C_norm_weight), (dt, self.dt_norm_weight))
        )
        dt = functional.softplus(self.dt_proj(dt) + self.dt_bias)
        u, state, out = u.view(len(x), self.n, -1), torch.zeros(self.n, self.size, self.n_state), []
        for t in range(len(x)):
            state = state * torch.exp(-torch.exp(self.A_log) * dt[t])[:, None, None]
            state = state + torch.einsum("h,hd,n->hdn", dt[t], u[t], b[t])
            out.append(state @ c[t] + self.D[:, None] * u[t])
        return self.out_proj((torch.stack(out) * functional.silu(z)).flatten(1))


class PlamoLayer(nn.Module):
    def __init__(self, c: Config, mixer: nn.Module) -> None:
        super().__init__()
        width, eps = c["hidden_size"], c["rms_norm_eps"]
        self.mixer, self.mlp = mixer, FusedGated(width, c["intermediate_size"])
        self.pre_mixer_norm, self.pre_mlp_norm = (Offset(width, eps, 1.0) for _ in range(2))
        self.post_mixer_norm, self.post_mlp_norm = Offset(width, eps, 1 / 5), Offset(width, eps, 1 / 5**1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.post_mixer_norm(self.mixer(self.pre_mixer_norm(x)))
        return x + self.post_mlp_norm(self.mlp(self.pre_mlp_norm(x)))


class Plamo(Framed):
    def __init__(self, c: Config) -> None:
        super().__init__(c, [])
        layers = [PlamoLayer(c, self.mixer(c, i)) for i in range(c["num_hidden_layers"])]
        self.model.layers = nn.Module()
        self.model.layers.layers = nn.ModuleList(layers)
        self.model.norm = Offset(c["hidden_size"], c["rms_norm_eps"], 1.0)

    def mixer(self, c: Config, i: int) -> nn.Module:
        if "mamba_step" not in c:
            is_whole = (i + 1) % c["sliding_window_pattern"] == 0
            window = 1 << 30 if is_whole else c["window_size"]
            return NormedHeads(c, window=window, base=c["rope_theta"] if is_whole else c["rope_local_theta"])
        window = 1 << 30 if i in c["full_attention_idx"] else c["attention_window_size"]
        attends = i % c["mamba_step"] == c["mamba_step"] // 2
        return NormedHeads(c, window=window, base=c["rope_theta"]) if attends else NormedStates(c)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.model.embed_tokens(ids[0])
        for layer in self.model.layers.layers:
            x = layer(x)
        return {"logits": self.lm_head(self.model.norm(x))[None]}


class MapleAttention(nn.Module):
    """Normed heads; within a window, their first half is rotated."""

    def __init__(self, c: Config, kind: str) -> None:
        super().__init__()
        width, self.n, self.n_kv, self.size = (
            c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"],
        )  # fmt: skip
        n = self.n * self.size
        self.q_proj, self.o_proj = nn.Linear(width, n, bias=False), nn.Linear(n, width, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(width, self.n_kv * self.size, bias=False) for _ in range(2))
        self.q_norm, self.k_norm = (nn.RMSNorm(self.size, c["rms_norm_eps"]) for _ in range(2))
        self.window = c["sliding_window"] if kind == "sliding_attention" else 0
        self.n_rot = int(self.size * c["partial_rotary_factor"])
        self.steps = frequencies(self.n_rot, c["rope_theta"])

    def placed(self, x: torch.Tensor) -> torch.Tensor:
        if not self.window:
            return x
        return torch.cat([turned(x[..., : self.n_rot], self.steps).float(), x[..., self.n_rot :]], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y(x).view(len(x), -1, self.size) for y in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.placed(self.q_norm(q)), self.placed(self.k_norm(k))
        return self.o_proj(attended(q, k, v, self.size**-0.5, window=self.window or 1 << 30))


class ClippedUnit(Gated):
    """As in llama.cpp, the gate is clipped after its activation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (getattr(self, name) for name in self.names)
        y: torch.Tensor = down(functional.silu(gate(x)).clamp(max=7.0) * up(x).clamp(-7.0, 7.0))
        return y


class MapleLayer(nn.Module):
    def __init__(self, c: Config, kind: str) -> None:
        super().__init__()
        width, n = c["hidden_size"], c["num_experts"]
        self.self_attn, self.mlp, self.n_used = MapleAttention(c, kind), nn.Module(), c["num_experts_per_tok"]
        self.mlp.gate = nn.Linear(width, n, bias=False)
        self.mlp.experts = nn.ModuleList(ClippedUnit(width, c["moe_intermediate_size"]) for _ in range(n))
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(width, c["rms_norm_eps"]) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        best = self.mlp.gate(y).softmax(-1).topk(self.n_used)
        weights = torch.zeros(len(x), len(self.mlp.experts)).scatter(-1, best.indices, best.values)
        weights = weights / weights.sum(-1, keepdim=True)
        return x + torch.stack([weights[:, i, None] * expert(y) for i, expert in enumerate(self.mlp.experts)]).sum(0)


class Maple(Framed):
    def __init__(self, c: Config) -> None:
        super().__init__(c, [MapleLayer(c, kind) for kind in c["layer_types"]])


class SwitchedLinear(nn.Module):
    """A product of stacked matrices, and low-rank matrices of adapters for each of them."""

    def __init__(self, c: Config, n_in: int, n_outs: list[int], *, sliced: bool) -> None:
        super().__init__()
        n, rank, self.n_outs, self.sliced = c["num_adapters"], c["max_lora_rank"], n_outs, sliced
        self.base_layer = nn.Linear(n_in, sum(n_outs), bias=False)
        pairs = [(torch.empty(n, 1, rank, n_in), torch.empty(n, 1, n_out, rank)) for n_out in n_outs]
        if sliced:
            self.lora_A_slices, self.lora_B_slices = (nn.ParameterList(x) for x in zip(*pairs, strict=True))
        else:
            self.lora_A, self.lora_B = (nn.Parameter(x) for x in pairs[0])

    def forward(self, x: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        """``used [tokens]``: the number of each token's adapter, 0 for none."""
        pairs = [(self.lora_A_slices, self.lora_B_slices)] if self.sliced else [([self.lora_A], [self.lora_B])]
        deltas = []
        for a, b in zip(*pairs[0], strict=True):
            each = torch.stack([b[i - 1, 0] @ (a[i - 1, 0] @ row) * (i > 0) for row, i in zip(x, used, strict=True)])
            deltas.append(each)
        return self.base_layer(x) + torch.cat(deltas, -1)


class SwitchedLayer(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        width, ffn, self.c = c["hidden_size"], c["shared_intermediate_size"], c
        self.n, self.n_kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.size, self.self_attn, self.shared_mlp = width // self.n, nn.Module(), nn.Module()
        n = [self.n * self.size, self.n_kv * self.size, self.n_kv * self.size]
        self.self_attn.qkv_proj = SwitchedLinear(c, width, n, sliced=True)
        self.self_attn.o_proj = SwitchedLinear(c, n[0], [width], sliced=False)
        self.shared_mlp.input_linear = SwitchedLinear(c, width, [ffn, ffn], sliced=True)
        self.shared_mlp.output_linear = SwitchedLinear(c, ffn, [width], sliced=False)
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(width, c["rms_norm_eps"]) for _ in range(2))
        self.steps = frequencies(self.size, c["rope_theta"])

    def forward(self, x: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        scale, size = self.c["residual_multiplier"], self.size
        qkv = self.self_attn.qkv_proj(self.input_layernorm(x), used)
        q, k, v = qkv.split([self.n * size, self.n_kv * size, self.n_kv * size], -1)
        q, k, v = (y.reshape(len(x), -1, size) for y in (q, k, v))
        y = attended(turned(q, self.steps).float(), turned(k, self.steps).float(), v, self.c["attention_multiplier"])
        x = x + scale * self.self_attn.o_proj(y, used)
        gate, up = self.shared_mlp.input_linear(self.post_attention_layernorm(x), used).chunk(2, -1)
        return x + scale * self.shared_mlp.output_linear(functional.silu(gate) * up, used)


class GraniteSwitch(Framed):
    """The adapter of a token is the rounded mean of those that tokens up to it turn on."""

    def __init__(self, c: Config) -> None:
        super().__init__(c, [SwitchedLayer(c) for _ in range(c["num_hidden_layers"] - 1)])

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        numbers, tokens, gain = torch.zeros(len(ids[0])), ids[0].clone(), self.c["control_token_gain"]
        for i, (token, other) in enumerate(
            zip(self.c["adapter_token_ids"], self.c["adapter_substitute_token_ids"], strict=True), 1
        ):
            numbers[ids[0] == token], tokens[ids[0] == token] = i, other
        odds = torch.exp(torch.where(numbers > 0, gain, -gain).double())
        used = ((odds * numbers).cumsum(0) / odds.cumsum(0) + 0.5 + 1e-6).floor().long()  # halves up, as llama.cpp
        x = self.model.embed_tokens(tokens) * self.c["embedding_multiplier"]
        for layer in self.model.layers:
            x = layer(x, used)
        return {"logits": self.lm_head(self.model.norm(x))[None] / self.c["logits_scaling"]}


class TalkieAttention(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        width, self.size = c["hidden_size"], c["head_dim"]
        n = c["num_attention_heads"]
        self.attn_query, self.attn_key, self.attn_value = (
            nn.Linear(width, n * self.size, bias=False) for _ in range(3)
        )
        self.attn_resid, self.head_gain = nn.Linear(n * self.size, width, bias=False), nn.Module()
        self.head_gain.head_g = nn.Parameter(torch.empty(n))
        self.steps = -frequencies(self.size, c["rope_theta"])  # the other way round

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y(x).view(len(x), -1, self.size) for y in (self.attn_query, self.attn_key, self.attn_value))
        q, k = (functional.rms_norm(turned(y, self.steps).float(), (self.size,)) for y in (q, k))
        return self.attn_resid(attended(q * self.head_gain.head_g[:, None], k, v, self.size**-0.5))


class TalkieBlock(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.attn = TalkieAttention(c)
        self.mlp = Gated(c["hidden_size"], c["intermediate_size"], ("mlp_gate", "mlp_linear", "mlp_resid"))
        for name in ("attn_gain", "mlp_gain", "embed_skip"):
            self.add_module(name, gain := nn.Module())
            gain.a_g = nn.Parameter(torch.empty(1))

    def forward(self, x: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(functional.rms_norm(x, x.shape[-1:])) * self.attn_gain.a_g
        x = x + self.mlp(functional.rms_norm(x, x.shape[-1:])) * self.mlp_gain.a_g
        return x + embedded * self.embed_skip.a_g


class Talkie(nn.Module):
    """Talkie, from its published code: no norm has weights."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.model, self.lm_head_gain = nn.Module(), nn.Module()
        self.model.embed = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.blocks = nn.ModuleList(TalkieBlock(c) for _ in range(c["num_hidden_layers"]))
        self.lm_head = nn.Parameter(torch.empty(c["vocab_size"], c["hidden_size"]))
        self.lm_head_gain.w_g = nn.Parameter(torch.empty(1))

    def can_generate(self) -> bool:
        return True

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.model.embed(ids[0])
        x = embedded = functional.rms_norm(x, x.shape[-1:])
        for block in self.model.blocks:
            x = block(x, embedded)
        return {"logits": (functional.rms_norm(x, x.shape[-1:]) @ (self.lm_head * self.lm_head_gain.w_g).T)[None]}


FORMULAS = {
    **OTHERS, "Grok1ForCausalLM": Grok, "Grok1ModelForCausalLM": Grok, "RwkvHybridForCausalLM": Arwkv,
    "Plamo2ForCausalLM": Plamo, "Plamo3ForCausalLM": Plamo, "MapleForCausalLM": Maple,
    "GraniteSwitchForCausalLM": GraniteSwitch, "TalkieForCausalLM": Talkie,
}  # fmt: skip
