#include "kv/blake2b.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/error.h"

namespace quire {
namespace {

constexpr std::array<uint64_t, 8> initial{0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                                          0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                                          0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
constexpr uint8_t sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

uint64_t load_u64(const uint8_t *bytes) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; --i) value = value << 8 | bytes[i];
    return value;
}

void mix(std::array<uint64_t, 16> &v, std::array<int, 4> at, uint64_t x, uint64_t y) {
    auto &[a, b, c, d] = at;
    v[a] += v[b] + x;
    v[d] = std::rotr(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = std::rotr(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = std::rotr(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = std::rotr(v[b] ^ v[c], 63);
}

} // namespace

Blake2b::Blake2b(size_t digest_bytes, std::string_view personal) : digest_bytes_(digest_bytes), state_(initial) {
    if (digest_bytes < 1 || digest_bytes > max_digest_bytes)
        throw ShapeError("blake2b", cat("a digest has ", digest_bytes, " bytes: expected 1 to 64"));
    if (personal.size() > personal_bytes)
        throw ShapeError("blake2b", cat("personal has ", personal.size(), " bytes: expected at most 16"));
    std::array<uint8_t, personal_bytes> padded{};
    std::ranges::copy(personal, padded.begin());
    state_[0] ^= 0x01010000 ^ digest_bytes; // fan-out 1, depth 1, no key
    state_[6] ^= load_u64(padded.data());
    state_[7] ^= load_u64(padded.data() + 8);
}

void Blake2b::compress(bool last) {
    std::array<uint64_t, 16> v, m;
    for (size_t i = 0; i < 16; ++i) m[i] = load_u64(buffer_.data() + 8 * i);
    std::ranges::copy(state_, v.begin());
    std::ranges::copy(initial, v.begin() + 8);
    v[12] ^= total_bytes_;
    if (last) v[14] = ~v[14];
    for (int round = 0; round < 12; ++round) {
        const uint8_t *s = sigma[round % 10];
        for (int i = 0; i < 4; ++i) mix(v, {i, 4 + i, 8 + i, 12 + i}, m[s[2 * i]], m[s[2 * i + 1]]);
        for (int i = 0; i < 4; ++i)
            mix(v, {i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4}, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
    }
    for (size_t i = 0; i < 8; ++i) state_[i] ^= v[i] ^ v[i + 8];
    buffered_bytes_ = 0;
}

void Blake2b::update(const void *data, size_t size_bytes) {
    const auto *bytes = static_cast<const uint8_t *>(data);
    while (size_bytes > 0) {
        if (buffered_bytes_ == buffer_.size()) compress(false); // a full buffer waits: the last one is special
        const size_t n = std::min(size_bytes, buffer_.size() - buffered_bytes_);
        std::memcpy(buffer_.data() + buffered_bytes_, bytes, n);
        buffered_bytes_ += n;
        total_bytes_ += n;
        bytes += n;
        size_bytes -= n;
    }
}

void Blake2b::update_u64(uint64_t value) {
    std::array<uint8_t, 8> bytes;
    for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
    update(bytes.data(), bytes.size());
}

void Blake2b::finish(std::span<uint8_t> digest) {
    if (digest.size() != digest_bytes_)
        throw ShapeError("blake2b", cat("the digest has ", digest.size(), " bytes: expected ", digest_bytes_));
    std::fill(buffer_.begin() + static_cast<std::ptrdiff_t>(buffered_bytes_), buffer_.end(), uint8_t{0});
    compress(true);
    for (size_t i = 0; i < digest_bytes_; ++i) digest[i] = static_cast<uint8_t>(state_[i / 8] >> (8 * (i % 8)));
}

} // namespace quire
