// Which adapters a sequence uses in a step.
#pragma once

#include <cstdint>

namespace quire {

struct LowRankAdapter; // graph/trace/low_rank_adapter.h

struct AdapterUse {
    const LowRankAdapter *adapter; // kept by the request
    float scale;
    int32_t skipped = 0; // leading rows of the sequence's rows in the step that do without
};

} // namespace quire
