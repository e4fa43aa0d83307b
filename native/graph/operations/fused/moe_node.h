// How a mixture of experts runs on the CPU.
#pragma once

#include <algorithm>
#include <vector>

#include "graph/cpu/cpu_program.h"
#include "graph/trace/fused_operations.h"
#include "kernels/matmul/matmul.h"

namespace quire {

// Sigmoids of large scores are all 1: where nothing is added to them, the scores themselves tell which are the best.
inline bool ranks_by_scores(const MoeWeights &weights, const Routing &routing) {
    return routing.gating == Gating::sigmoid && weights.selection_bias == nullptr && routing.n_group == 1;
}

// One matrix per expert.
struct ExpertMatrices {
    std::vector<const Matrix *> gate, up, down; // no gate where they are ungated
};

// Rows are gathered by expert, so that an expert's weights are read once for all tokens that chose it.
class MoeNode : public CpuNode {
  public:
    struct Values {
        CpuValue *x, *scores;   // [dim], [n_expert]: the router's
        CpuValue *chosen;       // [n_used] numbers of experts; null: those with the best scores
        CpuValue *for_up;       // x in the form that `up` wants, gathered, [n_used] per token
        CpuValue *for_gate;     // also for_up where `gate` wants that form too
        CpuValue *gate, *up;    // [n_used][ffn]; one value where there is no gate.  `gate` gets what goes to `down`
        CpuValue *rounded;      // that in the form that `down` wants
        CpuValue *down;         // [n_used][dim]
        CpuValue *out;          // [dim]
    };
    MoeNode(MoeWeights weights, const MoeSpec &spec, ExpertMatrices experts, Values values);
    void run(const CpuRun &run) override;

  private:
    struct Choice {
        int expert, place; // place: of the gathered row; -1: the expert is not here
        float weight;
    };
    size_t n_all() const { return static_cast<size_t>(values_.scores->n_floats()); } // experts, elsewhere too
    size_t first_here() const { return static_cast<size_t>(std::max(0, spec_.first_expert)); }
    bool is_here(size_t expert) const { return expert - first_here() < experts_.up.size(); }
    void choose(int row);
    void rank(const float *scores, std::vector<float> &odds, std::vector<float> &ranked) const;
    void keep_best_groups(std::vector<float> &ranked) const;
    void sort();
    void gather(const CpuRun &run, const Matrix &matrix, CpuValue *to) const;
    void apply_unit(const RowKernels &kernels, int64_t place) const;
    void multiply(const CpuRun &run);
    void combine(const RowKernels &kernels, int row) const;

    MoeWeights weights_;
    MoeSpec spec_;
    Routing routing_;
    ExpertMatrices experts_;
    Values values_;
    std::vector<Choice> choices_;  // [rows][n_used], best first
    int form_rows_ = 0;            // see Product
    std::vector<int> first_;       // [n_expert + 1] first gathered row of each
    std::vector<int> place_choice_; // [rows * n_used] which choice a gathered row is of
};

} // namespace quire
