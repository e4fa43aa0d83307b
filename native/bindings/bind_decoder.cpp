#include <cmath>
#include <map>
#include <span>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/prefix_names.h"
#include "bindings/token_mask.h"
#include "core/error.h"
#include "engine/decoding/decoder.h"
#include "engine/drafting/grammar_drafter.h"
#include "engine/drafting/head_drafter.h"
#include "engine/drafting/lookup_drafter.h"
#include "engine/drafting/model_drafter.h"
#include "graph/trace/low_rank_adapter.h"
#include "kv/prefix_file.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

using Row = py::array_t<float, py::array::c_style | py::array::forcecast>;

using VisibleTokens = std::map<int32_t, py::bytes>;

Pooling pooling(const std::string &name) {
    if (name == "none") return Pooling::none;
    if (name == "mean") return Pooling::mean;
    if (name == "cls") return Pooling::cls;
    if (name == "last") return Pooling::last;
    if (name == "max") return Pooling::max;
    if (name == "taps") return Pooling::taps;
    throw RequestError(
        "request", cat("unknown embedding '", name.substr(0, 40), "': expected none, mean, cls, last, max or taps"));
}

using Rows = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Places = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
using Media = std::vector<std::tuple<int64_t, py::bytes, Rows>>;

// Without the GIL: rows of large images are hundreds of megabytes.
void copy_rows(PromptMedia &media, const Media &spans) {
    std::vector<std::span<const float>> rows;
    for (const auto &span : spans)
        rows.emplace_back(std::get<Rows>(span).data(), static_cast<size_t>(std::get<Rows>(span).size()));
    py::gil_scoped_release release;
    for (size_t i = 0; i < rows.size(); ++i) media.spans[i].rows.assign(rows[i].begin(), rows[i].end());
}

std::shared_ptr<const PromptMedia> prompt_media(const Media &spans, const std::vector<bool> &is_causal,
                                                const std::optional<Places> &places, size_t n_prompt) {
    if (!is_causal.empty() && is_causal.size() != spans.size())
        throw ShapeError("request", cat("is_causal has ", is_causal.size(), " values for ", spans.size(), " of media"));
    if (spans.empty() && !places) return nullptr;
    auto media = std::make_shared<PromptMedia>();
    for (const auto &[begin, digest, rows] : spans) {
        if (rows.ndim() != 2)
            throw ShapeError("request", cat("rows of media have ", rows.ndim(), " dimensions: expected 2"));
        const auto width = static_cast<size_t>(rows.shape(1));
        if (!media->spans.empty() && width != media->width)
            throw ShapeError("request", cat("rows of media have ", width, " and ", media->width, " values"));
        media->width = width;
        const bool attends_back = !is_causal.empty() && is_causal[media->spans.size()];
        media->spans.push_back({begin, rows.shape(0), std::string(digest), {}, !attends_back});
    }
    copy_rows(*media, spans);
    if (places) media->set_axes({places->data(), places->data() + places->size()}, static_cast<int64_t>(n_prompt));
    return media;
}

// Each with its scale and the first position that has it.
using HeldAdapters = std::vector<std::tuple<std::shared_ptr<LowRankAdapter>, float, int64_t>>;

