"""Turn prompts, conversations and parameters into requests of the engine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

from ...errors import LoadError, RequestError, UnsupportedError
from ...params.request_fields import RequestKeywords
from ...params.rules import INT_MAX
from ...params.sampling import SamplingParams, chosen_adapters
from ..engine import EngineRequest, Pooling
from ..processors import ProcessorRegistry
from .answer_forms import AnswerForms, token_vocabulary
from .media import MediaItems, Segments, without_media
from .media_prompts import encoded_prompt, is_media_prompt

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...chat import ChatTemplate, Messages
    from ...grammar import Grammar, GrammarSource
    from ...media.video import Video
    from ...models.media import Kind
    from ...params.chat_options import ChatOptions
    from ...params.sampling import AdapterChoice
    from ...tokenizer import Tokenizer
    from ..media import MediaInput, MediaRows, PromptMedia
    from .chat import ChatRequest

__all__ = ["Prompt", "Prompts", "RequestOptions", "is_id", "prompt_list", "vector_options"]

_LOG = logging.getLogger("quire")

# A conversation that is cut to fit may have images and sounds of so many contexts.
_KEPT_TEMPLATES = 4  # templates of requests that stay compiled
_MOST_DROPPED = 8

Prompt: TypeAlias = "str | Sequence[int] | Mapping[str, Any]"
"""Raw text, in which special tokens are added and parsed; token ids, used as they are; or ``{"prompt": text, "images":
[...]}``, where ``<__media__>`` or the model's own placeholder stands for each image (``audios`` for sounds); or
``{"prompt_embeds": array}``, the embeddings of its tokens."""


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """Scheduling options of a request (see ``EngineRequest``), and the keywords of the call.

    ``adapter``: LoRA adapters of requests for vectors and scores; others have theirs in the parameters.
    """

    salt: bytes = b""
    priority: int = 0
    key: str = ""
    adapter: AdapterChoice | None = None
    keywords: RequestKeywords = field(default_factory=RequestKeywords)

    def __post_init__(self) -> None:
        check_salt(self.salt)


def check_salt(salt: object) -> None:
    """Raise RequestError unless ``salt`` is bytes."""
    if not isinstance(salt, bytes):
        raise RequestError(f"[request] salt {salt!r:.40} is not bytes")


def vector_options(salt: bytes, priority: int, key: str, adapter: AdapterChoice | None) -> RequestOptions:
    """Return the options of a request for vectors, scores or a transcript."""
    return RequestOptions(salt=salt, priority=priority, key=key, adapter=adapter)


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return one prompt or several as a list.  RequestError that names an item which is no prompt."""
    if isinstance(prompts, str):
        return [prompts]
    if is_media_prompt(prompts):
        return [prompts]
    items = _items(prompts, "prompts")
    n_ids = sum(map(is_id, items))
    if items and n_ids == len(items):
        return [[int(item) for item in items]]
    if n_ids:
        text = next(at for at, item in enumerate(items) if not is_id(item))
        number = next(at for at, item in enumerate(items) if is_id(item))
        raise RequestError(
            f"[prompt] prompts mix token ids with other items: item {text} is {items[text]!r:.40}, item {number} is "
            f"{items[number]!r:.40} (one prompt is a string or a list of ids; several are a list of those)"
        )
    return [
        item if isinstance(item, str) or is_media_prompt(item) else _items(item, f"prompt {at}")
        for at, item in enumerate(items)
    ]


def is_id(item: object) -> bool:
    """Return whether this is an integer, Python's or NumPy's."""
    return type(item) is int or (isinstance(item, Integral) and not isinstance(item, bool))


def _items(given: object, name: str) -> list[Any]:
    """Return the items of a sequence or of an array."""
    if given is None:
        raise RequestError(f"[prompt] {name} is None: give a string, a list of token ids, or a list of those")
    if isinstance(given, bytes | bytearray | memoryview):
        raise RequestError(f"[prompt] {name} is bytes, which are neither text nor token ids: decode them to a string")
    if isinstance(given, Mapping):
        hint = ": give its input_ids" if "input_ids" in given else ": chat() takes messages"
        raise RequestError(f"[prompt] {name} is a mapping, not text or token ids{hint}")
    if hasattr(given, "tolist"):  # an array
        given = given.tolist()
    if not isinstance(given, Iterable):
        raise RequestError(f"[prompt] {name} is {given!r:.40}: give a string, a list of token ids, or a list of those")
    return list(given)


