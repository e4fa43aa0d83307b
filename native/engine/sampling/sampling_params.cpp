#include "engine/sampling/sampling_params.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace quire {
namespace {

constexpr std::array<const char *, 11> stage_names = {"penalties", "dry",   "temperature", "top_n_sigma",
                                                      "top_k",     "top_p", "min_p",       "typical_p",
                                                      "tfs_z",     "xtc",   "mirostat"};
constexpr double infinite = std::numeric_limits<double>::infinity();

[[noreturn]] void refuse(const char *field, const std::string &reason) {
    throw RequestError("sampling", cat(field, " must ", reason));
}

// Limits of a number, both allowed; an infinite limit still refuses infinities and NaN.
struct Range {
    double lowest, highest;
};

void check(const char *field, double value, Range range) {
    if (std::isfinite(value) && value >= range.lowest && value <= range.highest) return;
    if (range.highest == infinite) refuse(field, cat("be finite and at least ", range.lowest, " but is ", value));
    refuse(field, cat("be from ", range.lowest, " to ", range.highest, " but is ", value));
}

void check_positive(const char *field, double value) {
    if (!std::isfinite(value) || value <= 0.0) refuse(field, cat("be finite and above 0 but is ", value));
}

struct TextLimits {
    size_t n, n_bytes;
};

void check(const char *field, const std::vector<std::string> &texts, TextLimits limits) {
    if (texts.size() > limits.n) refuse(field, cat("have at most ", limits.n, " strings but has ", texts.size()));
    for (const std::string &text : texts)
        if (text.empty() || text.size() > limits.n_bytes)
            refuse(field, cat("have strings of 1 to ", limits.n_bytes, " bytes but has one of ", text.size()));
}

void check_ids(const char *field, const std::vector<int32_t> &ids, const VocabInfo &vocab) {
    for (int32_t id : ids)
        if (!vocab.contains(id)) refuse(field, cat("have token ids from 0 to ", vocab.n_vocab - 1, " but has ", id));
}

void check_length(const SamplingParams &p) {
    if (p.max_tokens) check("max_tokens", *p.max_tokens, {1, infinite});
    check("min_tokens", p.min_tokens, {0, infinite});
    if (p.max_tokens && p.min_tokens > *p.max_tokens)
        refuse("min_tokens", cat("be at most max_tokens, ", *p.max_tokens, ", but is ", p.min_tokens));
    check("stop", p.stop, {16, 1024});
    if (p.stop_token_ids.size() > 1024)
        refuse("stop_token_ids", cat("have at most 1024 ids but has ", p.stop_token_ids.size()));
    check("n", p.n, {1, 16});
}

void check_truncation(const SamplingParams &p) {
    check("temperature", p.temperature, {0, infinite});
    check("dynatemp_range", p.dynatemp_range, {0, infinite});
    check_positive("dynatemp_exponent", p.dynatemp_exponent);
    check("top_k", p.top_k, {0, infinite});
    check("top_p", p.top_p, {0, 1});
    check("min_p", p.min_p, {0, 1});
    check("typical_p", p.typical_p, {0, 1});
    check("tfs_z", p.tfs_z, {0, 1});
    if (p.top_n_sigma) check_positive("top_n_sigma", *p.top_n_sigma);
    check("xtc_probability", p.xtc_probability, {0, 1});
    check("xtc_threshold", p.xtc_threshold, {0, 1});
    check("min_keep", p.min_keep, {0, infinite});
    check("mirostat", static_cast<int>(p.mirostat), {0, 2});
    check("mirostat_tau", p.mirostat_tau, {0, infinite});
    check("mirostat_eta", p.mirostat_eta, {0, infinite});
}

void check_penalties(const SamplingParams &p) {
    check_positive("repetition_penalty", p.repetition_penalty);
    check("presence_penalty", p.presence_penalty, {-2, 2});
    check("frequency_penalty", p.frequency_penalty, {-2, 2});
    if (p.penalty_last_n) check("penalty_last_n", *p.penalty_last_n, {0, infinite});
    check("dry_multiplier", p.dry_multiplier, {0, infinite});
    check("dry_base", p.dry_base, {1, infinite});
    check("dry_allowed_length", p.dry_allowed_length, {1, infinite});
    if (p.dry_penalty_last_n) check("dry_penalty_last_n", *p.dry_penalty_last_n, {0, infinite});
    check("dry_sequence_breakers", p.dry_sequence_breakers, {64, 128});
}

void check_tokens(const SamplingParams &p) {
    if (p.logit_bias.size() > 1024) refuse("logit_bias", cat("have at most 1024 ids but has ", p.logit_bias.size()));
    for (size_t i = 0; i < p.logit_bias.size(); ++i) {
        check("logit_bias", p.logit_bias[i].second, {-100, 100});
        for (size_t j = 0; j < i; ++j)
            if (p.logit_bias[j].first == p.logit_bias[i].first)
                refuse("logit_bias", cat("have each id once but has ", p.logit_bias[i].first, " twice"));
    }
    if (p.allowed_token_ids && p.allowed_token_ids->empty()) refuse("allowed_token_ids", "have an id but is empty");
    if (p.logprobs) check("logprobs", *p.logprobs, {0, 20});
    if (p.prompt_logprobs) check("prompt_logprobs", *p.prompt_logprobs, {0, 20});
}

// Every stage at most once, mirostat last, and none left out whose options were set.
void check_samplers(const SamplingParams &p) {
    const auto has = [&](SamplingStage stage) {
        return std::find(p.samplers.begin(), p.samplers.end(), stage) != p.samplers.end();
    };
    for (SamplingStage stage : p.samplers)
        if (std::count(p.samplers.begin(), p.samplers.end(), stage) > 1)
            refuse("samplers", cat("have each name once but has '", name(stage), "' twice"));
    if (has(SamplingStage::mirostat) && p.samplers.back() != SamplingStage::mirostat)
        refuse("samplers", "have 'mirostat' last: it is what draws");
    for (SamplingStage stage : default_sampling_order())
        if (is_active(stage, p) && !has(stage))
            refuse("samplers", cat("have '", name(stage), "', whose options are set"));
}

} // namespace

