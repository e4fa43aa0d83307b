// The executor of rank 0 of a group: other ranks run the same steps on their shares of the model.
#pragma once

#include <memory>
#include <vector>

#include "core/rank_group.h"
#include "graph/run/graph_executor.h"
#include "graph/run/step_message.h"

namespace quire {

// A step that fails on one rank breaks the group: all later ones throw the same DeviceError.
class LeadExecutor : public Executor {
  public:
    LeadExecutor(std::shared_ptr<GraphExecutor> own, std::shared_ptr<RankGroup> group);
    ~LeadExecutor() override; // tells the others to stop
    int n_vocab() const override { return own_->n_vocab(); }
    bool makes_logits() const override { return own_->makes_logits(); }
    int max_rows() const override { return own_->max_rows(); }
    int max_logit_rows() const override { return own_->max_logit_rows(); }
    int max_sequences() const override { return own_->max_sequences(); }
    int max_kv_tokens() const override { return own_->max_kv_tokens(); }
    const CacheLayout &cache() const override { return own_->cache(); }
    int n_blocks(int group) const override { return own_->n_blocks(group); }
    int n_states() const override { return own_->n_states(); }
    size_t cache_budget_bytes() const override { return own_->cache_budget_bytes(); }
    bool undivided_prompts() const override { return own_->undivided_prompts(); }
    bool reads_token_types() const override { return own_->reads_token_types(); }
    void copy_block(int group, int from, int to) override;
    void copy_state(int from, int to) override;
    void discard_block(int group, int block) override;
    void discard_state(int slot) override;
    float *run(const StepBatch &batch) override;
    float *maxima() override { return own_->maxima(); }
    std::vector<int> tapped_layers() const override { return own_->tapped_layers(); }
    TapRows tap(size_t i) override { return own_->tap(i); }
    int n_features() const override { return own_->n_features(); }
    int n_features_read() const override { return own_->n_features_read(); }
    const float *features() override { return own_->features(); }
    int n_hidden() const override { return own_->n_hidden(); }
    const float *hidden() override { return own_->hidden(); }

  private:
    std::shared_ptr<GraphExecutor> own_;
    std::shared_ptr<RankGroup> group_;
    std::vector<CacheCommand> edits_; // made here already; the others make them before the next step
};

// Runs the steps of rank 0 on another rank's share until it stops.  Breaks the group and throws if one fails.
void follow(GraphExecutor &executor, RankGroup &group);

} // namespace quire
