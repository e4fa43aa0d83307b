"""Speculation by a head of EAGLE-3, with real models.

Oracle: the same requests without it, bit for bit.  The weights are such that the head mostly agrees with its model as far
as it knows the token; a head of random weights hardly ever does, and changes no answer either.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eagle_heads import head_config, head_tensors, write_agreeing, write_head, write_head_file
from quire.checkpoints.conversion import convert
from quire.engine import LLM, EngineConfig
from quire.engine.loading.draft import opened_draft, wants_predictor
from quire.engine.requests.results import GenerationResult
from quire.errors import QuireError, RequestError, UnsupportedError
from quire.gguf import GGUFReader
from quire.models import load_model
from quire.params.sampling import SamplingParams
from tiny_checkpoints import write_checkpoint

pytestmark = pytest.mark.python_only
PROMPTS = [
    f"{'A text of some length. ' * (i % 3)}{word} {i}" for i in range(4) for word in ("river", "tree", "cat", "sun")
]
GREEDY: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True, "logprobs": 2}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """A model's file and the folder of a head that agrees with it, by the model's name."""
    folder = tmp_path_factory.mktemp("agreeing")

    def make(name: str) -> tuple[Path, Path]:
        model, head = folder / f"{name}.gguf", folder / f"{name}-head"
        if not model.is_file():
            write_agreeing(folder / name, head, name)
            convert(folder / name, model, "f32")
        return model, head

    return make


def opened(path: Path, **options: Any) -> LLM:
    return LLM(path, threads=1, n_ctx=192, deterministic=True, **options)


def comparable(result: GenerationResult) -> object:
    return [(c.token_ids, c.text, c.logprobs, c.finish_reason) for c in result.choices]


# These cover biases, norms of heads, and recurrent states, which are rolled back.
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen35"])
@pytest.mark.parametrize("options", [{}, {"n_blocks": 14, "max_sequences": 6}])
def test_a_head_changes_no_bit(pairs: Callable[[str], tuple[Path, Path]], name: str, options: dict[str, Any]) -> None:
    model, head = pairs(name)
    asked = (SamplingParams(**GREEDY), SamplingParams(max_tokens=24, temperature=0.8, n=2, seed=3))
    with opened(model) as plain:
        expected = [[comparable(result) for result in plain.generate(PROMPTS, params)] for params in asked]
    with opened(model, draft=head, speculation="eagle", draft_max=4, draft_min=4, **options) as llm:
        assert [comparable(result) for result in llm.generate(PROMPTS, asked[0])] == expected[0]
        stats = llm.stats()
        assert [each.name for each in stats.drafters] == ["grammar", "lookup", "eagle"]
        eagle = stats.drafters[2]
        assert eagle.n_accepted_tokens > 0.2 * eagle.n_drafted_tokens > 50  # the head's vocabulary lacks some tokens
        # Later drafts, made from the head's own features, are accepted, too.
        assert sum(each > 0 for each in eagle.accepted_at) > 1
        assert [comparable(result) for result in llm.generate(PROMPTS, asked[1])] == expected[1]
        assert llm.stats().drafters[2].failure == ""


def test_a_head_of_random_weights_changes_nothing(pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    """An untrained head works, and the user may tap layers next to those that it reads."""
    model, _ = pairs("llama")
    config = head_config("llama", norm_before_residual=True, norm_output=True, fc_norm=True)
    head = write_head(tmp_path / "head", config, head_tensors(config))
    with opened(model) as plain:
        expected = [comparable(result) for result in plain.generate(PROMPTS, **GREEDY)]
    with opened(model, draft=head, draft_max=3, draft_min=3, taps=[0, 1]) as llm:  # auto, because a draft is given
        assert [comparable(result) for result in llm.generate(PROMPTS, **GREEDY)] == expected
        assert llm.stats().drafters[2].n_drafted_tokens > 20
        assert llm.hidden_states(["A text"], layers=[0, 1])[0].shape == (2, 6, 64)


def test_prefixes_forms_and_depth_by_cost(pairs: Callable[[str], tuple[Path, Path]]) -> None:
    model, head = pairs("llama")
    form: dict[str, Any] = {"regex": r"(one|two|three)( and (one|two|three)){6}", "temperature": 0.0, "max_tokens": 60}
    text = "The same beginning of a text that is longer than a block of the cache. " * 2
    with (
        opened(model) as plain,
        opened(model, draft=head) as llm,
        opened(model, draft=head, speculation="eagle", draft_min=2) as deep,
    ):
        for speculating in (llm, deep):
            for prompt in (text, text + "One", text + "Two"):  # prefix hits
                (expected,), (found,) = plain.generate(prompt, **GREEDY), speculating.generate(prompt, **GREEDY)
                assert comparable(found) == comparable(expected)
                assert (found.n_cached_tokens > 0) == (prompt != text)
            (expected,), (found,) = plain.generate("Count: ", **form), speculating.generate("Count: ", **form)
            assert comparable(found) == comparable(expected)
        assert deep.stats().drafters[2].n_accepted_tokens > 20
        (off,) = deep.generate(text, speculation="off", **GREEDY)
        assert off.choices[0].n_drafted_tokens == 0
        with pytest.raises(RequestError, match=r"'mtp'.* auto, off, grammar, lookup, eagle"):
            deep.generate("A", speculation="mtp", max_tokens=4)


def test_files_and_packed_types(pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    """Heads may be files; the model may be a folder, quantized, run by ggml's operators, or have a packed cache."""
    model, head = pairs("llama")
    file = write_head_file(head, model, tmp_path / "head.gguf")
    options: dict[str, Any] = {"speculation": "eagle", "draft_max": 4, "draft_min": 4}
    kept = {"quantize": "Q8_0", "packed_cache": str(tmp_path / "packed")}
    (tmp_path / "packed").mkdir()
    counts = []
    for source, more in ((model.with_suffix(""), {}), (model, kept), (model, kept), (model, {"kernels": "stock"})):
        with LLM(source, threads=1, n_ctx=192, **more) as plain:
            expected = [result.choices[0].token_ids for result in plain.generate(PROMPTS[:4], **GREEDY)]
        for draft in (head, file):
            with LLM(source, threads=1, n_ctx=192, draft=draft, **options, **more) as llm:
                assert [result.choices[0].token_ids for result in llm.generate(PROMPTS[:4], **GREEDY)] == expected
                counts.append(llm.stats().drafters[2].n_accepted_tokens)
    assert min(counts) > 20
    assert len(set(counts[:2])) == len(set(counts[2:6])) == 1


