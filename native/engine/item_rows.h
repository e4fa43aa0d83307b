// What a step gives one of its sequences.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/row_scan.h"

namespace quire {

class ItemRows {
  public:
    size_t n = 0;
    std::span<float> logits;       // [n, n_vocab]
    std::span<float> maxima;       // [n, strips]; empty where they are not known
    std::span<const float> hidden; // [n, n_hidden]; empty where nobody wants them
    std::vector<float> taps;       // [n, of all tapped layers]; likewise

    LogitRow row(size_t i) const { return {part(logits, i), part(maxima, i)}; }
    LogitRow last() const { return row(n - 1); }

  private:
    std::span<float> part(std::span<float> all, size_t i) const {
        return all.subspan(i * (all.size() / n), all.size() / n);
    }
};

} // namespace quire
