"""Compare ids of random texts with Hugging Face `tokenizers`: the tests' comparison with many more texts.

    python benchmarks/tokenizer_exactness.py ../shared/vocab [--texts 100000] [--only gpt-2 ...]

The texts have mixed scripts, joiners, control characters and long runs.  Invalid UTF-8 is given as bytes, and compared
by decoding, as the oracle accepts only text.  The script stops at the first difference.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizers
from quire.tokenizer import Tokenizer
from quire.tokenizer.from_gguf import vocabulary_of_metadata
from tokenizers import models, pre_tokenizers

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from test_tokenizer_characters import of, oracle_of  # noqa: E402
from test_tokenizer_families import (  # noqa: E402
    SPACE,
    rebuilt_scored,
    rebuilt_word_piece,
    rwkv,
    unigram_entries,
    unigram_metadata,
)
from test_tokenizer_ids import rebuilt  # noqa: E402
from token_texts import random_texts  # noqa: E402

FAMILIES = {
    "gpt-2": rebuilt, "llama-bpe": rebuilt, "qwen2": rebuilt, "starcoder": rebuilt, "llama-spm": rebuilt_scored,
    "phi-3": rebuilt_scored, "bert-bge": rebuilt_word_piece, "unigram": None, "gemma4": None, "whitespace": None,
    "rwkv": None,
}  # fmt: skip
CHUNK = 1000


def pair(folder: Path, name: str) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Return Quire's tokenizer and the oracle."""
    make = FAMILIES[name]
    if name in ("gemma4", "whitespace"):  # no vocabulary file here has these
        splits = "lines" if name == "gemma4" else "spaces"
        return of(splits, model=name, **{"normalizer.lowercase": splits == "spaces"}), oracle_of(splits)
    if name == "rwkv":
        return rwkv()
    if make is None:
        oracle = tokenizers.Tokenizer(models.Unigram(unigram_entries(), unk_id=2))
        oracle.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        return Tokenizer(vocabulary_of_metadata(unigram_metadata())), oracle
    tokenizer = Tokenizer.from_gguf(folder / f"ggml-vocab-{name}.gguf")
    return tokenizer, make(tokenizer)


def is_comparable(name: str, text: str) -> bool:
    if name == "bert-bge":
        return "\u061d" not in text  # a character of Unicode 14 that is missing in the oracle's tables
    # Before a space, SentencePiece adds another space, and Metaspace does not.
    return name != "unigram" or not text.startswith((" ", SPACE))


def compare(name: str, folder: Path, n: int) -> int:
    """Return the number of texts, all of which have equal ids."""
    tokenizer, oracle = pair(folder, name)
    keeps_text = name not in ("bert-bge", "unigram", "whitespace")
    # StarCoder's vocabulary lacks tokens for bytes that UTF-8 does not use.
    keeps_bytes = keeps_text and {bytes([byte]) for byte in range(256)} <= set(tokenizer.all_token_bytes())
    shown = " " if FAMILIES[name] is rebuilt_scored or name == "gemma4" else SPACE  # these show U+2581 as a space
    rng = random.Random(name)
    done = 0
    for chunk in range(-(-n // CHUNK)):
        texts = [text for text in random_texts(CHUNK, seed=1000 + chunk) if is_comparable(name, text)]
        asked = [text.encode().decode("latin-1") for text in texts] if name == "rwkv" else texts
        for text, want in zip(texts, oracle.encode_batch_fast(asked, add_special_tokens=False), strict=True):
            ids = tokenizer.encode(text, add_special=False)
            if ids != (want.ids if text else []):
                raise SystemExit(f"{name}: {text!a} has ids {ids}, in the oracle {want.ids}")
            if keeps_text and tokenizer.decode(ids) != text.replace(SPACE, shown):
                raise SystemExit(f"{name}: {text!a} is decoded as {tokenizer.decode(ids)!a}")
            if keeps_bytes and text:
                broken = bytearray(text.encode())
                broken[rng.randrange(len(broken))] = rng.randrange(256)
                back = tokenizer.decode_bytes(tokenizer.encode(bytes(broken), add_special=False))
                if back != bytes(broken).replace(SPACE.encode(), shown.encode()):
                    raise SystemExit(f"{name}: {bytes(broken)!r} is decoded as {back!r}")
        done += len(texts)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("vocab", type=Path, help="the folder of the vocabularies")
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--only", nargs="+", choices=sorted(FAMILIES), default=list(FAMILIES))
    arguments = parser.parse_args()
    for name in arguments.only:
        print(f"{name}: {compare(name, arguments.vocab, arguments.texts)} texts equal", flush=True)


if __name__ == "__main__":
    main()
