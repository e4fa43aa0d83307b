"""Limits of sampling parameters: equal in the public and the native form, with errors that name the field."""

from __future__ import annotations

import math

import pytest
from quire import _native
from quire._native.engine import VocabInfo, default_sampling_order
from quire.errors import RequestError
from quire.params.sampling import DEFAULT_SAMPLERS, PARAMETERS, SamplingParams
from quire.params.stages import LLAMA_CPP_ORDER

Native = _native.engine.SamplingParams
ALL_NUMBERS = [math.nan, math.inf, -math.inf, -(2**63), 2**63, 10**400]
INTEGERS = {
    "max_tokens": (1, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
    "n": (1, 16),
    "top_k": (0, 2**31 - 1),
    "min_keep": (0, 2**31 - 1),
    "mirostat": (0, 2),
    "penalty_last_n": (0, 2**31 - 1),
    "dry_allowed_length": (1, 2**31 - 1),
    "dry_penalty_last_n": (0, 2**31 - 1),
    "logprobs": (0, 2**31 - 1),
    "prompt_logprobs": (0, 2**31 - 1),
    "seed": (0, 2**64 - 1),
}
FLOATS = {
    "temperature": (0.0, math.inf),
    "dynatemp_range": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "tfs_z": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "mirostat_tau": (0.0, math.inf),
    "mirostat_eta": (0.0, math.inf),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "dry_multiplier": (0.0, math.inf),
    "dry_base": (1.0, math.inf),
}
MINUS_ONE = ("top_k", "seed", "logprobs", "prompt_logprobs")  # -1 stands for another value
POSITIVE = ["dynatemp_exponent", "top_n_sigma", "repetition_penalty"]
OPTIONAL = [
    "max_tokens",
    "top_n_sigma",
    "penalty_last_n",
    "dry_penalty_last_n",
    "allowed_token_ids",
    "seed",
    "logprobs",
]
OPTIONAL += ["prompt_logprobs"]


def refuses_natively(name: str, value: object) -> bool:
    params = Native()
    try:
        setattr(params, name, value)
        params.validate()
    except RequestError as error:
        return name in str(error)
    except TypeError:  # the wrong type, or too large for it
        return True
    return False


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_limits(name):
    low, high = INTEGERS[name]
    for good in (low, high):
        if name != "min_tokens" or good == low:
            assert getattr(SamplingParams(**{name: good}), name) == good
    bad = [low - 1, high + 1, 1.0, "1", True, [], *ALL_NUMBERS]
    bad = [value for value in bad if not (isinstance(value, int) and low <= value <= high and value is not True)]
    for value in [value for value in bad if name not in MINUS_ONE or value != -1]:
        with pytest.raises(RequestError, match=rf"^\[sampling\] {name}\b"):
            SamplingParams(**{name: value})
    assert refuses_natively(name, low - 1)
    assert refuses_natively(name, high + 1)


@pytest.mark.parametrize("name", [*FLOATS, *POSITIVE])
def test_float_limits(name):
    low, high = FLOATS.get(name, (1e-6, math.inf))
    for good in (low, 2.0 if high == math.inf else high):
        assert getattr(SamplingParams(**{name: good}), name) == good
    bad = [low - 0.01, "0.5", True, None, {}, *ALL_NUMBERS]
    bad += [] if high == math.inf else [high + 0.01]
    for value in bad:
        if (value is None and name in OPTIONAL) or (value == 2**63 and high == math.inf):
            continue
        with pytest.raises(RequestError, match=rf"^\[sampling\] {name}\b"):
            SamplingParams(**{name: value})
    for value in (low - 0.01, math.nan, math.inf):
        assert refuses_natively(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", ["x"] * 17),
        ("stop", "y" * 1025),
        ("stop", ["é" * 513]),
        ("stop", [""]),
        ("dry_sequence_breakers", ["x"] * 65),
        ("dry_sequence_breakers", ["x" * 129]),
        ("dry_sequence_breakers", [""]),
        ("stop_token_ids", [0] * 1025),
        ("allowed_token_ids", []),
        ("samplers", ["top_k", "top_k"]),
        ("samplers", ["mirostat", "top_k"]),
        ("samplers", ["top_q"]),
    ],
)
def test_list_limits(name, value):
    with pytest.raises(RequestError, match=rf"^\[sampling\] {name}\b"):
        SamplingParams(**{name: value})
    assert refuses_natively(name, [value] if isinstance(value, str) else value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", b"x"),
        ("stop", [1]),
        ("stop", 5),
        ("stop", ["\ud800"]),
        ("stop_token_ids", ["1"]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", {1: 2}),
        ("bad_token_ids", 4),
        ("allowed_token_ids", [2**31]),
        ("logit_bias", [(1, 2.0)]),
        ("logit_bias", {"1": 2.0}),
        ("logit_bias", {1: 101}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {True: 1.0}),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
        ("ignore_eos", 1),
        ("processed_logprobs", 1),
        ("include_stop_str_in_output", None),
        ("samplers", "top_k"),
        ("samplers", [3]),
        ("logits_processors", [3]),
        ("dry_sequence_breakers", "\n"),
    ],
)
def test_wrong_types_are_refused(name, value):
    with pytest.raises(RequestError, match=rf"^\[sampling\] {name}\b"):
        SamplingParams(**{name: value})


