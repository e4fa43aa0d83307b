// The matrix products, row operations, operations with a state and attention of every instruction set against plain loops in double precision:
// a program of its own, for what cannot run Python: other processors (ci/test --neon) and valgrind
// (ci/test --valgrind).
//
//   kernels_check [INSTRUCTION_SET ...]: those named, or all that this processor has; at least one must be there
//
// tests/kernels/test_kernels_matmul.py says what the packed values are; here they are unpack_row's.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "kernels/attention/attention_plan.h"
#include "kernels/matmul/file_blocks.h"
#include "kernels/kernel_set.h"
#include "kernels/matmul/matmul.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/rows/recurrent_kernels.h"
#include "kernels/rows/row_kernels.h"

namespace {

using namespace quire;

int failures = 0;

void expect(bool holds, const std::string &what) {
    if (holds) return;
    ++failures;
    std::printf("FAIL %s\n", what.c_str());
}

// Memory of exactly the size asked for, so that valgrind sees every byte read behind it.
class Memory {
  public:
    explicit Memory(int64_t size_bytes)
        : data_(static_cast<uint8_t *>(::operator new(static_cast<size_t>(size_bytes), std::align_val_t{64}))) {}
    uint8_t *data() const { return data_.get(); }

  private:
    struct Free {
        void operator()(uint8_t *p) const { ::operator delete(p, std::align_val_t{64}); }
    };
    std::unique_ptr<uint8_t, Free> data_;
};

constexpr struct {
    WeightFormat format;
    const char *name;
} formats[] = {
    {WeightFormat::f32, "f32"},     {WeightFormat::f16, "f16"},       {WeightFormat::bf16, "bf16"},
    {WeightFormat::q4_0, "q4_0"},   {WeightFormat::q4_1, "q4_1"},     {WeightFormat::q5_0, "q5_0"},
    {WeightFormat::q5_1, "q5_1"},   {WeightFormat::q8_0, "q8_0"},     {WeightFormat::q2_k, "q2_k"},
    {WeightFormat::q3_k, "q3_k"},   {WeightFormat::q4_k, "q4_k"},     {WeightFormat::q5_k, "q5_k"},
    {WeightFormat::q6_k, "q6_k"},   {WeightFormat::iq4_nl, "iq4_nl"}, {WeightFormat::iq4_xs, "iq4_xs"},
    {WeightFormat::mxfp4, "mxfp4"}, {WeightFormat::nvfp4, "nvfp4"},   {WeightFormat::q2_0, "q2_0"},
    {WeightFormat::codebook_3, "codebook_3"}, {WeightFormat::codebook_4, "codebook_4"},
};

// Bytes at random, but no exponent that is not finite in 16 bits, whichever two of them are a number.
std::vector<uint8_t> noise(size_t n, std::mt19937 &random) {
    std::vector<uint8_t> bytes(n);
    for (uint8_t &byte : bytes) byte = static_cast<uint8_t>(random() & 0xbb);
    return bytes;
}

std::vector<float> normal(size_t n, std::mt19937 &random) {
    std::vector<float> x(n);
    for (float &each : x) {
        each = 0;
        for (int i = 0; i < 4; ++i) each += static_cast<float>(random() % 65536) / 32768.0F - 1.0F;
    }
    return x;
}

struct Case {
    WeightFormat format;
    const char *name;
    int64_t n_out, n_in;
    int n_rows;
};

// To the nearest BF16, ties to even.
float rounded_to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Products of the packed weights, and their bits.
std::vector<float> check_products(const KernelSet &kernels, const Case &c, std::mt19937 random) {
    const int64_t blocks = c.n_in / file_block_columns(c.format);
    PackedWeights weights{c.format, c.n_out, c.n_in, nullptr};
    const std::vector<uint8_t> file = noise(static_cast<size_t>(c.n_out * blocks * file_block_bytes(c.format)), random);
    const Memory packed(weights.size_bytes());
    for (int64_t tile = 0; tile < weights.n_tiles(); ++tile)
        pack_tile(weights, file.data(), tile, packed.data() + tile * weights.tile_bytes());
    weights.data = packed.data();

    const std::vector<float> x = normal(static_cast<size_t>(c.n_rows * c.n_in), random);
    const Memory rounded(packed_matrix(kernels, weights).x_row_bytes() * c.n_rows);
    const QuantizedRows codes{c.n_in, rounded.data()};
    if (!weights.is_float()) round_rows(kernels, packed_matrix(kernels, weights), x.data(), c.n_rows, 0, 1, rounded.data());
    std::vector<float> out(static_cast<size_t>(c.n_rows * c.n_out), std::numeric_limits<float>::quiet_NaN());
    std::atomic<int> next{0};
    packed_matmul(kernels, {weights, weights.is_float() ? x.data() : nullptr, rounded.data(), c.n_rows, out.data()}, next, 1);

    const DotProducts products = kernels.instruction_set().dot_products;
    const bool rounds = c.format == WeightFormat::bf16 &&
                        (products == DotProducts::bf16 || products == DotProducts::tiles ||
                         products == DotProducts::emulated_tiles);
    auto multiplied = [&](float value) { return rounds ? rounded_to_bf16(value) : value; };
    std::vector<float> row(static_cast<size_t>(c.n_in));
    bool holds = true;
    for (int64_t o = 0; o < c.n_out; ++o) {
        unpack_row(weights, o, row.data());
        for (int r = 0; r < c.n_rows; ++r) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < c.n_in; ++k) {
                const double seen = weights.is_float() ? multiplied(x[static_cast<size_t>(r * c.n_in + k)])
                                                       : double{codes.scales(r)[k / 32]} * codes.codes(r)[k];
                sum += seen * row[static_cast<size_t>(k)];
                size += std::fabs(seen * row[static_cast<size_t>(k)]);
            }
            // Minima cancel against what they are taken from, so that their size is not seen in the values.
            holds = holds && std::fabs(out[static_cast<size_t>(r * c.n_out + o)] - sum) <= 2e-5 * size + 1e-30;
        }
    }
    expect(holds, name(kernels.instruction_set()) + " product with " + c.name + ", " + std::to_string(c.n_rows) + " rows");
    return out;
}

