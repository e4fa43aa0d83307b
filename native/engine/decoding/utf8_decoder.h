// Incremental UTF-8 that replaces ill-formed bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

// Keeps an incomplete character until its last byte comes.
class Utf8Decoder {
  public:
    // Appends the complete characters of `bytes` to `text`, U+FFFD for each maximal ill-formed part.
    void push(std::string_view bytes, std::string &text);
    // The end: an incomplete character becomes U+FFFD.
    void finish(std::string &text);

  private:
    void start(uint8_t byte, std::string &text);

    std::string pending_;   // the bytes of an incomplete character
    int n_missing_ = 0;     // how many are to come
    uint8_t lowest_ = 0x80; // limits of the next byte
    uint8_t highest_ = 0xBF;
};

} // namespace quire
