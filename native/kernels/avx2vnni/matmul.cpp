// Products of unsigned codes of weights with signed codes of activations: VPDPBUSD on 32 bytes (AVX-VNNI).
#include "kernels/avx2/code_lanes.h"

#include "kernels/matmul/matmul_tile.h"

namespace quire {
namespace {

struct VnniLanes : CodeLanes {
    static constexpr bool signed_codes = false;
    static constexpr int code_class(int) { return 255; }

    template <int> struct Products {
        Ints sum;
        void start(Ints begin) { sum = begin; }
        void add(Bytes codes, Bytes x, int) { sum = _mm256_dpbusd_avx_epi32(sum, codes, x); }
        Ints total(int) const { return sum; }
    };
};

} // namespace

const MatmulKernels avx2vnni::matmul_kernels = {quantize<VnniLanes>, multiply_any<VnniLanes>};

} // namespace quire
