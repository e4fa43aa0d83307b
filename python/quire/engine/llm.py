"""The blocking front end: ``LLM``, whose verbs ``AsyncLLM`` shares."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Literal, overload

from ..params.request_fields import read_keywords
from ..params.signatures import show_keywords
from ..params.tool_options import ToolOptions
from ..tools.tool_use import ToolUse
from .controlled import ControlledCore
from .core import chat_call, tool_turn
from .engine import Pooling
from .requests.prompts import Prompt, RequestOptions, vector_options
from .requests.results import Delta, GenerationResult
from .requests.texts import Pair, Ranked, TextKind, TextOptions, Truncate
from .requests.transcripts import Sound, SpeechTask, TranscribeOptions, Transcript, speech_sampling

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Unpack

    from ..chat import Messages
    from ..params.chat_options import ChatFields, RunFields
    from ..params.request_fields import RequestFields
    from ..params.sampling import AdapterChoice, SamplingParams
    from ..tools.loop import Approve
    from ..tools.toolbox import ToolSource
    from .loading.retrieval import Output
    from .requests.chat import ChatDelta, ChatResult
    from .requests.encoded import SparseVector
    from .requests.entities import Aggregation, Entity
    from .requests.tool_turn import RunResult

__all__ = ["LLM"]


class LLM(ControlledCore):
    """A model, ready to answer.  Thread-safe: calls from several threads share one batch.

    ``model`` is a name (``"qwen3:0.6b"``, ``"org/name"``, ``"org/name:Q4_K_M"``, one of ``quire list``), a GGUF file, a
    checkpoint folder, or None for the small model in the package.  A name that this machine does not have is
    downloaded.  The other arguments are the fields of ``EngineConfig``.  Raises LoadError, UnsupportedError or
    CapacityError.  ``close()`` (or leaving a ``with`` block) frees all memory.

    Verbs take these keywords:

    - ``salt``: only requests with the same salt share cached prefixes.
    - ``priority``: higher first, under the policies that use it.
    - ``key``: under the dynamic policy, requests with the same key share one part of the machine.

    Verbs that generate also take every field of ``SamplingParams`` as a keyword, which overrides that field of
    ``params``, and one of ``response_format`` (OpenAI's, a JSON Schema or a Pydantic class), ``regex``, ``choice`` or
    ``grammar`` for the form of the answer, as in ``StructuredOutputsParams``.  In a chat the form applies once
    reasoning has ended.  A request that fails raises its QuireError and does not affect others.
    """

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
        hidden_states: Sequence[int] | None = None,
        **fields: Unpack[RequestFields],
    ) -> list[GenerationResult]:
        """Complete one prompt or several in one batch; results are in the order of the prompts.

        Args:
            prompts: A string is raw text, in which special tokens are added and parsed.  A list or array of ints is
                token ids, used as they are.  ``{"prompt": text, "images": [...]}`` has ``<__media__>`` in the text, or
                the model's own placeholder, for each image.
            params: One for all prompts, or one each.
            hidden_states: Layers, among the ``taps`` that the model was opened with, whose states the results have for
                the tokens of prompt and answers.  They are computed in another pass over the whole text.

        If a request fails or the call is interrupted, the others are cancelled.
        """
        options = RequestOptions(salt=salt, priority=priority, key=key, keywords=read_keywords(LLM.generate, fields))
        return self._run(lambda: self._generation(prompts, params, options, hidden_states))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
        **fields: Unpack[RequestFields],
    ) -> Generator[Delta, None, None]:
        """Complete one prompt piece by piece.  Closing the iterator early cancels the request."""
        options = RequestOptions(salt=salt, priority=priority, key=key, keywords=read_keywords(LLM.stream, fields))
        return self._stream(lambda: self._completion(prompt, params, options))

    @overload
    def chat(
        self, messages: Messages, params: SamplingParams | None = None, **keywords: Unpack[ChatFields]
    ) -> ChatResult: ...
    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **keywords: Unpack[ChatFields],
    ) -> list[ChatResult]: ...
    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **keywords: Unpack[ChatFields],
    ) -> ChatResult | list[ChatResult]:
        """Answer a conversation, rendered by the model's chat template; or a list of conversations in one batch.

        Args:
            messages: ``{"role": ..., "content": ...}``.  Their text never becomes control tokens.
            params: Used as given, with the keywords over it.  None: the sampling that the model's file advises, else
                temperature 0.8, ``top_k`` 40, ``top_p`` 0.95, ``min_p`` 0.05.
            tools: Function definitions as in OpenAI's API.
            tool_choice: ``"auto"`` (calls of tools with ``strict`` follow their schemas), ``"none"``, ``"required"``,
                or one tool as in OpenAI's API, which must be called.
            parallel_tool_calls: False allows one call at most.
            tool_format: A format of docs/tool_calls.md, ``"auto"`` for the template's own, ``"none"`` to leave calls in
                the text.
            reasoning_format: The same for reasoning.
            reasoning_budget: End reasoning after this many tokens.  Each token then waits for Python.
            template_values: More variables for the template.
            chat_template: Jinja source of a template in place of the model's.
            continue_final_message: Continue the last message, which is the assistant's.
            max_prompt_tokens: Drop the oldest turns of a longer prompt.  System messages and the last turn stay.

        Returns:
            A result, or a list of them.  Its ``message`` has ``content``, ``reasoning_content`` and ``tool_calls``;
            ``message.as_dict()`` is a message for the next turn.

        Raises:
            UnsupportedError: The model has no chat template.
        """
        options, chat = chat_call(LLM.chat, keywords)
        return self._run(lambda: self._chat(messages, params, options, chat))

    def chat_stream(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **keywords: Unpack[ChatFields],
    ) -> Generator[ChatDelta, None, None]:
        """``chat`` piece by piece.  Closing the iterator early cancels the request."""
        options, chat = chat_call(LLM.chat_stream, keywords)
        return self._stream(lambda: self._chat_reply(messages, params, options, chat))

    def run(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Sequence[ToolSource],
        approve: Approve | None = None,
        max_rounds: int = 8,
        tool_timeout_s: float = 60.0,
        max_result_chars: int = 32_768,
        **keywords: Unpack[RunFields],
    ) -> RunResult:
        """Answer a conversation, running the tools that the model calls until it has its answer.

        Calls of one answer run at the same time, plain functions on other threads.  A call that fails, for whatever
        reason, gives the model the error as its result.

        Args:
            messages: As for ``chat``.
            params: As for ``chat``.
            tools: Python functions, plain or async, whose type hints and docstrings become the definitions; and MCP
                servers (``quire.tools.MCPServer``), which are connected for this call unless they are open.
            approve: Called with each call of a tool whose policy is ``"ask"``, as MCP servers' is by default; the call
                runs only if it returns True.  Functions run without asking.
            max_rounds: Rounds of calls; after these the model must answer.
            tool_timeout_s: Time limit of a call.  A plain function that takes longer goes on, but is not waited for.
            max_result_chars: Cut longer results, and say so in them.
            keywords: Those of ``chat``.

        Returns:
            The last answer (``text``, ``message``, ``result``), all ``messages``, and the ``calls`` with their results.

        Raises:
            RequestError: A tool asks for approval, and there is no ``approve``.
            LoadError: An MCP server cannot be reached.
            UnsupportedError: A function's parameters cannot be given as JSON, or the package ``mcp`` is missing.
        """
        limits = ToolOptions(max_rounds=max_rounds, timeout_s=tool_timeout_s, max_result_chars=max_result_chars)
        use = ToolUse(tools, approve, limits)
        return self._run_turn(tool_turn(LLM.run, messages, params, use, keywords), self.chat)

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the logits of every position, float32 ``[n_tokens, n_vocab]``: row i scores what follows token i."""
        return self._run(lambda: self._logits(token_ids))

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]:
        """Embed one prompt or several: the hidden states from which the logits are computed.

        Args:
            prompts: As for ``generate``, perhaps with images or sounds, which cannot be truncated.
            pooling: ``"last"`` (the last token), ``"cls"`` (the first), ``"mean"`` or ``"max"`` (all tokens; a decoder
                then computes the logits of all), or None for the model's own; if its file names none, an encoder uses
                the mean and a decoder the last.
            normalize: Scale each vector to length 1.
            dimensions: Keep only the first ones, for models trained with Matryoshka loss (Kusupati et al. 2022).
            prompt_name: The entry of the model's ``prompts`` that goes before each text, such as ``"query"``.  None:
                the default prompt, if the model has one.
            truncate: True cuts a prompt to the context, a number to that many tokens.  False: too long is an error.
            adapter: LoRA adapters, as in ``SamplingParams``.

        Returns:
            float32 array of shape ``[n_prompts, n_hidden]``.  ``quire.quantize_embeddings`` stores it in fewer bits.

        Raises:
            UnsupportedError: The model does not expose hidden states.
        """
        options = vector_options(salt, priority, key, adapter)
        text = TextOptions(truncate=truncate, prompt_name=prompt_name)
        return self._run(lambda: self._embeddings(prompts, pooling, normalize, options, text, dimensions=dimensions))

    @overload
    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        output: Literal["dense"] = "dense",
        kind: TextKind | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]: ...
    @overload
    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        output: Literal["sparse"],
        kind: TextKind | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[SparseVector]: ...
    @overload
    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        output: Literal["multi"],
        kind: TextKind | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[npt.NDArray[np.float32]]: ...
    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        output: Output = "dense",
        kind: TextKind | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32] | list[SparseVector] | list[npt.NDArray[np.float32]]:
        """Return vectors for retrieval, of a kind in ``outputs``.

        Args:
            output: ``"dense"`` is the result of ``embed``.  ``"sparse"`` weighs tokens of the vocabulary (SPLADE,
                BGE-M3).  ``"multi"`` has a vector for each token of a text (ColBERT, BGE-M3).
            kind: ``"query"`` or ``"document"``, which ColBERT marks and cuts differently; for dense vectors, the
                prompt of that name if the model has one.
            normalize: Scale each vector to length 1, except sparse ones.
            prompt_name: As for ``embed``.
            truncate: As for ``embed``; ColBERT's texts are always cut to their length.

        Returns:
            A float32 array ``[n_prompts, n]``; a ``SparseVector`` for each prompt; or an array ``[n_tokens, n]`` for
            each prompt.

        Raises:
            UnsupportedError: The model does not make such vectors.
        """
        text, given = TextOptions(truncate=truncate, prompt_name=prompt_name, kind=kind), (salt, priority, key, adapter)
        return self._run(lambda: self._encoded(prompts, output, normalize, vector_options(*given), text))

    def embed_tokens(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[npt.NDArray[np.float32]]:
        """Return the vector of every token, one float32 ``[n_tokens, n_hidden]`` for each prompt; see ``embed``."""
        text = TextOptions(truncate=truncate, prompt_name=prompt_name)
        return self._run(lambda: self._token_vectors(prompts, vector_options(salt, priority, key, adapter), text))

    def hidden_states(
        self, prompts: Prompt | Sequence[Prompt], *, layers: Sequence[int]
    ) -> list[npt.NDArray[np.float32]]:
        """Return hidden states after some layers, one float32 ``[n_layers, n_tokens, n]`` for each prompt.

        Args:
            layers: Numbers from 0, among the ``taps`` that the model was opened with.  As in transformers'
                ``hidden_states[layer + 1]``, the last norm is not applied.  The prefix cache is not used.

        Raises:
            RequestError: A layer is not tapped.
        """
        return self._run(lambda: self._hidden_states(prompts, layers))

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt | Pair],
        *,
        raw_scores: bool = False,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]:
        """Return the probabilities of the classes in ``labels``, float32 ``[n_prompts, n_classes]``.

        The probabilities are the softmax of the scores; their sigmoid if there is a single class or the model's
        ``problem_type`` allows several classes at once; for a regression, the scores themselves.

        Args:
            prompts: A tuple of two texts in the list is a pair, such as premise and hypothesis.
            raw_scores: Return the scores themselves.
            truncate: As for ``embed``.  The longer text of a pair is cut first.

        Raises:
            UnsupportedError: The model has no classifier.
        """
        options, text = vector_options(salt, priority, key, adapter), TextOptions(truncate=truncate)
        return self._run(lambda: self._classification(prompts, raw_scores, options, text))

    def classify_tokens(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        raw_scores: bool = False,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[npt.NDArray[np.float32]]:
        """Return the probabilities of every token, one float32 ``[n_tokens, n_classes]`` for each prompt.

        Raises:
            UnsupportedError: The model does not classify tokens.
        """
        options, text = vector_options(salt, priority, key, adapter), TextOptions(truncate=truncate)
        return self._run(lambda: self._token_classes(prompts, raw_scores, options, text))

    def tag(
        self,
        prompts: str | Sequence[str],
        *,
        aggregation: Aggregation = "simple",
        ignored: Sequence[str] = ("O",),
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[list[Entity]]:
        """Find the named entities of one text or several, as transformers' token-classification pipeline does.

        Args:
            aggregation: ``"none"`` gives each token.  The others join neighbours of one class; of a word whose tokens
                differ, ``"simple"`` keeps them apart, ``"first"`` and ``"max"`` take the class of its first or surest
                token, ``"average"`` that of the mean probabilities.
            ignored: Classes to leave out.
            truncate: As for ``embed``.

        Returns:
            For each text a list of dicts: ``entity_group`` (``entity`` of single tokens), ``score``, ``word``, and the
            characters ``start`` to ``end`` of the text.

        Raises:
            UnsupportedError: The model does not classify tokens.
        """
        options, text = vector_options(salt, priority, key, adapter), TextOptions(truncate=truncate)
        return self._run(lambda: self._tags(prompts, aggregation, ignored, options, text))

    def rerank(
        self,
        query: Ranked,
        documents: Sequence[Ranked],
        *,
        instruction: str | None = None,
        logits: bool = False,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]:
        """Return how well each document answers the query, float32 ``[n_documents]`` in the order of the documents.

        A score is that of the first class, or of yes against no for a reranker that answers with these.  Larger is
        better; ``1 / (1 + exp(-score))`` is a probability.  A model with a vector for each token sums the query
        tokens' largest products (MaxSim) instead; CLIP and SigLIP give cosines.

        Args:
            query, documents: Texts; for models that embed images (ColPali, CLIP) also ``{"image": ...}``.
            instruction: What makes a document relevant, for rerankers whose template has a place for it.
            logits: CLIP and SigLIP: give transformers' ``logits_per_image`` in place of cosines.
            truncate: As for ``classify``.

        Raises:
            UnsupportedError: The model has neither a classifier nor vectors to compare, or it ranks no images, or its
                file has no scale for ``logits``.
        """
        options, text = vector_options(salt, priority, key, adapter), TextOptions(truncate=truncate)
        return self._run(lambda: self._ranking(query, documents, instruction, options, text, logits=logits))

    def transcribe(
        self,
        audio: Sound,
        *,
        language: str | None = None,
        prompt: str | None = None,
        task: SpeechTask = "transcribe",
        timestamps: bool = False,
        temperature: float = 0.0,
        max_tokens: int | None = None,
        seed: int | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> Transcript:
        """Return what is said in a recording, with a model that hears.

        Args:
            audio: The path of a file, its bytes, or a pair of samples and their rate.
            language: A code such as ``"en"``, or an English name; None: the model recognizes it.
            prompt: Text that the recording continues, or names and words that occur in it.
            task: ``"translate"`` gives English.
            timestamps: Divide the transcript into segments with times.
            temperature, max_tokens, seed: As in ``SamplingParams``; ``max_tokens`` limits each request to the model.

        Raises:
            UnsupportedError: The model does not hear, or lacks the task or timestamps.
        """
        given = speech_sampling(temperature, max_tokens, seed)
        speech = TranscribeOptions(language=language, prompt=prompt, task=task, timestamps=timestamps, sampling=given)
        return self._run(lambda: self._transcript(audio, speech, vector_options(salt, priority, key, None)))

    def close(self) -> None:
        """Stop and free all memory; answers in progress end as cancelled.  May be called again."""
        self._close_engine()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


show_keywords(LLM)
