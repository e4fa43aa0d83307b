// Which adapters a sequence uses in a step.
#pragma once

namespace quire {

struct LowRankAdapter; // graph/trace/low_rank_adapter.h

struct AdapterUse {
    const LowRankAdapter *adapter; // kept by the request
    float scale;
};

} // namespace quire
