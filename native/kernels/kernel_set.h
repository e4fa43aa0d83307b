// What one executor computes with: the tables of functions of an instruction set, and whether results are deterministic.
// Nothing of it is the process's, so that two models may differ.
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

// The instruction sets that this machine runs and this build contains; the best one last.
const std::vector<InstructionSet> &supported_instruction_sets();
// Those that compute in software what the machine lacks: for tests only, and never chosen by itself.
std::vector<InstructionSet> emulated_instruction_sets();

// A value, cheap to copy.
class KernelSet {
  public:
    // The instruction set of QUIRE_ISA in the environment, else the best that this machine runs; deterministic where
    // QUIRE_DETERMINISTIC=1 is there.
    KernelSet();
    // UnsupportedError if this machine does not run the instruction set or this build lacks it.  None: as above.
    KernelSet(std::optional<InstructionSet> set, std::optional<bool> deterministic);

    InstructionSet instruction_set() const;
    // A row's bits must not depend on what is computed beside it.
    bool is_deterministic() const { return is_deterministic_; }

    const RowKernels &rows() const;
    const RecurrentKernels &recurrent() const;
    const MatmulKernels &matmul() const;
    const FloatMatmulKernels &float_matmul() const;
    const AttentionKernels &attention(KvType k_type, KvType v_type) const;

    // Whether there are products of BF16 with BF16.
    bool multiplies_bf16() const;
    // Whether determinism costs anything: many rows are multiplied as BF16 by quantized weights without it.
    bool determinism_costs() const;

  private:
    const KernelTable *table_;
    bool is_deterministic_;
};

} // namespace quire