// A request and its parameters as they were when it was made.
Request make_request(std::vector<int32_t> token_ids, const SamplingParams *params, std::string salt, int priority,
                     std::string key, bool external_logits, bool prompt_logits, bool grammar,
                     const VisibleTokens &visible_tokens, const std::optional<std::string> &embedding, bool announced,
                     std::vector<int64_t> snapshot_positions, std::optional<int64_t> second_text,
                     std::string speculation, std::vector<int32_t> prediction, const Media &media,
                     const std::vector<bool> &is_causal, const std::optional<Places> &places,
                     std::vector<std::vector<int32_t>> bad_sequences, const HeldAdapters &adapters,
                     std::vector<float> steering) {
    if (embedding && prompt_logits) throw RequestError("request", "embedding cannot be combined with prompt_logits");
    std::vector<std::pair<int32_t, std::string>> visible;
    for (const auto &[token, bytes] : visible_tokens) visible.emplace_back(token, std::string(bytes));
    std::vector<HeldAdapter> held;
    std::string adapters_name;
    std::vector<LateAdapter> late;
    for (const auto &[adapter, scale, first] : adapters) {
        if (!adapter) throw RequestError("request", "an adapter is None");
        if (!std::isfinite(scale)) throw RequestError("request", cat("an adapter's scale is ", scale));
        if (first < 0) throw RequestError("request", cat("an adapter's first position is ", first));
        held.push_back({adapter, scale, first});
        std::string name = adapter->identity;
        name.append(reinterpret_cast<const char *>(&scale), sizeof scale);
        if (first == 0)
            adapters_name += name;
        else
            late.push_back({std::move(name), first});
    }
    auto found = prompt_media(media, is_causal, places, token_ids.size());
    return {std::move(token_ids),
            params ? std::make_shared<const SamplingParams>(*params) : nullptr,
            embedding       ? Task::embedding
            : prompt_logits ? Task::prompt_logits
                            : Task::generate,
            external_logits ? LogitsProcessor::outside : LogitsProcessor::none,
            grammar ? Constraint::grammar : Constraint::none,
            std::move(salt),
            priority,
            std::move(key),
            std::move(visible),
            embedding ? pooling(*embedding) : Pooling::last,
            announced ? Admission::announced : Admission::silent,
            std::move(snapshot_positions),
            second_text,
            std::move(speculation),
            std::move(prediction),
            std::move(found),
            std::move(bad_sequences),
            std::move(held),
            std::move(late),
            std::move(adapters_name),
            std::move(steering)};
}

const char *kind_name(const Event &event) {
    static const char *const names[] = {"delta",    "logits",   "prompt_logits", "embedding",
                                        "admitted", "progress", "finish",        "error"};
    return names[static_cast<int>(event.kind)];
}

std::optional<std::string> finish_reason(const Event &event) {
    static const char *const names[] = {"stop", "length", "cancelled"};
    if (event.kind != EventKind::finish) return std::nullopt;
    return names[static_cast<int>(event.finish_reason)];
}

std::optional<std::string> error_kind(const Event &event) {
    static const char *const names[n_error_kinds] = {
        "LoadError", "ShapeError", "UnsupportedError", "CapacityError", "RequestError", "InternalError", "DeviceError"};
    if (event.kind != EventKind::error) return std::nullopt;
    return names[static_cast<int>(event.error_kind)];
}

// The event owns the rows; the array keeps the event alive.
py::object logits_of(const py::object &self) {
    const auto &event = self.cast<const Event &>();
    const auto n = static_cast<py::ssize_t>(event.logits.size());
    if (event.kind == EventKind::logits) return py::array_t<float>({n}, event.logits.data(), self);
    if (event.kind != EventKind::prompt_logits) return py::none();
    const auto n_rows = static_cast<py::ssize_t>(event.n_logit_rows);
    return py::array_t<float>({n_rows, n / n_rows}, event.logits.data(), self);
}

py::object embedding_of(const py::object &self) {
    const auto &event = self.cast<const Event &>();
    if (event.kind != EventKind::embedding) return py::none();
    const auto n = static_cast<py::ssize_t>(event.logits.size()), n_rows = static_cast<py::ssize_t>(event.n_logit_rows);
    if (n_rows > 0) return py::array_t<float>({n_rows, n / n_rows}, event.logits.data(), self);
    return py::array_t<float>({n}, event.logits.data(), self);
}

void bind_mask_job(py::module_ &m) {
    py::class_<MaskJob>(m, "MaskJob")
        .def_property_readonly("request_id", [](const MaskJob &self) { return static_cast<uint64_t>(self.request); })
        .def_readonly("choice", &MaskJob::choice)
        .def_readonly("position", &MaskJob::position)
        .def_readonly("tokens", &MaskJob::tokens)
        .def_readonly("n_drafted", &MaskJob::n_drafted)
        .def("__repr__", [](const MaskJob &self) {
            return cat("<MaskJob of request ", static_cast<uint64_t>(self.request), ", choice ", self.choice,
                       ", token ", self.position, ">");
        });
}

