#include "kernels/kernel_set.h"

#include <algorithm>

#include "core/environment.h"
#include "core/error.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/matmul/matmul_kernels.h"
#include "kernels/rows/recurrent_kernels.h"
#include "kernels/rows/row_kernels.h"

namespace quire {
namespace {

const RowKernels &row_kernels([[maybe_unused]] InstructionSet set) {
#if defined(__x86_64__)
    if (set.isa == Isa::avx512) return avx512::row_kernels;
    if (set.isa == Isa::avx2) return avx2::row_kernels;
#elif defined(__aarch64__)
    if (set.isa == Isa::neon) return neon::row_kernels;
#endif
    return portable::row_kernels;
}

const RecurrentKernels &recurrent_kernels([[maybe_unused]] InstructionSet set) {
#if defined(__x86_64__)
    if (set.isa == Isa::avx512) return avx512::recurrent_kernels;
    if (set.isa == Isa::avx2) return avx2::recurrent_kernels;
#elif defined(__aarch64__)
    if (set.isa == Isa::neon) return neon::recurrent_kernels;
#endif
    return portable::recurrent_kernels;
}

const MatmulKernels &matmul_kernels([[maybe_unused]] InstructionSet set) {
#if defined(__x86_64__)
    if (set.dot_products == DotProducts::tiles) return avx512amx::matmul_kernels;
    if (set.dot_products == DotProducts::emulated_tiles) return avx512amx::emulated_matmul_kernels;
    const bool bytes = set.dot_products != DotProducts::none;
    if (set.isa == Isa::avx512) return bytes ? avx512vnni::matmul_kernels : avx512::matmul_kernels;
    if (set.isa == Isa::avx2) return bytes ? avx2vnni::matmul_kernels : avx2::matmul_kernels;
#elif defined(__aarch64__)
    if (set.dot_products == DotProducts::matrices) return neoni8mm::matmul_kernels;
    if (set.isa == Isa::neon) return neon::matmul_kernels;
#endif
    return portable::matmul_kernels;
}

const FloatMatmulKernels &float_matmul_kernels([[maybe_unused]] InstructionSet set) {
#if defined(__x86_64__)
    if (set.dot_products == DotProducts::tiles) return avx512amx::float_matmul_kernels;
    if (set.dot_products == DotProducts::emulated_tiles) return avx512amx::emulated_float_matmul_kernels;
    if (set.dot_products == DotProducts::bf16) return avx512bf16::float_matmul_kernels;
    if (set.isa == Isa::avx512) return avx512::float_matmul_kernels;
    if (set.isa == Isa::avx2) return avx2::float_matmul_kernels;
#elif defined(__aarch64__)
    if (set.isa == Isa::neon) return neon::float_matmul_kernels;
#endif
    return portable::float_matmul_kernels;
}

InstructionSet checked(InstructionSet set) {
    auto known = emulated_instruction_sets();
    known.insert(known.end(), supported_instruction_sets().begin(), supported_instruction_sets().end());
    if (std::find(known.begin(), known.end(), set) == known.end())
        throw UnsupportedError("isa", cat("this machine must run ", name(set), " but does not"));
    return set;
}

} // namespace

KernelSet::KernelSet() : KernelSet(std::nullopt, std::nullopt) {}

KernelSet::KernelSet(std::optional<InstructionSet> set, std::optional<bool> deterministic)
    : set_(set ? checked(*set) : supported_instruction_sets().back()),
      is_deterministic_(deterministic ? *deterministic : is_switched_on("QUIRE_DETERMINISTIC")),
      rows_(&row_kernels(set_)), recurrent_(&recurrent_kernels(set_)), matmul_(&matmul_kernels(set_)),
      float_matmul_(&float_matmul_kernels(set_)) {}

bool KernelSet::multiplies_bf16() const { return float_matmul_->multiply_bf16 != nullptr; }
bool KernelSet::determinism_costs() const { return matmul_->multiply_bf16 != nullptr; }

const AttentionKernels &KernelSet::attention(KvType k_type, KvType v_type) const {
    [[maybe_unused]] const InstructionSet set = set_;
#if defined(__x86_64__)
    const bool bytes = is_coded(k_type) && set.dot_products != DotProducts::none;
    if (k_type == KvType::bf16 && v_type == KvType::bf16) {
        if (set.dot_products == DotProducts::bf16) return avx512bf16::attention_kernels;
        if (set.dot_products == DotProducts::tiles) return avx512amx::attention_kernels;
        if (set.dot_products == DotProducts::emulated_tiles) return avx512amx::emulated_attention_kernels;
    }
    if (set.isa == Isa::avx512) return bytes ? avx512vnni::attention_kernels : avx512::attention_kernels;
    if (set.isa == Isa::avx2) return bytes ? avx2vnni::attention_kernels : avx2::attention_kernels;
#elif defined(__aarch64__)
    if (set.isa == Isa::neon) return neon::attention_kernels;
#endif
    (void)k_type;
    (void)v_type;
    return portable::attention_kernels;
}

} // namespace quire
