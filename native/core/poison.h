// With QUIRE_POISON=1 in the environment, for tests: memory that must be written before it is read is filled with the
// bits of NaN, so that reading it too early makes a test's result wrong.
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
