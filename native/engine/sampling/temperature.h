// Temperature, fixed or following the entropy.
#pragma once

#include "engine/sampling/candidates.h"
#include "engine/sampling/sampling_params.h"

namespace quire {

// Logits divided by the temperature; at 0 only the likeliest stays, of equal ones the lowest id.  With dynatemp_range
// the temperature lies between temperature - range and temperature + range, at the place given by (entropy / greatest
// possible entropy of the candidates) ^ dynatemp_exponent: "dynamic temperature", published by its author as
// oobabooga/text-generation-webui pull request 4879 (2023).
void apply_temperature(Candidates &candidates, const SamplingParams &params);

} // namespace quire
