// Images and sounds in a prompt: rows that take the place of token embeddings.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kv/media_names.h"

namespace quire {

struct MediaSpan {
    int64_t begin; // position of the first row in the prompt
    int64_t n_rows;
    std::string digest;
    std::vector<float> rows; // [n_rows, width]
    // Rows attend to later ones of the span, where the model's layers do that.
    bool is_bidirectional = true;
    int64_t end() const { return begin + n_rows; }
};

// Spans are disjoint and ascending, and lie within the prompt.
struct PromptMedia {
    std::vector<MediaSpan> spans;
    size_t width = 0;
    std::vector<int32_t> axes = {}; // [3, n_prompt] places in time, height and width; empty: positions
    int64_t n_prompt = 0;

    // A place on an axis; behind the prompt, text continues after the largest place.
    int32_t place(size_t axis, int64_t position) const {
        if (axes.empty()) return static_cast<int32_t>(position);
        if (position < n_prompt) return axes[axis * static_cast<size_t>(n_prompt) + static_cast<size_t>(position)];
        return static_cast<int32_t>(position - n_prompt) + first_later_place;
    }
    // The span that holds a position, or null.
    const MediaSpan *span_at(int64_t position) const {
        for (const MediaSpan &span : spans)
            if (position >= span.begin && position < span.end()) return &span;
        return nullptr;
    }
    // The row of a position; null: a token's embedding is read there.
    const float *row(int64_t position) const {
        const MediaSpan *span = span_at(position);
        return span ? span->rows.data() + static_cast<size_t>(position - span->begin) * width : nullptr;
    }
    // The bidirectional span that holds a position, or null.
    const MediaSpan *bidirectional_at(int64_t position) const {
        const MediaSpan *span = span_at(position);
        return span && span->is_bidirectional ? span : nullptr;
    }
    int64_t most_bidirectional() const { // rows of the longest bidirectional span
        int64_t most = 0;
        for (const MediaSpan &span : spans)
            if (span.is_bidirectional) most = std::max(most, span.n_rows);
        return most;
    }
    std::vector<MediaName> names() const {
        std::vector<MediaName> found;
        for (const MediaSpan &span : spans) found.push_back({span.begin, span.end(), span.digest});
        return found;
    }
    void set_axes(std::vector<int32_t> values, int64_t n) {
        axes = std::move(values);
        n_prompt = n;
        first_later_place = axes.empty() ? 0 : *std::max_element(axes.begin(), axes.end()) + 1;
    }

  private:
    int32_t first_later_place = 0;
};

} // namespace quire
