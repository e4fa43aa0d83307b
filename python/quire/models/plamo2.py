"""PLaMo 2 (Preferred Networks 2025): norms around Mamba 2, whose b, c and steps are normed, or attention; an MLP."""

from __future__ import annotations

from dataclasses import dataclass

from .._native import graph
from ..checkpoints.mapping import SILU, Checkpoint, Fields, Key, Source, adding, computed, f32, squeezed, tensor, u32
from ..errors import LoadError
from ..nn import CacheSpec, FusedGatedMLP, Keys, RopeSpec, Step, Tensor, Weights, rope, rope_spec
from .base import MAX_DIM, MAX_HEADS, Decoder, DenseConfig, Layer, Mixer, by_layer
from .classic import projections
from .mamba2 import decay

ARCHES = ("plamo2",)
LEAST_RANK = 64  # rank of the projection to steps: files have no key for it


def bare(weights: Weights, name: str) -> str:
    """Return the name of a norm's weight: llama.cpp writes some without ``.weight``."""
    return name if weights.has(name) else f"{name}.weight"


class Norm:
    def __init__(self, weights: Weights, name: str, dim: int, eps: float) -> None:
        self.weight, self.eps = weights.tensor(bare(weights, name), (dim,), vector=True), eps

    def __call__(self, x: Tensor) -> Tensor:
        return graph.rms_norm(x, self.weight, self.eps)


class SandwichBlock:
    """A mixer and an MLP, each with a norm before and after it and a residual connection."""

    def __init__(self, config: DenseConfig, weights: Weights, mixer: Mixer, mlp: Layer) -> None:
        self.before = [weights.norm(name, config.dim, config.eps) for name in ("attn_norm", "ffn_norm")]
        self.after = [Norm(weights, name, config.dim, config.eps) for name in ("post_attention_norm", "post_ffw_norm")]
        self.mixer, self.mlp = mixer, mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.after[0](self.mixer(self.before[0](x), step))
        return x + self.after[1](self.mlp(self.before[1](x)))


