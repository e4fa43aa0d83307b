// A device for tests: a backend of ggml that computes as the CPU does, in
// memory that it says the host cannot see, and counts what a step asks of it.
// A module of its own, which tests compile and load
// (tests/support/counting_device.py).
#include <ggml-backend-impl.h>
#include <ggml-backend.h>
#include <ggml-impl.h>
#include <ggml.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "cuda/batch_product.h"
#include "cuda/cache_heads.h"
#include "cuda/expert_layer.h"
#include "cuda/paged_attention.h"
#include "cuda/prompt_attention.h"
#include "cuda/row_product.h"

namespace {

// In the order of CountingDevice.Counts.
struct Counts {
    int64_t computes,
        launches; // graphs; nodes that a kernel would be started for
    int64_t uploads, upload_bytes;     // host to device
    int64_t downloads, download_bytes; // device to host
    int64_t copies, copied_bytes;      // on the device
    int64_t synchronizations; // calls that wait for the device, transfers that
                            // are not asynchronous included
    int64_t cache_bytes; // rows of the cache, and copies of them, that nodes read
                       // or write
    int64_t largest_buffer_bytes; // in one allocation, since the start
};
Counts counts{};
std::map<std::string, int64_t> launches; // by operation
std::set<std::string> refused; // operations that the device says it lacks
bool has_own = false; // operations of Quire's own, which carry what computes them
bool claims_all = false; // says of all operations that it has them

// The fault to come: at the n-th compute from now, or allocation or upload
// where it is of those.  Armed by a call, or by a file that COUNTING_FAULT
// names, of the words "KIND N", which is taken away: so that a process which is
// started anew is sound.
std::string fault;
int64_t fault_in = 0;

void arm(const char *kind, int64_t n) {
    fault = kind;
    fault_in = n;
}

bool is_due(const char *kind) {
    if (const char *path = std::getenv("COUNTING_FAULT"); path != nullptr) {
        if (std::FILE *file = std::fopen(path, "r"); file != nullptr) {
            char words[32] = "";
            long long n = 0;
            if (std::fscanf(file, "%31s %lld", words, &n) == 2) arm(words, n);
            std::fclose(file);
            std::remove(path);
        }
    }
    return fault == kind && fault_in > 0 && --fault_in == 0;
}

// As a driver's errors come: by a status, an exception, the end of the process,
// or not at all.
ggml_status injected() {
    if (is_due("fail")) return GGML_STATUS_FAILED;
    if (is_due("exhaust")) return GGML_STATUS_ALLOC_FAILED;
    if (is_due("throw")) throw std::runtime_error("the driver says: device lost");
    if (is_due("abort")) GGML_ABORT("the driver says: illegal access");
    if (is_due("hang"))
        for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
    return GGML_STATUS_SUCCESS;
}

// A fault of the device: results of one of ggml's operations, from a
// row on; or, of a graph that has one row of it, where the graph before had
// more rows than that.
struct {
    std::string operation;
    int64_t row = 0;
    bool is_after = false;
    int64_t rows_before = 0;
} wrong;

bool is_view(const ggml_tensor *node) {
    return node->op == GGML_OP_NONE || node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE ||
           node->op == GGML_OP_PERMUTE || node->op == GGML_OP_TRANSPOSE;
}

const ggml_tensor *root(const ggml_tensor *tensor) { return tensor->view_src == nullptr ? tensor : tensor->view_src; }

int64_t bytes_seen(const ggml_tensor *tensor) {
    return ggml_nelements(tensor) / ggml_blck_size(tensor->type) * static_cast<int64_t>(ggml_type_size(tensor->type));
}

// Rows are written to the cache; an operation that only moves its rows makes a copy
// of it.
void count_graph(ggml_cgraph *graph) {
    ++counts.computes;
    std::set<const ggml_tensor *> cached;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor *node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_SET_ROWS && root(node)->op == GGML_OP_NONE) cached.insert(root(node));
        if (quire::CacheHeads params; quire::get_params(node, params)) cached.insert({root(node->src[3]), root(node->src[4])});
    }
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor *node = ggml_graph_node(graph, i);
        if (is_view(node)) continue;
        ++counts.launches;
        ++launches[ggml_op_name(node->op)];
        if (quire::CacheHeads params; node->op == GGML_OP_SET_ROWS || quire::get_params(node, params)) continue;
        if (quire::PagedAttention params; quire::get_params(node, params)) {
            const int32_t *spans = static_cast<const int32_t *>(node->src[4]->data);
            for (int64_t row = 0; row < node->ne[2]; ++row)
                counts.cache_bytes += spans[2 * row + 1] * static_cast<int64_t>(node->src[1]->nb[1] + node->src[2]->nb[1]);
            continue;
        }
        bool reads = false;
        for (const ggml_tensor *source : node->src) {
            if (source == nullptr || !cached.count(root(source))) continue;
            counts.cache_bytes += node->op == GGML_OP_GET_ROWS ? bytes_seen(node) : bytes_seen(source);
            reads = true;
        }
        const bool moves = node->op == GGML_OP_GET_ROWS || node->op == GGML_OP_CONT || node->op == GGML_OP_CPY;
        if (!reads || !moves) continue;
        counts.cache_bytes += bytes_seen(node);
        cached.insert(node);
    }
}