void check_rows(const KernelSet &kernels, std::mt19937 random) {
    for (int n : {1, 3, 4, 15, 16, 17, 70}) {
        const std::vector<float> a = normal(static_cast<size_t>(n), random), b = normal(static_cast<size_t>(n), random);
        std::vector<float> out(static_cast<size_t>(n));
        kernels.rows().add(a.data(), b.data(), out.data(), n);
        bool holds = true;
        for (size_t i = 0; i < out.size(); ++i) holds = holds && out[i] == a[i] + b[i];
        kernels.rows().soft_cap(a.data(), 2.0F, out.data(), n);
        for (size_t i = 0; i < out.size(); ++i)
            holds = holds && std::fabs(out[i] - 2 * std::tanh(double{a[i]} / 2)) < 1e-6;
        expect(holds, name(kernels.instruction_set()) + " rows of " + std::to_string(n));
    }
}

double worst_of(const std::vector<float> &found, const std::vector<double> &expected) {
    double worst = 0;
    for (size_t i = 0; i < found.size(); ++i) worst = std::max(worst, std::fabs(found[i] - expected[i]));
    return worst;
}

// Three taps over n channels, after two rows of the past.
void check_conv(const KernelSet &kernels, size_t n, std::mt19937 random) {
    constexpr size_t n_rows = 5, width = 3;
    const std::vector<float> x = normal((n_rows + width - 1) * n, random), taps = normal(width * n, random);
    std::vector<float> out(n_rows * n);
    const auto channels = static_cast<int64_t>(n);
    const float *first = x.data() + (width - 1) * n;
    kernels.recurrent().conv(
        {n_rows, channels, channels, width, false, first, x.data(), taps.data(), nullptr, out.data()});
    std::vector<double> expected(out.size());
    for (size_t i = 0; i < out.size(); ++i)
        for (size_t j = 0; j < width; ++j) expected[i] += double{taps[j * n + i % n]} * x[i + j * n];
    expect(worst_of(out, expected) < 1e-5, name(kernels.instruction_set()) + " convolution of " + std::to_string(n));
}

