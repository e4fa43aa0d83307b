"""Change one key of a file at a time, over all architectures, and compare with llama.cpp on the same file.

    python benchmarks/fuzz_gguf_keys.py SOURCE BUILD [NAME ...]

SOURCE is a checkout of llama.cpp, which gives the names of keys; BUILD is the folder of its libraries (``build/bin``).
In the tiny files of tests/tiny, each key is set to values of several types and also removed.  If llama.cpp interprets a
plain file differently, the variant of llama_cpp_variants.py is used.  If Quire opens such a file, its logits (an
encoder's vectors) must equal llama.cpp's, unless KNOWN explains the difference.  If Quire rejects a file, it has not
ignored the key, which is fine.  The script prints each difference and a line of counts per file, and exits with 1 if
there are differences.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "models")]
from llama_cpp_peer import Peer  # noqa: E402
from quire.checkpoints.conversion import convert  # noqa: E402
from quire.errors import QuireError, UnsupportedError  # noqa: E402
from quire.gguf import GGUFReader  # noqa: E402
from quire.models import load_model  # noqa: E402
from same_file_llama_cpp import TOLERANCE, write_variant  # noqa: E402
from test_configuration_fuzz import IDS, NAMES, edited  # noqa: E402
from test_models import Runner  # noqa: E402

Change = tuple[object, str]

# Keys that Quire interprets differently from llama.cpp, with the reason.
NO_WINDOWS = "transformers has windows here, llama.cpp does not read them"
NOT_NORMALIZED = "norm_topk_prob, as in transformers; llama.cpp does not read it here"
PUBLISHED = "as in transformers; llama.cpp uses the published models' value"
WHOLE_ENDS = "llama.cpp rounds the ends of YaRN's ramp, transformers does not here"
KNOWN = {
    **{f"{arch}.attention.sliding_window": NO_WINDOWS for arch in ("llama", "mistral3", "phi3", "starcoder2")},
    "exaone4.attention.sliding_window": "llama.cpp reads windows only with 64 layers",
    **{
        f"{arch}.expert_weights_norm": NOT_NORMALIZED
        for arch in ("qwen2moe", "qwen3moe", "qwen3vlmoe", "qwen35moe", "qwen3next", "olmoe", "lfm2moe", "mimo2")
    },
    **{f"{arch}.expert_weights_scale": "routed_scaling_factor, as in transformers" for arch in ("lfm2moe", "mimo2")},
    "*.rope.scaling.yarn_beta_fast": "YaRN's parameters, as in transformers; llama.cpp reads them for 2 models",
    "*.rope.scaling.yarn_beta_slow": "see yarn_beta_fast",
    "*.rope.scaling.yarn_log_multiplier": "see yarn_beta_fast",
    "*.rope.scaling.yarn_attn_factor": "attention_factor; transformers",
    "*.pooling_type": "token vectors are compared, which llama.cpp pools",
    "qwen2vl.attention.layer_norm_rms_epsilon": "llama.cpp does not read it here, and adds 0",
    **{
        f"{arch}.attention.layer_norm_rms_epsilon": "llama.cpp also adds it to unit vectors of the delta rule"
        for arch in ("qwen35", "qwen35moe", "qwen3next")
    },
    "mamba.attention.layer_norm_rms_epsilon": "Falcon Mamba's additional norms have Quire's key ssm.dt_b_c_rms_epsilon",
    **{
        f"{arch}.attention.layer_norm_rms_epsilon": "norms of latent rows have Quire's key latent_norm_rms_epsilon"
        for arch in ("deepseek2", "deepseek32", "glm-dsa", "minicpm3", "mistral4")
    },
    "minicpm.logit_scale": "if absent, llama.cpp divides by 256 / width instead of width / 256",
    "llama4.attention.temperature_length": PUBLISHED,
    "afmoe.attention.sliding_window_pattern": "layers with windows have RoPE; in llama.cpp all but every fourth do",
    "gpt-oss.rope.freq_base": WHOLE_ENDS,
    "gpt-oss.rope.scaling.original_context_length": WHOLE_ENDS,
    "gpt-oss.rope.scaling.type": "llama.cpp scales windowed layers if it is none",
}
# llama.cpp looks GELU up in a half-precision table.  Keys that increase scores need more than twice TOLERANCE.
BY_TABLE = {"modern-bert.rope.scaling.attn_factor": 1e-2, "gemma4.final_logit_softcapping": 1e-2}


# Mistral's files are Llama's with a window, which llama.cpp does not read.
FILES = [name for name in NAMES if name not in ("mistral", "llama-linear")] + [
    "llama-linear",
    "llama-yarn",
    "llama-llama3",
]


def key_names(source: Path) -> list[str]:
    """Return llama.cpp's key names without the architecture's prefix."""
    text = (source / "src" / "llama-arch.cpp").read_text(encoding="utf-8")
    return sorted(set(re.findall(r'"%s\.([a-z0-9_.]+)"', text)))


def values_of(name: str, n_layer: int) -> Iterator[Change]:
    """Yield values of the types that a key may have."""
    if name == "rope.scaling.type":
        yield from (("none", "string"), ("linear", "string"), ("yarn", "string"), ("longrope", "string"))
    yield from ((number, "u32") for number in (0, 1, 2, 3, 8))
    yield from ((number, "f32") for number in (0.0, 0.25, 3.0))
    yield from ((True, "bool"), (False, "bool"), ("silu", "string"))
    yield ([0.5] * n_layer, "f32[]")
    yield ([1] * n_layer, "u32[]")
    yield ([i % 2 for i in range(n_layer)], "u32[]")
    yield ([i % 2 == 0 for i in range(n_layer)], "bool[]")


def known(key: str) -> bool:
    return key in KNOWN or f"*.{key.split('.', 1)[1]}" in KNOWN


def fuzz(name: str, names: list[str], peer: Peer, work: Path) -> Counter[str]:
    # llama.cpp recognizes some models by the name of their folder.
    folder, plain = Path(tempfile.mkdtemp(prefix="x", dir=work)), work / f"{name}.gguf"
    write_variant(folder, name)
    convert(folder, plain, "f32")
    metadata = GGUFReader(plain).metadata
    arch = metadata.text("general.architecture")
    counts: Counter[str] = Counter()
    outcome = _outcome(plain, peer)
    if outcome != "equal":  # then changes cannot be compared
        print(f"{name}: the file itself: {outcome}", flush=True)
        return Counter({f"the file itself: {outcome}": 1})
    for key in names:
        changes: list[Change | None] = list(values_of(key, metadata.integer(f"{arch}.block_count")))
        if f"{arch}.{key}" in metadata:
            changes.append(None)
        elif _is_unknown(edited(plain, work / "x.gguf", {key: changes[0]})):
            counts["refused"] += len(changes)
            continue
        for change in changes:
            tolerance = BY_TABLE.get(f"{arch}.{key}", TOLERANCE)
            outcome = _outcome(edited(plain, work / "x.gguf", {key: change}), peer, tolerance)
            if outcome.startswith("DIFFERENT") and known(f"{arch}.{key}"):
                outcome = "known"
            kind = outcome.split()[0]
            if kind in ("DIFFERENT", "crashed"):
                print(f"{name}: {arch}.{key} = {change}: {outcome}", flush=True)
            counts[kind if kind != "no" else outcome] += 1
    return counts


def _is_unknown(path: Path) -> bool:
    """Return whether the model has no such key."""
    try:
        load_model(GGUFReader(path))
    except UnsupportedError as error:
        return "unsupported metadata key" in str(error)
    except QuireError:
        return False
    return False


def _outcome(path: Path, peer: Peer, tolerance: float = TOLERANCE) -> str:
    try:
        load_model(GGUFReader(path))
    except QuireError:
        return "refused"
    except Exception as error:  # any other error is a bug
        print(repr(error))
        return "crashed"
    theirs = peer.numbers(path)
    if theirs is None or not np.isfinite(theirs).all() or not theirs.any():
        return "no claim"
    try:
        runner = Runner(path, "stock", threads=1)  # ggml's operators, as in llama.cpp
        if runner.n_ctx < len(IDS):
            return "refused"  # traces are for contexts up to this length
        ours = runner.answer(IDS).reshape(-1)
    except QuireError:
        return "refused"
    if len(ours) != len(theirs):
        return "DIFFERENT in size"
    deviation = np.abs(ours - theirs).max() / np.abs(theirs).max()
    return "equal" if deviation <= tolerance else f"DIFFERENT by {deviation:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("build", type=Path)
    parser.add_argument("names", nargs="*", default=FILES)
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        peer = Peer(arguments.source, arguments.build, work, [IDS])
        for name in arguments.names:
            counts = fuzz(name, key_names(arguments.source), peer, work)
            print(name, dict(sorted(counts.items())), flush=True)
            total += counts
    raise SystemExit(1 if total["DIFFERENT"] or total["crashed"] else 0)


if __name__ == "__main__":
    main()
