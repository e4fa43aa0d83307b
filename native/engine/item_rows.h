// What a step gives one of its sequences.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/row_scan.h"

namespace quire {

struct ItemRows {
    size_t n = 0;
    std::span<float> logits;       // [n, n_vocab]
    LogitRow last;                 // of those
    std::span<const float> hidden; // [n, n_hidden]; empty where nobody wants them
    std::vector<float> taps;       // [n, of all tapped layers]; likewise
};

} // namespace quire
