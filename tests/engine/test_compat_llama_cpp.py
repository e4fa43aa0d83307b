"""Scripts of llama-cpp-python by ``quire.compat.llama_cpp``: each as its users write it, but for the import.

Oracles: the shapes of OpenAI's interface, which that library's answers have, and the same model by ``quire.LLM``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quire.compat.llama_cpp import Llama, LlamaGrammar
from quire.engine import LLM
from quire.engine.loader import packaged_model
from quire.errors import QuireError, UnsupportedError
from served import environment

PATH = "./models/7B/llama-model.gguf"
OPEN = f'llm = Llama(model_path="{PATH}", verbose=False, n_ctx=512)\n'
TOOL = (
    '{"type": "function", "function": {"name": "get_weather", "description": "Get the weather for a city.",'
    ' "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}'
)

# What a script does, and what must hold of what it leaves behind.
SCRIPTS: dict[str, tuple[str, str]] = {
    "completion": (
        'output = llm("Q: Name the planets in the solar system? A: ", max_tokens=32, stop=["Q:", "\\n"], echo=True)',
        'output["object"] == "text_completion" and output["choices"][0]["text"].startswith("Q: Name the planets")',
    ),
    "usage": (
        'usage = llm("Once upon a time", max_tokens=8)["usage"]',
        'usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] and usage["prompt_tokens"] > 0',
    ),
    "create_completion": (
        'output = llm.create_completion("Once upon a time", max_tokens=8, temperature=0.0)',
        'output["choices"][0]["finish_reason"] == "length" and output["id"].startswith("cmpl-")',
    ),
    "default limit": (
        'output = llm("Once upon a time", temperature=0.0)',
        'output["usage"]["completion_tokens"] <= 16',
    ),
    "no limit": (
        'output = llm("Once upon a time", max_tokens=None, temperature=0.0, stop=["."])',
        'output["choices"][0]["finish_reason"] == "stop"',
    ),
    "stream": (
        'parts = [o["choices"][0]["text"] for o in llm("Once upon a time", max_tokens=8, stream=True, seed=3)]\n'
        'whole = llm("Once upon a time", max_tokens=8, seed=3)["choices"][0]["text"]',
        '"".join(parts) == whole',
    ),
    "ids as prompt": (
        'ids = llm.tokenize(b"Once upon a time")\noutput = llm(ids, max_tokens=4, temperature=0)',
        'output["usage"]["prompt_tokens"] == len(ids)',
    ),
    "suffix": (
        'output = llm("Once", suffix=" The end.", max_tokens=4)',
        'output["choices"][0]["text"].endswith(" The end.")',
    ),
    "logprobs": (
        'shown = llm("Once upon", max_tokens=4, logprobs=3)["choices"][0]["logprobs"]',
        'len(shown["tokens"]) == len(shown["token_logprobs"]) == 4 and len(shown["top_logprobs"][0]) == 3',
    ),
    "logprobs of the prompt": (
        'shown = llm("Once upon", max_tokens=2, logprobs=1, echo=True)["choices"][0]["logprobs"]\n'
        'n = len(llm.tokenize(b"Once upon"))',
        'len(shown["tokens"]) == n + 2 and shown["token_logprobs"][0] is None and shown["text_offset"][0] == 0',
    ),
    "seed": (
        'a, b = (llm("Once", max_tokens=12, seed=42, temperature=1.0)["choices"][0]["text"] for _ in range(2))',
        "a == b",
    ),
    "seed of the model": (
        'llm.set_seed(9)\na, b = (llm("Once", max_tokens=12, temperature=1.0)["choices"][0]["text"] for _ in range(2))',
        "a == b",
    ),
    "sampling": (
        'output = llm("Once", max_tokens=4, temperature=0.7, top_p=0.9, top_k=50, min_p=0.1, typical_p=0.9,'
        " repeat_penalty=1.1, frequency_penalty=0.1, presence_penalty=0.1, tfs_z=0.95)",
        'output["choices"][0]["text"]',
    ),
    "mirostat": (
        'output = llm("Once", max_tokens=4, mirostat_mode=2, mirostat_tau=4.0, mirostat_eta=0.2)',
        'output["choices"][0]["text"]',
    ),
    "bias": (
        'token = llm.tokenize(b" fox", add_bos=False)[0]\n'
        'output = llm("Once", max_tokens=3, logit_bias={token: 100}, temperature=0.0)',
        'llm.tokenize(output["choices"][0]["text"].encode(), add_bos=False)[:1] == [token]',
    ),
    "chat": (
        "output = llm.create_chat_completion(messages=[\n"
        '    {"role": "system", "content": "You answer in one sentence."},\n'
        '    {"role": "user", "content": "What is the capital of France?"}], max_tokens=32)',
        'output["object"] == "chat.completion" and output["choices"][0]["message"]["role"] == "assistant"'
        ' and "Paris" in output["choices"][0]["message"]["content"]',
    ),
    "chat stream": (
        'chunks = list(llm.create_chat_completion([{"role": "user", "content": "Who are you?"}], stream=True,'
        " max_tokens=16))\n"
        'text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)',
        'text and chunks[0]["choices"][0]["delta"] == {"role": "assistant"}'
        ' and chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")',
    ),
    "JSON": (
        "import json\n"
        "output = llm.create_chat_completion(messages=[\n"
        '    {"role": "user", "content": "Name a city."}],\n'
        '    response_format={"type": "json_object"}, temperature=0.7, max_tokens=200, stop=None)',
        'output["choices"][0]["finish_reason"] == "length"'
        ' or isinstance(json.loads(output["choices"][0]["message"]["content"]), dict)',
    ),
    "JSON of a schema": (
        "import json\n"
        'schema = {"type": "object", "properties": {"team": {"enum": ["red", "blue"]}}, "required": ["team"],\n'
        '    "additionalProperties": False}\n'
        'output = llm.create_chat_completion([{"role": "user", "content": "Who won?"}],\n'
        '    response_format={"type": "json_object", "schema": schema}, temperature=0.7, max_tokens=64)',
        'json.loads(output["choices"][0]["message"]["content"])["team"] in ("red", "blue")',
    ),
    "tools": (
        "import json\n"
        'output = llm.create_chat_completion([{"role": "user", "content": "What is the weather in Paris?"}],\n'
        f"    tools=[{TOOL}],\n"
        '    tool_choice={"type": "function", "function": {"name": "get_weather"}}, max_tokens=64)\n'
        'call = output["choices"][0]["message"]["tool_calls"][0]',
        'call["function"]["name"] == "get_weather" and "city" in json.loads(call["function"]["arguments"])'
        ' and output["choices"][0]["finish_reason"] == "tool_calls"',
    ),
    "functions": (
        'output = llm.create_chat_completion([{"role": "user", "content": "What is the weather in Paris?"}],\n'
        f'    functions=[{TOOL}["function"]], function_call={{"name": "get_weather"}}, max_tokens=64)',
        'output["choices"][0]["message"]["function_call"]["name"] == "get_weather"'
        ' and output["choices"][0]["finish_reason"] == "function_call"',
    ),
    "tool choice auto": (
        'output = llm.create_chat_completion([{"role": "user", "content": "What is the weather in Paris?"}],\n'
        f'    tools=[{TOOL}], tool_choice="auto", max_tokens=64, stream=True)\n'
        'names = [c["function"]["name"] for o in output for c in o["choices"][0]["delta"].get("tool_calls", [])]',
        'names == ["get_weather"]',
    ),
    "grammar": (
        "from quire.compat.llama_cpp import LlamaGrammar\n"
        """grammar = LlamaGrammar.from_string('root ::= "yes" | "no"')\n"""
        'output = llm("Is the sky blue?", grammar=grammar, max_tokens=8)',
        'output["choices"][0]["text"] in ("yes", "no")',
    ),
    "grammar of a schema": (
        "from quire.compat.llama_cpp import LlamaGrammar\nimport json\n"
        """grammar = LlamaGrammar.from_json_schema('{"enum": [1, 2]}')\n"""
        'output = llm.create_chat_completion([{"role": "user", "content": "One?"}], grammar=grammar, max_tokens=8)',
        'json.loads(output["choices"][0]["message"]["content"]) in (1, 2)',
    ),
    "tokens": (
        'tokens = llm.tokenize(b"Hello, world!")\ntext = llm.detokenize(tokens)',
        'text == b"Hello, world!" and len(tokens) > 1',
    ),
    "special tokens": (
        'one = llm.tokenize(b"<|im_end|>", add_bos=False, special=True)\n'
        'text = llm.tokenize(b"<|im_end|>", add_bos=False)',
        "one == [llm.token_eos()] and len(text) > 1",
    ),
    "generate": (
        "tokens = llm.tokenize(b'Once upon a time')\nmade = []\n"
        "for token in llm.generate(tokens, top_k=40, top_p=0.95, temp=0.7, repeat_penalty=1.1):\n"
        "    made.append(token)\n"
        "    if len(made) == 5: break",
        "len(made) == 5 and isinstance(llm.detokenize(made), bytes)",
    ),
    "embedding": (
        f'llm = Llama(model_path="{PATH}", embedding=True, n_ctx=128)\n'
        'one = llm.create_embedding("Hello, world!")\n'
        'several = llm.create_embedding(["Hello, world!", "Goodbye, world!"])\n'
        'rows = llm.embed(["Hello, world!"])',
        'one["object"] == "list" and len(several["data"]) == 2 and one["data"][0]["embedding"] == rows[0]'
        ' and len(rows[0]) == llm.n_embd() and one["usage"]["prompt_tokens"] == one["usage"]["total_tokens"]',
    ),
    "logits processor": (
        "from quire.compat.llama_cpp import LogitsProcessorList\nimport numpy as np\n"
        "token = llm.tokenize(b' cat', add_bos=False)[0]\n"
        "def only(input_ids, scores):\n"
        "    result = np.full_like(scores, -np.inf)\n"
        "    result[token] = 0.0\n"
        "    return result\n"
        'output = llm("A", max_tokens=2, logits_processor=LogitsProcessorList([only]))',
        'output["choices"][0]["text"] == llm.detokenize([token, token]).decode()',
    ),
    "stopping criteria": (
        "from quire.compat.llama_cpp import StoppingCriteriaList\n"
        "n = len(llm.tokenize(b'Once upon a time'))\n"
        "criteria = StoppingCriteriaList([lambda ids, scores: len(ids) >= n + 3])\n"
        'output = llm("Once upon a time", max_tokens=32, stopping_criteria=criteria, temperature=0.0)',
        'output["usage"]["completion_tokens"] <= 4 and output["choices"][0]["finish_reason"] == "stop"',
    ),
    "options of loading": (
        f'llm = Llama(model_path="{PATH}", n_ctx=256, n_threads=1, n_batch=64, seed=1337, use_mmap=True,\n'
        '    n_gpu_layers=0, flash_attn=True, chat_format="chatml", type_k=8, type_v=2, verbose=False)\n'
        'a, b = (llm("Once", max_tokens=8, temperature=1.0)["choices"][0]["text"] for _ in range(2))',
        "llm.n_ctx() == 256 and a == b",
    ),
    "cache": (
        "from quire.compat.llama_cpp import LlamaRAMCache\n"
        'llm.set_cache(LlamaRAMCache(capacity_bytes=1 << 20))\nllm.reset()\noutput = llm("Once", max_tokens=2)',
        'output["choices"][0]["text"]',
    ),
    "what the model is": (
        "data = llm.metadata",
        'data["general.architecture"] == "qwen3" and llm.n_vocab() == 4096 and llm.n_ctx() == 512',
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the scripts' model is the package's."""
    root = tmp_path_factory.mktemp("scripts")
    link = root / PATH
    link.parent.mkdir(parents=True)
    link.symlink_to(packaged_model())
    return root


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[Llama]:
    """The model of scripts that open it as the first one does."""
    with Llama(model_path=str(folder / PATH), verbose=False, n_ctx=512, n_threads=1) as llm:
        yield llm


