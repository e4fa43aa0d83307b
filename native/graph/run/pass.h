// A forward pass as pieces that run in order: programs of Quire's own kernels, and graphs of ggml's operators.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/large_pages.h"
#include "core/rank_group.h"
#include "graph/cpu/cpu_matrices.h"
#include "graph/cpu/cpu_program.h"
#include "graph/cpu/packed_model.h"
#include "graph/run/boundary_memory.h"
#include "graph/run/placement.h"
#include "graph/stock/stock_graphs.h"

namespace quire {

// Shared by programs of Quire's own kernels: they run one after the other.
struct OwnKernels {
    KernelSet kernels;
    std::unique_ptr<PackedModel> packed; // null without kernels that read it
    CpuMatrices matrices;
    std::shared_ptr<ThreadTeam> team;
    AlignedMemory memory; // for values
    size_t memory_bytes = 0;

    OwnKernels(const KernelSet &kernel_set, std::unique_ptr<PackedModel> packed_model,
               std::shared_ptr<ThreadTeam> threads)
        : kernels(kernel_set), packed(std::move(packed_model)), matrices(kernels, packed.get()),
          team(std::move(threads)) {}
};

// Pieces at Place::cpu are programs, those on devices graphs.  All that is added to a pass must outlive it.
class Pass {
  public:
    // `group`: the ranks whose stages have the pieces; null: all are this process's.
    explicit Pass(CutTrace trace, std::shared_ptr<RankGroup> group = nullptr);
    Pass(const Pass &) = delete;
    Pass &operator=(const Pass &) = delete;

    const std::vector<Piece> &pieces() const { return trace_.pieces; }
    bool is_at(Place place) const;
    // Called in this order, each if there are such pieces.  They throw what StockGraphs and lower_cpu do.
    // `devices`: by number; transfers are made for the first.
    void add_boundaries(const std::vector<const Backend *> &devices, int max_rows, int max_logit_rows);
    void add_graphs(Place place, StockDevice &device, const GraphLimits &limits);
    void add_programs(OwnKernels &own, const KvStore &store, CpuProgramLimits limits);
    size_t program_bytes() const; // the largest program's
    void place(uint8_t *memory);

    float *run(const StepBatch &batch); // the output
    // Results of the last run, as in Executor.
    const float *hidden() const;
    float *maxima() const;
    const float *tap(size_t i) const;

    size_t n_nodes() const;
    std::set<std::string> stock_operations() const;
    size_t host_boundary_bytes() const { return host_boundaries_.size_bytes(); }
    size_t boundary_bytes(size_t device) const { return device_boundaries_.at(device).size_bytes(); }

  private:
    struct Runner { // one of both
        std::optional<CpuProgram> program;
        std::unique_ptr<StockGraphs> graphs;
    };
    float *run_program(const Piece &piece, CpuProgram &program, const StepBatch &batch);
    float *run_stages(const StepBatch &batch); // staged_pass.cpp, as the next two
    void lay_out_exchange(const Boundaries &all, int max_rows, int max_logit_rows);
    void show_rows(size_t first_row, size_t first_logit_row); // which rows of the exchange boundaries stand for
    CutTrace trace_; // fixed: runners refer to the pieces' traces
    std::vector<Runner> runners_; // by piece
    BoundaryMemory host_boundaries_;
    std::vector<BoundaryMemory> device_boundaries_; // by device
    ThreadTeam *team_ = nullptr;
    std::shared_ptr<RankGroup> group_;
    std::vector<std::pair<Boundary *, float *>> exchanged_; // with their first rows there
    uint32_t n_parts_ = 0; // parts of steps that have been run
};

} // namespace quire
