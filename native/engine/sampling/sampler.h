// Draws the next token of one sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/sampling/log_probs.h"
#include "engine/sampling/row_scan.h"
#include "engine/sampling/sampling_params.h"
#include "engine/sampling/token_mask.h"
#include "engine/sampling/vocab_info.h"

namespace quire {

using TokenSequences = std::vector<std::vector<int32_t>>;

// One choice of one request.  The draw depends on the logits, the sequence's tokens, and (seed, choice, position): not
// on the slot, the batch or earlier calls.  Mirostat and Adaptive-P alone keep state (their running targets), here, so that a preempted
// sequence goes on where it was; call sample() once per token, or rewind().  Scratch is reused: no allocation per token in the
// steady state.  Not thread safe.
class Sampler {
  public:
    // Validates the parameters and the sequences against the vocabulary (RequestError).  bad_sequences: the answer never
    // contains these tokens in this order.
    Sampler(std::shared_ptr<const SamplingParams> params, std::shared_ptr<const VocabInfo> vocab, int32_t choice,
            TokenSequences bad_sequences = {});
    ~Sampler();
    Sampler(Sampler &&) noexcept;
    Sampler &operator=(Sampler &&) noexcept;

    // row: of [n_vocab] logits, -inf for a token that must not be drawn; as it was when this returns
    // or throws.  tokens: prompt and generated, of which the first n_prompt are the prompt; they extend those of the
    // last call or are a beginning of them, after which rewind() was called.  mask: the tokens that may be drawn, null
    // for all.  avoided: ascending, tokens that are drawn only where no other is left.
    // RequestError where logits have NaN or +inf, or where no token is left to draw.
    SampledToken sample(const LogitRow &row, std::span<const int32_t> tokens, int64_t n_prompt,
                        const TokenMask *mask = nullptr, std::span<const int32_t> avoided = {});
    // The sequence has n_generated tokens again.
    void rewind(int64_t n_generated);

    // So many of a row's likeliest are enough for the next token, of which the sequence has n_generated, with n_avoided
    // to be avoided; 0: all may matter. Others may be -inf then.
    int32_t n_likeliest(int64_t n_generated, size_t n_avoided = 0) const;

    // The tokens that survive the chain, with their probabilities: sample() draws from these.
    std::vector<std::pair<int32_t, float>> distribution(std::span<const float> logits, std::span<const int32_t> tokens,
                                                        int64_t n_prompt, const TokenMask *mask = nullptr);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

} // namespace quire
