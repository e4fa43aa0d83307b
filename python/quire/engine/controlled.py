"""The public names of ``ModelControls``: blocking for ``LLM``, awaited for ``AsyncLLM``."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from .controls import PauseMode, SleepMode, SleepTag, Weights
from .core import LLMCore
from .sessions import SessionsCore

__all__ = ["AsyncControls", "ControlledCore"]


class ControlledCore(SessionsCore):
    """An open model with controls for training loops; calls block."""

    def pause(self, mode: PauseMode = "keep") -> None:
        """Stop computing until ``resume``.  New requests wait.

        Args:
            mode: What happens to requests in flight: ``"keep"`` freezes them, ``"wait"`` lets them end first, and
                ``"abort"`` ends them as cancelled.

        Raises:
            RequestError: ``resume`` was called before the requests in flight had ended.
        """
        self._pause_all(mode)

    def resume(self) -> None:
        """Go on after ``pause``, even if it is still waiting for requests in flight."""
        self._resume_all()

    def sleep(self, level: int = 1, mode: SleepMode = "abort") -> None:
        """Free the memory of weights and cache; requests fail until ``wake_up``.

        Args:
            level: 1 or 2, as in vLLM.  Both free everything: weights are read from their file again.
            mode: What happens to requests in flight: ``"abort"`` fails them, and ``"wait"`` lets them end first.
        """
        self._sleep(level, mode)

    def wake_up(self, tags: SleepTag | Collection[SleepTag] | None = None) -> None:
        """Load the model again after ``sleep``.

        Args:
            tags: ``"weights"`` and ``"kv_cache"``, as in vLLM; None for both.  The model loads once both are awake, so
                that ``update_weights`` in between does not load it twice.
        """
        self._wake_up(tags)

    def update_weights(self, weights: Weights) -> None:
        """Replace the model's weights.  Requests in flight fail; the prefix cache and pins are dropped.

        Args:
            weights: A checkpoint folder or file of the same model; or tensors of PyTorch or NumPy by the names of the
                checkpoint folder that the model was opened from, as a mapping or as pairs.  Tensors that are not given
                stay as they are.

        If the weights cannot be loaded, the model goes on with those that it had.

        Raises:
            RequestError: A name or shape is not the model's.
            UnsupportedError: Tensors for a model that was not opened from a checkpoint folder, or an encoder.
            LoadError: The files cannot be read.
        """
        self._update_weights(weights)

    load_weights = update_weights

    def reset_prefix_cache(self) -> None:
        """Let no later request find what is cached, and end all pins."""
        self._reset_prefix_cache()


class AsyncControls(LLMCore):
    """``ControlledCore`` for event loops."""

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stop computing until ``resume``; see ``LLM.pause``."""
        await asyncio.to_thread(self._pause_all, mode)

    async def resume(self) -> None:
        """Go on after ``pause``."""
        await asyncio.to_thread(self._resume_all)

    async def sleep(self, level: int = 1, mode: SleepMode = "abort") -> None:
        """Free the memory of weights and cache; see ``LLM.sleep``."""
        await asyncio.to_thread(self._sleep, level, mode)

    async def wake_up(self, tags: SleepTag | Collection[SleepTag] | None = None) -> None:
        """Load the model again after ``sleep``; see ``LLM.wake_up``."""
        await asyncio.to_thread(self._wake_up, tags)

    async def update_weights(self, weights: Weights) -> None:
        """Replace the model's weights; see ``LLM.update_weights``."""
        await asyncio.to_thread(self._update_weights, weights)

    async def reset_prefix_cache(self) -> None:
        """Let no later request find what is cached, and end all pins."""
        await asyncio.to_thread(self._reset_prefix_cache)
