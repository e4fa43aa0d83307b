"""Models that transformers lacks, expressed as models that it has, with other names or fused tensors.

Weights are created under the names of transformers' class.  ``published`` turns them into the form of the authors'
checkpoint, and ``config`` translates its configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Config = Mapping[str, object]
Tensors = dict[str, Array]


def nothing_more(config: Config, n: int) -> dict[str, Array]:
    return {}


@dataclass(frozen=True)
class Sibling:
    kind: str  # transformers' class
    config: Callable[[Config], dict[str, object]]  # returns its configuration, given the published one
    published: Callable[[Config, Tensors], Tensors]
    inputs: Callable[[Config, int], dict[str, Array]] = (
        nothing_more  # further inputs of its forward pass, by number of tokens
    )


def number(config: Config, name: str) -> int:
    value = config[name]
    assert isinstance(value, int)
    return value


def renamed(names: Mapping[str, str]) -> Callable[[Config, Tensors], Tensors]:
    """Return a function that replaces parts of names, in order."""

    def published(config: Config, tensors: Tensors) -> Tensors:
        out = {}
        for old, values in tensors.items():
            name = old
            for part, other in names.items():
                name = name.replace(part, other)
            out[name] = values
        return out

    return published


def fused(tensors: Tensors, parts: tuple[str, ...], whole: str) -> Tensors:
    """Concatenate tensors whose names differ in one part, by rows."""
    out = dict(tensors)
    for name in tensors:
        if parts[0] in name:
            pieces = [out.pop(name.replace(parts[0], part)) for part in parts]
            out[name.replace(parts[0], whole)] = np.concatenate(pieces)
    return out


def llama_config(config: Config) -> dict[str, object]:
    return {**config, "model_type": "llama"}


def internlm2(config: Config, tensors: Tensors) -> Tensors:
    n_kv_head = number(config, "num_key_value_heads")
    out = dict(tensors)
    for name in tensors:
        if ".self_attn.q_proj" in name:
            q, k, v = (out.pop(name.replace("q_proj", f"{one}_proj")) for one in "qkv")
            groups = [x.reshape(n_kv_head, -1, *x.shape[1:]) for x in (q, k, v)]
            out[name.replace("self_attn.q_proj", "attention.wqkv")] = np.concatenate(groups, 1).reshape(
                -1, *q.shape[1:]
            )
    return renamed(
        {
            "self_attn.o_proj": "attention.wo", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
            "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
            "embed_tokens": "tok_embeddings", "lm_head": "output",
        }
    )(config, out)  # fmt: skip


EXAONE = {
    "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers": "transformer.h",
    "self_attn.o_proj": "attn.attention.out_proj", "self_attn": "attn.attention", "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2", "mlp.gate_proj": "mlp.c_fc_0", "mlp.up_proj": "mlp.c_fc_1", "mlp.down_proj": "mlp.c_proj",
}  # fmt: skip


def qwen(config: Config, tensors: Tensors) -> Tensors:
    fusion = fused(tensors, QKV, "attn.c_attn")
    return renamed(
        {
            "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers": "transformer.h",
            "self_attn.o_proj": "attn.c_proj", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
            "mlp.up_proj": "mlp.w1", "mlp.gate_proj": "mlp.w2", "mlp.down_proj": "mlp.c_proj",
        }
    )(config, fusion)  # fmt: skip


def qwen_config(config: Config) -> dict[str, object]:
    half = number(config, "intermediate_size") // 2
    return {
        **config, "model_type": "qwen2", "intermediate_size": half, "rms_norm_eps": config["layer_norm_epsilon"],
        "num_key_value_heads": config["num_attention_heads"], "rope_theta": config["rotary_emb_base"],
    }  # fmt: skip


def orion_config(config: Config) -> dict[str, object]:
    return {
        **config, "model_type": "stablelm", "layer_norm_eps": config["rms_norm_eps"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    }  # fmt: skip


def codeshell(config: Config, tensors: Tensors) -> Tensors:
    fusion = fused(tensors, QKV, "attn.c_attn")
    return renamed(
        {
            "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers": "transformer.h",
            "self_attn.o_proj": "attn.c_proj", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
        }
    )(config, fusion)  # fmt: skip


def codeshell_config(config: Config) -> dict[str, object]:
    return {
        "model_type": "starcoder2", "vocab_size": config["vocab_size"], "hidden_size": config["n_embd"], "use_bias": True,
        "intermediate_size": config["n_inner"], "num_hidden_layers": config["n_layer"], "sliding_window": None,
        "num_attention_heads": config["n_head"], "num_key_value_heads": config["num_query_groups"],
        "norm_epsilon": config["layer_norm_epsilon"], "max_position_embeddings": config["n_positions"],
        "tie_word_embeddings": config["tie_word_embeddings"], "bos_token_id": 256, "eos_token_id": 257,
    }  # fmt: skip


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def minicpm_config(config: Config) -> dict[str, object]:
    n_layer, width, n_head = (
        number(config, f"{name}") for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    scale = config["scale_depth"]
    assert isinstance(scale, float)
    return {
        **config, "model_type": "granite", "embedding_multiplier": config["scale_emb"], "residual_multiplier": scale / n_layer**0.5,
        "logits_scaling": width / number(config, "dim_model_base"), "attention_multiplier": (width // n_head) ** -0.5,
    }  # fmt: skip


def chatglm(config: Config, tensors: Tensors) -> Tensors:
    return renamed(
        {
            "model.embed_tokens": "transformer.embedding.word_embeddings", "model.norm": "transformer.encoder.final_layernorm",
            "lm_head": "transformer.output_layer", "model.layers": "transformer.encoder.layers", "self_attn.o_proj": "self_attention.dense",
            "mlp.gate_up_proj": "mlp.dense_h_to_4h", "mlp.down_proj": "mlp.dense_4h_to_h",
        }
    )(config, fused(tensors, QKV, "self_attention.query_key_value"))  # fmt: skip


def chatglm_config(config: Config) -> dict[str, object]:
    ratio = config["rope_ratio"]
    assert isinstance(ratio, float)
    return {
        "model_type": "glm", "vocab_size": config["vocab_size"], "hidden_size": config["hidden_size"], "pad_token_id": 258,
        "intermediate_size": config["ffn_hidden_size"], "num_hidden_layers": config["num_layers"], "head_dim": config["kv_channels"],
        "num_attention_heads": config["num_attention_heads"], "num_key_value_heads": config["multi_query_group_num"],
        "rms_norm_eps": config["layernorm_epsilon"], "max_position_embeddings": config["seq_length"], "attention_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0 * ratio, "partial_rotary_factor": 0.5},
    }  # fmt: skip


def after_padding(config: Config, n: int) -> dict[str, Array]:
    """Return positions that begin after the padding's."""
    return {"position_ids": np.arange(2, 2 + n)[None]}


