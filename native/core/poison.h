// For tests (QUIRE_POISON=1 in the environment): memory that nobody may read before it is written is filled with bits
// that are not a number in any type, so that every test of an answer is also one of what it was computed from.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace quire {

inline bool poisons() {
    static const bool on = [] {
        const char *asked = std::getenv("QUIRE_POISON");
        return asked != nullptr && std::strcmp(asked, "1") == 0;
    }();
    return on;
}

inline void poison(void *memory, size_t size_bytes) { std::memset(memory, 0xFF, size_bytes); }

} // namespace quire
