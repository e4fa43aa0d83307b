"""Compare Quire with transformers on weights that are published: not speed, but answers.

    python benchmarks/published_weights.py PATH [PATH ...] [--audio FILE] [--language CODE]

Each PATH is a GGUF file of a decoder, a folder of an encoder of texts, or a folder of Whisper (which hears --audio).
A GGUF file is read as it is and once more with its matrices in F32, which shows how much of the deviation comes from
activations that kernels of quantized matrices round to 8 bits.  `docs/models.md` has results.
Needs torch, transformers, accelerate and gguf.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from quire import LLM, SamplingParams

TEXTS = [
    "The history of the city of Paris begins in the 3rd century BC, when a Celtic tribe",
    "naïve café — “quoted” 你好 123,456.78",
    "The quick brown fox jumps over the lazy dog. " * 20,
]
N_NEW = 40


def common_start(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def compare_decoder(path: Path, reference: Any) -> str:
    """Largest deviation of a logit, beside the largest logit; best tokens and greedy tokens that are equal."""
    with LLM(path, kv_dtype="f32") as llm:
        worst = largest = 0.0
        n_equal = n_rows = n_same = n_asked = 0
        for text in TEXTS:
            ids = llm.tokenizer.encode(text)
            found = np.asarray(llm.logits(ids))
            with torch.no_grad():
                expected = reference(torch.tensor([ids])).logits[0].numpy()
            worst = max(worst, float(np.abs(found - expected).max()))
            largest = max(largest, float(np.abs(expected).max()))
            n_equal += int((found.argmax(-1) == expected.argmax(-1)).sum())
            n_rows += len(ids)
            options = {"max_new_tokens": N_NEW, "min_new_tokens": N_NEW, "do_sample": False, "repetition_penalty": 1.0}
            wanted = reference.generate(torch.tensor([ids]), **options)[0][len(ids) :].tolist()
            params = SamplingParams(max_tokens=N_NEW, temperature=0.0, ignore_eos=True)
            answer = llm.generate([text], params)[0].choices[0].token_ids
            n_same += common_start(list(answer), wanted)
            n_asked += N_NEW
    return (
        f"logits {worst:.1e} of {largest:.0f}, best token equal in {n_equal} of {n_rows} rows, "
        f"greedy tokens {n_same} of {n_asked}"
    )


def compare_gguf(path: Path) -> None:
    options: Any = {"gguf_file": path.name, "dtype": torch.float32}
    reference = transformers.AutoModelForCausalLM.from_pretrained(path.parent, **options).eval()
    print(f"{path.name}: {compare_decoder(path, reference)}")
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / path.name
        command = [sys.executable, "-m", "quire", "quantize", "--allow-requantize", str(path), str(whole), "F32"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print(f"{path.name} in F32: {compare_decoder(whole, reference)}")


def compare_encoder(path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    expected = []
    for text in TEXTS:
        with torch.no_grad():
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        expected.append((mean / mean.norm()).numpy())
    with LLM(path) as llm:
        print(f"{path.name}: vectors {np.abs(llm.embed(TEXTS) - np.array(expected)).max():.1e}")


def compare_whisper(path: Path, audio: Path, language: str | None) -> None:
    import soundfile

    samples, rate = soundfile.read(audio, dtype="float32")
    model = transformers.WhisperForConditionalGeneration.from_pretrained(path).eval()
    features = transformers.WhisperFeatureExtractor.from_pretrained(path)(
        samples, sampling_rate=rate, return_tensors="pt"
    )
    task = {"task": "transcribe", "language": language} if model.generation_config.is_multilingual else {}
    ids = model.generate(features.input_features, do_sample=False, num_beams=1, **task)[0]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    wanted = tokenizer.decode(ids, skip_special_tokens=True).strip()
    with LLM(path) as llm:
        found = llm.transcribe(audio, language=language).text
    print(f"{path.name}: {found!r}" + (", as transformers" if found == wanted else f"; transformers: {wanted!r}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="+", type=Path)
    parser.add_argument("--audio", type=Path)
    parser.add_argument("--language", help="of --audio, such as en [recognized]")
    args = parser.parse_args()
    for path in args.path:
        if path.is_file():
            compare_gguf(path)
        elif json.loads((path / "config.json").read_text(encoding="utf-8"))["model_type"] == "whisper":
            if args.audio is None:
                parser.error("--audio is needed for Whisper")
            compare_whisper(path, args.audio, args.language)
        else:
            compare_encoder(path)


if __name__ == "__main__":
    main()
