#include "kernels/kernel_set.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "core/environment.h"
#include "core/error.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/matmul/matmul_kernels.h"
#include "kernels/rows/recurrent_kernels.h"
#include "kernels/rows/row_kernels.h"

namespace quire {

// The kernels of one instruction set.
struct KernelTable {
    InstructionSet set;
    const RowKernels &rows;
    const RecurrentKernels &recurrent;
    const MatmulKernels &matmul;
    const FloatMatmulKernels &float_matmul;
    struct {
        const AttentionKernels &others, &codes, &bf16; // codes: K has 8 bits or fewer; bf16: K and V are BF16
    } attention;
};

namespace {

// The tables of every instruction set in this build.  A build for one machine leaves out the sets that the machine
// lacks (native/CMakeLists.txt).
const KernelTable tables[] = {
    {{Isa::portable},
     portable::row_kernels,
     portable::recurrent_kernels,
     portable::matmul_kernels,
     portable::float_matmul_kernels,
     {portable::attention_kernels, portable::attention_kernels, portable::attention_kernels}},
#if defined(__aarch64__)
    {{Isa::neon},
     neon::row_kernels,
     neon::recurrent_kernels,
     neon::matmul_kernels,
     neon::float_matmul_kernels,
     {neon::attention_kernels, neon::attention_kernels, neon::attention_kernels}},
    {{Isa::neon, DotProducts::matrices},
     neon::row_kernels,
     neon::recurrent_kernels,
     neoni8mm::matmul_kernels,
     neon::float_matmul_kernels,
     {neon::attention_kernels, neon::attention_kernels, neon::attention_kernels}},
#endif
#if defined(__x86_64__) && !defined(QUIRE_WITHOUT_AVX2)
    {{Isa::avx2},
     avx2::row_kernels,
     avx2::recurrent_kernels,
     avx2::matmul_kernels,
     avx2::float_matmul_kernels,
     {avx2::attention_kernels, avx2::attention_kernels, avx2::attention_kernels}},
#endif
#if defined(__x86_64__) && !defined(QUIRE_WITHOUT_AVX2VNNI)
    {{Isa::avx2, DotProducts::bytes},
     avx2::row_kernels,
     avx2::recurrent_kernels,
     avx2vnni::matmul_kernels,
     avx2::float_matmul_kernels,
     {avx2::attention_kernels, avx2vnni::attention_kernels, avx2::attention_kernels}},
#endif
#if defined(__x86_64__) && !defined(QUIRE_WITHOUT_AVX512)
    {{Isa::avx512},
     avx512::row_kernels,
     avx512::recurrent_kernels,
     avx512::matmul_kernels,
     avx512::float_matmul_kernels,
     {avx512::attention_kernels, avx512::attention_kernels, avx512::attention_kernels}},
#endif
#if defined(__x86_64__) && !defined(QUIRE_WITHOUT_AVX512VNNI)
    {{Isa::avx512, DotProducts::bytes},
     avx512::row_kernels,
     avx512::recurrent_kernels,
     avx512vnni::matmul_kernels,
     avx512::float_matmul_kernels,
     {avx512::attention_kernels, avx512vnni::attention_kernels, avx512::attention_kernels}},
#endif
#if defined(__x86_64__) && !defined(QUIRE_WITHOUT_AVX512BF16)
    {{Isa::avx512, DotProducts::bf16},
     avx512::row_kernels,
     avx512::recurrent_kernels,
     avx512vnni::matmul_kernels,
     avx512bf16::float_matmul_kernels,
     {avx512::attention_kernels, avx512vnni::attention_kernels, avx512bf16::attention_kernels}},
#endif
#if defined(__x86_64__) && !defined(QUIRE_WITHOUT_AVX512AMX)
    {{Isa::avx512, DotProducts::tiles},
     avx512::row_kernels,
     avx512::recurrent_kernels,
     avx512amx::matmul_kernels,
     avx512amx::float_matmul_kernels,
     {avx512::attention_kernels, avx512vnni::attention_kernels, avx512amx::attention_kernels}},
#endif
#if defined(__x86_64__) && !defined(QUIRE_WITHOUT_EMULATED_TILES)
    {{Isa::avx512, DotProducts::emulated_tiles},
     avx512::row_kernels,
     avx512::recurrent_kernels,
     avx512amx::emulated_matmul_kernels,
     avx512amx::emulated_float_matmul_kernels,
     {avx512::attention_kernels, avx512vnni::attention_kernels, avx512amx::emulated_attention_kernels}},
#endif
};

const KernelTable *table_of(InstructionSet set) {
    const auto *found =
        std::find_if(std::begin(tables), std::end(tables), [&](const auto &each) { return each.set == set; });
    return found == std::end(tables) ? nullptr : found;
}

const KernelTable &checked(InstructionSet set) {
    auto known = emulated_instruction_sets();
    known.insert(known.end(), supported_instruction_sets().begin(), supported_instruction_sets().end());
    if (std::find(known.begin(), known.end(), set) == known.end())
        throw UnsupportedError(
            "isa", cat(table_of(set) == nullptr ? "this build has no kernels for " : "this machine does not support ",
                       name(set)));
    return *table_of(set);
}

} // namespace

const std::vector<InstructionSet> &supported_instruction_sets() {
    static const std::vector<InstructionSet> found = [] {
        std::vector<InstructionSet> both;
        for (InstructionSet each : instruction_sets_of_this_machine()) {
            if (table_of(each) != nullptr) both.push_back(each);
        }
        return both;
    }();
    return found;
}

std::vector<InstructionSet> emulated_instruction_sets() {
    const InstructionSet emulated{Isa::avx512, DotProducts::emulated_tiles}, needed{Isa::avx512, DotProducts::bytes};
    const auto &known = supported_instruction_sets();
    if (table_of(emulated) == nullptr || std::find(known.begin(), known.end(), needed) == known.end()) return {};
    return {emulated};
}

namespace {

// The instruction set in QUIRE_ISA, or the best one that this machine supports.
const KernelTable &default_table() {
    const char *asked = std::getenv("QUIRE_ISA");
    if (asked == nullptr || *asked == '\0') return checked(supported_instruction_sets().back());
    if (auto found = instruction_set_from_name(asked)) return checked(*found);
    throw UnsupportedError("isa", cat("unknown instruction set '", asked, "' in QUIRE_ISA: see 'quire devices'"));
}

} // namespace

KernelSet::KernelSet() : KernelSet(std::nullopt, std::nullopt) {}

KernelSet::KernelSet(std::optional<InstructionSet> set, std::optional<bool> deterministic)
    : table_(set ? &checked(*set) : &default_table()),
      is_deterministic_(deterministic ? *deterministic : is_switched_on("QUIRE_DETERMINISTIC")) {}

InstructionSet KernelSet::instruction_set() const { return table_->set; }
const RowKernels &KernelSet::rows() const { return table_->rows; }
const RecurrentKernels &KernelSet::recurrent() const { return table_->recurrent; }
const MatmulKernels &KernelSet::matmul() const { return table_->matmul; }
const FloatMatmulKernels &KernelSet::float_matmul() const { return table_->float_matmul; }

bool KernelSet::multiplies_bf16() const { return table_->float_matmul.multiply_bf16 != nullptr; }
bool KernelSet::determinism_costs() const { return table_->matmul.multiply_bf16 != nullptr; }

const AttentionKernels &KernelSet::attention(KvType k_type, KvType v_type) const {
    if (is_coded(k_type)) return table_->attention.codes;
    const bool is_bf16 = k_type == KvType::bf16 && v_type == KvType::bf16;
    return is_bf16 ? table_->attention.bf16 : table_->attention.others;
}

} // namespace quire
