// Checks of a backend module's file that run none of its code.
#pragma once

#include <filesystem>
#include <string>

namespace quire {

// The text of the note in every module of this build: "ggml 0.25.3 832db0699007".
std::string module_version();

// Throw LoadError unless the file is a complete library for this machine whose note names this build.  The system's
// loader trusts the headers, so reading the missing part of a truncated file would end in SIGBUS.  On systems without
// ELF the only check is that the file is not empty.
void check_module_file(const std::filesystem::path &path);

} // namespace quire
