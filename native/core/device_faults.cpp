#include "core/device_faults.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>

#include "core/error.h"

namespace quire {
namespace {

struct LostDevices {
    std::mutex mutex;
    std::map<const ggml_backend_device *, std::string> reasons;
};

LostDevices &lost_devices() {
    static LostDevices lost;
    return lost;
}

thread_local bool aborts_are_thrown = false;

// Thrown by ggml's abort callback.  It is not a std::exception, so handlers in ggml and the driver do not catch it.
struct DriverEnded {
    std::string message;
};

[[noreturn]] void throw_fault(Device device, const std::string &reason) {
    throw DeviceError("device",
                      cat("lost ", device.name(), " and everything on it: ", reason,
                          " (restart the process to try it again, check it with 'quire devices --check', or use the "
                          "device 'cpu')"));
}

} // namespace

void lose(Device device, const std::string &reason) {
    LostDevices &lost = lost_devices();
    std::string first;
    {
        const std::lock_guard lock(lost.mutex);
        first = lost.reasons.try_emplace(device.handle(), reason).first->second;
    }
    throw_fault(device, first);
}

bool is_lost(const ggml_backend_device *device) {
    LostDevices &lost = lost_devices();
    const std::lock_guard lock(lost.mutex);
    return lost.reasons.contains(device);
}

void require_not_lost(Device device) {
    if (is_lost(device.handle())) lose(device, "");
}

DriverCall::DriverCall(Device device)
    : device_(device), watched_(device.kind() != DeviceKind::cpu), outer_(aborts_are_thrown) {
    if (!watched_) return;
    require_not_lost(device);
    aborts_are_thrown = true;
}

DriverCall::~DriverCall() { aborts_are_thrown = outer_; }

void DriverCall::failed() const {
    try {
        throw;
    } catch (const DriverEnded &ended) {
        lose(device_, ended.message);
    } catch (const Error &) {
        throw;
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::logic_error &) { // a bug in Quire
        throw;
    } catch (const std::exception &error) {
        if (!watched_) throw;
        lose(device_, error.what());
    }
}

// If it returns, ggml aborts the process, mostly because of a driver's error.  It must not allocate memory then.
void end_or_throw(const char *message) {
    if (aborts_are_thrown) throw DriverEnded{message};
    std::fprintf(stderr,
                 "[device] ggml aborts the process: %s\n"
                 "[device] if the model was on a GPU, check it with 'quire devices --check' or use --device cpu\n",
                 message);
}

void free_buffer(ggml_backend_buffer *buffer) {
    if (buffer == nullptr) return;
    ggml_backend_device *device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer));
    if (device == nullptr) return ggml_backend_buffer_free(buffer);
    try {
        driver_call(Device(device), [buffer] { ggml_backend_buffer_free(buffer); });
    } catch (const std::exception &) { // destructors call this, so nothing is thrown
    }
}

void free_allocator(ggml_gallocr *allocator, Device device) {
    if (allocator == nullptr) return;
    try {
        driver_call(device, [allocator] { ggml_gallocr_free(allocator); });
    } catch (const std::exception &) {
    }
}

} // namespace quire
