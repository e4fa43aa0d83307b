"""Fields that published repositories have in config.json, on tiny weights: each folder opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from quire.conversion import convert
from quire.gguf import GGUFReader
from quire.models import load_model
from tiny_checkpoints import config_of, write_checkpoint

pytestmark = pytest.mark.python_only

# Repositories, the tiny checkpoint of their class, and what their files say beside sizes; None: absent.
PUBLISHED: dict[str, tuple[str, dict[str, object]]] = {
    "Qwen/Qwen2.5-7B, DeepSeek-R1-Distill-Qwen": (
        "qwen2",
        {"use_mrope": False, "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28},
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": (
        "qwen2",
        {"attention_dropout": 0.0, "use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 21},
    ),
    "Qwen/Qwen3-0.6B": (
        "qwen3",
        {"attention_bias": False, "max_window_layers": 28, "rope_scaling": None, "sliding_window": None,
         "use_sliding_window": False, "rope_theta": 1000000, "rope_parameters": None},
    ),
    "Qwen/Qwen3-30B-A3B": (
        "qwen3moe",
        {"decoder_sparse_step": 1, "mlp_only_layers": [], "output_router_logits": False, "router_aux_loss_coef": 0.001,
         "max_window_layers": 48, "use_sliding_window": False, "sliding_window": None},
    ),
    "google/gemma-2-2b": ("gemma2", {"cache_implementation": "hybrid", "hidden_act": "gelu_pytorch_tanh"}),
    "google/gemma-3-1b-it": ("gemma3", {"cache_implementation": "hybrid", "sliding_window_pattern": 6}),
    "google/gemma-3-270m": ("gemma3", {"_sliding_window_pattern": 6, "use_bidirectional_attention": False}),
    "CohereForAI/c4ai-command-r-v01": ("command-r", {"model_max_length": 256, "max_position_embeddings": 128}),
    "lmsys/vicuna-7b-v1.3": ("llama", {"max_sequence_length": 2048, "pretraining_tp": 1}),
    "meta-llama/Llama-3.1-8B-Instruct": (
        "llama-llama3",
        {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, "use_cache": True},
    ),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": ("llama", {"attention_bias": False, "rope_scaling": None}),
    "mistralai/Mistral-7B-Instruct-v0.3": ("mistral", {"sliding_window": None, "attention_dropout": 0.0}),
    "BAAI/bge-m3": (
        "xlm-roberta-rank",
        {"output_past": True, "position_embedding_type": "absolute", "use_cache": True},
    ),
    "intfloat/multilingual-e5-large": ("xlm-roberta-rank", {"output_past": True, "classifier_dropout": None}),
    "google-bert/bert-base-multilingual-cased": (
        "bert",
        {"directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
         "pooler_size_per_head": 128, "pooler_type": "first_token_transform"},
    ),
    "sentence-transformers/all-MiniLM-L6-v2": (
        "bert",
        {"gradient_checkpointing": False, "position_embedding_type": "absolute", "use_cache": True},
    ),
    "microsoft/Phi-3.5-mini-instruct": (
        "phi3",
        {"attention_bias": False, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "auto_map": {"AutoConfig": "x.Phi3Config"}},
    ),
    "microsoft/Phi-4-mini-instruct": ("phi3", {"full_attn_mod": 1, "interpolate_factor": 1, "mlp_bias": False}),
    "ibm-granite/granite-3.3-2b-instruct": ("granite", {"mlp_type": "x", "norm_type": "x"}),
    "openai/gpt-oss-20b": (
        "gpt-oss",
        {"experts_per_token": 2, "initial_context_length": 4096, "output_router_logits": False, "router_aux_loss_coef": 0.9,
         "swiglu_limit": 7.0, "attention_bias": True, "hidden_act": "silu"},
    ),
    "deepseek-ai/DeepSeek-R1": (
        "deepseek2-v3",
        {"ep_size": 1, "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "pretraining_tp": 1,
         "num_nextn_predict_layers": 1},
    ),
    "allenai/OLMo-2-1124-7B": ("olmo2", {"attention_bias": False, "attention_dropout": 0.0, "use_cache": True}),
    "HuggingFaceTB/SmolLM2-135M-Instruct": (
        "llama",
        {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}, "mlp_bias": False},
    ),
    "answerdotai/ModernBERT-base": (
        "modern-bert",
        {"attention_bias": False, "mlp_bias": False, "deterministic_flash_attn": False, "position_embedding_type": "absolute",
         "sparse_pred_ignore_index": -100, "sparse_prediction": False, "decoder_bias": True, "reference_compile": None},
    ),
    "openai-community/gpt2": (
        "gpt2",
        {"n_ctx": 1024, "summary_first_dropout": 0.1, "summary_type": "cls_index", "summary_use_proj": True,
         "summary_activation": None, "summary_proj_to_labels": True,
         "task_specific_params": {"text-generation": {"do_sample": True}}},
    ),
    "tiiuae/falcon-11B": ("falcon-new", {"num_ln_in_parallel_attn": 2, "ff_factor": 4, "n_embed": None}),
    "a finetune": ("llama", {"training_args": {"lr": 1e-4}, "unsloth_version": "2026.1", "quantize": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_opens(tmp_path: Path, name: str) -> None:
    tiny, fields = PUBLISHED[name]
    write_checkpoint(tmp_path / "hf", tiny)
    config = config_of(tiny) | fields
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    assert load_model(GGUFReader(tmp_path / "x.gguf")).config.n_layer > 0