@dataclass(frozen=True)
class Sizes:
    """Sizes of the recurrent layers."""

    kernel: int
    inner: int
    n_state: int
    n_head: int
    rank: int

    @classmethod
    def read(cls, keys: Keys, dim: int) -> Sizes:
        keys.only("ssm.group_count", 0, 1)
        sizes = cls(
            kernel=keys.integer("ssm.conv_kernel", low=2, high=32),
            inner=keys.integer("ssm.inner_size", low=1, high=MAX_DIM),
            n_state=keys.integer("ssm.state_size", low=1, high=256),
            n_head=keys.integer("ssm.time_step_rank", low=1, high=MAX_HEADS),
            rank=max(LEAST_RANK, dim // 16),
        )
        if sizes.inner % sizes.n_head:
            raise LoadError(
                f"[plamo2] ssm.inner_size {sizes.inner} is not divisible by ssm.time_step_rank {sizes.n_head}"
            )
        return sizes

    def cache(self) -> CacheSpec:
        return CacheSpec(states=[("conv", (self.kernel - 1) * self.inner), ("ssm", self.inner * self.n_state)])


class StateMixer:
    def __init__(self, weights: Weights, dim: int, layer: int, sizes: Sizes, eps: float) -> None:
        self.layer, self.sizes, n_head = layer, sizes, sizes.n_head
        # Checkpoints and files put each head's gate before its input.
        self.both = weights.linear("ssm_in", dim, 2 * sizes.inner)
        self.conv = weights.tensor("ssm_conv1d.weight", (sizes.inner, sizes.kernel), vector=True)
        self.bcdt = weights.linear("ssm_x", sizes.inner, sizes.rank + 2 * sizes.n_state)
        self.norms = [
            Norm(weights, f"ssm_{one}_norm", n, eps)
            for one, n in (("b", sizes.n_state), ("c", sizes.n_state), ("dt", sizes.rank))
        ]
        self.dt = weights.linear("ssm_dt", sizes.rank, n_head, bias=True)
        self.a, self.d = (weights.tensor(name, (n_head,), vector=True) for name in ("ssm_a", "ssm_d"))
        self.out = weights.linear("ssm_out", sizes.inner, dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        sizes, size = self.sizes, self.sizes.inner // self.sizes.n_head
        both = self.both(x).heads(sizes.n_head)
        z, x = (graph.slice(both, 0, i * size, (i + 1) * size).merge_heads() for i in range(2))
        x = graph.conv_state(x, self.conv, None, layer=self.layer, state=0, silu=True)
        ends, bcdt = [0, sizes.n_state, 2 * sizes.n_state, 2 * sizes.n_state + sizes.rank], self.bcdt(x)
        b, c, dt = (norm(graph.slice(bcdt, 0, *ends[i : i + 2])) for i, norm in enumerate(self.norms))
        y = graph.state_space_dual(
            x.heads(sizes.n_head), graph.softplus(self.dt(dt)), b.heads(1), c.heads(1), self.a, self.d,
            layer=self.layer, state=1,
        )  # fmt: skip
        return self.out(graph.glu(z, y.merge_heads(), "silu"))


class HeadNorm:
    """A norm of heads, each with weights of its own."""

    def __init__(self, weights: Weights, name: str, shape: tuple[int, int], eps: float) -> None:
        self.weight, self.eps = weights.tensor(bare(weights, name), shape, vector=True), eps

    def __call__(self, x: Tensor) -> Tensor:
        return graph.multiply_weight(graph.rms_norm(x, None, self.eps), self.weight)


class Attention:
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale, self.rotation = config.v_head_dim**-0.5, rotation
        self.q, self.k, self.v = projections(config, weights)
        self.q_norm, self.k_norm = (
            HeadNorm(weights, f"attn_{one}_norm", (n, config.head_dim), config.eps)
            for one, n in (("q", config.n_head), ("k", config.n_kv_head))
        )
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q_norm(self.q(x).heads(self.n_head)), step.positions, self.rotation)
        k = rope(self.k_norm(self.k(x).heads(self.n_kv_head)), step.positions, self.rotation)
        return self.o(step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale))


