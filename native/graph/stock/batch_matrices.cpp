#include "graph/stock/batch_matrices.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <thread>

#include "core/array_room.h"
#include "core/environment.h"
#include "core/error.h"
#include "cuda/expert_layer.h"
#include "graph/stock/own_nodes.h"

namespace quire {
namespace {

constexpr const char *variable = "QUIRE_BATCH_PRODUCTS", *of_experts = "experts:";

std::optional<ArrangedType> arranged_type(DType dtype) {
    switch (dtype) {
    case DType::q4_0: return ArrangedType::q4_0;
    case DType::q8_0: return ArrangedType::q8_0;
    case DType::q4_k: return ArrangedType::q4_k;
    case DType::q5_k: return ArrangedType::q5_k;
    case DType::q6_k: return ArrangedType::q6_k;
    case DType::mxfp4: return ArrangedType::mxfp4;
    case DType::bf16: return ArrangedType::bf16;
    case DType::q4_1: return ArrangedType::q4_1;
    case DType::q5_0: return ArrangedType::q5_0;
    case DType::nvfp4: return ArrangedType::nvfp4;
    default: return std::nullopt;
    }
}

struct Wanted {
    const BatchMatrices::Source *source;
    BatchProduct params;
    int64_t n_matrices; // 1 unless it is a stack
    size_t bytes;
};

// True if the device has a kernel for the largest number of rows.
bool is_supported(const Backend &backend, const BatchProduct &params, size_t bytes) {
    const ggml_init_params memory{ggml_tensor_overhead() * 4, nullptr, true};
    const std::unique_ptr<ggml_context, void (*)(ggml_context *)> context(ggml_init(memory), ggml_free);
    ggml_tensor *matrix = ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, static_cast<int64_t>(bytes));
    ggml_tensor *x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, params.n_in, 2);
    return has_own_node(backend.handle(), batch_product_node(context.get(), matrix, x, nullptr, params));
}

// Threads take whole matrices.
void arrange_stack(const Wanted &wanted, int n_threads, std::vector<uint8_t> &to) {
    const BatchProduct &params = wanted.params;
    const Tensor &stack = wanted.source->parts.front();
    const size_t given_bytes = stack.size_bytes() / static_cast<size_t>(wanted.n_matrices),
                 made_bytes = wanted.bytes / static_cast<size_t>(wanted.n_matrices);
    auto run = [&](int64_t first) {
        for (int64_t i = first; i < wanted.n_matrices; i += n_threads)
            arrange_rows(params.type, stack.data() + static_cast<size_t>(i) * given_bytes, params.n_in, params.n_out, 0,
                         params.n_out, to.data() + static_cast<size_t>(i) * made_bytes);
    };
    std::vector<std::thread> threads;
    for (int64_t i = 1; i < std::min<int64_t>(n_threads, wanted.n_matrices); ++i) threads.emplace_back(run, i);
    run(0);
    for (std::thread &thread : threads) thread.join();
}

// Strips are independent, so threads take whole ones.  Parts that end within a strip are arranged by one thread.
void arrange_parts(const Wanted &wanted, int n_threads, std::vector<uint8_t> &to) {
    const BatchProduct &params = wanted.params;
    int64_t first_row = 0;
    for (const Tensor &part : wanted.source->parts) {
        const int64_t n_rows = part.shape()[0], row_bytes = static_cast<int64_t>(part.size_bytes()) / n_rows;
        const bool is_whole = first_row % arranged_rows == 0;
        const int64_t strips = (n_rows + arranged_rows - 1) / arranged_rows,
                      n_parts = is_whole ? std::min<int64_t>(n_threads, strips) : 1;
        auto run = [&](int64_t i) {
            const int64_t begin = strips * i / n_parts * arranged_rows,
                          end = std::min(n_rows, strips * (i + 1) / n_parts * arranged_rows);
            arrange_rows(params.type, part.data() + begin * row_bytes, params.n_in, params.n_out, first_row + begin,
                         end - begin, to.data());
        };
        std::vector<std::thread> threads;
        for (int64_t i = 1; i < n_parts; ++i) threads.emplace_back(run, i);
        run(0);
        for (std::thread &thread : threads) thread.join();
        first_row += n_rows;
    }
}

} // namespace

std::optional<BatchPlans> BatchPlans::wanted() {
    const char *asked = std::getenv(variable);
    if (asked == nullptr || *asked == '\0' || is_switched_off(variable)) return std::nullopt;
    if (is_switched_on(variable)) return BatchPlans();
    std::ifstream file(asked);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file.is_open() || file.bad())
        throw LoadError(variable, cat("cannot read the table of kernels ", asked, ": expected 0, 1 or a file"));
    return parsed(text);
}

