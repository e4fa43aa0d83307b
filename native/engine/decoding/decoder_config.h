// Configuration of a decoder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/drafting/speculator.h"
#include "engine/scheduling/scheduler_options.h"
#include "kv/cache_tiers.h"

namespace quire {

struct DecoderConfig : SchedulerOptions {
    std::string speculation = "off"; // for requests that do not say
    SpeculationConfig drafts;
    std::optional<double> step_s; // target duration of a step, reached by fewer tokens
    CacheTiersConfig tiers; // below the pool
    // For an encoder-decoder model: the token that every answer begins after.  The prompt is what the encoder reads.
    std::optional<int32_t> decoder_start;
};

} // namespace quire
