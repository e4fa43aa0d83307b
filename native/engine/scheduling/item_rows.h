// The results of a step for one of its sequences.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/sampling/row_scan.h"

namespace quire {

class ItemRows {
  public:
    size_t n = 0;
    std::span<float> logits;       // [n, n_vocab]
    std::span<float> maxima;       // [n, strips]; empty where they are not known
    std::span<const float> hidden; // [n, n_hidden]; empty where nobody wants them
    std::vector<float> taps;       // [n, of all tapped layers]; likewise

    LogitRow row(size_t i) const { return {part(logits, i), part(maxima, i)}; }
    // Logits and maxima of the last rows.
    ItemRows last(size_t n_last) const {
        ItemRows rows;
        rows.n = n_last;
        rows.logits = logits.last(n_last * (logits.size() / n));
        rows.maxima = maxima.last(n_last * (maxima.size() / n));
        return rows;
    }

  private:
    std::span<float> part(std::span<float> all, size_t i) const {
        return all.subspan(i * (all.size() / n), all.size() / n);
    }
};

} // namespace quire
