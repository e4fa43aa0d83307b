// Attention with keys of 8 bits or fewer, by dot products of bytes.
#include "kernels/attention/attention_tile.h"
#include "kernels/avx2/lanes.h"

namespace quire {
namespace {

// VPDPBUSD multiplies unsigned bytes by signed ones, so 128 is added to each key, and sums start at minus the excess.
struct ByteLanes : Lanes {
    using Codes = __m256i;
    static Ints begin_dot(int query_sum) { return _mm256_set1_epi32(-128 * query_sum); }
    static Codes load_keys(const int8_t *p) {
        const __m256i keys = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
        return _mm256_xor_si256(keys, _mm256_set1_epi8(static_cast<char>(-128)));
    }
    static Codes set_query(const void *four) {
        int bits;
        __builtin_memcpy(&bits, four, sizeof bits);
        return _mm256_set1_epi32(bits);
    }
    static Ints add_dot(Ints sum, Codes key, Codes query) { return _mm256_dpbusd_avx_epi32(sum, key, query); }
};

} // namespace

const AttentionKernels avx2vnni::attention_kernels = {attend_codes<ByteLanes>, merge_tile<Lanes>, nullptr, nullptr,
                                                      to_codes<Lanes>};

} // namespace quire
