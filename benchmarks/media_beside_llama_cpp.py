"""Compare answers about images and sounds of llama.cpp and Quire, with the same files, for every family.

    python benchmarks/media_beside_llama_cpp.py PEER [FAMILY ...] [--page OUT]

PEER is the folder of llama-server (build/bin of ``build_peer.sh``).  The tiny random checkpoints of
tests/support/tiny_media are converted to F32: the text model and its ``mmproj`` file.  Both programs open both files,
read the same prompts (a text, an image or a sound, a text) and generate 8 tokens, greedily.  The log-probabilities of
the most likely tokens are compared until tokens differ.  Where llama.cpp differs from transformers, ``CASES`` has
inputs that both interpret in the same way.  Prints a table, and exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import numpy as np
import numpy.typing as npt

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / "support")]
from audio_cases import sound  # noqa: E402
from image_processor_cases import picture  # noqa: E402
from media_servers import Server, encoded, item_bytes, llama_server  # noqa: E402
from quire import LLM, SamplingParams  # noqa: E402
from quire._native.graph import activate  # noqa: E402
from quire.checkpoints.conversion import convert  # noqa: E402
from quire.checkpoints.conversion.projector import convert_projector  # noqa: E402
from quire.errors import QuireError  # noqa: E402
from quire.gguf import GGUFReader  # noqa: E402
from tiny_media import AUDIO_FAMILIES, FAMILIES, TinyFamily, family  # noqa: E402

PAGE = """\
# The same images and sounds in llama.cpp

Tiny random checkpoints of every family are converted to F32, text model and `mmproj` file. llama-server and Quire open
both, read the same prompts, each with an image or a recording, and generate 8 tokens, greedily.

- The deviation is the largest difference of a log-probability among the 20 most likely tokens. Values up to 1e-3 come
  from llama.cpp's half-precision table for GELU, and from its tanh where transformers uses erf.
- Where llama.cpp differs from transformers, Quire follows transformers. The remark explains the difference and how the
  two programs were compared anyway.
- In all families, llama.cpp pads images to the aspect ratio of their grid, where transformers stretches them, and has
  limits of its own for the number of tokens. The images need neither.

`benchmarks/media_beside_llama_cpp.py` writes this page.

{table}