def test_another_vocabulary_is_rejected(pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    model, head = pairs("llama")
    words = json.loads((model.with_suffix("") / "tokenizer.json").read_text())
    tokens = words["model"]["vocab"]
    tokens["a"], tokens["b"] = tokens["b"], tokens["a"]
    other = tmp_path / "other"
    write_checkpoint(other, "llama")
    (other / "tokenizer.json").write_text(json.dumps(words))
    convert(other, tmp_path / "other.gguf", "f32")
    file = write_head_file(head, tmp_path / "other.gguf", tmp_path / "head.gguf")
    with pytest.raises(UnsupportedError, match=r"^\[draft\] head.gguf .* token 97 is"):
        opened(model, draft=file)


def test_contradictory_options_are_rejected(pairs: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    model, head = pairs("llama")
    older = write_head(
        tmp_path / "older",
        {**head_config("llama", draft_vocab_size=None, eagle_aux_hidden_state_layer_ids=None), "architectures": ["LlamaForCausalLM"]},
        head_tensors(head_config("llama")),
    )  # fmt: skip
    write_checkpoint(tmp_path / "small", "llama")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"draft": head, "speculation": "draft"}, "is an EAGLE-3 head: use 'eagle' or 'auto' in place of 'draft'"),
        ({"draft": head, "speculation": "mtp"}, "in place of 'mtp'"),
        ({"draft": tmp_path / "small", "speculation": "eagle"}, "is a model, but 'eagle'"),
        ({"draft": older}, "head of EAGLE-1 or 2 .*'draft_vocab_size'"),
        ({"speculation": "eagle"}, "speculation 'eagle' needs a draft"),
    ]
    for options, text in cases:
        with pytest.raises(QuireError, match=text):
            opened(model, **options)
    with pytest.raises(UnsupportedError, match=r"holds a head \(eagle3\)"):
        opened(head)
    assert EngineConfig(draft=str(head), speculation="eagle").speculation == "eagle"


def test_heads_are_rejected_on_devices(pairs: Callable[[str], tuple[Path, Path]]) -> None:
    class Gpu:
        kind, name = "cuda", "CUDA0"

    device: Any = Gpu()
    model, head = pairs("llama")
    config = EngineConfig(draft=str(head), speculation="eagle")
    assert not wants_predictor(config, device)
    with (
        pytest.raises(UnsupportedError, match=r"^\[draft\] .*CUDA0"),
        opened_draft(config, device, None, load_model(GGUFReader(model)), "f16"),
    ):
        pass


def test_a_head_takes_precedence_over_a_predictor(tmp_path: Path) -> None:
    """Both read features, and a model provides one kind."""
    from predictor_models import write_predicting

    write_predicting(tmp_path / "hf", "glm4moe")
    config = head_config("glm4moe", head_dim=12, eagle_aux_hidden_state_layer_ids=[1, 2, 4])
    head = write_head(tmp_path / "head", config, head_tensors(config))
    with opened(tmp_path / "hf", draft=head, speculation="auto") as llm:
        assert [each.name for each in llm.stats().drafters] == ["grammar", "lookup", "eagle"]
        llm.generate(PROMPTS[:4], **GREEDY)
        assert llm.stats().drafters[2].failure == ""
