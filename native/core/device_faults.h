// What becomes of a device whose driver fails.  It is lost to this process: nothing is asked of it any more, and what it
// holds is not freed, as drivers end the process for that.
#pragma once

#include <string>
#include <utility>

#include "core/device.h"

struct ggml_backend_buffer;
struct ggml_gallocr;

namespace quire {

// The device is lost for this reason: DeviceError.
[[noreturn]] void lose(Device device, const std::string &reason);
bool is_lost(const ggml_backend_device *device);
void require_not_lost(Device device); // DeviceError

// While one is there, ggml's aborts on this thread are exceptions.  On the CPU they are not: there they are bugs.
class DriverCall {
  public:
    explicit DriverCall(Device device);
    ~DriverCall();
    DriverCall(const DriverCall &) = delete;
    DriverCall &operator=(const DriverCall &) = delete;
    [[noreturn]] void failed() const; // in a handler: what was thrown as an error of ours, the device lost if it is not

  private:
    Device device_;
    bool watched_, outer_;
};

// Does what asks a device's driver for something.  Where the driver throws, or ggml would end the process, the device is
// lost: DeviceError.  Our own errors pass, and so do failures of memory.
template <class Work> auto driver_call(Device device, Work &&work) {
    const DriverCall call(device);
    try {
        return std::forward<Work>(work)();
    } catch (...) {
        call.failed();
    }
}

// ggml's abort callback.
void end_or_throw(const char *message);

// Nothing is thrown, and nothing freed of a device that is lost.  Null is nothing.
void free_buffer(ggml_backend_buffer *buffer);
void free_allocator(ggml_gallocr *allocator, Device device);

} // namespace quire
