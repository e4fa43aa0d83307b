"""Images together with what the engine does for texts: preemption, choices, drafts, adapters, priorities, cancellation.

Oracle: the same conversations one by one by a plain engine, whose answers other tests compare with transformers; with an
adapter, transformers itself.
"""

from __future__ import annotations

import asyncio
import base64
import io
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_processor_cases import picture
from quire import LLM, AsyncLLM, SamplingParams
from quire.engine.media import MediaEncoder
from quire.server.worker import protocol as wire
from quire.server.worker.model_worker import ModelWorker
from test_images_live import CHATS, images_of
from tiny_adapters import write_peft_adapter
from tiny_checkpoints import write_safetensors
from tiny_media import TinyFamily, family

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
PIL = pytest.importorskip("PIL.Image")

# Few tokens to choose from, so that answers repeat themselves and drafts are right now and then.
GREEDY = SamplingParams(temperature=0, max_tokens=72, ignore_eos=True, allowed_token_ids=tuple(range(97, 113)))
QUESTIONS = [[*chat[:-1], {**chat[-1], "content": [*chat[-1]["content"], {"type": "text", "text": f" {i}"}]}]  # type: ignore[misc]
             for i in range(2) for chat in CHATS.values()]  # fmt: skip


@dataclass(frozen=True)
class Saved:
    family: TinyFamily
    folder: Path
    answers: list[list[int]]
    """Greedy answers to ``QUESTIONS``."""


def opened(folder: Path, **options: Any) -> LLM:
    return LLM(folder, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=512, deterministic=True, **options)


def answers_of(results: Any) -> list[list[int]]:
    return [choice.token_ids for result in results for choice in result.choices]


