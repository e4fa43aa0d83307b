// Parameters of a request.  python/quire/params/sampling.py declares them; sampling_fields.h is
// written from it, so that both have the same names, defaults and limits.
#pragma once

#include <string>

#include "engine/sampling/sampling_fields.h"
#include "engine/sampling/vocab_info.h"

namespace quire {

std::string name(SamplingStage stage);
// The stage with this name; RequestError naming `samplers` otherwise.
SamplingStage sampling_stage(const std::string &name);

struct SamplingParams : SamplingFields {
    // RequestError naming the parameter that is out of range.
    void validate() const;
    // Also refuses token ids outside of the vocabulary.
    void validate(const VocabInfo &vocab) const;
};

} // namespace quire
