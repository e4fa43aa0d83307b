"""Supervise a worker process: one that crashes or hangs is restarted, and its requests receive an error."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from ...errors import DeviceError, LoadError, RequestError, ShapeError, UnsupportedError
from ...system import connect, ended_by, was_killed
from ..failures import ApiError
from .awake_clock import AwakeClock
from .batch_delay import BatchDelay
from .engine_client import EngineState, OpeningLost, Stream, Streams
from .frames import frame
from .launch import Launched, launch
from .listener_channel import ListenerSide
from .poison_requests import PoisonRequests
from .protocol import Beat, Cancel, Chat, Failed, FromEngine, Generate, ModelInfo, Open, Pause, Ready, Work

__all__ = ["Watch", "WorkerSupervisor"]

_LOST = DeviceError.__name__
# Errors in the file or the request, which a restart cannot fix.
_FINAL = tuple(kind.__name__ for kind in (LoadError, RequestError, ShapeError, UnsupportedError))


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Time limits for a worker, in seconds during which this process was awake.

    Attributes:
        silent_s: Without a heartbeat for this long, a worker counts as not answering.
        hung_s: Without a heartbeat for this long, it is killed.
        hung_step_s: It is killed if one step of the model takes longer.
        load_s: The longest time to load a model.
        pause_s: The longest pause before a restart.
        settled_s: A worker that ran its model for at least this long is restarted without a pause; one that ends
            earlier
            may crash at every start.
        device_losses: After this many lost devices within ``device_losses_s``, no worker is started any more.
    """

    silent_s: float = 2.5
    hung_s: float = 5.0
    hung_step_s: float = 120.0
    load_s: float = 1800.0
    pause_s: float = 10.0
    settled_s: float = 2.0
    check_s: float = 0.25
    device_losses: int = 3
    device_losses_s: float = 60.0


@dataclass
class _Worker:
    """One worker process.  ``begun_s``, ``heard_s`` and ``stepped_s`` are times of the awake clock."""

    launched: Launched
    connection: socket.socket
    begun_s: float
    heard_s: float
    stepped_s: float
    channel: ListenerSide | None = None
    hung: bool = False
    disconnected: asyncio.Future[None] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.launched.process

    @property
    def started_s(self) -> float:
        return self.launched.started_s