const std::vector<SamplingStage> &default_sampling_order() {
    static const std::vector<SamplingStage> order = [] {
        std::vector<SamplingStage> all;
        for (size_t i = 0; i < stage_names.size(); ++i) all.push_back(static_cast<SamplingStage>(i));
        return all;
    }();
    return order;
}

std::string name(SamplingStage stage) { return stage_names[static_cast<size_t>(stage)]; }

SamplingStage sampling_stage(const std::string &name) {
    const auto found = std::find(stage_names.begin(), stage_names.end(), name);
    if (found != stage_names.end()) return static_cast<SamplingStage>(found - stage_names.begin());
    std::string known;
    for (const char *stage : stage_names) known += cat(known.empty() ? "" : ", ", stage);
    throw RequestError("sampling", cat("samplers must be of ", known, " but has '", name, "'"));
}

bool is_active(SamplingStage stage, const SamplingParams &p) {
    switch (stage) {
    case SamplingStage::penalties:
        return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
    case SamplingStage::dry: return p.dry_multiplier != 0.0f;
    case SamplingStage::temperature: return p.temperature != 1.0f || p.dynatemp_range > 0.0f;
    case SamplingStage::top_n_sigma: return p.top_n_sigma.has_value();
    case SamplingStage::top_k: return p.top_k > 0;
    case SamplingStage::top_p: return p.top_p < 1.0f;
    case SamplingStage::min_p: return p.min_p > 0.0f;
    case SamplingStage::typical_p: return p.typical_p < 1.0f;
    case SamplingStage::tfs_z: return p.tfs_z < 1.0f;
    case SamplingStage::xtc: return p.xtc_probability > 0.0f;
    case SamplingStage::mirostat: return p.mirostat != Mirostat::off;
    }
    return false;
}

void SamplingParams::validate() const {
    check_length(*this);
    check_truncation(*this);
    check_penalties(*this);
    check_tokens(*this);
    check_samplers(*this);
}

void SamplingParams::validate(const VocabInfo &vocab) const {
    validate();
    check_ids("stop_token_ids", stop_token_ids, vocab);
    check_ids("bad_token_ids", bad_token_ids, vocab);
    if (allowed_token_ids) check_ids("allowed_token_ids", *allowed_token_ids, vocab);
    for (const auto &[id, value] : logit_bias)
        if (!vocab.contains(id))
            refuse("logit_bias", cat("have token ids from 0 to ", vocab.n_vocab - 1, " but has ", id));
}

} // namespace quire
