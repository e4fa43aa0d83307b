// The kernels for cuda/row_product.h, products of one row.  A warp takes rows of the matrix one by one.  Every thread
// block rounds the row of activations to 8 bits in blocks of 32 itself, like ggml, while its first weights are being
// loaded.  With matrices of BF16 and F16, activations stay floats.
//
// A type of matrix has blocks of 256 weights that eight lanes share, `part` 0 to 7, and `loads`: blocks that a lane loads
// before it multiplies.  `place` is where an activation lies in its block, so that neighbouring lanes read neighbouring
// bytes.
#pragma once

#include "cuda/lanes.cuh"

namespace quire_cuda {

constexpr int product_warps = 8, product_blocks = 3, weights_together = 256;

struct ProductArgs {
    const char *matrix, *second; // second may be null
    const float *x, *norm, *added; // the last two may be null
    float *out;
    size_t row_bytes;
    int n_in, n_out, is_normed, gate; // gate: 0 none, 1 SiLU, 2 GELU (tanh)
    float eps;
};

// Shared memory: 8-bit codes, a scale per 32 of them, and a sum per 16, times the scale; or floats.
template <class W> size_t product_shared_bytes(int n_in) {
    return static_cast<size_t>(n_in) * (W::has_floats ? 4.0 : 1 + 4.0 / 32 + 4.0 / 16);
}

struct Activations {
    const char *codes;
    const float *scales, *sums, *floats;
};

// q4_K: two f16; 12 bytes with 6-bit scales and minima of eight groups of 32 weights; then 128 bytes of 4-bit codes,
// where each 32 bytes hold 32 weights in their low halves and the next 32 in their high halves.  Eight lanes share a
// block.
struct Q4K {
    static constexpr int block_bytes = 144, loads = 4;
    static constexpr bool has_floats = false;
    struct Loaded {
        uint4 head, codes;
    };
    __device__ static int place(int i) { return i / 32 % 2 * 128 + i / 64 * 32 + i % 32; }
    __device__ static Loaded load(const char *block, int part) {
        return {load_once(block), load_once(block + 16 + 16 * part)};
    }
    // `first` is the index of the block's first activation.
    __device__ static float dot(const Loaded &w, int part, const Activations &x, int first) {
        const unsigned words[4] = {w.codes.x, w.codes.y, w.codes.z, w.codes.w};
        unsigned low[4], high[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            low[i] = words[i] & 0x0F0F0F0FU;
            high[i] = words[i] >> 4 & 0x0F0F0F0FU;
        }
        return with_scales(w.head, low, high, part, x, first);
    }
    __device__ static float with_scales(const uint4 &head, const unsigned (&codes_low)[4], const unsigned (&codes_high)[4],
                                        int part, const Activations &x, int first) {
        const int pair = part / 2, half = part % 2; // which 64 weights, and which 16 of each 32 of them
        const unsigned shorts[6] = {head.y & 0xFFFFU, head.y >> 16, head.z & 0xFFFFU,
                                    head.z >> 16,     head.w & 0xFFFFU, head.w >> 16};
        unsigned scales, minima; // two numbers of 8 bits each
        if (pair == 0) {
            scales = shorts[0] & 0x3F3FU;
            minima = shorts[2] & 0x3F3FU;
        } else if (pair == 1) {
            scales = shorts[1] & 0x3F3FU;
            minima = shorts[3] & 0x3F3FU;
        } else {
            const unsigned low = pair == 2 ? shorts[4] : shorts[5], high = pair == 2 ? shorts[0] : shorts[1],
                           high_minima = pair == 2 ? shorts[2] : shorts[3];
            scales = (low & 0x0F0FU) | (high & 0xC0C0U) >> 2;
            minima = (low >> 4 & 0x0F0FU) | (high_minima & 0xC0C0U) >> 2;
        }
        const float2 of_block = halves_to_floats(head.x);
        const int at = first + 64 * pair + 16 * half;
        const int4 of_low = *reinterpret_cast<const int4 *>(x.codes + first + 16 * part),
                   of_high = *reinterpret_cast<const int4 *>(x.codes + first + 128 + 16 * part);
        const int x_low[4] = {of_low.x, of_low.y, of_low.z, of_low.w},
                  x_high[4] = {of_high.x, of_high.y, of_high.z, of_high.w};
        int low = 0, high = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            low = __dp4a(static_cast<int>(codes_low[i]), x_low[i], low);
            high = __dp4a(static_cast<int>(codes_high[i]), x_high[i], high);
        }
        const float scaled = static_cast<float>(scales & 0xFFU) * static_cast<float>(low) * x.scales[at / 32] +
                             static_cast<float>(scales >> 8) * static_cast<float>(high) * x.scales[at / 32 + 1];
        const float lifted = static_cast<float>(minima & 0xFFU) * x.sums[at / 16] +
                             static_cast<float>(minima >> 8) * x.sums[at / 16 + 2];
        return of_block.x * scaled - of_block.y * lifted;
    }
};

