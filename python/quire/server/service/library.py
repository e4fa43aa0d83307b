"""The models of a server: which exist, which are loaded, and which are evicted when memory is short."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ...errors import CapacityError, QuireError
from ..failures import ApiError
from ..keep_alive import FOREVER
from ..worker.engine_client import EngineClient, EngineState, OpeningLost
from ..worker.protocol import ModelInfo
from .catalog import Catalog
from .model_slot import MakeEngine, ModelSlot

__all__ = ["Library", "not_ready"]

_GROW_S = 30.0  # how long a longer context waits for other requests to finish
_AGAIN_S = 0.05  # interval between checks of a busy model


class Library:
    """Models by name.

    Loaded models together stay within ``budget_bytes``.  The least recently used is evicted first, and never while it
    has requests in flight.
    """

    def __init__(
        self,
        default: str | None,
        sizes: Callable[[], dict[str, int]] | Catalog,
        make: MakeEngine,
        budget_bytes: int,
        least_bytes: int = 0,
        *,
        keep_s: float = FOREVER,
    ) -> None:
        """Create the library.

        Args:
            default: The model for requests that name none.
            sizes: The models that exist now, with the bytes of their files.
            make: See ``MakeEngine``.
            least_bytes: Memory of a worker process besides its model file.
            keep_s: How long an unused model stays loaded.
        """
        self._keep_s = keep_s
        self._closing: set[asyncio.Task[None]] = set()
        self.default = default
        self._catalog = sizes if isinstance(sizes, Catalog) else Catalog(sizes)
        # The default model with the reason, if it was loaded before and can no longer be loaded.
        self.failed: dict[str, str] = {}
        self._make = make
        self._budget_bytes, self._least_bytes = budget_bytes, least_bytes
        self._slots: dict[str, ModelSlot] = {}
        # Properties of models, remembered when they were unloaded.
        self.asleep: dict[str, ModelInfo] = {}
        self._making_room = asyncio.Lock()

    @classmethod
    def of(cls, name: str, make: Callable[[], EngineClient], keep_s: float = FOREVER) -> Library:
        """Create a library of one model, loaded from the start; ``make`` returns a new engine for each load."""
        library = cls(name, Catalog(lambda: {name: 0}, fixed=True), lambda *_: make(), 0, keep_s=keep_s)
        library.open_from_start(name)
        return library

    def open_from_start(self, name: str) -> None:
        """Have a model loaded as soon as the library starts."""
        share = self._share(name)
        self._slots[name] = ModelSlot(self._make(name, share, None), share)

    def engines(self) -> dict[str, EngineClient]:
        """Return the models that are loaded or being loaded."""
        return {name: slot.engine for name, slot in self._slots.items()}

    @property
    def usual(self) -> str | None:
        """The model for requests that name none: the default, the last used loaded one, the only one, or None."""
        if self.default is not None:
            return self.default
        if self._slots:
            return max(self._slots, key=lambda name: self._slots[name].used_s)
        return next(iter(self.known)) if len(self.known) == 1 else None

    @property
    def known(self) -> dict[str, int]:
        """The models found by the last scan, with the sizes of their files in bytes."""
        return self._catalog.known

    async def rescan(self, *, force: bool = False) -> dict[str, int]:
        """Scan for models and return their file sizes by name.  ``force``: this server has just changed them."""
        return await self._catalog.renew(force=force)

    async def start(self) -> None:
        """Load the models that should be loaded from the start.  Raises the QuireError of one that fails."""
        for name, slot in list(self._slots.items()):
            await slot.engine.start()
            self._rest(name, slot)

    async def stop(self) -> None:
        """Unload all models."""
        for slot in list(self._slots.values()):
            if slot.opening is not None:
                slot.opening.cancel()
            if slot.timer is not None:
                slot.timer.cancel()
            await slot.engine.stop()
        if self._closing:
            await asyncio.wait(self._closing)

    @asynccontextmanager
    async def pinned(self, name: str, opener: str | None = None) -> AsyncIterator[EngineClient]:
        """Load a model if necessary and keep it loaded while the block runs.  ``opener`` is the caller who asks.

        ApiError 404 for an unknown model, 503 if there is no room for it now, 500 if it can never be opened.
        """
        slot = self._slots.get(name)
        if slot is not None and slot.engine.state is EngineState.FAILED:
            # Its file may have been removed or repaired since, so try to load it again.
            del self._slots[name]
            await slot.engine.stop()
            slot = self._slots.get(name)
        slot = slot or await self._begin(name, opener)
        slot.n_pins += 1
        try:
            if slot.opening is not None:
                await _opened(slot.opening)
            slot.used_s = time.monotonic()
            yield slot.engine
        finally:
            slot.n_pins -= 1
            self._rest(name, slot)

    def opener_of(self, name: str) -> str | None:
        """Return the caller whose request loaded a model; None if the server did, or if it is not loaded."""
        slot = self._slots.get(name)
        return None if slot is None else slot.opener

    def keep(self, name: str, seconds: float | None) -> None:
        """Set how long a loaded model stays when nothing uses it; None for the default."""
        slot = self._slots.get(name)
        if slot is not None:
            slot.keep_s = seconds

    async def grow(self, name: str, n_ctx: int) -> None:
        """Reload a model with a longer context, for a request that has it pinned.  Waits for other requests.

        ApiError 400 if there is not enough memory (the model then keeps its context), 503 if other requests take too
        long.
        """
        slot = self._slots[name]
        slot.n_growing += 1
        end_s = time.monotonic() + _GROW_S
        try:
            while slot.opening is not None or slot.n_pins > slot.n_growing or slot.engine.n_active:
                if slot.opening is not None:
                    await _opened(slot.opening)
                    continue
                if time.monotonic() > end_s:
                    raise ApiError(
                        503, "model_busy", "the model is busy: it cannot be reloaded with a longer context now", None, 1
                    )
                await asyncio.sleep(_AGAIN_S)
            if slot.engine.info.n_ctx >= n_ctx:
                return
            refused: list[QuireError | ApiError] = []
            slot.opening = asyncio.ensure_future(self._reopen(name, slot, n_ctx, refused))
            await _opened(slot.opening)
            if refused and isinstance(refused[0], ApiError):  # other models use the memory now
                raise refused[0]
            if refused:
                raise ApiError(400, "context_too_large", f"no memory for a context of {n_ctx} tokens: {refused[0]}")
        finally:
            slot.n_growing -= 1

    def stays_s(self, name: str) -> float | None:
        """Return the seconds until an unused model is unloaded; None if it stays."""
        slot = self._slots.get(name)
        keep_s = self._keep_s if slot is None or slot.keep_s is None else slot.keep_s
        return None if slot is None or keep_s < 0 else max(0.0, slot.used_s + keep_s - time.monotonic())

    def _rest(self, name: str, slot: ModelSlot) -> None:
        """Schedule the unloading of a model that is no longer used."""
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None
        keep_s = self._keep_s if slot.keep_s is None else slot.keep_s
        if slot.n_pins or keep_s < 0 or self._slots.get(name) is not slot:
            return
        slot.used_s = time.monotonic()
        slot.timer = asyncio.get_running_loop().call_later(keep_s, self._retire, name, slot)

    def _retire(self, name: str, slot: ModelSlot) -> None:
        slot.timer = None
        if self._slots.get(name) is not slot or slot.n_pins:
            return
        if slot.busy:  # a request that does not pin it is in flight
            slot.timer = asyncio.get_running_loop().call_later(_AGAIN_S, self._retire, name, slot)
            return
        # Remove it at once: a question between this decision and the task would otherwise cancel the unloading for
        # good.
        task = asyncio.ensure_future(self._take_out(name).engine.stop())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self, name: str) -> None:
        """Unload a model.  ApiError 404 if it is not loaded, 409 if it has requests in flight."""
        await self._take_out(name).engine.stop()

    def _take_out(self, name: str) -> ModelSlot:
        """Remove a loaded model from the library and return it.  Raises like ``close``."""
        slot = self._slots.get(name)
        if slot is None:
            raise ApiError(404, "model_not_loaded", f"model {name!r:.80} is not loaded", "model")
        if slot.busy:
            raise ApiError(409, "model_busy", "the model has requests in flight", "model", 1)
        del self._slots[name]
        if slot.engine.state is EngineState.READY:
            self.asleep[name] = slot.engine.info
        return slot

    async def _begin(self, name: str, opener: str | None) -> ModelSlot:
        """Start to load a model once there is room."""
        size = (await self.rescan()).get(name)  # the file of a known model may be gone
        if size is None:
            self.failed.pop(name, None)
            known = ", ".join(sorted(self.known)[:20])
            raise ApiError(404, "model_not_found", f"no such model: {name!r:.80} (available: {known})", "model")
        # One at a time: a model being unloaded still has its memory, and room is made for the call that asked for it.
        async with self._making_room:
            if (slot := self._slots.get(name)) is not None:  # another call has loaded it meanwhile
                return slot
            await self._make_room(size + self._least_bytes)
            share = self._share(name)
            slot = self._slots[name] = ModelSlot(self._make(name, share, None), share, opener)
            slot.opening = asyncio.ensure_future(self._open(name, slot))
            return slot

    async def _open(self, name: str, slot: ModelSlot) -> None:
        try:
            await self._start(name, slot)
            self.failed.pop(name, None)
        except BaseException as error:
            self._slots.pop(name, None)
            if isinstance(error, QuireError) and name == self.default:
                self.failed[name] = str(error)
            raise
        finally:
            slot.opening = None

    async def _reopen(self, name: str, slot: ModelSlot, n_ctx: int, refused: list[QuireError | ApiError]) -> None:
        """Reload a model with another context, or with its previous one if there is no memory."""
        before = slot.n_ctx
        try:
            for slot.n_ctx in (n_ctx, before):
                await slot.engine.stop()
                slot.engine = self._make(name, slot.share_bytes, slot.n_ctx)
                try:
                    await self._start(name, slot)
                    return
                except (CapacityError, ApiError) as error:
                    refused.append(error)
            raise refused[-1]
        except BaseException:
            self._slots.pop(name, None)
            raise
        finally:
            slot.opening = None

    async def _start(self, name: str, slot: ModelSlot) -> None:
        try:
            await slot.engine.start()
        except CapacityError as error:
            await self._open_with_more(name, slot, error)

    async def _open_with_more(self, name: str, slot: ModelSlot, error: CapacityError) -> None:
        """Load a model that did not fit in its share, with all the memory available.

        Raises the error if that is not enough, or ApiError 503 if other models use the missing memory.
        """
        before = slot.share_bytes
        while (idle := self._idle()) is not None:
            await self.close(idle)
        slot.share_bytes = self._budget_bytes - self._taken(name)
        if slot.share_bytes > before:
            slot.engine = self._make(name, slot.share_bytes, slot.n_ctx)
            try:
                await slot.engine.start()
                return
            except CapacityError as again:
                error = again
        if slot.share_bytes < self._budget_bytes:
            raise ApiError(503, "no_room_for_model", str(error), "model", 5) from error
        raise error

    def _taken(self, but: str | None = None) -> int:
        """Return the bytes of the loaded models, except for one."""
        return sum(slot.bytes_now for name, slot in self._slots.items() if name != but)

    def _idle(self) -> str | None:
        """Return the least recently used model that may be unloaded."""
        idle = [(slot.used_s, name) for name, slot in self._slots.items() if not slot.busy]
        return min(idle)[1] if idle else None

    def _share(self, name: str) -> int:
        """Return the memory share of a model.

        That is what it needs at least, plus an equal part of the rest with the other models that fit at the same time.
        """
        need = self.known[name] + self._least_bytes
        rest, n_parts = self._budget_bytes - self._taken() - need, 1
        for other in sorted(
            size for closed, size in self.known.items() if closed not in self._slots and closed != name
        ):
            if (rest_then := rest - other - self._least_bytes) < 0:
                break
            rest, n_parts = rest_then, n_parts + 1
        return need + max(rest, 0) // n_parts

    async def _make_room(self, size: int) -> None:
        """Unload idle models, least recently used first, until ``size`` more bytes fit."""
        if size > self._budget_bytes:
            left = max(0, self._budget_bytes)
            text = f"the model needs at least {size} bytes but the memory budget leaves {left} for models"
            raise ApiError(500, "model_too_large", text, "model")
        while self._taken() + size > self._budget_bytes:
            idle = self._idle()
            if idle is None:
                text = f"no room for {size} bytes more: other models are busy and have all of the memory budget"
                raise ApiError(503, "no_room_for_model", text, "model", 5)
            await self.close(idle)


async def _opened(opening: asyncio.Task[None]) -> None:
    """Wait until a model is loaded.  Errors in its file or the budget are 500, because retrying would not help."""
    try:
        await asyncio.shield(opening)
    except OpeningLost as error:
        raise ApiError(503, "model_not_ready", str(error), "model", 5) from error
    except CapacityError as error:
        raise ApiError(500, "model_too_large", str(error), "model") from error
    except QuireError as error:
        raise ApiError(500, "model_not_loadable", str(error), "model") from error


def not_ready(library: Library) -> dict[str, str]:
    """Return the models that should answer but do not, with the reason."""
    fine = (EngineState.READY, EngineState.LOADING)
    found = {name: engine.state.value for name, engine in library.engines().items() if engine.state not in fine}
    return {**dict.fromkeys(library.failed, EngineState.FAILED.value), **found}
