// Places values that live for a part of a program in one buffer.
#pragma once

#include <cstddef>
#include <vector>

namespace quire {

// A value is written by node `first` and read by node `last` at the latest.
struct Lifetime {
    size_t size_bytes;
    int first, last;
};

struct MemoryPlan {
    std::vector<size_t> offsets; // by value, multiples of memory_plan_alignment_bytes
    size_t size_bytes;
};

inline constexpr size_t memory_plan_alignment_bytes = 64;

// Values whose lifetimes meet do not overlap.  The largest are placed first, each at the lowest offset where it fits
// (greedy by size: Pisarchyk and Lee 2020).
MemoryPlan plan_memory(const std::vector<Lifetime> &values);

} // namespace quire
