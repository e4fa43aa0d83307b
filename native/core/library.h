// Shared libraries loaded at run time.  library_posix.cpp and library_windows.cpp implement this; one of them is
// compiled.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

namespace quire {

// A loaded library, released by the destructor.
class Library {
  public:
    // Load a library and its dependencies, resolving all symbols now and keeping them private to it.
    static Library open(const std::filesystem::path &path);
    // Find a library that is already loaded; is_open() is false if it is not.
    static Library find(const std::filesystem::path &path);

    Library(Library &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Library &operator=(Library &&) = delete;
    ~Library();

    bool is_open() const { return handle_ != nullptr; }
    void *symbol(const char *name) const; // null if it does not export that name

  private:
    explicit Library(void *handle) : handle_(handle) {}
    void *handle_;
};

/** The loader's message for the last Library::open() that failed on this thread; "" if it gives none. */
std::string load_error();
/** The library file that contains a function; empty if the loader does not know. */
std::filesystem::path file_of(const void *function);
/** The prefix of library file names on this system: "lib" or "". */
extern const char *const library_prefix;
/** Set a variable in this process's environment. */
void set_environment(const char *name, const char *value);

} // namespace quire
