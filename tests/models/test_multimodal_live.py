"""The text halves of multimodal checkpoints, as transformers saves them, give its answers.  Needs torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire.checkpoints.conversion import convert
from quire.models.multimodal import HF
from test_models import Runner, close
from tiny_checkpoints import tokenizer_json, weight_of, write_safetensors

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
transformers = pytest.importorskip("transformers", reason="needs transformers")

from safetensors import safe_open  # noqa: E402

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn

IDS = [3, 250, 17, 99, 12, 64, 7, 200, 31, 5]
TEXT: dict[str, Any] = {
    "vocab_size": 272, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "head_dim": 16, "pad_token_id": 258, "bos_token_id": 256,
    "eos_token_id": 257, "tie_word_embeddings": False,
}  # fmt: skip
OF_TEXT: dict[str, dict[str, object]] = {
    "cohere2": {"sliding_window": 4, "layer_norm_eps": 1e-4, "logit_scale": 1.0},
    "deepseek_v3": {
        "num_key_value_heads": 4, "head_dim": 8, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
        "v_head_dim": 10, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
        "moe_intermediate_size": 24, "first_k_dense_replace": 1,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "head_dim": 32,
    },
    "granite": {"embedding_multiplier": 12.0, "attention_multiplier": 0.1},
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
AUDIO: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "intermediate_size": 40, "encoder_ffn_dim": 40, "num_hidden_layers": 1,
    "encoder_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "encoder_attention_heads": 2,
    "num_mel_bins": 16, "max_source_positions": 20, "input_dim": 16, "hidden_dim": 32, "num_layers": 1,
}  # fmt: skip
OTHER: dict[str, dict[str, object]] = {
    "AudioFlamingo3ForConditionalGeneration": {"audio_config": {"model_type": "audioflamingo3_encoder", **AUDIO}},
    "MusicFlamingoForConditionalGeneration": {"audio_config": {"model_type": "audioflamingo3_encoder", **AUDIO}},
    "VoxtralForConditionalGeneration": {"audio_config": {"model_type": "voxtral_encoder", **AUDIO}},
    "GlmAsrForConditionalGeneration": {"audio_config": {"model_type": "glmasr_encoder", **AUDIO}},
    "Qwen3ASRForConditionalGeneration": {
        "audio_config": {"model_type": "qwen3_asr_encoder", "output_dim": 64, "downsample_hidden_size": 8, **AUDIO}
    },
    "FunAsrNanoForConditionalGeneration": {
        "audio_config": {"model_type": "fun_asr_nano_encoder", **AUDIO, "num_tp_layers": 1},
        "adaptor_config": {"hidden_size": 64, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    },
    "GraniteSpeechPlusForConditionalGeneration": {
        "encoder_config": {"num_heads": 2, "dim_head": 16, **AUDIO},
        "projector_config": {"model_type": "blip_2_qformer", "encoder_hidden_size": 32, **AUDIO},
    },
    "DeepseekVLForConditionalGeneration": {"vision_config": {"model_type": "siglip_vision_model", **VISION}},
    "GraniteSpeechForConditionalGeneration": {
        "encoder_config": {"num_heads": 2, "dim_head": 16, **AUDIO},
        "projector_config": {"model_type": "blip_2_qformer", "encoder_hidden_size": 32, **AUDIO},
    },
}  # fmt: skip
# Classes whose mapping is beside that of their text model, with fields of text and other parts.
OWN: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "CohereCompassForConditionalGeneration": (
        {
            "model_type": "cohere_compass_text", "sliding_window": 5, "layer_norm_eps": 1e-4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [4, 2, 2]},
                "full_attention": None,
            },
        },
        {
            "vision_config": {
                **VISION, "depth": 2, "num_heads": 2, "out_hidden_size": 64, "deepstack_visual_indexes": [0], "num_position_embeddings": 4,
            },
        },
    ),
    "Apertus1p5ForConditionalGeneration": (
        {"model_type": "apertus1p5_text", "output_vocab_size": 150},
        {
            "vision_config": {
                "codebook_size": 40, "embed_dim": 8, "latent_channels": 8, "base_channels": 32, "num_res_blocks": 1, "channel_multiplier": [1, 1],
            },
            "audio_config": {"model_type": "wavtokenizer_encoder", "codebook_size": 20}, "image_token_offset": 200, "audio_token_offset": 240,
        },
    ),
}  # fmt: skip
# Names that transformers does not save as it reads them.
RENAMED = {
    "language_model.model.blocks.": "language_model.model.layers.",
    "model.language_model.lm_head.": "lm_head.",
}
MISSING = [name for name in HF if not hasattr(transformers, name)]


def built(name: str, folder: Path) -> Any:
    """Save a random model of a class with a tiny text model, and return it."""
    kind = getattr(transformers, name)
    text = {**TEXT, "model_type": HF[name].kind, **OF_TEXT.get(HF[name].kind, {})}
    parts = OTHER.get(name, {"vision_config": VISION})
    config = kind.config_class(text_config=text, tie_word_embeddings=False, **parts)
    kind(config).float().save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "np") as file:
        tensors = {tensor: file.get_tensor(tensor) for tensor in file.keys()}  # noqa: SIM118
    for saved, read in RENAMED.items():
        tensors = {tensor.replace(saved, read): values for tensor, values in tensors.items()}
    ours = {tensor: weight_of(HF[name].kind, tensor, values.shape) for tensor, values in tensors.items()}
    write_safetensors(folder / "model.safetensors", ours)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize("name", [name for name in HF if name not in MISSING])
def test_text_halves(tmp_path: Path, name: str) -> None:
    model = built(name, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([IDS])).logits[0].numpy()
    close(np.asarray(Runner(tmp_path / "x.gguf", threads=1).answer(IDS)), expected)
    greedy = model.generate(torch.tensor([IDS]), max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert Runner(tmp_path / "x.gguf", threads=1).greedy(IDS, 12) == greedy[0, len(IDS) :].tolist()


@pytest.mark.parametrize("name", list(OWN))
def test_text_halves_with_a_mapping_of_their_own(tmp_path: Path, name: str) -> None:
    kind, (text, parts) = getattr(transformers, name), OWN[name]
    torch.manual_seed(7)
    model = kind(kind.config_class(text_config={**TEXT, **text}, tie_word_embeddings=False, **parts)).float().eval()
    model.save_pretrained(tmp_path / "hf")
    (tmp_path / "hf/tokenizer.json").write_text(json.dumps(tokenizer_json()))
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([IDS])).logits[0].numpy()
    found = np.asarray(Runner(tmp_path / "x.gguf", threads=1).answer(IDS))
    close(found[:, : expected.shape[1]], expected)


def test_only_models_of_their_own_code_are_not_compared() -> None:
    assert MISSING == ["KimiK25ForConditionalGeneration", "HCXVisionForCausalLM"]
