#!/usr/bin/env python3
"""Measure OpenVINO GenAI as speed_of_quire.py measures Quire; needs ``openvino-genai``, but not Quire.

    speed_of_openvino.py FILE.gguf [--prompt N] [--generate N] [--streams N] [--threads N] [--n-vocab N]

Its pipeline converts GGUF files while it loads them, which is not timed.  Prompts differ, so that its prefix cache
finds nothing.  Times are from its ``perf_metrics``: until the first token, and per token of an answer (a step's time
divided by its streams).
"""

from __future__ import annotations

import argparse
import json
import random

import numpy as np
import openvino
import openvino_genai


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--prompt", type=int, default=0)
    parser.add_argument("--generate", type=int, default=0)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--n-vocab", type=int, default=32000)
    options = parser.parse_args()
    pipeline = openvino_genai.LLMPipeline(options.file, "CPU", INFERENCE_NUM_THREADS=options.threads)

    def measure(n_prompt: int, n_generate: int, n_streams: int) -> dict[str, float | None]:
        ids = [[random.randrange(1000, options.n_vocab) for _ in range(max(1, n_prompt))] for _ in range(n_streams)]
        tokens = np.array(ids, dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(
            openvino.Tensor(tokens), openvino.Tensor(np.ones(tokens.shape, dtype=np.int64))
        )
        result = pipeline.generate(inputs, max_new_tokens=n_generate + 1, ignore_eos=True, do_sample=False)
        metrics = result.perf_metrics
        return {
            "reading": n_prompt * 1000 / metrics.get_ttft().mean if n_prompt and n_streams == 1 else None,
            "writing": 1000 / metrics.get_tpot().mean if n_generate else None,
        }

    measure(32, 4, 1)
    print(json.dumps(measure(options.prompt, options.generate, options.streams)))


if __name__ == "__main__":
    main()
