"""``quire serve``: serve models over HTTP."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .chat_options import ChatSettings, chat_options
from .fetching import located
from .form_options import grammar_options, taken_grammar
from .model_argument import model_argument
from .model_options import PRESET, ModelOptions, model_options
from .sampling_options import sampling_defaults
from .serve_config import ARGUMENTS, ServeCommand, config_option, env_file_option
from .text import note, one_line
from .tool_options import tool_options
from .urls import server_urls

if TYPE_CHECKING:
    from ..hub.registry import Preset
    from ..server.service.service import Service
    from ..server.settings import Settings

__all__ = ["command", "service_of"]

_THEN = "quire.serve.then"  # in a context: what to do with the service instead of serving


def _milliseconds(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    return None if value is None else value / 1000


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    from ..server.keep_alive import seconds_of

    try:
        return None if value is None else seconds_of(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}, got {value!r:.40}", ctx, param) from None


def _entries(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Split values with commas between."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


@click.command("serve", cls=ServeCommand)
@model_argument
@config_option
@env_file_option
@model_options(server=True, policy="dynamic", step_s=0.25)
@sampling_defaults
@click.option(
    "-s",
    "--seed",
    "usual_seed",
    type=click.IntRange(max=2**64 - 1),
    metavar="N",
    help="Seed for requests that give none; -1: a new one each time [-1].",
)
@chat_options
@grammar_options
@click.option("--pooling", type=click.Choice(("none", "mean", "cls", "last", "rank")),
              help="How the vectors of all tokens become an embedding [the model's default].")  # fmt: skip
@click.option(
    "--tags", multiple=True, metavar="TEXT", help="A tag to show for the model in /v1/models; may be repeated."
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    metavar="N",
    help="Port to listen on; 0: any free port.",
)
@click.option("--insecure", is_flag=True, help="Allow listening on a public address without an API key.")
@click.option(
    "--api-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Require one of the API keys in FILE, one per line.",
)
@click.option(
    "--max-priority",
    type=click.IntRange(-100, 100),
    metavar="N",
    help="Highest priority a request may ask for [any]; for one key, write 'KEY max-priority=N' in the key file.",
)
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    help="An API key; unlike --api-key-file, visible in the process list.",
)
@click.option(
    "--allow-host", "allowed_hosts", multiple=True, metavar="NAME", help="Accept this Host header on loopback, too."
)
@click.option(
    "--cors-origin", "cors_origins", multiple=True, metavar="ORIGIN", help="Let web pages from ORIGIN call the server."
)
@click.option(
    "--allowed-media-domains",
    multiple=True,
    callback=_entries,
    metavar="HOST,...",
    help="Fetch images and sounds whose URL has one of these hosts; *: any public one; may be repeated [none].",
)
@click.option(
    "--allowed-local-media-path",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Read images and sounds that requests name by a file: URL below DIR [none].",
)
@click.option(
    "--trust-request-chat-template",
    is_flag=True,
    help="Let requests bring their own chat_template, which runs in a sandbox with limits.",
)
@tool_options
@click.option("--alias", "aliases", multiple=True, metavar="NAME", help="Another name for the model; may be repeated.")
@click.option(
    "--models-dir",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Serve all models in DIR; each is loaded on first use.",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Accept files and batches, and keep them and /v1/conversations in DIR over restarts [none].",
)
@click.option(
    "--slot-save-path",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Let clients save sessions and slots (/v1/sessions/ID/save, /slots/ID?action=save) in DIR [none].",
)
@click.option(
    "--training-routes",
    is_flag=True,
    help="Let clients pause models, free their memory and change their weights (/pause, /sleep, /update_weights).",
)
@click.option(
    "--weights-dir",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="With --training-routes: checkpoints below DIR may replace a model's weights [none].",
)
@click.option(
    "--cache-peers",
    multiple=True,
    callback=server_urls,
    metavar="URL,...",
    help="Ask these servers for blocks of a prompt before computing it; needs --cache-disk [none].",
)
@click.option(
    "--cache-peer-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File with the key that peers share; whoever has it may read the blocks of all callers [none].",
)
@click.option(
    "--memory-budget",
    "memory_budget_bytes",
    type=int,
    metavar="BYTES",
    help="Memory for models and their caches [what is free].",
)
@click.option(
    "--sleep-idle-seconds",
    "--keep-alive",
    "keep_s",
    callback=_seconds,
    metavar="TIME",
    help="Unload a model after it is idle for TIME: 300, 5m, 0; -1: never [-1].",
)
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Let clients download, name and delete models, and serve all models on this machine.",
)
@click.option(
    "--allow-lora-updates",
    is_flag=True,
    help="Let clients load LoRA adapters from files of this machine, and unload them.",
)
@click.option("--lenient", is_flag=True, help="With --strict: still accept unknown body fields.")
@click.option("--strict", is_flag=True, help="Reject unknown model names and unknown body fields.")
@click.option("--no-access-log", is_flag=True, help="Do not log each request to standard error.")
@click.option(
    "--otlp-traces-endpoint",
    "traces_endpoint",
    metavar="URL",
    help="Send a trace span of each request to URL, with OTLP over HTTP (quire-llm[otel]).",
)
@click.option("--max-queue", type=int, metavar="N", help="Most requests that may wait [256].")
@click.option(
    "--max-queue-tokens", type=int, metavar="N", help="Most prompt and answer tokens of waiting requests [4000000]."
)
@click.option(
    "--max-logprobs", type=int, metavar="N", help="Most alternatives beside each log-probability; -1: no limit [20]."
)
@click.option("--max-body", "max_body_bytes", type=int, metavar="BYTES", help="Largest request body [8388608].")
@click.option(
    "--request-timeout", "request_timeout_s", type=float, metavar="S", help="Time limit until the last token [600]."
)
@click.option(
    "--first-token-timeout",
    "first_token_timeout_s",
    type=float,
    metavar="S",
    help="Time limit until the first token [none].",
)
@click.option(
    "--queue-timeout",
    "queue_timeout_s",
    type=float,
    metavar="S",
    help="Time limit until a request starts running [none].",
)
@click.option(
    "--batch-wait",
    "batch_delay_s",
    type=click.FloatRange(0, 60_000),
    callback=_milliseconds,
    metavar="MS",
    help="Delay the first request by MS so that simultaneous ones share a batch [0].",
)
@click.option("--drain", "drain_s", type=float, metavar="S", help="Time for answers to finish after SIGTERM [30].")
@click.option(
    "--sse-ping-interval",
    "ping_s",
    type=float,
    metavar="S",
    help="Send a ping on a stream that is silent for S; -1: never [5; the first after 1].",
)
@click.option(
    "--rate-requests",
    "rate_requests_per_minute",
    type=int,
    metavar="N",
    help="Most requests per minute and key [no limit].",
)
@click.option(
    "--rate-tokens", "rate_tokens_per_minute", type=int, metavar="N", help="Most tokens per minute and key [no limit]."
)
@click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    help="Serve on a Ray cluster: HOST:PORT, auto: the one on this machine, local: a new one (quire-llm[ray]).",
)
@click.option(
    "--ray-arg",
    "ray_args",
    multiple=True,
    callback=_entries,
    metavar="NAME=N,...",
    help="With --ray: replicas=2, max_replicas=4 and others (docs/several_servers.md).",
)
def command(**options: Any) -> None:
    """Serve MODEL over HTTP for clients of OpenAI, Anthropic, Ollama and llama.cpp, with a chat page at /.

    MODEL is a name such as qwen3:0.6b or org/name, a .gguf file or a checkpoint folder; the default is a tiny model in
    the package.  By default only this machine can reach the server; a public address needs API keys.  After SIGTERM the
    server finishes the current answers, then exits.  Options may also come from the environment and from a TOML file
    (docs/server.md).  The command line takes precedence, then the environment.
    """
    meta = click.get_current_context().meta
    address, given = options.pop("ray_address"), options.pop("ray_args")
    if given and address is None:
        raise click.UsageError("--ray-arg needs --ray")
    then: Callable[[Service], None] | None = meta.get(_THEN)
    if address is not None and then is None:  # a replica has the same arguments
        _deploy(address, given, meta[ARGUMENTS], options)
    else:
        (then or _serve)(_service(options))


def _deploy(address: str, given: Sequence[str], arguments: Sequence[str], options: dict[str, Any]) -> None:
    from ..server.settings import Settings

    host, keys, insecure = options["host"], options["api_keys"], options["insecure"]
    has_keys = bool(keys) or options["api_key_file"] is not None

    def check(host: str) -> None:
        Settings(host=host, insecure=insecure or has_keys)

    # By name: quire.ray is a layer above, whose replicas run this command.
    deploy = importlib.import_module("quire.ray").deploy
    check(host)
    numbers = dict(each.partition("=")[::2] for each in given)
    deploy(address, numbers, arguments, host=host, port=options["port"], check=check, say=note)


def service_of(arguments: Sequence[str]) -> Service:
    """Return the service that ``quire serve`` with these arguments would run."""
    with command.make_context("serve", list(arguments)) as context:
        made: list[Service] = []
        context.meta[_THEN] = made.append
        command.invoke(context)
    return made[0]


def _serve(service: Service) -> None:
    from ..server.serve import serve

    serve(service, note)


def _service(options: dict[str, Any]) -> Service:
    from ..server.keep_alive import seconds_of
    from ..server.worker.launch import launch

    model: ModelOptions = options.pop("model")
    chat: ChatSettings = options.pop("chat")
    options |= {"system": chat.system, "chat_template": chat.template, "defaults": _defaults(options, chat)}
    path = model.path
    if path is None and options["models_dir"] is None and not options["allow_changes"]:
        note("no model given: using the small one in the package")
    given = [model.name] if model.name is not None else []
    preset: Preset | None = click.get_current_context().meta.get(PRESET)
    if preset is not None:
        options["sampling"] = {**preset.sampling, **options["sampling"]}
        if options["keep_s"] is None and preset.keep_alive is not None:
            options["keep_s"] = seconds_of(preset.keep_alive)
        options["aliases"] = (*options["aliases"], *given)
    config = model.config()
    settings = _settings({**options, "cache_disk": config.get("cache_disk")})
    path = None if path is None else str(located(path, projector=model.wants_projector))
    # Start the worker process now: it takes about as long to start as the imports below, on another core.
    several = settings.models_dir is not None or settings.allow_changes
    launched = launch() if path is not None or not several else None

    from ..server.service.model_files import skipped_models
    from ..server.service.service import open_service

    if settings.models_dir is not None:
        for name, why in skipped_models(Path(settings.models_dir)).items():
            note(f"--models-dir skips {one_line(name)}: {why}")
    return open_service(settings, path, config, launched)


def _defaults(options: dict[str, Any], chat: ChatSettings) -> dict[str, Any]:
    """Remove the request defaults from a command's values and return them."""
    pooling, seed, grammar = options.pop("pooling"), options.pop("usual_seed"), taken_grammar(options)
    if pooling == "rank":
        note("--pooling rank has no effect: a reranker always gives scores at /rerank")
        pooling = None
    found = {"seed": None if seed is None or seed < 0 else seed, "grammar": grammar, "pooling": pooling}
    return {name: value for name, value in {**found, "chat": chat.keywords or None}.items() if value is not None}


def _settings(options: dict[str, Any]) -> Settings:
    from ..server.settings import Settings, check_key, read_keys, read_peer_key

    key_file, keys = options.pop("api_key_file"), options.pop("api_keys")
    if (peer_file := options.pop("cache_peer_key_file")) is not None:
        options["cache_peer_key"] = read_peer_key(peer_file)
    values = {name: value for name, value in options.items() if value is not None and name != "no_access_log"}
    values["access_log"] = not options["no_access_log"]
    values["tools"] = values.pop("run_tools")
    for number, key in enumerate(keys, 1):
        check_key(key, f"--api-key number {number}")
    of_file, values["key_priorities"] = read_keys(key_file) if key_file is not None else ((), {})
    values["api_keys"] = (*of_file, *keys)
    assert set(values) <= {entry.name for entry in fields(Settings)}
    return Settings(**values)
