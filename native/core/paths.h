// Paths as text, which is UTF-8 with us on every system; the standard library takes plain text for the system's own.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace quire {

inline std::filesystem::path path_from(std::string_view text) { return std::u8string(text.begin(), text.end()); }

inline std::string text_of(const std::filesystem::path &path) {
    const std::u8string text = path.u8string();
    return {text.begin(), text.end()};
}

} // namespace quire
