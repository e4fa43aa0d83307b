"""Templates of Ollama's Modelfiles: the prompts follow from Go's rules, and from how Ollama renders conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from quire import LLM
from quire.chat import ChatTemplate
from quire.chat.go_template import jinja_of
from quire.cli.main import main
from quire.engine.loading.loader import packaged_model
from quire.errors import UnsupportedError
from quire.server.routes.presets import CreateBody, preset_of_body

SYSTEM, ASK, ANSWER = (
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
)
MORE = {"role": "user", "content": "More {{ .x }}"}
CHATML = """{{- if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{ if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ .Response }}<|im_end|>
"""
LLAMA3 = """{{- range $i, $m := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "system" }}<|start_header_id|>system<|end_header_id|>

{{ .Content }}
{{- if $.Tools }}

Tools: {{ range $.Tools }}{{ . }}
{{ end }}{{ end }}<|eot_id|>
{{- else if or (eq .Role "user") (eq $m.Role "tool") }}<|start_header_id|>{{ .Role }}<|end_header_id|>

{{ .Content }}<|eot_id|>{{ if $last }}<|start_header_id|>assistant<|end_header_id|>

{{ end }}
{{- else if eq .Role "assistant" }}<|start_header_id|>assistant<|end_header_id|>
{{- if .ToolCalls }}
{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "parameters": {{ .Function.Arguments }}}{{ end }}
{{- else }}

{{ .Content }}
{{- end }}{{ if not $last }}<|eot_id|>{{ end }}
{{- end }}
{{- end }}"""
GEMMA = """<start_of_turn>user
{{ if .System }}{{ .System }} {{ end }}{{ .Prompt }}<end_of_turn>
<start_of_turn>model
{{ .Response }}<end_of_turn>
"""


def rendered(source: str, *messages: dict[str, Any], **values: Any) -> str:
    template = ChatTemplate(jinja_of(source))
    return template.render(list(messages), values.pop("tools", None), True, **values)


def test_turns() -> None:
    user = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(CHATML, ASK) == user.format("Hi")
    assert rendered(CHATML, SYSTEM, ASK, ANSWER, MORE) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        + user.format("Hi")
        + "Hello!<|im_end|>\n"
        + user.format("More {{ .x }}")
    )
    assert rendered(GEMMA, SYSTEM, ASK) == "<start_of_turn>user\nBe kind. Hi<end_of_turn>\n<start_of_turn>model\n"
    assert rendered("{{ .Prompt }}", ASK, ANSWER, MORE) == "HiHello!More {{ .x }}"
    assert rendered("[{{ .Prompt }}]", ASK, MORE) == "[Hi\n\nMore {{ .x }}]"


def test_messages() -> None:
    def header(role: str) -> str:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n"

    assert rendered(LLAMA3, SYSTEM, ASK, ANSWER, MORE) == (
        f"{header('system')}Be kind.<|eot_id|>{header('user')}Hi<|eot_id|>{header('assistant')}Hello!<|eot_id|>"
        f"{header('user')}More {{{{ .x }}}}<|eot_id|>{header('assistant')}"
    )
    tool = {"type": "function", "function": {"name": "f", "description": "d"}}
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": "x"}}}
    found = rendered(LLAMA3, SYSTEM, ASK, {"role": "assistant", "content": "", "tool_calls": [call]}, tools=[tool])
    assert 'Tools: {"type":"function","function":{"name":"f","description":"d"}}\n<|eot_id|>' in found
    assert found.endswith('<|start_header_id|>assistant<|end_header_id|>\n{"name": "f", "parameters": {"a":1,"b":"x"}}')


def test_a_name_with_a_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_MODELS", str(tmp_path / "models.toml"))
    (tmp_path / "Modelfile").write_text(f'FROM {packaged_model()}\nTEMPLATE """{CHATML}"""\n')
    assert main(("create", "me", "-f", str(tmp_path / "Modelfile"))) == 0
    with LLM("me", threads=1, n_ctx=128) as llm:
        written = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        ids = llm.tokenizer.encode(written, add_special=False, parse_special=True)
        assert llm.chat([ASK], max_tokens=1).prompt_token_ids == ids
    assert main(("run", "-m", "me", "Hi", "-n", "1", "--chat-template", "{{ messages[0].content }}")) == 0
    body = CreateBody(model="you", from_="me", template="{{ .Prompt }}")
    assert preset_of_body(body, None).template == jinja_of("{{ .Prompt }}")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a {{- /* note */ -}} b", "ab"),
        ("{{ $x := 1 }}{{ range .Messages }}{{ $x = 2 }}{{ end }}{{ $x }}", "2"),
        ("{{ with .System }}<{{ . }}>{{ else }}none{{ end }}{{ if .Messages }}{{ end }}", "<Be kind.>"),
        ("{{ range $i, $_ := .Messages }}{{ $i }}{{ end }}", "01"),
        (
            '{{ .Messages | len }} {{ (index .Messages 1).Content | json }} {{ "q\\"\\n" }}{{ `r\\n` }}',
            '2 "Hi" q"\nr\\n',
        ),
        ("{{ if and .Messages (not .Tools) (ne 1 2) (lt 1 2) }}y{{ end }}{% raw %}{# é 😀", "y{% raw %}{# é 😀"),
        ("{{ range .Tools }}x{{ else }}no{{ end }}{{ len .Messages }}", "no2"),
        ("{{ if .Think }}t{{ else if .IsThinkSet }}s{{ else }}n{{ end }}{{ slice .Messages 1 2 | len }}", "n1"),
    ],
)
def test_pieces(source: str, text: str) -> None:
    assert rendered(source, SYSTEM, ASK) == text


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{{ .Prompt | upper }}", "upper"), ("{{ .Nonsense }}", ".Nonsense"), ("{{ template \"x\" }}", "template"),
        ("{{ if .Prompt }}", "if"), ("{{ end }}", "end"), ("{{ $x }}", "$x"), ("{{ .Prompt", ".Prompt"),
        ("{{ printf \"%s\" .Prompt }}", "printf"), ("{{ range .Messages }}{{ .Images }}{{ end }}", ".Images"),
        ("{{ " + "(" * 200 + ")" * 200 + " }}", "parentheses"), ("{{ if .Prompt }}" * 100, "if .Prompt"),
    ],
)  # fmt: skip
def test_everything_else_is_refused_by_name(source: str, named: str) -> None:
    with pytest.raises(UnsupportedError, match=r"\[template\]") as caught:
        jinja_of(source)
    assert named in str(caught.value)
