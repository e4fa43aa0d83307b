// A message of rank 0 to the others of its group: edits of the cache, then perhaps a step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "graph/run/executor.h"
#include "graph/trace/step_batch.h"

namespace quire {

struct CacheCommand {
    enum class Kind : int32_t { copy_block, copy_state, discard_block, discard_state };
    Kind kind;
    int32_t group, from, to; // those that the kind has
};

struct StepMessage {
    std::vector<CacheCommand> edits;
    std::optional<StepBatch> batch;
    std::vector<float> features; // the batch's
    bool stops = false;
};

std::vector<uint8_t> to_bytes(std::span<const CacheCommand> edits, const StepBatch *batch, bool stops);
StepMessage message_of(std::span<const uint8_t> bytes); // the batch's features are in it
void make_edits(Executor &executor, std::span<const CacheCommand> edits);

} // namespace quire
