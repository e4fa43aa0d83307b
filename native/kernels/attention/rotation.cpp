#include "kernels/attention/rotation.h"

#include <cmath>

namespace quire {

void rotate_head(float *x, int dim, int together) {
    for (int half = 1; half < together; half *= 2) {
        for (int begin = 0; begin < dim; begin += 2 * half) {
            for (int d = begin; d < begin + half; ++d) {
                const float a = x[d], b = x[d + half];
                x[d] = a + b;
                x[d + half] = a - b;
            }
        }
    }
    const float factor = 1.0F / std::sqrt(static_cast<float>(together));
    for (int d = 0; d < dim; ++d) x[d] *= factor;
}

} // namespace quire
