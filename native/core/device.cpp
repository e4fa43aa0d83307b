#include "core/device.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <mutex>
#include <thread>

#include "core/device_faults.h"
#include "core/error.h"
#include "core/library.h"
#include "core/module_file.h"
#include "core/paths.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}

// The folder that libggml was loaded from; the backend modules are in it.
fs::path library_folder() {
    const fs::path file = file_of(reinterpret_cast<const void *>(&ggml_backend_load));
    if (file.empty()) {
        throw InternalError("device", "cannot find the file that libggml was loaded from");
    }
    return fs::canonical(file).parent_path();
}

// ggml's score of a CPU module for this machine; 0 if it needs instructions that the processor lacks.
int module_score(const fs::path &path) {
    const Library module = Library::open(path);
    if (!module.is_open()) return 0;
    auto *score = reinterpret_cast<int (*)()>(module.symbol("ggml_backend_score"));
    return score == nullptr ? 1 : score();
}

// The path of the CPU module in use.
fs::path &cpu_module() {
    static fs::path path;
    return path;
}

void quiet(ggml_log_level, const char *, void *) {}

template <class Function> Function cpu_function(const char *name) {
    ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
    void *found = cpu == nullptr ? nullptr : ggml_backend_reg_get_proc_address(cpu, name);
    if (found == nullptr) throw InternalError("device", cat("the CPU backend has no function ", name));
    return reinterpret_cast<Function>(found);
}

} // namespace

void load_backend(const std::string &path) {
    const fs::path file = path_from(path);
    if (!file.is_absolute()) {
        throw LoadError("device", cat("not a full path to a backend module: '", path, "'"));
    }
    check_module_file(file);
    auto refuse = [&](const std::string &reason) {
        throw LoadError("device", cat("cannot load '", path, "': ", reason));
    };
    const Library module = Library::open(file); // ggml's registry opens it again
    if (!module.is_open()) {
        const std::string reason = load_error();
        refuse(reason.empty() ? "the system's loader rejects it" : reason);
    }
    auto *start = reinterpret_cast<ggml_backend_reg_t (*)()>(module.symbol("ggml_backend_init"));
    if (start == nullptr) refuse("it does not export ggml_backend_init");
    ggml_backend_reg_t reg = nullptr;
    try {
        reg = start();
    } catch (const std::exception &error) {
        refuse(error.what());
    }
    if (reg == nullptr) refuse("it found no device to run on");
    if (ggml_backend_reg_by_name(ggml_backend_reg_name(reg)) != nullptr)
        refuse(cat("a module for ", ggml_backend_reg_name(reg), " is already loaded"));
    if (ggml_backend_load(path.c_str()) == nullptr) refuse(cat("it was not built for ggml ", ggml_version()));
}

void load_cpu_backend() {
    static std::once_flag once;
    std::call_once(once, [] {
        ggml_log_set(quiet, nullptr);
        ggml_set_abort_callback(end_or_throw);
        // ggml's tiled products make a row's bits depend on the number of rows in the batch, so they are switched off.
        // ggml reads the variable at the first product.
        set_environment("GGML_CPU_TILED_MM", "0");
        fs::path best_cpu;
        int best_score = 0;
        std::string refused;
        const std::string prefix = cat(library_prefix, "ggml-cpu");
        for (const auto &entry : fs::directory_iterator(library_folder())) {
            if (!text_of(entry.path().filename()).starts_with(prefix)) continue;
            try {
                check_module_file(entry.path());
            } catch (const LoadError &error) {
                refused += cat("; ", error.what());
                continue;
            }
            if (int score = module_score(entry.path()); score > best_score) {
                best_score = score;
                best_cpu = entry.path();
            }
        }
        if (best_cpu.empty()) {
            throw LoadError("device",
                            cat("no CPU backend for this machine in '", text_of(library_folder()), "'", refused));
        }
        load_backend(text_of(best_cpu));
        cpu_module() = best_cpu;
    });
}

void *cpu_symbol(const char *name) {
    load_cpu_backend();
    const Library module = Library::find(cpu_module()); // ggml's registry keeps it loaded
    void *symbol = module.is_open() ? module.symbol(name) : nullptr;
    if (symbol == nullptr) throw InternalError("device", cat("the CPU backend does not export ", name));
    return symbol;
}

