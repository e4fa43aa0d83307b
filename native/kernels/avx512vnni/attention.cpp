// Attention with keys of 8 bits or fewer, by dot products of bytes.
#include "kernels/attention/attention_tile.h"
#include "kernels/avx512/lanes.h"

namespace quire {
namespace {

// VPDPBUSD multiplies unsigned bytes by signed ones, so 128 is added to each key, and sums start at minus the excess.
struct ByteLanes : Lanes {
    using Codes = __m512i;
    static Ints begin_dot(int query_sum) { return _mm512_set1_epi32(-128 * query_sum); }
    static Codes load_keys(const int8_t *p) {
        return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(static_cast<char>(-128)));
    }
    static Codes set_query(const void *four) {
        int bits;
        __builtin_memcpy(&bits, four, sizeof bits);
        return _mm512_set1_epi32(bits);
    }
    static Ints add_dot(Ints sum, Codes key, Codes query) { return _mm512_dpbusd_epi32(sum, key, query); }
};

} // namespace

const AttentionKernels avx512vnni::attention_kernels = {attend_codes<ByteLanes>, merge_tile<Lanes>, nullptr, nullptr,
                                                        to_codes<Lanes>};

} // namespace quire
