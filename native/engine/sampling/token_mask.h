// Which tokens of a vocabulary may be drawn, one bit each.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"

namespace quire {

// Bit i % 32 of word i / 32 stands for token i; bits beyond the vocabulary are zero.
class TokenMask {
  public:
    static size_t words_for(int32_t n_vocab) { return (static_cast<size_t>(n_vocab) + 31) / 32; }

    // ShapeError for another number of words.  Bits beyond the vocabulary are cleared.
    TokenMask(std::vector<uint32_t> words, int32_t n_vocab) : words_(std::move(words)) {
        if (words_.size() != words_for(n_vocab))
            throw ShapeError("token_mask", cat("a mask has ", words_.size(), " words: expected ", words_for(n_vocab),
                                               " for ", n_vocab, " tokens"));
        if (n_vocab % 32 != 0) words_.back() &= (uint32_t{1} << (n_vocab % 32)) - 1;
    }

    // A mask that allows one token alone.
    static TokenMask only(int32_t id, int32_t n_vocab) {
        std::vector<uint32_t> words(words_for(n_vocab));
        words[static_cast<size_t>(id) / 32] = uint32_t{1} << (id % 32);
        return {std::move(words), n_vocab};
    }

    bool allows(int32_t id) const { return (words_[static_cast<size_t>(id) / 32] >> (id % 32)) & 1; }

    size_t count() const {
        size_t n = 0;
        for (uint32_t word : words_) n += static_cast<size_t>(std::popcount(word));
        return n;
    }

    // f(id) for every allowed token, ascending.
    template <class F> void for_each(F &&f) const {
        for (size_t i = 0; i < words_.size(); ++i)
            for (uint32_t left = words_[i]; left != 0; left &= left - 1)
                f(static_cast<int32_t>(i * 32 + static_cast<size_t>(std::countr_zero(left))));
    }

    std::span<const uint32_t> words() const { return words_; }

  private:
    std::vector<uint32_t> words_;
};

} // namespace quire
