"""The engine's options are declared once: Python, the command line and the worker derive theirs from one table.

Oracles: the signatures themselves, and the warnings that README and the options' help promise.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import fields

import click
import pytest
from quire.cli import bench, chat, run, serve
from quire.engine import LLM, AsyncLLM
from quire.engine.loading.loader import open_model
from quire.params.engine_options import EngineConfig, engine_options


@pytest.mark.parametrize("front_end", [LLM, AsyncLLM])
def test_keywords_are_the_fields(front_end: type) -> None:
    parameters = list(inspect.signature(front_end).parameters.values())[1:]  # after the model
    declared = {entry.name: entry.default for entry in fields(EngineConfig)}
    assert {each.name: each.default for each in parameters if each.name in declared} == declared


@pytest.mark.parametrize(
    ("command", "server"), [(run.command, 0), (chat.command, 0), (bench.command, 0), (serve.command, 1)]
)
def test_commands_have_every_option_that_has_flags(command: click.Command, server: bool) -> None:
    found = {parameter.name: parameter for parameter in command.params}
    for name, option in engine_options().items():
        if option.flags and (server or not option.server_only):
            assert set(option.flags.split()) - {"-b"} <= set(found[name].opts), name
        else:
            assert name not in found


def test_every_option_is_described() -> None:
    assert all(option.help or not option.flags for option in engine_options().values())
    documented = EngineConfig.__doc__ or ""
    assert [name for name in engine_options() if f" {name}: " not in documented] == []


def test_without_a_gpu_auto_means_the_cpu_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    from quire import devices

    if any(device.kind != "cpu" for device in devices()):
        pytest.skip("this machine has a device")
    with caplog.at_level(logging.WARNING, "quire"), LLM(device="auto", threads=1, n_ctx=64) as llm:
        assert llm.config.device == "cpu"
    assert [text.startswith("[device] no GPU found") for text in caplog.messages] == [True]


def test_a_context_beyond_training_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "quire"):
        for n_ctx in (64, 4096):
            open_model(None, EngineConfig(threads=1, n_ctx=n_ctx, n_blocks=200)).decoder.close()
    assert len(caplog.messages) == 1
    assert "4096 tokens exceed the" in caplog.messages[0]