// Two devices, with memory of their own.
constexpr size_t n_devices = 2;
struct DeviceState {
    size_t total = size_t{1} << 34, held = 0, n_buffers = 0;
    int64_t computes = 0; // graphs, since the last reset
};
DeviceState states[n_devices];
size_t number_of(ggml_backend_dev_t device) { return reinterpret_cast<uintptr_t>(device->context); }

// Memory.  What was not written is not a number.
void buffer_free(ggml_backend_buffer_t buffer) {
    states[number_of(buffer->buft->device)].held -= buffer->size;
    --states[number_of(buffer->buft->device)].n_buffers;
    std::free(buffer->context);
}
void *buffer_base(ggml_backend_buffer_t buffer) { return buffer->context; }
char *at(const ggml_tensor *tensor, size_t offset) { return static_cast<char *>(tensor->data) + offset; }

void upload(ggml_tensor *tensor, const void *data, size_t offset, size_t size) {
    if (is_due("upload")) GGML_ABORT("the driver says: no transfer");
    ++counts.uploads;
    counts.upload_bytes += static_cast<int64_t>(size);
    std::memcpy(at(tensor, offset), data, size);
}
void download(const ggml_tensor *tensor, void *data, size_t offset, size_t size) {
    ++counts.downloads;
    counts.download_bytes += static_cast<int64_t>(size);
    std::memcpy(data, at(tensor, offset), size);
}
bool copy(const ggml_tensor *source, ggml_tensor *target) {
    ++counts.copies;
    counts.copied_bytes += static_cast<int64_t>(ggml_nbytes(source));
    std::memmove(target->data, source->data, ggml_nbytes(source));
    return true;
}
void buffer_memset(ggml_backend_buffer_t, ggml_tensor *tensor, uint8_t value, size_t offset, size_t size) {
    std::memset(at(tensor, offset), value, size);
}
void buffer_set(ggml_backend_buffer_t, ggml_tensor *tensor, const void *data, size_t offset, size_t size) {
    ++counts.synchronizations;
    upload(tensor, data, offset, size);
}
void buffer_get(ggml_backend_buffer_t, const ggml_tensor *tensor, void *data, size_t offset, size_t size) {
    ++counts.synchronizations;
    download(tensor, data, offset, size);
}
bool is_ours(const ggml_tensor *tensor) { return root(tensor)->buffer->iface.get_base == buffer_base; }
bool buffer_copy(ggml_backend_buffer_t, const ggml_tensor *source, ggml_tensor *target) {
    if (!is_ours(source)) return false;
    ++counts.synchronizations;
    return copy(source, target);
}
void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) { std::memset(buffer->context, value, buffer->size); }

