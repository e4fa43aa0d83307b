#ifdef _WIN32

#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
// windows.h must come before it.
#include <aclapi.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "core/error.h"
#include "core/system.h"

namespace quire {
namespace {

constexpr size_t most_at_once = size_t{1} << 30; // bytes per call

HANDLE as_handle(intptr_t handle) { return reinterpret_cast<HANDLE>(handle); }

std::wstring wide(std::string_view text) {
    const int n = MultiByteToWideChar(CP_UTF8, 0, text.data(), static_cast<int>(text.size()), nullptr, 0);
    std::wstring result(static_cast<size_t>(n), L'\0');
    MultiByteToWideChar(CP_UTF8, 0, text.data(), static_cast<int>(text.size()), result.data(), n);
    return result;
}

// Convert ticks of 100 ns since 1601 to seconds and nanoseconds since 1970.
std::pair<int64_t, int64_t> unix_time(int64_t ticks) {
    const int64_t since_1970 = ticks - 116444736000000000;
    return {since_1970 / 10000000, since_1970 % 10000000 * 100};
}

uint64_t joined(DWORD high, DWORD low) { return uint64_t{high} << 32 | low; }

// The file offset of one read or write.
OVERLAPPED at(uint64_t offset) {
    OVERLAPPED place{};
    place.Offset = static_cast<DWORD>(offset);
    place.OffsetHigh = static_cast<DWORD>(offset >> 32);
    return place;
}

bool is_this_user(PSID owner) {
    HANDLE token = nullptr;
    if (OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &token) == 0) return false;
    DWORD size = 0;
    GetTokenInformation(token, TokenUser, nullptr, 0, &size);
    std::vector<uint8_t> user(size);
    const bool known = GetTokenInformation(token, TokenUser, user.data(), size, &size) != 0;
    CloseHandle(token);
    return known && EqualSid(owner, reinterpret_cast<TOKEN_USER *>(user.data())->User.Sid) != 0;
}

bool is_trusted_owner(HANDLE file) {
    PSID owner = nullptr;
    PSECURITY_DESCRIPTOR record = nullptr;
    if (GetSecurityInfo(file, SE_FILE_OBJECT, OWNER_SECURITY_INFORMATION, &owner, nullptr, nullptr, nullptr, &record) !=
        ERROR_SUCCESS)
        return false;
    const bool trusted = is_this_user(owner) || IsWellKnownSid(owner, WinBuiltinAdministratorsSid) != 0 ||
                         IsWellKnownSid(owner, WinLocalSystemSid) != 0;
    LocalFree(record);
    return trusted;
}

} // namespace

std::string system_error() {
    const DWORD code = GetLastError();
    char text[256];
    DWORD n = FormatMessageA(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, nullptr, code, 0, text,
                             sizeof text, nullptr);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == '.')) --n;
    return n > 0 ? std::string(text, n) : cat("error ", code);
}

File File::open(const std::string &path) {
    File file;
    file.handle_ = reinterpret_cast<intptr_t>(CreateFileW(wide(path).c_str(), GENERIC_READ,
                                                          FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                                                          nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr));
    return file;
}

File File::create(const std::string &directory, std::string_view prefix, std::string_view suffix, std::string &path) {
    static std::atomic<uint32_t> count{0};
    File file;
    for (int attempt = 0; attempt < 100; ++attempt) {
        path = cat(directory, '/', prefix, GetCurrentProcessId(), '-', GetTickCount64(), '-', count++, suffix);
        file.handle_ = reinterpret_cast<intptr_t>(CreateFileW(wide(path).c_str(), GENERIC_READ | GENERIC_WRITE,
                                                              FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr, CREATE_NEW,
                                                              FILE_ATTRIBUTE_NORMAL, nullptr));
        if (file.is_open() || GetLastError() != ERROR_FILE_EXISTS) break;
    }
    return file;
}

