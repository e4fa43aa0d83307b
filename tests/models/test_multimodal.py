"""Configurations of multimodal models that omit what transformers has as defaults, or name other text models."""

from __future__ import annotations

from typing import Any

import pytest
from quire.checkpoints.reading import Fields, reference_of
from quire.errors import UnsupportedError
from quire.models.registry import checkpoint_of

pytestmark = pytest.mark.python_only

# llava-hf/llava-1.5-7b-hf, without its vision encoder's fields
LLAVA: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_token_index": 32000,
    "model_type": "llava", "pad_token_id": 32001, "projector_hidden_act": "gelu", "tie_word_embeddings": False,
    "torch_dtype": "float16", "vision_feature_layer": -2, "vision_feature_select_strategy": "default", "vocab_size": 32064,
    "text_config": {
        "_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096,
        "model_type": "llama", "rms_norm_eps": 1e-05, "torch_dtype": "float16", "vocab_size": 32064,
    },
}  # fmt: skip


def keys_of(values: dict[str, Any]) -> tuple[str, dict[str, object]]:
    """Return the architecture of a configuration and its keys; every field must be known."""
    (kind,) = values["architectures"]
    whole = Fields("config.json", values, reference=reference_of(kind))
    checkpoint = checkpoint_of(kind).chosen(whole)
    keys = {key: value for key, _, value in checkpoint.entries(checkpoint.config_of(whole))}
    checkpoint.refuse_unread(whole)
    return checkpoint.arch, keys


def test_sizes_that_a_configuration_omits_are_those_of_transformers() -> None:
    arch, keys = keys_of(LLAVA)
    sizes = ("embedding_length", "block_count", "feed_forward_length", "attention.head_count", "context_length")
    assert arch == "llama"
    assert [keys[name] for name in sizes] == [4096, 32, 11008, 32, 4096]


@pytest.mark.parametrize(("kind", "arch"), [("mistral", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")])
def test_the_text_model_decides_the_architecture(kind: str, arch: str) -> None:
    assert keys_of({**LLAVA, "text_config": {"model_type": kind, "vocab_size": 300}})[0] == arch


def test_an_unknown_text_model_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="'reformer'"):
        keys_of({**LLAVA, "text_config": {"model_type": "reformer", "vocab_size": 300}})


def test_a_field_of_the_text_model_that_changes_answers_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="hidden_act"):
        keys_of({**LLAVA, "text_config": {**LLAVA["text_config"], "hidden_act": "gelu"}})
