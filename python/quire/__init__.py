"""Quire: LLM inference from pages of KV cache.

Names are imported when first used, so that ``import quire`` costs little.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .errors import (
    BusyError,
    CapacityError,
    DeviceError,
    InternalError,
    LoadError,
    QuireError,
    RequestError,
    ShapeError,
    UnsupportedError,
)
from .runtime.interpreter import check_interpreter

check_interpreter()

if TYPE_CHECKING:
    from ._native.core import Device, DType, Tensor
    from ._native.engine import Decoder
    from ._native.kv import BlockPool, BlockTable
    from .chat import ChatMessage, ChatTemplate
    from .checkpoints.conversion import convert
    from .engine import (
        LLM,
        AsyncLLM,
        AsyncSession,
        ChatDelta,
        ChatResult,
        Delta,
        EngineConfig,
        GenerationResult,
        RunResult,
        Session,
        open_decoder,
    )
    from .engine.requests.vectors import quantize_embeddings
    from .files.gguf import GGUFReader, GGUFWriter
    from .hardware import devices
    from .params.sampling import SamplingParams
    from .params.structured import StructuredOutputsParams
    from .quantization.arrays import dequantize, quantize
    from .tokenizer import Detokenizer, Tokenizer
    from .tools import MCPServer

    __version__: str

_WHERE = {
    "AsyncLLM": "engine",
    "AsyncSession": "engine",
    "BlockPool": "_native.kv",
    "BlockTable": "_native.kv",
    "ChatDelta": "engine",
    "ChatMessage": "chat",
    "ChatResult": "engine",
    "ChatTemplate": "chat",
    "DType": "_native.core",
    "Decoder": "_native.engine",
    "Delta": "engine",
    "Detokenizer": "tokenizer",
    "Device": "_native.core",
    "EngineConfig": "engine",
    "GGUFReader": "files.gguf",
    "GGUFWriter": "files.gguf",
    "GenerationResult": "engine",
    "LLM": "engine",
    "MCPServer": "tools",
    "RunResult": "engine",
    "SamplingParams": "params.sampling",
    "Session": "engine",
    "StructuredOutputsParams": "params.structured",
    "Tensor": "_native.core",
    "Tokenizer": "tokenizer",
    "__version__": "_native",
    "convert": "checkpoints.conversion",
    "dequantize": "quantization.arrays",
    "devices": "hardware",
    "open_decoder": "engine",
    "quantize": "quantization.arrays",
    "quantize_embeddings": "engine.requests.vectors",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "AsyncSession",
    "BlockPool",
    "BlockTable",
    "BusyError",
    "CapacityError",
    "ChatDelta",
    "ChatMessage",
    "ChatResult",
    "ChatTemplate",
    "DType",
    "Decoder",
    "Delta",
    "Detokenizer",
    "Device",
    "DeviceError",
    "EngineConfig",
    "GGUFReader",
    "GGUFWriter",
    "GenerationResult",
    "InternalError",
    "LoadError",
    "MCPServer",
    "QuireError",
    "RequestError",
    "RunResult",
    "SamplingParams",
    "Session",
    "ShapeError",
    "StructuredOutputsParams",
    "Tensor",
    "Tokenizer",
    "UnsupportedError",
    "__version__",
    "convert",
    "dequantize",
    "devices",
    "open_decoder",
    "quantize",
    "quantize_embeddings",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    module = importlib.import_module(f"quire.{_WHERE[name]}")
    if module.__name__.startswith("quire._native"):
        from .runtime.native_docs import describe

        describe(module)
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