std::optional<FileInfo> File::info() const {
    HANDLE file = as_handle(handle_);
    BY_HANDLE_FILE_INFORMATION info{};
    FILE_BASIC_INFO times{};
    if (GetFileType(file) != FILE_TYPE_DISK || GetFileInformationByHandle(file, &info) == 0 ||
        GetFileInformationByHandleEx(file, FileBasicInfo, &times, sizeof times) == 0 ||
        (info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0)
        return std::nullopt;
    const auto [modified_s, modified_ns] = unix_time(times.LastWriteTime.QuadPart);
    const auto [changed_s, changed_ns] = unix_time(times.ChangeTime.QuadPart);
    return FileInfo{info.dwVolumeSerialNumber,
                    joined(info.nFileIndexHigh, info.nFileIndexLow),
                    joined(info.nFileSizeHigh, info.nFileSizeLow),
                    modified_s,
                    modified_ns,
                    changed_s,
                    changed_ns,
                    is_trusted_owner(file)};
}

int64_t File::read_at(void *to, size_t size_bytes, uint64_t offset) const {
    OVERLAPPED place = at(offset);
    DWORD n = 0;
    if (ReadFile(as_handle(handle_), to, static_cast<DWORD>(std::min(size_bytes, most_at_once)), &n, &place) != 0)
        return n;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : -1;
}

bool File::write_at(const void *from, size_t size_bytes, uint64_t offset) {
    const auto *bytes = static_cast<const uint8_t *>(from);
    while (size_bytes > 0) {
        OVERLAPPED place = at(offset);
        DWORD n = 0;
        if (WriteFile(as_handle(handle_), bytes, static_cast<DWORD>(std::min(size_bytes, most_at_once)), &n, &place) ==
            0)
            return false;
        bytes += n;
        offset += n;
        size_bytes -= n;
    }
    return true;
}

bool File::end_at(uint64_t size_bytes) {
    FILE_END_OF_FILE_INFO end{};
    end.EndOfFile.QuadPart = static_cast<LONGLONG>(size_bytes);
    HANDLE file = as_handle(handle_);
    return SetFileInformationByHandle(file, FileEndOfFileInfo, &end, sizeof end) != 0 && FlushFileBuffers(file) != 0;
}

void File::close() {
    if (is_open()) CloseHandle(as_handle(std::exchange(handle_, none)));
}

bool rename_over(const std::string &from, const std::string &to) {
    return MoveFileExW(wide(from).c_str(), wide(to).c_str(), MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH) != 0;
}

void remove_file(const std::string &path) { DeleteFileW(wide(path).c_str()); }

std::shared_ptr<uint8_t> map_file(const File &file, size_t size_bytes) {
    HANDLE section = CreateFileMappingW(as_handle(file.handle_), nullptr, PAGE_READONLY, 0, 0, nullptr);
    if (section == nullptr) return nullptr;
    void *view = MapViewOfFile(section, FILE_MAP_READ, 0, 0, size_bytes);
    CloseHandle(section); // the view keeps the section alive
    if (view == nullptr) return nullptr;
    return {static_cast<uint8_t *>(view), [](uint8_t *p) { UnmapViewOfFile(p); }};
}

std::shared_ptr<uint8_t> new_pages(size_t size_bytes, bool /*all_written*/) { // Windows always commits memory
    void *pages = VirtualAlloc(nullptr, size_bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    if (pages == nullptr) return nullptr;
    return {static_cast<uint8_t *>(pages), [](uint8_t *p) { VirtualFree(p, 0, MEM_RELEASE); }};
}

void make_read_only(uint8_t *pages, size_t size_bytes) {
    DWORD before = 0;
    VirtualProtect(pages, size_bytes, PAGE_READONLY, &before);
}

bool lock_pages(uint8_t *pages, size_t size_bytes) {
    SIZE_T least = 0, most = 0;
    HANDLE process = GetCurrentProcess();
    // A process may lock slightly less than its minimum working set.
    if (GetProcessWorkingSetSize(process, &least, &most) != 0)
        SetProcessWorkingSetSize(process, least + size_bytes, std::max(most, least) + size_bytes);
    return VirtualLock(pages, size_bytes) != 0;
}

void give_back(const uint8_t *begin, size_t size_bytes) {
    static const uintptr_t page = [] {
        SYSTEM_INFO info;
        GetSystemInfo(&info);
        return static_cast<uintptr_t>(info.dwPageSize);
    }();
    const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(begin) + size_bytes) / page * page;
    if (first >= end) return;
    auto *pages = reinterpret_cast<void *>(first);
    VirtualUnlock(pages, end - first); // if the pages are not locked, this removes them from the working set
    MEMORY_BASIC_INFORMATION kind{};
    const bool is_own = VirtualQuery(pages, &kind, sizeof kind) != 0 && kind.Type == MEM_PRIVATE;
    if (!is_own || kind.Protect != PAGE_READWRITE || kind.RegionSize < end - first) return;
    // Discarded pages might keep their contents; decommitted and committed again, they are zero.
    if (VirtualFree(pages, end - first, MEM_DECOMMIT) != 0)
        VirtualAlloc(pages, end - first, MEM_COMMIT, PAGE_READWRITE);
}

void wait_for_change(const std::atomic<uint32_t> &word, uint32_t seen, double) {
    if (word.load() == seen) Sleep(1);
}
void wake_waiters(const std::atomic<uint32_t> &) {}

WakeSignal::WakeSignal() {
    throw UnsupportedError("decoder", "no file descriptor for events on Windows: call wait() instead");
}
WakeSignal::~WakeSignal() = default;
void WakeSignal::raise() {}
void WakeSignal::lower() {}

} // namespace quire

#endif
