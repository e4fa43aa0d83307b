"""What a request asks of sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Protocol

from ..errors import RequestError
from .call_names import name_call
from .structured import StructuredOutputsParams

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    LogitsProcessor = Callable[[Sequence[int], npt.NDArray[np.float32]], npt.NDArray[np.float32]]

__all__ = ["DEFAULT_SAMPLERS", "SamplingParams"]

DEFAULT_SAMPLERS = (
    "penalties",
    "dry",
    "temperature",
    "top_n_sigma",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "tfs_z",
    "xtc",
    "mirostat",
)
"""The stages of the sampling chain, in the default order."""

_SPECULATIONS = ("auto", "off", "draft", "mtp", "eagle", "lookup", "grammar")
_INT32_MAX = 2**31 - 1
_INFINITY = math.inf


def _refuse(name: str, reason: str) -> RequestError:
    return RequestError(f"[sampling] {name} must {reason}")


class _Rule(Protocol):
    def check(self, name: str, value: object) -> object: ...


@dataclass(frozen=True)
class _Int:
    lowest: int = 0
    highest: int = _INT32_MAX
    optional: bool = False

    def check(self, name: str, value: object) -> object:
        if value is None and self.optional:
            return value
        if not isinstance(value, int) or isinstance(value, bool):
            raise _refuse(name, f"be an int but is {value!r:.80}")
        if not self.lowest <= value <= self.highest:
            raise _refuse(name, f"be from {self.lowest} to {self.highest} but is {_short(value)}")
        return value


@dataclass(frozen=True)
class _MinusOne:
    """A rule where -1, which other engines write for it, stands for a value that has a name of its own here."""

    rule: _Int
    meant: int | None

    def check(self, name: str, value: object) -> object:
        return self.rule.check(name, self.meant if value == -1 and not isinstance(value, float) else value)


@dataclass(frozen=True)
class _Float:
    lowest: float = 0.0
    highest: float = _INFINITY
    open_below: bool = False
    optional: bool = False

    def check(self, name: str, value: object) -> object:
        if value is None and self.optional:
            return value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _refuse(name, f"be a number but is {value!r:.80}")
        # A number that a float32 cannot hold counts as infinite.
        if not abs(value) <= 3.4e38:
            raise _refuse(name, f"be finite but is {_short(value)}")
        if value < self.lowest or value > self.highest or (self.open_below and value == self.lowest):
            limit = f"{'above' if self.open_below else 'at least'} {self.lowest:g}"
            if self.highest != _INFINITY:
                limit += f" and at most {self.highest:g}"
            raise _refuse(name, f"be {limit} but is {_short(value)}")
        return float(value)


@dataclass(frozen=True)
class _Bool:
    def check(self, name: str, value: object) -> object:
        if not isinstance(value, bool):
            raise _refuse(name, f"be a bool but is {value!r:.80}")
        return value


@dataclass(frozen=True)
class _Strings:
    n: int
    n_bytes: int
    single: bool = False  # one string stands for a list of it

    def check(self, name: str, value: object) -> object:
        if self.single and isinstance(value, str):
            value = (value,)
        items = _items(name, value, self.n)
        for item in items:
            if not isinstance(item, str):
                raise _refuse(name, f"have strings but has {item!r:.80}")
            try:
                size = len(item.encode())
            except UnicodeEncodeError as error:
                raise _refuse(name, f"have valid Unicode but has {item!r:.80}") from error
            if not 1 <= size <= self.n_bytes:
                raise _refuse(name, f"have strings of 1 to {self.n_bytes} bytes but has one of {size}")
        return items


@dataclass(frozen=True)
class _Ids:
    n: int = _INT32_MAX
    optional: bool = False

    def check(self, name: str, value: object) -> object:
        if value is None and self.optional:
            return value
        items = _items(name, value, self.n)
        if self.optional and not items:
            raise _refuse(name, "have an id but is empty")
        for item in items:
            _Int().check(name, item)
        return items


@dataclass(frozen=True)
class _Bias:
    def check(self, name: str, value: object) -> object:
        if not isinstance(value, Mapping):
            raise _refuse(name, f"be a mapping of token ids to numbers but is {value!r:.80}")
        if len(value) > 1024:
            raise _refuse(name, f"have at most 1024 ids but has {len(value)}")
        for key in value:
            _Int().check(name, key)
        return {key: _Float(-100.0, 100.0).check(name, bias) for key, bias in value.items()}


@dataclass(frozen=True)
class _Samplers:
    def check(self, name: str, value: object) -> object:
        items = _items(name, value, len(DEFAULT_SAMPLERS))
        for item in items:
            if item not in DEFAULT_SAMPLERS:
                raise _refuse(name, f"be of {', '.join(DEFAULT_SAMPLERS)} but has {item!r:.80}")
            if items.count(item) > 1:
                raise _refuse(name, f"have each name once but has {item!r} twice")
        if "mirostat" in items and items[-1] != "mirostat":
            raise _refuse(name, "have 'mirostat' last: it is what draws")
        return items


@dataclass(frozen=True)
class _Callables:
    def check(self, name: str, value: object) -> object:
        items = _items(name, value, 64)
        for item in items:
            if not callable(item):
                raise _refuse(name, f"have callables but has {item!r:.80}")
        return items


@dataclass(frozen=True)
class _Structured:
    def check(self, name: str, value: object) -> object:
        if value is not None and not isinstance(value, StructuredOutputsParams):
            raise _refuse(name, f"be StructuredOutputsParams but is {value!r:.80}")
        return value


@dataclass(frozen=True)
class _Speculation:
    def check(self, name: str, value: object) -> object:
        if value is not None and value not in _SPECULATIONS:
            raise _refuse(name, f"be one of {', '.join(_SPECULATIONS)} but is {value!r:.80}")
        return value


@dataclass(frozen=True)
class _Text:
    def check(self, name: str, value: object) -> object:
        if value is not None and not isinstance(value, str):
            raise _refuse(name, f"be a string but is {value!r:.80}")
        return value


def _items(name: str, value: object, limit: int) -> tuple[object, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _refuse(name, f"be a list but is {value!r:.80}")
    items = tuple(value)
    if len(items) > limit:
        raise _refuse(name, f"have at most {limit} entries but has {len(items)}")
    return items


def _short(value: float) -> str:
    # Python refuses to print whole numbers of thousands of digits.
    return f"{value}" if isinstance(value, float) or abs(value) < 10**30 else "a number of more than 30 digits"


_RULES: dict[str, _Rule] = {
    "max_tokens": _Int(1, optional=True),
    "min_tokens": _Int(),
    "ignore_eos": _Bool(),
    "stop": _Strings(16, 1024, single=True),
    "stop_token_ids": _Ids(1024),
    "include_stop_str_in_output": _Bool(),
    "n": _Int(1, 16),
    "temperature": _Float(),
    "dynatemp_range": _Float(),
    "dynatemp_exponent": _Float(open_below=True),
    "top_k": _MinusOne(_Int(), 0),
    "top_p": _Float(highest=1.0),
    "min_p": _Float(highest=1.0),
    "typical_p": _Float(highest=1.0),
    "tfs_z": _Float(highest=1.0),
    "top_n_sigma": _Float(open_below=True, optional=True),
    "xtc_probability": _Float(highest=1.0),
    "xtc_threshold": _Float(highest=1.0),
    "min_keep": _Int(),
    "mirostat": _Int(0, 2),
    "mirostat_tau": _Float(),
    "mirostat_eta": _Float(),
    "repetition_penalty": _Float(open_below=True),
    "presence_penalty": _Float(-2.0, 2.0),
    "frequency_penalty": _Float(-2.0, 2.0),
    "penalty_last_n": _Int(optional=True),
    "dry_multiplier": _Float(),
    "dry_base": _Float(1.0),
    "dry_allowed_length": _Int(1),
    "dry_penalty_last_n": _Int(optional=True),
    "dry_sequence_breakers": _Strings(64, 128),
    "logit_bias": _Bias(),
    "allowed_token_ids": _Ids(optional=True),
    "bad_token_ids": _Ids(),
    "seed": _MinusOne(_Int(0, 2**64 - 1, optional=True), None),
    "logprobs": _Int(0, 20, optional=True),
    "prompt_logprobs": _Int(0, 20, optional=True),
    "processed_logprobs": _Bool(),
    "samplers": _Samplers(),
    "logits_processors": _Callables(),
    "structured_outputs": _Structured(),
    "speculation": _Speculation(),
    "prediction": _Text(),
}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next tokens are drawn and when to stop.  Immutable; every field is checked here.

    The defaults leave the model's distribution as it is: temperature 1, nothing truncated, nothing penalized.  Raises
    ``RequestError`` naming the field that does not hold.  Types are strict: a bool is no int, NaN is no number.

    Length and stopping
        ``max_tokens``: tokens to generate; ``None`` goes on until the model ends or its context is full.
        ``min_tokens``: end-of-generation and stop tokens cannot be drawn before so many.
        ``ignore_eos``: end-of-generation tokens cannot be drawn at all.
        ``stop``: a string or at most 16 strings (of at most 1024 bytes) that end the text; not part of it unless
        ``include_stop_str_in_output``.  ``stop_token_ids``: ids that end it.  ``n``: choices, at most 16.
    Temperature and truncation (probabilities are renormalized between stages; at least one token always stays)
        ``temperature``: 0 is greedy, of equal logits the lowest id.
        ``dynatemp_range``, ``dynatemp_exponent``: dynamic temperature between ``temperature`` +- range by entropy.
        ``top_k``: 0 (or -1) is off.  ``top_p``: nucleus (Holtzman et al. 2020).  ``min_p`` (Nguyen et al. 2024).
        ``typical_p`` (Meister et al. 2023).  ``tfs_z``: tail free (Phénix and Egan 2019).
        ``top_n_sigma`` (Tang et al. 2024): ``None`` is off.
        ``xtc_probability``, ``xtc_threshold``: exclude top choices.
        ``min_keep``: ``top_p``, ``min_p``, ``typical_p`` and ``tfs_z`` keep so many where they are there, and where
        fewer would be left no top choice is excluded; ``top_k`` and the others do not look at it, as in llama.cpp.
        ``mirostat`` 1 or 2 with ``mirostat_tau`` (bits), ``mirostat_eta`` (Basu et al. 2021); it draws from what the
        stages before it left, so leave those off for the published algorithm.
    Penalties
        ``repetition_penalty`` (llama.cpp's ``repeat_penalty``; Keskar et al. 2019): for tokens of prompt and answer.
        ``presence_penalty``, ``frequency_penalty``: for tokens of the answer, as OpenAI defines them; -2 to 2.
        ``penalty_last_n`` (llama.cpp's ``repeat_last_n``): all three look at so many last tokens; ``None`` at all.
        ``dry_multiplier`` (0 is off), ``dry_base``, ``dry_allowed_length``, ``dry_penalty_last_n``,
        ``dry_sequence_breakers``: against repetition of sequences; breakers are strings.
    Single tokens (applied before every stage)
        ``logit_bias``: added to the logits, -100 to 100 for at most 1024 ids.  ``allowed_token_ids``: nothing else is
        drawn.  ``bad_token_ids``: never drawn.
    The rest
        ``seed``: the same seed gives the same tokens in any slot of any batch; ``None`` (or -1) draws one.
        ``logprobs``: with so many alternatives (at most 20) beside each drawn token's log-probability;
        ``prompt_logprobs`` the same for the prompt.  Both are of the model's own distribution, before penalties,
        temperature and truncation.  ``processed_logprobs``: those of drawn tokens are of what was drawn from, after
        all of these (llama.cpp's ``post_sampling_probs``); alternatives are then tokens that could have been drawn.
        ``samplers``: the names and order of the stages.  A stage whose options are set must be among them.
        ``logits_processors``: callables ``f(token_ids, logits) -> logits`` over prompt and generated ids and float32
        ``[n_vocab]``, run before everything else; ``-inf`` excludes a token.  They cost: each token of this request
        waits for a thread of Python and a copy of ``n_vocab`` floats there and back (other requests go on), and
        log-probabilities are then of the processed logits.
        ``structured_outputs``: the form of the answer (``StructuredOutputsParams``).  Tokens that would leave it are
        excluded before the stages, and generation can only end where the form is complete: ``min_tokens`` yields to
        that, and ``ignore_eos`` must not be set.
        ``speculation``: who proposes tokens, ``"auto"``, ``"off"``, ``"draft"``, ``"mtp"``, ``"eagle"``, ``"lookup"``
        or ``"grammar"``; None: as the engine was told (``docs/speculation.md``).  ``prediction``: what the text is
        expected to be, where that is known for the most part; it is looked up unless ``speculation`` says otherwise.
        Neither changes what is drawn.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    n: int = 1

    temperature: float = 1.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    tfs_z: float = 1.0
    top_n_sigma: float | None = None
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    min_keep: int = 0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int | None = None
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] | None = None
    bad_token_ids: Sequence[int] = ()

    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    processed_logprobs: bool = False
    samplers: Sequence[str] = DEFAULT_SAMPLERS
    logits_processors: Sequence[LogitsProcessor] = ()
    structured_outputs: StructuredOutputsParams | None = None
    speculation: str | None = None
    prediction: str | None = None

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = _RULES[entry.name].check(entry.name, self.__dict__[entry.name])
            object.__setattr__(self, entry.name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _refuse("min_tokens", f"be at most max_tokens, {self.max_tokens}, but is {self.min_tokens}")
        if self.structured_outputs is not None and self.ignore_eos:
            raise _refuse("ignore_eos", "not come with structured_outputs, which says where an answer ends, but does")
        for stage in self._active_stages():
            if stage not in self.samplers:
                raise _refuse("samplers", f"have {stage!r}, whose options are set")

    def _active_stages(self) -> list[str]:
        active = {
            "penalties": (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0),
            "dry": self.dry_multiplier != 0.0,
            "temperature": self.temperature != 1.0 or self.dynatemp_range > 0.0,
            "top_n_sigma": self.top_n_sigma is not None,
            "top_k": self.top_k > 0,
            "top_p": self.top_p < 1.0,
            "min_p": self.min_p > 0.0,
            "typical_p": self.typical_p < 1.0,
            "tfs_z": self.tfs_z < 1.0,
            "xtc": self.xtc_probability > 0.0,
            "mirostat": self.mirostat != 0,
        }
        return [stage for stage in DEFAULT_SAMPLERS if active[stage]]


name_call(SamplingParams)
