"""What the routes share: settings, models, figures, and who may come in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hub.preset_options import options_of_preset
from ...system import process_memory
from ..failures import ApiError
from ..fair_pool import FairPool
from ..worker.engine_client import EngineState
from ..worker.memory_share import LEAST_BYTES
from ..worker.protocol import ModelInfo
from .admission import Admission, Ticket
from .catalog import Catalog
from .downloads import Downloads, fetched
from .library import Library
from .metrics import Metrics
from .model_files import find_models, memory_bytes, size_of
from .named_models import NamedModel, named_models
from .recent import Recent
from .response_store import ResponseStore
from .traces import Traces

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from ...hub.registry import Preset
    from ..settings import Settings
    from ..worker.engine_client import EngineClient
    from ..worker.launch import Launched
    from .caller import Caller

__all__ = ["Service", "model_name", "open_service"]


# What the listener takes beside what it has at the start: requests, and answers that are kept for a while.
_OWN_LATER_BYTES = 8 << 20


class Service:
    """The server behind the routes."""

    def __init__(self, settings: Settings, library: Library) -> None:
        self.settings = settings
        self.library = library
        self.metrics = Metrics(library.engines)
        # Scales that clients have set, by the name of the model.
        self.adapter_scales: dict[str, list[float]] = {}
        self.started_s = time.monotonic()
        self.created = int(time.time())
        self.recent = Recent()
        self.admission = Admission(settings)
        self.responses = ResponseStore()
        self.draining = False
        # The file of a model that this server was started with or that its folder has; None for other names.
        self.own_files: Callable[[str], Path | None] = lambda name: None
        self.downloads = Downloads(fetched)
        self.traces = None if settings.traces_endpoint is None else Traces(settings.traces_endpoint)
        self._version = ""
        # One: what two of them do at a time takes no less, as the interpreter does one thing at a time, and the event
        # loop would wait for both.
        self.threads = FairPool(1, "quire-bodies")

    @property
    def model(self) -> str:
        """What answers where a request names no model: its name, or where models are, while none is the usual one."""
        return self.library.usual or self.settings.models_dir or ""

    @property
    def version(self) -> str:
        """Quire's, as a worker tells it: this process does not load the native code that has it, unless it is asked
        before any model was open."""
        infos = [engine.info for engine in self.engines().values() if engine.state is EngineState.READY]
        infos += self.library.asleep.values()
        if infos:
            self._version = infos[0].version
        elif not self._version and not self.engines():
            from ..._native import __version__

            self._version = __version__
        return self._version

    def info(self, model: str | None) -> tuple[ModelInfo, bool]:
        """What is known of a model that is or was open, and whether it sleeps.  Raises as ``engine``."""
        name = self.name_of(model)
        asleep = None if name in self.engines() else self.library.asleep.get(name)
        return (self.engine(model).info, False) if asleep is None else (asleep, True)

    @property
    def names(self) -> list[str]:
        """Names that requests may call models by."""
        return [*self.library.known, *self.settings.aliases]

    def names_of(self, model: str) -> list[str]:
        """The names of one model, that by which it is shown first: an alias comes before the file's own."""
        name = self.exactly(model)
        return [*self.settings.aliases, name] if name == self.library.usual else [name]

    def engines(self) -> dict[str, EngineClient]:
        """The open models, by name."""
        return self.library.engines()

    def exactly(self, model: str) -> str:
        """The model that goes by a name, whether or not it exists.  Ollama's clients add a tag to listed names."""
        if model in self.settings.aliases:
            return self.library.usual or model
        plain = model.removesuffix(":latest")
        return model if plain == model or self._is_there(model) or not self._is_there(plain) else plain

    def _is_there(self, name: str) -> bool:
        return name in self.library.known or name in self.engines() or name in self.settings.aliases

    async def find(self, model: str | None) -> str:
        """Resolve a name like ``name_of``, after looking for new models if it is unknown."""
        if model is not None:
            name = self.exactly(model)
            if name not in self.library.known and name not in self.engines():
                await self.library.rescan()
        return self.name_of(model)

    def name_of(self, model: str | None) -> str:
        """The model that is to answer a request: the one that it names, else the usual one.

        An unknown name means the only model that there is, but where ``settings.strict``.  ApiError 400 where no model
        is the usual one.
        """
        if model is not None:
            name, known = self.exactly(model), self.library.known
            if self.settings.strict or name in known or name in self.engines():
                return name
            return next(iter(known)) if len(known) == 1 else name
        usual = self.library.usual
        if usual is None:
            text = f"model must be one of {', '.join(self.names[:20])} but is absent, and none is open"
            raise ApiError(400, "missing_model", text, "model")
        return usual

    def engine(self, model: str | None) -> EngineClient:
        """The engine of an open model (None: the usual one).  ApiError 404 for none, 503 for a closed one."""
        name = self.name_of(model)
        engine = self.engines().get(name)
        if engine is not None:
            return engine
        if name in self.library.known:
            raise ApiError(503, "model_not_loaded", f"model must be open but {name} is not", "model", 1)
        known = ", ".join(self.names[:20])
        raise ApiError(404, "model_not_found", f"model must be one of {known} but is {name!r:.80}", "model")

    def pinned(self, name: str, caller: Caller | None) -> AbstractAsyncContextManager[EngineClient]:
        """Keep a model open while a block runs, opening it for the caller if needed."""
        return self.library.pinned(name, None if caller is None else caller.name)

    def may_close(self, name: str, caller: Caller | None) -> bool:
        """Return whether a caller may close an open model.

        It may if clients may change models, if there are no keys to tell callers apart, or if it opened the model.
        """
        if self.settings.allow_changes or not self.settings.api_keys:
            return True
        return caller is not None and self.library.opener_of(name) == caller.name

    def enter(self, caller: Caller, n_body_bytes: int) -> Ticket:
        """Let a request in.  ApiError 429 where there are too many."""
        ready = [engine for engine in self.engines().values() if engine.state is EngineState.READY]
        if ready:
            self.admission.n_running = sum(engine.info.max_sequences for engine in ready)
        ticket = self.admission.enter(caller, n_body_bytes)
        self.recent.add_requests(self.admission.n_active)
        return ticket

    async def start(self) -> None:
        """Open the models."""
        await self.library.start()

    async def stop(self) -> None:
        """Close the models, fetch no more, and send the spans that are left."""
        await self.downloads.stop()
        await self.library.stop()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)


