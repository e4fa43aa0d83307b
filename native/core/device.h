// Devices of ggml's loaded backends.  Backends are modules and are loaded by full path only: the CPU's, which is next
// to this library, when a device is first needed; others on request (quire.hardware).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"

struct ggml_backend;
struct ggml_backend_device;
struct ggml_threadpool;

namespace quire {

enum class DeviceKind { cpu, gpu, integrated_gpu, accelerator };

// A handle to one device, valid for the life of the process.  Copies refer to the same device.
class Device {
  public:
    explicit Device(ggml_backend_device *handle) : handle_(handle) {}
    std::string name() const; // "CPU", "CUDA0"
    std::string description() const; // the vendor's name for it
    std::string backend() const; // "CPU", "CUDA", "Vulkan"
    DeviceKind kind() const;
    size_t alignment_bytes() const; // required for tensors in its memory
    size_t memory_free_bytes() const;
    size_t memory_total_bytes() const;
    // Names of the common ggml operations that the device supports for f32 operands of ordinary shape.
    std::vector<std::string> operations() const;
    // Matrix types the device supports in mul_mat, mul_mat_id, get_rows or set_rows; UnsupportedError for other
    // operations.
    std::vector<DType> dtypes(const std::string &operation) const;
    std::vector<std::string> features() const; // "AVX512_VNNI = 1"
    ggml_backend_device *handle() const { return handle_; }
    bool operator==(const Device &other) const { return handle_ == other.handle_; }

  private:
    ggml_backend_device *handle_;
};

// Load the CPU backend that fits this machine best, once per process; LoadError if none fits.  Every function that
// needs a device calls it.
void load_cpu_backend();
// Load another backend module by its full path.  LoadError if it belongs to another build, does not load, finds no
// device to run on, or if a backend for the same devices is already loaded.
void load_backend(const std::string &path);
std::vector<Device> devices(); // all devices of the loaded backends
// The device called `name`, ignoring case; UnsupportedError lists the available ones.
Device find_device(const std::string &name);

// A function that the loaded CPU module exports; InternalError if it does not.
void *cpu_symbol(const char *name);

// Objects either take memory on their device or are only measured; measured ones cannot run.
enum class Memory { taken, measured };

// A queue of work on a device: one per decoder.
class Backend {
  public:
    // n_threads 0 means one per core of the machine.
    Backend(Device device, int n_threads, Memory memory = Memory::taken);
    Backend(const Backend &) = delete;
    Backend &operator=(const Backend &) = delete;
    Device device() const { return device_; }
    int n_threads() const { return n_threads_; }
    ggml_backend *handle() const { return backend_.get(); }
    bool measures() const { return memory_ == Memory::measured; }
    // ggml's own thread team, started by the first call; null unless this is the CPU.
    ggml_threadpool *team();
    bool is_cpu() const { return device_.kind() == DeviceKind::cpu; }

  private:
    struct FreeBackend {
        void operator()(ggml_backend *) const;
    };
    struct FreeTeam {
        void (*free)(ggml_threadpool *) = nullptr;
        void operator()(ggml_threadpool *team) const { free(team); }
    };
    Device device_;
    int n_threads_;
    Memory memory_;
    std::unique_ptr<ggml_threadpool, FreeTeam> team_; // outlives backend_, which refers to it
    std::unique_ptr<ggml_backend, FreeBackend> backend_;
};

} // namespace quire
