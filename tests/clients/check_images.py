"""Send images with real clients to a tiny model that reads them: ``python check_images.py http://127.0.0.1:PORT``.

Oracle: the model reads a token for each 32 x 32 pixels, so that a larger image takes so many tokens more.
"""

from __future__ import annotations

import base64
import struct
import sys
import zlib
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import anthropic
import ollama
from checks import Checks, finish
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import BadRequestError, OpenAI
from pydantic import SecretStr

URL = sys.argv[1]
MODEL, QUESTION, N = "tiny-vision", "What is this?", 4


def png(side: int) -> bytes:
    """Return a gray square."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" + b"\x80" * side) * side)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def coded(image: bytes) -> str:
    return base64.b64encode(image).decode()


def data_url(image: bytes) -> str:
    return f"data:image/png;base64,{coded(image)}"


openai = OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
claude = anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=0)
llama = ollama.Client(host=URL)
chain = ChatOpenAI(
    model=MODEL, base_url=f"{URL}/v1", api_key=SecretStr("unused"), max_retries=0, max_completion_tokens=N
)


def openai_chat(image: bytes) -> int:
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}}, {"type": "text", "text": QUESTION}]
    create: Any = openai.chat.completions.create
    answer = create(model=MODEL, messages=[{"role": "user", "content": parts}], max_tokens=N)
    return int(answer.usage.prompt_tokens)


def openai_response(image: bytes) -> int:
    parts = [{"type": "input_image", "image_url": data_url(image)}, {"type": "input_text", "text": QUESTION}]
    create: Any = openai.responses.create
    answer = create(model=MODEL, input=[{"role": "user", "content": parts}], max_output_tokens=N, store=False)
    return int(answer.usage.input_tokens)


def anthropic_message(image: bytes) -> int:
    source = {"type": "base64", "media_type": "image/png", "data": coded(image)}
    parts = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    create: Any = claude.messages.create
    usage = create(model=MODEL, messages=[{"role": "user", "content": parts}], max_tokens=N).usage
    return int(usage.input_tokens + usage.cache_read_input_tokens)


def ollama_chat(image: bytes) -> int:
    message = {"role": "user", "content": QUESTION, "images": [image]}
    return int(llama.chat(model=MODEL, messages=[message], options={"num_predict": N}).prompt_eval_count or 0)


def ollama_generate(image: bytes) -> int:
    made = llama.generate(model=MODEL, prompt=QUESTION, images=[image], options={"num_predict": N})
    return int(made.prompt_eval_count or 0)


def langchain(image: bytes) -> int:
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}}, {"type": "text", "text": QUESTION}]
    usage: Any = chain.invoke([HumanMessage(content=parts)]).usage_metadata
    return int(usage["input_tokens"])


checks = Checks()
CLIENTS: tuple[Callable[[bytes], int], ...] = (
    openai_chat, openai_response, anthropic_message, ollama_chat, ollama_generate, langchain,
)  # fmt: skip
for ask in CLIENTS:
    small, large = ask(png(64)), ask(png(128))
    checks.equal(f"{ask.__name__}: tokens of the larger image", large - small, 16 - 4)
checks.raises("damaged image", BadRequestError, lambda: openai_chat(png(64)[:60]))
checks.raises("damaged image", anthropic.BadRequestError, lambda: anthropic_message(png(64)[:60]))
checks.raises("damaged image", ollama.ResponseError, lambda: ollama_chat(png(64)[:60]))
checks.true("show", "vision" in llama.show(MODEL).capabilities)
finish(checks, f"images with openai {version('openai')}, anthropic, ollama and langchain-openai", 10)
