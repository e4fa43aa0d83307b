// A prompt's images and sounds are part of the names of the blocks that hold their rows.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

// One image or sound: rows [begin, end) of a prompt.
struct MediaName {
    int64_t begin, end;
    std::string digest; // a hash of its content and of how it was prepared: different rows have different ones
};

} // namespace quire