def linear_biases(n_head: int) -> Callable[[Config, int], dict[str, Array]]:
    """Return inputs that replace Llama's RoPE: positions are 0, and masks have ALiBi (Press, Smith and Lewis 2021)."""

    def slopes(n: int) -> list[float]:
        if n & (n - 1) == 0:
            return [2 ** (-8 / n * (i + 1)) for i in range(n)]
        below = 1 << (n.bit_length() - 1)
        return slopes(below) + slopes(2 * below)[0::2][: n - below]

    def inputs(config: Config, n: int) -> dict[str, Array]:
        at = np.arange(n)
        distance = at[:, None] - at
        bias = -np.array(slopes(n_head))[:, None, None] * distance
        mask = np.where(distance < 0, -np.inf, bias)[None].astype(np.float32)
        return {"attention_mask": mask, "position_ids": np.zeros((1, n), np.int64)}

    return inputs


def refact_config(config: Config) -> dict[str, object]:
    return {
        "model_type": "llama", "vocab_size": config["vocab_size"], "hidden_size": config["n_embd"], "num_hidden_layers": config["n_layer"],
        "intermediate_size": 256, "num_attention_heads": config["n_head"], "num_key_value_heads": 1, "bos_token_id": 256,
        "eos_token_id": 257, "rms_norm_eps": config["layer_norm_epsilon"], "max_position_embeddings": config["n_positions"],
    }  # fmt: skip


