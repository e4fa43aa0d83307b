#ifdef _WIN32

#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include <cstdlib>

#include "core/library.h"
#include "core/system.h"

namespace quire {
namespace {

HMODULE as_module(void *handle) { return static_cast<HMODULE>(handle); }

} // namespace

const char *const library_prefix = "";

Library Library::open(const std::filesystem::path &path) {
    // No dialog about missing dependencies; the library's own folder is searched for them.
    DWORD before = 0;
    SetThreadErrorMode(SEM_FAILCRITICALERRORS, &before);
    HMODULE module =
        LoadLibraryExW(path.c_str(), nullptr, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
    const DWORD reason = GetLastError();
    SetThreadErrorMode(before, nullptr);
    SetLastError(reason);
    return Library(module);
}

Library Library::find(const std::filesystem::path &path) {
    HMODULE module = nullptr;
    GetModuleHandleExW(0, path.c_str(), &module);
    return Library(module);
}

Library::~Library() {
    if (handle_ != nullptr) FreeLibrary(as_module(handle_));
}

void *Library::symbol(const char *name) const {
    return reinterpret_cast<void *>(GetProcAddress(as_module(handle_), name));
}

std::string load_error() { return system_error(); }

std::filesystem::path file_of(const void *function) {
    HMODULE module = nullptr;
    constexpr DWORD flags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    if (GetModuleHandleExW(flags, static_cast<LPCWSTR>(function), &module) == 0) return {};
    std::wstring path(MAX_PATH, L'\0');
    for (;;) {
        const DWORD n = GetModuleFileNameW(module, path.data(), static_cast<DWORD>(path.size()));
        if (n < path.size()) return path.substr(0, n);
        path.resize(path.size() * 2); // the path was truncated
    }
}

void set_environment(const char *name, const char *value) { _putenv_s(name, value); }

} // namespace quire

#endif
