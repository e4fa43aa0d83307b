"""Encoder-decoder models through LLM and the server.  Oracle: transformers with the same weights, one text at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from chosen_kernels import threads_of
from quire.checkpoints.conversion import convert
from quire.engine import LLM
from quire.errors import RequestError, UnsupportedError
from quire.gguf import GGUFReader
from quire.models import load_model
from quire.params.sampling import SamplingParams
from served import served
from test_models import Runner, close
from tiny_checkpoints import N_VOCAB, REFERENCES, SOURCE, shapes_of, weight_of, write_checkpoint, write_safetensors

START, EOS = 258, 257
NAMES = ("t5", "t5-gated")
GREEDY, LONG = (SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (24, 70))


def converted(folder: Path, name: str) -> Path:
    write_checkpoint(folder / name, name)
    convert(folder / name, folder / f"{name}.gguf", "f32")
    return folder / f"{name}.gguf"


def sources(n: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, 256, int(rng.integers(1, 120))).tolist() for _ in range(n)]


def without_end(path: Path, source: Sequence[int], n: int) -> list[int]:
    """Return greedy tokens for one source, from the executor; tokens that end an answer are skipped."""
    runner = Runner(path)
    slots = list(range(32, 32 + len(source)))
    tables = [list(range(1, 2 + (len(source) - 1) // 32))]
    tokens = [START]
    for _ in range(n):
        runner.executor.encode(list(source), slots=slots, row_begin=[0, len(source)], tables=tables)
        rows = list(range(len(tokens)))
        (row,) = runner.executor.run(
            tokens, positions=rows, slots=[32 + p for p in rows], logit_rows=rows[-1:], row_begin=[0, len(rows)],
            n_kv=[len(rows)], tables=[[1, 2]], source_tables=tables, n_source=[len(source)],
        )  # fmt: skip
        row[EOS] = -np.inf
        tokens.append(int(row.argmax()))
    return tokens[1:]


@pytest.mark.parametrize("kernels", ["auto", "stock"])
@pytest.mark.parametrize("name", NAMES)
def test_batches_equal_texts_alone(tmp_path: Path, name: str, kernels: str) -> None:
    path = converted(tmp_path, name)
    texts = [source for source in sources(12) if len(source) <= 64]
    alone = [without_end(path, source, 24) for source in texts]
    with LLM(path, threads=threads_of(kernels), kernels=kernels, kv_dtype="f32") as llm:  # type: ignore[arg-type]
        assert (llm.n_ctx, llm.is_encoder) == (256, False)
        for turn in range(2):
            results = llm.generate(texts, GREEDY)
            for source, expected, result in zip(texts, alone, results, strict=True):
                assert result.token_ids == expected
                assert (result.n_prompt_tokens, result.n_cached_tokens) == (len(source), turn * len(source))
        undisturbed = [result.token_ids for result in llm.generate(texts, LONG)]
        assert [ids[:24] for ids in undisturbed] == alone
        choices = llm.generate([texts[0]], GREEDY, n=3)[0].choices
        assert [choice.token_ids for choice in choices] == [alone[0]] * 3
    # A cache with so few blocks that sequences are preempted.
    with LLM(path, threads=threads_of(kernels), kernels=kernels, kv_dtype="f32", n_ctx=128, n_blocks=9) as llm:  # type: ignore[arg-type]
        results = llm.generate(texts * 2, LONG)
        assert [result.token_ids for result in results] == undisturbed * 2
        assert llm.stats().n_preemptions > 0


def test_requests_that_the_model_does_not_support(tmp_path: Path) -> None:
    with LLM(converted(tmp_path, "t5"), threads=1) as llm:
        with pytest.raises(UnsupportedError, match="encodes its prompts"):
            llm.logits([1, 2, 3])
        with pytest.raises(UnsupportedError, match="encodes its prompts"):
            llm.embed([[1, 2, 3]], pooling="mean")
        with pytest.raises(UnsupportedError, match="prompt_logprobs"):
            llm.generate([[1, 2, 3]], prompt_logprobs=1)
        with pytest.raises(RequestError, match=r"257 tokens.* context of 256"):
            llm.generate([[1] * 257])
        (whole,) = llm.generate([[1] * 256], max_tokens=300, ignore_eos=True)
        assert len(whole.token_ids) == 255
        # Text goes to the encoder; a chat is encoded whole, with the file's end token.
        (text,) = llm.generate("Say hello", GREEDY)
        chat = llm.chat([{"role": "user", "content": "Say hello"}], GREEDY)
        ids = [*b"Say hello"]
        assert text.token_ids == llm.generate([ids], GREEDY)[0].token_ids
        assert chat.n_prompt_tokens == len(ids) + 1
    with pytest.raises(UnsupportedError, match="the draft model is an encoder-decoder model"):
        LLM(converted(tmp_path, "t5"), threads=1, draft=tmp_path / "t5.gguf")


def test_served(tmp_path: Path) -> None:
    path = converted(tmp_path, "t5-gated")
    expected = without_end(path, [*b"Say hello"], 6)
    with served(tmp_path, ["--model", str(path)]) as server, server.client() as client:
        body = {"prompt": [*b"Say hello"], "max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": 1}
        reply = client.post("/v1/completions", json=body).json()
        assert reply["usage"]["prompt_tokens"] == 9
        assert reply["usage"]["completion_tokens"] == len(expected)
        messages = [{"role": "user", "content": "Say hello"}]
        reply = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 6}).json()
        assert reply["usage"]["prompt_tokens"] == 10
        assert 0 < reply["usage"]["completion_tokens"] <= 6


@pytest.mark.python_only
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("untied", [False, True])
def test_answers_are_transformers(tmp_path: Path, name: str, untied: bool) -> None:
    """Several sources in one batch; also with an untied output matrix."""
    torch = pytest.importorskip("torch", reason="needs torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    from oracle_models import answer_to_source

    folder, path = tmp_path / name, tmp_path / "x.gguf"
    write_checkpoint(folder, name)
    kind = transformers.T5ForConditionalGeneration
    model: Any = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if untied:
        shapes = {**shapes_of(name), "lm_head.weight": [N_VOCAB, 80]}
        tensors = {tensor: weight_of(name, tensor, tuple(shape)) for tensor, shape in shapes.items()}
        folder = tmp_path / "untied"  # transformers may have mapped the other file
        write_checkpoint(folder, name)
        write_safetensors(folder / "model.safetensors", tensors)
        model.lm_head.weight = torch.nn.Parameter(torch.from_numpy(tensors["lm_head.weight"]))
    convert(folder, path, "f32")
    assert ("output.weight" in GGUFReader(path)) == untied
    texts, n_new = sources(6), 20
    with LLM(path, threads=2, kv_dtype="f32") as llm:
        results = llm.generate(texts, temperature=0.0, max_tokens=n_new, ignore_eos=True)
    for source, result in zip(texts, results, strict=True):
        logits = answer_to_source(model, source, result.token_ids[:-1]).numpy()
        logits = np.concatenate([_first(model, source), logits])
        logits[:, EOS] = -np.inf
        assert result.token_ids == logits.argmax(-1).tolist()
    runner = Runner(path)
    ids = list(range(40))
    found: npt.NDArray[np.float32] = runner.answer(ids)
    close(found, answer_to_source(model, SOURCE, ids).numpy())


def _first(model: Any, source: list[int]) -> npt.NDArray[np.float32]:
    """Return the logits after the decoder's start token."""
    import torch

    with torch.no_grad():
        row: npt.NDArray[np.float32] = model(torch.tensor([source]), decoder_input_ids=torch.tensor([[START]])).logits[0].numpy()  # fmt: skip
    return row


