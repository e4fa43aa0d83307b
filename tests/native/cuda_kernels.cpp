// The kernels of native/cuda, called on the CPU: tests/kernels/test_cuda_kernels.py compiles and loads this.
#include "cuda_emulator.h"

#include "cuda/cache_heads.cuh"
#include "cuda/paged_attention.cuh"
#include "cuda/prompt_attention.cuh"
#include "cuda/row_product.cuh"

namespace {

using quire_cuda::PagedArgs;

template <class T, int D, int H> void attend(const PagedArgs &args, int n_rows, emulator::Order order) {
    const int n_parts = (args.n_head / args.n_kv_head + H - 1) / H;
    const auto rows = static_cast<unsigned>(n_rows), heads = static_cast<unsigned>(args.n_head);
    emulator::launch({static_cast<unsigned>(args.n_splits), static_cast<unsigned>(args.n_kv_head * n_parts), rows},
                     32 * quire_cuda::n_warps, order, [&] { quire_cuda::attend_splits<T, D, H>(args); });
    emulator::launch({heads, rows}, D, order, [&] { quire_cuda::add_splits<D>(args); });
}

} // namespace

// 1 where there is no such kernel here.
extern "C" int cuda_attend(const PagedArgs *args, int head_dim, int is_bf16, int heads_together, int n_rows,
                           int order) {
    const auto in = static_cast<emulator::Order>(order);
    if (head_dim == 64 && !is_bf16 && heads_together == 1) return attend<half, 64, 1>(*args, n_rows, in), 0;
    if (head_dim == 64 && is_bf16 && heads_together == 2)
        return attend<quire_cuda::bf16_t, 64, 2>(*args, n_rows, in), 0;
    if (head_dim == 128 && !is_bf16 && heads_together == 4) return attend<half, 128, 4>(*args, n_rows, in), 0;
    if (head_dim == 256 && !is_bf16 && heads_together == 2) return attend<half, 256, 2>(*args, n_rows, in), 0;
    return 1;
}

// 1 where there is no such kernel.
extern "C" int cuda_attend_prompt(const quire_cuda::PromptArgs *args, int head_dim, int is_bf16, int n_streams,
                                  int order) {
    const auto in = static_cast<emulator::Order>(order);
    const auto tiles = static_cast<unsigned>((args->stream_rows + quire_cuda::prompt_rows - 1) / quire_cuda::prompt_rows);
    auto run = [&](auto kernel) {
        emulator::launch({tiles, static_cast<unsigned>(args->n_head), static_cast<unsigned>(n_streams)},
                         quire_cuda::prompt_threads, in, [&] { kernel(*args); });
        return 0;
    };
    if (head_dim == 64 && !is_bf16) return run(quire_cuda::attend_prompt<half, 64>);
    if (head_dim == 128 && is_bf16) return run(quire_cuda::attend_prompt<quire_cuda::bf16_t, 128>);
    if (head_dim == 128 && !is_bf16) return run(quire_cuda::attend_prompt<half, 128>);
    return 1;
}

extern "C" void cuda_cache_heads(const quire_cuda::HeadsArgs *args, int n_rows, int order) {
    const int n_heads = args->n_head + 2 * args->n_kv_head, together = quire_cuda::heads_together;
    emulator::launch({static_cast<unsigned>(n_rows), static_cast<unsigned>((n_heads + together - 1) / together)},
                     32 * together, static_cast<emulator::Order>(order), [&] { quire_cuda::cache_heads(*args); });
}

extern "C" void cuda_multiply_row(const quire_cuda::ProductArgs *args, int type, int n_blocks, int order) {
    emulator::launch({static_cast<unsigned>(n_blocks)}, 32 * quire_cuda::product_warps,
                     static_cast<emulator::Order>(order), [&] {
                         if (type == 0) quire_cuda::multiply_row<quire_cuda::Q4K>(*args);
                         if (type == 1) quire_cuda::multiply_row<quire_cuda::Q6K>(*args);
                         if (type == 2) quire_cuda::multiply_row<quire_cuda::Q8>(*args);
                         if (type == 3) quire_cuda::multiply_row<quire_cuda::Q4>(*args);
                         if (type == 4) quire_cuda::multiply_row<quire_cuda::Q5K>(*args);
                         if (type == 5) quire_cuda::multiply_row<quire_cuda::Wide<half>>(*args);
                         if (type == 6) quire_cuda::multiply_row<quire_cuda::Wide<quire_cuda::bf16_t>>(*args);
                     });
}
