"""Write docs/models.md: all architectures, and how closely their tiny models match transformers.

    PYTHONPATH=python python ci/make_models_page.py                      # from the registry and the recorded figures
    PYTHONPATH=python python ci/make_models_page.py --measure [NAME ...] # measure tiny models first (default: all)

The figures are recorded in tests/references/deviations.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "models")]
from quire.models import supported  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
RECORDED = ROOT / "tests" / "references" / "deviations.json"
HEAD = """# Models

Quire supports the architectures below, named as in GGUF's `general.architecture`. `quire info --architectures`
prints the same list.

Every architecture is tested with tiny random models. Quire's logits and greedy tokens are compared with those of
transformers for the same weights, with Quire's own kernels and with ggml's. The table shows the largest difference of
any logit for a prompt of 40 tokens (150 for `minimax-m3`), relative to the largest logit. The tests allow 0.001, and
with ggml's kernels up to 0.005 for models with GELU, which ggml looks up in a half-precision table. For encoders,
vectors or class scores are compared. For models that transformers lacks, the reference combines parts of other models
or implements the paper's formula (`tests/support`). [models_llama_cpp.md](models_llama_cpp.md) compares Quire with
llama.cpp.

A folder of another class of transformers opens as well if the class consists of parts that Quire has
([models_transformers.md](models_transformers.md)).

To add an architecture, follow `python/quire/models/README.md`. `ci/make_models_page.py` writes this page.

## Limits

- `deepseek32`, `glm-dsa` and `mistral_large4` reject caches of 4 or 5 bits, and layers on several devices if they share
  an indexer.
- `deepseek4` and `glm5-next` run compressed attention, and attention to pools, on the CPU, even if the rest of the
  model runs on a device. They reject caches of 8 bits and fewer, and do not use layers that predict later tokens.
- `minimax-m3` attends to all tokens if the context is no longer than the blocks that the indexer picks (16 blocks of
  128 tokens in published models), which gives the same result. Opened with a longer context, it attends to picked
  blocks, on the CPU, even if the rest of the model runs on a device. It then rejects caches of 4 or 5 bits. Files
  without an indexer, as Quire wrote them before, keep the limit.
- `grok` rejects contexts longer than `attention.temperature_length` (1024 tokens in Grok 2), beyond which scores grow
  with their position. Router scores are capped and expert weights are not normalized, as in SGLang and unlike in
  llama.cpp.
- `doge` rejects contexts longer than `attention.keep_length` (2048 tokens in published models), and experts.
- Llama 3.2 Vision (`MllamaForConditionalGeneration`) reads text only, without its layers that attend to images.
- `jetmoe` computes the queries and outputs of all experts of attention, of which tokens use a few: the result is the
  same, attention takes longer.
- `plamo2` uses the publisher's attention window only in files that `quire convert` writes. llama.cpp's files have no
  key for it, so their attention is full, as in llama.cpp.
- `maple` clips the gates of experts after their activation, as llama.cpp does.
- `bitnet` rejects checkpoint folders with `hidden_act: relu2`, transformers' default: GGUF files have no key for the
  activation, and llama.cpp computes SiLU.

These names of llama.cpp do not open:

- `qwen4exp` has embeddings of the last tokens: a hash of their ids, in 64-bit integers, gives rows of a table (320
  million with the sizes that are defaults in transformers). Quire has no such operation, and a sequence would have to
  keep ids. Beyond `attention.indexer.top_k` tokens it also attends to the tokens of picked pools; Quire does this only
  where keys are values (`glm5-next`).
- `gemma4-assistant` is a drafter without K and V: its layers attend to those of the model it drafts for. Quire's
  drafters have a cache of their own.
- `dflash` is a drafter that fills in a block of tokens in one pass, in which they attend to each other both ways.
  Quire's drafters propose one token after another.
- `chameleon` has no file here yet. It is a decoder whose heads have layer norms. It must not draw tokens of images, and
  GGUF files do not say which these are.
- `cogvlm` sends rows of images through other matrices than rows of text, in every layer. Quire has no such layer.
- `pockettts`, `qwen3tts` and `wavtokenizer-dec` produce sound. Quire's answers are text.
- `dream`, `llada`, `llada-moe` and `rnd1` are diffusion models.

