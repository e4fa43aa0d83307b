// The kernels of native/cuda/expert_layer.cuh, called on the CPU: tests/kernels/test_expert_layers.py compiles and loads
// this.  It has the functions of benchmarks/expert_kernels.cu, too.
#include "cuda_emulator.h"

#include "cuda/expert_launch.cuh"

namespace {

struct Held {
    quire::ExpertLayer layer; // types and sizes
    int n_in = 0, n_used = 0, most_tokens = 0;
    std::vector<uint4> stacks[3];
    std::vector<float> x, weights;
    std::vector<int> experts;
} held;

const char *bytes_of(const std::vector<uint4> &of) { return reinterpret_cast<const char *>(of.data()); }

} // namespace

// Arranges gates, up and down of `n_given` experts, as in GGUF, which all `n_expert` repeat.
extern "C" int experts_open(int up_type, int down_type, const void *const *stored, int n_in, int n_inner, int n_expert,
                            int n_given, int n_used, int most_tokens) {
    held.layer.up_type = static_cast<uint8_t>(up_type);
    held.layer.down_type = static_cast<uint8_t>(down_type);
    held.layer.n_inner = n_inner;
    held.layer.n_expert = n_expert;
    held.n_in = n_in;
    held.n_used = n_used;
    held.most_tokens = most_tokens;
    for (int i = 0; i < 3; ++i) {
        const auto type = static_cast<quire::ArrangedType>(i < 2 ? up_type : down_type);
        const int in = i < 2 ? n_in : n_inner, out = i < 2 ? n_inner : n_in;
        if (!quire::can_arrange(type, in, out) || !quire::is_expert_type(type)) return -1;
        const size_t stored_bytes = quire::stored_bytes(type, in) * static_cast<size_t>(out),
                     n_bytes = quire::arranged_bytes(type, in, out);
        held.stacks[i].assign(n_bytes / 16 * static_cast<size_t>(n_expert), {});
        for (int e = 0; e < n_expert; ++e)
            quire::arrange_rows(type, static_cast<const char *>(stored[i]) + stored_bytes * (e % n_given), in, out, 0, out,
                                reinterpret_cast<char *>(held.stacks[i].data()) + n_bytes * e);
    }
    return 0;
}

// `layer`: unit and variants; the rest comes from experts_open.  `biases`: each may be null.
extern "C" void cuda_run_experts(const quire::ExpertLayer *given, const float *const *biases, const float *x,
                                 const int *experts, const float *weights, const float *added, float *out, int n_tokens,
                                 int experts_step, int order) {
    quire::ExpertLayer layer = *given;
    layer.up_type = held.layer.up_type;
    layer.down_type = held.layer.down_type;
    layer.n_inner = held.layer.n_inner;
    layer.n_expert = held.layer.n_expert;
    const auto n_choices = static_cast<size_t>(n_tokens) * static_cast<size_t>(held.n_used);
    // Exactly as large as on a card, and NaN where nothing was written.
    std::vector<uint4> rounded(quire_cuda::expert_rounded_bytes(layer, held.n_in, n_tokens, held.n_used) / 16,
                               {~0U, ~0U, ~0U, ~0U});
    std::vector<float> factors(n_choices, NAN), inner(n_choices * static_cast<size_t>(layer.n_inner), NAN),
        each(n_choices * static_cast<size_t>(held.n_in), NAN);
    std::vector<int> sorted(n_choices, -1);
    std::vector<quire_cuda::Work> works(
        static_cast<size_t>(quire_cuda::expert_works(static_cast<int>(n_choices), layer.n_expert)), {-1, -1, -1});
    quire_cuda::ExpertRun run{};
    run.x = x;
    run.weights = weights;
    run.added = added;
    run.experts = experts;
    run.gate = bytes_of(held.stacks[0]);
    run.up = bytes_of(held.stacks[1]);
    run.down = bytes_of(held.stacks[2]);
    run.gate_bias = biases[0];
    run.up_bias = biases[1];
    run.down_bias = biases[2];
    run.out = out;
    run.n_in = held.n_in;
    run.n_tokens = n_tokens;
    run.n_used = held.n_used;
    run.experts_step = experts_step;
    run.rounded = reinterpret_cast<char *>(rounded.data());
    run.row_factors = factors.data();
    run.inner = inner.data();
    run.each = each.data();
    run.order = sorted.data();
    run.works = works.data();
    quire_cuda::multiply_experts(
        layer, run, [&](auto kernel, const auto &args, int x_blocks, int y_blocks, int n_threads, int) {
            emulator::launch({static_cast<unsigned>(x_blocks), static_cast<unsigned>(y_blocks)}, n_threads,
                             static_cast<emulator::Order>(order), [&] { kernel(args); });
        });
}

extern "C" int experts_inputs(const float *x, const int *experts, const float *weights) {
    const auto n_tokens = static_cast<size_t>(held.most_tokens), n_choices = n_tokens * static_cast<size_t>(held.n_used);
    held.x.assign(x, x + n_tokens * static_cast<size_t>(held.n_in));
    held.experts.assign(experts, experts + n_choices);
    held.weights.assign(weights, weights + n_choices);
    return 0;
}

extern "C" int experts_run(int up_variant, int down_variant, int n_tokens, float *out) {
    quire::ExpertLayer layer;
    layer.up_variant = static_cast<uint8_t>(up_variant);
    layer.down_variant = static_cast<uint8_t>(down_variant);
    const float *biases[3] = {};
    cuda_run_experts(&layer, biases, held.x.data(), held.experts.data(), held.weights.data(), nullptr, out, n_tokens,
                     held.n_used, 0);
    return 0;
}

// Nothing is timed: less for higher variants.
extern "C" int experts_time(int up_variant, int down_variant, int n_tokens, float *microseconds) {
    *microseconds = static_cast<float>(n_tokens * (4 - 2 * up_variant - down_variant));
    return 0;
}
