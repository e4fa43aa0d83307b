// The kernels of one executor: the function tables of an instruction set, and a flag for deterministic results.  It is
// not global, so two models in one process may differ.
#pragma once

#include <optional>
#include <vector>

#include "kernels/isa.h"

namespace quire {

enum class KvType;
struct AttentionKernels;
struct KernelTable;
struct FloatMatmulKernels;
struct MatmulKernels;
struct RecurrentKernels;
struct RowKernels;

// The instruction sets that this machine supports and this build contains, the best one last.
const std::vector<InstructionSet> &supported_instruction_sets();
// The instruction sets that this machine can emulate.  They are for tests and never chosen automatically.
std::vector<InstructionSet> emulated_instruction_sets();

// A value type, cheap to copy.
class KernelSet {
  public:
    // The instruction set of QUIRE_ISA, else the best one of this machine; deterministic if QUIRE_DETERMINISTIC=1.
    KernelSet();
    // nullopt means the default above.  Throws UnsupportedError if this machine or this build lacks the instruction
    // set.
    KernelSet(std::optional<InstructionSet> set, std::optional<bool> deterministic);

    InstructionSet instruction_set() const;
    // If true, a row's bits do not depend on the rows computed with it.
    bool is_deterministic() const { return is_deterministic_; }

    const RowKernels &rows() const;
    const RecurrentKernels &recurrent() const;
    const MatmulKernels &matmul() const;
    const FloatMatmulKernels &float_matmul() const;
    const AttentionKernels &attention(KvType k_type, KvType v_type) const;

    // True if the kernels multiply BF16 by BF16.
    bool multiplies_bf16() const;
    // True if determinism makes products slower: without it, many rows are multiplied by quantized weights as BF16.
    bool determinism_costs() const;

  private:
    const KernelTable *table_;
    bool is_deterministic_;
};

} // namespace quire