def test_there_are_thirty() -> None:
    assert len(SCRIPTS) >= 30


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name: str, folder: Path, opened: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    program, holds = SCRIPTS[name]
    opened.set_seed(7)  # of scripts that draw by chance: any answer of theirs would do, but the same each time
    names: dict[str, Any] = {"Llama": Llama, "llm": opened}
    exec(program, names)
    try:
        assert eval(holds, names), {k: v for k, v in names.items() if not k.startswith("__")}
    finally:
        if names["llm"] is not opened:
            names["llm"].close()


def test_a_whole_script(folder: Path) -> None:
    """One as it stands, in a process of its own: what the others leave out of theirs."""
    program, holds = SCRIPTS["completion"]
    script = f"from quire.compat.llama_cpp import Llama\n{OPEN}{program}\nassert {holds}\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=folder, env=environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_answers_are_the_engines(opened: Llama, llm: LLM) -> None:
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    answer = opened.create_chat_completion(asked, temperature=0.0, max_tokens=16)
    assert answer["choices"][0]["message"]["content"] == llm.chat(asked, temperature=0.0, max_tokens=16).text  # type: ignore[index]
    text = opened("Once upon a time", temperature=0.0, max_tokens=16)["choices"][0]["text"]  # type: ignore[index]
    assert text == llm.generate("Once upon a time", temperature=0.0, max_tokens=16)[0].text
    vectors = opened.embed(["Once"], normalize=True)
    assert vectors[0] == pytest.approx(llm.embed("Once")[0].tolist(), abs=0.02)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lora_path": "x"}, "lora_path"), ({"rope_freq_base": 1e6}, "rope_freq_base"), ({"vocab_only": True}, "vocab_only"),
        ({"type_k": 10}, "type_k"), ({"type_k": 1, "type_v": 20}, "type_v"),
    ],
)  # fmt: skip
def test_what_would_change_the_answer_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"\[llama_cpp\.Llama\] {text} must"):
        Llama(packaged_model(), **options)


