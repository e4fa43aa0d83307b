// Switches in the environment.
#pragma once

#include <cstdlib>
#include <cstring>

namespace quire {

inline bool is_switched_on(const char *variable) {
    const char *asked = std::getenv(variable);
    return asked != nullptr && std::strcmp(asked, "1") == 0;
}

} // namespace quire
