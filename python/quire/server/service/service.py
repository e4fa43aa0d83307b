"""The state that all routes share: settings, models, metrics and admission."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...hub.preset_options import options_of_preset
from ...system import process_memory
from ...tools.mcp_server import MCPServer
from ...tools.toolbox import Toolbox
from ..failures import ApiError
from ..fair_pool import FairPool
from ..media_sources import MediaSources
from ..worker.engine_client import EngineState
from ..worker.memory_share import LEAST_BYTES
from ..worker.protocol import ModelInfo
from .admission import Admission, Ticket
from .approvals import Approvals
from .background import BackgroundResponses
from .batch_runner import Answer, Post
from .batches import Batches
from .catalog import Catalog
from .conversation_store import Conversations
from .downloads import Downloads, fetched
from .library import Library
from .metrics import Metrics
from .model_files import find_models, memory_bytes, size_of
from .named_models import NamedModel, named_models
from .recent import Recent
from .response_store import ResponseStore
from .saved_histories import SavedHistories
from .session_store import SessionStore
from .slots import Slots
from .stream_buffers import StreamBuffers
from .traces import Traces
from .unloaded_adapters import UnloadedAdapters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from ...hub.registry import Preset
    from ..settings import Settings
    from ..worker.engine_client import EngineClient
    from ..worker.launch import Launched
    from .caller import Caller

__all__ = ["Service", "model_name", "open_service"]


# Memory that the listener uses in addition to its size at start: requests and stored responses.
_OWN_LATER_BYTES = 8 << 20
_FETCHING_THREADS = 8


async def _no_application(path: str, body: bytes, caller: Caller, in_batch: bool) -> Answer:
    raise AssertionError("build_app has not run")


class Kept(NamedTuple):
    """A model's state as clients have left it: the scales of fixed adapters, and fields of ``Open``."""

    scales: Sequence[float] | None = None
    adapters: list[tuple[str, str, float]] | None = None
    paused: bool = False
    asleep: tuple[str, ...] = ()


_NONE_KEPT = Kept()


