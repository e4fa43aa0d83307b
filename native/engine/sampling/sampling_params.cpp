#include "engine/sampling/sampling_params.h"

#include <algorithm>

#include "engine/sampling/parameter_limits.h"

namespace quire {
namespace {

// Every stage at most once, mirostat last, and none left out whose parameters are set.
void check_samplers(const SamplingParams &p) {
    const auto has = [&](SamplingStage stage) {
        return std::find(p.samplers.begin(), p.samplers.end(), stage) != p.samplers.end();
    };
    for (SamplingStage stage : p.samplers)
        if (std::count(p.samplers.begin(), p.samplers.end(), stage) > 1)
            refuse_parameter("samplers", cat("has '", name(stage), "' twice"));
    for (const SamplingStage last : {SamplingStage::adaptive_p, SamplingStage::mirostat})
        if (const auto found = std::ranges::find(p.samplers, last); found != p.samplers.end())
            for (auto other = found; other != p.samplers.end(); ++other)
                if (*other < last)
                    refuse_parameter("samplers", cat("has '", name(last), "' before another name: put it last"));
    if (p.mirostat != 0 && p.adaptive_target) refuse_parameter("adaptive_target", "cannot be combined with mirostat");
    for (SamplingStage stage : default_sampling_order())
        if (is_active(stage, p) && !has(stage))
            refuse_parameter("samplers", cat("lacks the stage '", name(stage), "', but its parameters are set"));
}

void check_id(const char *name, int32_t id, const VocabInfo &vocab) {
    if (!vocab.contains(id))
        refuse_parameter(name, cat("has the token id ", id, ": expected ids from 0 to ", vocab.n_vocab - 1));
}

// Calls check(name, value, limits) for every parameter that has a value.
template <typename Check> void for_each_value(const SamplingParams &p, const Check &check) {
    visit_sampling_fields([&](const char *name, auto member, const auto &limits) {
        const auto &value = p.*member;
        if constexpr (requires { value.has_value(); }) {
            if (value) check(name, *value, limits);
        } else {
            check(name, value, limits);
        }
    });
}

} // namespace

const std::vector<SamplingStage> &default_sampling_order() {
    static const std::vector<SamplingStage> order = [] {
        std::vector<SamplingStage> all;
        for (size_t i = 0; i < sampling_stage_names.size(); ++i) all.push_back(static_cast<SamplingStage>(i));
        return all;
    }();
    return order;
}

std::string name(SamplingStage stage) { return sampling_stage_names[static_cast<size_t>(stage)]; }

SamplingStage sampling_stage(const std::string &name) {
    const auto found = std::find(sampling_stage_names.begin(), sampling_stage_names.end(), name);
    if (found != sampling_stage_names.end()) return static_cast<SamplingStage>(found - sampling_stage_names.begin());
    std::string known;
    for (const char *stage : sampling_stage_names) known += cat(known.empty() ? "" : ", ", stage);
    refuse_parameter("samplers", cat("has the unknown name '", name, "': expected some of ", known));
}

void SamplingParams::validate() const {
    for_each_value(
        *this, [](const char *name, const auto &value, const auto &limits) { check_parameter(name, value, limits); });
    if (max_tokens && min_tokens > *max_tokens)
        refuse_parameter("min_tokens", cat(min_tokens, " is more than max_tokens ", *max_tokens));
    check_samplers(*this);
}

void SamplingParams::validate(const VocabInfo &vocab) const {
    validate();
    for_each_value(*this, [&](const char *name, const auto &value, const auto &limits) {
        if constexpr (std::is_same_v<decltype(limits), const IdLimits &>) {
            for (int32_t id : value) check_id(name, id, vocab);
        } else if constexpr (std::is_same_v<decltype(limits), const BiasLimits &>) {
            for (const auto &[id, _] : value) check_id(name, id, vocab);
        }
    });
}

} // namespace quire
