// Conversion of paths from and to text.  Quire's text is UTF-8 on every system; the standard library would read a plain
// string in the system's own encoding.
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
