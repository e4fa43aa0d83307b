"""Change one key of a file at a time, over all architectures, and compare with llama.cpp on the same file.

    python benchmarks/fuzz_gguf_keys.py SOURCE BUILD [NAME ...]

SOURCE is a checkout of llama.cpp, whose names of keys are taken, BUILD the folder of its libraries (``build/bin``).
Every key is set to values of several types in the tiny files of tests/tiny.  Where Quire opens such a
file, its logits must be llama.cpp's, unless KNOWN says why not; where it refuses one, nothing was ignored.  Prints each
difference and a line of counts per file; exits with 1 where there was one.
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
from quire.convert import convert  # noqa: E402
from quire.errors import QuireError  # noqa: E402
from quire.gguf import GGUFReader  # noqa: E402
from quire.models import load_model  # noqa: E402
from test_configuration_fuzz import IDS, NAMES, edited  # noqa: E402
from test_models import TOLERANCE, Runner  # noqa: E402
from tiny_checkpoints import N_VOCAB, write_checkpoint  # noqa: E402

Change = tuple[object, str]

# Keys that Quire honours and llama.cpp does not read, with what Quire takes them from.
KNOWN = {
    "llama.attention.sliding_window": "Mistral's windows; transformers",
    "qwen3moe.expert_weights_norm": "norm_topk_prob; transformers",
    "*.rope.scaling.yarn_beta_fast": "YaRN's own parameters, which llama.cpp reads for two architectures; transformers",
    "*.rope.scaling.yarn_beta_slow": "see yarn_beta_fast",
    "*.rope.scaling.yarn_attn_factor": "attention_factor; transformers",
}


# Mistral's files are llama's with a window, which llama.cpp does not read.
FILES = [name for name in NAMES if name != "mistral"] + ["llama-linear", "llama-yarn", "llama-llama3"]


def key_names(source: Path) -> list[str]:
    """Below an architecture's name, as llama.cpp lists them."""
    text = (source / "src" / "llama-arch.cpp").read_text(encoding="utf-8")
    return sorted(set(re.findall(r'"%s\.([a-z0-9_.]+)"', text)))


def values_of(name: str, n_layer: int) -> Iterator[Change]:
    """Values of the types that a key may have."""
    if name == "rope.scaling.type":
        yield from (("none", "string"), ("linear", "string"), ("yarn", "string"), ("longrope", "string"))
    yield from (
        ((0, "u32")),
        (1, "u32"),
        (2, "u32"),
        (8, "u32"),
        (0.25, "f32"),
        (3.0, "f32"),
        (True, "bool"),
        (False, "bool"),
    )
    yield ([1] * n_layer, "u32[]")
    yield ([i % 2 for i in range(n_layer)], "u32[]")
    yield ([i % 2 == 0 for i in range(n_layer)], "bool[]")


def known(key: str) -> bool:
    return key in KNOWN or f"*.{key.split('.', 1)[1]}" in KNOWN


def fuzz(name: str, names: list[str], peer: Peer, work: Path) -> Counter[str]:
    write_checkpoint(work / name, name)
    plain = work / f"{name}.gguf"
    convert(work / name, plain, "f32")
    metadata = GGUFReader(plain).metadata
    arch = metadata.text("general.architecture")
    counts: Counter[str] = Counter()
    for key in names:
        for change in [*values_of(key, metadata.integer(f"{arch}.block_count")), None]:
            outcome = _outcome(edited(plain, work / "x.gguf", {key: change}), peer)
            if outcome == "DIFFERENT" and known(f"{arch}.{key}"):
                outcome = "known"
            if outcome in ("DIFFERENT", "crashed"):
                print(f"{name}: {arch}.{key} = {change}: {outcome}", flush=True)
            counts[outcome] += 1
    return counts


def _outcome(path: Path, peer: Peer) -> str:
    try:
        load_model(GGUFReader(path))
    except QuireError:
        return "refused"
    except ValueError:
        return "crashed"
    numbers = peer.numbers(path)
    if numbers is None or len(numbers) != len(IDS) * N_VOCAB:
        return "no claim"
    theirs = numbers.reshape(len(IDS), N_VOCAB)
    ours = Runner(path, "stock").logits(IDS)  # as the peer's operators
    return "equal" if np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max() else "DIFFERENT"


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
