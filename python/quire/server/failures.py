"""Errors as HTTP responses: a status, a stable code, the field at fault, and the body in each dialect."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import Any

from ..errors import BusyError, QuireError
from ..params.sampling import SamplingParams

__all__ = ["ApiError", "Dialect", "api_error", "brief", "error_body", "of_quire", "says_shutting_down", "shutting_down"]

# Engine errors begin with their place in brackets, and then the parameter at fault if there is one.
_FIELD = re.compile(r"\[[\w ]+\] '?((\w+)(?:\[\d+\])?(?:\.\w+)*)")
_FIELDS = frozenset(SamplingParams.__dataclass_fields__) | {
    "dimensions", "ebnf", "format", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_json_object",
    "guided_regex", "input_type", "json_schema", "layers", "messages", "parallel_tool_calls", "pooling", "prompt_name",
    "reasoning_budget", "reasoning_format", "regex", "repeat_penalty", "response_format", "template_values",
    "tool_choice", "tool_format", "tools",
}  # fmt: skip
_WHOLE_FIELDS = ("response_format", "structured_outputs", "prompt", "logit_bias")
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    501: "not_supported_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_CLOSING = ("malformed_request", "unsupported_transfer_coding", "host_not_allowed", "shutting_down")
_MOST_SAID = 1000  # characters; a message may quote its input
_CONTEXT = re.compile(r"context of (\d+)")
_PROMPT = re.compile(r"prompt (?:has|of) (\d+)")


class Dialect(enum.Enum):
    """The API whose request and response formats a route uses."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    LLAMA_CPP = "llama.cpp"
    OLLAMA = "ollama"


@dataclass
class ApiError(Exception):
    """An error response.

    ``code`` is a stable identifier and ``param`` the field at fault.  ``retry_after_s`` tells the client when to retry,
    ``allow`` lists the methods of the route.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    allow: str | None = None

    @property
    def type(self) -> str:
        """OpenAI's error type for the status."""
        return _TYPES.get(self.status, "server_error")

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that the error adds to the reply."""
        found = []
        if self.retry_after_s is not None:
            found.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.allow is not None:
            found.append((b"allow", self.allow.encode("ascii")))
        # Close if the rest of the body will not be read or has no known end, or if the server accepts nothing more.
        if self.status in (408, 413, 431) or self.code in _CLOSING:
            found.append((b"connection", b"close"))
        return found


def shutting_down() -> ApiError:
    """Return the error of a server that stops and takes no new requests."""
    return ApiError(503, "shutting_down", "the server is shutting down", retry_after_s=5)


def says_shutting_down(body: bytes) -> bool:
    """Return whether an error's body, in any dialect, is that of a server that stops."""
    return b"shutting_down" in body or b"is shutting down" in body  # Anthropic's errors have no code


def brief(value: object) -> str:
    """Describe a value of any size for a message."""
    if isinstance(value, str):
        return repr(value[:40])
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else repr(value)


_STATUS = {
    "RequestError": (400, "invalid_request"),
    "ShapeError": (400, "invalid_request"),
    "UnsupportedError": (400, "unsupported"),
    "CapacityError": (400, "capacity_exceeded"),
    "BusyError": (429, "grammar_busy"),
    "LoadError": (503, "model_not_loaded"),
    "DeviceError": (503, "device_lost"),
    "Lost": (503, "worker_lost"),
}
# Errors that are of no request, by the place that their message begins with.
_PLACES = {
    "[asleep": (503, "model_sleeping"),
    "[pause": (409, "pause_ended"),
    "[new weights": (503, "model_not_ready"),
}


def api_error(kind: str, message: str, retry_after_s: int | None = None) -> ApiError:
    """Convert an engine error, given by the name of its class, to an error response."""
    message = message[:_MOST_SAID]
    context, prompt = _CONTEXT.search(message), _PROMPT.search(message)
    if context is not None and prompt is not None:
        details = {"n_prompt_tokens": int(prompt[1]), "n_ctx": int(context[1])}
        return ApiError(400, "context_length_exceeded", message, details=details)
    status, code = _PLACES.get(message.partition("]")[0]) or _STATUS.get(kind, (500, "internal_error"))
    param = None
    if status == 400 and (place := message[1:].partition("]")[0]) in _WHOLE_FIELDS:
        param = place
    elif status == 400 and (found := _FIELD.match(message)) and (place == "sampling" or found[2] in _FIELDS):
        param = found[1]
    return ApiError(status, code, message, param, 1 if status == 503 else retry_after_s)


def of_quire(error: QuireError) -> ApiError:
    """Convert an exception raised in this process to an error response."""
    retry_after_s = error.retry_after_s if isinstance(error, BusyError) else None
    return api_error(type(error).__name__, str(error), retry_after_s)


def error_body(error: ApiError, dialect: Dialect) -> dict[str, Any]:
    """The body of a refusal, in the shape that a dialect's clients read."""
    if dialect is Dialect.OLLAMA:
        return {"error": error.message}
    if dialect is Dialect.ANTHROPIC:
        kind = "api_error" if error.status == 500 else error.type
        return {"type": "error", "error": {"type": kind, "message": error.message}}
    if dialect is Dialect.LLAMA_CPP:
        kind = "exceed_context_size_error" if error.code == "context_length_exceeded" else error.type
        kind = "unavailable_error" if error.status == 503 else kind
        return {"error": {"code": error.status, "message": error.message, "type": kind, **error.details}}
    # The type is llama.cpp's, the code OpenAI's.
    kind = "exceed_context_size_error" if error.code == "context_length_exceeded" else error.type
    body = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return {"error": {**body, **error.details}}
