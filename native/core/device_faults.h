// Handling of devices whose driver fails.  Such a device is lost to this process: it is not used again, and its memory
// is not freed, because drivers abort the process if that is tried.
#pragma once

#include <string>
#include <utility>

#include "core/device.h"

struct ggml_backend_buffer;
struct ggml_gallocr;

namespace quire {

// Mark the device as lost and throw DeviceError with the first reason it was lost for.
[[noreturn]] void lose(Device device, const std::string &reason);
bool is_lost(const ggml_backend_device *device);
void require_not_lost(Device device); // throws DeviceError if it is

// While one exists, ggml's aborts on this thread become exceptions.  Aborts on the CPU stay aborts, as they are bugs.
class DriverCall {
  public:
    explicit DriverCall(Device device);
    ~DriverCall();
    DriverCall(const DriverCall &) = delete;
    DriverCall &operator=(const DriverCall &) = delete;
    // Called in a catch block: rethrows errors of Quire, running out of memory and bugs; any other exception loses the
    // device.
    [[noreturn]] void failed() const;

  private:
    Device device_;
    bool watched_, outer_;
};

// Run `work`, which calls a device's driver.  If the driver throws or ggml would abort the process, the device is lost:
// DeviceError.  Errors of Quire and std::bad_alloc are passed on.
template <class Work> auto driver_call(Device device, Work &&work) {
    const DriverCall call(device);
    try {
        return std::forward<Work>(work)();
    } catch (...) {
        call.failed();
    }
}

// The abort callback for ggml.
void end_or_throw(const char *message);

// Free without throwing; a no-op for null and for memory of a lost device.
void free_buffer(ggml_backend_buffer *buffer);
void free_allocator(ggml_gallocr *allocator, Device device);

} // namespace quire
