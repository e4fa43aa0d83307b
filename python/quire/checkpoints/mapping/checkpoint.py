"""The mapping of one of transformers' checkpoint classes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from ...errors import LoadError, UnsupportedError
from ..reading.fields import MAX_HEAD_DIM, MAX_LAYERS, Fields
from .biases import denying_field
from .changes import Array, OnlyWith
from .keys import Key
from .rope import Entry, llama3_factors, longrope_factors, rope_keys, rope_of
from .tensors import PredictingLayers, Source, Target, layers_of, planned

_LOG = logging.getLogger("quire")
# Fields of config.json that do not change logits: about training, tokenizer, generation, or other programs.
WITHOUT_EFFECT = (
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "_commit_hash",
    "auto_map", "torchscript", "use_bfloat16", "use_cache", "gradient_checkpointing", "initializer_range",
    "initializer_factor", "*_dropout", "*_dropout_prob", "*_pdrop", "dropout", "pretraining_tp",
    "*_attn_implementation*", "_flash_attn_2_enabled", "output_attentions", "output_hidden_states",
    "output_router_logits", "router_aux_loss_coef", "router_z_loss_coef", "return_dict*", "chunk_size_feed_forward",
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
    "tokenizer_class", "prefix", "unsloth_*", "transformers.js_config", "is_llama_config", "is_decoder", "*_token_id",
    "tf_legacy_loss",
    # Generation parameters, which older versions saved here.
    "max_length", "min_length", "max_new_tokens", "do_sample", "num_beams", "num_beam_groups", "num_return_sequences",
    "early_stopping", "temperature", "top_k", "top_p", "typical_p", "epsilon_cutoff", "eta_cutoff",
    "repetition_penalty", "length_penalty", "diversity_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
    "remove_invalid_values", "exponential_decay_length_penalty", "output_scores",
)  # fmt: skip

# Buffers saved by older versions; they follow from the configuration.
IGNORED_TENSORS = ("*.rotary_emb.inv_freq", "*.rotary_emb.original_inv_freq")

Permitted = tuple[object, ...]
SILU: Permitted = ("silu", "swish")
# Values that all models here assume (null included if it means the same); a class may permit others.
FIXED: Mapping[str, Permitted] = {
    "is_causal": (True,), "is_encoder_decoder": (False,), "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,), "cross_attention_hidden_size": (None,), "pruned_heads": ({}, None),
    "rope_interleaved": (False,),
}  # fmt: skip


def _is_permitted(value: object, permitted: Permitted) -> bool:
    """Return whether a value is permitted; if only booleans are, null and numbers count by their truth value."""
    if all(isinstance(one, bool) for one in permitted) and (value is None or isinstance(value, int | float)):
        return bool(value) in permitted
    return value in permitted


def _without_denied(targets: list[Target], config: Fields) -> list[Target]:
    """Drop tensors that the model does not have by its configuration; a warning names them."""
    denied: dict[str, str] = {}
    for target in targets:
        for source in target.sources:
            if isinstance(change := target.change, OnlyWith) and change.denies(source, config):
                denied[source] = change.name
            elif field := denying_field(source, config):
                denied[source] = field
    if denied:
        first = min(denied)
        _LOG.warning(
            "[convert] ignoring %d tensors that config.json denies: %r by %r ...", len(denied), first, denied[first]
        )
    return [target for target in targets if not denied.keys() & set(target.sources)]


@dataclass(frozen=True)
class Checkpoint:
    """How the checkpoints of one of transformers' classes become files of an architecture.

    Every field of config.json and every tensor must be read, declared without effect, or rejected by name.
    """

    arch: str  # general.architecture
    keys: Mapping[str, Key]  # GGUF keys below the architecture's name, and where their values come from
    tensors: Mapping[str, str | Source]  # GGUF names, and the checkpoint's names (tensors.planned)
    fixed: Mapping[str, Permitted] = field(default_factory=dict)  # fields, and the only values that the model computes
    checks: tuple[Callable[[Fields], None], ...] = ()  # raise UnsupportedError for what tables cannot express
    rope: Callable[[Fields], Iterator[Entry]] | None = rope_keys  # None: no RoPE
    tied: bool = False  # transformers' default of tie_word_embeddings
    # Complete GGUF keys whose values are one-number tensors, one for each layer if the name has {i}.
    numbers: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # patterns of fields without effect
    ignored: tuple[str, ...] = ()  # patterns of tensors that are known and not used
    section: str = ""  # the field that contains the text model's configuration in a larger one
    predicting: PredictingLayers | None = None  # layers that predict later tokens
    # The head that predicts masked tokens, which is used only for sparse vectors (``with_masked_head``).
    masked: Mapping[str, str | Source] = field(default_factory=dict)
    has_empty_layers: bool = False  # layers may have no tensors
    is_head: bool = False  # a head, which proposes tokens for another model and has no vocabulary of its own
    base: str = "model."  # the prefix that checkpoints without the output matrix omit
    # Prefixes of the text model's tensors, and their prefixes inside a larger model.
    homes: tuple[tuple[str, str], ...] = ()
    # Transformers' defaults of fields that the text model's section of a larger configuration omits.
    defaults: Mapping[str, object] = field(default_factory=dict)

    def config_of(self, whole: Fields) -> Fields:
        """Return the configuration of the text model."""
        if not self.section or not whole.has(self.section):
            return whole
        return whole.inner(self.section).filled(self.defaults)

    def chosen(self, whole: Fields) -> Checkpoint:
        """Return itself; a subclass may choose another mapping by the text model."""
        return self

    def with_masked_head(self, name: str) -> Checkpoint:
        """Return the mapping with the head that predicts masked tokens.  UnsupportedError if it has none."""
        if not self.masked:
            raise UnsupportedError(f"[convert] unsupported sparse vectors of {name}: it has no head for masked tokens")
        return replace(self, tensors={**self.tensors, **self.masked})

    def arch_of(self, config: Fields) -> str:
        """Return ``general.architecture``; a subclass may choose among several."""
        return self.arch

    def entries(self, config: Fields) -> Iterator[Entry]:
        """Yield every key below the architecture's name, and check all fields that could change an answer."""
        common = {name: permitted for name, permitted in FIXED.items() if config.knows(name)}
        for name, permitted in {**common, **self.fixed}.items():
            value = config.value(name)
            is_there = value is not None or config.is_null(name)
            if is_there and not _is_permitted(value, permitted) and not config.is_default(name):
                words = " or ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in permitted)
                raise UnsupportedError(f"[convert] unsupported '{name}': {value} (expected {words or 'none'})")
        for check in self.checks:
            check(config)
        for entry in self.tensors.values():  # even if the checkpoint has no such tensors
            if isinstance(change := Source.of(entry).change, OnlyWith):
                config.read((change.name,))
        for name, key in self.keys.items():
            if (made := key.read(config)) is not None:
                yield name, key.kind, made
        if self.rope is not None:
            yield from self.rope(config)
        config.integer("vocab_size")
        self.is_tied(config)

    def n_predicting(self, config: Fields, there: Collection[str]) -> int:
        """Return how many layers of the checkpoint predict later tokens and are supported."""
        return self.predicting.count(there, self._n_layer(config)) if self.predicting is not None else 0

    def with_predicting(self, entries: Iterable[Entry], n: int) -> list[Entry]:
        """Return the keys of a file with ``n`` more layers, which predict later tokens."""
        by_layer = {} if self.predicting is None else self.predicting.by_layer
        found: list[Entry] = []
        for name, kind, value in entries:
            if name == "block_count":
                assert isinstance(value, int)
                found.append((name, kind, value + n))
            elif name in by_layer and isinstance(value, list):
                found.append((name, kind, value + [by_layer[name]] * n))
            elif name != "nextn_predict_layers":
                found.append((name, kind, value))
        return [*found, ("nextn_predict_layers", "u32", n)]

    def refuse_unread(self, whole: Fields) -> list[str]:
        """Return the names of fields that transformers does not know either.

        Raises:
            UnsupportedError: A field may change the answer and was neither read nor declared without effect.
        """
        return whole.refuse_unread([*WITHOUT_EFFECT, *self.unused])

    def is_tied(self, whole: Fields) -> bool:
        """Return whether the output matrix is the embedding's; a larger configuration's field takes precedence."""
        inner = self.config_of(whole).flag("tie_word_embeddings", self.tied)
        return whole.flag("tie_word_embeddings", inner)

    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        """Return the file's tensors in order.

        Args:
            config: The text model's configuration.
            entries: The file's keys.
            there: Names of the checkpoint's tensors.

        Raises:
            UnsupportedError: The checkpoint has unknown tensors.
            LoadError: A layer has no tensors.
        """
        table = self._named_as(there)
        n_layer = self._n_layer(config)
        targets = list(planned(table, there, n_layer))
        if self.predicting is not None:
            targets += self.predicting.planned(table, there, n_layer, self.n_predicting(config, there))
        targets += [Target(name, (), made=values) for name, values in self._factors(config, entries)]
        used = {source for target in targets for source in target.sources}
        targets = _without_denied(targets, config)
        patterns = [*IGNORED_TENSORS, *self.ignored, *(name.replace("{i}", "*") for name in self.numbers.values())]
        left = [name for name in there if name not in used and not any(fnmatchcase(name, p) for p in patterns)]
        if left:
            raise UnsupportedError(f"[convert] unknown tensors in the checkpoint ({len(left)}): {min(left)!r} ...")
        present = layers_of(table, used)
        for i in range(n_layer):
            if i not in present and not self.has_empty_layers:
                name = present[0].replace(".0.", f".{i}.", 1) if 0 in present else f"layer {i}"
                raise LoadError(f"[convert] the checkpoint lacks the tensors of {name!r}")
        return targets

    def _n_layer(self, config: Fields) -> int:
        """Return the number of layers; with an encoder and a decoder, the larger number."""
        names = ("block_count", "decoder_block_count", "audio.block_count")
        counts = [self.keys[key].read(config) for key in names if key in self.keys]
        n_layer = max(count for count in counts if isinstance(count, int))
        if n_layer > MAX_LAYERS:  # several passes over the same layers
            raise LoadError(f"[convert] the configuration has {n_layer} layers: expected at most {MAX_LAYERS}")
        return n_layer

    def _factors(self, config: Fields, entries: Iterable[Entry]) -> Iterator[tuple[str, Array]]:
        """Yield the tensors of frequency factors, for scalings that have any."""
        if self.rope is None:
            return
        values = {key: value for key, _, value in entries}
        n_rot = values.get("rope.dimension_count", values.get("attention.key_length"))
        if n_rot is None:
            n_head = values.get("attention.head_count")
            if not isinstance(n_head, int) or n_head < 1:  # a list of each layer's, or none
                n_head = config.integer("num_attention_heads", low=1)
            n_rot = config.integer("hidden_size") // n_head
        base = values.get("rope.freq_base")
        assert isinstance(n_rot, int)
        if n_rot > MAX_HEAD_DIM:  # before there are factors for each dimension
            raise LoadError(f"[convert] heads of {n_rot} dimensions are too large: expected at most {MAX_HEAD_DIM}")
        if isinstance(base, float) and (factors := llama3_factors(rope_of(config), base, n_rot)) is not None:
            yield "rope_freqs.weight", factors
        yield from longrope_factors(rope_of(config), n_rot)

    def _named_as(self, there: Collection[str]) -> Mapping[str, str | Source]:
        """Return the table with this checkpoint's prefixes."""
        for old, new in self.homes:
            moved = {target: Source.of(entry).moved(old, new) for target, entry in self.tensors.items()}
            if f"{moved['token_embd'].names[0]}.weight" in there:
                return moved
        if not self.base or any(name.startswith(self.base) for name in there):
            return self.tensors
        return {target: Source.of(entry).without(self.base) for target, entry in self.tensors.items()}
