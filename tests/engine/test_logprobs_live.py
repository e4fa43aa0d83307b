"""Log-probabilities of given and generated token ids, against transformers with the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from quire.engine import LLM
from tiny_checkpoints import tokenizer_json

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PROMPT = [1, 7, 30, 42, 5, 9, 11, 60]


def test_token_ids_in_and_out_have_exact_logprobs(tmp_path: Path) -> None:
    """Before and after new weights, as a training loop needs them."""
    config = transformers.LlamaConfig(
        vocab_size=259, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    torch.manual_seed(0)
    policy = transformers.LlamaForCausalLM(config).eval()
    policy.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    with LLM(tmp_path, threads=1, n_ctx=128, kv_dtype="f32") as llm:
        for _ in range(2):
            (result,) = llm.generate([PROMPT], max_tokens=12, temperature=1, seed=3, logprobs=0, prompt_logprobs=0)
            ids = [*PROMPT, *result.token_ids]
            assert result.prompt_token_ids == PROMPT
            with torch.no_grad():
                expected = torch.log_softmax(policy(torch.tensor([ids])).logits[0].double(), -1).numpy()
            assert result.prompt_logprobs is not None
            assert result.logprobs is not None
            given = [token.logprob for token in [*result.prompt_logprobs[1:], *result.logprobs] if token is not None]
            wanted = [expected[i, token] for i, token in enumerate(ids[1:])]
            np.testing.assert_allclose(given, wanted, atol=1e-4)
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.add_(0.02 * torch.randn_like(parameter))
            llm.update_weights(policy.state_dict())
