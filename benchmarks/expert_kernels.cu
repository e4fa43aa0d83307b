// The kernels of native/cuda/expert_layer.cuh without ggml, for tune_experts.py, which builds and loads this.  A function
// returns 0, or CUDA's error.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "cuda/intrinsics.cuh"
// The kernels need the functions above.
#include "cuda/expert_launch.cuh"

namespace {

struct Held {
    quire::ExpertLayer layer;
    int n_in = 0, n_used = 0, most_tokens = 0;
    char *stacks[3] = {}, *rounded = nullptr;
    float *x = nullptr, *weights = nullptr, *factors = nullptr, *inner = nullptr, *each = nullptr, *out = nullptr;
    int *experts = nullptr, *order = nullptr;
    quire_cuda::Work *works = nullptr;
} held;
constexpr int most_runs = 64;
cudaStream_t stream = nullptr;

#define TRY(call)                                                                                                      \
    if (const cudaError_t error = (call); error != cudaSuccess) return static_cast<int>(error)

template <class T> cudaError_t allocate(T *&to, size_t n) {
    cudaFree(to);
    return cudaMalloc(reinterpret_cast<void **>(&to), std::max<size_t>(n, 1) * sizeof(T));
}

// One layer for some tokens; run i has experts of its own.
int compute(int up_variant, int down_variant, int n_tokens, int i) {
    quire::ExpertLayer layer = held.layer;
    layer.up_variant = static_cast<uint8_t>(up_variant);
    layer.down_variant = static_cast<uint8_t>(down_variant);
    quire_cuda::ExpertRun run{};
    run.x = held.x;
    run.weights = held.weights;
    run.experts = held.experts + static_cast<size_t>(i) * held.most_tokens * held.n_used;
    run.gate = held.stacks[0];
    run.up = held.stacks[1];
    run.down = held.stacks[2];
    run.out = held.out;
    run.n_in = held.n_in;
    run.n_tokens = n_tokens;
    run.n_used = run.experts_step = held.n_used;
    run.rounded = held.rounded;
    run.row_factors = held.factors;
    run.inner = held.inner;
    run.each = held.each;
    run.order = held.order;
    run.works = held.works;
    cudaError_t failed = cudaSuccess;
    quire_cuda::multiply_experts(layer, run, [&](auto kernel, const auto &args, int x, int y, int n_threads, int n_bytes) {
        if (failed == cudaSuccess && n_bytes > 48 * 1024)
            failed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes);
        if (failed == cudaSuccess) kernel<<<dim3(x, y), n_threads, n_bytes, stream>>>(args);
        if (failed == cudaSuccess) failed = cudaGetLastError();
    });
    return static_cast<int>(failed);
}

} // namespace

// Arranges and uploads gates, up and down of `n_given` experts, which all `n_expert` repeat; replaces those before.
extern "C" int experts_open(int up_type, int down_type, const void *const *stored, int n_in, int n_inner, int n_expert,
                            int n_given, int n_used, int most_tokens) {
    using quire::ArrangedType;
    if (stream == nullptr) TRY(cudaStreamCreate(&stream));
    held.layer.up_type = static_cast<uint8_t>(up_type);
    held.layer.down_type = static_cast<uint8_t>(down_type);
    held.layer.n_inner = n_inner;
    held.layer.n_expert = n_expert;
    held.n_in = n_in;
    held.n_used = n_used;
    held.most_tokens = most_tokens;
    for (int i = 0; i < 3; ++i) {
        const auto type = static_cast<ArrangedType>(i < 2 ? up_type : down_type);
        const int in = i < 2 ? n_in : n_inner, out = i < 2 ? n_inner : n_in;
        if (!quire::can_arrange(type, in, out) || !quire::is_expert_type(type)) return -1;
        const size_t stored_bytes = quire::stored_bytes(type, in) * out, n_bytes = quire::arranged_bytes(type, in, out);
        TRY(allocate(held.stacks[i], n_bytes * n_expert));
        std::vector<char> arranged(n_bytes * n_given);
        for (int e = 0; e < n_given; ++e)
            quire::arrange_rows(type, static_cast<const char *>(stored[i]) + stored_bytes * e, in, out, 0, out,
                                arranged.data() + n_bytes * e);
        for (int e = 0; e < n_expert; ++e)
            TRY(cudaMemcpy(held.stacks[i] + n_bytes * e, arranged.data() + n_bytes * (e % n_given), n_bytes,
                           cudaMemcpyHostToDevice));
    }
    const size_t n_choices = static_cast<size_t>(most_tokens) * n_used;
    TRY(allocate(held.rounded, quire_cuda::expert_rounded_bytes(held.layer, n_in, most_tokens, n_used)));
    TRY(allocate(held.x, static_cast<size_t>(most_tokens) * n_in));
    TRY(allocate(held.out, static_cast<size_t>(most_tokens) * n_in));
    TRY(allocate(held.weights, n_choices));
    TRY(allocate(held.factors, n_choices));
    TRY(allocate(held.inner, n_choices * n_inner));
    TRY(allocate(held.each, n_choices * n_in));
    TRY(allocate(held.order, n_choices));
    TRY(allocate(held.works, n_choices + n_expert));
    TRY(allocate(held.experts, n_choices * most_runs));
    return 0;
}