void bind_event(py::module_ &m) {
    py::class_<Request>(m, "Request")
        .def(py::init(&make_request), py::arg("token_ids"), py::arg("params") = nullptr, py::kw_only(),
             py::arg("salt") = py::bytes(), py::arg("priority") = 0, py::arg("key") = "",
             py::arg("external_logits") = false, py::arg("prompt_logits") = false, py::arg("grammar") = false,
             py::arg("visible_tokens") = VisibleTokens(), py::arg("embedding") = py::none(),
             py::arg("announced") = false, py::arg("snapshot_positions") = std::vector<int64_t>(),
             py::arg("second_text") = py::none(), py::arg("speculation") = "",
             py::arg("prediction") = std::vector<int32_t>(), py::arg("media") = Media(),
             py::arg("is_causal") = std::vector<bool>(), py::arg("places") = py::none(),
             py::arg("bad_sequences") = std::vector<std::vector<int32_t>>(), py::arg("adapters") = HeldAdapters(),
             py::arg("steering") = std::vector<float>());
    py::class_<Timings>(m, "Timings")
        .def_readonly("queue_s", &Timings::queue_s)
        .def_readonly("prefill_s", &Timings::prefill_s)
        .def_readonly("decode_s", &Timings::decode_s)
        .def("__repr__", [](const Timings &t) {
            return cat("Timings(queue_s=", t.queue_s, ", prefill_s=", t.prefill_s, ", decode_s=", t.decode_s, ")");
        });
    py::class_<Event>(m, "Event")
        .def_property_readonly("request_id", [](const Event &self) { return static_cast<uint64_t>(self.request); })
        .def_readonly("choice", &Event::choice)
        .def_property_readonly("kind", &kind_name)
        .def_readonly("text", &Event::text)
        .def_readonly("token_ids", &Event::token_ids)
        .def_readonly("logprobs", &Event::logprobs)
        .def_readonly("prompt_logprobs", &Event::prompt_logprobs)
        .def_property_readonly("logits", &logits_of)
        .def_property_readonly("embedding", &embedding_of)
        .def_readonly("first_position", &Event::first_position)
        .def_readonly("n_read_tokens", &Event::n_read_tokens)
        .def_property_readonly("finish_reason", &finish_reason)
        .def_readonly("stop_reason", &Event::stop_reason)
        .def_readonly("n_prompt_tokens", &Event::n_prompt_tokens)
        .def_readonly("n_cached_tokens", &Event::n_cached_tokens)
        .def_readonly("n_host_tokens", &Event::n_host_tokens)
        .def_readonly("n_disk_tokens", &Event::n_disk_tokens)
        .def_readonly("n_generated_tokens", &Event::n_generated_tokens)
        .def_readonly("n_drafted_tokens", &Event::n_drafted_tokens)
        .def_readonly("n_accepted_tokens", &Event::n_accepted_tokens)
        .def_readonly("timings", &Event::timings)
        .def_property_readonly("error_kind", &error_kind)
        .def_readonly("error", &Event::error)
        .def("__repr__", [](const Event &self) {
            return cat("<Event ", kind_name(self), " of request ", static_cast<uint64_t>(self.request), ", choice ",
                       self.choice, ">");
        });
}

