"""Texts, tasks and models also measured with llama.cpp's programs (references/measured.json and importance.npz)."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from quire.checkpoints.conversion import convert
from quire.engine.loading.loader import packaged_model
from tiny_checkpoints import write_checkpoint

# Dense with q, k and v in one tensor, experts, states.
TINY = ("qwen3moe", "granitehybrid", "gptneox")
N_CTX = 128
# Layers of the package's model whose tensors are kept.
KEPT_LAYERS = ("blk.0.", "blk.7.")

_NAMES = ("Olga", "Paul", "Nils", "Stella", "Juan", "Anna")
_THINGS = ("hat", "stone", "key", "lamp", "kite", "basket")
_PLACES = ("in the kitchen", "near the pond", "under the bed", "in the barn", "by the stairs")


def text(n_sentences: int) -> str:
    """Return sentences like those that the package's model was trained on."""
    source = random.Random(5)
    sentences = []
    for _ in range(n_sentences):
        name, thing, place = source.choice(_NAMES), source.choice(_THINGS), source.choice(_PLACES)
        sentences.append(f"{name} put a {thing} {place}. The {thing} is {place}.")
    return " ".join(sentences)


def hellaswag(n: int) -> str:
    """Return six lines per task."""
    source, lines = random.Random(6), []
    for _ in range(n):
        name, thing, place = source.choice(_NAMES), source.choice(_THINGS), source.choice(_PLACES)
        endings = [f"{thing} {place}.", f"{thing} of of of.", f"because the {source.choice(_THINGS)}.", "Monday, 7."]
        source.shuffle(endings)
        right = next(i for i, ending in enumerate(endings) if ending.startswith(f"{thing} {place}"))
        lines += [f"Sentence: {name} put a", str(right), *endings]
    return "\n".join(lines) + "\n"


def winogrande(n: int) -> str:
    """Return a line per task, with a long text after the gap."""
    source, lines = random.Random(7), []
    for i in range(n):
        first, second = source.sample(_NAMES, 2)
        thing = source.choice(_THINGS)
        sentence = f'"{first} lost a {thing}, so _ went home without the {thing}. {second} was there."'
        lines.append(f"{i},{sentence},{first},{second},{source.randrange(1, 3)}")
    return "\n".join(lines) + "\n"


def multiple_choice(n: int) -> bytes:
    """Return tasks in llama.cpp's binary format."""
    source, tasks = random.Random(8), []

    def packed(words: str) -> bytes:
        return struct.pack("<I", len(words.encode())) + words.encode()

    for _ in range(n):
        name, thing, place = source.choice(_NAMES), source.choice(_THINGS), source.choice(_PLACES)
        answers = [place, *source.sample([other for other in _PLACES if other != place], source.randrange(1, 4))]
        source.shuffle(answers)
        question = packed(f"{name} put a {thing} {place}. The {thing} is")
        labels = [int(answer == place) for answer in answers]
        body = struct.pack("<I", len(answers)) + b"".join(map(packed, answers))
        tasks.append(question + body + struct.pack(f"<{len(labels)}I", *labels) + struct.pack("<I", 0))
    at, table = 4 + 4 * n, []
    for task in tasks:
        table.append(at)
        at += len(task)
    return struct.pack(f"<{n + 1}I", n, *table) + b"".join(tasks)


def model_of(folder: Path, name: str) -> Path:
    """Return the package's model, or write a tiny one of f32."""
    if name == "package":
        return packaged_model()
    path = folder / f"{name}.gguf"
    if not path.exists():
        (folder / name).mkdir()
        write_checkpoint(folder / name, name)
        convert(folder / name, path, "f32")
    return path


def write_files(folder: Path) -> None:
    """Write all texts and tasks."""
    (folder / "text.txt").write_text(text(160), encoding="utf-8")
    (folder / "bytes.txt").write_text(text(30), encoding="utf-8")  # every byte is a token of the tiny models
    (folder / "hellaswag.txt").write_text(hellaswag(30), encoding="utf-8")
    # With an empty line at the end, since llama.cpp ignores the last line.
    (folder / "winogrande.csv").write_text(winogrande(30) + "\n", encoding="utf-8")
    (folder / "choices.bin").write_bytes(multiple_choice(30))