const char *type_name(ggml_backend_buffer_type_t) { return "Counting"; }
size_t largest = SIZE_MAX; // for a buffer
size_t type_largest(ggml_backend_buffer_type_t) { return largest; }
size_t type_alignment(ggml_backend_buffer_type_t) { return 128; }
bool type_is_host(ggml_backend_buffer_type_t) { return false; }
ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t type, size_t size) {
    if (is_due("allocation")) return nullptr;
    DeviceState &there = states[number_of(type->device)];
    if (there.held + size > there.total) return nullptr;
    void *memory = std::aligned_alloc(128, (size + 127) / 128 * 128);
    if (memory == nullptr) return nullptr;
    there.held += size;
    ++there.n_buffers;
    std::memset(memory, 0xFF, size);
    if (static_cast<int64_t>(size) > counts.largest_buffer_bytes)
        counts.largest_buffer_bytes = static_cast<int64_t>(size);
    ggml_backend_buffer_i functions{};
    functions.free_buffer = buffer_free;
    functions.get_base = buffer_base;
    functions.memset_tensor = buffer_memset;
    functions.set_tensor = buffer_set;
    functions.get_tensor = buffer_get;
    functions.cpy_tensor = buffer_copy;
    functions.clear = buffer_clear;
    return ggml_backend_buffer_init(type, functions, memory, size);
}

// The queue.
ggml_backend_t cpu_of(ggml_backend_t backend) { return static_cast<ggml_backend_t>(backend->context); }
void free_queue(ggml_backend_t backend) {
    ggml_backend_free(cpu_of(backend));
    delete backend;
}
void set_async(ggml_backend_t, ggml_tensor *tensor, const void *data, size_t offset, size_t size) {
    upload(tensor, data, offset, size);
}
void get_async(ggml_backend_t, const ggml_tensor *tensor, void *data, size_t offset, size_t size) {
    download(tensor, data, offset, size);
}
bool copy_async(ggml_backend_t, ggml_backend_t, const ggml_tensor *source, ggml_tensor *target) {
    return is_ours(source) && is_ours(target) && copy(source, target);
}
void synchronize(ggml_backend_t) { ++counts.synchronizations; }
bool is_wrong(const ggml_tensor *node) { return wrong.operation == ggml_op_name(node->op); }
void falsify(ggml_tensor *node, int64_t first_row) {
    if (node->type != GGML_TYPE_F32 || !ggml_is_contiguous(node)) return;
    float *numbers = static_cast<float *>(node->data);
    for (int64_t row = 0; row < ggml_nrows(node); ++row)
        for (int64_t i = 0; row % node->ne[1] >= first_row && i < node->ne[0]; ++i)
            numbers[row * node->ne[0] + i] *= 1.5F;
}
// Node by node, so that others read what is wrong.
ggml_status compute_wrongly(ggml_backend_t cpu, ggml_cgraph *graph) {
    int64_t rows = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i)
        if (const ggml_tensor *node = ggml_graph_node(graph, i); is_wrong(node) && node->ne[1] > rows)
            rows = node->ne[1];
    const bool is_due = !wrong.is_after || (rows == 1 && wrong.rows_before > wrong.row);
    wrong.rows_before = rows;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        ggml_cgraph one = *graph;
        one.nodes += i;
        one.n_nodes = 1;
        one.uid = 0;
        if (const ggml_status status = ggml_backend_graph_compute(cpu, &one); status != GGML_STATUS_SUCCESS)
            return status;
        if (is_due && is_wrong(ggml_graph_node(graph, i)))
            falsify(ggml_graph_node(graph, i), wrong.is_after ? 0 : wrong.row);
    }
    return GGML_STATUS_SUCCESS;
}
// For measurements of the host: a graph runs once, and then leaves its results as
// they are.
bool is_idle(const ggml_cgraph *graph) {
    static const bool wanted = std::getenv("COUNTING_IDLE") != nullptr;
    static std::set<uint64_t> known;
    return wanted && !known.insert(graph->uid).second;
}
ggml_status compute(ggml_backend_t backend, ggml_cgraph *graph) {
    if (is_idle(graph)) return GGML_STATUS_SUCCESS;
    count_graph(graph);
    ++states[number_of(backend->device)].computes;
    const ggml_status status = injected();
    if (status != GGML_STATUS_SUCCESS) return status;
    return wrong.operation.empty() ? ggml_backend_graph_compute(cpu_of(backend), graph)
                                   : compute_wrongly(cpu_of(backend), graph);
}