class Prompts:
    """Makes requests for one model.  Thread-safe.

    ``advised``: defaults for fields of ``SamplingParams`` in chats.  ``system``: the system message of chats that begin
    without one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        n_vocab: int,
        advised: Mapping[str, object] | None = None,
        system: str | None = None,
        media: MediaInput | None = None,
        *,
        n_ctx: int | None = None,
        processors: ProcessorRegistry | None = None,
        embeds: tuple[int, int] | None = None,
    ) -> None:
        self._embeds = embeds  # numbers of an embedding, and of a row that the model reads; None: not accepted
        self._processors = processors or ProcessorRegistry()
        self._tokenizer = tokenizer
        self._advised = advised or {}
        self._system = system
        self._media, self._n_ctx = media, n_ctx
        self._told: set[str] = set()  # names that were logged as ignored
        self._n_vocab = n_vocab
        self._template: ChatTemplate | None = None
        self._template_lock = threading.Lock()
        self._kept_templates: dict[str, ChatTemplate] = {}  # templates of requests, the latest last
        self._forms = AnswerForms(lambda: token_vocabulary(self.tokenizer, n_vocab))

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.  UnsupportedError if the file has no vocabulary."""
        if self._tokenizer is None:
            raise UnsupportedError("[tokenizer] the model file has no vocabulary: give token ids")
        return self._tokenizer

    @property
    def media(self) -> MediaInput | None:
        """The model's encoders; None if it reads text only."""
        return self._media

    def use_media(self, media: MediaInput | None) -> None:
        """Use other encoders of the same kinds."""
        self._media = media

    @property
    def media_threads(self) -> Executor | None:
        """The threads on which calls are prepared that may read images or sounds; None if the model reads none."""
        return None if self._media is None else self._media.threads

    def token_ids(self, prompt: Prompt) -> list[int]:
        """Return the ids of a prompt.  RequestError if it is neither text nor ids of the vocabulary."""
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special=True, parse_special=True)
        else:
            ids = _items(prompt, "a prompt")
        if not ids:
            raise RequestError("[prompt] empty prompt: it has no token")
        for token_id in ids:
            if not is_id(token_id) or not 0 <= token_id < self._n_vocab:
                raise RequestError(
                    f"[prompt] token id {token_id!r:.40} is not in the vocabulary: ids are ints from 0 to "
                    f"{self._n_vocab - 1}"
                )
        return ids if isinstance(prompt, str) else [int(token_id) for token_id in ids]

    def request(self, prompt: Prompt, params: SamplingParams | None, options: RequestOptions) -> EngineRequest:
        """Return a request to generate."""
        return self._compiled(self.draft(prompt, params, options))

    def draft(self, prompt: Prompt, params: SamplingParams | None, options: RequestOptions) -> EngineRequest:
        """Return a request to generate, whose form is still to be compiled."""
        params = options.keywords.sampling_params(params)
        form = self._forms.of_text(params.structured_outputs)
        if not isinstance(prompt, Mapping):
            return self._request(self.token_ids(prompt), params, options, form)
        if prompt.get("prompt_embeds") is not None:
            ids, media = self._embedded(prompt, params)
        else:
            ids, media = encoded_prompt(prompt, self._media, self.tokenizer, self._n_ctx)
        request = self._request(self.token_ids(ids), params, options, form)
        return replace(request, media=media)

    def _embedded(self, prompt: Mapping[str, Any], params: SamplingParams) -> tuple[list[int], PromptMedia | None]:
        from .embedded_prompts import embedded_prompt, rows_of

        if self._embeds is None:
            raise UnsupportedError("[prompt_embeds] off: open the model with enable_prompt_embeds")
        others = [name for name, value in prompt.items() if name != "prompt_embeds" and value not in (None, "")]
        if others or params.prompt_logprobs is not None:
            raise RequestError(f"[prompt_embeds] cannot be combined with {(*others, 'prompt_logprobs')[0]}")
        dim, width = self._embeds
        return embedded_prompt(rows_of(prompt["prompt_embeds"], dim), width)

    def _request(
        self, ids: list[int], params: SamplingParams, options: RequestOptions, form: GrammarSource | None
    ) -> EngineRequest:
        params = self._processors.resolved(params)
        bad = [ids for word in params.bad_words for ids in self._spellings(word)]
        # A prediction is plain text like an answer.
        expected = self.tokenizer.encode(params.prediction, add_special=False) if params.prediction else ()
        hints = (options.salt, options.priority, options.key)
        shadow = None
        if params.guidance_scale != 1:
            negative = ids[-1:] if params.negative_prompt is None else self.token_ids(params.negative_prompt)
            shadow = EngineRequest(negative, _following(params), *hints)
        return EngineRequest(ids, params, *hints, form=form, prediction=expected, bad_sequences=bad, shadow=shadow)

    def _spellings(self, word: str) -> list[list[int]]:
        """Return the ids of a word at the start of a text and after a space, as vLLM forbids them."""
        bare = word.lstrip() or word
        first, spaced = (self.tokenizer.encode(text, add_special=False) for text in (bare, f" {bare}"))
        # Where the space is a token of its own, the bare spelling covers both.
        return [first, spaced] if len(first) == len(spaced) and first[0] != spaced[0] else [first]

    def begin_grammar(self, form: GrammarSource, key: str) -> Future[Grammar]:
        """Start to compile the form of a draft, within its caller's turn and budget."""
        return self._forms.begin(form, key)

    def _compiled(self, draft: EngineRequest) -> EngineRequest:
        if draft.form is None:
            return draft
        return replace(draft, grammar=self._forms.begin(draft.form, None).result())

    def requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        options: RequestOptions,
    ) -> list[EngineRequest]:
        """Return one request per prompt.  ``params``: one for all, or one each."""
        wanted = prompt_list(prompts)
        each = _one_each(params, len(wanted))
        return [self.request(prompt, one, options) for prompt, one in zip(wanted, each, strict=True)]

    def chat_request(
        self, messages: Messages, params: SamplingParams | None, options: RequestOptions, chat: ChatOptions
    ) -> ChatRequest:
        """Return a request to answer a conversation.  Text of messages never becomes control tokens."""
        draft = self.chat_draft(messages, params, options, chat)
        return replace(draft, engine=self._compiled(draft.engine))

    def chat_requests(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None,
        options: RequestOptions,
        chat: ChatOptions,
    ) -> list[ChatRequest]:
        """Return one request per conversation.  ``params``: one for all, or one each."""
        each = _one_each(params, len(messages))
        return [self.chat_request(item, one, options, chat) for item, one in zip(messages, each, strict=True)]

    def chat_draft(
        self,
        messages: Messages,
        params: SamplingParams | None,
        options: RequestOptions,
        chat: ChatOptions,
        *,
        begun: str = "",
    ) -> ChatRequest:
        """Return the request of ``chat_request`` with a form that is still to be compiled.

        ``begun``: text after the template's, as a part of it: control tokens are parsed.
        """
        from .chat import ChatRequest, call_marks, format_of, rendered, visible_tokens, with_reasoning_budget
        from .thinking import template_values, without_thinking

        template = self._chat_template() if chat.chat_template is None else self._given_template(chat.chat_template)
        form = format_of(template, chat)
        messages, items = self._without_media(self._with_system(messages), chat)
        media: PromptMedia | None = None
        thinking = template_values(template, chat, form)
        moved: tuple[str, ...] = ()

        def written(given: Messages) -> tuple[str, list[int]]:
            nonlocal moved, media
            made = items.rendered(given, lambda shown: rendered(template, shown, chat, thinking.values))
            segments, moved = [*made.segments, *([(begun, True)] if begun else [])], made.moved
            if thinking.off and chat.begins_answer:
                segments = without_thinking(segments, form, thinking.is_told)
            ids, shown = self._encoded(segments, items)
            media = shown
            return "".join(text for text, _ in segments), ids

        # Tokens cut out of the middle would take rows of images with them.
        limits = replace(chat, cut_prompt=False) if items.rows else chat
        prompt, ids, dropped = _fitting(messages, limits, written)
        params = options.keywords.sampling_params(params, self._advised)
        if not chat.shown_tools:
            params = without_tokens(params, call_marks(template, chat, self.tokenizer))
        ids = self.token_ids(ids)
        answer_form = self._forms.of_chat(params, chat, form, template, prompt, is_silent=thinking.off)
        request = self._request(ids, params, options, answer_form)
        request = replace(request, visible_tokens=visible_tokens(form, self.tokenizer), media=media)
        ignored = [*thinking.ignored, *moved, *dropped]
        budgeted = chat.reasoning_budget is not None
        if budgeted and form.limited is None:  # it does not reason, so it stays within any budget
            budgeted, ignored = False, [*ignored, "reasoning_budget"]
        if not chat.lenient:
            told = "%s has no effect: the model's chat template does not use it"
            self._tell_once([name for name in ignored if name not in (*dropped, *moved)], told)
            self._tell_once(moved, "%s: the model's chat template takes no system message there, so it was moved")
        asked = ChatRequest(request, form, chat.shown_tools, prompt, tuple(ignored))
        if not budgeted:
            return asked
        assert chat.reasoning_budget is not None
        return with_reasoning_budget(asked, chat.reasoning_budget, self.tokenizer)

    def _without_media(self, messages: Messages, chat: ChatOptions) -> tuple[Messages, MediaItems]:
        """Return the messages with marks in place of images and sounds, and these; without an encoder, as they are."""
        if self._media is None:
            return messages, MediaItems()
        media, most, items = self._media, self._n_ctx, MediaItems(template_texts=self._media.template_texts)
        if most is not None and chat.max_prompt_tokens is not None:
            most *= _MOST_DROPPED  # the oldest messages may be dropped with their images

        def read(kind: Kind, data: npt.NDArray[Any] | Video | bytes) -> MediaRows:
            room = None if most is None else most - sum(len(item.rows) for item in items.rows)
            return media.read(kind, data, room)

        return without_media(messages, items, read), items

    def _encoded(self, segments: Segments, items: MediaItems) -> tuple[list[int], PromptMedia | None]:
        """Return the ids of a rendered prompt, and the images and sounds in it."""
        if self._media is None or not items.rows:
            return self.tokenizer.encode_segments(list(segments)), None
        shown = items.order_in(segments)
        ids = self.tokenizer.encode_segments(items.written(segments, self._media.written))
        return self._media.expanded(ids, shown)

    def _tell_once(self, names: Sequence[str], text: str) -> None:
        """Log options that this model cannot follow, each name once."""
        for name in names:
            if name not in self._told:
                self._told.add(name)
                _LOG.warning(f"[chat] {text}", name)

    def _with_system(self, messages: Messages) -> Messages:
        if self._system is None or (messages and messages[0].get("role") in ("system", "developer")):
            return messages
        return [{"role": "system", "content": self._system}, *messages]

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables that the chat template reads; empty without a template."""
        has_one = self._template is not None or self.tokenizer.chat_template is not None
        return self._chat_template().variables if has_one else frozenset()

    @property
    def limits_reasoning(self) -> bool:
        """Return whether the model reasons between tags, so that a budget can end it."""
        from ...params.chat_options import ChatOptions
        from .chat import format_of

        has_one = self._template is not None or self.tokenizer.chat_template is not None
        return has_one and format_of(self._chat_template(), ChatOptions()).limited is not None

    def use_template(self, source: str) -> None:
        """Use a chat template in place of the model's.  LoadError if it is invalid."""
        made = self._template_of(source)
        with self._template_lock:
            self._template = made

    def _template_of(self, source: str) -> ChatTemplate:
        from ...chat import ChatTemplate

        return ChatTemplate(source, self.tokenizer.special_texts, self.tokenizer.control_tokens)

    def _given_template(self, source: str) -> ChatTemplate:
        """Return a request's own template; the last few are kept.  RequestError if it is invalid."""
        with self._template_lock:
            made: ChatTemplate | None = self._kept_templates.pop(source, None)
        if made is None:
            try:
                made = self._template_of(source)
            except LoadError as error:
                raise RequestError(str(error)) from None
        with self._template_lock:
            self._kept_templates[source] = made
            while len(self._kept_templates) > _KEPT_TEMPLATES:
                self._kept_templates.pop(next(iter(self._kept_templates)))
        return made

    def _chat_template(self) -> ChatTemplate:
        from ...chat import ChatTemplate

        with self._template_lock:
            if self._template is None:
                self._template = ChatTemplate.from_tokenizer(self.tokenizer)
            return self._template

    def embedding_request(
        self, prompt: Prompt, pooling: Pooling, options: RequestOptions, second_text: int | None = None
    ) -> EngineRequest:
        """Return a request for the embedding of a prompt.  ``second_text``: see ``EngineRequest``."""
        media = None
        if isinstance(prompt, Mapping):
            prompt, media = encoded_prompt(prompt, self._media, self.tokenizer, self._n_ctx)
        ids = self.token_ids(prompt)
        request = EngineRequest(ids, None, options.salt, options.priority, options.key, embedding=pooling)
        return replace(request, second_text=second_text, media=media, adapter=chosen_adapters(options.adapter))

    def logits_request(self, token_ids: Sequence[int]) -> EngineRequest:
        """Return a request for the logits of every position."""
        return EngineRequest(self.token_ids(token_ids), None)


