// What one executor computes with: the tables of functions of an instruction set, and whether results are deterministic.
// Nothing of it is the process's, so that two models may differ.
#pragma once

#include <optional>

#include "kernels/isa.h"

namespace quire {

enum class KvType;
struct AttentionKernels;
struct FloatMatmulKernels;
struct MatmulKernels;
struct RecurrentKernels;
struct RowKernels;

// A value, cheap to copy.
class KernelSet {
  public:
    // The best instruction set that this machine runs, and deterministic where QUIRE_DETERMINISTIC=1 is in the environment.
    KernelSet();
    // UnsupportedError if this machine does not run the instruction set.  None: as above.
    KernelSet(std::optional<InstructionSet> set, std::optional<bool> deterministic);

    InstructionSet instruction_set() const { return set_; }
    // A row's bits must not depend on what is computed beside it.
    bool is_deterministic() const { return is_deterministic_; }

    const RowKernels &rows() const { return *rows_; }
    const RecurrentKernels &recurrent() const { return *recurrent_; }
    const MatmulKernels &matmul() const { return *matmul_; }
    const FloatMatmulKernels &float_matmul() const { return *float_matmul_; }
    const AttentionKernels &attention(KvType k_type, KvType v_type) const;

    // Whether there are products of BF16 with BF16.
    bool multiplies_bf16() const;
    // Whether determinism costs anything: many rows are multiplied as BF16 by quantized weights without it.
    bool determinism_costs() const;

  private:
    InstructionSet set_;
    bool is_deterministic_;
    const RowKernels *rows_;
    const RecurrentKernels *recurrent_;
    const MatmulKernels *matmul_;
    const FloatMatmulKernels *float_matmul_;
};

} // namespace quire
