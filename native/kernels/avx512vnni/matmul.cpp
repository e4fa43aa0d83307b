// Products of unsigned 8-bit codes of weights with signed ones of activations: VPDPBUSD.
#include "kernels/avx512/quantize.h"
#include "kernels/avx512vnni/few_rows.h"

namespace quire {
namespace {

struct VnniLanes : CodeLanes {
    static constexpr bool signed_codes = false;
    static constexpr int code_class(int) { return 255; }
    static constexpr BlockShape few{8, 1}, more{6, 2};
    // Taking codes out of memory is done beside the products; only with scales twice as often does it delay them.
    static constexpr int max_packed_rows(const ChunkLayout &layout) {
        return layout.scale_columns == 32 ? any_rows : 48;
    }

    template <int> struct Products {
        Ints sum;
        void start(Ints begin) { sum = begin; }
        void add(Bytes codes, Bytes x, int) { sum = _mm512_dpbusd_epi32(sum, codes, x); }
        Ints total(int) const { return sum; }
    };
};

template <WeightFormat format> void multiply_rows(const MatmulPart &part) {
    constexpr int max_packed_rows = VnniLanes::max_packed_rows(chunk_layout(format));
    if (part.n_rows <= most_few_rows) return multiply_few_rows<VnniLanes, format>(part);
    if (part.n_rows <= max_packed_rows) return multiply_packed<VnniLanes, format, VnniLanes::more, most_few_rows>(part);
    if constexpr (max_packed_rows < any_rows) multiply_unpacked<VnniLanes, format>(part);
}

void multiply_any_format(const MatmulPart &part) {
    with_format(part.weights->format, [&]<WeightFormat format>() { multiply_rows<format>(part); });
}

} // namespace

const MatmulKernels avx512vnni::matmul_kernels = {quantize_by_16_groups, multiply_any_format};

} // namespace quire
