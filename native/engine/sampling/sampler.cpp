#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "core/error.h"
#include "engine/sampling/adaptive.h"
#include "engine/sampling/candidates.h"
#include "engine/sampling/dry.h"
#include "engine/sampling/mirostat.h"
#include "engine/sampling/penalties.h"
#include "engine/sampling/random.h"
#include "engine/sampling/temperature.h"
#include "engine/sampling/truncation.h"

namespace quire {
namespace {

uint64_t seed_from_system() {
    std::random_device device;
    return (static_cast<uint64_t>(device()) << 32) | device();
}

std::vector<int32_t> ascending(std::vector<int32_t> ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

constexpr int32_t most_likeliest = 1024; // for a larger top_k the whole row is fetched

// Log-probabilities over the tokens that the chain left.
SampledToken processed_log_probs(Candidates &candidates, const Candidate &drawn, int32_t n_top) {
    const double log_total = std::log(candidates.total());
    const auto logprob = [&](float logit) { return static_cast<float>(candidates.relative(logit) - log_total); };
    SampledToken token{drawn.id, logprob(drawn.logit), {}};
    if (n_top == 0) return token;
    for (const Candidate &item : candidates.likeliest(static_cast<size_t>(n_top)))
        token.top.emplace_back(item.id, logprob(item.logit));
    return token;
}

// The row goes back however drawing ends.
struct Loan {
    Candidates &candidates;
    ~Loan() { candidates.give_back(); }
};

} // namespace

struct Sampler::State {
    State(std::shared_ptr<const SamplingParams> p, std::shared_ptr<const VocabInfo> v, int32_t c, TokenSequences bad)
        : params(std::move(p)), vocab(std::move(v)), choice(static_cast<uint32_t>(c)),
          seed(params->seed ? *params->seed : seed_from_system()), bad_sequences(std::move(bad)),
          counts(params->penalty_last_n), dry(*params, *vocab), mirostat(*params, vocab->n_vocab), adaptive(*params) {
        for (SamplingStage stage : params->samplers)
            if (is_active(stage, *params)) stages.push_back(stage);
        for (const auto &[id, value] : params->logit_bias) bias[id] = value;
        banned = params->bad_token_ids;
        if (params->ignore_eos) banned.insert(banned.end(), vocab->eog_ids.begin(), vocab->eog_ids.end());
        banned = ascending(std::move(banned));
        ending = params->stop_token_ids;
        ending.insert(ending.end(), vocab->eog_ids.begin(), vocab->eog_ids.end());
        ending = ascending(std::move(ending));
        if (params->allowed_token_ids) allowed = ascending(*params->allowed_token_ids);
    }

    void check(std::span<const float> logits, std::span<const int32_t> tokens, int64_t n_prompt) const;
    void apply_token_rules(std::span<const int32_t> generated, const TokenMask *mask, std::span<const int32_t> avoided);
    void exclude_ends(std::span<const int32_t> generated);
    void apply(SamplingStage stage, std::span<const int32_t> tokens, int64_t n_prompt);
    void run(const LogitRow &row, std::span<const int32_t> tokens, int64_t n_prompt, const TokenMask *mask,
             std::span<const int32_t> avoided);

