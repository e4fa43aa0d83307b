"""Write chat.json: what transformers' renderer makes of every template in a folder, as digests.

    python tests/references/make_chat_references.py ../shared/templates

Needs transformers.  Tests compare Quire's renderings with it (tests/test_chat_template_references.py, which has the
same CASES and the same frozen day).
"""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import datetime
from pathlib import Path

import jinja2.filters
from transformers.utils import chat_template_utils

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_cases import CASES, DAY, SPECIAL_TEXTS


class Frozen(datetime):
    @classmethod
    def now(cls, tz: object = None) -> datetime:
        return DAY


def rendered(source: str, case: dict[str, object]) -> str | None:
    values = {"tools": None, "add_generation_prompt": True, **SPECIAL_TEXTS, **case}
    messages = values.pop("messages")
    try:
        result = chat_template_utils.render_jinja_template([messages], chat_template=source, **values)
    except Exception:  # the template refuses the case
        return None
    texts = result[0] if isinstance(result, tuple) else result
    return texts[0] if isinstance(texts, list) else texts


def with_text_arguments(case: dict[str, object]) -> dict[str, object]:
    """The case with the arguments of calls as JSON text, as OpenAI's interface has them."""

    def text(call: dict[str, dict[str, object]]) -> dict[str, object]:
        function = call["function"]
        return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}

    messages = [
        {**message, "tool_calls": [text(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in case["messages"]
    ]
    return {**case, "messages": messages}


def main(folder: Path) -> None:
    chat_template_utils.datetime = Frozen
    jinja2.filters.FILTERS["from_json"] = json.loads  # two published templates use it
    found: dict[str, dict[str, list[object] | None]] = {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        entry = found[path.name] = {}
        for name, case in CASES.items():
            text = rendered(source, case)
            if text is None:  # some templates take the arguments of calls as text only
                text = rendered(source, with_text_arguments(case))
            entry[name] = None if text is None else [len(text), hashlib.sha256(text.encode()).hexdigest()[:16]]
    target = Path(__file__).with_name("chat.json")
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(found.items())]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    results = [value for entry in found.values() for value in entry.values()]
    print(f"{len(found)} templates, {len(results)} renderings, {results.count(None)} refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