class Service:
    """The server behind the routes."""

    def __init__(self, settings: Settings, library: Library) -> None:
        self.settings = settings
        self.library = library
        self.metrics = Metrics(library.engines)
        # Adapter scales that clients have set, by model name.
        self.adapter_scales: dict[str, list[float]] = {}
        # Adapters as clients have left them (``Open.adapters``), by model name.
        self.kept_adapters: dict[str, list[tuple[str, str, float]]] = {}
        self.unloaded_adapters = UnloadedAdapters()
        self.started_s = time.monotonic()
        self.created = int(time.time())
        self.recent = Recent()
        self.admission = Admission(settings)
        self.responses = ResponseStore()
        self.stream_buffers = StreamBuffers()
        self.draining = False
        # Returns the file of a model that this server was started with or that is in its folder; None for other names.
        self.own_files: Callable[[str], Path | None] = lambda name: None
        self.downloads = Downloads(fetched)
        self.traces = None if settings.traces_endpoint is None else Traces(settings.traces_endpoint)
        self._version = ""
        # One thread: a second one would not be faster because of the GIL, and the event loop would wait for both.
        self.threads = FairPool(1, "quire-bodies")
        self.media_sources = MediaSources.of(settings)
        # Stands for an image or a sound in raw prompts; no text of a user contains it.
        self.media_marker = f"<__media_{secrets.token_hex(16)}__>"
        self.fetching = FairPool(_FETCHING_THREADS, "quire-fetch")
        mcp = settings.tools.mcp
        self.toolbox = Toolbox([] if mcp is None else MCPServer.load(mcp), settings.tools)
        self.approvals = Approvals()
        self.post: Post = _no_application
        self.weights: dict[str, str] = {}  # files of models whose weights were changed, by name
        self.paused: set[str] = set()
        self.sleeping: dict[str, tuple[str, ...]] = {}  # parts that sleep, by model name
        self.sessions, self.slots = SessionStore(), Slots()
        saved = settings.slot_save_path
        self.saved_histories = None if saved is None else SavedHistories(Path(saved))
        self.conversations = Conversations(None if settings.state_dir is None else Path(settings.state_dir))
        self.batches: Batches | None = None
        self.background = BackgroundResponses(lambda: self.post, self.responses)
        self._session_key = secrets.token_bytes(32)

    @property
    def model(self) -> str:
        """The model for requests that name none, or the folder of models if there is no default."""
        return self.library.usual or self.settings.models_dir or ""

    @property
    def version(self) -> str:
        """Quire's version.

        Workers report it, so that this process need not load the native code; it does if asked before any model was
        loaded.
        """
        infos = [engine.info for engine in self.engines().values() if engine.state is EngineState.READY]
        infos += self.library.asleep.values()
        if infos:
            self._version = infos[0].version
        elif not self._version and not self.engines():
            from ..._native import __version__

            self._version = __version__
        return self._version

    def info(self, model: str | None) -> tuple[ModelInfo, bool]:
        """Return the info of a model that is or was loaded, and whether it sleeps.  Raises like ``engine``."""
        name = self.name_of(model)
        asleep = None if name in self.engines() else self.library.asleep.get(name)
        return (self.engine(model).info, False) if asleep is None else (asleep, True)

    @property
    def names(self) -> list[str]:
        """Names that requests may use for models."""
        return [*self.library.known, *self.settings.aliases]

    def adapter_of(self, model: str | None) -> tuple[str, float] | None:
        """Return the adapter that a request chooses by its model's name, with its scale."""
        if model is None or model in self.library.known or model in self.settings.aliases:
            return None
        info = self._infos().get(self._base_of(model) or "")
        if info is None:
            return None
        return model, info.adapters[info.loras.index(model)][1] or 1.0

    def _base_of(self, adapter: str) -> str | None:
        """Return the model that has an adapter of that name, if one is or was loaded."""
        return next((name for name, info in self._infos().items() if adapter in info.loras), None)

    def _was_adapter(self, name: str) -> bool:
        """Return True for an adapter that was unloaded, or whose file was gone when its model was loaded again."""
        return name in self.unloaded_adapters or any(
            name == adapter for kept in self.kept_adapters.values() for adapter, _, _ in kept
        )

    def kept(self, name: str) -> Kept:
        """Return a model's state as clients have left it, for when it is loaded again."""
        asleep = self.sleeping.get(name, ())
        return Kept(self.adapter_scales.get(name), self.kept_adapters.get(name), name in self.paused, asleep)

    def _infos(self) -> dict[str, ModelInfo]:
        """Return the infos of all models that are loaded or asleep."""
        ready = {name: each.info for name, each in self.engines().items() if each.state is EngineState.READY}
        return {**self.library.asleep, **ready}

    def names_of(self, model: str) -> list[str]:
        """Return the names of a model, the preferred one first: aliases come before the file's own name."""
        name = self.exactly(model)
        return [*self.settings.aliases, name] if name == self.library.usual else [name]

    def engines(self) -> dict[str, EngineClient]:
        """Return the loaded models by name."""
        return self.library.engines()

    def exactly(self, model: str) -> str:
        """Resolve aliases and the ``:latest`` tag that Ollama's clients add; the model need not exist."""
        if model in self.settings.aliases:
            return self.library.usual or model
        if not self._is_there(model) and (base := self._base_of(model)) is not None:
            return base
        plain = model.removesuffix(":latest")
        return model if plain == model or self._is_there(model) or not self._is_there(plain) else plain

    def _is_there(self, name: str) -> bool:
        return name in self.library.known or name in self.engines() or name in self.settings.aliases

    async def find(self, model: str | None) -> str:
        """Resolve a name like ``name_of``, after a scan for new models if it is unknown."""
        if model is not None:
            name = self.exactly(model)
            if name not in self.library.known and name not in self.engines():
                await self.library.rescan()
        return self.name_of(model)

    def name_of(self, model: str | None) -> str:
        """Return the model for a request: the one it names, else the default.

        If there is only one model, unknown names refer to it, unless ``settings.strict`` is set.  ApiError 400 if no
        model is named and there is no default.
        """
        if model is not None:
            name, known = self.exactly(model), self.library.known
            if not self._is_there(name) and self._was_adapter(name):
                raise ApiError(404, "adapter_not_found", f"adapter {name!r:.80} is not loaded any more", "model")
            if self.settings.strict or name in known or name in self.engines():
                return name
            return next(iter(known)) if len(known) == 1 else name
        usual = self.library.usual
        if usual is None:
            text = f"model is required (available: {', '.join(self.names[:20])})"
            raise ApiError(400, "missing_model", text, "model")
        return usual

    def engine(self, model: str | None) -> EngineClient:
        """Return the engine of a loaded model, by default the usual one.

        ApiError 404 if unknown, 503 if not loaded.
        """
        name = self.name_of(model)
        engine = self.engines().get(name)
        if engine is not None:
            return engine
        if name in self.library.known:
            raise ApiError(503, "model_not_loaded", f"model {name} is not loaded", "model", 1)
        known = ", ".join(self.names[:20])
        raise ApiError(404, "model_not_found", f"no such model: {name!r:.80} (available: {known})", "model")

    def pinned(self, name: str, caller: Caller | None) -> AbstractAsyncContextManager[EngineClient]:
        """Keep a model loaded while a block runs, loading it for the caller if necessary."""
        return self.library.pinned(name, None if caller is None else caller.name)

    def may_close(self, name: str, caller: Caller | None) -> bool:
        """Return True if a caller may unload a loaded model.

        It may if clients may change models, if there are no keys to tell callers apart, or if it loaded the model.
        """
        if self.settings.allow_changes or not self.settings.api_keys:
            return True
        return caller is not None and self.library.opener_of(name) == caller.name

    def enter(self, caller: Caller, n_body_bytes: int) -> Ticket:
        """Admit a request.  ApiError 429 if there are too many."""
        ready = [engine for engine in self.engines().values() if engine.state is EngineState.READY]
        if ready:
            self.admission.n_running = sum(engine.info.max_sequences for engine in ready)
        ticket = self.admission.enter(caller, n_body_bytes)
        self.recent.add_requests(self.admission.n_active)
        return ticket

    def session_of(self, caller: Caller) -> str:
        """Return the token of a caller's page, which only pages of this server and the caller's programs can read."""
        return hmac.digest(self._session_key, caller.name.encode(), "sha256").hex()

    async def start(self) -> None:
        """Load the models and connect the MCP servers."""
        await asyncio.gather(self.library.start(), self.toolbox.open_async(tolerant=True))
        if self.settings.state_dir is not None:
            batches = Batches(Path(self.settings.state_dir), self.post, lambda: self.admission.n_running)
            await self.conversations.opened()
            await batches.start()
            self.batches = batches

    async def stop(self) -> None:
        """Unload the models, stop tools and downloads, and send the remaining trace spans."""
        await self.background.stop()
        if self.batches is not None:
            await self.batches.stop()
        await self.conversations.stop()
        await self.toolbox.close_async()
        await self.downloads.stop()
        await self.library.stop()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)