// q5_K: the head of q4_K; 32 bytes with the fifth bits, bit g of byte i for weight i of group g; then as q4_K.
struct Q5K {
    static constexpr int block_bytes = 176, loads = 2;
    static constexpr bool has_floats = false;
    struct Loaded {
        uint4 head, codes, fifth;
    };
    __device__ static int place(int i) { return Q4K::place(i); }
    __device__ static Loaded load(const char *block, int part) {
        return {load_once(block), load_once(block + 48 + 16 * part), load_once(block + 16 + part % 2 * 16)};
    }
    __device__ static float dot(const Loaded &w, int part, const Activations &x, int first) {
        const unsigned words[4] = {w.codes.x, w.codes.y, w.codes.z, w.codes.w},
                       bits[4] = {w.fifth.x, w.fifth.y, w.fifth.z, w.fifth.w};
        unsigned low[4], high[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned fifths = bits[i] >> (part / 2 * 2); // bits of the lower group, then of the upper
            low[i] = (words[i] & 0x0F0F0F0FU) | (fifths & 0x01010101U) << 4;
            high[i] = (words[i] >> 4 & 0x0F0F0F0FU) | (fifths >> 1 & 0x01010101U) << 4;
        }
        return Q4K::with_scales(w.head, low, high, part, x, first);
    }
};

// q6_K: 128 bytes with the low 4 bits, 64 with the high 2, 16 scales of 8 bits and an f16.  In each half of 128
// weights, byte i < 64 has the low bits of weights i and 64 + i, and bits 2 g and 2 g + 1 of high byte i < 32 belong to
// weight 32 g + i.  Blocks are 2-byte aligned.
struct Q6K {
    static constexpr int block_bytes = 210, loads = 4;
    static constexpr bool has_floats = false;
    struct Loaded {
        unsigned low[4], high[2]; // of 32 weights: twice 16, in low and in high halves
        short scales[2];
        unsigned short scale;
    };
    __device__ static int place(int i) { return i / 32 % 4 * 64 + i / 128 * 32 + i % 32; }
    __device__ static unsigned word(const char *from) {
        const auto *halves = reinterpret_cast<const unsigned short *>(from);
        return halves[0] | static_cast<unsigned>(halves[1]) << 16;
    }
    // Part 0 to 7 selects 128 weights (part / 4), and 8 of 32 bytes, twice.
    __device__ static Loaded load(const char *block, int part) {
        const int side = part / 4, bytes = part % 4 * 8;
        Loaded w{};
        const char *low = block + 64 * side + bytes, *high = block + 128 + 32 * side + bytes;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            w.low[i] = word(low + 4 * i);
            w.low[2 + i] = word(low + 32 + 4 * i);
            w.high[i] = word(high + 4 * i);
        }
        const char *scales = block + 192 + 8 * side + bytes / 16; // scales of the groups at weights 0, 32, 64 and 96
        const auto at = [&](int i) { return static_cast<unsigned char>(scales[2 * i]); };
        w.scales[0] = static_cast<short>(at(0) | at(1) << 8);
        w.scales[1] = static_cast<short>(at(2) | at(3) << 8);
        w.scale = *reinterpret_cast<const unsigned short *>(block + 208);
        return w;
    }
    __device__ static float dot(const Loaded &w, int part, const Activations &x, int first) {
        const int side = part / 4, bytes = part % 4 * 8;
        float total = 0;
#pragma unroll
        for (int group = 0; group < 4; ++group) { // 32 weights each
            const int at = first + 128 * side + 32 * group + bytes;
            const int2 codes = *reinterpret_cast<const int2 *>(x.codes + first + 64 * group + 8 * part);
            const int of_group[2] = {codes.x, codes.y};
            int sum = 0, of_x = 0;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const unsigned low = w.low[group % 2 * 2 + i] >> (group / 2 * 4) & 0x0F0F0F0FU,
                               high = w.high[i] >> (2 * group) & 0x03030303U;
                sum = __dp4a(static_cast<int>(low | high << 4), of_group[i], sum);
                of_x = __dp4a(0x01010101, of_group[i], of_x);
            }
            const auto scale = static_cast<signed char>(w.scales[group / 2] >> (group % 2 * 8));
            total += static_cast<float>(scale) * static_cast<float>(sum - 32 * of_x) * x.scales[at / 32];
        }
        return halves_to_floats(w.scale).x * total;
    }
};

