"""What the routes share: settings, models, figures, and who may come in."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .admission import Admission
from .failures import ApiError
from .kept import Kept
from .metrics import Metrics
from .recent import Recent

if TYPE_CHECKING:
    from .engine import Engine
    from .settings import Settings

__all__ = ["Service", "model_name", "open_service"]


class Service:
    """The server behind the routes."""

    def __init__(self, settings: Settings, engine: Engine, model: str) -> None:
        self.settings = settings
        self.metrics = Metrics(self)
        self.started_s = time.monotonic()
        self.created = int(time.time())
        self.model = model
        self.recent = Recent()
        self.admission = Admission(settings)
        self.kept = Kept()
        self.draining = False
        self._engine = engine

    @property
    def version(self) -> str:
        """Quire's, as a worker tells it: this process does not load the native code that has it."""
        return self._engine.info.version

    @property
    def names(self) -> list[str]:
        """Names that requests may call the model by."""
        return [self.model, *self.settings.aliases]

    def engines(self) -> dict[str, Engine]:
        """The open models, by name."""
        return {self.model: self._engine}

    def engine(self, model: str | None) -> Engine:
        """The engine of a model (None: of the only one).  ApiError 404 for one that there is not."""
        if model is not None and model not in self.names:
            known = ", ".join(self.names)
            raise ApiError(404, "model_not_found", f"model must be one of {known} but is {model!r:.80}", "model")
        return self._engine

    async def start(self) -> None:
        """Open the models."""
        await self._engine.start()
        self.admission.n_running = self._engine.info.max_sequences

    async def stop(self) -> None:
        """Close the models."""
        await self._engine.stop()


def open_service(settings: Settings, path: str | None, config: dict[str, Any]) -> Service:
    """A service for one model (None: the package's), which is opened when the service starts."""
    from .protocol import Open
    from .supervisor import WorkerEngine

    return Service(settings, WorkerEngine(Open(path, config)), model_name(path))


def model_name(path: str | None) -> str:
    """What requests call a model: the name of its file."""
    return "tiny-chat" if path is None else Path(path).name.removesuffix(".gguf")