class Plamo2(Decoder):
    """Recurrent layers have 0 heads.  Files of llama.cpp lack the window of the published models."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.attends, n_head = by_layer(keys, "attention.head_count", high=MAX_HEADS)
        attends, n_kv_head = by_layer(keys, "attention.head_count_kv", high=MAX_HEADS)
        config = DenseConfig.read(keys, n_vocab, n_head=n_head, n_kv_head=n_kv_head)
        if attends != self.attends:
            raise LoadError("[plamo2] attention.head_count and attention.head_count_kv differ in the layers with heads")
        self.window = keys.integer("attention.sliding_window", 0)
        whole = keys.integers("attention.sliding_window_pattern", config.n_layer, high=1) if self.window else []
        self.windows = [self.window if local else 0 for local in whole] or [0] * config.n_layer
        self.sizes = Sizes.read(keys, config.dim)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")

        def mixer(i: int, block: Weights) -> Mixer:
            if self.attends[i]:
                return Attention(config, block, i, rotation)
            return StateMixer(block, config.dim, i, self.sizes, config.eps)

        blocks = [
            SandwichBlock(config, block, mixer(i, block), FusedGatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        attention = self.config.cache(self.windows)
        return [attention[i] if attends else self.sizes.cache() for i, attends in enumerate(self.attends)]


MODEL = Plamo2

# --- checkpoint ---


def _attends(config: Fields) -> list[bool]:
    n_layer, every = config.integer("num_hidden_layers", 32), config.integer("mamba_step", 2, low=2)
    if n_layer <= every // 2:
        return [i == n_layer - 1 for i in range(n_layer)]
    return [i % every == every // 2 for i in range(n_layer)]


def _by_layer(field: str, default: int) -> Key:
    def read(config: Fields) -> list[int]:
        n = config.integer(field, default, low=1)
        return [n if attends else 0 for attends in _attends(config)]

    return computed("u32[]", read)


def _inner(config: Fields) -> int:
    return config.integer("mamba_num_heads", 64, low=1) * config.integer("hidden_size_per_head", 128, low=1)


def _pattern(config: Fields) -> list[bool]:
    """Return the layers with windows, by the numbers of those without."""
    whole = config.items("full_attention_idx")
    return [i not in whole for i in range(config.integer("num_hidden_layers", 32))]


LAYER = "model.layers.layers.{i}"
FRAME: dict[str, str | Source] = {
    "token_embd": "model.embed_tokens",
    "output_norm": tensor("model.norm", change=adding(1.0)),
    "output": "lm_head",
    "blk.{i}.attn_norm": tensor(f"{LAYER}.pre_mixer_norm", change=adding(1.0)),
    "blk.{i}.ffn_norm": tensor(f"{LAYER}.pre_mlp_norm", change=adding(1.0)),
    # llama.cpp's names of these end here.
    "blk.{i}.post_attention_norm": tensor(f"{LAYER}.post_mixer_norm.weight", change=adding(1 / 5)),
    "blk.{i}.post_ffw_norm": tensor(f"{LAYER}.post_mlp_norm.weight", change=adding(1 / 5**1.5)),
    "blk.{i}.attn_qkv": f"{LAYER}.mixer.qkv_proj",
    "blk.{i}.attn_output": f"{LAYER}.mixer.o_proj",
    "blk.{i}.ffn_up": f"{LAYER}.mlp.gate_up_proj",
    "blk.{i}.ffn_down": f"{LAYER}.mlp.down_proj",
}
_MIXER = f"{LAYER}.mixer"
HF = {
    "Plamo2ForCausalLM": Checkpoint(
        "plamo2",
        {
            "context_length": u32("max_position_embeddings", default=2048, low=1),
            "embedding_length": u32("hidden_size", default=4096),
            "block_count": u32("num_hidden_layers", default=32),
            "feed_forward_length": u32("intermediate_size", default=13312),
            "attention.head_count": _by_layer("num_attention_heads", 32),
            "attention.head_count_kv": _by_layer("num_key_value_heads", 4),
            "attention.key_length": u32("hidden_size_per_head", default=128),
            "attention.value_length": u32("hidden_size_per_head", default=128),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-6),
            "attention.sliding_window": u32("attention_window_size", default=2048, low=1),
            "attention.sliding_window_pattern": computed("bool[]", _pattern),
            "ssm.state_size": u32("mamba_d_state", default=64),
            "ssm.conv_kernel": u32("mamba_d_conv", default=4),
            "ssm.time_step_rank": u32("mamba_num_heads", default=64),
            "ssm.inner_size": computed("u32", _inner),
            "ssm.group_count": computed("u32", lambda config: 0),
        },
        {
            **FRAME,
            "blk.{i}.attn_q_norm.weight": f"{_MIXER}.q_weight",
            "blk.{i}.attn_k_norm.weight": f"{_MIXER}.k_weight",
            "blk.{i}.ssm_in": f"{_MIXER}.in_proj",
            "blk.{i}.ssm_conv1d": tensor(f"{_MIXER}.conv1d", change=squeezed),
            "blk.{i}.ssm_x": f"{_MIXER}.bcdt_proj",
            "blk.{i}.ssm_dt.weight": f"{_MIXER}.dt_proj.weight",
            "blk.{i}.ssm_dt.bias": f"{_MIXER}.dt_bias",
            "blk.{i}.ssm_a": tensor(f"{_MIXER}.A_log", change=decay),
            "blk.{i}.ssm_d": f"{_MIXER}.D",
            "blk.{i}.ssm_out": f"{_MIXER}.out_proj",
            **{f"blk.{{i}}.ssm_{one.lower()}_norm": f"{_MIXER}.{one}_norm_weight" for one in ("dt", "B", "C")},
        },
        fixed={"hidden_act": SILU, "mamba_enabled": (True,), "rope_scaling": (None,), "rope_parameters": (None,)},
        tied=True,
        unused=("mamba_chunk_size", "eval_*", "use_predefined_initial_state", "tokenizer_file"),
    )
}
