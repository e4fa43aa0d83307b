#include "graph/cpu/lower_cpu.h"

#include "graph/cpu/cpu_lowering.h"
#include "graph/cpu/standalone_nodes.h"
#include "graph/trace/shape_checks.h"

namespace quire {

CpuLowering::CpuLowering(const CpuProgramInputs &inputs)
    : in_(inputs), program_(inputs.kernels), values_(trace().operations.size()), left_norms_(values_.size()),
      left_activations_(values_.size()), done_(values_.size()), head_steps_(values_.size()), users_(users_of(trace())) {
    const auto n = static_cast<int>(values_.size());
    for (int i = 0; i < n; ++i) operation(i).kind->prepare(*this, i);
}

CpuProgram CpuLowering::lower() {
    for (int i = 0; i < static_cast<int>(values_.size()); ++i)
        if (!is_done(i)) operation(i).kind->add_nodes(*this, i);
    for (const Tap &tap : trace().taps) program_.show_tap(value(tap.operation));
    for (const Left &left : trace().left) program_.show_tap(value(left.operation));
    show_hidden();
    program_.finish(trace().output < 0 ? nullptr : value(trace().output), in_.limits);
    return std::move(program_);
}

std::optional<int> CpuLowering::only_user(int i) const {
    const std::vector<int> &all = users(i);
    if (all.size() != 1 || all[0] < 0) return std::nullopt;
    return all[0];
}

CpuValue *CpuLowering::new_value(int i) {
    return values_[at(i)] = program_.floats(lead(i), row_size(operation(i).shape));
}

CpuValue *CpuLowering::id_value(int i) {
    if (value(i) != nullptr) return value(i);
    CpuValue *out = values_[at(i)] = program_.value(lead(i), sizeof(int32_t));
    program_.add(std::make_unique<IdsNode>(i, out), {out});
    return out;
}

// If the last norm is fused into the output product, it is computed separately only when hidden states are requested.
void CpuLowering::show_hidden() {
    const int i = trace().hidden;
    if (i < 0) return;
    CpuValue *x = value(i);
    if (!left_norm(i)) return program_.show_hidden(x, nullptr, nullptr);
    CpuValue *out = program_.floats(lead(i), row_size(operation(i).shape));
    program_.show_hidden(out, std::make_unique<NormNode>(x, *left_norm(i), out), x);
}

CpuProgram lower_cpu(const CpuProgramInputs &inputs) { return CpuLowering(inputs).lower(); }

} // namespace quire
