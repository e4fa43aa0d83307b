// UTF-8, and the character classes that pre-tokenizers use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "unicode_tables.h"

namespace quire::tokenizer {

// General categories, in the order of make_unicode_tables.py.
enum class Category : uint8_t {
    Lu,
    Ll,
    Lt,
    Lm,
    Lo,
    Mn,
    Mc,
    Me,
    Nd,
    Nl,
    No,
    Pc,
    Pd,
    Ps,
    Pe,
    Pi,
    Pf,
    Po,
    Sm,
    Sc,
    Sk,
    So,
    Zs,
    Zl,
    Zp,
    Cc,
    Cf,
    Cs,
    Co,
    Cn
};

// A set of characters: a bit per category, and one for White_Space, which is not a category.
using Classes = uint32_t;
constexpr Classes bit(Category category) { return Classes{1} << static_cast<int>(category); }
constexpr Classes between(Category first, Category last) { return (bit(last) << 1) - bit(first); }
inline constexpr Classes letter = between(Category::Lu, Category::Lo);
inline constexpr Classes mark = between(Category::Mn, Category::Me);
inline constexpr Classes number = between(Category::Nd, Category::No);
inline constexpr Classes punctuation = between(Category::Pc, Category::Po);
inline constexpr Classes symbol = between(Category::Sm, Category::So);
inline constexpr Classes white_space = Classes{1} << 31;

constexpr bool is_white_space(uint32_t code) {
    return (code >= 0x9 && code <= 0xd) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
           code == 0x3000;
}

// The runs of unicode_tables.h expanded to blocks of 256 characters; equal blocks are shared.
class CategoryTable {
  public:
    CategoryTable() {
        constexpr size_t n_runs = sizeof(category_runs) / sizeof(category_runs[0]);
        size_t run = 0;
        std::array<Classes, 256> block{};
        for (uint32_t first = 0; first < 0x110000; first += 256) {
            for (uint32_t i = 0; i < 256; ++i) {
                while (run + 1 < n_runs && (category_runs[run + 1] >> 8) <= first + i) ++run;
                block[i] = Classes{1} << (category_runs[run] & 0xff);
                if (is_white_space(first + i)) block[i] |= white_space;
            }
            // Long runs make neighbours equal, so comparing with the last block finds most equal ones.
            if (blocks_.empty() || blocks_.back() != block) blocks_.push_back(block);
            index_[first >> 8] = static_cast<uint16_t>(blocks_.size() - 1);
        }
    }
    Classes operator[](uint32_t code) const { return blocks_[index_[code >> 8]][code & 0xff]; }

  private:
    std::array<uint16_t, 0x1100> index_{};
    std::vector<std::array<Classes, 256>> blocks_;
};

inline const CategoryTable categories;

inline constexpr uint32_t not_a_code = 0xffffffff;

// A decoded character.  A byte that is not UTF-8 is a character of its own, `not_a_code`, so any bytes can be
// tokenized.
struct Code {
    uint32_t code, n_bytes;
};

inline Code code_at(const char *text, size_t at, size_t end) {
    auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t lead = byte(at);
    if (lead < 0x80) return {lead, 1};
    constexpr Code invalid{not_a_code, 1};
    auto continues = [&](size_t n) {
        if (end - at < n) return false;
        for (size_t i = 1; i < n; ++i)
            if ((byte(at + i) & 0xc0) != 0x80) return false;
        return true;
    };
    if (lead >= 0xc2 && lead < 0xe0 && continues(2)) return {(lead & 0x1fu) << 6 | (byte(at + 1) & 0x3fu), 2};
    if (lead >= 0xe0 && lead < 0xf0 && continues(3)) {
        const uint32_t code = (lead & 0xfu) << 12 | (byte(at + 1) & 0x3fu) << 6 | (byte(at + 2) & 0x3fu);
        return code < 0x800 || (code >= 0xd800 && code < 0xe000) ? invalid : Code{code, 3};
    }
    if (lead >= 0xf0 && lead < 0xf5 && continues(4)) {
        const uint32_t code =
            (lead & 0x7u) << 18 | (byte(at + 1) & 0x3fu) << 12 | (byte(at + 2) & 0x3fu) << 6 | (byte(at + 3) & 0x3fu);
        return code < 0x10000 || code > 0x10ffff ? invalid : Code{code, 4};
    }
    return invalid;
}

// One character of a text: its classes and its size.  A byte that is not UTF-8 has a class that no pre-tokenizer uses.
struct Character {
    uint32_t code;
    Classes classes;
    uint32_t n_bytes;
};

inline Character character_at(const char *text, size_t at, size_t end) {
    const Code c = code_at(text, at, end);
    return {c.code, c.code == not_a_code ? bit(Category::Cn) : categories[c.code], c.n_bytes};
}

inline bool is_utf8(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        const Code c = code_at(text.data(), at, text.size());
        if (c.code == not_a_code) return false;
        at += c.n_bytes;
    }
    return true;
}

// The character that ends at `at`, for looking back; `at` must be greater than `begin`.
inline Character character_before(const char *text, size_t begin, size_t at) {
    for (size_t n = 1; n <= 4 && at - begin >= n; ++n) {
        if ((static_cast<uint8_t>(text[at - n]) & 0xc0) == 0x80) continue;
        const Character found = character_at(text, at - n, at);
        if (found.n_bytes == n) return found;
        break;
    }
    return {not_a_code, bit(Category::Cn), 1};
}

// \w of regular expressions: Alphabetic, marks, decimal numbers, connectors, joiners.
inline bool is_word(const Character &c) {
    constexpr Classes word = letter | mark | bit(Category::Nd) | bit(Category::Nl) | bit(Category::Pc);
    const bool circled = (c.code >= 0x24b6 && c.code <= 0x24e9) || (c.code >= 0x1f130 && c.code <= 0x1f149) ||
                         (c.code >= 0x1f150 && c.code <= 0x1f169) || (c.code >= 0x1f170 && c.code <= 0x1f189);
    return (c.classes & word) != 0 || circled || c.code == 0x200c || c.code == 0x200d;
}

} // namespace quire::tokenizer