def refact(config: Config, tensors: Tensors) -> Tensors:
    fusion = fused(tensors, QKV[1:], "attn.kv")
    return renamed(
        {
            "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers": "transformer.h",
            "self_attn.q_proj": "attn.q", "self_attn.o_proj": "attn.c_proj", "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2", "mlp.down_proj": "mlp.c_proj",
        }
    )(config, fused(fusion, ("mlp.gate_proj", "mlp.up_proj"), "mlp.gate_up_proj"))  # fmt: skip


def baichuan(config: Config, tensors: Tensors) -> Tensors:
    return fused(tensors, QKV, "self_attn.W_pack")


def baichuan_config(config: Config) -> dict[str, object]:
    return {
        **llama_config(config),
        "max_position_embeddings": 256,
        "num_key_value_heads": config["num_attention_heads"],
    }


def openelm_config(config: Config) -> dict[str, object]:
    """Translate the sizes of layers; see references/adapted_models.py."""
    return {
        "model_type": "qwen3", "vocab_size": config["vocab_size"], "hidden_size": config["model_dim"], "head_dim": config["head_dim"],
        "num_hidden_layers": config["num_transformer_layers"], "num_attention_heads": 1, "num_key_value_heads": 1, "bos_token_id": 256,
        "eos_token_id": 257, "rms_norm_eps": 1e-6, "rope_theta": config["rope_freq_constant"], "tie_word_embeddings": True,
        "max_position_embeddings": config["max_context_length"],
    }  # fmt: skip


def openelm(config: Config, tensors: Tensors) -> Tensors:
    fusion = fused(fused(tensors, QKV, "attn.qkv_proj"), ("mlp.gate_proj", "mlp.up_proj"), "ffn.proj_1")
    return renamed(
        {
            "model.embed_tokens": "transformer.token_embeddings", "model.": "transformer.", "self_attn.o_proj": "attn.out_proj",
            "self_attn": "attn", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.down_proj": "ffn.proj_2",
        }
    )(config, fusion)  # fmt: skip


def jais_config(config: Config) -> dict[str, object]:
    """Translate norms and scales; see references/adapted_models.py."""
    return {
        "model_type": "llama", "vocab_size": config["vocab_size"], "hidden_size": config["n_embd"], "num_hidden_layers": config["n_layer"],
        "intermediate_size": config["n_inner"], "num_attention_heads": config["n_head"], "num_key_value_heads": config["n_head"],
        "bos_token_id": 256, "eos_token_id": 257, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "max_position_embeddings": config["n_positions"],
    }  # fmt: skip


def jais(config: Config, tensors: Tensors) -> Tensors:
    out = renamed(
        {
            "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers": "transformer.h",
            "self_attn.o_proj": "attn.c_proj", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
            "mlp.up_proj": "mlp.c_fc", "mlp.gate_proj": "mlp.c_fc2", "mlp.down_proj": "mlp.c_proj",
        }
    )(config, fused(tensors, QKV, "attn.c_attn"))  # fmt: skip
    return {name: np.ascontiguousarray(x.T) if ".c_" in name else x for name, x in out.items()}


def telechat(config: Config, tensors: Tensors) -> Tensors:
    n_kv_head = number(config, "num_key_value_heads")
    out = dict(tensors)
    for name in tensors:
        if ".self_attn.k_proj" in name:
            k, v = (out.pop(name.replace("k_proj", f"{one}_proj")) for one in "kv")
            pairs = [x.reshape(n_kv_head, -1, *x.shape[1:]) for x in (k, v)]
            out[name.replace("k_proj", "key_value")] = np.concatenate(pairs, 1).reshape(-1, *k.shape[1:])
    return renamed(
        {
            "model.embed_tokens": "transformer.word_embeddings", "model.norm": "transformer.ln_f", "model.layers": "transformer.h",
            "self_attn.q_proj": "self_attn.query", "self_attn.o_proj": "self_attn.dense", "self_attn": "self_attention",
        }
    )(config, out)  # fmt: skip


def telechat_config(config: Config) -> dict[str, object]:
    """Trained on twice the first length: the base grows as by NTK scaling with a factor of 3."""
    n = number(config, "hidden_size") // number(config, "n_head")
    assert number(config, "training_seqlen") == 2 * number(config, "base_seqlen")
    return {
        **config, "model_type": "llama", "rms_norm_eps": config["layer_norm_epsilon"], "num_hidden_layers": config["n_layer"],
        "num_attention_heads": config["n_head"], "intermediate_size": config["ffn_hidden_size"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0 * 3 ** (n / (n - 2))},
    }  # fmt: skip


