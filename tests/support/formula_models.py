"""Models that transformers lacks completely, implemented in torch from their papers, one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from kimi_k3_model import KimiK3
from torch import nn
from torch.nn import functional

Config = Mapping[str, Any]


class LowRank(nn.Module):
    def __init__(self, width: int, rank: int, activation: nn.Module, *, bias: bool) -> None:
        super().__init__()
        self.lora = nn.Sequential(nn.Linear(width, rank, bias=False), activation, nn.Linear(rank, width, bias=bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lora(x)


class TimeMixing(nn.Module):
    """Peng et al. 2025, equations of section 4; ``state [head, value, key]``."""

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        width, self.size = c["hidden_size"], c["head_dim"]
        self.n_head, self.layer = width // self.size, layer
        for name in "rwkvag":
            self.register_parameter(f"x_{name}", nn.Parameter(torch.empty(1, 1, width)))
        self.k_k, self.k_a = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))
        self.r_k = nn.Parameter(torch.empty(self.n_head, self.size))
        self.r_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.w_lora = LowRank(width, c["decay_low_rank_dim"], nn.Tanh(), bias=True)
        self.a_lora = LowRank(width, c["a_low_rank_dim"], nn.Identity(), bias=True)
        self.g_lora = LowRank(width, c["gate_low_rank_dim"], nn.Sigmoid(), bias=False)
        if layer > 0:
            self.v_lora = LowRank(width, c["v_low_rank_dim"], nn.Identity(), bias=True)
        self.g_norm = nn.GroupNorm(self.n_head, width, eps=self.size * c["norm_eps"])

    def forward(self, x: torch.Tensor, first: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """``x [tokens, width]``."""
        before = functional.pad(x, (0, 0, 1, 0))[:-1]
        at = {name: torch.lerp(x, before, getattr(self, f"x_{name}")[0]) for name in "rwkvag"}
        r, k, v = self.r_proj(at["r"]), self.k_proj(at["k"]), self.v_proj(at["v"])
        w = torch.exp(-torch.exp(torch.tensor(-0.5)) * torch.sigmoid(self.w_lora(at["w"])))
        a, g = torch.sigmoid(self.a_lora(at["a"])), self.g_lora(at["g"])
        own = v if first is None else torch.lerp(v, first, torch.sigmoid(self.v_lora(at["v"])))
        removed = functional.normalize((k * self.k_k).view(-1, self.n_head, self.size), dim=-1)
        k = k * (1 + (a - 1) * self.k_a)
        r, w, k, u, a = (y.view(-1, self.n_head, self.size) for y in (r, w, k, own, a))
        state, out = torch.zeros(self.n_head, self.size, self.size), []
        for t in range(len(x)):
            known = torch.einsum("hvk,hk->hv", state, removed[t])
            state = state * w[t][:, None] - torch.einsum("hv,hk->hvk", known, removed[t] * a[t])
            state = state + torch.einsum("hv,hk->hvk", u[t], k[t])
            out.append(torch.einsum("hvk,hk->hv", state, r[t]))
        y = self.g_norm(torch.stack(out).view(len(x), -1))
        y = y + ((r * k * self.r_k).sum(-1, keepdim=True) * u).view(len(x), -1)
        return self.o_proj(y * g), v if first is None else first


class ChannelMixing(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.empty(c["hidden_size"]))
        self.key = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.value = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = functional.pad(x, (0, 0, 1, 0))[:-1]
        return self.value(torch.relu(self.key(torch.lerp(x, before, self.x_k))) ** 2)


class Rwkv7(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        width, n_vocab = c["hidden_size"], c["vocab_size"]
        self.model, self.lm_head = nn.Module(), nn.Linear(width, n_vocab, bias=False)
        self.model.embeddings, self.model.norm = nn.Embedding(n_vocab, width), nn.LayerNorm(width, c["norm_eps"])
        self.model.layers = nn.ModuleList(nn.Module() for _ in range(c["num_hidden_layers"]))
        for i, layer in enumerate(self.model.layers):
            layer.attn_norm, layer.ffn_norm = (nn.LayerNorm(width, c["norm_eps"]) for _ in range(2))
            layer.attn, layer.ffn = TimeMixing(c, i), ChannelMixing(c)
        self.model.layers[0].pre_norm = nn.LayerNorm(width, c["norm_eps"])

    def can_generate(self) -> bool:
        return True

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embeddings

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x, first = self.model.layers[0].pre_norm(self.model.embeddings(ids[0])), None
        for layer in self.model.layers:
            y, first = layer.attn(layer.attn_norm(x), first)
            x = x + y
            x = x + layer.ffn(layer.ffn_norm(x))
        return {"logits": self.lm_head(self.model.norm(x))[None]}


class FadingMixing(nn.Module):
    """Peng et al. 2024, equations of section 4: RWKV-6."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        width, self.size, self.rank, decay_rank = c["hidden_size"], c["head_size"], 32, 64
        self.n_head = width // self.size
        for name in "xwkvrg":
            self.register_parameter(f"time_maa_{name}", nn.Parameter(torch.empty(1, 1, width)))
        self.time_maa_w1 = nn.Parameter(torch.empty(width, 5 * self.rank))
        self.time_maa_w2 = nn.Parameter(torch.empty(5, self.rank, width))
        self.time_decay, self.time_faaaa = (
            nn.Parameter(torch.empty(1, 1, width)),
            nn.Parameter(torch.empty(self.n_head, self.size)),
        )
        self.time_decay_w1, self.time_decay_w2 = (
            nn.Parameter(torch.empty(width, decay_rank)),
            nn.Parameter(torch.empty(decay_rank, width)),
        )
        self.receptance, self.key, self.value, self.gate, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(5)
        )
        self.ln_x = nn.GroupNorm(self.n_head, width, eps=1e-5 * c["head_size_divisor"] ** 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = functional.pad(x, (0, 0, 1, 0))[:-1]
        low = torch.tanh(torch.lerp(x, before, self.time_maa_x[0]) @ self.time_maa_w1).view(len(x), 5, self.rank)
        at = {
            name: torch.lerp(x, before, getattr(self, f"time_maa_{name}")[0] + low[:, i] @ self.time_maa_w2[i])
            for i, name in enumerate("wkvrg")
        }
        r, k, v = self.receptance(at["r"]), self.key(at["k"]), self.value(at["v"])
        w = torch.exp(-torch.exp(self.time_decay[0] + torch.tanh(at["w"] @ self.time_decay_w1) @ self.time_decay_w2))
        r, k, v, w = (y.view(-1, self.n_head, self.size) for y in (r, k, v, w))
        state, out = torch.zeros(self.n_head, self.size, self.size), []
        for t in range(len(x)):
            new = torch.einsum("hk,hv->hkv", k[t], v[t])
            out.append(torch.einsum("hk,hkv->hv", r[t], state + self.time_faaaa[..., None] * new))
            state = w[t][..., None] * state + new
        return self.output(self.ln_x(torch.stack(out).view(len(x), -1)) * functional.silu(self.gate(at["g"])))


class GatedChannelMixing(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        width, n = c["hidden_size"], c["intermediate_size"]
        self.time_maa_k, self.time_maa_r = (nn.Parameter(torch.empty(1, 1, width)) for _ in range(2))
        self.key, self.value = nn.Linear(width, n, bias=False), nn.Linear(n, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = functional.pad(x, (0, 0, 1, 0))[:-1]
        k, r = (torch.lerp(x, before, lerp[0]) for lerp in (self.time_maa_k, self.time_maa_r))
        return torch.sigmoid(self.receptance(r)) * self.value(torch.relu(self.key(k)) ** 2)


class Rwkv6(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        width, n_vocab, eps = c["hidden_size"], c["vocab_size"], c["layer_norm_epsilon"]
        self.rwkv, self.head = nn.Module(), nn.Linear(width, n_vocab, bias=False)
        self.rwkv.embeddings, self.rwkv.ln_out = nn.Embedding(n_vocab, width), nn.LayerNorm(width, eps)
        self.rwkv.blocks = nn.ModuleList(nn.Module() for _ in range(c["num_hidden_layers"]))
        for block in self.rwkv.blocks:
            block.ln1, block.ln2 = (nn.LayerNorm(width, eps) for _ in range(2))
            block.attention, block.feed_forward = FadingMixing(c), GatedChannelMixing(c)
        self.rwkv.blocks[0].pre_ln = nn.LayerNorm(width, eps)

    def can_generate(self) -> bool:
        return True

    def get_input_embeddings(self) -> nn.Module:
        return self.rwkv.embeddings

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.rwkv.blocks[0].pre_ln(self.rwkv.embeddings(ids[0]))
        for block in self.rwkv.blocks:
            x = x + block.attention(block.ln1(x))
            x = x + block.feed_forward(block.ln2(x))
        return {"logits": self.head(self.rwkv.ln_out(x))[None]}


class GatedAttention(nn.Module):
    """Attention within a window or without, with a gate for each head."""

    def __init__(self, c: Config, kind: str) -> None:
        super().__init__()
        self.n, self.n_kv, self.size, rope = (
            c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["rope_parameters"][kind],
        )  # fmt: skip
        self.window = c["sliding_window"] if kind == "sliding_attention" else c["max_position_embeddings"]
        self.n_rot, self.base = int(self.size * rope["partial_rotary_factor"]), rope["rope_theta"]
        self.q_k_v_proj = nn.Linear(c["hidden_size"], (self.n + 2 * self.n_kv) * self.size, bias=False)
        self.g_proj = nn.Linear(c["hidden_size"], self.n, bias=False)
        self.o_proj = nn.Linear(self.n * self.size, c["hidden_size"], bias=False)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate pairs of a head's first numbers, as complex numbers."""
        steps = torch.arange(self.n_rot // 2, dtype=torch.float32) * 2 / self.n_rot
        angles = torch.arange(len(x))[:, None, None] * self.base**-steps
        pairs = torch.complex(*x[..., : self.n_rot].chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([pairs.real, pairs.imag, x[..., self.n_rot :]], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q_k_v_proj(x).view(len(x), -1, self.size).split([self.n, self.n_kv, self.n_kv], 1)
        q, k = self.turned(q), self.turned(k)
        k, v = (y.repeat_interleave(self.n // self.n_kv, 1) for y in (k, v))
        ago = torch.arange(len(x))[:, None] - torch.arange(len(x))
        scores = torch.einsum("qhd,khd->hqk", q, k) * self.size**-0.5
        scores = scores.masked_fill((ago < 0) | (ago >= self.window), -torch.inf)
        y = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v) * torch.sigmoid(self.g_proj(x))[..., None]
        return self.o_proj(y.reshape(len(x), -1))


class GatedGelu(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        width, n = c["hidden_size"], c["intermediate_size"]
        self.gate_proj, self.up_proj = (nn.Linear(width, n, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(n, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.gelu(self.gate_proj(x)) * self.up_proj(x))


class Spark(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.frame(c, lambda i: (GatedAttention(c, c["layer_types"][i]), GatedGelu(c)))

    def frame(self, c: Config, parts: Callable[[int], tuple[nn.Module, nn.Module]]) -> None:
        """Make embedding, norms and output around each layer's mixer and MLP."""
        width, n_vocab, eps = c["hidden_size"], c["vocab_size"], c["rms_norm_eps"]
        self.model, self.lm_head = nn.Module(), nn.Linear(width, n_vocab, bias=False)
        self.model.embed_tokens, self.model.norm = nn.Embedding(n_vocab, width), nn.RMSNorm(width, eps)
        self.model.layers = nn.ModuleList(nn.Module() for _ in range(c["num_hidden_layers"]))
        for i, layer in enumerate(self.model.layers):
            layer.input_layernorm, layer.post_attention_layernorm = (nn.RMSNorm(width, eps) for _ in range(2))
            layer.self_attn, layer.mlp = parts(i)

    def can_generate(self) -> bool:
        return True

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.model.embed_tokens(ids[0])
        for layer in self.model.layers:
            x = x + layer.self_attn(layer.input_layernorm(x))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return {"logits": self.lm_head(self.model.norm(x))[None]}


class KeptMixing(nn.Module):
    """RWKV-6's mixing in QRWKV: keys are scaled by what decays, and each token reads its own row, too."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        width, self.n, self.n_kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.size, self.rank, decay_rank = width // self.n, c["lora_rank_tokenshift"], c["lora_rank_decay"]
        for name in "xrkvwg":
            self.register_parameter(f"time_maa_{name}", nn.Parameter(torch.empty(1, 1, width)))
        self.time_maa_w1 = nn.Parameter(torch.empty(width, 5 * self.rank))
        self.time_maa_w2 = nn.Parameter(torch.empty(5, self.rank, width))
        self.time_decay = nn.Parameter(torch.empty(1, 1, width))
        self.time_decay_w1 = nn.Parameter(torch.empty(width, decay_rank))
        self.time_decay_w2 = nn.Parameter(torch.empty(decay_rank, width))
        self.q_proj = nn.Linear(width, width)
        self.k_proj, self.v_proj = (nn.Linear(width, self.n_kv * self.size) for _ in range(2))
        self.gate, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = functional.pad(x, (0, 0, 1, 0))[:-1]
        low = torch.tanh(torch.lerp(x, before, self.time_maa_x[0]) @ self.time_maa_w1).view(len(x), 5, self.rank)
        at = {
            name: torch.lerp(x, before, getattr(self, f"time_maa_{name}")[0] + low[:, i] @ self.time_maa_w2[i])
            for i, name in enumerate("rkvwg")
        }
        w = torch.exp(-torch.exp(self.time_decay[0] + torch.tanh(at["w"] @ self.time_decay_w1) @ self.time_decay_w2))
        k, v = (
            y.view(len(x), self.n_kv, self.size).repeat_interleave(self.n // self.n_kv, 1)
            for y in (self.k_proj(at["k"]), self.v_proj(at["v"]))
        )
        r, w = (y.view(len(x), self.n, self.size) for y in (self.q_proj(at["r"]), w))
        state, out = torch.zeros(self.n, self.size, self.size), []
        for t in range(len(x)):
            state = w[t][..., None] * state + torch.einsum("hk,hv->hkv", k[t] * (1 - w[t]), v[t])
            out.append(torch.einsum("hk,hkv->hv", r[t], state) * self.size**-0.5)
        return self.o_proj(torch.stack(out).view(len(x), -1) * torch.sigmoid(self.gate(at["g"])))


class GatedSilu(GatedGelu):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Rwkv6Qwen2(Spark):
    """The frame of ``Spark`` around other layers."""

    def __init__(self, c: Config) -> None:
        nn.Module.__init__(self)
        self.frame(c, lambda i: (KeptMixing(c), GatedSilu(c)))


FORMULAS: dict[str, Callable[[Config], nn.Module]] = {
    "RWKV7ForCausalLM": Rwkv7,
    "Rwkv6ForCausalLM": Rwkv6,
    "Spark2_5ForCausalLM": Spark,
    "RWKV6Qwen2ForCausalLM": Rwkv6Qwen2,
    "KimiK3ForConditionalGeneration": KimiK3,
}
