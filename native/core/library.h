// Libraries that are loaded while the program runs, each system's loader in a source of its own: library_posix.cpp and
// library_windows.cpp, one of which is compiled.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

namespace quire {

// A loaded library, given back when this ends.
class Library {
  public:
    // With all that it needs, for nobody else to see.
    static Library open(const std::filesystem::path &path);
    // One that is loaded already; not open: it is not.
    static Library find(const std::filesystem::path &path);

    Library(Library &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Library &operator=(Library &&) = delete;
    ~Library();

    bool is_open() const { return handle_ != nullptr; }
    void *symbol(const char *name) const; // null: it has none of that name

  private:
    explicit Library(void *handle) : handle_(handle) {}
    void *handle_;
};

/** Why the last Library::open() on this thread failed, in the loader's words; "" where it does not tell. */
std::string load_error();
/** The file with the code of a function; empty where the loader does not tell. */
std::filesystem::path file_of(const void *function);
/** How names of libraries begin on this system. */
extern const char *const library_prefix;
/** Of this process, for what reads its environment later. */
void set_environment(const char *name, const char *value);

} // namespace quire
