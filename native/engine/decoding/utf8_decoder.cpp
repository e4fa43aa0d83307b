#include "engine/decoding/utf8_decoder.h"

namespace quire {
namespace {

constexpr const char *replacement = "\xEF\xBF\xBD"; // U+FFFD

} // namespace

// The first byte of a character; the limits of its second byte are those of Unicode's table 3-7, which leave out
// overlong forms, surrogates and what lies above U+10FFFF.
void Utf8Decoder::start(uint8_t byte, std::string &text) {
    lowest_ = 0x80;
    highest_ = 0xBF;
    if (byte < 0x80) {
        text.push_back(static_cast<char>(byte));
        return;
    }
    if (byte < 0xC2 || byte > 0xF4) {
        text += replacement;
        return;
    }
    n_missing_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    if (byte == 0xE0) lowest_ = 0xA0;
    if (byte == 0xED) highest_ = 0x9F;
    if (byte == 0xF0) lowest_ = 0x90;
    if (byte == 0xF4) highest_ = 0x8F;
    pending_.assign(1, static_cast<char>(byte));
}

void Utf8Decoder::push(std::string_view bytes, std::string &text) {
    for (char c : bytes) {
        const auto byte = static_cast<uint8_t>(c);
        if (n_missing_ == 0) {
            start(byte, text);
        } else if (byte < lowest_ || byte > highest_) {
            finish(text); // the bytes so far are ill-formed; this byte may begin a character
            start(byte, text);
        } else {
            pending_.push_back(c);
            lowest_ = 0x80;
            highest_ = 0xBF;
            if (--n_missing_ == 0) {
                text += pending_;
                pending_.clear();
            }
        }
    }
}

void Utf8Decoder::finish(std::string &text) {
    if (n_missing_ > 0) text += replacement;
    n_missing_ = 0;
    pending_.clear();
}

} // namespace quire
