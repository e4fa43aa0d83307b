// The kernels of native/cuda/batch_product.cuh without ggml, for tune_kernels.py, which builds and loads this.  A function
// returns 0, or CUDA's error.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "cuda/intrinsics.cuh"
// The kernels need the functions above.
#include "cuda/batch_launch.cuh"

namespace {

struct Matrix {
    quire::ArrangedType type{};
    int n_in = 0, n_out = 0, n_copies = 0;
    size_t stride = 0;
    char *copies = nullptr, *rounded = nullptr;
    float *x = nullptr, *out = nullptr, *factors = nullptr, *parts = nullptr;
};
constexpr int most_rows = 64;
Matrix matrix;
cudaStream_t stream = nullptr;

#define TRY(call)                                                                                                      \
    if (const cudaError_t error = (call); error != cudaSuccess) return static_cast<int>(error)

template <class T> cudaError_t allocate(T *&to, size_t n) {
    return cudaMalloc(reinterpret_cast<void **>(&to), std::max<size_t>(n, 1) * sizeof(T));
}

// A product with one of the copies.
int multiply(int variant, int n_splits, int n_rows, int copy) {
    quire_cuda::BatchArgs args{};
    args.x = matrix.x;
    args.out = matrix.out;
    args.rounded = matrix.rounded;
    args.row_factors = matrix.factors;
    args.parts = matrix.parts;
    args.n_in = matrix.n_in;
    args.n_out = matrix.n_out;
    args.n_rows = n_rows;
    args.n_splits = n_splits;
    quire_cuda::set_sizes(args, matrix.type, matrix.copies + matrix.stride * static_cast<size_t>(copy));
    cudaError_t failed = cudaSuccess;
    auto launch = [&](auto kernel, int x, int y, int z, int n_threads, int n_bytes) {
        if (failed == cudaSuccess && n_bytes > 48 * 1024)
            failed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes);
        if (failed == cudaSuccess) kernel<<<dim3(x, y, z), n_threads, n_bytes, stream>>>(args);
        if (failed == cudaSuccess) failed = cudaGetLastError();
    };
    quire_cuda::multiply_batch(args, matrix.type, variant, launch);
    return static_cast<int>(failed);
}

} // namespace

// Arranges a matrix and uploads it `n_copies` times; replaces the one before.
extern "C" int batch_open(int type, const void *stored, int n_in, int n_out, int n_copies) {
    if (stream == nullptr) TRY(cudaStreamCreate(&stream));
    for (void *held : {static_cast<void *>(matrix.copies), static_cast<void *>(matrix.rounded),
                       static_cast<void *>(matrix.x), static_cast<void *>(matrix.out),
                       static_cast<void *>(matrix.factors), static_cast<void *>(matrix.parts)})
        TRY(cudaFree(held));
    matrix = {};
    matrix.type = static_cast<quire::ArrangedType>(type);
    matrix.n_in = n_in;
    matrix.n_out = n_out;
    matrix.n_copies = n_copies;
    if (!quire::can_arrange(matrix.type, n_in, n_out)) return -1;
    std::vector<char> arranged(quire::arranged_bytes(matrix.type, n_in, n_out));
    quire::arrange_rows(matrix.type, stored, n_in, n_out, 0, n_out, arranged.data());
    matrix.stride = (arranged.size() + 255) / 256 * 256;
    TRY(allocate(matrix.copies, matrix.stride * static_cast<size_t>(n_copies)));
    TRY(allocate(matrix.rounded, quire_cuda::rounded_bytes(n_in, most_rows)));
    TRY(allocate(matrix.x, static_cast<size_t>(n_in) * most_rows));
    TRY(allocate(matrix.out, static_cast<size_t>(n_out) * most_rows));
    TRY(allocate(matrix.factors, most_rows));
    TRY(allocate(matrix.parts, quire_cuda::batch_parts(n_out, most_rows, quire::most_batch_splits)));
    for (int i = 0; i < n_copies; ++i)
        TRY(cudaMemcpy(matrix.copies + matrix.stride * static_cast<size_t>(i), arranged.data(), arranged.size(),
                       cudaMemcpyHostToDevice));
    return 0;
}

extern "C" int batch_run(int variant, int n_splits, int n_rows, const float *x, float *out) {
    TRY(cudaMemcpy(matrix.x, x, sizeof(float) * static_cast<size_t>(n_rows) * matrix.n_in, cudaMemcpyHostToDevice));
    const size_t n_bytes = sizeof(float) * static_cast<size_t>(n_rows) * matrix.n_out;
    TRY(cudaMemset(matrix.out, 0xFF, n_bytes));
    if (const int failed = multiply(variant, n_splits, n_rows, 0)) return failed;
    TRY(cudaStreamSynchronize(stream));
    TRY(cudaMemcpy(out, matrix.out, n_bytes, cudaMemcpyDeviceToHost));
    return 0;
}

// Microseconds of a product, from a CUDA graph of `n_runs` that takes the copies in turn, so that the weights come from
// memory.
extern "C" int batch_time(int variant, int n_splits, int n_rows, int n_runs, float *microseconds) {
    if (const int failed = multiply(variant, n_splits, n_rows, 0)) return failed; // loads the kernels
    TRY(cudaStreamSynchronize(stream));
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    int failed = 0;
    for (int i = 0; i < n_runs && failed == 0; ++i) failed = multiply(variant, n_splits, n_rows, i % matrix.n_copies);
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
    *microseconds = best * 1000 / static_cast<float>(n_runs);
    TRY(cudaEventDestroy(begin));
    TRY(cudaEventDestroy(end));
    TRY(cudaGraphExecDestroy(ready));
    TRY(cudaGraphDestroy(graph));
    return 0;
}

extern "C" void batch_default(int type, int n_in, int n_out, int *variant, int *n_splits) {
    const quire::BatchPlan plan = quire::default_batch_plan(static_cast<quire::ArrangedType>(type), n_in, n_out);
    *variant = plan.variant;
    *n_splits = plan.n_splits;
}

// The card's name, and the bytes per second that its memory can transfer; empty without a card.
extern "C" const char *batch_device(double *bytes_per_s) {
    static char name[256];
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return "";
    int clock_khz = 0;
    if (cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, 0) != cudaSuccess) clock_khz = 0;
    *bytes_per_s = 2e3 * clock_khz * properties.memoryBusWidth / 8;
    std::snprintf(name, sizeof(name), "%s", properties.name);
    return name;
}
