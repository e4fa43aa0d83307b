"""Quire's own routes: the server's state, and a simple way to complete a text."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar

import msgspec

from ...params.sampling import SamplingParams
from ...params.sampling_defaults import chat_defaults
from ...params.structured import StructuredOutputsParams
from ...system import process_memory
from ..body_types import Body
from ..failures import Dialect, error_body
from ..listener import sse
from ..listener.replies import Events, Reply
from ..listener.request_context import RequestContext
from ..service.library import not_ready
from ..service.service import Service
from ..worker.engine_client import EngineState
from ..worker.params import set_fields
from ..worker.protocol import Finished, Generate, TierUse
from .answers import ResponseStream
from .fields import ConstrainedBody, Name, Stops, Text, hints_of, stops_of
from .sampling_fields import limits_of, sampling_fields, sampling_of

__all__ = ["GenerateBody", "generate", "health", "health_v1", "metrics", "ping", "status", "version"]


@sampling_fields("generate")
class GenerateParams(Body, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters of ``/v1/generate``."""

    max_tokens: Annotated[int, limits_of("max_tokens")] | None = None
    stop_sequences: Stops = []

    def params(self, advised: dict[str, Any], form: StructuredOutputsParams | None) -> SamplingParams:
        """Return the parameters, with a chat's defaults for those not given."""
        given = sampling_of(self)
        if self.max_tokens is not None:
            given["max_tokens"] = self.max_tokens
        more = {"stop": stops_of(self.stop_sequences), "structured_outputs": form}
        return SamplingParams(**{**chat_defaults(advised, given), **given, **more})


class GenerateBody(ConstrainedBody, kw_only=True, forbid_unknown_fields=True):
    """A raw text prompt and how to continue it."""

    prompt: Text
    example: ClassVar[dict[str, object]] = {
        "prompt": "Once upon a time",
        "sampling_params": {"max_tokens": 16},
        "stream": False,
    }
    sampling_params: GenerateParams = msgspec.field(default_factory=GenerateParams)
    model: Name | None = None
    stream: bool = True


async def generate(context: RequestContext[GenerateBody]) -> Reply | Events:
    """Complete a text; events are ``{"token": ..., "done": false}``, and the last has ``"done": true``."""
    body = context.body
    engine = context.engine(body.model)
    params = body.sampling_params.params(engine.info.advised, body.wanted_form())
    work = Generate(0, body.prompt, set_fields(params), hints_of(context.caller))
    answer = ResponseStream(context, context.submit(engine, work))
    await answer.start()
    if body.stream:
        return Events(_tokens(answer), _failed, ping=sse.PING)
    text = "".join([delta.content async for delta in answer.deltas()])
    return Reply.json({"text": text, **_end(answer)})


async def _tokens(answer: ResponseStream) -> AsyncIterator[bytes]:
    async for batch in answer.batches():
        deltas = [event for event in batch if not isinstance(event, Finished)]
        pieces = [sse.event({"token": delta.content, "done": False}) for delta in deltas if delta.content]
        yield b"".join(pieces)
    yield sse.event({"token": "", "done": True, **_end(answer)})


def _end(answer: ResponseStream) -> dict[str, Any]:
    return {"finish_reason": answer.ends[0].reason, "usage": answer.usage.openai()}


def _failed(error: Any) -> bytes:
    return sse.event({"token": "", "done": True, **error_body(error, Dialect.OPENAI)})


async def health(context: RequestContext[None]) -> Reply:
    """Report if requests would be answered now: 200, or 503 with the reason."""
    found = _unhealthy(context.service)
    return Reply.json({"status": "ok"}) if found is None else Reply.json(found, 503)


async def health_v1(context: RequestContext[None]) -> Reply:
    """Report health like ``/health``, with the version."""
    found, version = _unhealthy(context.service), context.service.version
    if found is None:
        return Reply.json({"status": "healthy", "version": version})
    return Reply.json({**found, "version": version}, 503)


def _unhealthy(service: Service) -> dict[str, Any] | None:
    if service.draining:
        return {"status": "stopping"}
    if bad := not_ready(service.library):
        return {"status": next(iter(bad.values())), "models": bad}
    return None


async def version(context: RequestContext[None]) -> Reply:
    """Return the server's version."""
    return Reply.json({"version": context.service.version})


async def ping(context: RequestContext[None]) -> Reply:
    """Report health like ``/health``, by status alone."""
    answer = await health(context)
    return Reply(b"", answer.status)


async def metrics(context: RequestContext[None]) -> Reply:
    """Return all metrics in Prometheus's format."""
    # Tells llama.cpp's clients when counters were reset.
    started = ((b"process-start-time-unix", str(context.service.created).encode()),)
    text = context.service.metrics.text()
    return Reply(text, media_type=b"text/plain; version=0.0.4; charset=utf-8", headers=started)


async def status(context: RequestContext[None]) -> Reply:
    """Return the server's current load."""
    service = context.service
    resident, anonymous = process_memory()
    return Reply.json(
        {
            "version": service.version,
            "uptime_s": round(time.monotonic() - service.started_s, 3),
            "draining": service.draining,
            "allow_changes": service.settings.allow_changes,
            **service.recent.figures(),
            "history": service.recent.history(),
            "queue": {
                "requests": service.admission.n_active,
                "most_requests": service.admission.most,
                "tokens": service.admission.n_tokens,
                "most_tokens": service.settings.max_queue_tokens,
            },
            "memory": {"resident_bytes": resident, "anonymous_bytes": anonymous},
            "models": [_model_status(name, engine) for name, engine in service.engines().items()],
        }
    )


def _tier(tier: TierUse) -> dict[str, int]:
    return {
        "bytes": tier.used_bytes,
        "most_bytes": tier.budget_bytes,
        "cached_tokens": tier.hit_tokens,
        "read_bytes": tier.read_bytes,
        "written_bytes": tier.written_bytes,
    }


def _model_status(name: str, engine: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"id": name, "state": engine.state.value, "requests": engine.n_active}
    if engine.state is EngineState.READY:
        info = engine.info
        known |= {"name": info.name, "architecture": info.architecture, "n_ctx": info.n_ctx, "n_vocab": info.n_vocab}
        known |= {"max_sequences": info.max_sequences, "batch_tokens": info.max_step_tokens}
    if (beat := engine.beat) is not None:
        used = beat.n_usable_blocks - beat.n_free_blocks
        known |= {
            "queue": {"waiting": beat.n_waiting, "running": beat.n_running},
            "cache": {"blocks": beat.n_usable_blocks, "used": used, "free": beat.n_free_blocks},
            "pins": {
                "count": beat.n_pins,
                "bytes": beat.n_pinned_bytes,
                "most_bytes": beat.n_most_pinned_bytes,
                "given_way": beat.n_pins_given_way,
            },
            "cache_tiers": {tier.name: _tier(tier) for tier in beat.tiers},
            "memory": {"resident_bytes": beat.rss_bytes, "anonymous_bytes": beat.anonymous_bytes},
            "totals": {
                "generated_tokens": beat.n_generated_tokens,
                "computed_tokens": beat.n_computed_tokens,
                "cached_tokens": beat.n_prefix_hit_tokens,
                "preemptions": beat.n_preemptions,
                "steps": beat.n_steps,
            },
        }
    return known
