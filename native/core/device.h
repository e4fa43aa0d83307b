// Devices that ggml's loaded backends offer.  Backends are modules, loaded by full path only: the CPU's, which lies beside
// this library, at the first need of a device; others when somebody asks for them (quire.hardware).
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

// One device.  A light handle: copies refer to the same device, valid for the life of the process.
class Device {
  public:
    explicit Device(ggml_backend_device *handle) : handle_(handle) {}
    std::string name() const; // "CPU", "CUDA0"
    std::string description() const; // the vendor's words
    std::string backend() const; // "CPU", "CUDA", "Vulkan"
    DeviceKind kind() const;
    size_t alignment_bytes() const; // of tensors in its memory
    size_t memory_free_bytes() const;
    size_t memory_total_bytes() const;
    // Names of ggml operations that the device supports for f32 operands of ordinary shape.
    std::vector<std::string> operations() const;
    // Types of the matrix with which it does one of mul_mat, mul_mat_id, get_rows, set_rows; UnsupportedError for others.
    std::vector<DType> dtypes(const std::string &operation) const;
    std::vector<std::string> features() const; // "AVX512_VNNI = 1"
    ggml_backend_device *handle() const { return handle_; }
    bool operator==(const Device &other) const { return handle_ == other.handle_; }

  private:
    ggml_backend_device *handle_;
};

// Load the CPU's backend, once; LoadError where none fits.  All that needs a device calls it.
void load_cpu_backend();
// Load one more backend module by its full path.  LoadError if it is none of this build, does not load, finds nothing to
// run on, or if there is one for the same devices already.
void load_backend(const std::string &path);
std::vector<Device> devices(); // of the backends that are loaded
// The device called `name`, case ignored; UnsupportedError lists what there is.
Device find_device(const std::string &name);

// A function that the loaded CPU module exports; InternalError if it does not.
void *cpu_symbol(const char *name);

// Whether what is made for a device takes memory there, or is only measured; then it cannot run.
enum class Memory { taken, measured };

// A queue of work on a device: one per decoder.
class Backend {
  public:
    // n_threads 0: as many as the machine has cores.
    Backend(Device device, int n_threads, Memory memory = Memory::taken);
    Backend(const Backend &) = delete;
    Backend &operator=(const Backend &) = delete;
    Device device() const { return device_; }
    int n_threads() const { return n_threads_; }
    ggml_backend *handle() const { return backend_.get(); }
    bool measures() const { return memory_ == Memory::measured; }
    // ggml's own thread team, of the CPU only; it starts with the first call.
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
