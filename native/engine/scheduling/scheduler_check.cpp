#include "engine/scheduling/scheduler.h"

#include <algorithm>

#include "core/error.h"

namespace quire {
namespace {

void require(bool holds, const char *problem, const Sequence &s) {
    if (!holds) throw InternalError("scheduler", cat("sequence ", static_cast<uint64_t>(s.id), ": ", problem));
}

// References to each block of a pool, as its users count them.
class References {
  public:
    explicit References(const BlockPool &pool) : pool_(pool), counts_(static_cast<size_t>(pool.n_blocks())) {}
    void add(BlockId block) { counts_[static_cast<size_t>(index(block))] += block != BlockId::null; }
    void check() const {
        for (int32_t id = 1; id < pool_.n_blocks(); ++id)
            if (pool_.n_references(BlockId{id}) != counts_[static_cast<size_t>(id)])
                throw InternalError("scheduler",
                                    cat("block ", id, " has ", pool_.n_references(BlockId{id}),
                                        " references: the sequences hold ", counts_[static_cast<size_t>(id)]));
    }

  private:
    const BlockPool &pool_;
    std::vector<int32_t> counts_;
};

} // namespace

void Scheduler::check() const {
    pool_->check();
    for (const auto &[id, sequence] : sequences_) check_sequence(*sequence);
    check_references();
}

void Scheduler::check_sequence(const Sequence &s) const {
    const auto n_queues = std::ranges::count(waiting_, &s) + std::ranges::count(running_, &s) +
                          (s.leader ? std::ranges::count(s.leader->followers, &s) : 0);
    require(n_queues == 1, "not in exactly one queue", s);
    require((s.queue == SequenceQueue::following) == (s.leader != nullptr),
            "a follower without a leader, or the reverse", s);
    const bool is_running = s.queue == SequenceQueue::running;
    require(is_running || (s.cache.empty() && s.n_computed == 0), "only a running sequence may hold blocks", s);
    require(!is_running || !s.is_paused, "running although paused", s);
    require(s.cache.state().has_value() == (is_running && pool_->has_states()),
            "running without a state, or the reverse", s);
    require(is_running || !s.is_encoded, "only a running sequence may have its source encoded", s);
    for (size_t i = 0; i < pool_->n_groups(); ++i) {
        const int64_t n_covered = int64_t{s.cache.tables()[i].n_blocks()} * pool_->block_tokens();
        const int64_t n_needed = !pool_->lifetime(i).of_source ? s.n_computed : is_running ? s.n_source() : 0;
        require(n_needed <= n_covered, "a table does not cover its tokens", s);
    }
    require(s.n_computed == 0 || s.n_unencoded() == 0, "an answer is computed before its source is encoded", s);
    require(s.n_computed <= s.n_tokens() && s.n_tokens() <= s.max_tokens, "more tokens than its limit", s);
    require(s.n_unverified <= static_cast<int64_t>(s.drafted.size()) && (s.n_unverified == 0 || !s.has_work()),
            "a computed draft waits for no tokens", s);
    require(!s.cache.keeps_state() || !s.drafted.empty(), "a copy of a state without a draft", s);
    require(s.n_preemptions <= config_.max_preemptions, "more preemptions than allowed", s);
}

void Scheduler::check_references() const {
    for (size_t i = 0; i < pool_->n_groups(); ++i) {
        References references(*pool_->group(i));
        for (const auto &[id, sequence] : sequences_)
            for (BlockId block : sequence->cache.tables()[i].blocks()) references.add(block);
        pins_.for_each([&](size_t group, BlockId block) { references.add(group == i ? block : BlockId::null); });
        references.check();
    }
    if (!pool_->has_states()) return;
    References references(pool_->states());
    for (const auto &[id, sequence] : sequences_)
        for (const auto state : {sequence->cache.state(), sequence->cache.kept_state()})
            references.add(state.value_or(BlockId::null));
    pins_.for_each(
        [&](size_t group, BlockId block) { references.add(group == pool_->n_groups() ? block : BlockId::null); });
    references.check();
}

} // namespace quire