void bind_decoder_config(py::module_ &m) {
    py::class_<DynamicWeights>(m, "DynamicWeights")
        .def(py::init([](double priority_s, double token_s, double turn_priority) {
                 return DynamicWeights{priority_s, token_s, turn_priority};
             }),
             py::kw_only(), py::arg("priority_s") = DynamicWeights{}.priority_s,
             py::arg("token_s") = DynamicWeights{}.token_s, py::arg("turn_priority") = DynamicWeights{}.turn_priority)
        .def_readonly("priority_s", &DynamicWeights::priority_s)
        .def_readonly("token_s", &DynamicWeights::token_s)
        .def_readonly("turn_priority", &DynamicWeights::turn_priority);
    py::class_<CacheTiersConfig>(m, "CacheTiersConfig")
        .def(py::init([](uint64_t ram_bytes, std::string disk_folder, uint64_t disk_bytes, std::string model,
                         bool always_reads) {
                 return CacheTiersConfig{ram_bytes, std::move(disk_folder), disk_bytes, std::move(model), always_reads};
             }),
             py::kw_only(), py::arg("ram_bytes") = 0, py::arg("disk_folder") = "", py::arg("disk_bytes") = 0,
             py::arg("model") = py::bytes(), py::arg("always_reads") = false);
    const DecoderConfig defaults;
    py::class_<DecoderConfig>(m, "DecoderConfig")
        .def(py::init([](int64_t n_ctx, const std::string &policy, DynamicWeights weights,
                         std::optional<int> max_step_tokens, std::optional<int> max_running,
                         std::optional<int> kept_back_blocks, int max_preemptions, int snapshot_tokens,
                         std::optional<double> step_s, std::string speculation, int draft_max, int draft_min,
                         std::optional<int32_t> decoder_start, CacheTiersConfig tiers) {
                 if (step_s && !(*step_s > 0))
                     throw RequestError("decoder", cat("step_s is ", *step_s, ": expected a positive number"));
                 return DecoderConfig{{n_ctx, scheduling_policy(policy), weights, max_step_tokens, max_running,
                                       kept_back_blocks, max_preemptions, snapshot_tokens},
                                      std::move(speculation),
                                      {draft_max, draft_min},
                                      step_s,
                                      std::move(tiers),
                                      decoder_start};
             }),
             py::kw_only(), py::arg("n_ctx"), py::arg("policy") = name(defaults.policy),
             py::arg("weights") = defaults.weights, py::arg("max_step_tokens") = py::none(),
             py::arg("max_running") = py::none(), py::arg("kept_back_blocks") = py::none(),
             py::arg("max_preemptions") = defaults.max_preemptions,
             py::arg("snapshot_tokens") = defaults.snapshot_tokens, py::arg("step_s") = py::none(),
             py::arg("speculation") = defaults.speculation, py::arg("draft_max") = defaults.drafts.draft_max,
             py::arg("draft_min") = defaults.drafts.draft_min, py::arg("decoder_start") = py::none(),
             py::arg("tiers") = CacheTiersConfig())
        .def_readonly("speculation", &DecoderConfig::speculation)
        .def_property_readonly("draft_max", [](const DecoderConfig &self) { return self.drafts.draft_max; })
        .def_property_readonly("draft_min", [](const DecoderConfig &self) { return self.drafts.draft_min; })
        .def_readonly("step_s", &DecoderConfig::step_s)
        .def_readonly("decoder_start", &DecoderConfig::decoder_start)
        .def_readonly("n_ctx", &DecoderConfig::n_ctx)
        .def_property_readonly("policy", [](const DecoderConfig &self) { return name(self.policy); })
        .def_readonly("weights", &DecoderConfig::weights)
        .def_readonly("max_step_tokens", &DecoderConfig::max_step_tokens)
        .def_readonly("max_running", &DecoderConfig::max_running)
        .def_readonly("kept_back_blocks", &DecoderConfig::kept_back_blocks)
        .def_readonly("max_preemptions", &DecoderConfig::max_preemptions)
        .def_readonly("snapshot_tokens", &DecoderConfig::snapshot_tokens);
}

void bind_tier_stats(py::module_ &m) {
    py::class_<TierStats>(m, "TierStats")
        .def_readonly("budget_bytes", &TierStats::budget_bytes)
        .def_readonly("used_bytes", &TierStats::used_bytes)
        .def_readonly("n_entries", &TierStats::n_entries)
        .def_readonly("n_written", &TierStats::n_written)
        .def_readonly("n_read", &TierStats::n_read)
        .def_readonly("n_dropped", &TierStats::n_dropped)
        .def_readonly("n_damaged", &TierStats::n_damaged)
        .def_readonly("n_evicted", &TierStats::n_evicted)
        .def_readonly("written_bytes", &TierStats::written_bytes)
        .def_readonly("read_bytes", &TierStats::read_bytes);
    const auto tier = [](TierKind kind) {
        return [kind](const CacheTiersStats &self) -> std::optional<TierStats> {
            for (size_t i = 0; i < self.tiers.size(); ++i)
                if (self.kinds[i] == kind) return self.tiers[i];
            return std::nullopt;
        };
    };
    py::class_<CacheTiersStats>(m, "CacheTiersStats")
        .def_property_readonly("host", tier(TierKind::host))
        .def_property_readonly("disk", tier(TierKind::disk))
        .def_readonly("queued_bytes", &CacheTiersStats::queued_bytes)
        .def_readonly("n_refused", &CacheTiersStats::n_refused)
        .def_readonly("read_bytes_per_s", &CacheTiersStats::read_bytes_per_s)
        .def_readonly("compute_tokens_per_s", &CacheTiersStats::compute_tokens_per_s);
}

