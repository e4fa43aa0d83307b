// What a decoder is told.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/drafting/speculator.h"
#include "engine/scheduling/scheduler_options.h"

namespace quire {

struct DecoderConfig : SchedulerOptions {
    std::string speculation = "off"; // of requests that do not say
    SpeculationConfig drafts;
    std::optional<double> step_s; // about so long may a step take, where fewer tokens make it shorter
    // Of an encoder-decoder model: the token that every answer begins after.  The prompt is what the encoder reads.
    std::optional<int32_t> decoder_start;
};

} // namespace quire
