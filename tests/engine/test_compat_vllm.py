"""Scripts of vLLM's offline inference by ``quire.compat.vllm``: each as its users write it, but for the import.

Oracles: the names of vLLM's results, and the same model by ``quire.LLM``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire.compat import vllm
from quire.engine import LLM
from quire.engine.loader import packaged_model
from quire.errors import QuireError, RequestError, UnsupportedError
from served import environment
from tiny_checkpoints import write_checkpoint, write_reranker
from word_pieces import write_word_pieces

MODEL = "./tiny-chat.gguf"
HEAD = "from quire.compat.vllm import LLM, SamplingParams\n"
OPEN = f'llm = LLM(model="{MODEL}", max_model_len=512)\n'
ASKED = '[{"role": "user", "content": "What is the capital of France?"}]'
TOOL = (
    '{"type": "function", "function": {"name": "get_weather", "description": "Get the weather for a city.",'
    ' "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}'
)

# What a script does, and what must hold of what it leaves behind.
SCRIPTS: dict[str, tuple[str, str]] = {
    "basic": (
        'prompts = ["Hello, my name is", "The capital of France is", "The future is"]\n'
        "sampling_params = SamplingParams(temperature=0.8, top_p=0.95, seed=0)\n"
        "outputs = llm.generate(prompts, sampling_params)\n"
        "shown = [(output.prompt, output.outputs[0].text) for output in outputs]",
        "[p for p, _ in shown] == prompts and all(t for _, t in shown)",
    ),
    "a single prompt": ('outputs = llm.generate("Once")', "len(outputs) == 1 and outputs[0].prompt == 'Once'"),
    "default limit": (
        'outputs = llm.generate("Once upon a time", SamplingParams(temperature=0, ignore_eos=True))',
        "len(outputs[0].outputs[0].token_ids) == 16 and outputs[0].outputs[0].finish_reason == 'length'",
    ),
    "defaults of the model": (
        "sampling_params = llm.get_default_sampling_params()\nsampling_params.max_tokens = 5\n"
        'outputs = llm.generate("Once upon a time", sampling_params)',
        "sampling_params.temperature == 0.0 and len(outputs[0].outputs[0].token_ids) == 5",
    ),
    "greedy": (
        'a, b = llm.generate(["Once", "Once"], SamplingParams(temperature=0.0, max_tokens=8))',
        "a.outputs[0].text == b.outputs[0].text and a.request_id != b.request_id",
    ),
    "several answers": (
        'output = llm.generate("Once", SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=4))[0]',
        "[o.index for o in output.outputs] == [0, 1, 2]",
    ),
    "seeds": (
        "params = SamplingParams(temperature=1.0, seed=42, max_tokens=12)\n"
        'a, b = (llm.generate("Once", params)[0].outputs[0].text for _ in range(2))',
        "a == b",
    ),
    "parameters for each": (
        'outputs = llm.generate(["A", "B"], [SamplingParams(max_tokens=n, ignore_eos=True) for n in (2, 3)])',
        "[len(o.outputs[0].token_ids) for o in outputs] == [2, 3]",
    ),
    "stop": (
        'output = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=64, stop=["."]))[0]',
        'output.outputs[0].stop_reason == "." and "." not in output.outputs[0].text',
    ),
    "stop stays": (
        'output = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=64, stop=".",'
        " include_stop_str_in_output=True))[0]",
        'output.outputs[0].text.endswith(".")',
    ),
    "stop tokens": (
        'first = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=3))[0].outputs[0].token_ids\n'
        'output = llm.generate("Once upon a time", SamplingParams(temperature=0, stop_token_ids=[first[2]]))[0]',
        "output.outputs[0].stop_reason == first[2]",
    ),
    "penalties": (
        'output = llm.generate("Once", SamplingParams(presence_penalty=0.5, frequency_penalty=0.2,'
        " repetition_penalty=1.1, top_k=40, min_p=0.05))[0]",
        "output.finished",
    ),
    "top_k off": ('output = llm.generate("Once", SamplingParams(top_k=-1, max_tokens=2, seed=0))[0]', "output.outputs[0].text"),
    "logprobs": (
        'output = llm.generate("Once", SamplingParams(temperature=0, logprobs=2, max_tokens=4))[0].outputs[0]\n'
        "first = output.logprobs[0][output.token_ids[0]]",
        "len(output.logprobs) == 4 and first.rank == 1 and first.decoded_token and first.logprob <= 0"
        " and output.cumulative_logprob < 0",
    ),
    "logprobs of the prompt": (
        'output = llm.generate("Once upon a time", SamplingParams(prompt_logprobs=1, max_tokens=1))[0]',
        "output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(output.prompt_token_ids)",
    ),
    "token ids": (
        'ids = llm.get_tokenizer().encode("Once upon a time")\n'
        'output = llm.generate({"prompt_token_ids": ids}, SamplingParams(max_tokens=2))[0]',
        "output.prompt_token_ids == ids and output.prompt is None",
    ),
    "tokens prompt": (
        "from quire.compat.vllm import TokensPrompt, TextPrompt\n"
        'ids = llm.get_tokenizer().encode("Once")\n'
        'outputs = llm.generate([TokensPrompt(prompt_token_ids=ids), TextPrompt(prompt="Once")],'
        " SamplingParams(temperature=0, max_tokens=4))",
        "outputs[0].outputs[0].text == outputs[1].outputs[0].text",
    ),
    "chat": (
        f"outputs = llm.chat({ASKED}, SamplingParams(temperature=0.0, max_tokens=32))",
        '"Paris" in outputs[0].outputs[0].text',
    ),
    "chat of several": (
        f"outputs = llm.chat([{ASKED}, {ASKED}], SamplingParams(temperature=0.0, max_tokens=32), use_tqdm=False)",
        "len(outputs) == 2 and outputs[0].outputs[0].text == outputs[1].outputs[0].text",
    ),
    "chat with tools": (
        f'outputs = llm.chat([{{"role": "user", "content": "What is the weather in Paris?"}}],'
        f" SamplingParams(temperature=0.0, max_tokens=64), tools=[{TOOL}])",
        '"get_weather" in outputs[0].outputs[0].text',  # as it was generated
    ),
    "template of one's own": (
        'template = "{% for m in messages %}{{ m.content }} {% endfor %}Once"\n'
        'output = llm.chat([{"role": "user", "content": "Hi."}], SamplingParams(max_tokens=2), chat_template=template)',
        'output[0].prompt == "Hi. Once"',
    ),
    "template by hand": (
        "tokenizer = llm.get_tokenizer()\n"
        f"prompt = tokenizer.apply_chat_template({ASKED}, tokenize=False, add_generation_prompt=True)\n"
        "a = llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=16))[0].outputs[0].text\n"
        f"b = llm.chat({ASKED}, SamplingParams(temperature=0.0, max_tokens=16))[0].outputs[0].text",
        "a == b",
    ),
    "choice": (
        "from quire.compat.vllm.sampling_params import GuidedDecodingParams\n"
        'guided = GuidedDecodingParams(choice=["Positive", "Negative"])\n'
        'outputs = llm.generate("Is this good?", SamplingParams(guided_decoding=guided))',
        'outputs[0].outputs[0].text in ("Positive", "Negative")',
    ),
    "regex": (
        "from quire.compat.vllm.sampling_params import StructuredOutputsParams\n"
        r'form = StructuredOutputsParams(regex=r"\w{2,8}@\w{2,8}\.com\n")'
        '\noutputs = llm.generate("An address: ", SamplingParams(structured_outputs=form, stop=["\\n"], max_tokens=50))',
        'outputs[0].outputs[0].text.endswith(".com")',
    ),
    "JSON schema": (
        "import json\nfrom quire.compat.vllm.sampling_params import StructuredOutputsParams\n"
        'schema = {"type": "object", "properties": {"brand": {"enum": ["a", "b"]}}, "required": ["brand"],'
        ' "additionalProperties": False}\n'
        "form = StructuredOutputsParams(json=schema)\n"
        'outputs = llm.generate("A car: ", SamplingParams(structured_outputs=form, max_tokens=64))',
        'json.loads(outputs[0].outputs[0].text)["brand"] in "ab"',
    ),
    "grammar": (
        "from quire.compat.vllm.sampling_params import GuidedDecodingParams\n"
        'grammar = \'root ::= "SELECT " ("a" | "b") " FROM t"\'\n'
        "params = SamplingParams(guided_decoding=GuidedDecodingParams(grammar=grammar), max_tokens=32)\n"
        'outputs = llm.generate("A query: ", params)',
        'outputs[0].outputs[0].text in ("SELECT a FROM t", "SELECT b FROM t")',
    ),
    "logits processor": (
        "token = llm.get_tokenizer().encode(' cat', add_special=False)[0]\n"
        "def only(token_ids, logits):\n"
        "    logits[:] = -1e9\n    logits[token] = 0\n    return logits\n"
        'output = llm.generate("A", SamplingParams(max_tokens=2, logits_processors=[only]))[0].outputs[0]',
        "list(output.token_ids) == [token, token]",
    ),
    "bias": (
        "token = llm.get_tokenizer().encode(' cat', add_special=False)[0]\n"
        'output = llm.generate("A", SamplingParams(max_tokens=2, logit_bias={token: 100.0}))[0].outputs[0]',
        "token in output.token_ids",
    ),
    "embeddings": (
        'outputs = llm.embed(["Hello, my name is", "Once"])\nvector = outputs[0].outputs.embedding',
        "len(outputs) == 2 and len(vector) == outputs[0].outputs.hidden_size > 0",
    ),
    "cached tokens": (
        'long = "Once upon a time there was a fox who lived in the forest. " * 8\n'
        'llm.generate(long, SamplingParams(max_tokens=1))\noutput = llm.generate(long, SamplingParams(max_tokens=1))[0]',
        "output.num_cached_tokens >= 32",
    ),
    "allowed tokens": (
        'ids = llm.get_tokenizer().encode("yes no", add_special=False)\n'
        'output = llm.generate("Yes?", SamplingParams(allowed_token_ids=ids, max_tokens=3))[0].outputs[0]',
        "set(output.token_ids) <= set(ids)",
    ),
    "bad words": (
        'output = llm.generate("Once upon a", SamplingParams(bad_words=[" time"], max_tokens=4, temperature=0))[0]',
        '" time" not in output.outputs[0].text',
    ),
    "options of loading": (
        f'llm = LLM(model="{MODEL}", tokenizer="org/name", tensor_parallel_size=1, dtype="bfloat16", seed=0,\n'
        '    gpu_memory_utilization=0.5, max_model_len=256, max_num_seqs=4, enforce_eager=True, trust_remote_code=True,\n'
        '    enable_prefix_caching=True, quantization="gguf")\n'
        'outputs = llm.generate("Once", SamplingParams(max_tokens=1))',
        "outputs[0].outputs[0].finish_reason == 'length'",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the scripts' model is the package's."""
    root = tmp_path_factory.mktemp("scripts")
    (root / MODEL).symlink_to(packaged_model())
    return root


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[vllm.LLM]:
    """The model of scripts that open it as the first one does."""
    llm = vllm.LLM(model=str(folder / MODEL), max_model_len=512)
    yield llm
    llm.close()


