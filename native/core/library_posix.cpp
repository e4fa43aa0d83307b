#ifndef _WIN32

#include <dlfcn.h>

#include <cstdlib>

#include "core/library.h"

namespace quire {

const char *const library_prefix = "lib";

Library Library::open(const std::filesystem::path &path) {
    return Library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
}

Library Library::find(const std::filesystem::path &path) {
    return Library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD));
}

Library::~Library() {
    if (handle_ != nullptr) dlclose(handle_);
}

void *Library::symbol(const char *name) const { return dlsym(handle_, name); }

std::string load_error() {
    const char *reason = dlerror();
    return reason == nullptr ? "" : reason;
}

std::filesystem::path file_of(const void *function) {
    Dl_info info{};
    if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return {};
    return info.dli_fname;
}

void set_environment(const char *name, const char *value) { setenv(name, value, 1); }

} // namespace quire

#endif
