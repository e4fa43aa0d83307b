"""Decoders with a classifier of texts or of tokens, such as reward models: the mapping of their checkpoints.

The decoder is another architecture's; its file finds the classifier as the tensor ``cls.output``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..checkpoints.mapping import Checkpoint, Fields, Key, Source, computed, only_with, tensor
from .encoding import HEAD_KEYS, TOKEN_HEAD_KEYS
from .registry import checkpoint_of

# A prefix of older checkpoints, which does not apply to the classifier.
_OLD_HOME = ("model.", "language_model.model.")


@dataclass(frozen=True)
class Headed(Checkpoint):
    """A decoder with a classifier in place of its output matrix."""

    causal: str = ""  # the decoder's class

    def chosen(self, whole: Fields) -> Checkpoint:
        """Return the mapping of the decoder with the classifier."""
        found = checkpoint_of(self.causal).chosen(whole)
        tensors = {ours: theirs for ours, theirs in found.tensors.items() if ours != "output"}
        # A larger configuration names the classes itself, not in the section of the text model.
        keys = {name: Key(key.kind, lambda _, key=key: key.read(whole), key.field) for name, key in self.keys.items()}  # type: ignore[misc]
        return replace(
            found,
            keys={**found.keys, **keys},
            tensors={**tensors, **self.tensors},
            homes=(*found.homes[:1], _OLD_HOME, *found.homes[1:]) if found.homes else (),
            unused=(*found.unused, *self.unused),
        )


_UNUSED = (
    "classifier_dropout", "classifier_bias", "token_classification_bias", "hidden_dropout", "summary_*",
    "tie_word_embeddings",
)  # fmt: skip


def _texts(arch: str, causal: str) -> Headed:
    """Return the mapping of a classifier of the last token, which stands for the text."""
    return Headed(arch, HEAD_KEYS, {"cls.output": "score"}, causal=causal, unused=_UNUSED)


def _tokens(arch: str, causal: str) -> Headed:
    """Return the mapping of a classifier of each token."""
    return Headed(arch, TOKEN_HEAD_KEYS, {"cls.output": "score"}, causal=causal, unused=_UNUSED)


def _words(arch: str, causal: str) -> Headed:
    """Return the mapping of a classifier of each token with its older name."""
    return Headed(arch, TOKEN_HEAD_KEYS, {"cls.output": "classifier"}, causal=causal, unused=_UNUSED)


# --- checkpoint ---

_MODERN_HEAD: dict[str, str | Source] = {
    "mlm": tensor("head.dense", change=only_with("classifier_bias", default=False, biases=True)),
    "mlm.norm": "head.norm",
    "cls.output": "classifier",
}
_HIDDEN: dict[str, str | Source] = {"cls": "score.0", "cls.output": "score.2"}
_ACTIVATION: dict[str, Key] = {"classifier.activation": computed("string", lambda config: "relu")}
# A reward is a number as it is.
_REWARD: dict[str, Key] = {
    **HEAD_KEYS,
    "classifier.output_labels": computed("string[]", lambda config: ["reward"]),
    "classifier.problem_type": computed("string", lambda config: "regression"),
}
HF = {
    "ApertusForTokenClassification": _tokens("apertus", "ApertusForCausalLM"),
    "ArceeForSequenceClassification": _texts("arcee", "ArceeForCausalLM"),
    "ArceeForTokenClassification": _tokens("arcee", "ArceeForCausalLM"),
    "AXK1ForSequenceClassification": _texts("axk1", "AXK1ForCausalLM"),
    "AXK1ForTokenClassification": _tokens("axk1", "AXK1ForCausalLM"),
    "AXK2ForSequenceClassification": _texts("axk2", "AXK2ForCausalLM"),
    "AXK2ForTokenClassification": _tokens("axk2", "AXK2ForCausalLM"),
    "BioGptForSequenceClassification": _texts("biogpt", "BioGptForCausalLM"),
    "BioGptForTokenClassification": _words("biogpt", "BioGptForCausalLM"),
    "BloomForSequenceClassification": _texts("bloom", "BloomForCausalLM"),
    "BloomForTokenClassification": _words("bloom", "BloomForCausalLM"),
    "CohereCompassTextForSequenceClassification": _texts("cohere2", "CohereCompassForCausalLM"),
    "DeepseekV2ForSequenceClassification": _texts("deepseek2", "DeepseekV2ForCausalLM"),
    "DeepseekV3ForSequenceClassification": _texts("deepseek2", "DeepseekV3ForCausalLM"),
    "DeepseekV3ForTokenClassification": _tokens("deepseek2", "DeepseekV3ForCausalLM"),
    "DiffLlamaForSequenceClassification": _texts("diffllama", "DiffLlamaForCausalLM"),
    "DiffLlamaForTokenClassification": _tokens("diffllama", "DiffLlamaForCausalLM"),
    "Exaone4ForSequenceClassification": _texts("exaone4", "Exaone4ForCausalLM"),
    "Exaone4ForTokenClassification": _tokens("exaone4", "Exaone4ForCausalLM"),
    "FalconForSequenceClassification": _texts("falcon", "FalconForCausalLM"),
    "FalconForTokenClassification": _words("falcon", "FalconForCausalLM"),
    "Gemma2ForTokenClassification": _tokens("gemma2", "Gemma2ForCausalLM"),
    "Gemma3TextForSequenceClassification": _texts("gemma3", "Gemma3ForCausalLM"),
    "Gemma3ForSequenceClassification": _texts("gemma3", "Gemma3ForConditionalGeneration"),
    "GemmaForSequenceClassification": _texts("gemma", "GemmaForCausalLM"),
    "GemmaForTokenClassification": _tokens("gemma", "GemmaForCausalLM"),
    "Glm4ForSequenceClassification": _texts("glm4", "Glm4ForCausalLM"),
    "Glm4ForTokenClassification": _tokens("glm4", "Glm4ForCausalLM"),
    "GlmForSequenceClassification": _texts("chatglm", "GlmForCausalLM"),
    "GlmForTokenClassification": _tokens("chatglm", "GlmForCausalLM"),
    "GPT2ForSequenceClassification": _texts("gpt2", "GPT2LMHeadModel"),
    "GPT2ForTokenClassification": _words("gpt2", "GPT2LMHeadModel"),
    "GPTBigCodeForSequenceClassification": _texts("starcoder", "GPTBigCodeForCausalLM"),
    "GPTBigCodeForTokenClassification": _words("starcoder", "GPTBigCodeForCausalLM"),
    "GPTJForSequenceClassification": _texts("gptj", "GPTJForCausalLM"),
    "GPTNeoForSequenceClassification": _texts("gptneo", "GPTNeoForCausalLM"),
    "GPTNeoForTokenClassification": _words("gptneo", "GPTNeoForCausalLM"),
    "GPTNeoXForSequenceClassification": _texts("gptneox", "GPTNeoXForCausalLM"),
    "GPTNeoXForTokenClassification": _words("gptneox", "GPTNeoXForCausalLM"),
    "GptOssForSequenceClassification": _texts("gpt-oss", "GptOssForCausalLM"),
    "GptOssForTokenClassification": _tokens("gpt-oss", "GptOssForCausalLM"),
    "HeliumForSequenceClassification": _texts("llama", "HeliumForCausalLM"),
    "HeliumForTokenClassification": _tokens("llama", "HeliumForCausalLM"),
    "HunYuanDenseV1ForSequenceClassification": _texts("hunyuan-dense", "HunYuanDenseV1ForCausalLM"),
    "HunYuanMoEV1ForSequenceClassification": _texts("hunyuan-moe", "HunYuanMoEV1ForCausalLM"),
    "JambaForSequenceClassification": _texts("jamba", "JambaForCausalLM"),
    "LlamaForTokenClassification": _tokens("llama", "LlamaForCausalLM"),
    "MiniCPM3ForSequenceClassification": _texts("minicpm3", "MiniCPM3ForCausalLM"),
    "MiniMaxForSequenceClassification": _texts("minimax-01", "MiniMaxForCausalLM"),
    "MiniMaxForTokenClassification": _tokens("minimax-01", "MiniMaxForCausalLM"),
    "Ministral3ForSequenceClassification": _texts("mistral3", "Ministral3ForCausalLM"),
    "Ministral3ForTokenClassification": _tokens("mistral3", "Ministral3ForCausalLM"),
    "MinistralForSequenceClassification": _texts("cwm", "MinistralForCausalLM"),
    "MinistralForTokenClassification": _tokens("cwm", "MinistralForCausalLM"),
    "Mistral4ForSequenceClassification": _texts("mistral4", "Mistral4ForCausalLM"),
    "Mistral4ForTokenClassification": _tokens("mistral4", "Mistral4ForCausalLM"),
    "MistralForSequenceClassification": _texts("llama", "MistralForCausalLM"),
    "MistralForTokenClassification": _tokens("llama", "MistralForCausalLM"),
    "MixtralForSequenceClassification": _texts("llama", "MixtralForCausalLM"),
    "MixtralForTokenClassification": _tokens("llama", "MixtralForCausalLM"),
    "ModernBertDecoderForSequenceClassification": Headed(
        "modern-bert-decoder", HEAD_KEYS, _MODERN_HEAD, causal="ModernBertDecoderForCausalLM", unused=_UNUSED
    ),
    "MptForSequenceClassification": _texts("mpt", "MptForCausalLM"),
    "MptForTokenClassification": _words("mpt", "MptForCausalLM"),
    "NemotronForSequenceClassification": _texts("nemotron", "NemotronForCausalLM"),
    "NemotronForTokenClassification": _tokens("nemotron", "NemotronForCausalLM"),
    "Olmo2ForSequenceClassification": _texts("olmo2", "Olmo2ForCausalLM"),
    "Olmo3ForSequenceClassification": _texts("olmo2", "Olmo3ForCausalLM"),
    "OlmoForSequenceClassification": _texts("olmo", "OlmoForCausalLM"),
    "OpenAIGPTForSequenceClassification": _texts("openai-gpt", "OpenAIGPTLMHeadModel"),
    "OPTForSequenceClassification": _texts("opt", "OPTForCausalLM"),
    "PersimmonForSequenceClassification": _texts("persimmon", "PersimmonForCausalLM"),
    "PersimmonForTokenClassification": _tokens("persimmon", "PersimmonForCausalLM"),
    "Phi3ForSequenceClassification": _texts("phi3", "Phi3ForCausalLM"),
    "Phi3ForTokenClassification": _tokens("phi3", "Phi3ForCausalLM"),
    "PhiForSequenceClassification": _texts("phi2", "PhiForCausalLM"),
    "PhiForTokenClassification": _tokens("phi2", "PhiForCausalLM"),
    "PhimoeForSequenceClassification": _texts("phimoe", "PhimoeForCausalLM"),
    "Qwen2ForTokenClassification": _tokens("qwen2", "Qwen2ForCausalLM"),
    "Qwen2MoeForSequenceClassification": _texts("qwen2moe", "Qwen2MoeForCausalLM"),
    "Qwen2MoeForTokenClassification": _tokens("qwen2moe", "Qwen2MoeForCausalLM"),
    "Qwen3ForTokenClassification": _tokens("qwen3", "Qwen3ForCausalLM"),
    "Qwen3MoeForSequenceClassification": _texts("qwen3moe", "Qwen3MoeForCausalLM"),
    "Qwen3MoeForTokenClassification": _tokens("qwen3moe", "Qwen3MoeForCausalLM"),
    "Qwen3NextForSequenceClassification": _texts("qwen3next", "Qwen3NextForCausalLM"),
    "Qwen3NextForTokenClassification": _tokens("qwen3next", "Qwen3NextForCausalLM"),
    "Qwen3_5ForSequenceClassification": _texts("qwen35", "Qwen3_5ForConditionalGeneration"),
    "Qwen3_5ForTokenClassification": _tokens("qwen35", "Qwen3_5ForConditionalGeneration"),
    "Qwen3_5TextForSequenceClassification": _texts("qwen35", "Qwen3_5ForCausalLM"),
    "SeedOssForSequenceClassification": _texts("seed_oss", "SeedOssForCausalLM"),
    "SeedOssForTokenClassification": _tokens("seed_oss", "SeedOssForCausalLM"),
    "SmolLM3ForSequenceClassification": _texts("smollm3", "SmolLM3ForCausalLM"),
    "SmolLM3ForTokenClassification": _tokens("smollm3", "SmolLM3ForCausalLM"),
    "StableLmForSequenceClassification": _texts("stablelm", "StableLmForCausalLM"),
    "StableLmForTokenClassification": _tokens("stablelm", "StableLmForCausalLM"),
    "Starcoder2ForSequenceClassification": _texts("starcoder2", "Starcoder2ForCausalLM"),
    "Starcoder2ForTokenClassification": _tokens("starcoder2", "Starcoder2ForCausalLM"),
    "InternLM2ForRewardModel": Headed("internlm2", _REWARD, {"cls.output": "v_head"}, causal="InternLM2ForCausalLM"),
    "Qwen2ForProcessRewardModel": Headed(
        "qwen2", {**TOKEN_HEAD_KEYS, **_ACTIVATION}, _HIDDEN, causal="Qwen2ForCausalLM", unused=_UNUSED
    ),
    "Qwen2ForRewardModel": Headed(
        "qwen2", {**_REWARD, **_ACTIVATION}, _HIDDEN, causal="Qwen2ForCausalLM", unused=_UNUSED
    ),
}
