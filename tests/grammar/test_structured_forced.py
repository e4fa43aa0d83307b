"""Forced tokens, where a grammar leaves no choice, and drafts under masks.

Oracles: greedy answers among the tokens that a rule allows, from the made-up model's documented hash; masks one by one;
and the same requests without speculation, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from decoder_client import N_VOCAB, Client, comparable, mask_of, params, prompt
from mask_rules import MaskThread, greedy_among
from quire import LLM, SamplingParams, StructuredOutputsParams
from quire._native.engine import Drafter, GrammarDrafter, LookupDrafter
from quire._native.testing import ScriptedDrafter, Speculator
from quire.engine.loading.loader import packaged_model
from quire.engine.requests.answer_forms import token_vocabulary
from quire.errors import RequestError
from quire.grammar import Compiler, grammar_source
from quire.tokenizer import Tokenizer
from structured_schemas import make_schemas

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 6},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 4}, "number": {"type": "integer", "maximum": 99}},
            "required": ["street", "number"],
            "additionalProperties": False,
        },
        "is_member": {"type": "boolean"},
    },
    "required": ["first_name", "address", "is_member"],
    "additionalProperties": False,
}


def allowed_after(answer: Sequence[int]) -> list[int]:
    """Return the tokens of an arbitrary rule: two or three free ones, then a run of one to six that follows from the last."""
    n_free = run = 0
    start = 7
    for token in answer:
        if run:
            run -= 1
            continue
        n_free += 1
        if n_free % 2 == 0:
            run, start = 1 + token % 6, token
    if run:
        return [(start * 5 + run * 11) % (N_VOCAB - 1)]
    return [token for token in range(N_VOCAB - 1) if (token + start) % 3]


@pytest.mark.parametrize("most", [0, 2, 63])
@pytest.mark.parametrize("agreement", [None, 0.7, 1.0])
@pytest.mark.parametrize("has_state", [False, True])
def test_forced_tokens_change_no_answer(most: int, agreement: float | None, has_state: bool) -> None:
    prompts = [prompt(5 + i % 9, i) for i in range(12)]
    answers = [greedy_among(allowed_after, tokens, 30) for tokens in prompts] if not has_state else []
    drafters: list[Drafter] = [GrammarDrafter(), LookupDrafter()]
    if agreement is not None:
        scripts = [a + b for a, b in zip(prompts, answers, strict=False)]
        drafters.append(ScriptedDrafter(scripts, agreement=agreement, n_vocab=N_VOCAB))
    sampling = params(max_tokens=30, logprobs=2)
    drawn = params(max_tokens=30, temperature=1.0, seed=5, n=3)
    layers = {"layers": [(0, 0)], "n_state": 6 * has_state, "n_states": 34}

    def found(client: Client) -> list[object]:
        thread = MaskThread(client, allowed_after, most)
        ids = [client.submit(tokens, sampling, grammar=True, priority=i) for i, tokens in enumerate(prompts)]
        choices = client.submit(prompts[0], drawn, grammar=True)
        doomed = client.submit(prompts[1], params(max_tokens=90), grammar=True)
        client.poll(0.01)
        client.decoder.cancel(doomed)
        client.run()
        client.decoder.close()
        thread.join(5)
        client.expect_all_free()
        if not has_state:
            assert [client.answer(id_).token_ids for id_ in ids] == answers
        return [
            comparable(client.answer(i, choice)) for i in [*ids, choices] for choice in range(1 + 2 * (i == choices))
        ]

    with Client(n_blocks=200, **layers) as client:
        plain = found(client)
    config = {"speculation": "auto", "draft_max": 5, "draft_min": 5}
    # Long steps, so that masks arrive while they run, even on a busy machine.
    with Client(n_blocks=34, step_s=0.005, drafters=drafters, config=config, **layers) as client:
        assert found(client) == plain
        stats = client.decoder.stats()
        grammar = stats.drafters[0]
        assert grammar.n_drafted_tokens >= grammar.n_accepted_tokens
        if most:
            assert grammar.n_accepted_tokens > 50
            # Tokens after an end are not drawn.
            assert grammar.n_drafted_tokens - grammar.n_accepted_tokens < 64 + 6 * 4


@pytest.mark.parametrize(
    ("options", "n_prompt", "n_steps"),
    [({}, 21, 1), ({"max_rows": 16, "max_logit_rows": 8}, 9, 1), ({"max_rows": 16, "max_logit_rows": 8}, 30, 3)],
    ids=["whole", "few-rows", "parts"],
)
def test_forced_text_begins_beside_the_prompt(options: dict[str, object], n_prompt: int, n_steps: int) -> None:
    # Few rows: the prompt has 9 of 16.  Parts: 16 and 14 of the prompt, so two tokens fit and the others come later.
    run, config = [5, 9, 2, 44, 17, 3], {"speculation": "auto", "draft_min": 6}
    with Client(max_sequences=1, drafters=[GrammarDrafter()], config=config, **options) as client:
        first = client.submit(prompt(5), params(max_tokens=1), grammar=True)
        ids = [client.submit(prompt(n_prompt, seed), params(max_tokens=7), grammar=True) for seed in (1, 2)]
        other = client.submit(prompt(n_prompt, 3), params(max_tokens=7), grammar=True, speculation="off")
        jobs = [client.decoder.wait_mask_job(10.0) for _ in range(4)]
        # The first mask comes last: until its token is drawn, the others have no place.
        for job in jobs[1:]:
            assert job is not None
            client.decoder.provide_mask(job.request_id, 0, 0, mask_of([8]), run)
        client.decoder.provide_mask(first, 0, 0, mask_of([1]))
        client.run()
        assert client.answer(first).token_ids == [1]
        for id_ in (*ids, other):
            assert client.answer(id_).token_ids == [*run, 8]
        n_off = 6 + -(-n_prompt // 16 if options else -1)
        assert client.decoder.n_steps == 1 + 2 * n_steps + n_off
        client.expect_all_free()


def test_a_token_that_the_mask_forbids_is_not_computed() -> None:
    text = prompt(9)
    right, wrong = [*text, 3, 4, 5, 6, 7], [*text, 3, 4, 9, 6, 7]
    allows_5 = [int(word) for word in mask_of([1, 5])]

    def proposed(forced: list[int], mask: list[int] | None, *scripts: list[int]) -> list[int]:
        chain = [GrammarDrafter(), *[ScriptedDrafter([s], agreement=1.0, n_vocab=N_VOCAB) for s in scripts]]
        speculator = Speculator(chain[:2], draft_max=5, draft_min=5)
        (draft,) = speculator.propose([(0, text)], 1, [forced], [] if mask is None else [mask])
        return draft

    assert proposed([3, 4], None, right) == [3, 4, 5, 6, 7]  # the others go on after the forced tokens
    assert proposed([3, 4], allows_5, right) == [3, 4, 5, 6, 7]
    assert proposed([3, 4], allows_5, wrong) == [3, 4]
    assert proposed([], [int(word) for word in mask_of([3])], wrong) == [3, 4, 9, 6, 7]  # later masks are unknown
    assert proposed([], allows_5, wrong) == []
    assert proposed([3, 4], allows_5) == [3, 4]


def test_a_drafter_that_proposes_forbidden_tokens_is_not_asked_again() -> None:
    text = prompt(9)
    drafter = ScriptedDrafter([[*text, 3, 4, 5]], agreement=1.0, n_vocab=N_VOCAB, token_read_s=1e-9)
    speculator = Speculator([drafter], draft_max=2)

    def proposed(*allowed: int) -> list[int]:
        for n_rows in (1, 1, 2, 3):
            speculator.took(n_rows, 1.0 + 0.1 * n_rows)
        mask = [int(word) for word in mask_of(allowed)]
        (draft,) = speculator.propose([(0, text)], 1, masks=[mask], n_prompt=5)
        return draft

    proposed(3)  # the cost of a step is unknown before the first
    assert proposed(3) == [3, 4]
    for _ in range(60):
        assert proposed(4) == []
    assert proposed(3) == []  # not worth its time


def test_forced_tokens_are_checked() -> None:
    with Client() as client:
        id_ = client.submit(prompt(6), params(max_tokens=3), grammar=True)
        assert client.decoder.wait_mask_job(10.0) is not None
        with pytest.raises(RequestError, match="64"):
            client.decoder.provide_mask(id_, 0, 0, mask_of([1]), [3, 64])
        client.decoder.provide_mask(id_, 0, 0, mask_of([1]), [3, 4])
        client.run()
        assert client.answer(id_).token_ids == [3, 4, 1]


# With real grammars


def test_filling_ahead_equals_filling_step_by_step() -> None:
    tokenizer = Tokenizer.from_gguf(packaged_model())
    n_vocab = len(tokenizer.vocabulary.texts)
    vocabulary = token_vocabulary(tokenizer, n_vocab)
    compiler = Compiler(lambda: vocabulary)
    schemas = [SCHEMA, {"const": "as long as it is " * 20}, *make_schemas(12)]
    n_forced = 0
    for i, schema in enumerate(schemas):
        random = np.random.default_rng(i)
        form = StructuredOutputsParams(json=schema, disable_any_whitespace=i % 2 == 0)
        grammar = compiler.compile(grammar_source(form))
        ahead, slow = grammar.matcher(), grammar.matcher()
        mask, expected = np.zeros((2, (n_vocab + 31) // 32), np.uint32)
        for _ in range(40):
            forced = ahead.fill_ahead(mask, 9)
            assert len(forced) <= 9
            for token in forced:
                slow.fill(expected)
                np.testing.assert_array_equal(expected, mask_of([token], n_vocab))
                slow.advance(token)
            slow.fill(expected)
            np.testing.assert_array_equal(mask, expected)
            n_forced += len(forced)
            token = int(random.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))))
            if token in tokenizer.eog_ids:
                break
            ahead.advance(token)
            slow.advance(token)
    assert n_forced > 100


def test_rolling_back_equals_never_having_advanced() -> None:
    """Compare a matcher that followed drafted tokens, with ends among them, with one that did not."""
    tokenizer = Tokenizer.from_gguf(packaged_model())
    n_vocab = len(tokenizer.vocabulary.texts)
    vocabulary = token_vocabulary(tokenizer, n_vocab)
    compiler = Compiler(lambda: vocabulary)
    n_turned = n_ended = 0
    for i, schema in enumerate([SCHEMA, {"type": "boolean"}, *make_schemas(10)]):
        random = np.random.default_rng(i)
        grammar = compiler.compile(grammar_source(StructuredOutputsParams(json=schema)))
        turning, straight = grammar.matcher(), grammar.matcher()
        mask, expected = np.zeros((2, (n_vocab + 31) // 32), np.uint32)
        answer: list[int] = []

        def drawn(mask: Any, random: np.random.Generator = random) -> int:
            return int(random.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))))

        for _ in range(30):
            turning.fill(mask)
            straight.fill(expected)
            np.testing.assert_array_equal(mask, expected)
            hoped: list[int] = []
            for _ in range(random.integers(0, 5)):
                hoped.append(drawn(mask))
                turning.advance(hoped[-1])
                if hoped[-1] in tokenizer.eog_ids:
                    n_ended += 1
                    break
                turning.fill(mask)
            token = hoped[0] if hoped and random.random() < 0.5 else drawn(expected)
            if token in tokenizer.eog_ids:
                break
            answer.append(token)
            n_turned += hoped[:1] != [token]
            turning.follow(len(answer) - 1, [token])
            straight.advance(token)
    assert n_turned > 50
    assert n_ended > 5


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    with LLM(threads=1, n_ctx=512, deterministic=True, speculation="off") as llm:
        yield llm


@pytest.mark.parametrize("kind", [None, "grammar", "auto"])
def test_json_answers_equal_those_without_speculation(plain: LLM, kind: Any) -> None:
    form = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    sampling = SamplingParams(max_tokens=120, temperature=1.0, seed=7, n=2, logprobs=1, structured_outputs=form)
    prompts = [f"Who is number {i}? " for i in range(6)]

    def answers(llm: LLM) -> list[object]:
        results = llm.generate(prompts, sampling)
        return [(c.token_ids, c.text, c.logprobs, c.finish_reason) for result in results for c in result.choices]

    expected = answers(plain)
    assert all(stats.n_drafted_tokens == 0 for stats in plain.stats().drafters)
    with LLM(threads=1, n_ctx=512, deterministic=True, speculation=kind, draft_min=4) as llm:
        assert answers(llm) == expected
        grammar = llm.stats().drafters[0]
        assert grammar.name == "grammar"
        assert grammar.n_accepted_tokens == grammar.n_drafted_tokens > 100