BatchPlans BatchPlans::parsed(const std::string &text) {
    BatchPlans found;
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line)) {
        line = line.substr(0, line.find('#'));
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        std::istringstream words(line);
        std::string name, rest;
        int64_t n_in = 0, n_out = 0;
        BatchPlan plan;
        const bool is_read = static_cast<bool>(words >> name >> n_in >> n_out >> plan.variant >> plan.n_splits);
        const bool is_of_expert = name.starts_with(of_experts);
        if (is_of_expert) name = name.substr(std::string_view(of_experts).size());
        const std::optional<DType> dtype = dtype_from_name(name);
        const std::optional<ArrangedType> type = dtype ? arranged_type(*dtype) : std::nullopt;
        const int n_variants = is_of_expert ? ExpertLayer::n_variants : n_batch_variants,
                  most_splits = is_of_expert ? 1 : most_batch_splits;
        if (!is_read || words >> rest || !type || (is_of_expert && !is_expert_type(*type)) || plan.variant < -1 ||
            plan.variant >= n_variants || plan.n_splits < 1 || plan.n_splits > most_splits)
            throw LoadError(variable,
                            cat("cannot read the line '", line, "': expected type n_in n_out variant n_splits"));
        found.plans_[{*type, n_in, n_out, is_of_expert}] = plan.variant < 0 ? std::nullopt : std::optional(plan);
    }
    return found;
}

std::optional<BatchPlan> BatchPlans::find(ArrangedType type, int64_t n_in, int64_t n_out, bool is_of_expert) const {
    const auto found = plans_.find({type, n_in, n_out, is_of_expert});
    if (found != plans_.end()) return found->second;
    return is_of_expert ? BatchPlan{default_expert_variant(n_out), 1} : default_batch_plan(type, n_in, n_out);
}

void BatchMatrices::arrange(const Backend &backend, const std::vector<Source> &sources) {
    const std::optional<BatchPlans> plans = BatchPlans::wanted();
    if (!plans || backend.is_cpu()) return;
    std::vector<Wanted> wanted;
    std::vector<size_t> sizes_bytes;
    for (const Source &source : sources) {
        const Tensor &first = source.parts.front();
        const std::optional<ArrangedType> type = arranged_type(first.dtype());
        const int64_t n_in = first.shape().back(), n_matrices = source.is_stack() ? first.shape()[0] : 1;
        int64_t n_out = source.is_stack() ? first.shape()[1] : 0;
        for (const Tensor &part : source.parts) n_out += source.is_stack() ? 0 : part.shape()[0];
        if (!type || !can_arrange(*type, n_in, n_out) || (source.is_stack() && !is_expert_type(*type))) continue;
        const std::optional<BatchPlan> plan = plans->find(*type, n_in, n_out, source.is_stack());
        if (!plan) continue;
        BatchProduct params;
        params.type = *type;
        params.n_in = static_cast<int32_t>(n_in);
        params.n_out = static_cast<int32_t>(n_out);
        params.plan = *plan;
        const size_t bytes = arranged_bytes(*type, n_in, n_out) * static_cast<size_t>(n_matrices);
        if (bytes > Buffer::largest_bytes(backend.device()) || !is_supported(backend, params, bytes)) continue;
        wanted.push_back({&source, params, n_matrices, bytes});
        sizes_bytes.push_back(Tensor::needed_bytes(DType::i8, {static_cast<int64_t>(bytes)}, backend.device()));
    }
    if (wanted.empty()) return;
    ArrayRoom room(backend.device(), sizes_bytes, [&](size_t bytes) {
        return backend.measures() ? Buffer::measured(backend.device(), bytes)
                                  : Buffer::allocate(backend.device(), bytes);
    });
    for (const Wanted &each : wanted) {
        const auto [buffer, offset_bytes] = room.next();
        const Tensor made = Tensor::in_buffer(DType::i8, {static_cast<int64_t>(each.bytes)}, buffer, offset_bytes);
        if (!backend.measures()) {
            std::vector<uint8_t> arranged(each.bytes);
            (each.source->is_stack() ? arrange_stack : arrange_parts)(each, std::max(1, backend.n_threads()), arranged);
            made.copy_from_host(arranged.data(), arranged.size());
        }
        arranged_.emplace(each.source->matrix, Arranged{made, each.params});
    }
    size_bytes_ += room.size_bytes();
}

const BatchMatrices::Arranged *BatchMatrices::find(const ggml_tensor *matrix) const {
    const auto found = arranged_.find(matrix);
    return found == arranged_.end() ? nullptr : &found->second;
}

} // namespace quire