Diffusion models fill in a whole block of masked tokens over many passes, and every pass attends both ways and changes
tokens that others have attended to. As published, such a model keeps no rows of K and V from one pass to the next, so
the prefix cache, streaming, drafts, stop strings and grammars, which all assume that a token stays as it was drawn, do
not apply. Serving them needs a scheduler of its own: the pass over a block as the unit of work, and a sampler that
chooses positions as well as tokens.

In four cases, transformers differs from the model's publisher. Quire follows the publisher:

| architecture | publisher and Quire | transformers |
|---|---|---|
| `mpt` | ALiBi slopes use `alibi_bias_max` of the configuration | always 8 |
| Aya Vision, Command A Vision, Granite Speech | logits are scaled as in the text model | not scaled |
| `nemotron_h`, `nemotron_h_moe`, `zamba2` | time steps have no lower limit | clamped to `time_step_min` |
| ColQwen2 | an image's tokens have positions in height and width | positions are counted as in a text |

## Published weights

`benchmarks/published_weights.py` compares Quire with transformers on weights that are published as packages. Measured
on 2026-11-28 with transformers 5.24 on the CPU, with a KV cache in F32:

| decoder | matrices | largest difference of a logit | of a largest logit of | best token equal | greedy tokens equal |
|---|---|---|---|---|---|
| SmolLM2 135M Instruct | Q4_1 | 1.8 | 33 | 241 of 245 rows | 120 of 120 |
| | F32 | 1.8e-04 | 33 | 245 of 245 | 120 of 120 |
| Qwen2.5 Coder 0.5B | Q4_K_M | 0.45 | 30 | 242 of 242 | 87 of 120 |
| | F32 | 7.1e-05 | 30 | 242 of 242 | 120 of 120 |
| Gemma 3 270M | Q4_K_M | 1.8 | 41 | 243 of 245 | 75 of 120 |
| | F32 | 2.1e-04 | 41 | 245 of 245 | 120 of 120 |

F32 is the same file with its matrices stored as F32; the kernels of quantized matrices round activations to 8 bits, as
llama.cpp's do, while transformers computes in F32. Greedy tokens are counted up to the first that differs, in three
answers of 40. Whisper's weights were converted from CTranslate2's files, and the language was given.

| model | result |
|---|---|
| all-mpnet-base-v2 | vectors within 1.5e-07 |
| Whisper tiny.en (English) and base (German) | same transcripts |

## Architectures

| architecture | description | transformers' classes | largest difference: Quire's kernels, ggml's |
|---|---|---|---|
"""

Recorded = dict[str, dict[str, str]]  # name of the tiny model: its architecture, and the deviation for each kernels


def measure(names: list[str]) -> Recorded:
    """Convert and run tiny models; return their deviations from transformers' answers."""
    import numpy as np
    from quire.checkpoints.conversion import convert
    from quire.gguf import GGUFReader
    from test_models import Runner
    from tiny_checkpoints import REFERENCES, write_checkpoint

    found: Recorded = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            folder, path = Path(scratch) / name, Path(scratch) / f"{name}.gguf"
            write_checkpoint(folder, name)
            convert(folder, path, "f32")
            stored = np.load(REFERENCES / f"{name}.npz")
            found[name] = {"architecture": GGUFReader(path).metadata.text("general.architecture")}
            for kernels in ("auto", "stock"):
                logits = Runner(path, kernels).answer(stored["prompt"].tolist())
                deviation = np.abs(logits - stored["logits"]).max() / np.abs(stored["logits"]).max()
                found[name][kernels] = f"{deviation:.0e}"
    return found


def page() -> str:
    """Return the page, from the registry and the recorded figures."""
    recorded: Recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    lines = []
    for arch in supported():
        models = [model for model in recorded.values() if model["architecture"] == arch.name]
        worst = [max((model[kernels] for model in models), key=float, default="–") for kernels in ("auto", "stock")]
        names = ", ".join(arch.classes) or "–"
        lines.append(f"| `{arch.name}` | {arch.description.replace('|', '/')} | {names} | {', '.join(worst)} |\n")
    return HEAD + "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="*", metavar="NAME", help="measure these tiny models first, or all")
    names = parser.parse_args().measure
    if names is not None:
        from tiny_checkpoints import CONFIGS

        recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.is_file() else {}
        recorded = {name: model for name, model in recorded.items() if name in CONFIGS} | measure(names or [*CONFIGS])
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(recorded[name])}" for name in sorted(recorded))
        RECORDED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
