"""OpenTelemetry spans, as a collector receives them.

Oracle: OTLP's own messages, read by its library.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from served import served

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="OpenTelemetry's exporter is not installed")

QUESTION = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 5, "temperature": 0}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(BaseHTTPRequestHandler):
    """Receives spans."""

    bodies: list[bytes]

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


def test_requests_become_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    handler = type("Handler", (Collector,), {"bodies": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{collector.server_address[1]}/v1/traces"
        with served(tmp_path, ["--otlp-traces-endpoint", url]) as server, server.client() as client:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
            answer = client.post("/v1/chat/completions", json=QUESTION, headers=headers).json()
            client.post("/v1/completions", json={"prompt": "x", "max_tokens": -7})
            client.get("/absent/one")
        collector.shutdown()  # the server has exited and sent everything before
    spans: dict[str, tuple[Any, dict[str, Any]]] = {}
    for body in handler.bodies:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert (named["service.name"], named["deployment.environment"]) == ("quire", "test")
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                values = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
                spans[span.name] = (span, values)
    span, values = spans["POST /v1/chat/completions"]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9
    usage = answer["usage"]
    assert (values["gen_ai.usage.input_tokens"], values["gen_ai.usage.output_tokens"]) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert (values["gen_ai.request.model"], values["quire.request_id"]) == (answer["model"], "mine")
    span, values = spans["POST /v1/completions"]
    assert (values["http.response.status_code"], values["error.type"]) == (400, "invalid_value")
    assert span.parent_span_id == b""
    span, values = spans["GET"]
    assert (values["http.response.status_code"], values["url.path"]) == (404, "/absent/one")
