// The byte-level alphabet of GPT-2, which writes every byte as one printable character.
// Printable Latin-1 bytes are themselves; the others are numbered from U+0100 on.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "unicode.h"

namespace quire::tokenizer {

class ByteMap {
  public:
    ByteMap() {
        byte_of_.fill(-1);
        uint32_t next = 0x100;
        for (uint32_t byte = 0; byte < 256; ++byte) {
            const bool itself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
            byte_of_[itself ? byte : next++] = static_cast<int16_t>(byte);
        }
    }

    // Append the bytes that `written` encodes; return false, with garbage appended, if a character is not in the
    // alphabet.
    bool append(std::string_view written, std::string &bytes) const {
        for (size_t at = 0; at < written.size();) {
            const Character c = character_at(written.data(), at, written.size());
            if (c.code >= byte_of_.size() || byte_of_[c.code] < 0) return false;
            bytes.push_back(static_cast<char>(byte_of_[c.code]));
            at += c.n_bytes;
        }
        return true;
    }

  private:
    std::array<int16_t, 0x144> byte_of_{};
};

inline const ByteMap byte_map;

} // namespace quire::tokenizer
