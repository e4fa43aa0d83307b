"""``quire``: find the command, and turn errors into one line and an exit code.

Exit codes: 0 success, 1 an error of Quire or of the system, 2 incorrect usage, 3 a file or model that cannot be
loaded, 130 Ctrl-C, 141 the reader of a pipe closed it.  ``QUIRE_LOG=debug`` adds the traceback.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

from ..errors import LoadError, QuireError
from .help_page import page_settings
from .help_sections import COMMAND_GROUPS, EXAMPLES, docs_of
from .session import Session

__all__ = ["EXIT_ERROR", "EXIT_INTERRUPTED", "EXIT_LOAD", "EXIT_PIPE", "EXIT_USAGE", "cli", "main"]

EXIT_ERROR, EXIT_USAGE, EXIT_LOAD, EXIT_INTERRUPTED, EXIT_PIPE = 1, 2, 3, 130, 141
# Each command with its line of ``quire --help``, so that help imports none of their modules.
COMMANDS = {
    "run": "Answer one prompt; at a terminal without a prompt, chat.",
    "chat": "Chat with a model.",
    "serve": "Serve a model over HTTP with the APIs of OpenAI, Anthropic and Ollama, and a chat page.",
    "batch": "Answer the requests of a file in the format of OpenAI's batches.",
    "transcribe": "Write down what is said in recordings.",
    "embed": "Turn texts into vectors.",
    "rerank": "Rank documents by how well they answer a query.",
    "tokenize": "Show the tokens of a text.",
    "detokenize": "Show the text of tokens.",
    "pull": "Download a model.",
    "list": "List the models on this machine.",
    "show": "Show what a model name refers to.",
    "info": "Show what a model file contains and whether it runs.",
    "cp": "Give a model another name, with options of its own.",
    "create": "Register a model from an Ollama Modelfile.",
    "rm": "Delete models or names.",
    "ps": "List the models loaded in a server.",
    "stop": "Unload a model from a server.",
    "top": "Watch a server's load.",
    "route": "Pass requests on to several servers, each to the one that knows its prompt best.",
    "convert": "Convert a checkpoint to a GGUF file.",
    "quantize": "Quantize a model.",
    "lora": "List, merge or convert LoRA adapters.",
    "gguf": "Show or change the keys of a GGUF file; split or merge it.",
    "imatrix": "Measure an importance matrix for quantization.",
    "perplexity": "Measure how well a model predicts a text.",
    "bench": "Measure the speed of a model.",
    "devices": "List what models can run on.",
    "help": "Show the help of a command.",
    "completion": "Print a shell completion script.",
}


# Other programs' commands that Quire calls differently, and advice for those that it does not have.
_ALIASES = {
    "ls": "list", "server": "serve", "download": "pull", "embedding": "embed", "embeddings": "embed", "remove": "rm",
    "copy": "cp", "benchmark": "bench",
}  # fmt: skip
_ADVICE = {
    "version": "quire --version",
    "push": "Quire does not upload models",
    "login": "for gated models, set HF_TOKEN or use quire pull --hf-token",
    "complete": "use quire run --raw",
    "run-batch": "use quire batch MODEL IN OUT",
    "collect-env": "use quire devices",
    "cli": "use quire run for one prompt, quire chat for a conversation",
}
_ADVICE |= dict.fromkeys(("signin", "signout"), _ADVICE["login"])
COMPLETE_VARIABLE = "_QUIRE_COMPLETE"


class _Commands(click.Group):
    """Import a command's module only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = _ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"quire.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown one, give advice."""
        name = args[0]
        if name in _ADVICE:
            raise click.UsageError(f"no such command: {name}; {_ADVICE[name]}", ctx)
        if self.get_command(ctx, name) is None and (name.endswith(".gguf") or os.path.exists(name)):
            raise click.UsageError(f"the command comes first, as in quire run {name}", ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the command; a command's own options come after it."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            text = f"options come after the command, as in quire run {error.option_name}: {error.message}"
            raise click.UsageError(text, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in COMMAND_GROUPS:
            with formatter.section(title):
                formatter.write_dl([(f"{name:<10}", COMMANDS[name]) for name in names])
        with formatter.section("Examples"):
            for line in EXAMPLES["quire"]:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write("quire COMMAND -h shows the command's common options, --help all of them.\n")
        formatter.write(f"Documentation: {docs_of('')}\n")


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from .._native import __version__

        click.echo(f"quire {__version__}")
        ctx.exit()


@click.group(cls=_Commands, context_settings=page_settings(), invoke_without_command=True)
@click.option(
    "-v",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run language models on this machine, on CPUs and GPUs.

    Models come from Hugging Face, from the stores of Ollama, LM Studio and llama.cpp, or from GGUF files and checkpoint
    folders.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None, session: Session | None = None) -> int:
    """Run the command line with ``arguments``, by default the process's own, and return its exit code."""
    _never_fail_to_print()
    try:
        if arguments is None and (instruction := os.environ.get(COMPLETE_VARIABLE)):
            return _complete(instruction)
        given = list(sys.argv[1:] if arguments is None else arguments)
        with cli.make_context("quire", given, obj=session or Session()) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:  # after --help and --version
        return exit_.exit_code
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes its buffer when the process ends, and must not fail again then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except Exception as error:
        return _report(error)
    return 0


def _complete(instruction: str) -> int:
    """Answer a completion request from a shell.  An unknown shell is a usage error."""
    from click.shell_completion import shell_complete

    return shell_complete(cli, {}, "quire", COMPLETE_VARIABLE, instruction)


def _report(error: Exception) -> int:
    """Print one line about the error and return its exit code."""
    if os.environ.get("QUIRE_LOG") == "debug":
        import traceback

        traceback.print_exception(error)
    line, code = _described(error)
    print(f"quire: {' '.join(line.split())}", file=sys.stderr)
    return code


def _described(error: Exception) -> tuple[str, int]:
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "quire"
        return f"[{path.rpartition(' ')[2]}] {error.format_message()} ({path} --help)", EXIT_USAGE
    if isinstance(error, click.ClickException):
        return f"[quire] {error.format_message()}", EXIT_ERROR
    if isinstance(error, QuireError):
        return str(error), EXIT_LOAD if isinstance(error, LoadError) else EXIT_ERROR
    if isinstance(error, OSError):
        name = f" '{error.filename}'" if error.filename is not None else ""
        return f"[system] {error.strerror or error}{name}", EXIT_ERROR
    if isinstance(error, MemoryError):
        return "[system] out of memory", EXIT_ERROR
    return f"[internal] {type(error).__name__}: {error} (QUIRE_LOG=debug shows the traceback)", EXIT_ERROR


def _never_fail_to_print() -> None:
    """Print characters that the terminal's encoding lacks as escape codes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