// The device.
const char *device_name(ggml_backend_dev_t device) { return number_of(device) == 0 ? "Counting0" : "Counting1"; }
const char *device_description(ggml_backend_dev_t) { return "counts what is asked of it"; }
void device_memory(ggml_backend_dev_t device, size_t *free, size_t *total) {
    const DeviceState &there = states[number_of(device)];
    *total = there.total;
    *free = there.total - there.held;
}
const char *name(ggml_backend_t backend) { return device_name(backend->device); }
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }
void device_props(ggml_backend_dev_t device, ggml_backend_dev_props *props) {
    props->name = device_name(device);
    props->description = device_description(device);
    props->type = device_type(device);
    device_memory(device, &props->memory_free, &props->memory_total);
    props->caps.async = props->caps.host_buffer = true;
}
ggml_backend_dev_t cpu_device() { return ggml_backend_reg_dev_get(ggml_backend_reg_by_name("CPU"), 0); }
ggml_backend_t device_init(ggml_backend_dev_t device, const char *) {
    static ggml_guid guid = {0x71, 0x75, 0x69, 0x72, 0x65, 0x2d, 0x63, 0x6f,
                             0x75, 0x6e, 0x74, 0x69, 0x6e, 0x67, 0x2d, 0x31};
    ggml_backend_t cpu = ggml_backend_dev_init(cpu_device(), nullptr);
    auto set_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_reg_by_name("CPU"), "ggml_backend_set_n_threads"));
    set_threads(cpu, 1); // threads of ggml's wait for each other in a loop: on a
                       // busy machine that takes most of the time
    ggml_backend_i functions{};
    functions.get_name = name;
    functions.free = free_queue;
    functions.set_tensor_async = set_async;
    functions.get_tensor_async = get_async;
    functions.cpy_tensor_async = copy_async;
    functions.synchronize = synchronize;
    functions.graph_compute = compute;
    return new ggml_backend{&guid, functions, device, cpu};
}
ggml_backend_buffer_type_t device_buffers(ggml_backend_dev_t device) {
    static ggml_backend_buffer_type types[n_devices];
    ggml_backend_buffer_type &type = types[number_of(device)];
    type = {{type_name, type_alloc, type_alignment, type_largest, nullptr, type_is_host}, device, nullptr};
    return &type;
}
ggml_backend_buffer_type_t device_host_buffers(ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); }
bool device_supports(ggml_backend_dev_t, const ggml_tensor *node) {
    const bool is_custom = node->op == GGML_OP_CUSTOM || node->op == GGML_OP_MAP_CUSTOM1 ||
                           node->op == GGML_OP_MAP_CUSTOM2 || node->op == GGML_OP_MAP_CUSTOM3;
    if (claims_all) return true;
    const bool has = has_own && !refused.count(ggml_op_name(node->op));
    if (quire::PagedAttention params; has && quire::get_params(node, params)) return true;
    if (quire::RowProduct params; has && quire::get_params(node, params)) {
        const std::set<ggml_type> types{GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,
                                        GGML_TYPE_Q6_K, GGML_TYPE_F16,  GGML_TYPE_BF16};
        return types.count(node->src[0]->type) > 0 && node->src[0]->ne[0] % 256 == 0;
    }
    if (quire::BatchProduct params; has && quire::get_params(node, params))
        return node->ne[1] <= quire::BatchProduct::most_rows;
    if (quire::CacheHeads params; has && quire::get_params(node, params)) return true;
    if (quire::PromptAttention params; has && quire::get_params(node, params)) return true;
    if (quire::ExpertLayer params; has && quire::get_params(node, params)) return true;
    return !is_custom && !refused.count(ggml_op_name(node->op)) && ggml_backend_dev_supports_op(cpu_device(), node);
}
bool device_supports_buffers(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    return type->device == device;
}

