#include "kernels/attention/rotation.h"

#include <cmath>
#include <cstring>

namespace quire {
namespace {

// Explicit vectors, because compilers do not vectorize sums of neighbours.
typedef float Four __attribute__((vector_size(16)));

Four load(const float *x) {
    Four four;
    std::memcpy(&four, x, sizeof four);
    return four;
}
void store(float *x, Four four) { std::memcpy(x, &four, sizeof four); }

} // namespace

void rotate_head(float *x, int dim, int together) {
    // Numbers one apart, then two apart.
    constexpr Four odd = {1.0F, -1.0F, 1.0F, -1.0F}, upper = {1.0F, 1.0F, -1.0F, -1.0F};
    for (int d = 0; d < dim; d += 4) {
        Four all = load(x + d);
        all = __builtin_shufflevector(all, all, 0, 0, 2, 2) + odd * __builtin_shufflevector(all, all, 1, 1, 3, 3);
        all = __builtin_shufflevector(all, all, 0, 1, 0, 1) + upper * __builtin_shufflevector(all, all, 2, 3, 2, 3);
        store(x + d, all);
    }
    for (int half = 4; half < together; half *= 2) {
        for (int begin = 0; begin < dim; begin += 2 * half) {
            for (int d = begin; d < begin + half; d += 4) {
                const Four a = load(x + d), b = load(x + d + half);
                store(x + d, a + b);
                store(x + d + half, a - b);
            }
        }
    }
    const float factor = 1.0F / std::sqrt(static_cast<float>(together));
    for (int d = 0; d < dim; ++d) x[d] *= factor;
}

} // namespace quire