def test_there_are_thirty() -> None:
    assert len(SCRIPTS) >= 30


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name: str, folder: Path, opened: vllm.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    program, holds = SCRIPTS[name]
    names: dict[str, Any] = {"llm": opened}
    exec(HEAD + program, names)
    try:
        assert eval(holds, names), {k: v for k, v in names.items() if not k.startswith("__")}
    finally:
        if names["llm"] is not opened:
            names["llm"].close()


def test_a_whole_script(folder: Path) -> None:
    program, holds = SCRIPTS["basic"]
    script = f"{HEAD}{OPEN}{program}\nassert {holds}\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=folder, env=environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_answers_are_the_engines(opened: vllm.LLM, llm: LLM) -> None:
    params = vllm.SamplingParams(temperature=0.0, max_tokens=12, logprobs=1)
    (found,) = opened.generate("Once upon a time", params)
    (expected,) = llm.generate("Once upon a time", temperature=0.0, max_tokens=12)
    assert (found.outputs[0].text, list(found.outputs[0].token_ids)) == (expected.text, expected.token_ids)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"best_of": 2}, "best_of must"), ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens must"),
        ({"skip_special_tokens": False}, "skip_special_tokens must"), ({"bad_words": ["a long sentence"]}, "bad_words must"),
        ({"guided_decoding": vllm.GuidedDecodingParams(json={}, regex="a")}, "exactly one of"),
        ({"structured_outputs": vllm.StructuredOutputsParams(structural_tag="x")}, "structural_tag must"),
        ({"temperature": -1.0}, "temperature must"),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_refused(opened: vllm.LLM, wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(QuireError, match=text):
        opened.generate("x", vllm.SamplingParams(**wrong))


def test_options_that_are_not_there(opened: vllm.LLM) -> None:
    for options, text in (
        ({"enable_lora": True}, "enable_lora"), ({"hf_overrides": {"a": 1}}, "hf_overrides"),
        ({"quantization": "awq"}, "quantization"), ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match=rf"\[vllm\.LLM\] {text} must"):
            vllm.LLM(str(packaged_model()), **options)
    with pytest.raises(TypeError, match="max_model_length"):
        vllm.LLM(str(packaged_model()), max_model_length=3)
    with pytest.raises(UnsupportedError, match="multi_modal_data"):
        opened.generate({"prompt": "x", "multi_modal_data": {}})
    with pytest.raises(UnsupportedError, match="classifier"):
        opened.classify("x")
    with pytest.raises(RequestError, match="data_1 must be one text or 3"):
        opened.score(["a", "b"], ["c", "d", "e"])


def test_scores_of_a_cross_encoder(tmp_path: Path) -> None:
    """Oracles: transformers' logits; vLLM's pooler, which takes the sigmoid of a single class unless told otherwise."""
    torch = pytest.importorskip("torch", reason="needs torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    write_reranker(tmp_path / "xlm")
    query, texts = "Where is the fox?", ["In the forest.", "A red ball"]
    model = transformers.XLMRobertaForSequenceClassification.from_pretrained(tmp_path / "xlm").eval()
    llm = vllm.LLM(str(tmp_path / "xlm"), task="score")
    pairs = [llm.get_tokenizer().encode_pair(query, text).token_ids for text in texts]
    with torch.no_grad():
        logits = [float(model(torch.tensor([ids])).logits[0, 0]) for ids in pairs]
    shown = [output.outputs.score for output in llm.score(query, texts)]
    assert shown == pytest.approx([1 / (1 + exp(-logit)) for logit in logits], abs=1e-3)
    assert [output.outputs.score for output in llm.score([query] * 2, texts)] == pytest.approx(shown)
    for params in (vllm.PoolingParams(use_activation=False), vllm.PoolingParams(activation=False)):
        raw = [output.outputs.score for output in llm.score(query, texts, pooling_params=params)]
        assert raw == pytest.approx(logits, rel=1e-3)
    with pytest.raises(UnsupportedError, match="dimensions must be left out"):
        llm.score(query, texts, pooling_params=vllm.PoolingParams(dimensions=3))
    llm.close()


def test_scores_of_other_models(tmp_path: Path, opened: vllm.LLM) -> None:
    """Cosines of vectors where that is what a model is for; several classes say nothing of a pair."""
    query, texts = "Where is the fox?", ["In the forest.", "A red ball"]
    with pytest.raises(UnsupportedError, match="classifier"):
        opened.score(query, texts)
    llm = vllm.LLM(str(packaged_model()), max_model_len=256, runner="pooling", convert="embed")
    rows = np.array([output.outputs.embedding for output in llm.embed([query, *texts])])
    assert [one.outputs.score for one in llm.score(query, texts)] == pytest.approx(
        (rows[1:] @ rows[0]).tolist(), abs=1e-5
    )
    (short,) = llm.embed(query, pooling_params=vllm.PoolingParams(dimensions=8))
    expected = rows[0, :8] / np.linalg.norm(rows[0, :8])
    assert short.outputs.embedding == pytest.approx(expected.tolist(), abs=1e-5)
    (raw,) = llm.embed(query, pooling_params=vllm.PoolingParams(normalize=False))
    assert np.array(raw.outputs.embedding) / np.linalg.norm(raw.outputs.embedding) == pytest.approx(rows[0], abs=1e-5)
    llm.close()
    write_checkpoint(tmp_path / "bert", "bert-rank")
    write_word_pieces(tmp_path / "bert")
    three = vllm.LLM(str(tmp_path / "bert"))
    with pytest.raises(UnsupportedError, match="must have one class but has 3"):
        three.score(query, texts)
    three.close()
