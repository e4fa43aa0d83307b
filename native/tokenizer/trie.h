// A trie of byte strings with its edges in one hash map: fast to build, one lookup per byte.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "piece_table.h"

namespace quire::tokenizer {

class Trie {
  public:
    static constexpr uint32_t root = 0, none = 0xffffffff;

    void reserve(size_t n_strings) {
        size_t size = 1024;
        while (size < 8 * n_strings) size *= 2;
        if (size > slots_.size()) rehash(size);
        values_.reserve(4 * n_strings);
    }

    // Add a string, or replace its value.
    void add(std::string_view text, int32_t value) {
        uint32_t node = root;
        for (const char c : text) {
            const uint64_t key = key_of(node, c);
            uint32_t next = find(key);
            if (next == none) next = add_edge(key);
            node = next;
        }
        values_[node] = value;
    }

    uint32_t child(uint32_t node, char byte) const { return find(key_of(node, byte)); }
    int32_t value(uint32_t node) const { return values_[node]; } // -1 if no string ends here

    // Return the value of the longest string at text[at, ...) and set `stop` to its end; -1 if there is none.
    int32_t longest(std::string_view text, size_t at, size_t &stop) const {
        int32_t found = -1;
        uint32_t node = root;
        while (at < text.size()) {
            node = child(node, text[at++]);
            if (node == none) break;
            if (values_[node] >= 0) found = values_[node], stop = at;
        }
        return found;
    }

  private:
    static constexpr uint64_t child_bits = 28, child_mask = (uint64_t{1} << child_bits) - 1;

    static uint64_t key_of(uint32_t node, char byte) {
        return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
    }
    uint32_t find(uint64_t key) const {
        for (size_t i = mix(key) & mask_;; i = (i + 1) & mask_) {
            if (slots_[i] == 0) return none;
            if (slots_[i] >> child_bits == key) return static_cast<uint32_t>(slots_[i] & child_mask);
        }
    }
    uint32_t add_edge(uint64_t key) {
        if (values_.size() > child_mask) throw std::invalid_argument("the tokens have more than 2^28 bytes");
        if (2 * values_.size() > slots_.size()) rehash(2 * slots_.size());
        const auto node = static_cast<uint32_t>(values_.size());
        values_.push_back(-1);
        place(key << child_bits | node);
        return node;
    }
    void place(uint64_t slot) {
        size_t i = mix(slot >> child_bits) & mask_;
        while (slots_[i] != 0) i = (i + 1) & mask_;
        slots_[i] = slot;
    }
    void rehash(size_t size) {
        std::vector<uint64_t> old(size);
        old.swap(slots_);
        mask_ = size - 1;
        for (const uint64_t slot : old)
            if (slot != 0) place(slot);
    }

    // Key and child in one number.  The root is never a child, so used slots are not 0.  At most half full.
    std::vector<uint64_t> slots_ = std::vector<uint64_t>(1024);
    size_t mask_ = 1023;
    std::vector<int32_t> values_ = std::vector<int32_t>(1, -1);
};

} // namespace quire::tokenizer