def _fitting(
    messages: Messages, chat: ChatOptions, written: Callable[[Messages], tuple[str, list[int]]]
) -> tuple[str, list[int], list[str]]:
    """Return the prompt of a conversation, its ids, and a list of what was dropped to fit the options."""
    prompt, ids = written(messages)
    n_most = chat.max_prompt_tokens
    if n_most is None or len(ids) <= n_most:
        return prompt, ids, []
    from .truncation import cut_ids, without_oldest

    kept = without_oldest(messages, n_most, lambda left: len(written(left)[1]))
    dropped = [f"{kept.n_dropped} oldest messages"] if kept.n_dropped else []
    shorter, fewer = written(kept.messages) if kept.n_dropped else (prompt, ids)
    if len(fewer) <= n_most:
        return shorter, fewer, dropped
    if chat.cut_prompt:
        dropped.append(f"{len(fewer) - n_most} tokens of the prompt")
        return shorter, cut_ids(fewer, n_most, chat.keep_tokens), dropped
    return prompt, ids, []  # too long; refused with its whole length


def without_tokens(params: SamplingParams, ids: Sequence[int]) -> SamplingParams:
    """Return parameters that forbid some tokens, except those that the parameters themselves name."""
    allowed = params.allowed_token_ids or ()
    never = [id_ for id_ in ids if id_ not in params.logit_bias and id_ not in allowed]
    if not never:
        return params
    return replace(params, bad_token_ids=tuple(dict.fromkeys([*params.bad_token_ids, *never])))


def _following(params: SamplingParams) -> SamplingParams:
    """Return the parameters of a request that gets the tokens of another one."""
    same = {name: getattr(params, name) for name in ("n", "adapter", "control_vectors")}
    # One more, so that no choice ends before the other one's.
    most = None if params.max_tokens is None else min(params.max_tokens, INT_MAX - 1) + 1
    return SamplingParams(temperature=0.0, ignore_eos=True, speculation="off", max_tokens=most, **same)


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, n: int) -> list[SamplingParams | None]:
    if params is None or not isinstance(params, Sequence):
        return [params] * n
    if len(params) != n:
        raise RequestError(f"[sampling] params has {len(params)} entries for {n} prompts: give one, or one each")
    return list(params)
