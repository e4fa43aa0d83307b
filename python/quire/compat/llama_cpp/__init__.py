"""A stand-in for llama-cpp-python: ``from quire.compat.llama_cpp import Llama``.

``Llama`` has the methods of its high-level interface with their arguments, defaults and answers: ``__call__``,
``create_completion``, ``create_chat_completion``, ``create_embedding``, ``embed``, ``tokenize``, ``detokenize``,
``generate``, ``from_pretrained``.  The low-level functions of the C interface are not here.
"""

from .caches import LlamaCache, LlamaDiskCache, LlamaRAMCache
from .grammar import LlamaGrammar
from .llama import Llama
from .processors import LogitsProcessorList, StoppingCriteriaList

__all__ = [
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LogitsProcessorList",
    "StoppingCriteriaList",
]
