"""Short names of well-known models, as Ollama users type them, and their GGUF repositories."""

from __future__ import annotations

import difflib

from .names import HubName

__all__ = ["SHORT_NAMES", "nearest_name", "short_name"]

# By name, then by tag.  The first tag is the default, and also "latest".
SHORT_NAMES: dict[str, dict[str, str]] = {
    "qwen3": {
        "8b": "Qwen/Qwen3-8B-GGUF", "0.6b": "Qwen/Qwen3-0.6B-GGUF", "1.7b": "Qwen/Qwen3-1.7B-GGUF",
        "4b": "Qwen/Qwen3-4B-GGUF", "14b": "Qwen/Qwen3-14B-GGUF", "32b": "Qwen/Qwen3-32B-GGUF",
        "30b": "Qwen/Qwen3-30B-A3B-GGUF", "30b-a3b": "Qwen/Qwen3-30B-A3B-GGUF",
    },
    "qwen3-embedding": {"0.6b": "Qwen/Qwen3-Embedding-0.6B-GGUF", "4b": "Qwen/Qwen3-Embedding-4B-GGUF"},
    "qwen2.5": {
        "7b": "Qwen/Qwen2.5-7B-Instruct-GGUF", "0.5b": "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
        "1.5b": "Qwen/Qwen2.5-1.5B-Instruct-GGUF", "3b": "Qwen/Qwen2.5-3B-Instruct-GGUF",
        "14b": "Qwen/Qwen2.5-14B-Instruct-GGUF", "32b": "Qwen/Qwen2.5-32B-Instruct-GGUF",
    },
    "qwen2.5-coder": {
        "7b": "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF", "0.5b": "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        "1.5b": "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "3b": "Qwen/Qwen2.5-Coder-3B-Instruct-GGUF",
        "14b": "Qwen/Qwen2.5-Coder-14B-Instruct-GGUF", "32b": "Qwen/Qwen2.5-Coder-32B-Instruct-GGUF",
    },
    "llama3.2": {"3b": "bartowski/Llama-3.2-3B-Instruct-GGUF", "1b": "bartowski/Llama-3.2-1B-Instruct-GGUF"},
    "llama3.1": {"8b": "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"},
    "llama3.3": {"70b": "bartowski/Llama-3.3-70B-Instruct-GGUF"},
    "gemma3": {
        "4b": "ggml-org/gemma-3-4b-it-GGUF", "1b": "ggml-org/gemma-3-1b-it-GGUF",
        "12b": "ggml-org/gemma-3-12b-it-GGUF", "27b": "ggml-org/gemma-3-27b-it-GGUF",
    },
    "gemma2": {"9b": "bartowski/gemma-2-9b-it-GGUF", "2b": "bartowski/gemma-2-2b-it-GGUF"},
    "gpt-oss": {"20b": "ggml-org/gpt-oss-20b-GGUF", "120b": "ggml-org/gpt-oss-120b-GGUF"},
    "mistral": {"7b": "bartowski/Mistral-7B-Instruct-v0.3-GGUF"},
    "mistral-nemo": {"12b": "bartowski/Mistral-Nemo-Instruct-2407-GGUF"},
    "mistral-small": {"24b": "bartowski/Mistral-Small-24B-Instruct-2501-GGUF"},
    "phi4": {"14b": "bartowski/phi-4-GGUF"},
    "phi3.5": {"3.8b": "bartowski/Phi-3.5-mini-instruct-GGUF"},
    "deepseek-r1": {
        "8b": "unsloth/DeepSeek-R1-0528-Qwen3-8B-GGUF", "1.5b": "unsloth/DeepSeek-R1-Distill-Qwen-1.5B-GGUF",
        "7b": "unsloth/DeepSeek-R1-Distill-Qwen-7B-GGUF", "14b": "unsloth/DeepSeek-R1-Distill-Qwen-14B-GGUF",
        "32b": "unsloth/DeepSeek-R1-Distill-Qwen-32B-GGUF",
    },
    "smollm2": {
        "1.7b": "bartowski/SmolLM2-1.7B-Instruct-GGUF", "360m": "bartowski/SmolLM2-360M-Instruct-GGUF",
        "135m": "bartowski/SmolLM2-135M-Instruct-GGUF",
    },
    "smollm3": {"3b": "ggml-org/SmolLM3-3B-GGUF"},
}  # fmt: skip


def short_name(text: str) -> HubName | None:
    """Return the repository of a name such as ``qwen3`` or ``qwen3:0.6b``; None for a name that is not in the table.

    A quantization may follow the size: ``qwen3:8b-q8_0``.
    """
    name, _, tag = text.lower().partition(":")
    sizes = SHORT_NAMES.get(name.removeprefix("library/"))
    if sizes is None:
        return None
    if tag in ("", "latest"):
        return HubName(next(iter(sizes.values())))
    if tag in sizes:
        return HubName(sizes[tag])
    for size in sorted(sizes, key=len, reverse=True):
        if tag.startswith(f"{size}-"):
            quantization = tag.removeprefix(f"{size}-").removeprefix("instruct-").removeprefix("it-")
            return HubName(sizes[size], tag=quantization.upper())
    return None


def nearest_name(text: str) -> str | None:
    """Return the name in the table that is closest to an unknown one, with the closest size if a size was given."""
    name, _, tag = text.lower().partition(":")
    near = difflib.get_close_matches(name, SHORT_NAMES, 1)
    if not near:
        return None
    sizes = SHORT_NAMES[near[0]]
    if not tag:
        return near[0]
    size = next(iter(difflib.get_close_matches(tag, sizes, 1)), next(iter(sizes)))
    return f"{near[0]}:{size}"
