"""The processes that run a model together: this one, rank 0, starts the others and tells them its sizes.

They share anonymous memory (``RankGroup``) and exchange a few lines of JSON through pipes.  A rank ends when rank 0
stops its steps or ends itself.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ... import errors
from ..._native import parallel
from ..._native.parallel import RankGroup
from ...errors import DeviceError, QuireError, RequestError, UnsupportedError
from ...models import load_model
from ...nn.shares import ShareReader
from ...nn.stages import stages_of
from ...params.engine_options import EngineConfig
from ...system import ended_by
from .sizes import Sizes

if TYPE_CHECKING:
    from ..._native.graph import Executor, Trace
    from ...files.gguf import GGUFReader
    from ...models import LoadedModel

__all__ = ["Follower", "Lead", "Opening", "Rank", "Shape", "n_ranks_of", "rank_config", "start_ranks"]

_EXCHANGE_BYTES = 1 << 30  # address space for hidden states; memory is taken when it is written


@dataclass(frozen=True)
class Opening:
    """The first message to a rank: its place, and the model that it has a share of."""

    path: Path
    config: EngineConfig
    rank: int
    memory_fd: int
    memory_bytes: int

    def message(self) -> dict[str, Any]:
        return {**vars(self), "path": os.fspath(self.path), "config": vars(self.config)}

    @classmethod
    def read(cls, pipe: IO[bytes]) -> Opening:
        message = json.loads(pipe.readline())
        config = EngineConfig(**{name: _tuples(value) for name, value in message.pop("config").items()})
        return cls(path=Path(message.pop("path")), config=config, **message)


@dataclass(frozen=True)
class Shape:
    """The sizes that rank 0 chose for all."""

    sizes: Sizes
    media_width: int


def n_ranks_of(config: EngineConfig) -> int:
    """Return the number of processes that the options ask for."""
    return config.tensor_parallel_size * config.pipeline_parallel_size


def rank_config(config: EngineConfig, rank: int) -> EngineConfig:
    """Return the options of one rank: its processors, if the options name some, and its number of threads."""
    n = n_ranks_of(config)
    mask = config.cpu_mask or 0
    cpus = [i for i in range(mask.bit_length()) if mask >> i & 1]
    if cpus and len(cpus) < n:
        raise RequestError(f"[parallel] cpu_mask {mask:x} has {len(cpus)} processors for {n} processes")
    own = cpus[len(cpus) * rank // n : len(cpus) * (rank + 1) // n]
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return replace(
        config,
        device="cpu",
        cpu_mask=sum(1 << i for i in own) or None,
        threads=config.threads or len(own) or max(1, usable // n),
        mmproj=config.mmproj if rank == 0 else None,
    )


def _check(config: EngineConfig) -> None:
    """Raise UnsupportedError for options that a model in several processes does not have."""
    unsupported = {
        "kernels": config.kernels == "stock", "adapters": bool(config.adapters),
        "lora_modules": bool(config.lora_modules), "draft": config.draft is not None,
        "speculation": config.speculation in ("mtp", "draft", "eagle"), "control_vectors": bool(config.control_vectors),
        "packed_cache": config.packed_cache is not None, "cache_disk": config.cache_disk is not None,
        "cache_ram": config.cache_ram > 0,
    }  # fmt: skip
    for name, is_set in unsupported.items():
        if is_set:
            raise UnsupportedError(f"[parallel] {name} is unsupported for a model in several processes")
    if config.device.lower() not in ("cpu", "default", "auto") or config.n_gpu_layers:
        wanted = f"n_gpu_layers {config.n_gpu_layers}" if config.n_gpu_layers else f"device {config.device}"
        raise UnsupportedError(
            f"[parallel] {wanted}: a model in several processes runs on the CPU (split_mode spreads one over devices)"
        )
    if sys.platform == "win32":
        raise UnsupportedError("[parallel] a model in several processes is unsupported on Windows")


class Rank:
    """This process's place among those that run a model."""

    def __init__(self, group: RankGroup) -> None:
        self.group = group

    @property
    def n_split(self) -> int:
        """The number of ranks that split the matrices of this one's layers."""
        return self.group.n_split

    def share_of(self, reader: GGUFReader) -> GGUFReader:
        """Return the reader of this rank's share of the matrices."""
        return reader if self.group.n_split == 1 else ShareReader(reader, self.group.part, self.group.n_split)

    def model_of(self, reader: GGUFReader) -> LoadedModel:
        """Return the model of a share.  Raises UnsupportedError for models that run in one process only."""
        model = load_model(reader, group=self.group if self.group.n_split > 1 else None)
        config = model.config
        if config.is_encoder or config.decoder_start is not None:
            raise UnsupportedError(f"[parallel] encoders run in one process: {config.arch} is one")
        return model

    def staged(self, trace: Trace, n_layer: int) -> Trace:
        """Return the trace with the stages of its layers."""
        if self.group.n_stages == 1:
            return trace
        stages = stages_of(parallel.weight_names(trace), n_layer, self.group.n_stages)
        return parallel.staged(trace, self.group, stages)


