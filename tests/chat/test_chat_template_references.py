"""Compare renderings of every published template with transformers' (references/make_chat_references.py)."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from quire.chat import ChatTemplate, sandbox

pytestmark = pytest.mark.python_only

REFERENCES = Path(__file__).resolve().parents[1] / "references"
sys.path.insert(0, str(REFERENCES))
from chat_cases import CASES, DAY, DEPARTURES, SPECIAL_TEXTS  # noqa: E402

STORED: dict[str, dict[str, list[Any] | None]] = json.loads((REFERENCES / "chat.json").read_text(encoding="utf-8"))
# Marks of published models, so that control tokens are separated while comparing.
CONTROL_TOKENS = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "[INST]", "[/INST]",
    "<start_of_turn>", "<end_of_turn>", "<|end|>", "<|user|>", "<|assistant|>", "<｜User｜>", "<｜Assistant｜>",
]  # fmt: skip


class Frozen(datetime):
    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return DAY


def render(template: ChatTemplate, case: Mapping[str, Any]) -> str:
    values = dict(case)
    for name in set(values) - {"messages", "tools", "add_generation_prompt"} - template.variables:
        del values[name]  # transformers passes values that a template does not read; Quire refuses them
    return template.render(**values)


@pytest.mark.whole
@pytest.mark.parametrize("control_tokens", [(), CONTROL_TOKENS], ids=["plain", "marked"])
@pytest.mark.parametrize("name", sorted(STORED))
def test_equal_to_transformers(
    shared: Path, name: str, control_tokens: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shared / "templates" / name
    if not path.exists():
        pytest.skip(f"shared test data is absent: {path}")
    monkeypatch.setattr(sandbox, "datetime", Frozen)
    template = ChatTemplate(path.read_text(encoding="utf-8"), SPECIAL_TEXTS, control_tokens)
    compared = 0
    for case_name, case in CASES.items():
        reference = STORED[name][case_name]
        if reference is None or case_name in DEPARTURES.get(name, ()):
            continue
        text = render(template, case)
        assert [len(text), hashlib.sha256(text.encode()).hexdigest()[:16]] == reference, f"{case_name}:\n{text}"
        compared += 1
    assert compared >= 3


def test_cases_that_transformers_refuses_are_rendered_with_every_text(shared: Path) -> None:
    n_refused = 0
    for name, entry in STORED.items():
        path = shared / "templates" / name
        if not path.exists():
            pytest.skip(f"shared test data is absent: {path}")
        template = ChatTemplate(path.read_text(encoding="utf-8"), SPECIAL_TEXTS)
        for case_name in (key for key, value in entry.items() if value is None):
            prompt = render(template, CASES[case_name])
            for message in CASES[case_name]["messages"]:
                content = message.get("content") or ""
                for text in [content] if isinstance(content, str) else [part["text"] for part in content]:
                    assert text.strip() in prompt or message["role"] not in ("system", "user"), case_name
            n_refused += 1
    assert n_refused > 0


def test_references_cover_the_templates() -> None:
    assert len(STORED) >= 35
    rendered = [value for entry in STORED.values() for value in entry.values() if value is not None]
    assert len(rendered) > 500
    assert all(list(entry) == list(CASES) for entry in STORED.values())