const char *registry_name(ggml_backend_reg_t) { return "Counting"; }
size_t registry_count(ggml_backend_reg_t) { return n_devices; }
ggml_backend_dev_t registry_device(ggml_backend_reg_t registry, size_t number) {
    auto make = [registry](uintptr_t index) {
        ggml_backend_device made{};
        made.iface.get_name = device_name;
        made.iface.get_description = device_description;
        made.iface.get_memory = device_memory;
        made.iface.get_type = device_type;
        made.iface.get_props = device_props;
        made.iface.init_backend = device_init;
        made.iface.get_buffer_type = device_buffers;
        made.iface.get_host_buffer_type = device_host_buffers;
        made.iface.supports_op = device_supports;
        made.iface.supports_buft = device_supports_buffers;
        made.reg = registry;
        made.context = reinterpret_cast<void *>(index);
        return made;
    };
    static ggml_backend_device devices[n_devices] = {make(0), make(1)};
    return &devices[number];
}

} // namespace

// Modules say which build of Quire they are for (native/core/module_file.h).
struct Note {
    unsigned name_size, text_size, type;
    char name[8], text[64];
};
__attribute__((section(".note.quire"), used, aligned(4))) static const Note note = {6, 64, 1, "Quire",
                                                                                    QUIRE_MODULE_VERSION};

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
    static ggml_backend_reg registry{
        GGML_BACKEND_API_VERSION, {registry_name, registry_count, registry_device, nullptr}, nullptr};
    return &registry;
}

extern "C" __attribute__((visibility("default"))) void counting_arm(const char *kind, int64_t n) { arm(kind, n); }

extern "C" __attribute__((visibility("default"))) void counting_miscompute(const char *operation, int64_t row,
                                                                           int is_after) {
    wrong = {operation, row, is_after != 0, 0};
}

extern "C" __attribute__((visibility("default"))) void counting_reset() {
    const int64_t largest = counts.largest_buffer_bytes;
    counts = {};
    counts.largest_buffer_bytes = largest;
    launches.clear();
    for (DeviceState &there : states) there.computes = 0;
}
extern "C" __attribute__((visibility("default"))) int64_t counting_buffers(int device) {
    return static_cast<int64_t>(states[device].n_buffers);
}
extern "C" __attribute__((visibility("default"))) int64_t counting_held(int device) {
    return static_cast<int64_t>(states[device].held);
}
extern "C" __attribute__((visibility("default"))) int64_t counting_computes(int device) {
    return states[device].computes;
}
extern "C" __attribute__((visibility("default"))) void counting_set_largest(int64_t bytes) {
    largest = bytes > 0 ? static_cast<size_t>(bytes) : SIZE_MAX;
}
extern "C" __attribute__((visibility("default"))) void counting_set_memory(int device, int64_t bytes) {
    states[device].total = static_cast<size_t>(bytes);
}
extern "C" __attribute__((visibility("default"))) void counting_get(int64_t *out) {
    std::memcpy(out, &counts, sizeof(counts));
}
extern "C" __attribute__((visibility("default"))) int64_t counting_launches(const char *operation) {
    const auto found = launches.find(operation);
    return found == launches.end() ? 0 : found->second;
}
extern "C" __attribute__((visibility("default"))) void counting_have_own(int has) { has_own = has != 0; }
extern "C" __attribute__((visibility("default"))) void counting_claim_all(int claims) { claims_all = claims != 0; }
extern "C" __attribute__((visibility("default"))) void counting_refuse(const char *operation, int refuses) {
    refuses ? static_cast<void>(refused.insert(operation)) : static_cast<void>(refused.erase(operation));
}
