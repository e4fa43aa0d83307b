// Mirostat: truncation steered towards a target surprise (Basu, Ramachandran, Keskar and Varshney 2021).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling/candidates.h"
#include "engine/sampling/sampling_params.h"

namespace quire {

// Keeps the running limit mu of one sequence, in bits.  Version 1 estimates the exponent of Zipf's law from the 100
// likeliest tokens and from it how many to keep; version 2 keeps those whose surprise is at most mu.  The surprise of
// the drawn token is that under the distribution before this truncation, as in the paper.
class MirostatControl {
  public:
    MirostatControl(const SamplingParams &params, int32_t n_vocab)
        : version_(params.mirostat), tau_(params.mirostat_tau), eta_(params.mirostat_eta), n_vocab_(n_vocab),
          mu_(2.0 * params.mirostat_tau) {}
    void truncate(Candidates &candidates);
    // The draw from the truncated candidates, number n_generated of the answer: moves mu towards the target.
    void observe(const Candidates &candidates, const Candidate &drawn, int64_t n_generated);
    void rewind(int64_t n_generated); // the answer has so many tokens again

  private:
    double n_kept(const Candidates &candidates, std::span<const Candidate> likeliest) const;

    int32_t version_;
    double tau_, eta_;
    int32_t n_vocab_;
    double mu_;
    std::vector<double> mu_before_; // each generated token
    double log_total_ = 0.0; // for the distribution before truncation
};

} // namespace quire
