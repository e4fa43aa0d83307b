"""The sections of each command's ``--help``: options grouped by parameter name, and examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["COMMAND_GROUPS", "EXAMPLES", "SECTIONS", "Section", "docs_of"]


@dataclass(frozen=True)
class Section:
    """A heading and the parameters below it, in order."""

    title: str
    names: str | None  # None: the parameters of sampling

    @property
    def options(self) -> tuple[str, ...]:
        """Return the names of the parameters."""
        if self.names is not None:
            return tuple(self.names.split())
        from ..params.sampling import PARAMETERS  # late: every command loads this module

        return tuple(name for name, parameter in PARAMETERS.items() if parameter.flags)


def _section(title: str, options: str) -> Section:
    return Section(title, options)


def _common(options: str) -> Section:
    return _section("Common options", options)


_MODEL = _section(
    "Model and download",
    "path hf_repo hf_file hf_token offline mmproj quantize load packed_cache cache_disk cache_disk_size cache_ram",
)
_ADAPTERS = _section("LoRA adapters", "adapters lora_modules max_loras lora_cache_size max_lora_rank")
_CHAT = _section(
    "Chat and thinking",
    "system system_file reasoning reasoning_effort reasoning_budget reasoning_format template_values chat_template"
    " chat_template_file",
)
_TOOLS = _section("Tools", "tools_mcp tools_max_rounds tools_timeout_s tools_max_result_chars")
_FORM = _section("Form of the answer", "json_schema json_schema_file grammar grammar_file regex choice")
_SAMPLING = Section("Sampling", None)
_MACHINE = _section(
    "Memory and processor",
    "n_ctx threads kv_dtype n_blocks max_step_tokens snapshot_tokens cpu_mask kernels isa deterministic"
    " tensor_parallel_size pipeline_parallel_size",
)
_DEVICES = _section(
    "GPUs and other devices",
    "gpu_layers device n_cpu_moe n_cpu_ffn override_tensor fit fit_target fit_ctx split_mode tensor_split main_gpu",
)
_KEYS = _section(
    "Other values than the model's file",
    "control_vectors control_vector_layers taps"
    " override_kv hf_overrides rope_scaling rope_scale rope_freq_base rope_freq_scale yarn_orig_ctx yarn_ext_factor"
    " yarn_attn_factor yarn_beta_slow yarn_beta_fast",
)
_SPECULATION = _section("Speculative decoding", "draft speculation draft_max draft_min")
_ENGINE = (_MODEL, _ADAPTERS, _MACHINE, _DEVICES, _KEYS, _SPECULATION)

SECTIONS: Mapping[str, tuple[Section, ...]] = {
    "run": (
        _common("path system max_tokens temperature seed n_ctx gpu_layers threads json_schema as_json"),
        _section(
            "Input and output",
            "prompt prompt_file images sounds escape raw conversation no_stream output hide_thinking verbose",
        ),
        _CHAT, _FORM, _SAMPLING, *_ENGINE,
    ),
    "chat": (
        _common("path system max_tokens temperature seed n_ctx gpu_layers threads reasoning verbose"),
        _section("Conversation", "prompt prompt_file escape tools history"),
        _TOOLS, _CHAT, _FORM, _SAMPLING, *_ENGINE,
    ),
    "serve": (
        _common("path host port api_key_file aliases models_dir n_ctx max_sequences gpu_layers threads"),
        _section("Configuration", "config env_file"),
        _section("Several machines", "ray_address ray_args"),
        _section(
            "Access",
            "api_keys insecure allowed_hosts cors_origins allowed_media_domains allowed_local_media_path"
            " trust_request_chat_template allow_changes allow_lora_updates"
            " strict lenient rate_requests_per_minute rate_tokens_per_minute max_body_bytes"
            " max_logprobs",
        ),
        _section("Peers", "cache_peers cache_peer_key_file"),
        _section("Models", "memory_budget_bytes keep_s tags state_dir slot_save_path training_routes weights_dir"),
        _section(
            "Queue, time and logs",
            "policy max_priority max_queue max_queue_tokens request_timeout_s first_token_timeout_s queue_timeout_s"
            " batch_delay_s step_s ping_s drain_s no_access_log traces_endpoint",
        ),
        _TOOLS, _CHAT, _section("Answers", "usual_seed grammar grammar_file logits_processors enable_prompt_embeds"),
        _section("Embeddings", "pooling"),
        _SAMPLING, *_ENGINE,
    ),
    "bench": (
        _common("path n_prompt n_gen n_depth batches repetitions threads gpu_layers as_json plot"),
        _section("Output", "form"), *_ENGINE,
    ),
    "perplexity": (
        _common("path text_file n_ctx chunks kl_base threads gpu_layers as_json"),
        _section("Text", "stride parse_special base_file kl_divergence"),
        _section(
            "Tasks",
            "hellaswag hellaswag_tasks winogrande winogrande_tasks multiple_choice multiple_choice_tasks",
        ),
        *_ENGINE,
    ),
    "imatrix": (
        _common("path text_file out n_ctx chunks in_files threads show_statistics as_json"),
        _section("Text", "skipped parse_special process_output perplexity"),
        _section("File", "form every kept_every"),
        *_ENGINE,
    ),
    "quantize": (
        _common("out_file imatrix bits size max_kl dry_run threads allow_requantize"),
        _section("Types", "patterns tensor_type_file output_dtype embedding_dtype keep_output pure"),
        _section("Importance", "include exclude"),
        _section("Recipes", "recipe calibration parse_special chunks types layers_together rounds curve"),
        _section("File", "keep_split overrides"),
    ),
    "route": (_common("targets prefill host port allowed_hosts insecure"),),
    "batch": (
        _common("path system n_ctx max_sequences gpu_layers threads"), _section("Order", "policy step_s"),
        _CHAT, _section("Answers", "logits_processors enable_prompt_embeds"), _SAMPLING, *_ENGINE,
    ),
    "transcribe": (
        _common("path language translate form output n_ctx threads gpu_layers"),
        _section("Speech", "prompt"), *_ENGINE,
    ),
    "embed": (
        _common("path prompt_file pooling normalize prompt_name output as_json n_ctx threads gpu_layers"),
        _section("Input", "texts separator"), _section("Vectors", "kind dimensions precision"), *_ENGINE,
    ),
    "rerank": (
        _common("path query document_files instruction top_n as_json n_ctx threads gpu_layers"), *_ENGINE,
    ),
}  # fmt: skip

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "quire": (
        'quire run qwen3:0.6b "Why is the sky blue?"    download a small model and ask it',
        "quire chat qwen3:0.6b                          chat with it",
        "quire serve qwen3:0.6b                         serve it on http://127.0.0.1:8080, with a chat page",
    ),
    "run": (
        'quire run qwen3:0.6b "Why is the sky blue?"',
        'cat report.txt | quire run model.gguf "Summarize this"',
        'quire run org/name:Q4_K_M --temp 0 -n 100 "Tell me a story"',
        'quire run model.gguf -j \'{"type": "object"}\' "Invent a person"',
        "quire run model.gguf                           at a terminal: chat",
    ),
    "chat": ("quire chat qwen3:0.6b", 'quire chat model.gguf --system "Answer in one sentence."'),
    "serve": (
        "quire serve qwen3:0.6b",
        "quire serve model.gguf --port 8000 -c 8192",
        "quire serve --models-dir ~/models",
        "quire serve model.gguf --host 0.0.0.0 --api-key-file keys.txt",
    ),
    "bench": ("quire bench model.gguf", "quire bench model.gguf -b 1,8 -n 64 --json"),
    "info": ("quire info model.gguf", "quire info model.gguf --fit"),
    "tokenize": ('quire tokenize model.gguf "Hello there"',),
    "detokenize": ("quire detokenize model.gguf 9707 1052", "quire tokenize --ids Hello | quire detokenize"),
    "route": ("quire route --to http://10.0.0.1:8080,http://10.0.0.2:8080",),
    "batch": ("quire batch model.gguf requests.jsonl answers.jsonl",),
    "transcribe": (
        "quire transcribe model.gguf speech.mp3",
        "quire transcribe model.gguf talk.flac --format srt -o talk.srt",
    ),
    "embed": ('quire embed model.gguf "some text"', "quire embed model.gguf -f lines.txt --json"),
    "rerank": ('quire rerank model.gguf "a question" "first document" "second document"',),
    "convert": ("quire convert ./checkpoint model.gguf", "quire convert ./checkpoint -o model.gguf --dtype q8_0"),
    "quantize": ("quire quantize model.gguf Q4_K_M", "quire quantize model.gguf small.gguf --bits 3.5"),
    "gguf": (
        "quire gguf cat model.gguf tokenizer.chat_template",
        "quire gguf set model.gguf new.gguf general.name=str:Mine --chat-template-file chat.jinja",
        "quire gguf split model.gguf parts --max-size 2G",
    ),
    "imatrix": ("quire imatrix model.gguf -f calibration.txt -o imatrix.gguf",),
    "perplexity": ("quire perplexity model.gguf -f wiki.test.raw",),
    "pull": ("quire pull qwen3:0.6b", "quire pull org/name:Q4_K_M"),
    "cp": ('quire cp qwen3:0.6b poet --system "You answer in verse."',),
    "create": ("quire create poet -f Modelfile",),
    "completion": (
        'eval "$(quire completion bash)"                bash, now',
        "quire completion zsh > ~/.zfunc/_quire         zsh, from the next shell on",
        "quire completion fish > ~/.config/fish/completions/quire.fish",
    ),
}

COMMAND_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Use a model", ("run", "chat", "serve", "batch", "embed", "rerank", "transcribe", "tokenize", "detokenize")),
    ("Models on this machine", ("pull", "list", "show", "info", "cp", "create", "rm")),
    ("A running server", ("ps", "stop", "top", "route")),
    ("Convert and measure", ("convert", "quantize", "lora", "gguf", "imatrix", "perplexity", "bench", "devices")),
    ("Help", ("help", "completion")),
)

_DOCS = {
    "serve": "docs/server.md", "convert": "docs/building.md", "quantize": "docs/quantization.md",
    "lora": "docs/adapters.md", "gguf": "docs/gguf.md",
    "imatrix": "docs/quantization.md", "perplexity": "docs/quantization.md", "devices": "docs/devices.md",
    "bench": "docs/benchmarks.md", "pull": "docs/registry.md", "cp": "docs/registry.md",
    "create": "docs/registry.md", "list": "docs/registry.md", "show": "docs/registry.md",
}  # fmt: skip


def docs_of(command: str) -> str:
    """Return where a command is documented; options of other programs have their own page."""
    return f"{_DOCS.get(command, 'docs/cli.md')}; options of llama.cpp, vLLM and Ollama: docs/options.md"
