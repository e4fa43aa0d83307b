// Strings numbered from 0, and the hash maps of a merge-based tokenizer: built once, read by any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace quire::tokenizer {

inline uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

inline uint64_t hash_bytes(std::string_view bytes) {
    uint64_t hash = bytes.size() * 0xff51afd7ed558ccdull, word = 0;
    const char *at = bytes.data();
    size_t left = bytes.size();
    for (; left >= 8; at += 8, left -= 8) {
        std::memcpy(&word, at, 8);
        hash = mix(hash ^ word) * 0xc4ceb9fe1a85ec53ull;
    }
    word = 0;
    for (size_t i = 0; i < left; ++i) word |= static_cast<uint64_t>(static_cast<uint8_t>(at[i])) << 8 * i;
    return mix(mix(hash ^ word) * 0xc4ceb9fe1a85ec53ull);
}

// Byte strings one after another, numbered from 0.
class Strings {
  public:
    void reserve(size_t n_strings, size_t n_bytes) { ends_.reserve(n_strings), bytes_.reserve(n_bytes); }
    size_t size() const { return ends_.size(); }
    void add(std::string_view string) { bytes_.append(string), ends_.push_back(bytes_.size()); }
    std::string_view operator[](size_t i) const {
        const size_t begin = i == 0 ? 0 : ends_[i - 1];
        return {bytes_.data() + begin, ends_[i] - begin};
    }

  private:
    std::string bytes_;
    std::vector<uint64_t> ends_;
};

// Maps a byte string to its number in `Strings` that the caller holds.  Open addressing, at most half full.
class StringIndex {
  public:
    static constexpr uint32_t none = 0xffffffff;

    void reserve(size_t n) {
        size_t size = 16;
        while (size < 2 * n) size *= 2;
        if (size > slots_.size()) rehash(size);
    }
    uint32_t find(const Strings &strings, std::string_view key) const {
        if (slots_.empty()) return none;
        const uint64_t hash = hash_bytes(key);
        for (size_t i = hash & mask();; i = (i + 1) & mask()) {
            const Slot &slot = slots_[i];
            if (slot.number == none) return none;
            if (slot.tag == static_cast<uint32_t>(hash >> 32) && strings[slot.number] == key) return slot.number;
        }
    }
    // Insert a number; return false if an equal key exists.
    bool insert(const Strings &strings, std::string_view key, uint32_t number) {
        reserve(n_ + 1);
        const uint64_t hash = hash_bytes(key);
        const auto tag = static_cast<uint32_t>(hash >> 32);
        size_t i = hash & mask();
        for (; slots_[i].number != none; i = (i + 1) & mask())
            if (slots_[i].tag == tag && strings[slots_[i].number] == key) return false;
        slots_[i] = {number, tag, hash};
        ++n_;
        return true;
    }

  private:
    struct Slot {
        uint32_t number = none, tag = 0;
        uint64_t hash = 0;
    };
    size_t mask() const { return slots_.size() - 1; }
    void rehash(size_t size) {
        std::vector<Slot> old(size);
        old.swap(slots_);
        for (const Slot &slot : old) {
            if (slot.number == none) continue;
            size_t i = slot.hash & mask();
            while (slots_[i].number != none) i = (i + 1) & mask();
            slots_[i] = slot;
        }
    }

    std::vector<Slot> slots_;
    size_t n_ = 0;
};

// Maps a pair of pieces to the merge that joins them.
struct Merge {
    uint32_t rank, piece;
};

class MergeIndex {
  public:
    static constexpr uint32_t no_rank = 0xffffffff;

    void reserve(size_t n) {
        size_t size = 16;
        while (size < 2 * n) size *= 2;
        slots_.assign(size, Slot{});
    }
    Merge find(uint32_t left, uint32_t right) const {
        const uint64_t key = key_of(left, right);
        for (size_t i = mix(key) & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
            if (slots_[i].key == key) return slots_[i].merge;
            if (slots_[i].merge.rank == no_rank) return {no_rank, 0};
        }
    }
    // Insert a merge, unless the pair has one.  Room for it must have been reserved.
    void insert(uint32_t left, uint32_t right, Merge merge) {
        const uint64_t key = key_of(left, right);
        size_t i = mix(key) & (slots_.size() - 1);
        for (; slots_[i].merge.rank != no_rank; i = (i + 1) & (slots_.size() - 1))
            if (slots_[i].key == key) return;
        slots_[i] = {key, merge};
    }

  private:
    struct Slot {
        uint64_t key = ~uint64_t{0};
        Merge merge{no_rank, 0};
    };
    static uint64_t key_of(uint32_t left, uint32_t right) { return static_cast<uint64_t>(left) << 32 | right; }

    std::vector<Slot> slots_ = std::vector<Slot>(16);
};

} // namespace quire::tokenizer