def open_service(
    settings: Settings, path: str | None, config: dict[str, Any], launched: Launched | None = None
) -> Service:
    """Create the service for one model (``path``; None: the package's), for ``settings.models_dir``, or for both.

    With a folder but no path, models are loaded on first use and there is no default.  ``launched`` is a worker process
    for the model that is loaded from the start.
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
        kept: Kept = _NONE_KEPT,
    ) -> EngineClient:
        given: dict[str, Any] = {} if memory_bytes is None else {"memory_bytes": max(1, memory_bytes)}
        sampling, system, template = dict(settings.sampling), settings.system, settings.chat_template
        if preset is not None:
            given |= options_of_preset(preset)
            sampling, system = {**preset.sampling, **sampling}, preset.system if system is None else system
            template = preset.template if template is None else template
        if n_ctx is not None:
            given["n_ctx"] = n_ctx
        if kept.scales is not None:
            adapters = given.get("adapters", config.get("adapters", ()))
            given["adapters"] = tuple((path, scale) for (path, _), scale in zip(adapters, kept.scales, strict=True))
        opened = Open(
            file, {**config, **given}, sampling, system, dict(settings.defaults), template, kept.adapters,
            kept.paused, list(kept.asleep),
            settings.cache_peers, settings.cache_peer_key or "", settings.slot_save_path is not None,
        )  # fmt: skip
        first = waiting.pop() if waiting else None
        return WorkerSupervisor(opened, launched=first, batch_delay_s=settings.batch_delay_s)

    if settings.models_dir is None and not settings.allow_changes:
        left = None if budget is None else budget - own
        return _of_one_model(settings, model_name(path), lambda kept, file: engine_of(file or path, left, kept=kept))
    folder = None if settings.models_dir is None else Path(settings.models_dir)
    given = {} if path is None else {model_name(path): NamedModel(Path(path))}

    models: dict[str, NamedModel] = {}
    own_models: dict[str, NamedModel] = {}

    def look() -> dict[str, int]:
        """Scan for models; runs on a thread."""
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
            raise ApiError(404, "model_not_found", f"model {name!r:.80} no longer exists", "model")
        return engine_of(service.weights.get(name, str(model.path)), share, model.preset, n_ctx, service.kept(name))

    default = next(iter(given), None)
    catalog = Catalog(look, changed_ns)
    library = Library(default, catalog, make, (budget or memory_bytes()) - own, LEAST_BYTES, keep_s=settings.keep_s)
    service = Service(settings, library)
    service.own_files = lambda name: own_models[name].path if name in own_models else None
    if default is not None:
        library.open_from_start(default)
    return service


def _of_one_model(settings: Settings, name: str, make: Callable[[Kept, str | None], EngineClient]) -> Service:
    begun = [make(_NONE_KEPT, None)]

    def opened() -> EngineClient:
        return begun.pop() if begun else make(service.kept(name), service.weights.get(name))

    service = Service(settings, Library.of(name, opened, settings.keep_s))
    return service


def _sizes(models: dict[str, NamedModel]) -> Iterator[tuple[str, int]]:
    for name, model in models.items():
        with suppress(FileNotFoundError):  # it was deleted meanwhile
            yield name, size_of(model.path)


def model_name(path: str | None) -> str:
    """Return the name of a model in requests: that of its file."""
    return "tiny-chat" if path is None else Path(path).name.removesuffix(".gguf")
