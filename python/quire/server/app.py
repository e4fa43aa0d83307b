"""The table of the server's routes, and the ASGI application built from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.routing import Route as HttpRoute
from starlette.routing import Router

from .failures import ApiError, Dialect
from .listener.access import PEERS_PATH, AccessMiddleware
from .listener.endpoint import Endpoint
from .listener.internal import InternalRequests
from .listener.request_context import Handler, Route
from .routes import (
    adapters,
    anthropic,
    cache_blocks,
    classes,
    embeddings,
    model_admin,
    model_controls,
    models,
    native_routes,
    openapi,
    page,
    ranking,
    sessions,
    streams,
    tools,
    vectors,
)
from .routes.llama_cpp import completions as llama_cpp
from .routes.llama_cpp import fields as llama_cpp_fields
from .routes.llama_cpp import slot_files, tokens
from .routes.llama_cpp import state as llama_cpp_state
from .routes.ollama import answers as ollama
from .routes.ollama import fields as ollama_fields
from .routes.ollama import models as ollama_models
from .routes.openai import batches, chat_fields, conversations, responses, responses_fields, transcriptions
from .routes.openai import chat as openai_chat
from .routes.openai import completions as openai_completions

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from .service.service import Service

__all__ = ["ROUTES", "build_app"]

_CHAT, _COMPLETION = chat_fields.ChatBody, openai_completions.CompletionBody
_RESPONSES = responses_fields.ResponsesBody
_LLAMA, _LLAMA_COMPLETION = Dialect.LLAMA_CPP, llama_cpp_fields.CompletionBody
_RERANK = ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking", "/v2/rerank")
_OLLAMA = Dialect.OLLAMA
_FETCH = (("POST", "/api/push"), ("POST", "/api/blobs/{digest}"))
_ANTHROPIC = Dialect.ANTHROPIC


def _control(path: str, handler: Handler, summary: str, body: type[Any]) -> Route:
    may_be_empty = body is not model_controls.WeightsBody
    return Route("POST", path, handler, summary, body, opens=False, may_be_empty=may_be_empty, is_control=True)


ROUTES = (
    Route("POST", "/v1/chat/completions", openai_chat.complete, "Answer a conversation", _CHAT),
    Route("POST", "/v1/chat", openai_chat.complete, "Answer a conversation", _CHAT),
    Route("POST", "/v1/completions", openai_completions.complete, "Complete prompts", _COMPLETION),
    Route("GET", "/v1/models", models.list_models, "List the models"),
    Route("GET", "/v1/models/list", models.list_files, "List the models, loaded or not"),
    Route("GET", "/v1/models/active", models.list_active, "List the loaded models"),
    Route("POST", "/v1/models/load", models.load, "Load a model", models.ModelBody, opens=False),
    Route("POST", "/v1/models/unload", models.unload, "Unload a model", models.ModelBody, opens=False),
    Route("POST", "/v1/models/reload", models.reload, "Reload a model", models.ModelBody, opens=False),
    Route("GET", "/v1/models/{model}", models.show_model, "Show one model"),
    Route("GET", "/health", native_routes.health, "Check if the server can answer requests"),
    Route("GET", "/v1/health", native_routes.health_v1, "Check if the server can answer requests"),
    Route("GET", "/v1/status", native_routes.status, "Show the server's current load"),
    Route("POST", PEERS_PATH, cache_blocks.send_blocks, "Send blocks to a peer", cache_blocks.BlocksBody, opens=False),
    Route("GET", "/openapi.json", openapi.openapi, "This document"),
    Route("GET", "/docs", openapi.docs, "The routes in a readable page"),
    Route("GET", "/", page.page, "The chat page"),
    Route("GET", "/page/{file}", page.page_file, "A script, style or picture of the chat page"),
    Route("POST", "/v1/streams/resume", streams.resume, "Read a stream again", streams.StreamBody, opens=False),
    Route("POST", "/v1/streams/cancel", streams.cancel, "Cancel a stream", streams.StreamBody, opens=False),
    Route("GET", "/v1/tools", tools.list_tools, "List the tools of the server's MCP servers"),
    Route("POST", "/v1/tools/call", tools.call_tool, "Run a tool", tools.CallBody, opens=False),
    _control("/pause", model_controls.pause, "Pause a model", model_controls.PauseBody),
    _control("/resume", model_controls.resume, "Go on after a pause", model_controls.ControlBody),
    Route("GET", "/is_paused", model_controls.is_paused, "Tell if a model is paused"),
    _control("/sleep", model_controls.sleep, "Free a model's memory", model_controls.SleepBody),
    _control("/wake_up", model_controls.wake_up, "Load a sleeping model", model_controls.WakeUpBody),
    Route("GET", "/is_sleeping", model_controls.is_sleeping, "Tell if a model sleeps"),
    _control(
        "/reset_prefix_cache", model_controls.reset_prefix_cache, "Forget what is cached", model_controls.ResetBody
    ),
    _control("/update_weights", model_controls.update_weights, "Change a model's weights", model_controls.WeightsBody),
    Route("GET", "/metrics", native_routes.metrics, "Metrics for Prometheus"),
    Route("POST", "/v1/generate", native_routes.generate, "Complete a text", native_routes.GenerateBody),
    Route("POST", "/v1/responses", responses.create, "Answer an input", _RESPONSES),
    *(
        Route(
            "POST", path, transcriptions.transcribe, "Transcribe speech", transcriptions.TranscriptionBody, is_form=True
        )
        for path in ("/v1/audio/transcriptions", "/audio/transcriptions")
    ),
    Route(
        "POST",
        "/v1/audio/translations",
        transcriptions.translate,
        "Translate speech into English",
        transcriptions.TranslationBody,
        is_form=True,
    ),
    Route("POST", "/v1/files", batches.add_file, "Store a file", batches.FileBody, opens=False, is_form=True),
    Route("GET", "/v1/files", batches.files, "List files"),
    Route("GET", "/v1/files/{id}", batches.file, "Describe a file"),
    Route("GET", "/v1/files/{id}/content", batches.file_content, "Return what is in a file"),
    Route("DELETE", "/v1/files/{id}", batches.remove_file, "Delete a file"),
    Route("POST", "/v1/batches", batches.add_batch, "Accept a batch", batches.BatchBody, opens=False),
    Route("GET", "/v1/batches", batches.batches, "List batches"),
    Route("GET", "/v1/batches/{id}", batches.batch, "Describe a batch"),
    Route("POST", "/v1/batches/{id}/cancel", batches.cancel_batch, "Cancel a batch"),
    Route("POST", "/v1/sessions", sessions.create, "Begin a session", sessions.SessionBody, opens=False),
    Route("GET", "/v1/sessions", sessions.sessions, "List sessions"),
    Route("GET", "/v1/sessions/{id}", sessions.show, "Show a session with its history"),
    Route("DELETE", "/v1/sessions/{id}", sessions.delete, "Delete a session"),
    Route("POST", "/v1/sessions/{id}/fork", sessions.fork, "Begin a session with another one's history"),
    Route(
        "POST",
        "/v1/sessions/{id}/pin",
        sessions.pin,
        "Keep a session in the cache",
        sessions.PinBody,
        opens=False,
        may_be_empty=True,
    ),
    Route("POST", "/v1/sessions/{id}/save", sessions.save, "Write a session to a file", sessions.FileBody, opens=False),
    Route("POST", "/v1/sessions/{id}/restore", sessions.restore, "Read a session", sessions.FileBody, opens=False),
    Route("POST", "/v1/sessions/{id}/unpin", sessions.unpin, "Let the cache evict a session"),
    Route("POST", "/v1/responses/{id}/cancel", responses.cancel, "End a response in the background"),
    Route(
        "POST",
        "/v1/conversations",
        conversations.create,
        "Begin a conversation",
        conversations.ConversationBody,
        opens=False,
        may_be_empty=True,
    ),
    Route("GET", "/v1/conversations/{id}", conversations.show, "Describe a conversation"),
    Route(
        "POST",
        "/v1/conversations/{id}",
        conversations.update,
        "Replace metadata",
        conversations.MetadataBody,
        opens=False,
    ),
    Route("DELETE", "/v1/conversations/{id}", conversations.delete, "Delete a conversation"),
    Route("GET", "/v1/conversations/{id}/items", conversations.items, "List a conversation's items"),
    Route(
        "POST",
        "/v1/conversations/{id}/items",
        conversations.add_items,
        "Add items",
        conversations.ItemsBody,
        opens=False,
    ),
    Route("GET", "/v1/conversations/{id}/items/{item}", conversations.item, "Return an item"),
    Route("DELETE", "/v1/conversations/{id}/items/{item}", conversations.remove_item, "Delete an item"),
    Route("GET", "/v1/responses/{id}", responses.show, "Show a stored response"),
    Route("DELETE", "/v1/responses/{id}", responses.delete, "Delete a stored response"),
    *(
        Route("POST", path, openai_chat.count, "Count a prompt's tokens", _CHAT)
        for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens")
    ),
    *(
        Route("POST", path, responses.count, "Count a prompt's tokens", _RESPONSES)
        for path in ("/v1/responses/input_tokens", "/responses/input_tokens")
    ),
    Route("POST", "/responses", responses.create, "Answer an input", _RESPONSES),
    Route("GET", "/version", native_routes.version, "The server's version"),
    Route("GET", "/ping", native_routes.ping, "Check if the server can answer requests"),
    Route("POST", "/ping", native_routes.ping, "Check if the server can answer requests"),
    Route("POST", "/v1/tokenize", tokens.tokenize, "Tokenize a text", tokens.TokenizeBody, _LLAMA),
    Route("POST", "/v1/detokenize", tokens.detokenize, "Turn tokens into text", tokens.DetokenizeBody, _LLAMA),
    Route("POST", "/v1/messages", anthropic.create, "Answer a conversation", anthropic.MessagesBody, _ANTHROPIC),
    Route("POST", "/v1/messages/count_tokens", anthropic.count, "Count tokens", anthropic.CountBody, _ANTHROPIC),
    Route("POST", "/tokenize", tokens.tokenize, "Tokenize a text", tokens.TokenizeBody, Dialect.LLAMA_CPP),
    Route("POST", "/detokenize", tokens.detokenize, "Turn tokens into text", tokens.DetokenizeBody, Dialect.LLAMA_CPP),
    Route("POST", "/completion", llama_cpp.complete, "Complete prompts", _LLAMA_COMPLETION, _LLAMA),
    Route("POST", "/completions", llama_cpp.complete, "Complete prompts", _LLAMA_COMPLETION, _LLAMA),
    Route("POST", "/infill", llama_cpp.infill, "Fill a gap in a text", llama_cpp_fields.InfillBody, _LLAMA),
    Route(
        "POST", "/apply-template", llama_cpp_state.apply_template, "Render a conversation as a prompt", _CHAT, _LLAMA
    ),
    Route("POST", "/chat/completions", openai_chat.complete, "Answer a conversation", _CHAT),
    Route("GET", "/models", models.list_models, "List the models"),
    Route("GET", "/props", llama_cpp_state.props, "Show the model's properties", dialect=_LLAMA),
    Route("GET", "/slots", llama_cpp_state.slots, "List the slots for concurrent sequences", dialect=_LLAMA),
    Route("POST", "/props", llama_cpp_state.set_props, "Not supported", dialect=_LLAMA),
    Route(
        "POST",
        "/v1/load_lora_adapter",
        adapters.load_adapter,
        "Load a LoRA adapter",
        adapters.LoadAdapterBody,
        opens=False,
    ),
    Route(
        "POST",
        "/v1/unload_lora_adapter",
        adapters.unload_adapter,
        "Unload a LoRA adapter",
        adapters.UnloadAdapterBody,
        opens=False,
    ),
    Route(
        "POST",
        "/lora-adapters",
        llama_cpp_state.set_lora_adapters,
        "Set the adapters' scales",
        llama_cpp_state.ScalesBody,
        _LLAMA,
        opens=False,
        list_field="adapters",
    ),
    Route(
        "POST",
        "/slots/{id}",
        slot_files.slot_action,
        "Save, restore or erase a slot's text",
        slot_files.SlotBody,
        _LLAMA,
        may_be_empty=True,
    ),
    Route(
        "GET",
        "/lora-adapters",
        llama_cpp_state.lora_adapters,
        "List the model's adapters and their scales",
        dialect=_LLAMA,
    ),
    *(Route("POST", path, ranking.rank, "Rank documents", ranking.RankBody, _LLAMA) for path in _RERANK),
    *(Route("POST", path, ranking.score, "Score pairs", ranking.ScoreBody) for path in ("/score", "/v1/score")),
    Route("POST", "/classify", classes.classify, "Classify texts", classes.ClassifyBody),
    Route("POST", "/predict", classes.predict, "Classify texts", classes.PredictBody),
    Route("POST", "/embed", embeddings.tei_embed, "Embed texts", embeddings.TeiBody),
    Route("POST", "/embed_all", embeddings.tei_embed_all, "Embed every token", embeddings.TeiBody),
    Route("POST", "/embed_sparse", vectors.embed_sparse, "Embed texts as sparse vectors", vectors.SparseBody),
    Route("POST", "/similarity", vectors.similarity, "Compare sentences", vectors.SimilarityBody),
    Route("POST", "/pooling", vectors.pool, "Compute what a pooling model makes", vectors.PoolingBody),
    Route("POST", "/tag", vectors.tag, "Find named entities", vectors.TagBody),
    Route("POST", "/v2/embed", vectors.cohere_embed, "Embed texts", vectors.CohereBody),
    Route("POST", "/v1/embeddings", embeddings.embed, "Embed texts", embeddings.EmbeddingsBody),
    Route("POST", "/embedding", embeddings.llama_embed, "Embed texts", embeddings.LlamaBody, _LLAMA),
    Route("POST", "/embeddings", embeddings.llama_embed, "Embed texts", embeddings.LlamaBody, _LLAMA),
    Route("POST", "/api/generate", ollama.generate, "Answer a prompt", ollama_fields.GenerateBody, _OLLAMA),
    Route("POST", "/api/chat", ollama.chat, "Answer a conversation", ollama_fields.ChatBody, _OLLAMA),
    Route("GET", "/api/tags", ollama_models.tags, "List the models", dialect=_OLLAMA),
    Route("GET", "/api/ps", ollama_models.ps, "List the models that are loaded", dialect=_OLLAMA),
    Route("POST", "/api/show", ollama_models.show, "Show one model", ollama_fields.ModelBody, _OLLAMA, opens=False),
    Route("GET", "/api/version", ollama_models.version, "The server's version", dialect=_OLLAMA),
    Route("POST", "/api/pull", model_admin.pull, "Download a model", model_admin.PullBody, _OLLAMA, opens=False),
    Route("DELETE", "/api/delete", model_admin.delete, "Delete a model", model_admin.DeleteBody, _OLLAMA, opens=False),
    Route(
        "POST", "/api/copy", model_admin.copy, "Give a model another name", model_admin.CopyBody, _OLLAMA, opens=False
    ),
    Route(
        "POST", "/api/create", model_admin.create, "Create a named model", model_admin.CreateBody, _OLLAMA, opens=False
    ),
    Route("POST", "/models", model_admin.fetch, "Download a model", model_admin.FetchBody, _LLAMA, opens=False),
    Route("DELETE", "/models", model_admin.forget, "Delete a model", dialect=_LLAMA),
    Route("GET", "/models/sse", model_admin.events, "Stream the progress of downloads and loading", dialect=_LLAMA),
    *(Route(method, path, ollama_models.absent, "Not supported", dialect=_OLLAMA) for method, path in _FETCH),
    Route("HEAD", "/api/blobs/{digest}", ollama_models.blob, "Not supported: no blob exists", dialect=_OLLAMA),
    Route("POST", "/api/embed", embeddings.ollama_embed, "Embed texts", embeddings.OllamaBody, _OLLAMA),
    Route("POST", "/api/embeddings", embeddings.ollama_embed_one, "Embed a text", embeddings.OllamaOldBody, _OLLAMA),
)


def build_app(service: Service) -> ASGIApp:
    """Build the application; the caller starts and stops the service."""
    routes = [HttpRoute(row.path, Endpoint(row, service, ROUTES), methods=[row.method]) for row in ROUTES]
    app = AccessMiddleware(Router(routes, redirect_slashes=False, default=_not_found), service)
    service.post = InternalRequests(app)
    return app


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise ApiError(404, "no_such_route", f"no such route: {scope['path']!r:.80}")