void bind_stats(py::module_ &m) {
    bind_tier_stats(m);
    const auto of_scheduler = [](int64_t SchedulerStats::*figure) {
        return [figure](const DecoderStats &self) { return self.scheduler.*figure; };
    };
    py::class_<DrafterStats>(m, "DrafterStats")
        .def_readonly("name", &DrafterStats::name)
        .def_readonly("n_drafts", &DrafterStats::n_drafts)
        .def_readonly("n_drafted_tokens", &DrafterStats::n_drafted)
        .def_readonly("n_accepted_tokens", &DrafterStats::n_accepted)
        .def_readonly("drafted_at", &DrafterStats::drafted_at)
        .def_readonly("accepted_at", &DrafterStats::accepted_at)
        .def_readonly("seconds", &DrafterStats::seconds)
        .def_readonly("failure", &DrafterStats::failure);
    py::class_<DecoderStats>(m, "DecoderStats")
        .def_property_readonly("n_waiting", of_scheduler(&SchedulerStats::n_waiting))
        .def_property_readonly("n_waiting_tokens", of_scheduler(&SchedulerStats::n_waiting_tokens))
        .def_property_readonly("n_running", of_scheduler(&SchedulerStats::n_running))
        .def_property_readonly("n_following", of_scheduler(&SchedulerStats::n_following))
        .def_property_readonly("n_paused", of_scheduler(&SchedulerStats::n_paused))
        .def_property_readonly("n_preemptions", of_scheduler(&SchedulerStats::n_preemptions))
        .def_property_readonly("n_yields", of_scheduler(&SchedulerStats::n_yields))
        .def_property_readonly("n_prefix_hit_tokens", of_scheduler(&SchedulerStats::n_prefix_hit_tokens))
        .def_property_readonly("n_recovered_tokens", of_scheduler(&SchedulerStats::n_recovered_tokens))
        .def_property_readonly("n_computed_tokens", of_scheduler(&SchedulerStats::n_computed_tokens))
        .def_property_readonly("n_recomputed_tokens", of_scheduler(&SchedulerStats::n_recomputed_tokens))
        .def_property_readonly("n_lost_hit_tokens", of_scheduler(&SchedulerStats::n_lost_hit_tokens))
        .def_property_readonly("n_host_hit_tokens", of_scheduler(&SchedulerStats::n_host_hit_tokens))
        .def_property_readonly("n_disk_hit_tokens", of_scheduler(&SchedulerStats::n_disk_hit_tokens))
        .def_readonly("tiers", &DecoderStats::tiers)
        .def_readonly("drafters", &DecoderStats::drafters)
        .def_readonly("n_steps", &DecoderStats::n_steps)
        .def_readonly("n_failed_steps", &DecoderStats::n_failed_steps)
        .def_readonly("n_step_sequences", &DecoderStats::n_step_sequences)
        .def_readonly("n_requests", &DecoderStats::n_requests)
        .def_readonly("n_generated_tokens", &DecoderStats::n_generated_tokens)
        .def_readonly("n_masked_tokens", &DecoderStats::n_masked_tokens)
        .def_readonly("n_late_masks", &DecoderStats::n_late_masks)
        .def_readonly("n_usable_blocks", &DecoderStats::n_usable_blocks)
        .def_readonly("n_free_blocks", &DecoderStats::n_free_blocks)
        .def_readonly("n_published_blocks", &DecoderStats::n_published_blocks)
        .def_readonly("n_evictions", &DecoderStats::n_evictions)
        .def_readonly("cache", &DecoderStats::cache)
        .def_readonly("n_pins", &DecoderStats::n_pins)
        .def_readonly("n_pinned_bytes", &DecoderStats::n_pinned_bytes)
        .def_readonly("n_most_pinned_bytes", &DecoderStats::n_most_pinned_bytes)
        .def_readonly("n_pins_given_way", &DecoderStats::n_pins_given_way)
        .def_readonly("n_failed_checks", &DecoderStats::n_failed_checks)
        .def_readonly("failed_check", &DecoderStats::failed_check);
}