def test_unknown_arguments(opened: Llama) -> None:
    with pytest.raises(TypeError, match=r"Llama\(\) got an unexpected keyword argument 'n_context'"):
        Llama(packaged_model(), n_context=1)
    with pytest.raises(TypeError, match="temprature"):
        opened("x", temprature=1)
    with pytest.raises(UnsupportedError, match="save_state"):
        opened.save_state()
    with pytest.raises(QuireError):
        opened("x", grammar=LlamaGrammar.from_string("root ::= nothing"))


def test_models_of_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    asked: list[Any] = []

    def download(repo: str, name: str, **options: Any) -> str:
        asked.append((repo, name))
        return str(packaged_model())

    monkeypatch.setattr(hub, "list_repo_files", lambda repo: ["README.md", "a-q4_0.gguf", "a-q8_0.gguf"])
    monkeypatch.setattr(hub, "hf_hub_download", download)
    with Llama.from_pretrained(repo_id="org/a", filename="*q8_0.gguf", verbose=False) as llm:
        assert llm("Once", max_tokens=1)
    assert asked == [("org/a", "a-q8_0.gguf")]
    with pytest.raises(UnsupportedError, match="filename must name one file"):
        Llama.from_pretrained("org/a", "*.gguf")


def test_unused_it_costs_nothing() -> None:
    program = (
        "import sys, quire; quire.LLM; quire.AsyncLLM; import quire.server.app\n"
        "assert not [n for n in sys.modules if n.startswith('quire.compat')]"
    )
    subprocess.run([sys.executable, "-c", program], env=environment(), check=True)
