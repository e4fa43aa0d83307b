"""Forms that begin at a trigger, as llama.cpp's lazy grammars.

Oracle: a Python parser of the answer: free text without a trigger, or the form from the first trigger on.
"""

from __future__ import annotations

import re

import pytest
from quire.engine import LLM
from quire.errors import QuireError
from quire.params.structured import StructuredOutputsParams

STORY = "Once upon a time"
FORM = r'root ::= ("<call>" | "named") "(" [0-9]{3} ")"'


def test_the_form_begins_at_the_first_trigger(llm: LLM) -> None:
    form = StructuredOutputsParams(grammar=FORM, triggers=["<call>", "named"])
    (plain,) = llm.generate(STORY, temperature=0.0, max_tokens=16)
    (found,) = llm.generate(STORY, temperature=0.0, max_tokens=24, structured_outputs=form)
    before, _, rest = plain.text.partition("named")
    assert rest
    assert re.fullmatch(re.escape(before) + r"named\([0-9]{3}\)", found.text)
    assert found.finish_reason == "stop"
    for seed in range(4):
        (free,) = llm.generate("The fox", seed=seed, max_tokens=24, structured_outputs=form)
        text = re.sub(r"(?s)^(.*?)(<call>|named)\([0-9]{3}\)$", r"\1", free.text)
        assert "<call>" not in text
        assert "named" not in text or free.finish_reason == "length"


def test_drafts_and_choices_follow_it(llm: LLM) -> None:
    form = StructuredOutputsParams(regex=" a boy named [0-9]{8}", triggers=[" a boy"])
    results = [
        llm.generate(STORY, temperature=0.0, max_tokens=30, structured_outputs=form, speculation=name, n=2)[0]
        for name in ("off", "auto")
    ]
    texts = {choice.text for result in results for choice in result.choices}
    assert len(texts) == 1
    assert re.fullmatch(r", there was a boy named [0-9]{8}", texts.pop())


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"triggers": ["x"], "after": "y"}, "after"), ({"triggers": [""]}, "triggers"),
        ({"triggers": "x"}, "triggers"), ({"triggers": ["never"]}, "begins with the trigger 'never'"),
    ],
)  # fmt: skip
def test_triggers_that_cannot_work_are_refused(llm: LLM, values: dict[str, object], text: str) -> None:
    with pytest.raises(QuireError, match=text):
        llm.generate(STORY, structured_outputs=StructuredOutputsParams(grammar=FORM, **values))  # type: ignore[arg-type]
