"""What is known of Qwen3-Reranker (Zhang et al. 2025), which answers yes or no, beyond its weights.

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
    """Whether one of the names by which a model goes is that of such a reranker."""
    return any("qwen3-reranker" in re.sub(r"[\s_]+", "-", name.lower()) for name in names)