void bind_drafters(py::module_ &m) {
    py::class_<Drafter, std::shared_ptr<Drafter>>(m, "Drafter").def_property_readonly("name", &Drafter::name);
    py::class_<LookupDrafter, Drafter, std::shared_ptr<LookupDrafter>>(m, "LookupDrafter").def(py::init<>());
    py::class_<GrammarDrafter, Drafter, std::shared_ptr<GrammarDrafter>>(m, "GrammarDrafter").def(py::init<>());
    py::class_<ModelDrafter, Drafter, std::shared_ptr<ModelDrafter>>(m, "ModelDrafter")
        .def(py::init<std::shared_ptr<Executor>, int64_t, const CacheTiersConfig &>(), py::arg("executor").none(false),
             py::kw_only(), py::arg("n_ctx"), py::arg("tiers") = CacheTiersConfig())
        .def_property_readonly("tiers", [](const ModelDrafter &self) { return self.tier_stats(); });
    py::class_<HeadDrafter, Drafter, std::shared_ptr<HeadDrafter>>(m, "HeadDrafter")
        .def(py::init<std::shared_ptr<Executor>, int64_t, std::string, std::vector<int32_t>>(),
             py::arg("executor").none(false), py::kw_only(), py::arg("n_ctx"), py::arg("name") = "mtp",
             py::arg("tokens") = std::vector<int32_t>{});
}

} // namespace