@pytest.fixture(scope="module", params=["qwen3vl", "qwen35"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    found, folder = family(request.param), tmp_path_factory.mktemp(request.param)
    found.save(found.make(), folder)
    with opened(folder) as llm:
        yield Saved(found, folder, [llm.chat(chat, GREEDY).choices[0].token_ids for chat in QUESTIONS])


def test_preemption(saved: Saved) -> None:
    """Rows of a preempted prompt are read again, also in chunks that begin in the middle of an image."""
    with opened(saved.folder, n_blocks=8, max_step_tokens=40, max_sequences=8) as llm:
        assert answers_of(llm.chat(QUESTIONS, GREEDY)) == saved.answers
        stats = llm.stats()
        assert stats.n_preemptions > 0
        assert stats.n_recomputed_tokens > 0


def test_choices(saved: Saved) -> None:
    params = SamplingParams(temperature=0.9, seed=3, n=3, max_tokens=72, ignore_eos=True)
    with opened(saved.folder) as llm:
        alone = [answers_of([llm.chat(chat, params, salt=bytes([i]))]) for i, chat in enumerate(QUESTIONS)]
        assert len({tuple(answer) for answer in alone[0]}) == 3
    # Some of the choices do not fit beside their first one, and find the prompt in the cache or compute it again.
    with opened(saved.folder, n_blocks=8, max_sequences=8) as llm:
        together = llm.chat(QUESTIONS, params)
        assert [answers_of([result]) for result in together] == alone
        assert llm.stats().n_preemptions > 0


def test_drafts_by_lookup(saved: Saved) -> None:
    with opened(saved.folder, speculation="lookup", draft_min=2, draft_max=6) as llm:
        assert answers_of(llm.chat(QUESTIONS, GREEDY)) == saved.answers
        (stats,) = (each for each in llm.stats().drafters if each.name == "lookup")
        assert 0 < stats.n_accepted_tokens < stats.n_drafted_tokens


def test_drafts_of_a_model_of_texts(saved: Saved, tmp_path: Path) -> None:
    """The draft model reads placeholders where the model reads rows."""
    draft = family("qwen3vl")
    draft.save(draft.make(), tmp_path)
    with opened(saved.folder, draft=tmp_path, speculation="draft", draft_min=3, draft_max=3, n_blocks=40) as llm:
        assert answers_of(llm.chat(QUESTIONS, GREEDY)) == saved.answers
        (stats,) = (each for each in llm.stats().drafters if each.name == "draft")
        assert (stats.failure, stats.n_drafted_tokens > 0) == ("", True)


def test_drafts_of_a_predicting_layer(tmp_path: Path) -> None:
    """Also of the features behind rows of images."""
    found = family("qwen35")
    model = found.make()
    found.save(model, tmp_path)
    state = {name: weight.numpy() for name, weight in model.state_dict().items()}
    layer = "model.language_model.layers.2."
    own = {f"mtp.layers.0.{name.removeprefix(layer)}": x for name, x in state.items() if name.startswith(layer)}
    own |= {f"mtp.{name}.weight": np.zeros(64, np.float32) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    own |= {
        "mtp.norm.weight": state["model.language_model.norm.weight"],
        "mtp.fc.weight": np.eye(64, 128, dtype=np.float32),
    }
    write_safetensors(tmp_path / "model.safetensors", {**state, **own})
    options = {"speculation": "mtp", "draft_min": 3, "draft_max": 3}
    with opened(tmp_path) as plain, opened(tmp_path, **options) as llm:  # type: ignore[arg-type]
        expected = [plain.chat(chat, GREEDY).choices[0].token_ids for chat in QUESTIONS]
        assert answers_of(llm.chat(QUESTIONS, GREEDY)) == expected
        (stats,) = (each for each in llm.stats().drafters if each.name == "mtp")
        assert (stats.failure, stats.n_drafted_tokens > 0) == ("", True)


MODULES = {
    "qwen3vl": ("layers.0.self_attn.q_proj", "layers.2.mlp.down_proj"),
    "qwen35": ("layers.0.linear_attn.in_proj_qkv", "layers.2.self_attn.v_proj", "layers.5.mlp.down_proj"),
}


@pytest.mark.parametrize("name", MODULES)
def test_adapters(name: str, tmp_path: Path) -> None:
    found = family(name)
    oracle = found.make()
    found.save(oracle, tmp_path / "model")
    rng = np.random.default_rng(0)
    halves: dict[str, np.ndarray[Any, np.dtype[np.float32]]] = {}
    with torch.no_grad():
        for module in MODULES[name]:
            weight = oracle.get_submodule(f"model.language_model.{module}").weight
            down, up = (
                rng.standard_normal(shape).astype(np.float32) * 0.3
                for shape in ((2, weight.shape[1]), (weight.shape[0], 2))
            )
            halves |= {f"model.language_model.{module}.lora_A": down, f"model.language_model.{module}.lora_B": up}
            weight.add_(torch.from_numpy(up @ down) * 2)
    targets = sorted({module.rsplit(".", 1)[1] for module in MODULES[name]})
    adapter = write_peft_adapter(tmp_path / "adapter", halves, {"r": 2, "lora_alpha": 4, "target_modules": targets})
    chat = CHATS["three"]
    with opened(tmp_path / "model") as plain, opened(tmp_path / "model", adapters=[adapter]) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, bad_token_ids=(found.pad_id,))
        result = llm.chat(chat, params)
        tokens = torch.tensor([result.prompt_token_ids + result.choices[0].token_ids[:-1]])
        with torch.no_grad():
            logits = oracle(input_ids=tokens, **found.inputs(oracle, tokens, images_of(chat))).logits[0]
        logits[:, found.pad_id] = -torch.inf
        expected = logits[len(result.prompt_token_ids) - 1 :].argmax(-1).tolist()
        assert result.choices[0].token_ids == expected != plain.chat(chat, params).choices[0].token_ids


def test_priorities(saved: Saved) -> None:
    """The urgent one of several questions about images is answered first, and nothing else changes."""
    finished: list[int] = []

    async def ask(llm: AsyncLLM, i: int) -> list[int]:
        result = await llm.chat(QUESTIONS[i], GREEDY, priority=i)
        finished.append(i)
        return result.choices[0].token_ids

    async def ask_all() -> list[list[int]]:
        async with AsyncLLM(
            saved.folder, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=512, deterministic=True, policy="priority",
            max_sequences=1, n_blocks=8,
        ) as llm:  # fmt: skip
            for chat in QUESTIONS:  # from now on, their images are in the cache of encoded ones
                await llm.chat(chat, GREEDY, max_tokens=1)
            await llm.pause("keep")
            asked = [asyncio.ensure_future(ask(llm, i)) for i in range(len(QUESTIONS))]
            while llm.stats().n_waiting < len(QUESTIONS):
                await asyncio.sleep(0.01)
            await llm.resume()
            return await asyncio.gather(*asked)

    assert asyncio.run(ask_all()) == saved.answers
    # Those that came first may have been chosen before the others came.
    falling: list[int] = []  # the length of the longest falling row that ends with each
    for i, priority in enumerate(finished):
        falling.append(1 + max((falling[k] for k in range(i) if finished[k] > priority), default=0))
    assert max(falling) >= len(QUESTIONS) - 3, finished


def test_cancellation_while_an_image_is_encoded(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the requests reaches the decoder; others go on, however many images wait."""
    began, go_on, encode = threading.Event(), threading.Event(), MediaEncoder.encode

    def slow(encoder: MediaEncoder, view: Any) -> Any:
        began.set()
        assert go_on.wait(60)
        return encode(encoder, view)

    async def run() -> None:
        async with AsyncLLM(
            saved.folder, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=512, deterministic=True
        ) as llm:
            monkeypatch.setattr(MediaEncoder, "encode", slow)
            tasks = [asyncio.ensure_future(llm.chat(chat, GREEDY)) for chat in QUESTIONS]
            assert await asyncio.to_thread(began.wait, 60)
            text = [{"role": "user", "content": "only text"}]
            before = (await llm.chat(text, GREEDY)).choices[0].token_ids  # not held up by the image
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(end) for end in ended} == {asyncio.CancelledError}
            assert (await llm.chat(text, GREEDY)).choices[0].token_ids == before
            stats = llm.stats()
            assert (stats.n_running, stats.n_waiting) == (0, 0)
            go_on.set()
            assert (await llm.chat(QUESTIONS[0], GREEDY)).choices[0].token_ids == saved.answers[0]

    asyncio.run(run())


def test_a_server_answers_texts_while_images_wait(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on, encode = threading.Event(), threading.Event(), MediaEncoder.encode

    def slow(encoder: MediaEncoder, view: Any) -> Any:
        began.set()
        assert go_on.wait(60)
        return encode(encoder, view)

    monkeypatch.setattr(MediaEncoder, "encode", slow)
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    options = {"mmproj": str(saved.folder), "kv_dtype": "f32", "threads": 1, "n_ctx": 512}
    worker = ModelWorker(wire.Open(str(saved.folder), options), lambda messages: [said.put(one) for one in messages])

    def heard(*ids: int) -> set[int]:
        """Wait until these requests have ended; return which of them were answered."""
        found: dict[int, bool] = {}
        while not found.keys() >= set(ids):
            message = said.get(timeout=60)
            if isinstance(message, wire.Finished | wire.Failed):
                found[message.id] = isinstance(message, wire.Finished)
        return {id_ for id_ in ids if found[id_]}

    try:
        text: list[dict[str, Any]] = [{"role": "user", "content": "a text"}]
        stream = io.BytesIO()
        PIL.fromarray(picture(64, 64)).save(stream, "PNG")
        url = "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        form = {"structured_outputs": {"regex": "[a-z]{3}"}}
        few: dict[str, Any] = {"max_tokens": 3}
        for id_ in range(1, 9):  # more than there are threads
            worker.handle(wire.Chat(id_, image, {}, few, wire.SchedulingHints(key=str(id_))))
        assert began.wait(60)
        worker.handle(wire.Chat(20, text, {}, few))
        worker.handle(wire.Chat(21, text, {}, few | form))
        assert heard(20, 21) == {20, 21}
        worker.handle(wire.Cancel(8))
        go_on.set()
        assert heard(*range(1, 8)) == set(range(1, 8))
    finally:
        go_on.set()
        worker.close()