void check_scan(const KernelSet &kernels, size_t n, std::mt19937 random) {
    constexpr size_t n_rows = 4, n_state = 3;
    const std::vector<float> x = normal(n_rows * n, random), b = normal(n_rows * n_state, random),
                             c = normal(n_rows * n_state, random);
    std::vector<float> dt = normal(n_rows * n, random), a = normal(n * n_state, random), state(n * n_state),
                       out(n_rows * n);
    for (float &each : dt) each = std::fabs(each);
    for (float &each : a) each = -std::fabs(each);
    const auto channels = static_cast<int64_t>(n);
    kernels.recurrent().scan({n_rows, channels, channels, n_state, x.data(), dt.data(), b.data(), c.data(), a.data(),
                              nullptr, state.data(), out.data()});
    std::vector<double> expected(out.size()), h(n * n_state);
    for (size_t i = 0; i < out.size(); ++i) {
        const size_t channel = i % n, row = i / n, block = channel / scan_channels * scan_channels;
        const size_t m = std::min<size_t>(scan_channels, n - block);
        for (size_t s = 0; s < n_state; ++s) {
            double &each = h[channel * n_state + s];
            const double decay = std::exp(double{dt[i]} * a[block * n_state + s * m + channel - block]);
            each = decay * each + double{dt[i]} * x[i] * b[row * n_state + s];
            expected[i] += each * c[row * n_state + s];
        }
    }
    expect(worst_of(out, expected) < 1e-4, name(kernels.instruction_set()) + " scan of " + std::to_string(n));
}

// The gated delta rule of one head.
void check_delta(const KernelSet &kernels, size_t n_value, bool by_key, std::mt19937 random) {
    constexpr size_t n_rows = 4, n_key = 7;
    const std::vector<float> q = normal(n_rows * n_key, random), v = normal(n_rows * n_value, random);
    std::vector<float> k = normal(n_rows * n_key, random), g = normal(n_rows * n_key, random),
                       beta = normal(n_rows, random), state(n_key * n_value), out(n_rows * n_value);
    for (float &each : k) each *= 0.3F;
    for (float &each : g) each = -std::fabs(each);
    OuterRows rows{};
    rows.rule = OuterRule::delta;
    rows.n_rows = n_rows;
    rows.n_key = n_key;
    rows.n_value = rows.out_stride = static_cast<int64_t>(n_value);
    rows.key = {k.data(), n_key};
    rows.query = {q.data(), n_key};
    rows.value = {v.data(), rows.n_value};
    rows.decay = {g.data(), n_key};
    rows.is_decay_by_key = by_key;
    rows.beta = {beta.data(), 1};
    rows.state = state.data();
    rows.out = out.data();
    kernels.recurrent().outer(rows);
    std::vector<double> expected(out.size()), s(n_key * n_value);
    for (size_t r = 0; r < n_rows; ++r) {
        for (size_t j = 0; j < n_value; ++j) {
            double known = 0;
            for (size_t i = 0; i < n_key; ++i) {
                double &each = s[i * n_value + j];
                each *= std::exp(double{g[r * n_key + (by_key ? i : 0)]});
                known += k[r * n_key + i] * each;
            }
            const double u = beta[r] * (v[r * n_value + j] - known);
            for (size_t i = 0; i < n_key; ++i) {
                s[i * n_value + j] += k[r * n_key + i] * u;
                expected[r * n_value + j] += q[r * n_key + i] * s[i * n_value + j];
            }
        }
    }
    expect(worst_of(out, expected) < 1e-4, name(kernels.instruction_set()) + " delta rule of " + std::to_string(n_value));
}

