// The stages that narrow the candidates.  Probabilities are those of the candidates left by the stages before,
// renormalized; every stage leaves at least one, and those with `min_keep` so many of those that were there.
#pragma once

#include "engine/sampling/candidates.h"

namespace quire {

// Those within n standard deviations (of the candidates' logits) of the maximum: Tang et al. 2024, "Top-nσ".
void keep_top_n_sigma(Candidates &candidates, double n);
// The smallest set of likeliest tokens that holds p: nucleus sampling, Holtzman et al. 2020.
void keep_top_p(Candidates &candidates, double p, size_t min_keep);
// Those at least `fraction` as likely as the likeliest: Nguyen et al. 2024, "Turning up the heat".
void keep_min_p(Candidates &candidates, double fraction, size_t min_keep);
// The smallest set that holds p of the tokens whose information is nearest the entropy: Meister et al. 2023.
void keep_typical(Candidates &candidates, double p, size_t min_keep);
// Cuts the tail where z of the summed |second difference| of the sorted probabilities is passed: Phénix and Egan 2019.
void keep_tail_free(Candidates &candidates, double z, size_t min_keep);
// Drops all tokens of at least the threshold but the least likely of them ("exclude top choices", published by its
// author as oobabooga/text-generation-webui pull request 6335, 2024); none where fewer than min_keep would be left.
void exclude_top_choices(Candidates &candidates, double threshold, size_t min_keep);

} // namespace quire
