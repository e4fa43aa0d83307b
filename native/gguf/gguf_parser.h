// The parser of one GGUF file.
#pragma once

#include <span>
#include <string>

#include "core/error.h"
#include "gguf/gguf_reader.h"

namespace quire {

// A read position in a file's bytes.  Every read checks that the bytes exist.
class ByteCursor {
  public:
    ByteCursor(const uint8_t *data, size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
    size_t position() const { return position_; }
    size_t left() const { return size_bytes_ - position_; }
    // Return the next n bytes; LoadError naming `what` if there are fewer.
    std::span<const uint8_t> take(uint64_t n, const std::string &what);
    template <class T> T scalar(const std::string &what) {
        T value;
        std::span<const uint8_t> bytes = take(sizeof(T), what);
        __builtin_memcpy(&value, bytes.data(), sizeof(T));
        return value;
    }
    // Return a string, stored as its length, which may be at most `limit`, and its bytes.
    std::string_view string(uint64_t limit, const std::string &what);

  private:
    const uint8_t *data_;
    size_t size_bytes_;
    size_t position_ = 0;
};

bool is_utf8(std::string_view text);

// Parses file `part` of `reader` and adds its tensors to the reader, and for part 0 its keys.
class GgufParser {
  public:
    GgufParser(GgufReader &reader, size_t part);
    void parse();
    const GgufValue *value(const std::string &key) const; // null if absent
    // Return an integer; `absent` if there is no such key, LoadError for other types.
    uint64_t whole_number(const std::string &key, uint64_t absent) const;

  private:
    void parse_header();
    void parse_entry(uint64_t number);
    GgufValue parse_value(const std::string &key);
    void parse_alignment();
    void parse_tensor(uint64_t number);
    void check_layout();
    GgufReader &reader_;
    size_t part_;
    ByteCursor cursor_;
    uint64_t n_tensors_ = 0, n_keys_ = 0;
    size_t alignment_ = gguf_default_alignment;
    std::vector<std::string> keys_;
    std::unordered_map<std::string, GgufValue> values_;
    std::vector<GgufTensorInfo> tensors_;
};

} // namespace quire
