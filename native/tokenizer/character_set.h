// Sets of characters for regular expressions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "unicode.h"

namespace quire::tokenizer {

// The script Han of Unicode 16.0.
inline constexpr uint32_t han_ranges[][2] = {
    {0x2e80, 0x2e99},   {0x2e9b, 0x2ef3},   {0x2f00, 0x2fd5},   {0x3005, 0x3005},   {0x3007, 0x3007},
    {0x3021, 0x3029},   {0x3038, 0x303b},   {0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfa6d},
    {0xfa70, 0xfad9},   {0x16fe2, 0x16fe3}, {0x16ff0, 0x16ff1}, {0x20000, 0x2a6df}, {0x2a700, 0x2b739},
    {0x2b740, 0x2b81d}, {0x2b820, 0x2cea1}, {0x2ceb0, 0x2ebe0}, {0x2ebf0, 0x2ee5d}, {0x2f800, 0x2fa1d},
    {0x30000, 0x3134a}, {0x31350, 0x323af},
};

// A set of ranges, sorted and without overlaps after `normalize`.  Bytes that are not UTF-8 belong to sets written as a
// complement.
class CharacterSet {
  public:
    using Ranges = std::vector<std::pair<uint32_t, uint32_t>>; // first and last

    static constexpr uint32_t last_code = 0x10ffff;

    bool has_invalid = false;

    void add(uint32_t first, uint32_t last) { ranges_.emplace_back(first, last); }
    void add(const CharacterSet &other) {
        ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
        has_invalid = has_invalid || other.has_invalid;
    }
    void add_categories(Classes classes) {
        constexpr size_t n = std::size(category_runs);
        for (size_t i = 0; i < n; ++i) {
            if (!((Classes{1} << (category_runs[i] & 0xff)) & classes)) continue;
            add(category_runs[i] >> 8, i + 1 < n ? (category_runs[i + 1] >> 8) - 1 : last_code);
        }
    }
    void add_white_space() {
        for (uint32_t code = 0; code <= 0x3000; ++code)
            if (is_white_space(code)) add(code, code);
    }
    void add_han() {
        for (const auto &range : han_ranges) add(range[0], range[1]);
    }

    void normalize() {
        std::sort(ranges_.begin(), ranges_.end());
        Ranges joined;
        for (const auto &range : ranges_) {
            if (!joined.empty() && range.first <= joined.back().second + 1) {
                joined.back().second = std::max(joined.back().second, range.second);
            } else {
                joined.push_back(range);
            }
        }
        ranges_ = std::move(joined);
    }
    void complement() {
        normalize();
        Ranges rest;
        uint32_t next = 0;
        for (const auto &[first, last] : ranges_) {
            if (first > next) rest.emplace_back(next, first - 1);
            next = last + 1;
        }
        if (next <= last_code) rest.emplace_back(next, last_code);
        ranges_ = std::move(rest);
        has_invalid = !has_invalid;
    }
    void intersect(CharacterSet other) {
        complement();
        other.complement();
        add(other);
        complement();
    }

    const Ranges &ranges() const { return ranges_; }
    bool contains(uint32_t code) const {
        const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), code,
                                            [](uint32_t key, const auto &range) { return key < range.first; });
        return after != ranges_.begin() && code <= std::prev(after)->second;
    }

  private:
    Ranges ranges_;
};

} // namespace quire::tokenizer