// q8_0: an f16, then 32 codes of 8 bits.  A lane takes one of eight blocks, which are 2-byte aligned.
struct Q8 {
    static constexpr int block_bytes = 8 * 34, loads = 4;
    static constexpr bool has_floats = false;
    struct Loaded {
        unsigned codes[8];
        unsigned short scale;
    };
    __device__ static int place(int i) { return i % 32 / 16 * 128 + i / 32 * 16 + i % 16; }
    __device__ static Loaded load(const char *block, int part) {
        const char *own = block + 34 * part;
        Loaded w{};
        w.scale = *reinterpret_cast<const unsigned short *>(own);
#pragma unroll
        for (int i = 0; i < 8; ++i) w.codes[i] = Q6K::word(own + 2 + 4 * i);
        return w;
    }
    __device__ static float dot(const Loaded &w, int part, const Activations &x, int first) {
        const int4 begin = *reinterpret_cast<const int4 *>(x.codes + first + 16 * part),
                   end = *reinterpret_cast<const int4 *>(x.codes + first + 128 + 16 * part);
        const int codes[8] = {begin.x, begin.y, begin.z, begin.w, end.x, end.y, end.z, end.w};
        int sum = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = __dp4a(static_cast<int>(w.codes[i]), codes[i], sum);
        return halves_to_floats(w.scale).x * static_cast<float>(sum) * x.scales[first / 32 + part];
    }
};

// q4_0: an f16, then 16 bytes with weights i in the low and i + 16 in the high halves.  A lane takes one of eight blocks,
// which are 2-byte aligned.
struct Q4 {
    static constexpr int block_bytes = 8 * 18, loads = 4;
    static constexpr bool has_floats = false;
    struct Loaded {
        unsigned codes[4];
        unsigned short scale;
    };
    __device__ static int place(int i) { return Q8::place(i); }
    __device__ static Loaded load(const char *block, int part) {
        const char *own = block + 18 * part;
        Loaded w{};
        w.scale = *reinterpret_cast<const unsigned short *>(own);
#pragma unroll
        for (int i = 0; i < 4; ++i) w.codes[i] = Q6K::word(own + 2 + 4 * i);
        return w;
    }
    __device__ static float dot(const Loaded &w, int part, const Activations &x, int first) {
        const int4 begin = *reinterpret_cast<const int4 *>(x.codes + first + 16 * part),
                   end = *reinterpret_cast<const int4 *>(x.codes + first + 128 + 16 * part);
        const int low[4] = {begin.x, begin.y, begin.z, begin.w}, high[4] = {end.x, end.y, end.z, end.w};
        int sum = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum = __dp4a(static_cast<int>(w.codes[i] & 0x0F0F0F0FU), low[i], sum);
            sum = __dp4a(static_cast<int>(w.codes[i] >> 4 & 0x0F0F0F0FU), high[i], sum);
        }
        const int at = first / 16 + 2 * part;
        const float lifted = 8.0F * (x.sums[at] + x.sums[at + 1]);
        return halves_to_floats(w.scale).x * (static_cast<float>(sum) * x.scales[first / 32 + part] - lifted);
    }
};

// Numbers of 16 bits.
template <class T> struct Wide {
    static constexpr int block_bytes = 512, loads = 2;
    static constexpr bool has_floats = true;
    struct Loaded {
        uint4 numbers[4]; // 64 weights apart
    };
    __device__ static int place(int i) { return i / 64 * 64 + i % 8 / 4 * 32 + i / 8 % 8 * 4 + i % 4; }
    __device__ static Loaded load(const char *block, int part) {
        Loaded w{};
#pragma unroll
        for (int j = 0; j < 4; ++j) w.numbers[j] = load_once(block + (8 * j + part) * 16);
        return w;
    }
    __device__ static float dot(const Loaded &w, int part, const Activations &x, int first) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float weights[8];
            unpack<T>(w.numbers[j], weights);
            const float *begin = x.floats + first + 64 * j + 4 * part;
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += weights[i] * begin[i / 4 * 32 + i % 4];
        }
        return sum;
    }
};

__device__ inline float activated(float x, int gate) {
    if (gate == 1) return x / (1.0F + expf(-x));
    return 0.5F * x * (1.0F + tanhf(0.79788456F * x * (1.0F + 0.044715F * x * x)));
}