std::vector<Device> devices() {
    load_cpu_backend();
    std::vector<Device> found;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) found.emplace_back(ggml_backend_dev_get(i));
    return found;
}

Device find_device(const std::string &wanted) {
    std::string names;
    for (const Device &device : devices()) {
        if (lower(device.name()) == lower(wanted)) return device;
        names += (names.empty() ? "" : ", ") + device.name();
    }
    throw UnsupportedError("device", cat("no such device: '", wanted, "' (available: ", names, ")"));
}

std::string Device::name() const { return ggml_backend_dev_name(handle_); }
std::string Device::description() const { return ggml_backend_dev_description(handle_); }

std::string Device::backend() const { return ggml_backend_reg_name(ggml_backend_dev_backend_reg(handle_)); }
size_t Device::alignment_bytes() const {
    return ggml_backend_buft_get_alignment(ggml_backend_dev_buffer_type(handle_));
}

DeviceKind Device::kind() const {
    switch (ggml_backend_dev_type(handle_)) {
    case GGML_BACKEND_DEVICE_TYPE_CPU: return DeviceKind::cpu;
    case GGML_BACKEND_DEVICE_TYPE_GPU: return DeviceKind::gpu;
    case GGML_BACKEND_DEVICE_TYPE_IGPU: return DeviceKind::integrated_gpu;
    default: return DeviceKind::accelerator;
    }
}

size_t Device::memory_free_bytes() const {
    size_t free = 0, total = 0;
    ggml_backend_dev_memory(handle_, &free, &total);
    return free;
}

size_t Device::memory_total_bytes() const {
    size_t free = 0, total = 0;
    ggml_backend_dev_memory(handle_, &free, &total);
    return total;
}

std::vector<std::string> Device::operations() const {
    ggml_init_params params{ggml_tensor_overhead() * 64, nullptr, true};
    std::unique_ptr<ggml_context, void (*)(ggml_context *)> owner(ggml_init(params), ggml_free);
    ggml_context *ctx = owner.get();
    ggml_tensor *x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 64, 4, 8);
    ggml_tensor *row = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 64);
    ggml_tensor *matrix = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, 64, 32);
    ggml_tensor *experts = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, 64, 32, 4);
    ggml_tensor *ids = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 8);
    ggml_tensor *chosen = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 2, 8);
    ggml_tensor *slots = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, 8);
    ggml_tensor *rows = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 8);
    ggml_tensor *one_expert = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 64, 1, 8);
    ggml_tensor *nodes[] = {
        ggml_get_rows(ctx, matrix, ids),
        ggml_set_rows(ctx, matrix, rows, slots),
        ggml_mul_mat(ctx, matrix, rows),
        ggml_mul_mat_id(ctx, experts, one_expert, chosen),
        ggml_rms_norm(ctx, x, 1e-6F),
        ggml_norm(ctx, x, 1e-6F),
        ggml_add(ctx, rows, row),
        ggml_mul(ctx, rows, row),
        ggml_scale(ctx, x, 2.0F),
        ggml_silu(ctx, x),
        ggml_tanh(ctx, x),
        ggml_swiglu_split(ctx, rows, rows),
        ggml_soft_max(ctx, x),
        ggml_argsort(ctx, rows, GGML_SORT_ORDER_DESC),
        ggml_rope_ext(ctx, x, ids, nullptr, 64, GGML_ROPE_TYPE_NEOX, 0, 1e4F, 1, 0, 1, 32, 1),
        ggml_sum_rows(ctx, x),
        ggml_div(ctx, rows, rows),
        ggml_cont(ctx, ggml_permute(ctx, x, 1, 0, 2, 3)),
    };
    std::vector<std::string> names;
    for (ggml_tensor *node : nodes) {
        if (ggml_backend_dev_supports_op(handle_, node)) names.emplace_back(lower(ggml_op_desc(node)));
    }
    return names;
}