def test_answers_begin_after_the_start_token(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "t5", "t5")
    advice = tmp_path / "t5" / "generation_config.json"
    advice.write_text(json.dumps({"decoder_start_token_id": 3}))
    with pytest.raises(UnsupportedError, match=r"'decoder_start_token_id' of generation_config\.json is"):
        convert(tmp_path / "t5", tmp_path / "x.gguf", "f32")
    advice.write_text(json.dumps({"decoder_start_token_id": START}))
    with LLM(tmp_path / "t5", threads=1, kv_dtype="f32") as llm:  # the folder itself
        (found,) = llm.generate([SOURCE], GREEDY)
    assert found.token_ids == without_end(converted(tmp_path / "again", "t5"), SOURCE, 24)


def test_the_default_scale_depends_on_the_version(tmp_path: Path) -> None:
    """llama.cpp's converter writes no scale: version 1.0 ties the output matrix and scales the logits."""
    from test_models import with_tensors

    path = converted(tmp_path, "t5")
    expected = Runner(path).answer([1, 2, 3])
    reader = GGUFReader(path)
    assert reader.metadata.number("t5.logit_scale") == pytest.approx(80**-0.5)
    bare = with_tensors(path, tmp_path / "bare.gguf", {}, without=("t5.logit_scale",))
    close(Runner(bare).answer([1, 2, 3]), expected, 1e-6)
    assert load_model(GGUFReader(bare)).config.decoder_start == START
    with np.load(REFERENCES / "t5.npz") as stored:
        assert stored["logits"].shape[1] == N_VOCAB
