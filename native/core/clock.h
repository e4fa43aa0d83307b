// The clock of the decoder and its drafters.
#pragma once

#include <chrono>

namespace quire {

// Seconds since some beginning; never goes back.
inline double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // namespace quire
