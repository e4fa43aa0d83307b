#!/usr/bin/env python3
"""Time a Qwen3-shaped model in PyTorch, as a baseline for Quire on the same card: BF16 weights, cuBLAS, scaled dot
product attention, and a CUDA graph for each step of answers.

    torch_baseline.py [--shapes qwen3-0.6b,qwen3-8b] [--prompts 512] [--streams 1,8,32] [--answer 64] [--json FILE]
    torch_baseline.py --tiny                                # a tiny shape on the CPU, in seconds

Weights are random.  The cache of each stream is a tensor of its own with a fixed length, and every stream has the same
length, so this is a lower bound of what a server has to do: no block tables, no sampling but the largest logit, no new
requests.  It still reads its whole cache at each step, also what is behind the last token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from on_gpu import SHAPES, TINY, Shape
from torch.nn import functional

EPS, BASE = 1e-6, 1e6


@dataclass(frozen=True)
class Row:
    """A result; ``tokens_per_s`` is that of all streams together."""

    shape: str
    test: str
    streams: int
    tokens_per_s: float


class Model:
    """The layers of a shape, with a cache for some streams."""

    def __init__(self, shape: Shape, n_streams: int, n_ctx: int, device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype
        self.random = torch.Generator(device).manual_seed(1)
        n_q, n_kv = shape.n_head * shape.head_dim, shape.n_kv_head * shape.head_dim
        self.embedding = self.matrix(shape.n_vocab, shape.dim)
        self.head = self.matrix(shape.n_vocab, shape.dim) if shape.has_head else self.embedding
        self.layers = [
            (
                self.matrix(n_q + 2 * n_kv, shape.dim), self.matrix(shape.dim, n_q),
                self.matrix(2 * shape.ffn, shape.dim), self.matrix(shape.dim, shape.ffn),
            )
            for _ in range(shape.n_layer)
        ]  # fmt: skip
        self.norm = torch.ones(shape.dim, device=device, dtype=dtype)
        self.head_norm = torch.ones(shape.head_dim, device=device, dtype=dtype)
        self.caches = [
            torch.zeros(2, n_streams, shape.n_kv_head, n_ctx, shape.head_dim, device=device, dtype=dtype)
            for _ in range(shape.n_layer)
        ]
        places = torch.arange(0, shape.head_dim, 2, device=device)
        angles = torch.arange(n_ctx, device=device)[:, None] * BASE ** (-places / shape.head_dim)
        self.cosines, self.sines = angles.cos().to(dtype), angles.sin().to(dtype)
        self.columns = torch.arange(n_ctx, device=device)

    def matrix(self, n_out: int, n_in: int) -> torch.Tensor:
        drawn = torch.randn(n_out, n_in, generator=self.random, device=self.device, dtype=self.dtype)
        return drawn.mul_(n_in**-0.5)

    def turned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate heads [streams, heads, rows, d]."""
        cosines, sines = self.cosines[positions], self.sines[positions]
        a, b = x.chunk(2, -1)
        return torch.cat((a * cosines - b * sines, a * sines + b * cosines), -1)

    def step(self, tokens: torch.Tensor, positions: torch.Tensor, is_prompt: bool) -> torch.Tensor:
        """Return the logits [streams, n_vocab] of the last row of tokens [streams, rows] at positions [rows]."""
        shape, (n_streams, n_rows) = self.shape, tokens.shape
        x = functional.embedding(tokens, self.embedding)
        mask = None if is_prompt else (self.columns[None, :] <= positions[:, None])
        for (qkv, out, gate_up, down), cache in zip(self.layers, self.caches, strict=True):
            h = functional.rms_norm(x, (shape.dim,), self.norm, EPS)
            heads = functional.linear(h, qkv).view(n_streams, n_rows, -1, shape.head_dim).transpose(1, 2)
            q, k, v = heads.split((shape.n_head, shape.n_kv_head, shape.n_kv_head), 1)
            q, k = (
                self.turned(functional.rms_norm(y, (shape.head_dim,), self.head_norm, EPS), positions) for y in (q, k)
            )
            cache[0].index_copy_(2, positions, k)
            cache[1].index_copy_(2, positions, v)
            keys, values = (k, v) if is_prompt else (cache[0], cache[1])
            y = functional.scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, is_causal=is_prompt, enable_gqa=shape.n_head != shape.n_kv_head
            )
            x = x + functional.linear(y.transpose(1, 2).reshape(n_streams, n_rows, -1), out)
            h = functional.rms_norm(x, (shape.dim,), self.norm, EPS)
            gate, up = functional.linear(h, gate_up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, down)
        return functional.linear(functional.rms_norm(x[:, -1], (shape.dim,), self.norm, EPS), self.head)


