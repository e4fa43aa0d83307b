// SentencePiece's precompiled character map: a double-array trie (Yata's Darts) from strings to be replaced to the
// offsets of their zero-terminated replacements, which follow it.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "unicode.h"

namespace quire::tokenizer {

class CharacterMap {
  public:
    CharacterMap() = default;

    // Throws std::invalid_argument if sizes are inconsistent.  Invalid links inside are found during lookups and count
    // as the end of a string.
    explicit CharacterMap(std::string_view blob) {
        uint32_t n_bytes = 0;
        if (blob.size() < sizeof n_bytes) throw_bad("it has no size");
        std::memcpy(&n_bytes, blob.data(), sizeof n_bytes);
        blob.remove_prefix(sizeof n_bytes);
        if (n_bytes % sizeof(uint32_t) != 0 || n_bytes >= blob.size()) throw_bad("it is shorter than its size says");
        units_.resize(n_bytes / sizeof(uint32_t));
        std::memcpy(units_.data(), blob.data(), n_bytes);
        replacements_ = blob.substr(n_bytes);
        if (replacements_.back() != '\0') throw_bad("the last replacement is not zero-terminated");
        check_offsets();
    }

    bool empty() const { return units_.empty(); }

    // Return the length of the longest string at text[at, ...) that has a replacement, and the latter; 0 if there is
    // none.
    size_t longest(std::string_view text, size_t at, std::string_view &replacement) const {
        size_t found = 0;
        if (units_.empty()) return 0;
        size_t node = offset_of(units_[0]);
        for (size_t i = at; i < text.size(); ++i) {
            const auto byte = static_cast<uint8_t>(text[i]);
            node ^= byte;
            if (byte == 0 || node >= units_.size() || label_of(units_[node]) != byte) break;
            const uint32_t unit = units_[node];
            node ^= offset_of(unit);
            if (!has_leaf(unit)) continue;
            if (node >= units_.size()) break;
            const size_t offset = units_[node] & 0x7fffffff;
            if (offset >= replacements_.size()) break;
            found = i + 1 - at;
            replacement = std::string_view(replacements_.data() + offset); // the blob is zero-terminated
        }
        return found;
    }

  private:
    [[noreturn]] static void throw_bad(const char *what) {
        throw std::invalid_argument(std::string("malformed character map: ") + what);
    }
    static uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }
    static uint32_t label_of(uint32_t unit) { return unit & ((1u << 31) | 0xff); }
    static bool has_leaf(uint32_t unit) { return ((unit >> 8) & 1) != 0; }

    void check_offsets() const {
        for (size_t i = 0; i < units_.size(); ++i) {
            if (!has_leaf(units_[i]) || (units_[i] >> 31) != 0) continue;
            const size_t leaf = i ^ offset_of(units_[i]);
            if (leaf >= units_.size()) throw_bad("a link leads outside");
            if ((units_[leaf] & 0x7fffffff) >= replacements_.size()) throw_bad("a replacement is outside");
        }
    }

    std::vector<uint32_t> units_;
    std::string replacements_;
};

// SentencePiece's normalization of spaces in a stretch of text.
enum class Prefix : int32_t { none, first, every }; // the stretches that get a space in front
struct SpaceRules {
    Prefix prefix = Prefix::none;
    bool suffix = false;       // append a space to every stretch
    bool merge_extra = false;  // remove spaces at both ends, and all but one of a run
    bool write_spaces = false; // write spaces as U+2581
    bool prefix_once = false;  // add no space in front of text that starts with one
};

class TextNormalizer {
  public:
    SpaceRules spaces;
    CharacterMap map;

    // Append the normalized `text`, a stretch between added tokens, to `out`.
    void append(std::string_view text, std::string &out, bool is_first = true) const {
        const size_t begin = out.size();
        const std::string_view space = spaces.write_spaces ? std::string_view("\xe2\x96\x81") : std::string_view(" ");
        out.reserve(begin + text.size() + text.size() / 4 + 8);
        const bool prefixed = spaces.prefix == Prefix::every || (spaces.prefix == Prefix::first && is_first);
        if (prefixed && !spaces.prefix_once && !text.empty()) out.append(space);
        size_t n_pending = 0; // spaces not written yet
        bool seen_other = false;
        auto add = [&](std::string_view part) {
            for (const char c : part) {
                if (c == ' ') {
                    ++n_pending;
                    continue;
                }
                flush(space, n_pending, seen_other, out);
                out.push_back(c);
                seen_other = true;
            }
        };
        if (map.empty()) {
            add(text);
        } else {
            map_each(text, add);
        }
        if (!spaces.merge_extra) flush(space, n_pending, seen_other, out);
        if (spaces.merge_extra && !seen_other) out.resize(begin);
        if (prefixed && spaces.prefix_once && out.size() > begin && out.compare(begin, space.size(), space) != 0) {
            out.insert(begin, space);
        }
        if (spaces.suffix && out.size() > begin) out.append(space);
    }

  private:
    void flush(std::string_view space, size_t &n_pending, bool seen_other, std::string &out) const {
        if (spaces.merge_extra) n_pending = seen_other && n_pending > 0 ? 1 : 0;
        for (; n_pending > 0; --n_pending) out.append(space);
    }
    // Bytes that are not UTF-8 become U+FFFD, as in SentencePiece.
    template <class Add> void map_each(std::string_view text, Add &&add) const {
        for (size_t at = 0; at < text.size();) {
            std::string_view replacement;
            if (const size_t size = map.longest(text, at, replacement)) {
                add(replacement);
                at += size;
                continue;
            }
            const Character c = character_at(text.data(), at, text.size());
            add(c.code == not_a_code ? std::string_view("\xef\xbf\xbd") : text.substr(at, c.n_bytes));
            at += c.n_bytes;
        }
    }
};

} // namespace quire::tokenizer