void bind_decoder(py::module_ &m) {
    using Free = py::call_guard<py::gil_scoped_release>;
    bind_event(m);
    bind_mask_job(m);
    bind_decoder_config(m);
    bind_stats(m);
    bind_drafters(m);
    m.def(
        "prefix_note", [](const std::string &path) { return py::bytes(PrefixFileReader::note_of(path)); },
        py::arg("path"));
    py::class_<Decoder>(m, "Decoder")
        .def(py::init([](std::shared_ptr<Executor> executor, std::shared_ptr<VocabInfo> vocab,
                         const DecoderConfig &config, std::vector<std::shared_ptr<Drafter>> drafters) {
                 return std::make_unique<Decoder>(std::move(executor), std::move(vocab), config, std::move(drafters));
             }),
             py::arg("executor").none(false), py::arg("vocab").none(false), py::arg("config"),
             py::arg("drafters") = std::vector<std::shared_ptr<Drafter>>())
        .def(
            "submit", [](Decoder &self, const Request &request) { return static_cast<uint64_t>(self.submit(request)); },
            py::arg("request"), Free())
        .def(
            "cancel", [](Decoder &self, uint64_t id) { self.cancel(RequestId{id}); }, py::arg("request_id"), Free())
        .def(
            "pause", [](Decoder &self, uint64_t id) { self.pause(RequestId{id}); }, py::arg("request_id"), Free())
        .def(
            "resume", [](Decoder &self, uint64_t id) { self.resume(RequestId{id}); }, py::arg("request_id"), Free())
        .def(
            "pin",
            [](Decoder &self, const Request &request) {
                const PinnedPrefixes::Pinned pinned = self.pin(request);
                return std::pair(static_cast<uint64_t>(pinned.id), pinned.n_tokens);
            },
            py::arg("request"), Free())
        .def(
            "unpin", [](Decoder &self, uint64_t id) { self.unpin(PinId{id}); }, py::arg("pin_id"), Free())
        .def("freeze", &Decoder::freeze, py::arg("frozen"), Free())
        .def("forget_prefixes", &Decoder::forget_prefixes, Free())
        .def(
            "provide_logits",
            [](Decoder &self, uint64_t id, int choice, const Row &logits) {
                if (logits.ndim() != 1)
                    throw ShapeError("decoder", cat("logits have ", logits.ndim(), " dimensions: expected 1"));
                std::vector<float> row(logits.data(), logits.data() + logits.size());
                py::gil_scoped_release release;
                self.provide_logits(RequestId{id}, choice, std::move(row));
            },
            py::arg("request_id"), py::arg("choice"), py::arg("logits"))
        .def("wait_mask_job", &Decoder::wait_mask_job, py::arg("timeout_s"), Free())
        .def(
            "provide_mask",
            [](Decoder &self, uint64_t id, int choice, int64_t position, const MaskWords &mask,
               const std::vector<int32_t> &forced) {
                std::vector<uint32_t> words = words_of(mask);
                py::gil_scoped_release release;
                return self.provide_mask(RequestId{id}, choice, position, std::move(words), forced);
            },
            py::arg("request_id"), py::arg("choice"), py::arg("position"), py::arg("mask").noconvert(),
            py::arg("forced") = std::vector<int32_t>())
        .def(
            "decline_mask", [](Decoder &self, uint64_t id, int choice) { self.decline_mask(RequestId{id}, choice); },
            py::arg("request_id"), py::arg("choice"))
        .def("wait", &Decoder::wait, py::arg("timeout_s"), py::kw_only(), py::arg("gather_s") = 0.0, Free())
        .def_property_readonly("event_fd", &Decoder::event_fd)
        .def_property_readonly("n_steps", &Decoder::n_steps)
        .def_property_readonly("n_ctx", &Decoder::n_ctx)
        .def_property_readonly("closed", &Decoder::closed)
        .def(
            "export_prefix",
            [](Decoder &self, std::vector<int32_t> tokens, const std::string &path, std::string salt,
               std::string adapter, const LateNames &late_adapters, const MediaNames &media, const std::string &note,
               const std::string &model) {
                const PrefixText text =
                    prefix_text(std::move(tokens), std::move(salt), std::move(adapter), late_adapters, media);
                py::gil_scoped_release release;
                return self.export_prefix(text, path, note, model);
            },
            py::arg("token_ids"), py::arg("path"), py::kw_only(), py::arg("salt") = py::bytes(),
            py::arg("adapter") = py::bytes(), py::arg("late_adapters") = LateNames(), py::arg("media") = MediaNames(),
            py::arg("note") = py::bytes(), py::arg("model") = py::bytes())
        .def(
            "import_prefix",
            [](Decoder &self, std::vector<int32_t> tokens, const std::string &path, std::string salt,
               std::string adapter, const LateNames &late_adapters, const MediaNames &media, const std::string &model) {
                const PrefixText text =
                    prefix_text(std::move(tokens), std::move(salt), std::move(adapter), late_adapters, media);
                py::gil_scoped_release release;
                return self.import_prefix(text, path, model);
            },
            py::arg("token_ids"), py::arg("path"), py::kw_only(), py::arg("salt") = py::bytes(),
            py::arg("adapter") = py::bytes(), py::arg("late_adapters") = LateNames(), py::arg("media") = MediaNames(),
            py::arg("model") = py::bytes())
        .def(
            "find_missing",
            [](Decoder &self, Request request, const std::optional<std::vector<std::string>> &held) {
                TierKeys keys;
                for (const std::string &name : held.value_or(std::vector<std::string>()))
                    if (const auto key = entry_key(name)) keys.insert(*key);
                SequenceCache::Below found;
                {
                    py::gil_scoped_release release;
                    found = self.find_missing(std::move(request), held ? &keys : nullptr);
                }
                std::vector<std::string> names;
                for (const TierKey &key : found.keys) names.push_back(entry_name(key));
                return py::make_tuple(found.n_tokens, names);
            },
            py::arg("request"), py::arg("held") = py::none())
        .def(
            "keep_record",
            [](Decoder &self, const py::bytes &record) {
                const std::string_view bytes = record;
                py::gil_scoped_release release;
                return self.keep_record({reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size()});
            },
            py::arg("record"))
        .def_property_readonly("cache_identity", &Decoder::cache_identity)
        .def("stats", &Decoder::stats)
        .def("close", &Decoder::close, Free());
}

} // namespace quire::bindings