std::vector<DType> Device::dtypes(const std::string &operation) const {
    std::vector<DType> found;
    for (DType dtype : all_dtypes()) {
        const bool is_plain = dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
        if (!is_plain && !is_quantized(dtype)) continue; // integer types hold no weights
        ggml_init_params params{ggml_tensor_overhead() * 8, nullptr, true};
        std::unique_ptr<ggml_context, void (*)(ggml_context *)> owner(ggml_init(params), ggml_free);
        ggml_context *ctx = owner.get();
        const auto type = static_cast<ggml_type>(dtype);
        auto rows = [&] { return ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 512, 8); };
        ggml_tensor *matrix = ggml_new_tensor_2d(ctx, type, 512, 32), *node = nullptr;
        if (operation == "mul_mat") {
            node = ggml_mul_mat(ctx, matrix, rows());
        } else if (operation == "mul_mat_id") {
            ggml_tensor *experts = ggml_new_tensor_3d(ctx, type, 512, 32, 4);
            node = ggml_mul_mat_id(ctx, experts, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 512, 1, 8),
                                   ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 2, 8));
        } else if (operation == "get_rows") {
            node = ggml_get_rows(ctx, matrix, ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 8));
        } else if (operation == "set_rows") {
            node = ggml_set_rows(ctx, matrix, rows(), ggml_new_tensor_1d(ctx, GGML_TYPE_I64, 8));
        } else {
            throw UnsupportedError("device", cat("unknown operation '", operation,
                                                 "': expected mul_mat, mul_mat_id, get_rows or set_rows"));
        }
        if (ggml_backend_dev_supports_op(handle_, node)) found.push_back(dtype);
    }
    return found;
}

std::vector<std::string> Device::features() const {
    std::vector<std::string> found;
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(handle_);
    auto get = reinterpret_cast<ggml_backend_get_features_t>(
        ggml_backend_reg_get_proc_address(reg, "ggml_backend_get_features"));
    if (get == nullptr) return found;
    for (const ggml_backend_feature *feature = get(reg); feature->name != nullptr; ++feature) {
        found.push_back(cat(feature->name, " = ", feature->value));
    }
    return found;
}

void Backend::FreeBackend::operator()(ggml_backend *backend) const {
    try {
        driver_call(Device(ggml_backend_get_device(backend)), [backend] { ggml_backend_free(backend); });
    } catch (const std::exception &) { // a destructor cannot report it
    }
}

Backend::Backend(Device device, int n_threads, Memory memory)
    : device_(device), n_threads_(n_threads), memory_(memory), team_(nullptr, FreeTeam{}) {
    if (n_threads < 0 || n_threads > GGML_MAX_N_THREADS) {
        throw ShapeError("device",
                         cat("n_threads ", n_threads, " is out of range: expected 0 to ", GGML_MAX_N_THREADS));
    }
    if (n_threads_ == 0) n_threads_ = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    std::string reason;
    driver_call(device, [&] {
        try {
            backend_.reset(ggml_backend_dev_init(device.handle(), nullptr));
        } catch (const std::exception &error) { // the driver's
            reason = cat(": ", error.what());
        }
    });
    if (!backend_) throw CapacityError("device", cat("cannot start device ", device.name(), reason));
}

ggml_threadpool *Backend::team() {
    if (team_ || !is_cpu()) return team_.get();
    ggml_threadpool_params params;
    ggml_threadpool_params_init(&params, n_threads_);
    params.poll = 1; // spin for about 1 ms between graphs, then sleep, so that idle threads do not burn cores
    auto make = cpu_function<ggml_threadpool_t (*)(ggml_threadpool_params *)>("ggml_threadpool_new");
    FreeTeam free{cpu_function<void (*)(ggml_threadpool *)>("ggml_threadpool_free")};
    team_ = std::unique_ptr<ggml_threadpool, FreeTeam>(make(&params), free);
    if (!team_) throw CapacityError("device", cat("cannot start a team of ", n_threads_, " threads"));
    cpu_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads")(backend_.get(), n_threads_);
    cpu_function<void (*)(ggml_backend_t, ggml_threadpool_t)>("ggml_backend_cpu_set_threadpool")(backend_.get(),
                                                                                                 team_.get());
    return team_.get();
}

} // namespace quire
