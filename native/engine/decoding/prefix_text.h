// A text whose blocks are saved to a file and restored.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/prefix_hash.h"

namespace quire {

// Tokens, and all else that the names of their blocks depend on.
struct PrefixText {
    std::vector<int32_t> tokens;
    PrefixContext context;
    std::vector<MediaName> media;
};

} // namespace quire
