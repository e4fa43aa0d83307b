"""Data: options and variables of llama.cpp, vLLM and Ollama, and what Quire does with each.

Imported only when one of them is used.  ``docs/options.md`` is generated from it.  ``works``: translated to an option
of Quire.  ``note``: accepted without effect, for the given reason.  ``refused``: rejected, with what to do instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ROWS", "ForeignOption"]

_ON_OFF = ("on", "off", "auto", "0", "1", "true", "false")


@dataclass(frozen=True)
class ForeignOption:
    """One row of the table.

    ``takes`` tells if a value follows, or lists the values that may.  ``target`` is Quire's option, for ``works``;
    ``value`` its value if the foreign option has none; ``how`` the function of ``foreign_values`` that converts one.
    ``neutral`` lists values of a refused option that are accepted because they change nothing.  ``elsewhere`` is the
    note for commands without the target, if the option can be ignored there.
    """

    program: str
    names: tuple[str, ...]
    verdict: Literal["works", "note", "refused"]
    text: str = ""
    takes: bool | tuple[str, ...] = False
    env: str = ""
    target: str = ""
    value: str | None = None
    how: str = "same"
    neutral: tuple[str, ...] = ()
    elsewhere: str = ""


def _works(
    names: str, target: str = "", *, env: str = "", takes: bool | tuple[str, ...] = True, value: str | None = None,
    how: str = "same", elsewhere: str = "",
) -> ForeignOption:  # fmt: skip
    split = tuple(names.split())
    return ForeignOption(
        "", split, "works", "", takes if value is None else False, env, target or split[-1], value, how, (), elsewhere
    )


def _note(names: str, text: str, *, env: str = "", takes: bool | tuple[str, ...] = False) -> ForeignOption:
    return ForeignOption("", tuple(names.split()), "note", text, takes, env)


def _refused(
    names: str, text: str, *, env: str = "", neutral: str = "", takes: bool | tuple[str, ...] = True
) -> ForeignOption:
    return ForeignOption("", tuple(names.split()), "refused", text, takes, env, neutral=tuple(neutral.split()))


_ONE_DEVICE = "matrices are never split: use --split-mode layer to spread layers over devices"
_DRAFT = "a draft model runs with the model's settings and an adaptive draft length: see docs/speculation.md"
_NO_SUCH = "drafts come from a draft model, a prediction head or lookup in the text: see docs/speculation.md"
_ADAPTER = "adapters apply to all requests from the start: use --lora FILE or FOLDER"
_ROTATION = "RoPE settings come from the model file: set its rope keys when you convert it"
_MEDIA = "unsupported so far: see docs/images.md"
_PROXY = "put a reverse proxy in front of the server"
_TOOLS = "the server does not run tools, clients do"
_LOGS = "use QUIRE_LOG=debug for more output, --no-access-log for less"
_PLACING = "threads are not pinned one by one: use -C to choose their processors"
_MEASURE = "it belongs to a measuring or training tool of llama.cpp: see benchmarks/README.md"
_DIFFUSION = "diffusion models are not supported"
_PULL = "name the model instead: quire pull org/name:QUANT"

_LLAMA_CPP = (
    # Model
    _works("-m --model", env="LLAMA_ARG_MODEL"),
    _works("-hf -hfr --hf-repo", "--hf-repo", env="LLAMA_ARG_HF_REPO"),
    _works("-hff --hf-file", "--hf-file", env="LLAMA_ARG_HF_FILE"),
    _works("-hft --hf-token", "--hf-token"),
    _works("-mu --model-url", "--model", env="LLAMA_ARG_MODEL_URL"),
    _works("--offline", env="LLAMA_ARG_OFFLINE", takes=False),
    _refused("-dr --docker-repo", "models come from Hugging Face: quire pull org/name", env="LLAMA_ARG_DOCKER_REPO"),
    _refused("-cl --cache-list", "use quire list", takes=False),
    _works("-a --alias", "--alias", env="LLAMA_ARG_ALIAS", how="each"),
    _works("--tags", env="LLAMA_ARG_TAGS", how="each"),
    _note("--check-tensors", "files are always validated, except for the values of weights"),
    _refused("--override-kv", "keys come from the file: edit the file"),
    _works("--lora-scaled --lora", "--lora"),
    _refused("--lora-init-without-apply", _ADAPTER),
    _refused("--control-vector --control-vector-scaled --control-vector-layer-range", "unsupported"),
    _refused("-mmu --mmproj-url", _MEDIA, env="LLAMA_ARG_MMPROJ_URL"),
    _note("-mmdev --mmproj-device", _MEDIA, takes=True),
    _note("--mmproj-auto --no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload", _MEDIA),
    _refused("--audio --video --image-min-tokens --image-max-tokens --media-path", _MEDIA),
    _refused("--mtmd-batch-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir", _MEDIA),
    _refused(
        "--embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default "
        "--fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default "
        "--vision-gemma-4b-default --vision-gemma-12b-default", _PULL, takes=False,
    ),
    # Sizes and threads
    _works("-c --ctx-size", env="LLAMA_ARG_CTX_SIZE"),
    _works("-b", "--batch-size", elsewhere="for this command, -b is the number of sequences"),
    _works("--batch-size", env="LLAMA_ARG_BATCH"),
    _works("-ub --ubatch-size", "--batch-size", env="LLAMA_ARG_UBATCH"),
    _works("-np --parallel", "--max-sequences", env="LLAMA_ARG_N_PARALLEL", how="parallel"),
    _works("-ns --sequences", "--max-sequences"),
    _works("-t --threads", env="LLAMA_ARG_THREADS", how="not_negative"),
    _note("-tb --threads-batch", "prompts use as many threads as answers: use -t", takes=True),
    _works("-C --cpu-mask"),
    _works("-Cr --cpu-range", "--cpu-mask", how="mask"),
    _note("-Cb --cpu-mask-batch -Crb --cpu-range-batch", "prompts use the processors of -C", takes=True),
    _note("--cpu-strict --cpu-strict-batch --prio --prio-batch --poll --poll-batch", _PLACING, takes=True),
    _note("--numa", _PLACING, env="LLAMA_ARG_NUMA", takes=True),
    _note("--threads-http", "HTTP runs on a single thread", env="LLAMA_ARG_THREADS_HTTP", takes=True),
    # Cache
    _works("-ctk --cache-type-k", "--kv-dtype", env="LLAMA_ARG_CACHE_TYPE_K"),
    _works("-ctv --cache-type-v", "--kv-dtype", env="LLAMA_ARG_CACHE_TYPE_V"),
    _note("-fa --flash-attn", "attention never stores a matrix of scores", env="LLAMA_ARG_FLASH_ATTN", takes=_ON_OFF),
    _note("-kvo --kv-offload", "the cache is on the model's device", env="LLAMA_ARG_KV_OFFLOAD"),
    _note("-nkvo --no-kv-offload", "the cache is on the model's device: -ngl 0 keeps both on the CPU"),
    _note("-kvu --kv-unified -no-kvu --no-kv-unified", "all sequences share one cache of blocks"),
    _note("--kv-unified-per-slot", "all sequences share one cache of blocks", takes=True),
    _note("--swa-full", "sliding-window layers keep only what they attend to", env="LLAMA_ARG_SWA_FULL"),
    _works("-cms --checkpoint-min-step", "--snapshot-tokens", env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT"),
    _note("-ctxcp --ctx-checkpoints --swa-checkpoints", "use --snapshot-tokens for their spacing", takes=True),
    _note("-cram --cache-ram", "the prefix cache keeps everything while there is memory", takes=True),
    _note("--cache-reuse", "common prefixes are always reused", env="LLAMA_ARG_CACHE_REUSE", takes=True),
    _note("--cache-prompt --cache-idle-slots --no-cache-idle-slots", "common prefixes are always reused"),
    _note("--no-cache-prompt", "common prefixes are always reused: a request's cache_salt keeps it apart"),
    _note("--no-context-shift", "an answer ends when the context is full"),
    _note("--context-shift", "an answer ends when the context is full: use a larger -c",
          env="LLAMA_ARG_CONTEXT_SHIFT"),
    _note("--keep", "nothing is ever dropped from the context", takes=True),
    _note("-dt --defrag-thold", "a paged cache needs none", env="LLAMA_ARG_DEFRAG_THOLD", takes=True),
    _note("-cb --cont-batching", "batching is always continuous", env="LLAMA_ARG_CONT_BATCHING"),
    _works("-nocb --no-cont-batching", "--max-sequences", value="1", elsewhere="there is only one sequence"),
    _note("-sps --slot-prompt-similarity", "all sequences share one prefix cache", takes=True),
    _note("--slot-save-path", "the cache cannot be saved to files", env="LLAMA_ARG_SLOT_SAVE_PATH", takes=True),
    _refused("--prompt-cache --prompt-cache-all --prompt-cache-ro", "the cache cannot be saved to files"),
    _refused("-lcs --lookup-cache-static -lcd --lookup-cache-dynamic", _NO_SUCH),
    # Devices and memory
    _works("-ngl --gpu-layers --n-gpu-layers", env="LLAMA_ARG_N_GPU_LAYERS"),
    _works("-dev --device", "--device", env="LLAMA_ARG_DEVICE", how="device"),
    _refused("--list-devices", "use quire devices", takes=False),
    _works("-sm --split-mode", env="LLAMA_ARG_SPLIT_MODE", how="split_mode"),
    _works("-ts --tensor-split", env="LLAMA_ARG_TENSOR_SPLIT"),
    _works("-mg --main-gpu", env="LLAMA_ARG_MAIN_GPU"),
    _works("-ot --override-tensor", env="LLAMA_ARG_OVERRIDE_TENSOR"),
    _works("-cmoe --cpu-moe", "--n-cpu-moe", env="LLAMA_ARG_CPU_MOE", value="65536"),
    _works("-ncmoe --n-cpu-moe", env="LLAMA_ARG_N_CPU_MOE"),
    _works("-ncffn --n-cpu-ffn", env="LLAMA_ARG_N_CPU_FFN"),
    _refused("--rpc", "build with QUIRE_RPC, then choose a device of quire devices with --device", env="LLAMA_ARG_RPC"),
    _works("-fit --fit", env="LLAMA_ARG_FIT", how="on_off", takes=_ON_OFF),
    _refused("-fitp --fit-print", "use quire info MODEL --fit", env="LLAMA_ARG_FIT_ESTIMATE", neutral="off 0"),
    _works("-fitt --fit-target", env="LLAMA_ARG_FIT_TARGET"),
    _works("-fitc --fit-ctx", env="LLAMA_ARG_FIT_CTX"),
    _works("--mlock", "--load", value="lock", env="LLAMA_ARG_MLOCK"),
    _works("--no-mmap", "--load", value="copy", env="LLAMA_ARG_NO_MMAP"),
    _works("--mmap", "--load", value="mmap"),
    _works("-lm --load-mode", "--load", env="LLAMA_ARG_LOAD_MODE", how="load_mode"),
    _note("-lzm --lazy-mode", "a mapped file is read on demand", env="LLAMA_ARG_LAZY_MODE", takes=True),
    _note("-dio --direct-io -ndio --no-direct-io", "use --load to choose how files are read"),
    _note("--repack -nr --no-repack --no-host", "use --kernels stock to keep weights as stored in the file"),
    _note("--op-offload --no-op-offload", "operations run on the device of their weights"),
    _note("-bs --backend-sampling", "sampling runs on the CPU", env="LLAMA_ARG_BACKEND_SAMPLING"),
    _note("--warmup --no-warmup", "servers always warm up before the first request"),
    # Positions
    _refused("--rope-scaling", _ROTATION, env="LLAMA_ARG_ROPE_SCALING_TYPE"),
    _refused("--rope-scale", _ROTATION, env="LLAMA_ARG_ROPE_SCALE", neutral="1 1.0"),
    _refused("--rope-freq-base", _ROTATION, env="LLAMA_ARG_ROPE_FREQ_BASE", neutral="0"),
    _refused("--rope-freq-scale", _ROTATION, env="LLAMA_ARG_ROPE_FREQ_SCALE", neutral="1 1.0"),
    _refused("--yarn-orig-ctx", _ROTATION, env="LLAMA_ARG_YARN_ORIG_CTX", neutral="0"),
    _refused("--yarn-ext-factor", _ROTATION, env="LLAMA_ARG_YARN_EXT_FACTOR", neutral="-1 -1.0"),
    _refused("--yarn-attn-factor", _ROTATION, env="LLAMA_ARG_YARN_ATTN_FACTOR", neutral="-1 -1.0"),
    _refused("--yarn-beta-slow", _ROTATION, env="LLAMA_ARG_YARN_BETA_SLOW", neutral="-1 -1.0"),
    _refused("--yarn-beta-fast", _ROTATION, env="LLAMA_ARG_YARN_BETA_FAST", neutral="-1 -1.0"),
    _refused("-gan --grp-attn-n", _ROTATION, env="LLAMA_ARG_GRP_ATTN_N", neutral="1"),
    _refused("-gaw --grp-attn-w", _ROTATION, env="LLAMA_ARG_GRP_ATTN_W", neutral="512"),
    # Prompts
    _works("-p --prompt"),
    _works("-f --file"),
    _works("-e --escape", takes=False),
    _works("--no-escape", takes=False),
    _works("-sys --system-prompt", "--system-prompt"),
    _works("-sysf --system-prompt-file", "--system-prompt-file"),
    _works("-r --reverse-prompt", "--stop"),
    _works("-cnv --conversation -i --interactive -if --interactive-first", "--conversation", takes=False,
           elsewhere="quire chat is always a conversation"),
    _works("-no-cnv --no-conversation", "--raw", takes=False),
    _note("-st --single-turn", "quire run answers one prompt"),
    _note("-mli --multiline-input", "end a line with \\ to continue on the next"),
    _note("--in-prefix-bos", "the chat template writes everything around a message"),
    _refused("--in-prefix --in-suffix", "the chat template writes everything around a message: use --raw without it"),
    _refused("-bf --binary-file", "prompts are text: use -f"),
    _note("-co --color", "output is not coloured", takes=_ON_OFF),
    _note("--simple-io --no-display-prompt", "only the answer is printed"),
    _note("--display-prompt --verbose-prompt", "only the answer is printed: quire tokenize shows prompts"),
    _note("-sp --special", "control tokens are never printed"),
    _note("--perf --no-perf --show-timings --no-show-timings", "use --json for timings"),
    _note("-ptc --print-token-count", "use --json for token counts", takes=True),
    _note("--spm-infill", "the order of prefix and suffix comes from the model"),
    # Chats
    _note("--jinja", "templates always run as Jinja", env="LLAMA_ARG_JINJA"),
    _note("--no-jinja", "templates always run as Jinja"),
    _works("--chat-template", env="LLAMA_ARG_CHAT_TEMPLATE"),
    _works("--chat-template-file", env="LLAMA_ARG_CHAT_TEMPLATE_FILE"),
    _works("--chat-template-kwargs", env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS"),
    _works("--reasoning-format", env="LLAMA_ARG_THINK", how="reasoning_format"),
    _works("-rea --reasoning", "--reasoning", env="LLAMA_ARG_REASONING"),
    _works("--reasoning-effort", env="LLAMA_ARG_REASONING_EFFORT"),
    _works("--reasoning-budget", env="LLAMA_ARG_THINK_BUDGET"),
    _note("--reasoning-budget-message", "thinking ends without a message",
          env="LLAMA_ARG_THINK_BUDGET_MESSAGE", takes=True),
    _note("--reasoning-preserve --no-reasoning-preserve", "the chat template decides which thinking it keeps"),
    _note("--no-skip-chat-parsing --no-prefill-assistant", "this is the default"),
    _refused("--skip-chat-parsing", "use reasoning_format none and tool_format none for the raw answer", takes=False),
    _note("--prefill-assistant", "use continue_final_message in a request"),
    # Sampling
    _works("-n --predict --n-predict", "--predict", env="LLAMA_ARG_N_PREDICT"),
    _works("-s --seed"),
    _works("--samplers"),
    _works("--sampler-seq --sampling-seq", "--samplers", how="sampler_letters"),
    _works("--ignore-eos", takes=False),
    _works("--temp --temperature", "--temp", env="LLAMA_ARG_TEMPERATURE"),
    _works("--top-k", env="LLAMA_ARG_TOP_K"),
    _works("--top-p", env="LLAMA_ARG_TOP_P"),
    _works("--min-p", env="LLAMA_ARG_MIN_P"),
    _works("--top-nsigma --top-n-sigma"),
    _works("--xtc-probability"),
    _works("--xtc-threshold"),
    _works("--typical --typical-p"),
    _works("--repeat-last-n"),
    _works("--repeat-penalty", env="LLAMA_ARG_REPEAT_PENALTY"),
    _works("--presence-penalty", env="LLAMA_ARG_PRESENCE_PENALTY"),
    _works("--frequency-penalty", env="LLAMA_ARG_FREQUENCY_PENALTY"),
    _works("--dry-multiplier"),
    _works("--dry-base"),
    _works("--dry-allowed-length"),
    _works("--dry-penalty-last-n"),
    _works("--dry-sequence-breaker"),
    _works("--dynatemp-range"),
    _works("--dynatemp-exp"),
    _works("--mirostat"),
    _works("--mirostat-lr"),
    _works("--mirostat-ent"),
    _works("-l --logit-bias"),
    _works("--grammar"),
    _works("--grammar-file"),
    _works("-j --json-schema"),
    _works("-jf --json-schema-file"),
    _refused("--adaptive-target", "there is no such sampling stage: leave it out", neutral="-1 -1.0"),
    _note("--adaptive-decay", "there is no such sampling stage", takes=True),
    # Servers
    _works("--host", env="LLAMA_ARG_HOST"),
    _works("--port", env="LLAMA_ARG_PORT"),
    _works("--api-key", env="LLAMA_API_KEY", how="each"),
    _works("--api-key-file", env="LLAMA_ARG_API_KEY_FILE"),
    _works("--cors-origins", "--cors-origin", env="LLAMA_ARG_CORS_ORIGINS", how="each"),
    _note("--cors-methods --cors-headers", "allowed origins may use all methods and headers", takes=True),
    _note("--cors-credentials --no-cors-credentials", "API keys are not cookies"),
    _works("--models-dir", env="LLAMA_ARG_MODELS_DIR"),
    _refused("--models-preset", "use quire cp or models.toml for presets: docs/registry.md",
             env="LLAMA_ARG_MODELS_PRESET"),
    _note("--models-max", "use --memory-budget", env="LLAMA_ARG_MODELS_MAX", takes=True),
    _note("--models-autoload", "models are loaded on first use", env="LLAMA_ARG_MODELS_AUTOLOAD"),
    _refused("--no-models-autoload", "models are loaded on first use", takes=False),
    _works("--sleep-idle-seconds"),
    _note("-to --timeout", "use --request-timeout to limit answers", env="LLAMA_ARG_TIMEOUT", takes=True),
    _note("--metrics", "/metrics is always available", env="LLAMA_ARG_ENDPOINT_METRICS"),
    _note("--slots", "/slots is always available", env="LLAMA_ARG_ENDPOINT_SLOTS"),
    _note("--no-slots", "/slots is always available and never shows texts"),
    _note("--props", "properties are fixed when the server starts", env="LLAMA_ARG_ENDPOINT_PROPS"),
    _note("--embedding --embeddings", "the routes are always available", env="LLAMA_ARG_EMBEDDINGS"),
    _note("--rerank --reranking", "the routes are always available", env="LLAMA_ARG_RERANKING"),
    _works("--pooling", env="LLAMA_ARG_POOLING"),
    _works("--sse-ping-interval", elsewhere="only quire serve has it"),
    _refused("--attention", "it comes from the model file"),
    _note("--ui --webui", "the page is always at /", env="LLAMA_ARG_UI"),
    _note("--no-ui --no-webui", "the page is always at /; it exposes nothing beyond the routes"),
    _refused("--ui-config --webui-config --ui-config-file --webui-config-file", "the browser stores its settings"),
    _note("--no-ui-mcp-proxy --no-webui-mcp-proxy --no-agent -no-ag", "there is no such proxy or agent"),
    _refused("--ui-mcp-proxy --webui-mcp-proxy -ag --agent", _TOOLS, takes=False),
    _refused("--tools-runtime --mcp-servers-config --mcp-servers-json", _TOOLS),
    _refused("--tools", f"{_TOOLS}; quire chat --tools demonstrates some"),
    _refused("--path", f"the page is part of the package: {_PROXY}", env="LLAMA_ARG_STATIC_PATH"),
    _refused("--api-prefix", _PROXY, env="LLAMA_ARG_API_PREFIX"),
    _refused("--ssl-key-file", _PROXY, env="LLAMA_ARG_SSL_KEY_FILE"),
    _refused("--ssl-cert-file", _PROXY, env="LLAMA_ARG_SSL_CERT_FILE"),
    _refused("--reuse-port", "only one server can listen on a port", env="LLAMA_ARG_REUSE_PORT", takes=False),
    _refused("--server-base", "it belongs to llama.cpp's client"),
    # Logs and the program
    _note("-v --log-verbose --log-disable --log-prefix --no-log-prefix", _LOGS),
    _note("--log-timestamps --no-log-timestamps --log-jsonl --no-log-jsonl", _LOGS),
    _note("-lv --verbosity --log-verbosity --log-colors", _LOGS, takes=True),
    _refused("--log-file", "redirect standard error: 2> FILE", env="LLAMA_ARG_LOG_FILE"),
    _refused("--log-prompts-dir", "prompts are never logged"),
    _refused("--completion-bash", 'use eval "$(_QUIRE_COMPLETE=bash_source quire)"', takes=False),
    _refused("--usage", "use --help", takes=False),
    _refused("--version", "use quire --version", takes=False),
    # Speculation
    _works("-md --model-draft --spec-draft-model", "--draft", env="LLAMA_ARG_SPEC_DRAFT_MODEL"),
    _works("--draft-n --draft-max --draft-n-max --spec-draft-n-max", "--draft-max"),
    _works("--draft-min --draft-n-min --spec-draft-n-min", "--draft-min"),
    _refused(
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
        "give --draft a file: quire pull org/name:QUANT prints its path",
        env="LLAMA_ARG_SPEC_DRAFT_HF_REPO",
    ),
    _works("--spec-type", "--speculation", env="LLAMA_ARG_SPEC_TYPE", how="spec_type"),
    _works("--spec-default", "--speculation", value="auto"),
    _works("--mtp", "--speculation", value="mtp"),
    _refused("--eagle3", "use --draft with the head's file or folder", takes=False),
    _refused("--dflash", _NO_SUCH, takes=False),
    _note(
        "-td --threads-draft --spec-draft-threads -tbd --threads-batch-draft --spec-draft-threads-batch "
        "-Cd --cpu-mask-draft --spec-draft-cpu-mask -Crd --cpu-range-draft --spec-draft-cpu-range "
        "--cpu-strict-draft --spec-draft-cpu-strict --prio-draft --spec-draft-prio --poll-draft --spec-draft-poll "
        "-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch -Crbd --cpu-range-batch-draft "
        "--spec-draft-cpu-range-batch --cpu-strict-batch-draft --spec-draft-cpu-strict-batch --prio-batch-draft "
        "--spec-draft-prio-batch --poll-batch-draft --spec-draft-poll-batch -cd --ctx-size-draft "
        "-ctkd --cache-type-k-draft --spec-draft-type-k -ctvd --cache-type-v-draft --spec-draft-type-v "
        "-otd --override-tensor-draft --spec-draft-override-tensor -ncmoed --n-cpu-moe-draft "
        "--spec-draft-n-cpu-moe --spec-draft-ncmoe -devd --device-draft --spec-draft-device "
        "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl --draft-p-min --draft-p-split "
        "--spec-draft-p-min --spec-draft-p-split --spec-synth-len --spec-synth-rates "
        "--spec-ngram-mod-n-min --spec-ngram-mod-n-max "
        "--spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m "
        "--spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m "
        "--spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m "
        "--spec-ngram-map-k4v-min-hits --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits",
        _DRAFT, takes=True,
    ),
    _note("--cpu-moe-draft -cmoed --spec-draft-cpu-moe --spec-draft-backend-sampling", _DRAFT),
    _note("--no-spec-draft-backend-sampling", _DRAFT),
    # Other programs of llama.cpp
    _refused("-o --output --output-file -ofreq --output-frequency --output-format --save-frequency", _MEASURE),
    _refused("--hellaswag --winogrande --multiple-choice --kl-divergence --ppl --no-ppl --chunks --chunk", _MEASURE),
    _refused("--hellaswag-tasks --winogrande-tasks --multiple-choice-tasks --save-all-logits", _MEASURE),
    _refused("--kl-divergence-base --ppl-stride --ppl-output-type --from-chunk --process-output", _MEASURE),
    _refused("--show-statistics --context-file --chunk-size --chunk-separator --junk --pos --in-file", _MEASURE),
    _refused("-pps -tgs -npp -ntg -npl --positive-file --negative-file --pca-batch --pca-iter --method", _MEASURE),
    _refused("--embd-normalize --embd-output-format --embd-separator --cls-separator", "use LLM.embed in Python"),
    _works("--ids", takes=False),
    _works("--parse-special", takes=False),
    _works("--no-bos", "--no-special", takes=False),
    _note("--no-parse-special --show-count --stdin", "this is the default"),
    _refused("-lr --learning-rate -lr-min --learning-rate-min -wd --weight-decay -opt --optimizer", _MEASURE),
    _refused("-decay-epochs --learning-rate-decay-epochs -val-split --val-split -epochs --epochs", _MEASURE),
    _refused("--check --save-logits --logits-output-dir --tensor-filter", _MEASURE),
    _refused("--tts-lang --tts-speaker-file", "only text output is supported"),
    _refused("--diffusion-steps --diffusion-visual --diffusion-eps --diffusion-algorithm", _DIFFUSION),
    _refused("--diffusion-alg-temp --diffusion-block-length --diffusion-cfg-scale", _DIFFUSION),
    _refused("--diffusion-add-gumbel-noise", _DIFFUSION),
)  # fmt: skip

_ALWAYS = "always on"
_NO_PART = "Quire has no such component"
_PARSERS = "the format is detected from the template; a request may set tool_format or reasoning_format"

_VLLM = (
    _works("--max-model-len", "--ctx-size", how="human"),
    _works("--served-model-name", "--alias"),
    _works("--max-num-seqs", "--max-sequences"),
    _works("--max-num-batched-tokens", "--batch-size"),
    _works("--kv-cache-dtype", "--kv-dtype", how="vllm_dtype"),
    _works("--api-key", env="VLLM_API_KEY"),
    _works("--allowed-origins", "--cors-origin", how="json_list"),
    _works("--disable-log-requests --disable-access-log-for-endpoints --disable-uvicorn-access-log", "--no-access-log",
           takes=False),
    _works("--uvicorn-log-level", "--no-access-log", how="quiet_level"),
    _works("--max-waiting-requests", "--max-queue"),
    _works("--num-gpu-blocks-override", "--cache-blocks"),
    _works("--scheduling-policy", "--policy"),
    _note("--gpu-memory-utilization", "use --memory-budget BYTES", takes=True),
    _note("--dtype", "weights keep the file's type and sums are F32; use --kv-dtype for the cache", takes=True),
    _note("--enable-prefix-caching --enable-chunked-prefill", _ALWAYS),
    _refused("--no-enable-prefix-caching", "common prefixes are always reused: a request's cache_salt keeps it apart"),
    _note("--no-enable-chunked-prefill", "long prompts are always processed in chunks"),
    _note("--trust-remote-code", "code that comes with a model is never run"),
    _note("--enforce-eager --disable-log-stats --enable-log-requests --no-enable-log-requests", _NO_PART),
    _note("--enable-auto-tool-choice --enable-prompt-tokens-details", _ALWAYS),
    _note("--enable-log-outputs", "prompts and answers are never logged"),
    _note("--max-log-len", "prompts and answers are never logged", takes=True),
    _note("--async-scheduling --no-async-scheduling --disable-custom-all-reduce --disable-hybrid-kv-cache-manager "
          "--disable-frontend-multiprocessing --use-v2-block-manager --calculate-kv-scales --enable-expert-parallel",
          _NO_PART),
    _note("--distributed-executor-backend --compilation-config --num-scheduler-steps --preemption-mode", _NO_PART,
          takes=True),
    _note("--long-prefill-token-threshold --max-num-partial-prefills --max-long-partial-prefills",
          "use --batch-size and --step-time to limit prompt tokens per step", takes=True),
    _note("--chat-template-content-format", "content may be text or a list of parts", takes=True),
    _refused("--response-role", "answers always have the role assistant", neutral="assistant"),
    _refused("--return-tokens-as-token-ids", "use /v1/generate or /completion for ids", takes=False),
    _refused("--enable-sleep-mode", "use --sleep-idle-seconds to unload idle models", takes=False),
    _refused("--disable-sliding-window", "it comes from the model file", takes=False),
    _refused("--hf-overrides --rope-theta", _ROTATION),
    _refused("--logits-processors --logits-processor-pattern", "use SamplingParams(logits_processors=...) in Python"),
    _refused("--kv-transfer-config --mm-processor-kwargs", "Quire has no such component: leave it out"),
    _note("--tool-call-parser --reasoning-parser", _PARSERS, takes=True),
    _note("--enable-reasoning", _ALWAYS),
    _note("--guided-decoding-backend --structured-outputs-config", "llguidance is always used", takes=True),
    _note("--swap-space --cpu-offload-gb --max-parallel-loading-workers", _NO_PART, takes=True),
    _note("--max-seq-len-to-capture --max-logprobs --load-format", _NO_PART, takes=True),
    _refused("--logprobs-mode", "set post_sampling_probs in a request (processed_logprobs in Python)",
             neutral="raw_logprobs"),
    _note("--quantization -q", "it comes from the model file", takes=True),
    _note("--generation-config", "the defaults in the model's files always apply", takes=True),
    _refused("--tensor-parallel-size -tp --pipeline-parallel-size -pp", _ONE_DEVICE, neutral="1"),
    _refused("--data-parallel-size -dp", "start several servers behind a proxy", neutral="1"),
    _refused("--block-size", "blocks always have 32 tokens", neutral="32"),
    _refused("--tokenizer --tokenizer-mode --hf-config-path", "the model's own is always used", neutral="auto"),
    _refused("--revision", "name the file: https://huggingface.co/org/name/resolve/REVISION/FILE", neutral="main"),
    _refused("--download-dir", "set HF_HOME to choose where models are stored"),
    _refused("--enable-lora --lora-modules --max-loras --max-lora-rank --max-cpu-loras", _ADAPTER),
    _works("--speculative-model", "--draft"),
    _works("--num-speculative-tokens", "--draft-max"),
    _refused("--speculative-config", "use --draft, --speculation and --draft-max"),
    _refused("--ssl-keyfile --ssl-certfile --ssl-ca-certs --root-path", _PROXY),
    _refused("--middleware --limit-mm-per-prompt", "Quire has no such component: leave it out"),
    _refused("--override-generation-config --default-chat-template-kwargs", "use sampling options such as --temp"),
    _refused("--task --runner --convert", "the task follows from the model file", neutral="auto generate"),
)  # fmt: skip

_OLLAMA = (
    _works("--format", "--json-schema", how="ollama_format"),
    ForeignOption(
        "",
        ("--think",),
        "works",
        takes=("true", "false", "low", "medium", "high", "max"),
        target="--reasoning",
        how="think",
    ),
    _works("--hidethinking", "--hide-thinking", takes=False),
    _works("--num-predict", "--predict"),
    _works("--num-ctx", "--ctx-size"),
    _works("--num-gpu", "--gpu-layers"),
    _works("--num-thread", "--threads"),
    _works("--num-batch", "--batch-size"),
    _note("--keepalive", "a model stays loaded while the command runs; servers have --sleep-idle-seconds", takes=True),
    _note("--nowordwrap", "only conversations on a terminal are wrapped"),
    _note("--insecure", "set HF_ENDPOINT to an address without TLS"),
    _refused(
        "--modelfile --parameters --template --license",
        "use quire show NAME --json or quire info",
        takes=False,
    ),
    ForeignOption("", (), "works", env="OLLAMA_HOST", target="--host", how="address"),
    ForeignOption("", (), "works", env="OLLAMA_NUM_PARALLEL", target="--max-sequences"),
    ForeignOption("", (), "works", env="OLLAMA_CONTEXT_LENGTH", target="--ctx-size"),
    ForeignOption("", (), "works", env="OLLAMA_KEEP_ALIVE", target="--sleep-idle-seconds", how="duration"),
    ForeignOption("", (), "works", env="OLLAMA_MAX_QUEUE", target="--max-queue"),
    ForeignOption("", (), "works", env="OLLAMA_KV_CACHE_TYPE", target="--kv-dtype"),
    ForeignOption("", (), "works", env="OLLAMA_ORIGINS", target="--cors-origin", how="each"),
    ForeignOption("", (), "note", "only tells Quire where Ollama's models are", env="OLLAMA_MODELS"),
    ForeignOption("", (), "note", "use --memory-budget", env="OLLAMA_MAX_LOADED_MODELS"),
    ForeignOption("", (), "note", "attention never stores a matrix of scores", env="OLLAMA_FLASH_ATTENTION"),
    ForeignOption("", (), "note", _LOGS, env="OLLAMA_DEBUG"),
    ForeignOption("", (), "note", "a model is opened in at most half an hour", env="OLLAMA_LOAD_TIMEOUT"),
    ForeignOption("", (), "note", "--device names one", env="OLLAMA_LLM_LIBRARY"),
    ForeignOption("", (), "note", _ONE_DEVICE, env="OLLAMA_SCHED_SPREAD"),
)

_OTHERS = (
    _works("--max-new-tokens --max-completion-tokens --n-tokens --num-tokens", "--predict"),
    _works("--context-length --context-size --ctx --n-ctx --max-seq-len", "--ctx-size"),
    _works("--n-threads --num-threads", "--threads"),
    _works("--num-gpu-layers --ngl", "--gpu-layers"),
    _works("--n-batch", "--batch-size"),
    _works("--model-path --model-name --pretrained-model-name-or-path", "--model"),
    _works("--draft-model", "--draft"),
    _works("--num-draft-tokens --num-assistant-tokens", "--draft-max"),
    _works("--repetition-penalty", "--repeat-penalty"),
    _works("--stop-sequence --stop-sequences --stop-string", "--stop"),
    _works("--system-message --sys", "--system"),
    _works("--schema", "--json-schema"),
    _works("--adapter-path --adapter", "--lora"),
    _works("--prompt-file", "--file"),
    _works("--no-think --nothink --disable-thinking", "--reasoning", value="off"),
    _works("--enable-thinking", "--reasoning", value="on"),
    _works("--max-kv-size", "--ctx-size"),
    _note("--stream", "an answer is shown as it comes"),
    _works("--no-stream", takes=False, elsewhere="only quire run can print an answer when it is complete"),
    _note("--verbose", _LOGS),
)


def _named(program: str, rows: tuple[ForeignOption, ...]) -> tuple[ForeignOption, ...]:
    from dataclasses import replace

    return tuple(replace(row, program=program) for row in rows)


ROWS = (
    *_named("llama.cpp", _LLAMA_CPP),
    *_named("vLLM", _VLLM),
    *_named("Ollama", _OLLAMA),
    *_named("others", _OTHERS),
)
