"""Send an OpenTelemetry span for each request with OTLP.

Attribute names follow OpenTelemetry's semantic conventions for HTTP servers and for generative AI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["Traces"]


class Traces:
    """Sends spans in the background on a thread of the library; spans that cannot be sent are dropped."""

    def __init__(self, endpoint: str) -> None:
        """Create the exporter; ``endpoint`` is the full OTLP/HTTP URL (``http://host:4318/v1/traces``).

        Headers, certificates, sampling and the service's name come from OpenTelemetry's own environment variables.
        UnsupportedError if the libraries are missing.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            text = "[serve] traces need OpenTelemetry: pip install 'quire-llm[otel]'"
            raise UnsupportedError(text) from None
        # The environment's service name takes precedence over this one.
        resource = Resource.create({"service.name": "quire"}).merge(OTELResourceDetector().detect())
        self._provider: TracerProvider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("quire.server")
        self._parents = TraceContextTextMapPropagator()

    def add(
        self,
        name: str,
        headers: Iterable[tuple[bytes, bytes]],
        attributes: dict[str, str | int | float],
        start_ns: int,
        end_ns: int,
    ) -> None:
        """Record a finished request.  ``headers`` may name its parent span (``traceparent``).

        Times are nanoseconds since 1970.
        """
        from opentelemetry.trace import SpanKind, StatusCode

        given = {key.decode("latin-1"): value.decode("latin-1") for key, value in headers if key.startswith(b"trace")}
        context = self._parents.extract(given)
        span = self._tracer.start_span(name, context, SpanKind.SERVER, attributes, start_time=start_ns)
        if int(attributes.get("http.response.status_code", 0)) >= 500:
            span.set_status(StatusCode.ERROR)
        span.end(end_ns)

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()
