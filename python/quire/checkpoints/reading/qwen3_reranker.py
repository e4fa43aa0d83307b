"""The prompt template and labels of Qwen3-Reranker (Zhang et al. 2025), which answers yes or no.

Sources: its model card, for the template; llama.cpp's converter, for the names in GGUF.
"""

from __future__ import annotations

import re

YES_OR_NO = ("yes", "no")
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    f"<Instruct>: {INSTRUCTION}\n<Query>: {{query}}\n<Document>: {{document}}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def is_qwen3_reranker(*names: str) -> bool:
    """Return whether one of a model's names is that of a Qwen3-Reranker."""
    return any("qwen3-reranker" in re.sub(r"[\s_]+", "-", name.lower()) for name in names)
