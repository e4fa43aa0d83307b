#include "core/module_file.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <vector>

#if defined(__linux__)
#include <elf.h>
#endif

#include "core/error.h"
#include "core/paths.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path &path, const std::string &reason) {
    throw LoadError("device", cat("cannot load '", text_of(path), "': ", reason));
}

#if defined(__linux__)
#if defined(__LP64__)
using Header = Elf64_Ehdr;
using Segment = Elf64_Phdr;
constexpr unsigned char word_class = ELFCLASS64;
#else
using Header = Elf32_Ehdr;
using Segment = Elf32_Phdr;
constexpr unsigned char word_class = ELFCLASS32;
#endif
#if defined(__x86_64__)
constexpr int machine = EM_X86_64;
#elif defined(__aarch64__)
constexpr int machine = EM_AARCH64;
#else
constexpr int machine = EM_NONE; // unknown, so the loader decides
#endif

// Reads parts of a file and refuses it if one is missing.
class ModuleFile {
  public:
    ModuleFile(const fs::path &path, uint64_t size_bytes)
        : path_(path), size_bytes_(size_bytes), in_(path, std::ios::binary) {
        if (!in_) refuse(path_, "not readable");
    }

    void expect_inside(uint64_t begin, uint64_t n_bytes) const {
        if (n_bytes > size_bytes_ || begin > size_bytes_ - n_bytes)
            refuse(path_, cat("truncated: ", size_bytes_, " bytes instead of at least ", begin + n_bytes));
    }

    void read(uint64_t begin, void *target, size_t n_bytes) {
        expect_inside(begin, n_bytes);
        in_.seekg(static_cast<std::streamoff>(begin));
        if (!in_.read(static_cast<char *>(target), static_cast<std::streamsize>(n_bytes)))
            refuse(path_, "not readable");
    }

  private:
    const fs::path &path_;
    uint64_t size_bytes_;
    std::ifstream in_;
};

Header checked_header(ModuleFile &file, const fs::path &path, uint64_t size_bytes) {
    Header header{};
    unsigned char magic[SELFMAG] = {};
    file.read(0, magic, std::min<uint64_t>(size_bytes, SELFMAG));
    if (std::memcmp(magic, ELFMAG, SELFMAG) != 0) refuse(path, "not a shared library");
    file.read(0, &header, sizeof header);
    if (header.e_ident[EI_CLASS] != word_class || header.e_type != ET_DYN || header.e_phentsize != sizeof(Segment) ||
        (machine != EM_NONE && header.e_machine != machine))
        refuse(path, "not a shared library for this machine");
    // Linkers write the section table last, so this also checks that the file is complete.
    file.expect_inside(header.e_shoff, uint64_t{header.e_shentsize} * header.e_shnum);
    return header;
}

// The text of Quire's note in a segment of notes; "" if it has none.
std::string note_in(const std::vector<char> &bytes) {
    auto padded = [](uint64_t n) { return (n + 3) & ~uint64_t{3}; };
    for (size_t at = 0; bytes.size() - at >= 12;) {
        uint32_t sizes[3];
        std::memcpy(sizes, bytes.data() + at, sizeof sizes);
        const uint64_t text = at + 12 + padded(sizes[0]), next = text + padded(sizes[1]);
        if (next > bytes.size()) break;
        if (sizes[0] == 6 && std::memcmp(bytes.data() + at + 12, "Quire", 6) == 0) {
            const char *begin = bytes.data() + text;
            return {begin, std::find(begin, begin + sizes[1], '\0')};
        }
        at = next;
    }
    return "";
}

std::string read_note(ModuleFile &file, const Header &header) {
    std::vector<Segment> segments(header.e_phnum);
    file.read(header.e_phoff, segments.data(), segments.size() * sizeof(Segment));
    std::string note;
    for (const Segment &segment : segments) {
        file.expect_inside(segment.p_offset, segment.p_filesz);
        if (segment.p_type != PT_NOTE || !note.empty()) continue;
        std::vector<char> bytes(std::min<uint64_t>(segment.p_filesz, 1 << 16));
        file.read(segment.p_offset, bytes.data(), bytes.size());
        note = note_in(bytes);
    }
    return note;
}

void check_contents(const fs::path &path, uint64_t size_bytes) {
    ModuleFile file(path, size_bytes);
    const Header header = checked_header(file, path, size_bytes);
    const std::string note = read_note(file, header);
    if (note.empty()) refuse(path, cat("not built with Quire (", module_version(), ")"));
    if (note != module_version()) refuse(path, cat("from another build: ", note, " instead of ", module_version()));
}
#else
void check_contents(const fs::path &, uint64_t) {}
#endif

} // namespace

std::string module_version() { return QUIRE_MODULE_VERSION; }

void check_module_file(const fs::path &path) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) refuse(path, "not a regular file");
    const uint64_t size_bytes = fs::file_size(path, error);
    if (error) refuse(path, "not readable");
    if (size_bytes == 0) refuse(path, "empty file");
    check_contents(path, size_bytes);
}

} // namespace quire
