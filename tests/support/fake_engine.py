"""An engine without a model that answers from a script and records its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from quire.server.worker.engine_client import EngineState, Stream, Streams
from quire.server.worker.protocol import (
    Answer,
    Ask,
    Beat,
    Delta,
    Embed,
    Failed,
    Finished,
    FromEngine,
    ModelInfo,
    Score,
    Started,
    Work,
)

INFO = ModelInfo("fake", "none", 128, 100, 8, 4, 64, {}, None, "", "", "0.0")

DESCRIBED = {"abilities": [], "file": {"size_bytes": 1, "modified_s": 0.0}}


class FakeEngine(Streams):
    """``answers`` are used one by one: the texts of the deltas, a failure, or None to never answer."""

    def __init__(self, answers: Sequence[Sequence[str] | Failed | None] = ()) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[Work] = []
        self.cancelled: list[int] = []
        self.pauses: list[tuple[int, bool]] = []
        self.state = EngineState.READY
        self.info = INFO
        self.beat: Beat | None = None

    def keep_controls(self, paused: bool, asleep: list[str]) -> None:
        pass

    def keep_adapters(self, info: Mapping[str, Any], kept: list[tuple[str, str, float]]) -> None:
        self.info = msgspec.structs.replace(self.info, **info)

    def submit(self, work: Work) -> Stream:
        made, stream = self.open(work)
        self.asked.append(made)
        answer = self.answers.pop(0) if self.answers else ["a", "b"]
        if answer is not None:
            asyncio.get_running_loop().call_soon(self.dispatch, self._messages(made, answer))
        return stream

    def _messages(self, work: Work, answer: Sequence[str] | Failed) -> list[FromEngine]:
        id_ = work.id
        if isinstance(answer, Failed) and isinstance(work, Embed | Score):
            return [Failed(id_, answer.kind, answer.message)]
        if isinstance(answer, Failed):
            return [Started(id_, 3), Delta(id_, 0, "part", [1]), Failed(id_, answer.kind, answer.message)]
        if isinstance(work, Ask):
            value = {"tokens": [1, 2], "text": "ab", "n_tokens": 2, "prompt": "ab", "ignored": [], **DESCRIBED}
            return [Answer(id_, json.dumps(value).encode() if work.encoded else value)]
        if isinstance(work, Embed):
            return [Answer(id_, {"vector": bytes(8), "n_tokens": 2, "n_cached_tokens": 0, "seconds": 0.001})]
        if isinstance(work, Score):
            scored = {
                "scores": [0.5],
                "shown": [0.62],
                "labels": [],
                "relevance": 0.5,
                "is_judged": False,
                "is_raw": False,
            }
            return [Answer(id_, {**scored, "n_tokens": 2, "n_cached_tokens": 0, "seconds": 0.001})]
        messages: list[FromEngine] = [Started(id_, 3)]
        for choice in range(int(work.params.get("n", 1))):
            messages += [Delta(id_, choice, text, [number]) for number, text in enumerate(answer)]
            messages.append(Finished(id_, choice, "stop", None, 3, 0, len(answer), 0.0, 0.001, 0.002))
        return messages

    def send_cancel(self, id_: int) -> None:
        self.cancelled.append(id_)

    def send_pause(self, id_: int, paused: bool) -> None:
        self.pauses.append((id_, paused))

    def reload_from(self, path: str) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...