def test_native_bias_limits():
    assert refuses_natively("logit_bias", [(1, 1.0), (1, 2.0)])
    assert refuses_natively("logit_bias", [(i, 1.0) for i in range(1025)])
    assert refuses_natively("logit_bias", [(1, 100.5)])
    assert not refuses_natively("logit_bias", [(1, 100.0), (2, -100.0)])


def test_fields_that_depend_on_each_other():
    with pytest.raises(RequestError, match="min_tokens"):
        SamplingParams(max_tokens=3, min_tokens=4)
    native = Native()
    native.max_tokens, native.min_tokens = 3, 4
    with pytest.raises(RequestError, match="min_tokens"):
        native.validate()


STAGED = {name: parameter.stage for name, parameter in PARAMETERS.items() if parameter.stage}


@pytest.mark.parametrize("name", STAGED)
def test_no_option_is_silently_ignored(name):
    rule, stage = PARAMETERS[name].rule, STAGED[name]
    value = next(v for v in (2, 1, 0.5) if rule.low <= v <= rule.high and v != getattr(SamplingParams(), name))
    others = [each for each in DEFAULT_SAMPLERS if each != stage]
    assert SamplingParams(samplers=others).samplers == tuple(others)
    with pytest.raises(RequestError, match=f"samplers .*'{stage}'"):
        SamplingParams(samplers=others, **{name: value})
    native = Native()
    native.samplers = others
    native.validate()
    setattr(native, name, value)
    with pytest.raises(RequestError, match=f"samplers .*'{stage}'"):
        native.validate()


def test_every_stage_has_parameters():
    assert set(STAGED.values()) == set(DEFAULT_SAMPLERS)
    assert {*LLAMA_CPP_ORDER, "adaptive_p", "mirostat"} == set(DEFAULT_SAMPLERS)


def test_ids_must_be_of_the_vocabulary():
    vocab = VocabInfo(10, [9], [b"x"] * 10)
    fields = {"stop_token_ids": [10], "bad_token_ids": [11], "allowed_token_ids": [3, 10], "logit_bias": [(10, 1.0)]}
    for name, value in fields.items():
        params = Native()
        setattr(params, name, value)
        params.validate()
        with pytest.raises(RequestError, match=f"{name} "):
            params.validate(vocab)
    with pytest.raises(RequestError, match="eog_ids"):
        VocabInfo(10, [10], [b"x"] * 10)
    with pytest.raises(RequestError, match="token_bytes"):
        VocabInfo(10, [], [b"x"] * 9)


def test_defaults_are_the_native_ones():
    public, native = SamplingParams(), Native()
    for name in public.__dataclass_fields__:
        if not PARAMETERS[name].native or name == "logit_bias":
            continue
        mine, theirs = getattr(public, name), getattr(native, name)
        assert theirs == (
            pytest.approx(mine) if isinstance(mine, float) else list(mine) if isinstance(mine, tuple) else mine
        )
    assert list(DEFAULT_SAMPLERS) == default_sampling_order()


def test_keyword_only_and_frozen():
    with pytest.raises(TypeError):
        SamplingParams(3)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        SamplingParams().top_k = 3  # type: ignore[misc]
    assert SamplingParams(stop="a").stop == ("a",)
