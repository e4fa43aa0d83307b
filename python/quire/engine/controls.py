"""Pause a model, free its memory, and change its weights, for training loops.

``ModelControls`` has the blocking operations; ``LLM`` and ``AsyncLLM`` offer them under their public names.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..errors import QuireError, RequestError, UnsupportedError
from .loading.loader import open_model, packaged_model
from .loading.new_weights import NewTensors, write_with_tensors

if TYPE_CHECKING:
    from ..params.engine_options import EngineConfig
    from .adapters import AdapterInfo
    from .engine import Engine
    from .requests.prompts import Prompts

__all__ = ["ControlState", "ModelControls", "PauseMode", "SleepMode", "SleepTag", "Weights"]

PauseMode: TypeAlias = Literal["keep", "wait", "abort"]
SleepTag: TypeAlias = Literal["weights", "kv_cache"]
Weights: TypeAlias = "str | os.PathLike[str] | NewTensors"
"""A checkpoint folder or file, or tensors by the names of the checkpoint that the model was opened from."""
SleepMode: TypeAlias = Literal["abort", "wait"]
_ASLEEP = "[asleep] the model sleeps: call wake_up"
_PUT_TO_SLEEP = "[asleep] the model was put to sleep before the answer was complete"
_NEW_WEIGHTS = "[new weights] the model got new weights before the answer was complete"


@dataclass(eq=False)
class ControlState:
    """The state that all front ends of a model share.

    ``pause`` identifies the current pause, None if there is none.  It is ``settled`` once nothing is computed any more.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    source: Path | None = None  # the weights in place of those that the model was opened with
    drop_folder: weakref.finalize[..., ControlState] | None = None  # removes ``source`` if it was made of tensors
    pause: object | None = None
    settled: bool = False
    asleep: set[str] = field(default_factory=set)
    adapters: list[AdapterInfo] = field(default_factory=list)


class ModelControls:
    """An open model that can be paused, put to sleep, and given new weights."""

    _engine: Engine
    _controls: ControlState
    _close_engine: weakref.finalize[..., ModelControls]
    _prompts: Prompts
    config: EngineConfig
    path: Path | None
    n_ctx: int
    n_vocab: int
    architecture: str

    @property
    def is_paused(self) -> bool:
        """True from ``pause`` to ``resume``."""
        return self._controls.pause is not None

    @property
    def is_sleeping(self) -> bool:
        """True from ``sleep`` until ``wake_up`` has brought back everything."""
        return bool(self._controls.asleep)

    def _pause_all(self, mode: PauseMode) -> None:
        if mode not in ("keep", "wait", "abort"):
            raise RequestError(f"[pause] mode {mode!r:.40} is unknown: expected keep, wait or abort")
        state, engine = self._controls, self._engine
        with state.lock:
            if state.settled or state.asleep:
                return
            if state.pause is None:
                engine.hold()
                state.pause = object()
            pause = state.pause
            if mode == "abort":
                engine.cancel_all()
        if mode != "keep":
            engine.wait_until_idle()  # without the lock, so that resume() and sleep() need not wait
        with state.lock:
            if state.pause is not pause:
                raise RequestError("[pause] resume() ended the pause before the requests in flight had ended")
            if not engine.closed:
                engine.freeze(frozen=True)
            state.settled = True

    def _resume_all(self) -> None:
        with self._controls.lock:
            if self._controls.pause is None:
                return
            if self._controls.asleep:
                raise RequestError(_ASLEEP)
            self._end_pause()

    def _end_pause(self) -> None:
        self._controls.pause, self._controls.settled = None, False
        if not self._engine.closed:
            self._engine.freeze(frozen=False)
        self._engine.release()

    def _sleep(self, level: int, mode: SleepMode = "abort") -> None:
        if level not in (1, 2):
            raise RequestError(f"[sleep] level {level!r:.40} is unknown: expected 1 or 2")
        if mode not in ("abort", "wait"):
            raise RequestError(f"[sleep] mode {mode!r:.40} is unknown: expected abort or wait")
        state, was_paused = self._controls, self.is_paused
        if mode == "wait":
            self._pause_all("wait")
        with state.lock:
            if not state.asleep:
                self._require_open()
                self._shut(_ASLEEP, _PUT_TO_SLEEP)
            state.asleep = {"weights", "kv_cache"}
            if mode == "wait" and not was_paused:
                self._end_pause()

    def _wake_up(self, tags: SleepTag | Collection[SleepTag] | None) -> None:
        state = self._controls
        wanted: set[str] = {tags} if isinstance(tags, str) else set(tags or ())
        if unknown := sorted(wanted - {"weights", "kv_cache"}):
            raise RequestError(f"[wake_up] tag {unknown[0]!r:.40} is unknown: expected weights or kv_cache")
        with state.lock:
            if not state.asleep:
                return
            self._require_open()
            left = set() if tags is None else state.asleep - wanted
            if not left:
                self._open(state.source)
            state.asleep = left

    def _update_weights(self, weights: Weights) -> None:
        if not self._engine_makes_text:
            raise UnsupportedError("[update_weights] new weights are unsupported for encoders: open another model")
        state = self._controls
        with state.lock:
            self._require_open()
            folder: str | None = None
            if isinstance(weights, str | os.PathLike):
                source = Path(weights)
                if not source.exists():
                    raise RequestError(f"[update_weights] no such file or folder: {source}")
            else:
                folder = tempfile.mkdtemp(prefix="quire-weights-")
                source = Path(folder)
                try:
                    write_with_tensors(state.source or self.path or packaged_model(), weights, source)
                except BaseException:
                    shutil.rmtree(folder)
                    raise
            before = state.source
            if not state.asleep:
                self._shut("[new weights] the model is loading new weights", _NEW_WEIGHTS)
                try:
                    self._open(source)
                except QuireError:
                    if folder is not None:
                        shutil.rmtree(folder)
                    self._open(before)  # go on with the weights that it had
                    raise
            if state.drop_folder is not None:
                state.drop_folder()
            state.source = source
            state.drop_folder = None if folder is None else weakref.finalize(state, shutil.rmtree, folder, True)

    @property
    def _engine_makes_text(self) -> bool:
        return self._engine.makes_logits

    def _require_open(self) -> None:
        if not self._close_engine.alive:
            raise RequestError("[engine] the engine is closed")

    def _shut(self, because: str, interruption: str) -> None:
        """Free the weights and the cache; see ``Engine.close``."""
        if self._engine.adapters is not None:
            self._controls.adapters = self._engine.adapters.infos
        self._engine.close(because, interruption)

    def _open(self, source: Path | None) -> None:
        """Open the weights.  LoadError for those of another model."""
        opened = open_model(source or self.path, replace(self.config, n_ctx=self.n_ctx))
        found, mine = (opened.architecture, opened.n_vocab), (self.architecture, self.n_vocab)
        if found != mine:
            opened.decoder.close()
            text = f"the weights are of {found[0]} with {found[1]} tokens: expected {mine[0]} with {mine[1]}"
            raise RequestError(f"[update_weights] {text}")
        self._engine.use(opened.decoder, opened.adapters)
        self._prompts.use_media(opened.media)
        if opened.adapters is not None:
            known = {info.name for info in opened.adapters.infos}
            for info in self._controls.adapters:
                if info.name not in known:
                    opened.adapters.add(info.path, info.name, info.scale)
        if self._controls.pause is not None:
            self._engine.freeze(frozen=True)
            self._controls.settled = True

    def _reset_prefix_cache(self) -> None:
        with self._controls.lock:
            if not self._controls.asleep:
                self._engine.forget_prefixes()