class Answers:
    """Steps of one token per stream, replayed as a CUDA graph where there is one."""

    def __init__(self, model: Model, n_streams: int, n_past: int) -> None:
        self.tokens = torch.zeros(n_streams, 1, dtype=torch.long, device=model.device)
        self.positions = torch.full((1,), n_past, dtype=torch.long, device=model.device)
        self.model = model
        self.graph = None
        if model.device.type == "cuda":
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.run_step()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.run_step()
            self.positions.fill_(n_past)

    def run_step(self) -> None:
        logits = self.model.step(self.tokens, self.positions, is_prompt=False)
        self.tokens.copy_(logits.argmax(-1, keepdim=True))
        self.positions.add_(1)

    def step(self) -> None:
        if self.graph is None:
            self.run_step()
        else:
            self.graph.replay()


def seconds(device: torch.device, run: Callable[[], Any]) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def measure(
    shape: Shape, n_streams: int, n_prompt: int, n_answer: int, n_rounds: int, device: torch.device
) -> list[Row]:
    """Time prompts of all streams in one step, then answers after them."""
    dtype = torch.bfloat16
    model = Model(shape, n_streams, n_prompt + n_answer + 1, device, dtype)
    prompts = torch.randint(shape.n_vocab, (n_streams, n_prompt), generator=model.random, device=device)
    positions = torch.arange(n_prompt, device=device)
    chunk = max(1, 8192 // n_prompt)  # streams in a step, so that activations stay small

    def read_prompts() -> None:
        for begin in range(0, n_streams, chunk):
            part = prompts[begin : begin + chunk]
            whole, model.caches = model.caches, [cache[:, begin : begin + chunk] for cache in model.caches]
            model.step(part, positions, is_prompt=True)
            model.caches = whole

    with torch.inference_mode():
        read_prompts()
        of_prompts = statistics.median(seconds(device, read_prompts) for _ in range(n_rounds))
        found = []
        answers = Answers(model, n_streams, n_prompt)

        def answer() -> None:
            for _ in range(n_answer):
                answers.step()

        for _ in range(n_rounds):
            answers.positions.fill_(n_prompt)
            found.append(seconds(device, answer))
    return [
        Row(shape.name, f"pp{n_prompt}", n_streams, n_streams * n_prompt / of_prompts),
        Row(shape.name, f"tg{n_answer}@{n_prompt}", n_streams, n_streams * n_answer / statistics.median(found)),
    ]


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(shape.name for shape in SHAPES))
    parser.add_argument("--prompts", type=numbers, default=[512], help="lengths in tokens")
    parser.add_argument("--streams", type=numbers, default=[1, 8, 32])
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the rows there")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape on the CPU, to test the script")
    options = parser.parse_args(arguments)
    device = torch.device("cpu" if options.tiny else "cuda")
    shapes = TINY if options.tiny else [shape for shape in SHAPES if shape.name in options.shapes.split(",")]
    name = "CPU" if options.tiny else torch.cuda.get_device_name()
    print(f"torch {torch.__version__} on {name}, bfloat16", flush=True)
    rows = []
    for shape in shapes:
        for n_prompt in options.prompts:
            for n_streams in options.streams:
                made = measure(shape, n_streams, n_prompt, options.answer, options.rounds, device)
                for row in made:
                    print(f"{row.shape} {row.test} {row.streams} streams: {row.tokens_per_s:.0f} tok/s", flush=True)
                rows += made
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
