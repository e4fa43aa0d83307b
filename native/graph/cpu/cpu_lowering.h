// A CPU program under construction: everything that operations need to add their nodes.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "graph/cpu/cpu_matrices.h"
#include "graph/cpu/cpu_program.h"
#include "graph/cpu/lower_cpu.h"
#include "graph/cpu/row_norm.h"
#include "graph/trace/fused_operations.h"

namespace quire {

// Operations are numbered as in the trace.
class CpuLowering {
  public:
    explicit CpuLowering(const CpuProgramInputs &inputs);
    CpuProgram lower();

    const Trace &trace() const { return in_.trace; }
    const KvStore &store() const { return in_.store; }
    CpuMatrices &matrices() { return in_.matrices; }
    CpuProgram &program() { return program_; }

    const Operation &operation(int i) const { return in_.trace.operations[at(i)]; }
    template <class Kind> const Kind *as(int i) const { return operation(i).as<Kind>(); }
    int input(int i, size_t which = 0) const { return operation(i).inputs[which]; }
    size_t n_inputs(int i) const { return operation(i).inputs.size(); }
    Lead lead(int i) const { return operation(i).shape.lead; }
    const std::vector<int64_t> &rest(int i) const { return operation(i).shape.rest; }
    const std::vector<int> &users(int i) const { return users_[at(i)]; } // -1: the caller
    std::optional<int> only_user(int i) const;

    // The operation's value; null until it has one.
    CpuValue *value(int i) const { return values_[at(i)]; }
    CpuValue *new_value(int i);
    void set_value(int i, CpuValue *value) { values_[at(i)] = value; }
    CpuValue *id_value(int i); // an id of the step as a value, for nodes that do not read it from the batch
    // Operations whose nodes another operation has added.
    bool is_done(int i) const { return done_[at(i)]; }
    void mark_done(int i) { done_[at(i)] = true; }

    // A norm that is left to the readers of the operation.
    std::optional<RowNorm> &left_norm(int i) { return left_norms_[at(i)]; }
    // An activation that is left to the products that read the operation.
    std::optional<Activation> &left_activation(int i) { return left_activations_[at(i)]; }
    bool is_left(int i) const { return left_norms_[at(i)] || left_activations_[at(i)]; }
    // Norms and rotations with which attention begins (operations/fused/heads.h).
    bool is_head_step(int i) const { return head_steps_[at(i)]; }
    void mark_head_step(int i) { head_steps_[at(i)] = true; }

    // Activations of an operation in the form that matrices read: computed once (operations/fused/linear.cpp).
    struct Rounded {
        int source;
        const Matrix *matrix;
        CpuValue *value;
    };
    std::vector<Rounded> rounded;
    // A table for each kind of rotation, for all layers (operations/fused/rope.cpp).
    std::vector<std::pair<RopeSpec, CpuValue *>> rotation_tables;

  private:
    static size_t at(int i) { return static_cast<size_t>(i); }
    void show_hidden();

    const CpuProgramInputs &in_;
    CpuProgram program_;
    std::vector<CpuValue *> values_;
    std::vector<std::optional<RowNorm>> left_norms_;
    std::vector<std::optional<Activation>> left_activations_;
    std::vector<bool> done_, head_steps_;
    std::vector<std::vector<int>> users_;
};

} // namespace quire