def bailingmoe(config: Config, tensors: Tensors) -> Tensors:
    return renamed(BAILING)(config, fused(tensors, QKV, "attention.query_key_value"))


BAILING = {
    "model.embed_tokens": "model.word_embeddings", "self_attn.o_proj": "attention.dense", "e_score_correction_bias": "expert_bias",
    "self_attn.q_norm": "attention.query_layernorm", "self_attn.k_norm": "attention.key_layernorm",
}  # fmt: skip


def bailingmoe2_config(config: Config) -> dict[str, object]:
    return {
        **config, "model_type": "glm4_moe", "n_routed_experts": config["num_experts"], "n_shared_experts": config["num_shared_experts"],
        "rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"], "partial_rotary_factor": config["partial_rotary_factor"]},
    }  # fmt: skip


def maincoder(config: Config, tensors: Tensors) -> Tensors:
    """Interleave the rotated halves of each head of q and k, and of their norms."""
    n = number(config, "head_dim")
    order = np.arange(n).reshape(2, n // 2).T.ravel()
    out = {}
    for name, x in tensors.items():
        is_rotated = any(part in name for part in ("q_proj", "k_proj", "query_layernorm", "key_layernorm"))
        heads = x.reshape(-1, n, *x.shape[1:])[:, order] if is_rotated else x
        out[name] = np.ascontiguousarray(heads).reshape(x.shape)
    return renamed({"query_layernorm": "q_norm", "key_layernorm": "k_norm"})(config, out)


def plm_config(config: Config) -> dict[str, object]:
    return {**config, "model_type": "deepseek_v3", "first_k_dense_replace": config["num_hidden_layers"]}


def sarvam_moe_config(config: Config) -> dict[str, object]:
    return {**config, "n_routed_experts": config["num_experts"], "n_shared_experts": config["num_shared_experts"]}


def nomic_moe_config(config: Config) -> dict[str, object]:
    return {
        "model_type": "jina_embeddings_v3", "vocab_size": config["vocab_size"], "hidden_size": config["n_embd"], "hidden_act": "gelu",
        "num_hidden_layers": config["n_layer"], "num_attention_heads": config["n_head"], "intermediate_size": config["n_inner"],
        "max_position_embeddings": config["n_positions"], "type_vocab_size": 1, "layer_norm_eps": config["layer_norm_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": config["rotary_emb_base"]}, "pad_token_id": 258,
    }  # fmt: skip


def nomic_moe(config: Config, tensors: Tensors) -> Tensors:
    return renamed(
        {
            "layers.": "encoder.layers.", "self_attn.o_proj": "attn.out_proj", "post_attention_layernorm": "norm1",
            "post_mlp_layernorm": "norm2", "embeddings.LayerNorm": "emb_ln",
        }
    )(config, fused(tensors, QKV, "attn.Wqkv"))  # fmt: skip


def both_ways(n_head: int) -> Callable[[Config, int], dict[str, Array]]:
    """Return a mask with ALiBi for tokens before and after."""

    def inputs(config: Config, n: int) -> dict[str, Array]:
        mask = linear_biases(n_head)(config, n)["attention_mask"]
        below = np.tril(np.where(np.isinf(mask), 0, mask))
        return {"attention_mask": (below + below.swapaxes(-1, -2)).astype(np.float32)}

    return inputs


def jina_bert_v2(config: Config, tensors: Tensors) -> Tensors:
    out = {name.replace("intermediate.dense", "mlp.gated_layers"): values for name, values in tensors.items()}
    for part, other in (("dense", "wo"), ("LayerNorm", "layernorm")):
        out = {
            name if "attention" in name else name.replace(f"output.{part}", f"mlp.{other}"): values
            for name, values in out.items()
        }
    return out


def plamo_config(config: Config) -> dict[str, object]:
    return {
        **llama_config(config),
        "num_key_value_heads": number(config, "num_attention_heads") // number(config, "n_shared_head"),
    }


def plamo(config: Config, tensors: Tensors) -> Tensors:
    """Put the heads of q that share one of k apart, as tiles."""
    n_head, n_shared, out = number(config, "num_attention_heads"), number(config, "n_shared_head"), dict(tensors)
    order = np.arange(n_head).reshape(-1, n_shared).T.ravel()
    for name, x in tensors.items():
        if "q_proj" in name:
            out[name] = x.reshape(n_head, -1, x.shape[1])[order].reshape(x.shape)
        elif "o_proj" in name:
            out[name] = x.reshape(x.shape[0], n_head, -1)[:, order].reshape(x.shape)
    return renamed({"model.layers.": "model.layers.layers.", "input_layernorm": "norm"})(config, out)


def neobert_config(config: Config) -> dict[str, object]:
    return {
        **config, "model_type": "eurobert", "rms_norm_eps": config["norm_eps"], "hidden_act": "silu",
        "intermediate_size": -(-(number(config, "intermediate_size") * 2 // 3) // 8) * 8,
        "num_key_value_heads": config["num_attention_heads"], "max_position_embeddings": config["max_length"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip


def neobert(config: Config, tensors: Tensors) -> Tensors:
    """Interleave the rotated halves of q and k, and the heads of q, k and v."""
    n_head, out = number(config, "num_attention_heads"), fused(tensors, ("mlp.gate_proj", "mlp.up_proj"), "ffn.w12")
    for name in tensors:
        if "self_attn.q_proj" in name:
            parts = [out.pop(name.replace("q_proj", f"{one}_proj")) for one in "qkv"]
            q, k, v = (x.reshape(n_head, 2, -1, x.shape[-1]) for x in parts)
            pairs = [x.swapaxes(1, 2).reshape(n_head, -1, x.shape[-1]) for x in (q, k)]
            whole = np.concatenate([*pairs, v.reshape(n_head, -1, v.shape[-1])], 1)
            out[name.replace("self_attn.q_proj", "qkv")] = whole.reshape(-1, v.shape[-1])
    names = {
        "embed_tokens": "encoder", "layers.": "transformer_encoder.", "self_attn.o_proj": "wo", "mlp.down_proj": "ffn.w3",
        "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    out = renamed(names)(config, out)
    return {"layer_norm.weight" if name == "norm.weight" else name: x for name, x in out.items()}


def smallthinker_config(config: Config) -> dict[str, object]:
    """Translate the configuration; without windowed layers there is no window."""
    local = config["sliding_window_layout"]
    assert isinstance(local, list)
    return {
        **config, "model_type": "smollm3", "no_rope_layers": config["rope_layout"], "intermediate_size": 8, "pad_token_id": 258,
        "layer_types": ["sliding_attention" if one else "full_attention" for one in local], "use_sliding_window": any(local),
        "sliding_window": config["sliding_window_size"], "tie_word_embeddings": config.get("tie_word_embeddings", False),
    }  # fmt: skip


def minimax_config(config: Config) -> dict[str, object]:
    kinds, alpha = config["attn_type_list"], config["layernorm_mlp_alpha"]
    assert isinstance(kinds, list)
    assert config["rotary_dim"] == config["head_dim"]  # transformers rotates the whole head
    return {
        **config, "model_type": "minimax", "layer_types": ["full_attention" if one else "linear_attention" for one in kinds],
        "full_attn_alpha_factor": alpha, "linear_attn_alpha_factor": alpha, "mlp_alpha_factor": alpha, "block_size": 32,
    }  # fmt: skip


# By class, or by name of the checkpoint if transformers has the class for other models.
SIBLINGS = {
    "ArcticForCausalLM": Sibling("LlamaForCausalLM", llama_config, renamed({})),
    "MiniMaxText01ForCausalLM": Sibling("MiniMaxForCausalLM", minimax_config, renamed({})),
    "SmallThinkerForCausalLM": Sibling("SmolLM3ForCausalLM", smallthinker_config, renamed({})),
    "DeepseekForCausalLM": Sibling("LlamaForCausalLM", llama_config, renamed({})),
    "DeepseekOCRForCausalLM": Sibling("LlamaForCausalLM", llama_config, renamed({})),
    "BailingMoeForCausalLM": Sibling("LlamaForCausalLM", llama_config, bailingmoe),
    "BailingMoeV2ForCausalLM": Sibling("Glm4MoeForCausalLM", bailingmoe2_config, bailingmoe),
    "nomic-bert-moe": Sibling("JinaEmbeddingsV3Model", nomic_moe_config, nomic_moe),
    "LlamaBidirectionalModel": Sibling(
        "EuroBertModel", lambda config: {**config, "model_type": "eurobert"}, renamed({})
    ),
    "SolarForCausalLM": Sibling("LlamaForCausalLM", llama_config, renamed({})),
    "GroveMoeForCausalLM": Sibling(
        "Qwen3MoeForCausalLM", lambda config: {**config, "model_type": "qwen3_moe"}, renamed({})
    ),
    "PlamoForCausalLM": Sibling("LlamaForCausalLM", plamo_config, plamo),
    "NeoBERT": Sibling("EuroBertModel", neobert_config, neobert),
    "JinaBertModel": Sibling("BertModel", lambda config: {**config, "model_type": "bert"}, jina_bert_v2, both_ways(6)),
    "MaincoderForCausalLM": Sibling(
        "HunYuanDenseV1ForCausalLM", lambda config: {**config, "model_type": "hunyuan_v1_dense"}, maincoder
    ),
    "MiMoForCausalLM": Sibling("Qwen2ForCausalLM", lambda config: {**config, "model_type": "qwen2"}, renamed({})),
    "PLMForCausalLM": Sibling("DeepseekV3ForCausalLM", plm_config, renamed({})),
    "NanbeigeForCausalLM": Sibling("LlamaForCausalLM", llama_config, renamed({})),
    "TeleChat2ForCausalLM": Sibling("LlamaForCausalLM", telechat_config, telechat),
    "OuroForCausalLM": Sibling("LlamaForCausalLM", llama_config, renamed({})),
    "InternLMForCausalLM": Sibling(
        "LlamaForCausalLM", lambda config: {**llama_config(config), "attention_bias": config["bias"]}, renamed({})
    ),
    "InternLM3ForCausalLM": Sibling("LlamaForCausalLM", dict, renamed({})),
    "IQuestCoderForCausalLM": Sibling("LlamaForCausalLM", dict, renamed({})),
    "SarvamMLAForCausalLM": Sibling("DeepseekV3ForCausalLM", dict, renamed({})),
    "SarvamMoEForCausalLM": Sibling("Glm4MoeForCausalLM", sarvam_moe_config, bailingmoe),
    "XverseForCausalLM": Sibling("LlamaForCausalLM", llama_config, renamed({})),
    "InternLM2ForCausalLM": Sibling(
        "LlamaForCausalLM",
        lambda config: {**llama_config(config), "attention_bias": config["bias"], "rope_scaling": None},
        internlm2,
    ),
    "ExaoneForCausalLM": Sibling(
        "LlamaForCausalLM",
        lambda config: {
            **llama_config(config),
            "num_hidden_layers": config["num_layers"],
            "rms_norm_eps": config["layer_norm_epsilon"],
        },
        renamed(EXAONE),
    ),
    "QWenLMHeadModel": Sibling("Qwen2ForCausalLM", qwen_config, qwen),
    "OrionForCausalLM": Sibling("StableLmForCausalLM", orion_config, renamed({})),
    "CodeShellForCausalLM": Sibling("Starcoder2ForCausalLM", codeshell_config, codeshell),
    "PanguEmbeddedForCausalLM": Sibling(
        "LlamaForCausalLM", lambda config: {**llama_config(config), "attention_bias": config["bias"]}, renamed({})
    ),
    "MiniCPMForCausalLM": Sibling("GraniteForCausalLM", minicpm_config, renamed({})),
    "ChatGLMModel": Sibling("GlmForCausalLM", chatglm_config, chatglm),
    "GPTRefactForCausalLM": Sibling("LlamaForCausalLM", refact_config, refact, linear_biases(6)),
    "BaiChuanForCausalLM": Sibling("LlamaForCausalLM", baichuan_config, baichuan),
    "BaichuanForCausalLM": Sibling("LlamaForCausalLM", baichuan_config, baichuan, linear_biases(5)),
    "OpenELMForCausalLM": Sibling("Qwen3ForCausalLM", openelm_config, openelm),
    "JAISLMHeadModel": Sibling("LlamaForCausalLM", jais_config, jais, linear_biases(6)),
    "DeciLMForCausalLM": Sibling(
        "LlamaForCausalLM",
        lambda config: {name: value for name, value in llama_config(config).items() if name != "block_configs"},
        renamed({}),
    ),
}


def gte(config: Config, tensors: Tensors) -> Tensors:
    names = {
        "roberta.": "new.", "layers.": "encoder.layer.", "self_attn": "attention", "post_attention_layernorm": "attn_ln",
        "post_mlp_layernorm": "mlp_ln", "classifier.dense": "new.pooler.dense", "classifier.out_proj": "classifier",
    }  # fmt: skip
    return renamed(names)(config, fused(tensors, QKV, "self_attn.qkv_proj"))


def gte_config(config: Config) -> dict[str, object]:
    kept = {
        name: value for name, value in config.items() if not name.startswith(("rope_", "position_", "layer_norm_type"))
    }
    return {
        **kept,
        "model_type": "jina_embeddings_v3",
        "rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"]},
    }


SIBLINGS |= {
    "NewModel": Sibling("JinaEmbeddingsV3Model", gte_config, gte),
    "NewForSequenceClassification": Sibling("JinaEmbeddingsV3ForSequenceClassification", gte_config, gte),
}


def hy_v4(config: Config, tensors: Tensors) -> Tensors:
    """Interleave the rotated rows, the last ones of each head, and rename tensors.

    Published checkpoints rotate neighbouring rows (llama.cpp's converter and vLLM); transformers takes them for halves.
    """
    n_rot = number(config, "qk_rope_head_dim")
    heads = {
        "self_attn.q_b_proj": number(config, "num_attention_heads"), "self_attn.kv_a_proj_with_mqa": 1,
        "indexer.wq_b": number(config, "index_n_heads"), "indexer.wk": 1, "indexer.k_norm": 1,
    }  # fmt: skip
    out = dict(tensors)
    for name, values in tensors.items():
        if n := next((n for part, n in heads.items() if part in name), None):
            by_head = values.reshape(n, -1, *values.shape[1:])
            halves = by_head[:, -n_rot:].reshape(n, 2, n_rot // 2, *values.shape[1:])
            rotated = halves.swapaxes(1, 2).reshape(n, n_rot, *values.shape[1:])
            out[name] = np.concatenate([by_head[:, :-n_rot], rotated], 1).reshape(values.shape)
    return renamed(
        {
            "hc_pre.hc_head.": "hc_head.", "hc_pre.hc_attn_layer.": "hc_attn_layer.hc_pre.",
            "hc_pre.hc_mlp_layer.": "hc_mlp_layer.hc_pre.", "shared_experts.linear_gate": "shared_experts.gate_proj",
            "mlp.linear_gate": "mlp.gate_proj",
        }
    )(config, out)  # fmt: skip


# transformers saves other names than published checkpoints have, and reads both.
SIBLINGS["HYV4ForCausalLM"] = Sibling("HYV4ForCausalLM", dict, hy_v4)
# transformers counts positions from token 1 on, MPNet's padding, which is a character in the tests' vocabulary.
SIBLINGS |= {
    name: Sibling(name, dict, renamed({}), after_padding) for name in ("MPNetModel", "MPNetForTokenClassification")
}


# Classes without a transformers model or sibling; formula_models.py implements their papers' formulas.
BY_FORMULA = (
    "RWKV7ForCausalLM", "Rwkv6ForCausalLM", "Spark2_5ForCausalLM", "RWKV6Qwen2ForCausalLM",
    "KimiK3ForConditionalGeneration", "Grok1ForCausalLM", "Grok1ModelForCausalLM", "RwkvHybridForCausalLM",
    "Plamo2ForCausalLM", "Plamo3ForCausalLM", "MapleForCausalLM", "GraniteSwitchForCausalLM", "TalkieForCausalLM",
)  # fmt: skip


def is_theirs(name: str, kind: str) -> bool:
    """Return whether transformers itself reads the checkpoint."""
    return sibling_of(name, kind) is None and kind not in BY_FORMULA


def sibling_of(name: str, kind: str) -> Sibling | None:
    """Return the sibling of checkpoint ``name`` with class ``kind``."""
    return SIBLINGS.get(name, SIBLINGS.get(kind))
