// BLAKE2b, the cryptographic hash of RFC 7693, as far as the prefix cache needs it: no key, no tree.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace quire {

class Blake2b {
  public:
    static constexpr size_t max_digest_bytes = 64, personal_bytes = 16;

    // Digests of `digest_bytes` (1 to 64).  `personal` (at most 16 bytes) separates uses of the hash from each other.
    explicit Blake2b(size_t digest_bytes, std::string_view personal = {});
    void update(const void *data, size_t size_bytes);
    void update_u64(uint64_t value);        // little-endian
    void finish(std::span<uint8_t> digest); // once; digest_bytes long

  private:
    void compress(bool last);
    size_t digest_bytes_;
    std::array<uint64_t, 8> state_;
    std::array<uint8_t, 128> buffer_{};
    size_t buffered_bytes_ = 0;
    uint64_t total_bytes_ = 0; // 2^64 bytes are beyond any use here
};

} // namespace quire