    std::shared_ptr<const SamplingParams> params;
    std::shared_ptr<const VocabInfo> vocab;
    uint32_t choice;
    uint64_t seed;
    std::vector<SamplingStage> stages;            // those that do something
    std::vector<int32_t> allowed, banned, ending; // ascending
    TokenSequences bad_sequences;
    std::vector<int32_t> ends; // last tokens of bad sequences that the text has begun
    TokenMap<float> bias;
    TokenCounts counts;
    DryPenalty dry;
    MirostatControl mirostat;
    AdaptiveControl adaptive;
    Candidates candidates;
    TokenRandom random{};
};

void Sampler::State::check(std::span<const float> logits, std::span<const int32_t> tokens, int64_t n_prompt) const {
    if (logits.size() != static_cast<size_t>(vocab->n_vocab))
        throw ShapeError("sampler", cat("logits have ", logits.size(), " entries: expected ", vocab->n_vocab));
    if (n_prompt < 0 || n_prompt > static_cast<int64_t>(tokens.size()))
        throw RequestError("sampler", cat("n_prompt is ", n_prompt, ": expected 0 to ", tokens.size()));
}

// The last tokens of bad sequences whose other tokens end the text.
void Sampler::State::exclude_ends(std::span<const int32_t> generated) {
    ends.clear();
    for (const std::vector<int32_t> &sequence : bad_sequences) {
        const size_t n = sequence.size() - 1;
        if (n <= generated.size() &&
            std::equal(sequence.begin(), sequence.end() - 1, generated.end() - static_cast<ptrdiff_t>(n)))
            ends.push_back(sequence.back());
    }
    std::ranges::sort(ends);
    candidates.exclude(ends);
}

void Sampler::State::apply_token_rules(std::span<const int32_t> generated, const TokenMask *mask,
                                       std::span<const int32_t> avoided) {
    const auto n_generated = static_cast<int64_t>(generated.size());
    if (mask) candidates.restrict_to(*mask);
    if (params->allowed_token_ids) candidates.restrict_to(allowed);
    candidates.exclude(banned);
    if (!bad_sequences.empty()) exclude_ends(generated);
    // A grammar that is complete allows nothing but an end: the answer is then as long as it can be.
    if (n_generated < params->min_tokens && !(mask && candidates.are_among(ending))) candidates.exclude(ending);
    candidates.require_some();
    if (!avoided.empty() && !candidates.are_among(avoided)) candidates.exclude(avoided);
    if (!bias.empty()) candidates.change(bias, [](float logit, float value) { return logit + value; });
}

void Sampler::State::apply(SamplingStage stage, std::span<const int32_t> tokens, int64_t n_prompt) {
    const auto min_keep = static_cast<size_t>(params->min_keep);
    switch (stage) {
    case SamplingStage::penalties: return apply_penalties(candidates, counts.update(tokens, n_prompt), *params);
    case SamplingStage::dry: return dry.apply(candidates, tokens);
    case SamplingStage::temperature: return apply_temperature(candidates, *params);
    case SamplingStage::top_n_sigma: return keep_top_n_sigma(candidates, *params->top_n_sigma);
    case SamplingStage::top_k:
        if (static_cast<size_t>(params->top_k) < candidates.size())
            candidates.keep_top(static_cast<size_t>(params->top_k));
        return;
    case SamplingStage::top_p: return keep_top_p(candidates, params->top_p, min_keep);
    case SamplingStage::min_p: return keep_min_p(candidates, params->min_p, min_keep);
    case SamplingStage::typical_p: return keep_typical(candidates, params->typical_p, min_keep);
    case SamplingStage::tfs_z: return keep_tail_free(candidates, params->tfs_z, min_keep);
    case SamplingStage::xtc:
        if (random.xtc < params->xtc_probability) exclude_top_choices(candidates, params->xtc_threshold, min_keep);
        return;
    case SamplingStage::adaptive_p: return adaptive.transform(candidates);
    case SamplingStage::mirostat: return mirostat.truncate(candidates);
    }
}

void Sampler::State::run(const LogitRow &row, std::span<const int32_t> tokens, int64_t n_prompt, const TokenMask *mask,
                         std::span<const int32_t> avoided) {
    check(row.logits, tokens, n_prompt);
    candidates.start(row);
    random = token_random(seed, choice, tokens.size());
    apply_token_rules(tokens.subspan(static_cast<size_t>(n_prompt)), mask, avoided);
    for (SamplingStage stage : stages) apply(stage, tokens, n_prompt);
}

Sampler::Sampler(std::shared_ptr<const SamplingParams> params, std::shared_ptr<const VocabInfo> vocab, int32_t choice,
                 TokenSequences bad_sequences) {
    vocab->validate();
    params->validate(*vocab);
    if (choice < 0 || choice >= params->n)
        throw RequestError("sampler", cat("choice is ", choice, ": expected 0 to ", params->n - 1));
    for (const std::vector<int32_t> &sequence : bad_sequences) {
        if (sequence.empty()) throw RequestError("sampling", "bad_sequences has an empty sequence");
        for (int32_t id : sequence)
            if (!vocab->contains(id))
                throw RequestError("sampling",
                                   cat("bad_sequences has the token id ", id, ": expected ids below ", vocab->n_vocab));
    }
    state_ = std::make_unique<State>(std::move(params), std::move(vocab), choice, std::move(bad_sequences));
}

Sampler::~Sampler() = default;
Sampler::Sampler(Sampler &&) noexcept = default;
Sampler &Sampler::operator=(Sampler &&) noexcept = default;

SampledToken Sampler::sample(const LogitRow &row, std::span<const int32_t> tokens, int64_t n_prompt,
                             const TokenMask *mask, std::span<const int32_t> avoided) {
    State &s = *state_;
    Candidate drawn;
    {
        const Loan loan{s.candidates};
        s.run(row, tokens, n_prompt, mask, avoided);
        drawn = s.candidates.at(s.candidates.size() == 1 ? 0 : s.candidates.draw(s.random.draw));
        const int64_t n_generated = static_cast<int64_t>(tokens.size()) - n_prompt;
        if (s.params->mirostat != 0) s.mirostat.observe(s.candidates, drawn, n_generated);
        if (s.params->adaptive_target) s.adaptive.observe(drawn, n_generated);
        if (s.params->logprobs && s.params->processed_logprobs)
            return processed_log_probs(s.candidates, drawn, *s.params->logprobs);
    }
    if (s.params->logprobs) return log_probs_of(row.logits, drawn.id, *s.params->logprobs);
    return {drawn.id, 0.0f, {}};
}

void Sampler::rewind(int64_t n_generated) {
    state_->counts.reset(); // they look at new tokens only
    state_->dry.reset();
    state_->mirostat.rewind(n_generated);
    state_->adaptive.rewind(n_generated);
}

// Before tokens are cut to the k likeliest some may be excluded, of which k and as many are enough; whatever else
// looks at the row, or changes its order, needs all of it.
int32_t Sampler::n_likeliest(int64_t n_generated, size_t n_avoided) const {
    const State &s = *state_;
    const SamplingParams &params = *s.params;
    if (params.logprobs && !params.processed_logprobs) return 0;
    if (params.allowed_token_ids || !params.logit_bias.empty()) return 0;
    const size_t n_excluded =
        n_avoided + s.banned.size() + s.bad_sequences.size() + (n_generated < params.min_tokens ? s.ending.size() : 0);
    for (SamplingStage stage : s.stages) {
        if (stage == SamplingStage::top_k)
            return params.top_k < most_likeliest ? params.top_k + static_cast<int32_t>(n_excluded) : 0;
        if (stage != SamplingStage::temperature || params.dynatemp_range > 0.0f) return 0;
        if (params.temperature == 0.0f) return 1 + static_cast<int32_t>(n_excluded);
    }
    return 0;
}

std::vector<std::pair<int32_t, float>> Sampler::distribution(std::span<const float> logits,
                                                             std::span<const int32_t> tokens, int64_t n_prompt,
                                                             const TokenMask *mask) {
    State &s = *state_;
    s.counts.reset(); // these tokens need not continue those of the last call
    s.dry.reset();
    std::vector<float> row(logits.begin(), logits.end());
    s.run({row}, tokens, n_prompt, mask, {});
    std::vector<std::pair<int32_t, float>> left;
    const std::span<const float> weight = s.candidates.weights();
    for (size_t i = 0; i < s.candidates.size(); ++i) {
        const Candidate item = s.candidates.at(i);
        if (item.logit > -INFINITY) left.emplace_back(item.id, static_cast<float>(weight[i] / s.candidates.total()));
    }
    return left;
}

} // namespace quire