{total}
"""
Floats = npt.NDArray[np.float32]

PEER_OPTIONS = ("-c", "4096", "-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32", "-ub", "1024", "--no-warmup")
PROMPT = "Look at it: {} what is this?"
VIT = "quire.models.media.vit"
GELUS = ("quire._native.graph.activate", f"{VIT}.activate")
N_NEW, N_TOP = 8, 20
TOLERANCE = 2e-2  # for log-probabilities; half-precision tables cost most


@dataclass(frozen=True)
class Case:
    """The inputs for a family.

    Attributes:
        items: Sizes of images, or numbers of samples.
        around: Texts before and after an item in Quire's prompt, which llama.cpp writes by itself.
        peer_around: Texts before and after an item in llama.cpp's prompt, which Quire writes by itself.
        change: Fields of ``vision_config``, and their values.
        settings: Fields of preprocessor_config.json, and their values.
        as_peer: Quire computes GELU by tanh and misplaces the class token here, as llama.cpp does.
        remark: The difference between llama.cpp and transformers.
        is_lost: llama.cpp cannot be made to agree.
    """

    items: Sequence[Any] = ((96, 128), (128, 96), (64, 128), (128, 64))
    around: tuple[str, str] = ("", "")
    peer_around: tuple[str, str] = ("", "")
    change: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    as_peer: bool = False
    remark: str = ""
    is_lost: bool = False


ABORTS = "llama.cpp announces 187 tokens, computes 188, and aborts"
CASES = {
    "gemma3": Case(
        [(140, 140)] * 2, peer_around=("\n\n", "\n\n"),
        remark="llama.cpp lacks the empty lines around images: written into its prompt",
    ),
    "gemma4": Case(
        [(84, 120), (120, 84)],
        remark="llama.cpp does not resize images to the budget of tokens: compared with images of that size",
    ),
    "gemma4small": Case(
        [(84, 120), (120, 84)], is_lost=True,
        remark="llama.cpp assumes other layers for shared keys and values, as in the published sizes",
    ),
    "internvl": Case(
        [(84, 84)] * 2, as_peer=True,
        remark="llama.cpp computes GELU by tanh, puts the class token behind the patches, and still gives the first "
        "row the position of the class token: compared with these errors, and with one tile",
    ),
    "lightonocr": Case(
        around=("<|im_start|>", "<|im_end|>"),
        remark="llama.cpp writes `<|im_start|>` and `<|im_end|>` around images: written into Quire's prompt",
    ),
    "lfm2vl": Case(
        [(128, 128), (128, 160)], settings={"min_image_tokens": 64, "max_image_tokens": 256, "tile_size": 512},
        remark="llama.cpp's images have 64 tokens or more: compared with these",
    ),
    "llava": Case(
        [(112, 112)] * 2, as_peer=True,
        remark="as InternVL, and llama.cpp leaves out the first patch instead of the class token: compared with these "
        "errors",
    ),
    "llavanext": Case(is_lost=True, remark="as LLaVA, and llama.cpp adds no `image_newline` at the ends of rows"),
    "qwen25vl": Case(change={"window_size": 112}, remark="llama.cpp's windows have 112 pixels: compared with these"),
    "qwen2audio": Case(
        [479_690, 479_695],
        remark="llama.cpp always computes 30 seconds: compared with recordings of nearly that length",
    ),
    "qwen3asr": Case(
        [15_840, 63_840, 479_840],
        remark="llama.cpp counts one frame more and pads to whole seconds: compared with a frame less than that",
    ),
    "ultravox": Case([479_690], is_lost=True, remark=ABORTS),
    "voxtral": Case(
        [479_690], is_lost=True, remark=f"{ABORTS}; it averages pairs of states, which transformers does not"
    ),
}  # fmt: skip


@dataclass
class Row:
    """A row of the table."""

    name: str
    case: Case
    projector: str = ""
    n_equal: int = 0
    deviation: float = 0.0
    failure: str = ""

    @property
    def is_equal(self) -> bool:
        return self.n_equal == len(self.case.items) and not self.failure and self.deviation <= TOLERANCE

    def line(self) -> str:
        remarks = ("" if self.is_equal else "DIFFERENT", self.case.remark, "" if self.case.is_lost else self.failure)
        cells = [f"`{self.projector}`", self.name, f"{self.n_equal} of {len(self.case.items)}"]
        cells += ["" if self.case.is_lost else f"{self.deviation:.0e}", "; ".join(each for each in remarks if each)]
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Answer:
    """The number of tokens of the prompt, the answer, and the log-probabilities of the most likely tokens at each."""

    n_prompt: int
    tokens: Sequence[int]
    tops: Sequence[Mapping[int, float]]


def peer_answer(server: Server, prompt: str, data: bytes) -> Answer:
    marker = server.client.get("/props").json()["media_marker"]
    body = {
        "prompt": {"prompt_string": prompt.replace("<__media__>", marker), "multimodal_data": [encoded(data)]},
        "n_predict": N_NEW, "temperature": 0.0, "n_probs": 100, "ignore_eos": True, "cache_prompt": False,
    }  # fmt: skip
    response = server.client.post("/completion", json=body)
    found = response.json()
    if "completion_probabilities" not in found:
        raise RuntimeError(f"llama-server answers {response.text[:200]}")
    steps = found["completion_probabilities"]
    tops = [{top["id"]: top["logprob"] for top in step["top_logprobs"]} for step in steps]
    return Answer(found["tokens_evaluated"], [step["id"] for step in steps], tops)


def own_answer(llm: LLM, prompt: str, data: bytes) -> Answer:
    params = SamplingParams(temperature=0, max_tokens=N_NEW, ignore_eos=True, logprobs=N_TOP)
    (result,) = llm.generate([{"prompt_string": prompt, "multimodal_data": [encoded(data)]}], params)
    (choice,) = result.choices
    assert choice.logprobs is not None
    return Answer(len(result.prompt_token_ids), choice.token_ids, [dict(each.top) for each in choice.logprobs])


def compare(row: Row, ours: Answer, theirs: Answer) -> None:
    if ours.n_prompt != theirs.n_prompt:
        row.failure = f"{ours.n_prompt} tokens in the prompt, {theirs.n_prompt} in llama.cpp"
        return
    for i, (own, other) in enumerate(zip(ours.tops, theirs.tops, strict=True)):
        found = [abs(own[token] - other[token]) for token in own.keys() & other.keys()]
        row.deviation = max(row.deviation, *found)
        if ours.tokens[i] != theirs.tokens[i]:
            row.n_equal += own[ours.tokens[i]] - own.get(theirs.tokens[i], -np.inf) <= TOLERANCE
            return  # the tokens are as likely, but what follows differs
    row.n_equal += 1


def save(found: TinyFamily, name: str, case: Case, folder: Path) -> Path:
    """Save a tiny checkpoint; return the folder of its text model."""
    oracle, text_folder = found.make(), folder
    found.save(oracle, folder)
    if name == "ultravox":  # has no language model of its own
        text_folder = folder / "text"
        text_folder.mkdir()
        found.save(oracle.language_model, text_folder)
    change(folder / "preprocessor_config.json", case.settings)
    if case.change:
        vision = json.loads((folder / "config.json").read_text())["vision_config"]
        change(folder / "config.json", {"vision_config": {**vision, **case.change}})
    show_all_tokens(text_folder)
    return text_folder


def change(path: Path, fields: Mapping[str, object]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def show_all_tokens(folder: Path) -> None:
    """Give all tokens a text: llama-server leaves out the probabilities of those that are parts of a character."""
    path = folder / "tokenizer.json"
    words = json.loads(path.read_text())
    line = "\u010a"
    vocabulary = {
        text if 32 < index < 127 or index > 255 or text in ("\u0120", line) else f"<{index}>": index
        for text, index in words["model"]["vocab"].items()
    }
    # Two line ends are one token in published vocabularies; llama.cpp looks it up for Idefics3.
    vocabulary[line + line] = vocabulary.pop("<255>")
    words["model"] |= {"vocab": vocabulary, "merges": [[line, line]]}
    path.write_text(json.dumps(words))


def by_tanh(x: Any, name: Any) -> Any:
    return activate(x, "gelu_tanh" if name == "gelu" else name)


def misplaced(mmproj: Path, projector: str) -> Callable[[Any, Floats, Floats], Floats]:
    """Return ``VisionTransformer.features`` for the class token behind the patches and positions in order."""
    reader = GGUFReader(mmproj)
    tables = {info.name: reader.tensor(info.name).numpy() for info in reader.tensors if "embd" in info.name}
    places, bias = tables["v.position_embd.weight"], tables.get("v.patch_embd.bias", 0.0)

    def features(encoder: Any, patches: Floats, positions: Floats) -> Floats:
        of_patches = np.concatenate([patches, places[:-1] + bias], axis=1)
        of_class = np.concatenate([np.zeros(patches.shape[1]), tables["v.class_embd"] + places[-1]])[None]
        # Quire leaves out the first row: for InternVL, llama.cpp leaves out the class token, for LLaVA a patch.
        parts = [of_class, of_patches] if projector == "internvl" else [of_patches, of_class]
        return np.concatenate(parts).astype(np.float32)

    return features


def compared(name: str, peer: Path, folder: Path) -> Row:
    """Compare one family."""
    case = CASES.get(name, Case())
    row, is_audio = Row(name, case), name in AUDIO_FAMILIES
    text, mmproj = folder / "text.gguf", folder / "mmproj.gguf"
    try:
        convert(save(family(name), name, case, folder), text, "f32")
        convert_projector(folder, mmproj, "f32")
        row.projector = GGUFReader(mmproj).metadata.text("clip.projector_type")
        with ExitStack() as stack:
            if case.as_peer:
                for place in GELUS:
                    stack.enter_context(patch(place, by_tanh))
                stack.enter_context(patch(f"{VIT}.VisionTransformer.features", misplaced(mmproj, row.projector)))
            server = stack.enter_context(llama_server(peer, text, mmproj, PEER_OPTIONS))
            llm = stack.enter_context(LLM(text, mmproj=str(mmproj), kv_dtype="f32", threads=1, n_ctx=4096))
            for i, size in enumerate(case.items):
                data = item_bytes(sound(size, seed=i) if is_audio else picture(*size) + np.uint8(9 * i))
                theirs = peer_answer(server, PROMPT.format("<__media__>".join(case.peer_around)), data)
                ours = own_answer(llm, PROMPT.format("<__media__>".join(case.around)), data)
                compare(row, ours, theirs)
    except (QuireError, RuntimeError, httpx.HTTPError) as error:
        row.failure = str(error)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path)
    parser.add_argument("families", nargs="*", default=[*FAMILIES, *AUDIO_FAMILIES])
    parser.add_argument("--page", type=Path, help="also write a page with the table there")
    options = parser.parse_args()
    lines = ["| projector | checkpoint | equal answers | largest deviation | remark |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    rows = []
    for name in options.families:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(compared(name, options.peer, Path(folder)))
        lines.append(rows[-1].line())
        print(lines[-1], flush=True)
    n_equal = sum(row.is_equal for row in rows)
    total = f"{n_equal} of {len(rows)} checkpoints are equal in both, {datetime.now(timezone.utc):%Y-%m-%d}."
    print(f"\n{total}")
    if options.page:
        options.page.write_text(PAGE.format(table="\n".join(lines), total=total), encoding="utf-8")
    raise SystemExit(any(not row.is_equal and not row.case.is_lost for row in rows))


if __name__ == "__main__":
    main()