class WorkerSupervisor(Streams):
    """An ``EngineClient`` whose model is in another process.

    Unless ``launched`` is given, the process is started at once, so that it loads the model while the listener starts
    up. Messages go over an anonymous pair of sockets.
    """

    def __init__(
        self,
        opened: Open,
        watch: Watch | None = None,
        command: Sequence[str] | None = None,
        launched: Launched | None = None,
        batch_delay_s: float = 0.0,
    ) -> None:
        """Create the client; ``batch_delay_s`` delays an idle worker's first request, see ``BatchDelay``."""
        super().__init__()
        self._batch_delay = BatchDelay(batch_delay_s, self._send) if batch_delay_s > 0 else None
        self._opened = opened
        self._watch = watch or Watch()
        self._clock = AwakeClock(2 * self._watch.check_s)
        self._command = command
        self._poison = PoisonRequests()
        self._with_device: list[Work] = []  # requests that were lost with the device
        self._devices_lost_s: list[float] = []  # times of recent losses
        self._gave_up = ""  # the reason why no worker is started any more
        self._info: ModelInfo | None = None
        self._beat: Beat | None = None
        self._state = EngineState.LOADING
        self._load_s = 1.0
        self._changed = asyncio.Event()
        self._failure: Failed | None = None
        self._supervising: asyncio.Task[None] | None = None
        self.n_restarts = 0
        launched = launched or launch(self._command)
        self._worker: _Worker | None = self._told(launched, launched.connection())

    @property
    def state(self) -> EngineState:
        if self._state is EngineState.READY and self._silent_s() > self._watch.silent_s:
            return EngineState.HUNG
        return self._state

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise self._away()
        return self._info

    @property
    def beat(self) -> Beat | None:
        return self._beat

    @property
    def process_id(self) -> int | None:
        """The worker's process id, None if there is none."""
        return None if self._worker is None else self._worker.process.pid

    def keep_adapters(self, info: Mapping[str, Any], kept: list[tuple[str, str, float]]) -> None:
        self._info = replace(self.info, **info)
        self._opened = replace(self._opened, adapters=kept)

    def keep_controls(self, paused: bool, asleep: list[str]) -> None:
        self._opened = replace(self._opened, paused=paused, asleep=asleep)

    def submit(self, work: Work) -> Stream:
        if self.state is not EngineState.READY or self._worker is None or self._worker.channel is None:
            raise self._away()
        if self._poison.refuses(work):
            text = "this request was in flight at two worker crashes and is not tried again"
            raise ApiError(400, "poison_request", text)
        made, stream = self.open(work)
        try:
            if self._batch_delay is not None and isinstance(made, Generate | Chat) and self._is_alone():
                frame([made])
                self._batch_delay.add(made, self.info.max_sequences)
            else:
                self._send([made])
        except OverflowError:  # an integer in a part without a schema, such as a message
            self.close(made.id, cancel=False)
            raise ApiError(400, "invalid_value", "an integer in the request does not fit into 64 bits") from None
        return stream

    def _is_alone(self) -> bool:
        """Return whether the worker runs nothing except held requests and the newest one."""
        return self._batch_delay is not None and self.n_active <= len(self._batch_delay) + 1

    def _send(self, work: Sequence[Work]) -> None:
        if self._worker is not None and self._worker.channel is not None:
            self._worker.channel.send(work)

    def send_cancel(self, id_: int) -> None:
        if self._batch_delay is not None and self._batch_delay.remove(id_):
            return
        if self._worker is not None and self._worker.channel is not None:
            self._worker.channel.send([Cancel(id_)])

    def send_pause(self, id_: int, paused: bool) -> None:
        if self._worker is not None and self._worker.channel is not None:
            self._worker.channel.send([Pause(id_, paused)])

    async def start(self) -> None:
        """Wait until the model is loaded.  Raises the worker's error if that fails."""
        await self._connect()
        self._supervising = asyncio.ensure_future(self._supervise())
        while self._state is EngineState.LOADING:
            await self._changed.wait()
            self._changed.clear()
        if self._state is not EngineState.READY:
            failure = self._failure
            await self.stop()
            if failure is None:
                raise OpeningLost("[serve] the worker exited while loading the model")
            raise _quire_error(failure)

    async def stop(self) -> None:
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.wait({self._supervising})
            self._supervising = None
        self._set(EngineState.STOPPED)
        if self._batch_delay is not None:
            self._batch_delay.clear()
        self.fail_all("Lost", "the server shut down before the answer was complete")
        worker, self._worker = self._worker, None
        if worker is not None:
            await _end(worker)

    def _away(self) -> ApiError:
        seconds = max(1, round(self._load_s + 0.5))
        text = self._gave_up or f"the model is not ready: {self.state.value}"
        return ApiError(503, "model_not_ready", text, retry_after_s=seconds)

    def _silent_s(self) -> float:
        return 0.0 if self._worker is None else self._clock.now() - self._worker.heard_s

    def _set(self, state: EngineState) -> None:
        self._state = state
        self._changed.set()

    def reload_from(self, path: str) -> None:
        """Load this file or folder if the worker has to be restarted."""
        self._opened = replace(self._opened, path=path)

    def _told(self, launched: Launched, connection: socket.socket) -> _Worker:
        """Send the first message, which names the model, to a new worker."""
        connection.sendall(frame([self._opened]))
        connection.setblocking(False)
        now = self._clock.now()
        return _Worker(launched, connection, now, now, now)

    async def _connect(self) -> None:
        worker = self._worker
        assert worker is not None

        def received(messages: list[FromEngine]) -> None:
            if self._worker is worker:
                self._receive(worker, messages)

        def lost() -> None:
            if not disconnected.done():
                disconnected.set_result(None)

        disconnected = worker.disconnected = asyncio.get_running_loop().create_future()
        worker.channel = await connect(lambda: ListenerSide(received, lost), worker.connection)

    def _receive(self, worker: _Worker, messages: list[FromEngine]) -> None:
        now = worker.heard_s = self._clock.now()
        for message in messages:
            if isinstance(message, Beat):
                if self._beat is None or message.n_steps != self._beat.n_steps or not message.n_running:
                    worker.stepped_s = now
                self._beat = message
            elif isinstance(message, Ready):
                self._failure = None
                self._info = message.info
                self._load_s = time.monotonic() - worker.started_s
                worker.stepped_s = now
                self._set(EngineState.READY)
            elif isinstance(message, Failed) and message.id == 0:
                self._failure = message
            elif isinstance(message, Failed) and message.kind == _LOST and message.id in self._work:
                self._with_device.append(self._work[message.id])  # the worker is about to exit
        self.dispatch(messages)

    async def _supervise(self) -> None:
        """Watch the worker and restart it when it ends."""
        pause_s = 0.0
        while True:
            worker = self._worker
            assert worker is not None
            first = self._state is EngineState.LOADING
            await self._until_it_ends(worker)
            await _end(worker)
            self._beat = None
            if first and self._info is None:
                self._set(EngineState.STOPPED)
                return
            self._lost(worker)
            if self._gave_up:
                self._set(EngineState.FAILED if self._failure is not None else EngineState.STOPPED)
                return
            lived_s = time.monotonic() - worker.started_s
            settled = lived_s > self._watch.settled_s + self._load_s
            pause_s = 0.0 if settled else min(max(2 * pause_s, 0.1), self._watch.pause_s)
            await asyncio.sleep(pause_s)
            self.n_restarts += 1
            launched = launch(self._command)
            self._worker = self._told(launched, await asyncio.to_thread(launched.connection))
            await self._connect()

    async def _until_it_ends(self, worker: _Worker) -> None:
        watch = self._watch
        while worker.process.poll() is None:
            self._clock.tick()
            now = self._clock.now()
            if self._state is EngineState.READY:
                worker.hung = now - worker.heard_s > watch.hung_s or now - worker.stepped_s > watch.hung_step_s
            else:
                worker.hung = now - worker.begun_s > watch.load_s
            if worker.hung:
                return
            # Not wait_for, which may lose a cancellation.
            assert worker.disconnected is not None
            await asyncio.wait({worker.disconnected}, timeout=watch.check_s)
            if worker.disconnected.done():
                await asyncio.sleep(0.01)

    def _lost(self, worker: _Worker) -> None:
        self._set(EngineState.RESTARTING)
        code = worker.process.returncode
        by = ended_by(code)
        how = "hung" if worker.hung else f"was killed by {by}" if by else f"exited with code {code}"
        if self._with_device:
            self._lost_a_device()
        elif self._failure is not None and self._failure.kind in _FINAL:
            self._gave_up = f"the model cannot be loaded again: {self._failure.message}"
            how = f"{how}: {self._gave_up}"
        then = "" if self._gave_up else "; restarting it"
        sys.stderr.write(f"quire: the worker {how}; {self.n_active} requests failed{then}\n")
        if self._batch_delay is not None:
            self._batch_delay.clear()
        lost = self.fail_all("Lost", f"the worker {how} before the answer was complete")
        lost += self._with_device
        self._with_device = []
        if worker.hung or not was_killed(code):
            self._poison.add(lost)

    def _lost_a_device(self) -> None:
        """Give up after repeated losses: a driver that keeps failing needs a person; restarts would hide that."""
        watch, now = self._watch, self._clock.now()
        self._devices_lost_s = [at for at in self._devices_lost_s if now - at < watch.device_losses_s] + [now]
        if len(self._devices_lost_s) < watch.device_losses:
            return
        n, seconds = watch.device_losses, watch.device_losses_s
        self._gave_up = f"the device was lost {n} times within {seconds:.0f} s: no worker is started any more"
        sys.stderr.write(f"quire: {self._gave_up}; check the driver (quire devices --check), then restart the server\n")


async def _end(worker: _Worker) -> None:
    """Close the connection, which ends a responsive worker; kill it otherwise."""
    if worker.channel is not None:
        worker.channel.close()
    else:
        worker.connection.close()
    patience_s = 0.0 if worker.hung else 1.0
    end_s = time.monotonic() + patience_s
    while worker.process.poll() is None and time.monotonic() < end_s:
        await asyncio.sleep(0.01)
    if worker.process.poll() is None:
        worker.process.kill()
    await asyncio.to_thread(worker.process.wait)


def _quire_error(failure: Failed) -> Exception:
    from ... import errors

    kind = getattr(errors, failure.kind) if failure.kind in errors.__all__ else LoadError
    error: Exception = kind(failure.message)
    return error
