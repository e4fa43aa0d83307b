"""The model ``quire`` of the evaluation harness ``lm-eval``, which must be installed.

``python -m quire.integrations.lm_eval run --model quire --model_args pretrained=model.gguf --tasks hellaswag`` is the
harness's own command with this model; programs call ``lm_eval.simple_evaluate(model=QuireLM("model.gguf"))``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import RequestError
from ..params.sampling import SamplingParams
from .shared import Model, absent, engine_options, opened

try:
    import lm_eval.models  # noqa: F401  # its registry would stay empty otherwise, but for ours
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ImportError as error:
    raise absent("lm_eval", "lm-eval", error) from error

__all__ = ["QuireLM"]

_LOG = logging.getLogger("quire")
_PLACE = "lm_eval"
_MOST_TOKENS = 256  # length limit of answers, unless the task has one


@register_model("quire")
class QuireLM(TemplateLM):
    """A model in this process.

    Contexts that are too long lose their beginning, which is logged.

    Args:
        pretrained: A ``quire.LLM``, or a GGUF file or checkpoint folder to open; None for the small model in the
            package.
        batch_size: Requests passed to the engine at once.  The engine forms its own batches, so results do not depend
            on it.
        options: Options of ``quire.LLM``.  An unknown one is a TypeError.
    """

    def __init__(
        self,
        pretrained: Model = None,
        *,
        batch_size: int | str = 64,
        max_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        engine, rest = engine_options(options)
        if rest:
            raise TypeError(f"QuireLM() got an unexpected keyword argument {next(iter(rest))!r}")
        self.llm = opened(pretrained, engine)
        self._n_at_once = 64 if isinstance(batch_size, str) and batch_size.startswith("auto") else int(batch_size)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        tokenizer = self.llm.tokenizer
        found = tokenizer.eos_id if tokenizer.eos_id is not None else tokenizer.bos_id
        if found is None:
            raise RequestError(f"[{_PLACE}] the vocabulary has no end-of-text token")
        return found

    @property
    def prefix_token_id(self) -> int:
        """The token that comes before a text without a context."""
        first = self.llm.tokenizer.bos_id
        return self.eot_token_id if first is None else first

    @property
    def max_length(self) -> int:
        """Most tokens of context and continuation together; the engine generates one more."""
        return self.llm.n_ctx - 1

    @property
    def tokenizer_name(self) -> str:
        """The name that distinguishes cached requests."""
        return f"quire-{self.llm.model_name}"

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the template that ``apply_chat_template`` renders.  RequestError for another one."""
        if isinstance(chat_template, str):
            raise RequestError(f"[{_PLACE}] chat_template {chat_template!r:.80} is not supported: only the model's own")
        return (self.llm.tokenizer.chat_template or "") if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Render a conversation as text."""
        if not add_generation_prompt:
            raise RequestError(f"[{_PLACE}] gen_prefix (a given beginning of the answer) is not supported")
        return self.llm.tokenizer.apply_chat_template(chat_history, add_generation_prompt=True, tokenize=False)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the ids of a text, with the tokens that begin a text unless it has them."""
        tokenizer = self.llm.tokenizer
        ids = tokenizer.encode(string, add_special=False, parse_special=True)
        begun = add_special_tokens is None and bool(ids) and ids[0] == tokenizer.bos_id
        if begun or add_special_tokens is False:
            return ids
        return tokenizer.encode(string, add_special=True, parse_special=True)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        scored: list[tuple[float, bool]] = []
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
        for part in self._parts(requests, "scoring", disable_tqdm):
            prompts = [self._fitting(context + continuation, self.max_length) for _, context, continuation in part]
            for (text, _, continuation), result in zip(part, self.llm.generate(prompts, params), strict=True):
                n = len(continuation)
                if n >= len(result.prompt_token_ids):
                    raise RequestError(
                        f"[{_PLACE}] a continuation of {n} tokens does not fit into the context of {self.llm.n_ctx}"
                    )
                entries = [entry for entry in (result.prompt_logprobs or [])[-n:] if entry is not None] if n else []
                greedy = all(entry.top[0][0] == entry.token_id for entry in entries)
                scored.append((sum(entry.logprob for entry in entries), greedy))
                if text is not None:
                    self.cache_hook.add_partial("loglikelihood", text, scored[-1])
        return scored

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return log-probabilities of whole texts, in windows as long as the context, each after one earlier token."""
        windows, counts = [], []
        for request in requests:
            (text,) = request.args
            ids = self.tok_encode(text, add_special_tokens=False)
            made = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length - 1, 1)
            pairs = [make_disjoint_window(pair) for pair in made]
            windows += [(None, *pair) for pair in pairs]
            counts.append(len(pairs))
        scores = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        sums = [sum(next(scores)[0] for _ in range(n)) for n in counts]
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return answers, each with its task's options.  TypeError for options that are not in ``SamplingParams``."""
        texts: list[str] = []
        for part in self._parts(requests, "answering", disable_tqdm):
            params = [_params(request.args[1]) for request in part]
            prompts = [
                self._fitting(self.tok_encode(request.args[0]), self.llm.n_ctx - (entry.max_tokens or 1))
                for request, entry in zip(part, params, strict=True)
            ]
            for request, result in zip(part, self.llm.generate(prompts, params), strict=True):
                texts.append(result.text)
                self.cache_hook.add_partial("generate_until", request.args, result.text)
        return texts

    def _parts(self, requests: Sequence[Any], doing: str, quiet: bool) -> Iterable[Sequence[Any]]:
        starts = range(0, len(requests), self._n_at_once)
        for start in tqdm(starts, desc=f"quire: {doing}", disable=quiet):
            yield requests[start : start + self._n_at_once]

    def _fitting(self, ids: list[int], n: int) -> list[int]:
        if n < 1:
            raise RequestError(
                f"[{_PLACE}] the answer of a task does not fit into the context of {self.llm.n_ctx} tokens: raise n_ctx"
            )
        if len(ids) > n:
            _LOG.warning("[%s] %d tokens were cut to the last %d, which fit into the context", _PLACE, len(ids), n)
        return ids[-n:]


def _params(given: dict[str, Any]) -> SamplingParams:
    """Convert the harness's sampling options to ``SamplingParams``."""
    fields = dict(given)
    until = fields.pop("until", None) or ()
    length = [fields.pop(name) for name in ("max_gen_toks", "max_new_tokens", "max_tokens") if name in fields]
    draws = fields.pop("do_sample", None)
    if draws is False:
        fields["temperature"] = 0.0
    fields.setdefault("temperature", 1.0 if draws else 0.0)
    return SamplingParams(max_tokens=length[0] if length else _MOST_TOKENS, stop=until, **fields)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
