// For tests (QUIRE_POISON=1 in the environment): memory that nobody may read before it is written is filled with bits
// that are not a number in any type, so that every test of an answer is also one of what it was computed from.
#pragma once

#include <cstddef>
#include <cstring>

#include "core/environment.h"

namespace quire {

inline bool poisons() {
    static const bool on = is_switched_on("QUIRE_POISON");
    return on;
}

inline void poison(void *memory, size_t size_bytes) { std::memset(memory, 0xFF, size_bytes); }

} // namespace quire