def open_service(
    settings: Settings, path: str | None, config: dict[str, Any], launched: Launched | None = None
) -> Service:
    """A service for one model (``path``; None: the package's), for those of ``settings.models_dir``, or for both.

    Where there is a folder and no path, models are opened when they are asked for, and none is the default.
    ``launched``: a worker for the model that is open from the start.
    """
    from ..worker.protocol import Open
    from ..worker.supervisor import WorkerSupervisor

    own = process_memory()[0] + _OWN_LATER_BYTES
    budget = settings.memory_budget_bytes
    waiting = [] if launched is None else [launched]

    def engine_of(
        file: str | None,
        memory_bytes: int | None,
        preset: Preset | None = None,
        n_ctx: int | None = None,
        scales: Sequence[float] | None = None,
    ) -> EngineClient:
        given: dict[str, Any] = {} if memory_bytes is None else {"memory_bytes": max(1, memory_bytes)}
        sampling, system = dict(settings.sampling), settings.system
        if preset is not None:
            given |= options_of_preset(preset)
            sampling, system = {**preset.sampling, **sampling}, preset.system if system is None else system
        if n_ctx is not None:
            given["n_ctx"] = n_ctx
        if scales is not None:
            adapters = given.get("adapters", config.get("adapters", ()))
            given["adapters"] = tuple((path, scale) for (path, _), scale in zip(adapters, scales, strict=True))
        opened = Open(file, {**config, **given}, sampling, system, dict(settings.defaults), settings.chat_template)
        first = waiting.pop() if waiting else None
        return WorkerSupervisor(opened, launched=first, batch_delay_s=settings.batch_delay_s)

    if settings.models_dir is None and not settings.allow_changes:
        left = None if budget is None else budget - own
        return Service(settings, Library.of(model_name(path), lambda: engine_of(path, left), settings.keep_s))
    folder = None if settings.models_dir is None else Path(settings.models_dir)
    given = {} if path is None else {model_name(path): NamedModel(Path(path))}

    models: dict[str, NamedModel] = {}
    own_models: dict[str, NamedModel] = {}

    def look() -> dict[str, int]:
        """Runs on a thread."""
        nonlocal models, own_models
        stored = named_models() if settings.allow_changes else {}
        found = {} if folder is None else {name: NamedModel(each) for name, each in find_models(folder).items()}
        own_models = {**found, **given}
        models = {**stored, **own_models}
        return dict(_sizes(models))

    def changed_ns() -> int | None:
        with suppress(OSError):
            return None if folder is None else folder.stat().st_mtime_ns
        return None

    def make(name: str, share: int, n_ctx: int | None) -> EngineClient:
        model = models.get(name)
        if model is None:
            raise ApiError(404, "model_not_found", f"model {name!r:.80} is gone", "model")
        return engine_of(str(model.path), share, model.preset, n_ctx, service.adapter_scales.get(name))

    default = next(iter(given), None)
    catalog = Catalog(look, changed_ns)
    library = Library(default, catalog, make, (budget or memory_bytes()) - own, LEAST_BYTES, keep_s=settings.keep_s)
    service = Service(settings, library)
    service.own_files = lambda name: own_models[name].path if name in own_models else None
    if default is not None:
        library.open_from_start(default)
    return service


def _sizes(models: dict[str, NamedModel]) -> Iterator[tuple[str, int]]:
    for name, model in models.items():
        with suppress(FileNotFoundError):  # it went meanwhile
            yield name, size_of(model.path)


def model_name(path: str | None) -> str:
    """What requests call a model: the name of its file."""
    return "tiny-chat" if path is None else Path(path).name.removesuffix(".gguf")
