// Written by ci/make_params.py from python/quire/params/sampling.py: do not edit.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampling/parameter_limits.h"

namespace quire {

// The stages of the sampling chain, in the default order.
enum class SamplingStage {
    penalties,
    dry,
    temperature,
    top_n_sigma,
    top_k,
    top_p,
    min_p,
    typical_p,
    tfs_z,
    xtc,
    adaptive_p,
    mirostat,
};

inline constexpr std::array<const char *, 12> sampling_stage_names = {
    "penalties",
    "dry",
    "temperature",
    "top_n_sigma",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "tfs_z",
    "xtc",
    "adaptive_p",
    "mirostat",
};

const std::vector<SamplingStage> &default_sampling_order();

// Defaults leave the model's distribution as it is.
struct SamplingFields {
    std::optional<int32_t> max_tokens;
    int32_t min_tokens = 0;
    bool ignore_eos = false;
    std::vector<std::string> stop;
    std::vector<int32_t> stop_token_ids;
    bool include_stop_str_in_output = false;
    int32_t n = 1;
    float temperature = 1.0f;
    float dynatemp_range = 0.0f;
    float dynatemp_exponent = 1.0f;
    int32_t top_k = 0;
    float top_p = 1.0f;
    float min_p = 0.0f;
    float typical_p = 1.0f;
    float tfs_z = 1.0f;
    std::optional<float> top_n_sigma;
    float xtc_probability = 0.0f;
    float xtc_threshold = 0.1f;
    int32_t min_keep = 0;
    int32_t mirostat = 0;
    float mirostat_tau = 5.0f;
    float mirostat_eta = 0.1f;
    std::optional<float> adaptive_target;
    float adaptive_decay = 0.9f;
    float repetition_penalty = 1.0f;
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    std::optional<int32_t> penalty_last_n;
    float dry_multiplier = 0.0f;
    float dry_base = 1.75f;
    int32_t dry_allowed_length = 2;
    std::optional<int32_t> dry_penalty_last_n;
    std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};
    std::vector<std::pair<int32_t, float>> logit_bias;
    std::optional<std::vector<int32_t>> allowed_token_ids;
    std::vector<int32_t> bad_token_ids;
    std::vector<std::string> banned_strings;
    std::optional<uint64_t> seed;
    std::optional<int32_t> logprobs;
    std::optional<int32_t> prompt_logprobs;
    bool processed_logprobs = false;
    std::vector<SamplingStage> samplers = default_sampling_order();
};

// Calls visit(name, pointer to member, limits) for every field.
template <typename Visit> void visit_sampling_fields(const Visit &visit) {
    visit("max_tokens", &SamplingFields::max_tokens, at_least(1));
    visit("min_tokens", &SamplingFields::min_tokens, at_least(0));
    visit("ignore_eos", &SamplingFields::ignore_eos, NoLimits{});
    visit("stop", &SamplingFields::stop, TextLimits{16, 1024});
    visit("stop_token_ids", &SamplingFields::stop_token_ids, IdLimits{1024, false});
    visit("include_stop_str_in_output", &SamplingFields::include_stop_str_in_output, NoLimits{});
    visit("n", &SamplingFields::n, range(1, 16));
    visit("temperature", &SamplingFields::temperature, at_least(0));
    visit("dynatemp_range", &SamplingFields::dynatemp_range, at_least(0));
    visit("dynatemp_exponent", &SamplingFields::dynatemp_exponent, above(0));
    visit("top_k", &SamplingFields::top_k, at_least(0));
    visit("top_p", &SamplingFields::top_p, range(0, 1));
    visit("min_p", &SamplingFields::min_p, range(0, 1));
    visit("typical_p", &SamplingFields::typical_p, range(0, 1));
    visit("tfs_z", &SamplingFields::tfs_z, range(0, 1));
    visit("top_n_sigma", &SamplingFields::top_n_sigma, above(0));
    visit("xtc_probability", &SamplingFields::xtc_probability, range(0, 1));
    visit("xtc_threshold", &SamplingFields::xtc_threshold, range(0, 1));
    visit("min_keep", &SamplingFields::min_keep, at_least(0));
    visit("mirostat", &SamplingFields::mirostat, range(0, 2));
    visit("mirostat_tau", &SamplingFields::mirostat_tau, at_least(0));
    visit("mirostat_eta", &SamplingFields::mirostat_eta, at_least(0));
    visit("adaptive_target", &SamplingFields::adaptive_target, range(0, 1));
    visit("adaptive_decay", &SamplingFields::adaptive_decay, range(0, 0.99));
    visit("repetition_penalty", &SamplingFields::repetition_penalty, above(0));
    visit("presence_penalty", &SamplingFields::presence_penalty, range(-2, 2));
    visit("frequency_penalty", &SamplingFields::frequency_penalty, range(-2, 2));
    visit("penalty_last_n", &SamplingFields::penalty_last_n, at_least(0));
    visit("dry_multiplier", &SamplingFields::dry_multiplier, at_least(0));
    visit("dry_base", &SamplingFields::dry_base, at_least(1));
    visit("dry_allowed_length", &SamplingFields::dry_allowed_length, at_least(1));
    visit("dry_penalty_last_n", &SamplingFields::dry_penalty_last_n, at_least(0));
    visit("dry_sequence_breakers", &SamplingFields::dry_sequence_breakers, TextLimits{64, 128});
    visit("logit_bias", &SamplingFields::logit_bias, BiasLimits{1024, range(-100, 100)});
    visit("allowed_token_ids", &SamplingFields::allowed_token_ids, IdLimits{2147483647, true});
    visit("bad_token_ids", &SamplingFields::bad_token_ids, IdLimits{2147483647, false});
    visit("banned_strings", &SamplingFields::banned_strings, TextLimits{256, 1024});
    visit("seed", &SamplingFields::seed, NoLimits{});
    visit("logprobs", &SamplingFields::logprobs, at_least(0));
    visit("prompt_logprobs", &SamplingFields::prompt_logprobs, at_least(0));
    visit("processed_logprobs", &SamplingFields::processed_logprobs, NoLimits{});
    visit("samplers", &SamplingFields::samplers, NoLimits{});
}

// True if the stage changes anything with these parameters.
inline bool is_active(SamplingStage stage, const SamplingFields &p) {
    static const SamplingFields usual;
    switch (stage) {
    case SamplingStage::penalties: return p.repetition_penalty != usual.repetition_penalty || p.presence_penalty != usual.presence_penalty || p.frequency_penalty != usual.frequency_penalty;
    case SamplingStage::dry: return p.dry_multiplier != usual.dry_multiplier;
    case SamplingStage::temperature: return p.temperature != usual.temperature || p.dynatemp_range != usual.dynatemp_range;
    case SamplingStage::top_n_sigma: return p.top_n_sigma.has_value();
    case SamplingStage::top_k: return p.top_k != usual.top_k;
    case SamplingStage::top_p: return p.top_p != usual.top_p;
    case SamplingStage::min_p: return p.min_p != usual.min_p;
    case SamplingStage::typical_p: return p.typical_p != usual.typical_p;
    case SamplingStage::tfs_z: return p.tfs_z != usual.tfs_z;
    case SamplingStage::xtc: return p.xtc_probability != usual.xtc_probability;
    case SamplingStage::adaptive_p: return p.adaptive_target.has_value();
    case SamplingStage::mirostat: return p.mirostat != usual.mirostat;
    }
    return false;
}

} // namespace quire
