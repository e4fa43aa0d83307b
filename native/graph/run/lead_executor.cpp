#include "graph/run/lead_executor.h"

#include <exception>

#include "core/error.h"

namespace quire {
namespace {

// The message that the other ranks read.
std::string said_by(const RankGroup &group, const std::exception &error) {
    return cat("rank ", group.rank(), " failed: ", error.what());
}

} // namespace

LeadExecutor::LeadExecutor(std::shared_ptr<GraphExecutor> own, std::shared_ptr<RankGroup> group)
    : own_(std::move(own)), group_(std::move(group)) {
    if (own_->n_source_features() > 0 || own_->cache().source_group())
        throw UnsupportedError("parallel", "encoder-decoder models run in one process");
}

LeadExecutor::~LeadExecutor() {
    try {
        group_->post(to_bytes({}, nullptr, true));
    } catch (const std::exception &) { // the others are gone
    }
}

void LeadExecutor::copy_block(int group, int from, int to) {
    own_->copy_block(group, from, to);
    edits_.push_back({CacheCommand::Kind::copy_block, group, from, to});
}

void LeadExecutor::copy_state(int from, int to) {
    own_->copy_state(from, to);
    edits_.push_back({CacheCommand::Kind::copy_state, 0, from, to});
}

void LeadExecutor::discard_block(int group, int block) {
    own_->discard_block(group, block);
    edits_.push_back({CacheCommand::Kind::discard_block, group, block, 0});
}

void LeadExecutor::discard_state(int slot) {
    own_->discard_state(slot);
    edits_.push_back({CacheCommand::Kind::discard_state, 0, slot, 0});
}

float *LeadExecutor::run(const StepBatch &batch) {
    if (!batch.adapters.empty())
        throw UnsupportedError("parallel", "adapters are unsupported for a model in several processes");
    group_->check();
    group_->post(to_bytes(edits_, &batch, false));
    edits_.clear();
    try {
        return own_->run(batch);
    } catch (const std::exception &error) {
        group_->fail(said_by(*group_, error));
        throw;
    }
}

void follow(GraphExecutor &executor, RankGroup &group) {
    try {
        for (;;) {
            StepMessage message = message_of(group.next());
            if (message.stops) return;
            make_edits(executor, message.edits);
            if (message.batch) {
                message.batch->features = message.features;
                executor.run(*message.batch);
            }
            group.done();
        }
    } catch (const std::exception &error) {
        group.fail(said_by(group, error));
        throw;
    }
}

} // namespace quire