// Norm and round x into shared memory.
template <class W> __device__ inline Activations round_row(const ProductArgs &a, char *shared, float *warp_sums) {
    char *codes = shared;
    auto *floats = reinterpret_cast<float *>(shared);
    auto *scales = reinterpret_cast<float *>(shared + a.n_in), *sums = scales + a.n_in / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float scale = 1;
    if (a.is_normed) {
        float squares = 0;
        for (int i = threadIdx.x * 4; i < a.n_in; i += 128 * product_warps)
            for (int j = 0; j < 4; ++j) squares += a.x[i + j] * a.x[i + j];
        squares = lanes_sum(squares, 1, 32);
        if (lane == 0) warp_sums[warp] = squares;
        __syncthreads();
        float all = 0;
        for (int w = 0; w < product_warps; ++w) all += warp_sums[w];
        scale = 1.0F / sqrtf(all / a.n_in + a.eps);
    }
    // n_in is a multiple of 256, so whole warps leave the loop.
    for (int i = threadIdx.x * 4; i < a.n_in; i += 128 * product_warps) {
        float y[4], largest = 0, sum = 0;
        for (int j = 0; j < 4; ++j) {
            y[j] = a.x[i + j] * scale * (a.norm == nullptr ? 1.0F : a.norm[i + j]);
            largest = fmaxf(largest, fabsf(y[j]));
        }
        const int block = i / weights_together * weights_together, at = block + W::place(i % weights_together);
        if (W::has_floats) {
            for (int j = 0; j < 4; ++j) floats[at + j] = y[j];
            continue;
        }
        largest = lanes_max(largest, 1, 8);
        const float step = largest / 127.0F, inverse = largest > 0 ? 127.0F / largest : 0.0F;
        for (int j = 0; j < 4; ++j) {
            const int code = static_cast<int>(rintf(y[j] * inverse));
            codes[at + j] = static_cast<char>(code);
            sum += static_cast<float>(code);
        }
        sum = lanes_sum(sum, 1, 4);
        if (lane % 8 == 0) scales[i / 32] = step;
        if (lane % 4 == 0) sums[i / 16] = sum * step;
    }
    __syncthreads();
    return {codes, scales, sums, floats};
}

// Grid: any number of blocks; dynamic shared memory.
template <class W> __global__ void __launch_bounds__(32 * product_warps, product_blocks) multiply_row(ProductArgs a) {
    DYNAMIC_SHARED_MEMORY(shared_row);
    __shared__ float warp_sums[product_warps];
    const int lane = threadIdx.x % 32, part = lane % 8, own = lane / 8; // own: which of four blocks at a time
    const int n_blocks = a.n_in / weights_together, step = gridDim.x * product_warps;
    int row = blockIdx.x * product_warps + threadIdx.x / 32;
    auto block_at = [&](const char *matrix, int of_row, int block) {
        return matrix + static_cast<size_t>(of_row) * a.row_bytes + static_cast<size_t>(block) * W::block_bytes;
    };
    typename W::Loaded loaded[W::loads];
    auto fetch = [&](const char *matrix, int of_row, int block) {
#pragma unroll
        for (int i = 0; i < W::loads; ++i)
            if (block + 4 * i < n_blocks) loaded[i] = W::load(block_at(matrix, of_row, block + 4 * i), part);
    };
    if (row < a.n_out) fetch(a.matrix, row, own);
    const Activations x = round_row<W>(a, shared_row, warp_sums);
    for (bool is_first = true; row < a.n_out; row += step, is_first = false) {
        float sums[2] = {0, 0};
        for (int m = 0; m < (a.second == nullptr ? 1 : 2); ++m) {
            const char *matrix = m == 0 ? a.matrix : a.second;
            float sum = 0;
            for (int block = own; block < n_blocks; block += 4 * W::loads) {
                if (!is_first || m > 0 || block > own) fetch(matrix, row, block);
#pragma unroll
                for (int i = 0; i < W::loads; ++i)
                    if (block + 4 * i < n_blocks)
                        sum += W::dot(loaded[i], part, x, (block + 4 * i) * weights_together);
            }
            sums[m] = lanes_sum(sum, 1, 32);
        }
        if (lane == 0) {
            float made = a.second == nullptr ? sums[0] : activated(sums[0], a.gate) * sums[1];
            if (a.added != nullptr) made += a.added[row];
            a.out[row] = made;
        }
    }
}

} // namespace quire_cuda
