"""Grammars that constrain answers, compiled for the model's vocabulary."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ...errors import RequestError

if TYPE_CHECKING:
    from ...chat import AnswerFormat, ChatTemplate
    from ...grammar import Compiler, Grammar, GrammarSource, TokenVocabulary
    from ...params.chat_options import ChatOptions
    from ...params.sampling import SamplingParams
    from ...params.structured import StructuredOutputsParams
    from ...tokenizer import Tokenizer

__all__ = ["AnswerForms", "token_vocabulary"]


class AnswerForms:
    """Grammars of requests.  Thread-safe."""

    def __init__(self, vocabulary: Callable[[], TokenVocabulary]) -> None:
        self._vocabulary = vocabulary
        self._compiler: Compiler | None = None
        self._lock = threading.Lock()

    def of_text(self, form: StructuredOutputsParams | None) -> GrammarSource | None:
        """Return the grammar of a whole answer, or None for a free one."""
        if form is None:
            return None
        from ...grammar import grammar_source

        return grammar_source(form)

    def of_chat(
        self,
        params: SamplingParams,
        options: ChatOptions,
        form: AnswerFormat,
        template: ChatTemplate,
        prompt: str,
        *,
        is_silent: bool = False,
    ) -> GrammarSource | None:
        """Return the grammar of an answer to a conversation, or None for a free one.

        The answer may have calls.  It may begin with reasoning, unless the prompt already ends it or ``is_silent``
        switches it off.
        """
        wanted = params.structured_outputs
        if wanted is None and not options.shown_tools:
            if options.tool_choice not in ("auto", "none"):
                raise RequestError(f"[tools] tool_choice is {options.tool_choice!r:.40} but no tools are given")
            return None
        from ...grammar import AnswerLayout, ReasoningTags, ToolUse, answer_source, grammar_source

        if wanted is not None and wanted.triggers:
            if options.shown_tools and options.tool_choice not in ("auto", "none"):
                raise RequestError(
                    "[structured_outputs] triggers cannot be combined with a tool_choice that forces calls"
                )
            return grammar_source(wanted)
        tags, tools = form.reasoning, form.tools
        silent = tags is not None and tags.closed_by(prompt)
        silent = silent or (is_silent and (tags is None or not tags.opened_by(prompt)))
        layout = AnswerLayout(
            reasoning=None if tags is None or silent else ReasoningTags(tags.start, tags.end, tags.opened_by(prompt)),
            may_reason=not silent,
            format_name=None if tools is None else tools.name,
            syntaxes=() if tools is None else tools.syntaxes,
            frames_content=tools is not None and tools.frames_content,
            starts=() if tools is None else tools.starts,
            template=template.source,
        )
        use = ToolUse(
            options.shown_tools or (),
            options.tool_choice if options.shown_tools else "none",
            options.parallel_tool_calls,
            # A model that was not trained on these tags needs more than a description of them.
            always=not template.reads_tools,
        )
        source = answer_source(layout, None if wanted is None else grammar_source(wanted), use)
        if source is None:
            return None
        if params.ignore_eos:
            raise RequestError("[sampling] ignore_eos cannot be combined with enforced tools")
        return source

    def begin(self, source: GrammarSource, key: str | None) -> Future[Grammar]:
        """Start to compile a grammar, within the turn and budget of a caller (None: no budget)."""
        from ...grammar import Compiler

        with self._lock:
            if self._compiler is None:
                self._compiler = Compiler(self._vocabulary)
        return self._compiler.begin(source, key)


def token_vocabulary(tokenizer: Tokenizer, n_vocab: int) -> TokenVocabulary:
    """Return a vocabulary as grammars need it.  ``n_vocab``: rows of the model's output."""
    from ...grammar import TokenVocabulary

    shown = tokenizer.all_token_bytes()
    shown += [b""] * (n_vocab - len(shown))
    for name, id_ in tokenizer.control_tokens.items():
        shown[id_] = name.encode()
    return TokenVocabulary(
        shown, tokenizer.control_tokens, sorted(tokenizer.eog_ids), lambda text: tokenizer.encode(text, False)
    )
