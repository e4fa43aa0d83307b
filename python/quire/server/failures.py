"""Errors as HTTP has them: a status, a stable code, the field at fault, and the body in each dialect."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import Any

from ..errors import BusyError, QuireError

__all__ = ["ApiError", "Dialect", "api_error", "brief", "error_body", "of_quire"]

# Messages about sampling begin with the parameter; of others, those that say what a field must be.
_FIELD = re.compile(r"\[(?:sampling\] |[\w ]+\] (?=\S+ must ))([\w.]+(?:\[\d+\])?(?:\.\w+)*)")
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
_MOST_SAID = 1000  # characters of a message: it may quote what it is about
_CONTEXT = re.compile(r"must fit into the context of (\d+) tokens but the prompt has (\d+)")


class Dialect(enum.Enum):
    """Whose shapes a route speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    LLAMA_CPP = "llama.cpp"
    OLLAMA = "ollama"


@dataclass
class ApiError(Exception):
    """A refusal.  ``code``: a stable word; ``param``: the field at fault; ``retry_after_s``: when to come again;
    ``allow``: the methods that the route has."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    allow: str | None = None

    @property
    def type(self) -> str:
        """The kind of error, by its status."""
        return _TYPES.get(self.status, "server_error")

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What goes beside the body."""
        found = []
        if self.retry_after_s is not None:
            found.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.allow is not None:
            found.append((b"allow", self.allow.encode("ascii")))
        # The rest of the body is not waited for, or nobody knows where it ends, or nothing else is answered.
        if self.status in (408, 413, 431) or self.code in _CLOSING:
            found.append((b"connection", b"close"))
        return found


def brief(value: object) -> str:
    """A value of any size as a message shows it."""
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


def api_error(kind: str, message: str, retry_after_s: int | None = None) -> ApiError:
    """The refusal for an error of the engine, by the name of its class."""
    message = message[:_MOST_SAID]
    context = _CONTEXT.search(message)
    if context is not None:
        details = {"n_prompt_tokens": int(context[2]), "n_ctx": int(context[1])}
        return ApiError(400, "context_length_exceeded", message, details=details)
    status, code = _STATUS.get(kind, (500, "internal_error"))
    param = None
    if status == 400 and (place := message[1:].partition("]")[0]) in _WHOLE_FIELDS:
        param = place
    elif status == 400 and (found := _FIELD.match(message)):
        param = found[1]
    return ApiError(status, code, message, param, 1 if status == 503 else retry_after_s)


def of_quire(error: QuireError) -> ApiError:
    """The refusal for an error that was raised here."""
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
    # llama.cpp's word for the kind, OpenAI's for the code.
    kind = "exceed_context_size_error" if error.code == "context_length_exceeded" else error.type
    body = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return {"error": {**body, **error.details}}
