"""llama-cpp-python's ``Llama``, on Quire's engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...engine import LLM
from ...errors import LoadError, RequestError, UnsupportedError
from ...params.chat_options import ChatFields
from ...params.request_fields import RequestFields
from ...params.structured import StructuredOutputsParams
from .options import engine_options, pretrained
from .processors import processors_of
from .shapes import chat_chunks, chat_completion, completion, completion_chunks, usage

if TYPE_CHECKING:
    from ...chat import Messages
    from .caches import LlamaRAMCache
    from .grammar import LlamaGrammar

__all__ = ["Llama"]

# llama-cpp-python's defaults; a chat's temperature is another one.
_DEFAULTS: Mapping[str, Any] = {
    "temperature": 0.8, "top_p": 0.95, "min_p": 0.05, "typical_p": 1.0, "top_k": 40, "repeat_penalty": 1.0,
    "frequency_penalty": 0.0, "presence_penalty": 0.0, "tfs_z": 1.0, "mirostat_mode": 0, "mirostat_tau": 5.0,
    "mirostat_eta": 0.1, "stop": (), "seed": None, "logit_bias": None, "grammar": None, "logits_processor": None,
    "stopping_criteria": None,
}  # fmt: skip
_CHAT_TEMPERATURE = 0.2
_NAMES = {"repeat_penalty": "repetition_penalty", "mirostat_mode": "mirostat"}
_ANY_SEED = 0xFFFFFFFF
_RECENT = 64  # tokens that penalties apply to


class ModelNotLoadedError(LoadError, ValueError):
    """A model that cannot be opened; callers of llama-cpp-python expect a ValueError."""


class Llama:
    """A model of a GGUF file, or of a name such as ``org/name:Q4_K_M``.

    Arguments and methods are those of llama-cpp-python's class of this name.  Arguments without effect are logged;
    unsupported ones that would change the answer raise UnsupportedError.
    """

    def __init__(self, model_path: str | os.PathLike[str], **options: Any) -> None:
        self.model_path = os.fspath(model_path)
        try:
            self._llm = LLM(model_path, **engine_options(options))
        except LoadError as error:
            raise ModelNotLoadedError(str(error)) from error
        self._seed: int | None = options.get("seed", _ANY_SEED)
        self.verbose: bool = options.get("verbose", True)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        *,
        additional_files: Sequence[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Llama:
        """Open a model of the hub.  UnsupportedError without ``huggingface_hub`` (``pip install quire-llm[hub]``)."""
        for name in additional_files or ():
            pretrained(repo_id, name, local_dir, None if cache_dir is None else os.fspath(cache_dir))
        path = pretrained(repo_id, filename, local_dir, None if cache_dir is None else os.fspath(cache_dir))
        return cls(path, **options)

    # Tokens

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Return the ids of a text."""
        return self._llm.tokenizer.encode(text, add_special=add_bos, parse_special=special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Return the bytes of ids.  ``prev_tokens`` come before them and are not part of the result."""
        tokenizer = self._llm.tokenizer
        if not prev_tokens:
            return tokenizer.decode_bytes(tokens, skip_special=not special)
        before = tokenizer.decode_bytes(prev_tokens, skip_special=not special)
        return tokenizer.decode_bytes([*prev_tokens, *tokens], skip_special=not special)[len(before) :]

    def token_bos(self) -> int:
        """Return the id of the beginning of a sequence, or -1."""
        return _id(self._llm.tokenizer.bos_id)

    def token_eos(self) -> int:
        """Return the id of the end of a sequence, or -1."""
        return _id(self._llm.tokenizer.eos_id)

    def token_nl(self) -> int:
        """Return the id of a new line."""
        return self._llm.tokenizer.encode("\n", add_special=False)[-1]

    def n_ctx(self) -> int:
        """Return the context length in tokens."""
        return self._llm.n_ctx

    def n_vocab(self) -> int:
        """Return the size of the vocabulary."""
        return self._llm.n_vocab

    def n_embd(self) -> int:
        """Return the size of an embedding."""
        return int(self._llm.embed([[0]]).shape[1])

    @property
    def metadata(self) -> dict[str, str]:
        """The keys of the file that have a single value, as text."""
        from ...files.ollama import open_model_file

        keys = open_model_file(self._llm.path or self.model_path).metadata
        return {key: str(keys[key]) for key in keys if not keys.type_of(key).endswith("[]")}

    # State, which the engine manages by itself

    def reset(self) -> None:
        """Do nothing: prompts with a common beginning share their cache in any case."""

    def set_cache(self, cache: LlamaRAMCache | None) -> None:
        """Do nothing: the engine always caches."""

    def set_seed(self, seed: int) -> None:
        """Set the seed of calls without one."""
        self._seed = seed

    def save_state(self) -> object:
        """Not supported."""
        raise UnsupportedError("[llama_cpp.Llama] save_state is not supported")

    def load_state(self, state: object) -> None:
        """Not supported."""
        raise UnsupportedError("[llama_cpp.Llama] load_state is not supported")

    def close(self) -> None:
        """Free all memory."""
        self._llm.close()

    def __enter__(self) -> Llama:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Llama({self.model_path!r}, n_ctx={self._llm.n_ctx})"

    # Text

    def generate(self, tokens: Sequence[int], **sampling: Any) -> Iterator[int]:
        """Yield the ids that continue ``tokens``, until the caller stops or the model ends."""
        given = {"temperature" if name == "temp" else name: value for name, value in sampling.items()}
        given.pop("reset", None)
        fields = self._fields(given)
        for delta in self._llm.stream(list(tokens), **fields):
            yield from delta.token_ids

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        *,
        logprobs: int | None = None,
        echo: bool = False,
        stream: bool = False,
        model: str | None = None,
        **sampling: Any,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """Complete a text or ids, with ``suffix`` after the answer.  ``stream``: piece by piece."""
        fields = self._fields(sampling)
        # 0 and less: no limit but the context.
        fields["max_tokens"] = max_tokens if max_tokens is not None and max_tokens > 0 else None
        if logprobs is not None:
            fields["logprobs"] = logprobs
            fields["prompt_logprobs"] = logprobs if echo and not stream else None
        tokenizer = self._llm.tokenizer
        name, behind = model or self.model_path, suffix or ""
        echoed = "" if not echo else prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
        if stream:
            return completion_chunks(self._llm.stream(prompt, **fields), name, tokenizer, echoed=echoed, suffix=behind)
        (result,) = self._llm.generate([prompt], **fields)
        return completion(result, name, tokenizer, echoed=echoed, suffix=behind)

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: Messages,
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: str | Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        *,
        stream: bool = False,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        model: str | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **sampling: Any,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """Answer a conversation with the model's own chat template."""
        fields: ChatFields = {**self._fields({"temperature": _CHAT_TEMPERATURE, **sampling})}  # type: ignore[typeddict-item]
        fields["max_tokens"] = max_tokens if max_tokens is not None and max_tokens > 0 else None
        if response_format is not None:
            fields["response_format"] = response_format
        if logprobs:
            fields["logprobs"] = top_logprobs or 0
        if functions is not None:
            tools = [{"type": "function", "function": function} for function in functions]
            tool_choice = _choice_of(function_call)
        if tools:
            fields["tools"] = tools
        if tools and tool_choice is not None:
            fields["tool_choice"] = tool_choice
        name, as_function = model or self.model_path, functions is not None
        tokenizer = self._llm.tokenizer
        if stream:
            return chat_chunks(self._llm.chat_stream(messages, **fields), name, tokenizer, as_function=as_function)
        return chat_completion(self._llm.chat(messages, **fields), name, tokenizer, as_function=as_function)

    # Vectors

    def embed(
        self, input: str | Sequence[str], normalize: bool = False, truncate: bool = True, return_count: bool = False
    ) -> Any:
        """Return the vector of a text, or vectors of several; with ``return_count`` also the number of tokens."""
        texts = [input] if isinstance(input, str) else list(input)
        prompts = [self._llm.tokenizer.encode(text, add_special=True, parse_special=True) for text in texts]
        if truncate:
            prompts = [ids[: self._llm.n_ctx - 1] for ids in prompts]
        vectors = self._llm.embed(prompts, normalize=normalize).tolist()
        shown = vectors[0] if isinstance(input, str) else vectors
        return (shown, sum(map(len, prompts))) if return_count else shown

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> dict[str, Any]:
        """Return the vectors of texts in the shape of OpenAI's API."""
        texts = [input] if isinstance(input, str) else list(input)
        vectors, n_tokens = self.embed(texts, return_count=True)
        data = [{"object": "embedding", "embedding": vector, "index": i} for i, vector in enumerate(vectors)]
        counts = usage(n_tokens, 0)
        del counts["completion_tokens"]
        return {"object": "list", "data": data, "model": model or self.model_path, "usage": counts}

    def _fields(self, given: Mapping[str, Any]) -> RequestFields:
        """Return keywords of ``LLM`` for sampling arguments.  TypeError names an unknown one."""
        for name in given:
            if name not in _DEFAULTS:
                raise TypeError(f"Llama got an unexpected keyword argument {name!r}")
        values = {**_DEFAULTS, **given}
        fields: dict[str, Any] = {"penalty_last_n": _RECENT}
        for name, value in values.items():
            if name not in ("grammar", "logits_processor", "stopping_criteria", "logit_bias", "seed", "stop"):
                fields[_NAMES.get(name, name)] = value
        if fields["mirostat"]:
            fields |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "tfs_z": 1.0}
        fields["temperature"] = max(fields["temperature"], 0.0)  # less is greedy, too
        fields["stop"] = values["stop"] or ()
        seed = self._seed if values["seed"] is None else values["seed"]
        fields["seed"] = None if seed in (None, -1, _ANY_SEED) else seed
        if values["logit_bias"]:
            fields["logit_bias"] = {int(token): bias for token, bias in values["logit_bias"].items()}
        ends = self._llm.tokenizer.eog_ids
        fields["logits_processors"] = processors_of(values["logits_processor"], values["stopping_criteria"], ends)
        fields["structured_outputs"] = _form(values["grammar"])
        return fields  # type: ignore[return-value]


def _id(found: int | None) -> int:
    return -1 if found is None else found


def _form(grammar: LlamaGrammar | None) -> StructuredOutputsParams | None:
    return None if grammar is None else grammar.form


def _choice_of(function_call: str | Mapping[str, Any] | None) -> str | Mapping[str, Any]:
    """Convert the older ``function_call`` to a ``tool_choice``."""
    if isinstance(function_call, Mapping):
        return {"type": "function", "function": {"name": function_call.get("name")}}
    if function_call not in (None, "auto", "none"):
        raise RequestError(
            f"[llama_cpp.Llama] function_call {function_call!r:.40} is unknown: expected auto, none or {{'name': ...}}"
        )
    return function_call or "auto"