// One sequence of 45 tokens in two blocks, of which the last n_rows (at most 3) are new; two heads read each kv head.
struct CacheCase {
    KvType k, v;
    const char *name;
    double bound;
};
void check_attention(const KernelSet &kernels, const CacheCase &types, int n_rows, std::mt19937 random) {
    constexpr int n_kv = 45, n_head = 4, n_kv_head = 2, dim = 64;
    const AttentionShape shape{n_head, n_kv_head, dim, dim, types.k, types.v, 0.1F};
    const int64_t pool_bytes = int64_t{3} * n_kv_head * dim * kv_block_tokens * 4;
    const Memory k_pool(pool_bytes), v_pool(pool_bytes);
    std::memset(k_pool.data(), 0, static_cast<size_t>(pool_bytes));
    std::memset(v_pool.data(), 0, static_cast<size_t>(pool_bytes));
    const std::vector<float> k = normal(size_t{n_kv} * n_kv_head * dim, random);
    const std::vector<float> v = normal(size_t{n_kv} * n_kv_head * dim, random);
    const auto rows = static_cast<size_t>(n_rows);
    const std::vector<float> q = normal(rows * n_head * dim, random);
    const int32_t tables[] = {2, 1}, row_begin[] = {0, n_rows}, sequence_kv[] = {n_kv}, table_begin[] = {0};
    for (int t = 0; t < n_kv; ++t) {
        const size_t at = static_cast<size_t>(t) * n_kv_head * dim;
        const int32_t slot = tables[t / kv_block_tokens] * kv_block_tokens + t % kv_block_tokens;
        kv_write_rows(kernels, shape, {1, &slot, k.data() + at, v.data() + at}, k_pool.data(), v_pool.data());
    }
    const int32_t slots[] = {74 - 32, 75 - 32, 76 - 32};
    AttentionBatch batch{n_rows, 1, row_begin, sequence_kv, table_begin, tables, slots + 3 - n_rows};
    AttentionPlan plan;
    plan.add(shape);
    plan.begin(kernels, batch, 1);
    batch.plan = &plan;
    std::vector<float> out(rows * n_head * dim);
    std::atomic<int> next{0};
    paged_attention(kernels, shape, batch, {q.data(), k_pool.data(), v_pool.data(), nullptr, {}, out.data(), n_rows}, next);
    double worst = 0;
    for (size_t row = 0; row < rows; ++row) {
        for (size_t head = 0; head < n_head; ++head) {
            double total = 0, sums[dim] = {};
            for (size_t t = 0; t <= n_kv - rows + row; ++t) {
                const size_t kv = (t * n_kv_head + head / 2) * dim;
                double score = 0;
                for (size_t d = 0; d < dim; ++d) score += double{q[(row * n_head + head) * dim + d]} * k[kv + d];
                const double weight = std::exp(score * 0.1);
                total += weight;
                for (size_t d = 0; d < dim; ++d) sums[d] += weight * v[kv + d];
            }
            for (size_t d = 0; d < dim; ++d)
                worst = std::max(worst, std::fabs(out[(row * n_head + head) * dim + d] - sums[d] / total));
        }
    }
    expect(worst <= types.bound, name(kernels.instruction_set()) + " attention of " + std::to_string(n_rows) + " rows with a cache of " + types.name + ": off by " + std::to_string(worst));
}

} // namespace

int main(int n_arguments, char **arguments) {
    std::vector<InstructionSet> sets;
    for (int i = 1; i < n_arguments; ++i) {
        const auto set = instruction_set_from_name(arguments[i]);
        if (!set) {
            std::printf("no such instruction set: %s\n", arguments[i]);
            return 2;
        }
        sets.push_back(*set);
    }
    if (sets.empty()) sets = supported_instruction_sets();
    int n_cases = 0;
    for (const auto &format : formats) {
        const int64_t block = file_block_columns(format.format) == 1 ? 32 : file_block_columns(format.format);
        for (int n_rows : {1, 2, 5, 30}) {
            const Case c{format.format, format.name, 35, block * (n_rows == 2 ? 1 : 3), n_rows};
            std::vector<float> first;
            for (InstructionSet set : sets) {
                const KernelSet kernels(set, true); // so that all have the same bits
                const std::vector<float> out = check_products(kernels, c, std::mt19937(static_cast<unsigned>(n_rows)));
                if (first.empty()) first = out;
                if (format.format > WeightFormat::bf16)
                    expect(std::memcmp(first.data(), out.data(), out.size() * sizeof(float)) == 0,
                           std::string("the bits of ") + format.name + " on " + name(set) + " and " + name(sets[0]));
                ++n_cases;
            }
        }
    }
    for (InstructionSet set : sets) {
        const KernelSet kernels(set, true);
        check_rows(kernels, std::mt19937(7));
        for (const size_t n : {1, 4, 19, 37, 64}) {
            check_conv(kernels, n, std::mt19937(9));
            check_scan(kernels, n, std::mt19937(10));
            check_delta(kernels, n, false, std::mt19937(11));
            check_delta(kernels, n, true, std::mt19937(12));
        }
        for (const int n_rows : {1, 3}) {
            for (const CacheCase &types : {CacheCase{KvType::f32, KvType::f32, "f32", 1e-5},
                                           {KvType::f16, KvType::f16, "f16", 5e-3},
                                           {KvType::bf16, KvType::bf16, "bf16", 4e-2},
                                           {KvType::q8, KvType::q8, "8 bits", 4e-2},
                                           {KvType::q5_1, KvType::q5_1, "5 bits", 0.1},
                                           {KvType::q4_0, KvType::q4_0, "4 bits", 0.2},
                                           {KvType::f16, KvType::q4_0, "16 and 4 bits", 0.2},
                                           {KvType::q4_0, KvType::q8, "4 and 8 bits", 0.2},
                                           {KvType::q8, KvType::q5_1, "8 and 5 bits", 0.1}})
                check_attention(kernels, types, n_rows, std::mt19937(8));
        }
        std::printf("checked %s\n", name(set).c_str());
    }
    std::printf("%d products, %d failures\n", n_cases, failures);
    return failures == 0 ? 0 : 1;
}
