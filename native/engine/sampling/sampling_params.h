// What a request asks of sampling.  python/quire/params/sampling.py is the public form, with the same names, defaults and
// limits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampling/vocab_info.h"

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
    mirostat,
};

enum class Mirostat { off = 0, v1 = 1, v2 = 2 };

const std::vector<SamplingStage> &default_sampling_order();
std::string name(SamplingStage stage);
// The stage with this name; RequestError naming `samplers` otherwise.
SamplingStage sampling_stage(const std::string &name);

// Defaults leave the model's distribution as it is.
struct SamplingParams {
    // How long to go on.
    std::optional<int32_t> max_tokens; // none: until the context is full
    int32_t min_tokens = 0;            // end-of-generation and stop tokens cannot be drawn before
    bool ignore_eos = false;           // end-of-generation tokens cannot be drawn at all
    std::vector<std::string> stop;     // at most 16 of at most 1024 bytes
    std::vector<int32_t> stop_token_ids;
    bool include_stop_str_in_output = false;
    int32_t n = 1; // choices

    // Truncation and temperature.
    float temperature = 1.0f; // 0: greedy
    float dynatemp_range = 0.0f;
    float dynatemp_exponent = 1.0f;
    int32_t top_k = 0; // 0: off
    float top_p = 1.0f;
    float min_p = 0.0f;
    float typical_p = 1.0f;
    float tfs_z = 1.0f;
    std::optional<float> top_n_sigma;
    float xtc_probability = 0.0f;
    float xtc_threshold = 0.1f;
    int32_t min_keep = 0; // what top_p, min_p, typical_p, tfs_z and xtc leave at least, where there is so much
    Mirostat mirostat = Mirostat::off;
    float mirostat_tau = 5.0f;
    float mirostat_eta = 0.1f;

    // Penalties on what the text has already.
    float repetition_penalty = 1.0f;
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    std::optional<int32_t> penalty_last_n; // none: the whole sequence
    float dry_multiplier = 0.0f;           // 0: off
    float dry_base = 1.75f;
    int32_t dry_allowed_length = 2;
    std::optional<int32_t> dry_penalty_last_n; // none: the whole sequence
    std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};

    // Single tokens.
    std::vector<std::pair<int32_t, float>> logit_bias; // at most 1024
    std::optional<std::vector<int32_t>> allowed_token_ids;
    std::vector<int32_t> bad_token_ids;

    std::optional<uint64_t> seed;           // none: fresh from the system for every sampler
    std::optional<int32_t> logprobs;        // how many alternatives beside the drawn token, at most 20
    std::optional<int32_t> prompt_logprobs; // the same for the prompt's tokens
    bool processed_logprobs = false; // those of drawn tokens are of what the chain left, not of the model's row
    std::vector<SamplingStage> samplers = default_sampling_order();

    // RequestError naming the field that does not hold.
    void validate() const;
    // Also that every token id is one of the vocabulary's.
    void validate(const VocabInfo &vocab) const;
};

// Whether the stage changes anything with these parameters.
bool is_active(SamplingStage stage, const SamplingParams &params);

} // namespace quire
