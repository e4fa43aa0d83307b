// Environment variables that switch something on ("1") or off ("0").
#pragma once

#include <cstdlib>
#include <cstring>

namespace quire {

inline bool is_switched_on(const char *variable) {
    const char *asked = std::getenv(variable);
    return asked != nullptr && std::strcmp(asked, "1") == 0;
}

inline bool is_switched_off(const char *variable) {
    const char *asked = std::getenv(variable);
    return asked != nullptr && std::strcmp(asked, "0") == 0;
}

} // namespace quire
