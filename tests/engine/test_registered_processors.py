"""Logits processors that were registered at start and are chosen by name.

Oracles: the same rule as a function of the request, or as allowed_token_ids.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import served as served_module
from quire.engine import LLM, processors
from quire.engine.loading.loader import packaged_model
from quire.errors import LoadError, RequestError
from served import served

STORY = "Once upon a time"
PLUGIN = """
import numpy as np

class Only:
    def __init__(self, ids):
        if not isinstance(ids, list):
            raise ValueError("ids is not a list")
        self.ids = ids

    def __call__(self, token_ids, logits):
        kept = np.full_like(logits, -np.inf)
        kept[self.ids] = logits[self.ids]
        return kept
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "quire_test_plugin.py").write_text(PLUGIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        own = served_module.environment()
        path = os.pathsep.join([own["PYTHONPATH"], str(folder)])
        patch.setattr(served_module, "environment", lambda: {**own, "PYTHONPATH": path})
        yield folder


def test_requests_choose_by_name(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return 2 * logits

    point = EntryPoint("hotter", "quire_test_plugin:Only", processors.GROUP)
    monkeypatch.setattr(processors, "entry_points", lambda group: [point] if group == processors.GROUP else [])
    ids = list(range(200, 900))
    with LLM(threads=1, n_ctx=256, logits_processors=["only=quire_test_plugin:Only"]) as llm:
        (expected,) = llm.generate(STORY, temperature=0, max_tokens=6, allowed_token_ids=ids)
        for name in ("only", "hotter"):
            chosen = [{"name": name, "arguments": {"ids": ids}}, twice]
            (found,) = llm.generate(STORY, temperature=0, max_tokens=6, logits_processors=chosen)
            assert found.token_ids == expected.token_ids
        for wrong, text in (
            ([{"name": "only", "arguments": {"ids": 3}}], "ids is not a list"), (["other"], "registered are hotter, only"),
            ([{"name": "only", "code": "x"}], "name and arguments"), ([3], "neither callable nor a name"),
        ):  # fmt: skip
            with pytest.raises(RequestError, match=text):
                llm.generate(STORY, max_tokens=1, logits_processors=wrong)
    for path in ("nowhere_at_all:X", "quire_test_plugin", "quire_test_plugin:Lacking"):
        with pytest.raises(LoadError, match=path):
            LLM(str(packaged_model()), logits_processors=[path])


def test_a_server_offers_what_its_operator_registered(plugin: Path, tmp_path: Path, llm: LLM) -> None:
    ids = list(range(200, 900))
    (expected,) = llm.generate(STORY, temperature=0, max_tokens=6, allowed_token_ids=ids)
    options = ["--logits-processors", "quire_test_plugin:Only"]
    with served(tmp_path, options) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        body = {"prompt": STORY, "temperature": 0, "max_tokens": 6}
        chosen = {"logits_processors": [{"name": "Only", "arguments": {"ids": ids}}]}
        answer = client.post("/v1/completions", json={**body, **chosen}).json()
        assert answer["choices"][0]["text"] == expected.text
        unknown = client.post("/v1/completions", json={**body, "logits_processors": ["os:system"]})
        assert unknown.status_code == 400
        assert "'os:system' is unknown: registered are Only" in unknown.json()["error"]["message"]
        guided = {"guidance_scale": 2.5, "negative_prompt": "A slow tortoise"}
        (expected,) = llm.generate(STORY, temperature=0, max_tokens=6, **guided)
        assert client.post("/v1/completions", json={**body, **guided}).json()["choices"][0]["text"] == expected.text
        lazy = {"grammar": 'root ::= " was " [0-9]{4}', "grammar_lazy": True}
        lazy["grammar_triggers"] = [{"type": 1, "value": " was"}]
        answer = client.post("/completion", json={**body, **lazy, "n_predict": 12, "max_tokens": 12}).json()
        assert re.search(" was [0-9]{4}$", answer["content"])
        assert client.post("/v1/completions", json={**body, **lazy, "grammar_triggers": []}).status_code == 400
