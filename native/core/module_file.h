// A backend module's file, looked at without running any of it.
#pragma once

#include <filesystem>
#include <string>

namespace quire {

// What the modules of this build say of themselves: "ggml 0.25.3 832db0699007".
std::string module_version();

// LoadError unless the file is a whole library for this machine whose note names this build.  The system's loader maps
// a file as its headers have it, and a process that reads what a cut file lacks gets SIGBUS.  Where libraries are not in
// the ELF format, only that it is a file that is not empty.
void check_module_file(const std::filesystem::path &path);

} // namespace quire
