"""Compare the time to the first token about an image and a recording in Quire and llama.cpp, in alternation.

    python benchmarks/media.py PEER [--cases image,audio] [--rounds 3] [--threads 2] [--side 1024] [--seconds 30]
                               [--encoder f16] [--layers N] [--encoder-layers N] [--folder build/bench-models]

PEER is the folder of llama-server (build/bin of ``build_peer.sh``).  Missing files are made with ``make_shape.py``:
Qwen3-VL with the encoder of its 2B size, and Qwen3-ASR 0.6B, both with a text model of 0.6B as Q8_0.  In each round,
each server is asked about an item that it has not seen, asked another question about it, and given a text of as many
tokens as the first question; the encoder's time is the difference of the first and the last.  Prints the medians in
seconds: of the wall, and of the processor in all threads, which depends less on other work of the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from media_servers import Server, encoded, item_bytes, llama_server, quire_server

HERE = Path(__file__).resolve().parent
SHAPES = {"image": "qwen3-vl-0.6b", "audio": "qwen3-asr-0.6b"}
STEPS = ("first question", "second question", "text", "encoder")
Times = dict[str, tuple[float, float]]


def files(case: str, options: argparse.Namespace) -> tuple[Path, Path]:
    """Return the text model and the encoder."""
    folder: Path = options.folder
    fewer = ["--layers", str(options.layers)] if options.layers else []
    fewer += ["--encoder-layers", str(options.encoder_layers)] if options.encoder_layers else []
    stem = "-".join([SHAPES[case], *(word.strip("-") for word in fewer), options.encoder])
    text, mmproj = folder / f"{stem}.gguf", folder / f"mmproj-{stem}.gguf"
    if not mmproj.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(HERE / "make_shape.py"), SHAPES[case], str(text), "--type", "q8_0"]
        command += ["--mmproj", str(mmproj), "--encoder", options.encoder, *fewer]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(HERE.parent / "python")})
    return text, mmproj


def item(case: str, options: argparse.Namespace, seed: int) -> npt.NDArray[Any]:
    """Return a soft image or a recording of noise that differs from those of other seeds."""
    random = np.random.default_rng(seed)
    if case == "audio":
        return (random.standard_normal(16_000 * options.seconds) * 0.1).clip(-1, 1).astype(np.float32)
    side = options.side
    coarse = random.integers(0, 256, (side // 16, side // 16, 3)).astype(np.uint8)
    return np.repeat(np.repeat(coarse, 16, axis=0), 16, axis=1)


def chat(case: str, data: bytes, question: str) -> dict[str, Any]:
    part: dict[str, Any] = (
        {"type": "input_audio", "input_audio": {"data": encoded(data), "format": "wav"}}
        if case == "audio"
        else {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(data)}"}}
    )
    content = [part, {"type": "text", "text": question}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}


def timed(server: Server, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], tuple[float, float]]:
    """Return an answer, and the seconds of the wall and of the processor that it took."""
    wall, processor = time.perf_counter(), server.processor_s()
    response = server.client.post(path, json=body)
    took = time.perf_counter() - wall, server.processor_s() - processor
    if response.status_code != 200:
        raise RuntimeError(f"{server.name} answers {response.text[:300]}")
    found: dict[str, Any] = response.json()
    return found, took


def one_round(server: Server, case: str, options: argparse.Namespace, seed: int) -> Times:
    data = item_bytes(item(case, options, seed))
    first, first_s = timed(server, "/v1/chat/completions", chat(case, data, "What is this?"))
    _, second_s = timed(server, "/v1/chat/completions", chat(case, data, "How many are there?"))
    random = np.random.default_rng(seed)
    ids = random.integers(32, 127, first["usage"]["prompt_tokens"]).tolist()
    _, text_s = timed(server, "/completion", {"prompt": ids, "n_predict": 1, "temperature": 0})
    encoder_s = first_s[0] - text_s[0], first_s[1] - text_s[1]
    return dict(zip(STEPS, (first_s, second_s, text_s, encoder_s), strict=True))


def measured(case: str, options: argparse.Namespace) -> list[str]:
    text, mmproj = files(case, options)
    threads = str(options.threads)
    times: dict[str, list[Times]] = defaultdict(list)
    with ExitStack() as stack:
        own = quire_server(text, mmproj, ["--threads", threads, "-c", "8192", "--max-sequences", "1"])
        other = llama_server(options.peer, text, mmproj, ["-t", threads, "-c", "8192", *options.peer_options.split()])
        servers = [stack.enter_context(own), stack.enter_context(other)]
        for turn in range(options.rounds + 1):  # the first round warms up
            for server in servers if turn % 2 else servers[::-1]:
                found = one_round(server, case, options, turn)
                print(turn, server.name, found, file=sys.stderr, flush=True)
                if turn:
                    times[server.name].append(found)
    lines = []
    for step in STEPS:
        cells = [case, step]
        for i in range(2):
            own, other = (statistics.median(each[step][i] for each in times[server.name]) for server in servers)
            cells += [f"{own:.2f}", f"{other:.2f}", f"{other / max(own, 1e-3):.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path)
    parser.add_argument("--cases", default="image,audio")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", type=int, default=1024, help="of the image, in pixels")
    parser.add_argument("--seconds", type=int, default=30, help="of the recording")
    parser.add_argument("--encoder", default="f16", choices=("f16", "bf16", "f32"))
    parser.add_argument("--layers", type=int, help="layers of the text model, if fewer")
    parser.add_argument("--encoder-layers", type=int, help="layers of the encoder, if fewer")
    parser.add_argument("--peer-options", default="", help="more options of llama-server")
    parser.add_argument("--folder", type=Path, default=HERE.parent / "build" / "bench-models")
    options = parser.parse_args()
    print("| item | step | Quire | llama.cpp | ratio | processor: Quire | llama.cpp | ratio |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for case in options.cases.split(","):
        for line in measured(case, options):
            print(line, flush=True)


if __name__ == "__main__":
    main()