// experts: [64][most_tokens][n_used], for as many runs; the first is the one of experts_run.
extern "C" int experts_inputs(const float *x, const int *experts, const float *weights) {
    const size_t n_choices = static_cast<size_t>(held.most_tokens) * held.n_used;
    TRY(cudaMemcpy(held.x, x, sizeof(float) * held.most_tokens * held.n_in, cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(held.weights, weights, sizeof(float) * n_choices, cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(held.experts, experts, sizeof(int) * n_choices * most_runs, cudaMemcpyHostToDevice));
    return 0;
}

extern "C" int experts_run(int up_variant, int down_variant, int n_tokens, float *out) {
    const size_t n_bytes = sizeof(float) * static_cast<size_t>(n_tokens) * held.n_in;
    TRY(cudaMemset(held.out, 0xFF, n_bytes));
    if (const int failed = compute(up_variant, down_variant, n_tokens, 0)) return failed;
    TRY(cudaStreamSynchronize(stream));
    TRY(cudaMemcpy(out, held.out, n_bytes, cudaMemcpyDeviceToHost));
    return 0;
}

// Microseconds of a layer, from a CUDA graph of 64 runs with different experts.
extern "C" int experts_time(int up_variant, int down_variant, int n_tokens, float *microseconds) {
    if (const int failed = compute(up_variant, down_variant, n_tokens, 0)) return failed; // loads the kernels
    TRY(cudaStreamSynchronize(stream));
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    int failed = 0;
    for (int i = 0; i < most_runs && failed == 0; ++i) failed = compute(up_variant, down_variant, n_tokens, i);
    cudaGraph_t graph{};
    TRY(cudaStreamEndCapture(stream, &graph));
    if (failed != 0) return failed;
    cudaGraphExec_t ready{};
    TRY(cudaGraphInstantiate(&ready, graph, 0));
    cudaEvent_t begin{}, end{};
    TRY(cudaEventCreate(&begin));
    TRY(cudaEventCreate(&end));
    float best = 0;
    for (int round = 0; round < 4; ++round) { // the first one warms up
        TRY(cudaEventRecord(begin, stream));
        TRY(cudaGraphLaunch(ready, stream));
        TRY(cudaEventRecord(end, stream));
        TRY(cudaEventSynchronize(end));
        float milliseconds = 0;
        TRY(cudaEventElapsedTime(&milliseconds, begin, end));
        if (round == 1 || (round > 1 && milliseconds < best)) best = milliseconds;
    }
    *microseconds = best * 1000 / most_runs;
    TRY(cudaEventDestroy(begin));
    TRY(cudaEventDestroy(end));
    TRY(cudaGraphExecDestroy(ready));
    TRY(cudaGraphDestroy(graph));
    return 0;
}
