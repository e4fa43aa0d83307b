"""Files and types that are derived from the declarations of sampling parameters.

Oracles: the written files themselves; msgspec's own schema of a body; the native class.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from quire import _native
from quire.errors import RequestError
from quire.params.parameter import Dialect
from quire.params.rules import Float, Int
from quire.params.sampling import ALIASES, PARAMETERS, SamplingParams, fields_of
from quire.server.routes.anthropic import MessagesBody
from quire.server.routes.llama_cpp.fields import CompletionBody
from quire.server.routes.native_routes import GenerateParams
from quire.server.routes.ollama.fields import Options
from quire.server.routes.openai.chat_fields import ChatBody
from quire.server.routes.openai.responses_fields import ResponsesBody
from quire.server.routes.page import page_script
from quire.server.routes.sampling_fields import sampling_of
from quire.server.worker.params import params_of, set_fields

ROOT = Path(__file__).resolve().parents[2]
USUAL = SamplingParams()
NUMBERS = {name: each for name, each in PARAMETERS.items() if each.native and isinstance(each.rule, Int | Float)}
BODIES: dict[Dialect, tuple[type[Any], dict[str, Any]]] = {
    "openai": (ChatBody, {"messages": [{}]}),
    "responses": (ResponsesBody, {"input": "x"}),
    "anthropic": (MessagesBody, {"model": "x", "messages": [{}], "max_tokens": 1}),
    "ollama": (Options, {}),
    "llama_cpp": (CompletionBody, {"prompt": "x"}),
    "generate": (GenerateParams, {}),
}


def inside(name: str) -> float:
    """Return an allowed value other than the default."""
    rule: Any = PARAMETERS[name].rule
    return next(value for value in (1, 2, 0.5) if rule.low <= value <= rule.high and value != getattr(USUAL, name))


def test_written_files_are_current() -> None:
    if not (ROOT / "ci" / "make_params.py").exists():
        pytest.skip("the tests run without the repository")
    done = subprocess.run(
        [sys.executable, "ci/make_params.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_field_is_declared_and_described() -> None:
    assert list(PARAMETERS) == [entry.name for entry in fields(SamplingParams)]
    for name, parameter in PARAMETERS.items():
        assert parameter.doc[0].isupper() or parameter.doc[0].isdigit(), name
        assert not parameter.doc.endswith("."), name
        assert not parameter.flags or bool(parameter.none) == (getattr(USUAL, name) is None), name
    assert not ALIASES.keys() & PARAMETERS.keys()
    flags = [flag for parameter in PARAMETERS.values() for flag in parameter.flags.split()]
    assert len(set(flags)) == len(flags)


@pytest.mark.parametrize("name", NUMBERS)
def test_both_sides_have_the_same_limits(name: str) -> None:
    rule: Any = PARAMETERS[name].rule
    steps = (1,) if isinstance(rule, Int) else (0.25, math.inf)
    outside = [rule.low] if getattr(rule, "open_below", False) else []
    outside += [limit + sign * step for limit, sign in ((rule.low, -1), (rule.high, 1)) for step in steps]
    for value in [value for value in outside if value != -1 or getattr(rule, "minus_one", None) is None]:
        with pytest.raises(RequestError, match=rf"\[sampling\] {name} "):
            SamplingParams(**{name: value})
        native = _native.engine.SamplingParams()
        try:
            setattr(native, name, value)
        except TypeError:  # does not fit the native type
            continue
        with pytest.raises(RequestError, match=rf"\[sampling\] {name} .*expected {rule.expected}$"):
            native.validate()


def test_an_error_says_what_is_expected() -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(temperature=-1)
    assert str(refused.value) == "[sampling] temperature -1 is out of range: expected 0 or more"


@pytest.mark.parametrize("dialect", BODIES)
def test_a_dialect_has_the_fields_of_its_parameters(dialect: Dialect) -> None:
    assert set(BODIES) == set(get_args(Dialect))
    body, rest = BODIES[dialect]
    for name, names in fields_of(dialect).items():
        if name not in NUMBERS:
            continue
        rule: Any = PARAMETERS[name].rule
        for field in names:
            found = msgspec.convert({**rest, field: inside(name)}, body)
            assert sampling_of(found)[name] == inside(name)
            too_low = rule.low if getattr(rule, "open_below", False) and not rule.optional else rule.low - 2
            for wrong in (too_low, rule.high + 1, "1", True):
                if wrong != math.inf:
                    with pytest.raises(msgspec.ValidationError, match=field):
                        msgspec.convert({**rest, field: wrong}, body)


def test_a_parameter_by_two_names_is_refused() -> None:
    body = msgspec.convert({"messages": [{}], "repeat_penalty": 1.1, "repetition_penalty": 1.1}, ChatBody)
    with pytest.raises(RequestError, match="repeat_penalty and repetition_penalty"):
        sampling_of(body)


def test_minus_one_of_other_programs_is_none() -> None:
    given = {"prompt": "x", "repeat_last_n": -1, "top_n_sigma": -1, "top_k": -1, "seed": -2}
    assert sampling_of(msgspec.convert(given, CompletionBody)) == {
        "penalty_last_n": None, "dry_penalty_last_n": 64, "top_n_sigma": None, "top_k": -1, "seed": 2**64 - 2,
    }  # fmt: skip


def test_a_message_brings_the_parameters_unchanged() -> None:
    params = SamplingParams(stop=["a", "b"], logit_bias={3: 1}, seed=7, samplers=("top_k",), top_k=5)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(set_fields(params)), strict=False)
    assert params_of(sent) == params
    assert params_of({}) == USUAL
    # The listener has checked the values, so the worker does not.
    assert params_of({"top_k": -5}).top_k == -5


def test_the_page_has_the_settings() -> None:
    script = page_script()
    settings = json.loads(script.removeprefix("export const PARAMETERS = ").removesuffix(";\n"))
    assert len(settings) == sum(parameter.page is not None for parameter in PARAMETERS.values())
    by_name = {each["name"]: each for each in settings}
    assert (by_name["top_p"]["min"], by_name["top_p"]["max"]) == (0, 1)
    assert by_name["repeat_last_n"]["min"] == -1