class Lead(Rank):
    """Rank 0, with its processes."""

    def __init__(self, path: Path, config: EngineConfig) -> None:
        n = n_ranks_of(config)
        n_bytes = RankGroup.needed_bytes(n, exchange_bytes=_EXCHANGE_BYTES if config.pipeline_parallel_size > 1 else 0)
        with _anonymous(n_bytes) as memory:
            super().__init__(_group(config, 0, memory.fileno(), n_bytes))
            self._processes = [
                self._started(Opening(path, config, rank, memory.fileno(), n_bytes)) for rank in range(1, n)
            ]

    def _started(self, opening: Opening) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "quire.engine.loading.follower"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[opening.memory_fd],
        )
        _send(process.stdin, opening.message())
        # Keeps the pipes open as long as the process runs.
        threading.Thread(target=self._watch, args=(process, opening.rank), name="quire-rank", daemon=True).start()
        return process

    def _watch(self, process: subprocess.Popen[bytes], rank: int) -> None:
        code = process.wait()
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        if code:
            self.group.fail(f"rank {rank} of {self._n} ended: {ended_by(code) or f'exit code {code}'}")

    @property
    def _n(self) -> int:
        return self.group.n_split * self.group.n_stages

    def tell(self, shape: Shape) -> None:
        """Tell the sizes to the other ranks, which then prepare their executors."""
        for process in self._processes:
            _send(process.stdin, {"sizes": asdict(shape.sizes), "media_width": shape.media_width})

    def lead(self, executor: Executor) -> parallel.LeadExecutor:
        """Return the executor of all ranks once they are ready.  Raises the error of one that is not."""
        for rank, process in enumerate(self._processes, 1):
            assert process.stdout is not None
            with process.stdout as answers:
                line = answers.readline()
            if not line:
                self.group.fail(f"rank {rank} of {self._n} ended while it loaded the model")
                self.group.check()
            if error := json.loads(line)["error"]:
                kind, message = error
                raise getattr(errors, kind)(message)
        return parallel.LeadExecutor(executor, self.group)

    def end(self) -> None:
        """End the processes, for a model that could not be opened."""
        self.group.fail("the model was not opened")
        for process in self._processes:
            assert process.stdout is not None
            process.kill()
            process.wait()
            process.stdout.close()


class Follower(Rank):
    """Another rank, on its side of the pipes."""

    def __init__(self, opening: Opening, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        super().__init__(_group(opening.config, opening.rank, opening.memory_fd, opening.memory_bytes))
        self._incoming, self._outgoing = incoming, outgoing

    def shape(self) -> Shape:
        """Return the sizes that rank 0 chose."""
        line = self._incoming.readline()
        if not line:
            raise DeviceError("[parallel] rank 0 ended")
        message = json.loads(line)
        return Shape(Sizes(**message["sizes"]), message["media_width"])

    def follow(self, executor: Executor) -> None:
        """Run the steps of rank 0 until it stops or ends."""
        _send(self._outgoing, {"error": None})
        threading.Thread(target=self._watch, name="quire-lead", daemon=True).start()
        parallel.follow(executor, self.group)

    def refuse(self, error: QuireError) -> None:
        """Tell rank 0 why there will be no steps."""
        _send(self._outgoing, {"error": (type(error).__name__, str(error))})

    def _watch(self) -> None:
        self._incoming.read()  # until rank 0 ends
        self.group.fail("rank 0 ended")


def start_ranks(path: Path, config: EngineConfig) -> Lead:
    """Start the other processes of a model.

    Raises:
        UnsupportedError: An option is unsupported for a model in several processes.
    """
    _check(config)
    return Lead(path.resolve(), config)


def _group(config: EngineConfig, rank: int, fd: int, n_bytes: int) -> RankGroup:
    memory = mmap.mmap(fd, n_bytes)
    return RankGroup(memory, rank=rank, n_split=config.tensor_parallel_size, n_stages=config.pipeline_parallel_size)


def _anonymous(n_bytes: int) -> IO[bytes]:
    """Return a file without a name, of zeros, which takes memory where it is written."""
    file: IO[bytes]
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("quire-ranks"), "r+b", buffering=0)
    else:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    file.truncate(n_bytes)
    return file


def _send(pipe: IO[bytes] | None, message: dict[str, Any]) -> None:
    assert pipe is not None
    with suppress(BrokenPipeError):  # the process ended, which its watcher reports
        pipe.write(json.dumps(message).encode() + b"\n")
        pipe.flush()


def _tuples(value: Any) -> Any:
    """Return a value of the options, whose sequences JSON makes lists."""
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
