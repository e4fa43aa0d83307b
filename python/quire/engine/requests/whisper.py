"""Transcripts by Whisper: windows of 30 seconds, one request each, and the rules for the tokens that it writes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...errors import LoadError, UnsupportedError
from ...models.media.whisper import WINDOW, SoundWindow
from ...params.languages import LANGUAGES
from ..engine import EngineRequest
from ..media import PromptMedia
from .prompts import RequestOptions
from .transcripts import RATE, Segment, TranscribeOptions, Transcript, Transcription

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...media.audio import Samples
    from ...tokenizer import Tokenizer
    from ..media import MediaInput
    from .results import Delta, GenerationResult

__all__ = ["Listener", "SpeechTokens", "WhisperRules", "WhisperTranscription"]

# Frames and timestamps a second.
_FRAMES, _TIMES = 100, 50
# The first timestamp is one second at most.
_LATEST_BEGIN = _TIMES
# Nothing is said in a window that the model probably finds silent and writes an unlikely text for.
_SILENT, _UNLIKELY = 0.6, -1.0
# Models for English alone have this many tokens, and no languages and tasks in their prompts.
_N_ENGLISH = 51864


@dataclass(frozen=True)
class SpeechTokens:
    """The special tokens of a vocabulary; ``first_time`` is the timestamp 0.00."""

    start: int
    end: int
    tasks: dict[str, int]
    languages: dict[str, int]
    before: int
    no_speech: int
    no_times: int
    blank: tuple[int, ...]

    @property
    def first_time(self) -> int:
        return self.no_times + 1

    @classmethod
    def of(cls, tokenizer: Tokenizer, n_vocab: int) -> SpeechTokens:
        """Find the tokens.  LoadError naming one that the vocabulary lacks."""
        known = tokenizer.control_tokens

        def token(*texts: str) -> int:
            for text in texts:
                if text in known:
                    return known[text]
            raise LoadError(f"[transcribe] the vocabulary lacks {texts[0]}")

        is_english = n_vocab == _N_ENGLISH
        return cls(
            start=token("<|startoftranscript|>"),
            end=token("<|endoftext|>"),
            tasks={} if is_english else {name: token(f"<|{name}|>") for name in ("transcribe", "translate")},
            languages={}
            if is_english
            else {code: known[f"<|{code}|>"] for code in LANGUAGES if f"<|{code}|>" in known},
            before=token("<|startofprev|>"),
            no_speech=token("<|nospeech|>", "<|nocaptions|>"),
            no_times=token("<|notimestamps|>"),
            blank=tuple(tokenizer.encode(" ", add_special=False)[:1]),
        )


@dataclass
class WhisperRules:
    """A logits processor: which tokens may follow, as in Whisper's own decoding.

    Attributes:
        tokens: The special tokens.
        n_prompt: Tokens of the prompt.
        forced: The first tokens of the answer; None is the language, which the model recognizes.
        has_times: Segments stand between timestamps.
        never: Tokens that are never written.
        language: The token of the recognized language.
        no_speech_prob: Of the first token, if the prompt ends with the start token.
    """

    tokens: SpeechTokens
    n_prompt: int
    forced: Sequence[int | None]
    has_times: bool
    never: npt.NDArray[np.int64]
    language: int | None = None
    no_speech_prob: float = 0.0

    def __call__(self, token_ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        n_written = len(token_ids) - self.n_prompt
        if n_written == 0 and self.forced:
            self.no_speech_prob = float(np.exp(logits[self.tokens.no_speech] - _log_sum(logits)))
        if n_written < len(self.forced):
            return self._forced(n_written, logits)
        written, out = token_ids[self.n_prompt + len(self.forced) :], logits.copy()
        out[self.never] = -np.inf
        if not written:
            out[[*self.tokens.blank, self.tokens.end]] = -np.inf
        return self._timed(written, out) if self.has_times else out

    def _forced(self, i: int, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        wanted = self.forced[i]
        if wanted is None:
            choices = list(self.tokens.languages.values())
            wanted = self.language = choices[int(logits[choices].argmax())]
        out = np.full_like(logits, -np.inf)
        out[wanted] = 0
        return out

    def _timed(self, written: Sequence[int], out: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        first, end = self.tokens.first_time, self.tokens.end
        out[self.tokens.no_times] = -np.inf
        after_time = len(written) > 0 and written[-1] >= first
        after_two = len(written) < 2 or written[-2] >= first
        if after_time:  # timestamps come in pairs, except the first and the last one
            if after_two:
                out[first:] = -np.inf
            else:
                out[:end] = -np.inf
        times = [id for id in written if id >= first]
        if times:  # they do not decrease, and segments are not empty
            out[first : times[-1] + (0 if after_time and not after_two else 1)] = -np.inf
        if not written:
            out[:first] = -np.inf
            out[first + _LATEST_BEGIN + 1 :] = -np.inf
        # Any timestamp rather than any single text token, if all of them together are more likely.
        if _log_sum(out[first:]) > out[:first].max():
            out[:first] = -np.inf
        return out


def _log_sum(logits: npt.NDArray[np.float32]) -> float:
    most = logits.max()
    return -np.inf if most == -np.inf else float(np.log(np.exp(logits - most).sum()) + most)


@dataclass(frozen=True)
class Listener:
    """A Whisper.  ``never``: tokens that it does not write."""

    media: MediaInput
    tokenizer: Tokenizer
    n_ctx: int
    n_vocab: int
    never: Sequence[int]


class WhisperTranscription(Transcription):
    """Windows of 30 seconds, each of which begins where the segments of the one before it end."""

    def __init__(self, model: Listener, samples: Samples, options: TranscribeOptions, request: RequestOptions) -> None:
        """Prepare the windows.  UnsupportedError if the model lacks the language or the task."""
        self.duration = len(samples) / RATE
        self._media, self._tokenizer, self._n_ctx = model.media, model.tokenizer, model.n_ctx
        self._options, self._request = options, request
        self._tokens = SpeechTokens.of(model.tokenizer, model.n_vocab)
        self._never = np.array(sorted({*model.never}), np.int64)
        processor = model.media.encoders["audio"].model.processor
        is_long = len(samples) > WINDOW // _FRAMES * RATE
        self._frames = processor.extract(samples, 0 if is_long else WINDOW // _FRAMES * RATE).frames  # type: ignore[union-attr]
        self._n_frames = len(self._frames) if is_long else max(1, len(samples) * _FRAMES // RATE)
        self._has_times = options.timestamps or is_long
        self._seek = 0
        self._rules: WhisperRules | None = None
        self._segments: list[Segment] = []
        self._text = ""
        self._language = self._language_token(options)

    def _language_token(self, options: TranscribeOptions) -> int | None:
        tokens = self._tokens
        if not tokens.languages:
            if options.task == "translate" or options.language not in (None, "en"):
                raise UnsupportedError("[transcribe] the model knows English only")
            return None
        if options.language is None:
            return None
        if options.language not in tokens.languages:
            raise UnsupportedError(f"[transcribe] the model does not know {options.language_name}")
        return tokens.languages[options.language]

    def next_request(self) -> EngineRequest | None:
        if self._seek >= self._n_frames:
            return None
        frames = self._frames[self._seek : self._seek + WINDOW]
        padded = np.pad(frames, ((0, WINDOW - len(frames)), (0, 0)))
        view = SoundWindow(padded, WINDOW, 1, min(self._n_frames - self._seek, WINDOW))
        rows = self._media.read_view("audio", view)
        prompt, forced = self._prompt()
        self._rules = WhisperRules(self._tokens, len(prompt), forced, self._has_times, self._never)
        params = replace(self._options.sampling, logits_processors=(self._rules,), logprobs=0)
        request = self._request
        return EngineRequest(
            prompt, params, request.salt, request.priority, request.key,
            media=PromptMedia([(0, rows.digest, rows.rows)], None, ()),
        )  # fmt: skip

    def _prompt(self) -> tuple[list[int], list[int | None]]:
        """Return the prompt, and the tokens with which the answer begins."""
        tokens = self._tokens
        prompt = [tokens.start]
        if self._options.prompt and self._seek == 0:
            text = self._tokenizer.encode(" " + self._options.prompt.strip(), add_special=False, parse_special=False)
            prompt = [tokens.before, *text[-(self._n_ctx // 2 - 1) :], tokens.start]
        rest: list[int | None] = []
        if tokens.languages:
            rest += [self._language, tokens.tasks[self._options.task]]
        if not self._has_times:
            rest.append(tokens.no_times)
        # The row of the start token tells the language, and whether anybody speaks.
        known = [token for token in rest if token is not None]
        if self._has_times or len(known) < len(rest):
            return prompt, rest or []
        return [*prompt, *known], []

    def feed(self, delta: Delta) -> str:
        return "" if self._has_times else self._show(delta.text)

    def _show(self, text: str) -> str:
        text = text if self._text else text.lstrip()
        self._text += text
        return text

    def finish(self, result: GenerationResult) -> tuple[str, Sequence[Segment]]:
        rules, logprobs = self._rules, result.logprobs or []
        assert rules is not None
        if rules.language is not None:
            self._language = rules.language
        written = result.token_ids[len(rules.forced) :]
        sums = sum(each.logprob for each in logprobs[len(rules.forced) :])
        if written and written[-1] == self._tokens.end:
            written = written[:-1]
        likely = sums / (len(written) + 1)
        n_frames = min(self._n_frames - self._seek, WINDOW)
        found: list[Segment] = []
        if not self._has_times:
            self._seek += n_frames
            return "", ()
        if rules.no_speech_prob > _SILENT and likely < _UNLIKELY:
            self._seek += n_frames
            return "", ()
        about = _About(self._options.sampling.temperature, likely, rules.no_speech_prob)
        begin_s = self._seek / _FRAMES
        spans, offset = divided(written, self._tokens.first_time, n_frames)
        for ids, first, last in spans:
            text = self._tokenizer.decode([id for id in ids if id < self._tokens.end])
            if text.strip():
                found.append(about.segment(begin_s + first / _TIMES, begin_s + last / _TIMES, text, ids))
        self._seek += offset or n_frames
        self._segments += found
        shown = found if self._options.timestamps else ()
        return self._show("".join(each.text for each in found)), shown

    def transcript(self) -> Transcript:
        codes = {token: code for code, token in self._tokens.languages.items()}
        language = codes.get(self._language) if self._language is not None else None
        if not codes:
            language = "en"
        segments = self._segments if self._options.timestamps else ()
        return Transcript(self._text.strip(), language, self.duration, tuple(segments))


@dataclass(frozen=True)
class _About:
    """Figures that the segments of a window share."""

    temperature: float
    avg_logprob: float
    no_speech_prob: float

    def segment(self, start: float, end: float, text: str, ids: Sequence[int]) -> Segment:
        data = text.encode()
        return Segment(
            start, end, text, tuple(ids), self.temperature, self.avg_logprob, len(data) / len(zlib.compress(data)),
            self.no_speech_prob,
        )  # fmt: skip


def divided(ids: Sequence[int], first_time: int, n_frames: int) -> tuple[list[tuple[Sequence[int], float, float]], int]:
    """Divide the tokens of a window into segments, as transformers does.

    Args:
        ids: The tokens, without the end token.
        first_time: The token of time 0.
        n_frames: Frames of the window.

    Returns:
        Tokens of each segment with the timestamps of its ends, and the frames after which the next window begins.
    """
    is_time = [id >= first_time for id in ids]
    ends_with_one = is_time[-2:] == [False, True]
    cuts = [i for i in range(1, len(ids)) if is_time[i - 1] and is_time[i]]
    if not cuts:
        times = [id - first_time for id in ids if id >= first_time]
        last = times[-1] if times and times[-1] else n_frames * _TIMES // _FRAMES
        return [(ids, 0, last)], n_frames
    if ends_with_one:
        cuts.append(len(ids))
    else:
        cuts[-1] += 1  # the second timestamp of the last pair: an unfinished segment follows, which is heard again
    found: list[tuple[Sequence[int], float, float]] = []
    begin = 0
    for cut in cuts:
        part = ids[begin:cut]
        ends_here = cut != cuts[-1] or ends_with_one
        found.append((part, part[0] - first_time, part[-1 if ends_here else -2] - first_time))
        begin = cut
    if ends_with_one:
        return found, n_frames
    return found, (ids[begin - 2] - first_time) * _FRAMES // _TIMES
