#include "kernels/attention/row_pool.h"

#include <bit>
#include <cstring>

#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/index_scores.h"

namespace quire {

void RowPool::write(int32_t slot, const float *row) const {
    const int64_t at = first(slot);
    switch (type) {
    case KvType::f32:
        std::memcpy(static_cast<float *>(data) + at, row, static_cast<size_t>(dim) * sizeof(float));
        return;
    case KvType::f16: return portable::attention_kernels.to_f16(row, static_cast<uint16_t *>(data) + at, dim);
    default: portable::attention_kernels.to_bf16(row, static_cast<uint16_t *>(data) + at, dim);
    }
}

void RowPool::read(int32_t slot, float *row) const {
    const int64_t at = first(slot);
    const auto *halves = static_cast<const uint16_t *>(data) + at;
    switch (type) {
    case KvType::f32:
        std::memcpy(row, static_cast<const float *>(data) + at, static_cast<size_t>(dim) * sizeof(float));
        return;
    case KvType::f16:
        for (int i = 0; i < dim; ++i) row[i] = from_f16(halves[i]);
        return;
    default:
        for (int i = 0; i < dim; ++i) row[i] = std::bit_cast<float>(static_cast<uint32_t>(halves[i]) << 16);
    }
}

} // namespace quire
