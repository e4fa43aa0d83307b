#include "kv/cache_tiers.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"

namespace quire {
namespace {

constexpr size_t most_queued_bytes = size_t{128} << 20; // contents that wait to be written
constexpr size_t most_queued = 65536; // entries
constexpr size_t most_staged_bytes = size_t{32} << 20; // contents that were read and not taken
constexpr size_t signalled_bytes = size_t{8} << 20; // staged ones that are worth a step
constexpr int n_readers = 2; // one checks while the other reads
constexpr double close_s = 10; // for writing the rest of the queue
constexpr double newest_weight = 0.1; // for one measurement
constexpr int64_t least_step_tokens = 64; // smaller steps take as long as one token: they tell nothing
constexpr int saved_after = 64; // measurements, but for the first of each kind
constexpr int64_t tried_again_after = 32; // refusals: the disk may be faster now

} // namespace

// Shared by its Fetch and the readers; all but the keys is guarded by the mutex of the tiers.
struct CacheTiers::FetchState {
    std::vector<TierKey> keys; // to be read from the disk
    size_t next = 0, n_reading = 0;
    bool is_given_up = false;
    std::deque<TierEntry> ready;
    bool has_room(size_t staged_bytes) const { // each may have one entry, so that none waits for another
        return staged_bytes < most_staged_bytes || (ready.empty() && n_reading == 0);
    }
};

class CacheTiers::Fetch : public TierFetch {
  public:
    Fetch(CacheTiers &tiers, std::vector<TierKey> keys) : tiers_(tiers), state_(std::make_shared<FetchState>()) {
        for (const TierKey &key : keys)
            (tiers_.host_ && tiers_.host_->is_known(key) ? at_hand_ : state_->keys).push_back(key);
        if (state_->keys.empty()) return;
        std::lock_guard lock(tiers_.mutex_);
        tiers_.fetches_.push_back(state_);
        tiers_.wanted_.notify_all();
    }
    ~Fetch() override {
        std::lock_guard lock(tiers_.mutex_);
        for (const TierEntry &entry : state_->ready) tiers_.staged_bytes_ -= entry.data.size_bytes();
        state_->ready.clear();
        state_->is_given_up = true;
        state_->next = state_->keys.size();
        tiers_.wanted_.notify_all();
        std::erase_if(tiers_.fetches_, [this](const auto &each) { return each.expired() || each.lock() == state_; });
        if (tiers_.fetches_.empty() && tiers_.disk_) tiers_.disk_->drop_buffers();
    }
    std::vector<TierEntry> take(size_t most_bytes) override {
        std::vector<TierEntry> entries;
        size_t bytes = 0;
        for (; bytes < most_bytes && n_at_hand_ < at_hand_.size(); ++n_at_hand_) {
            TierData data = tiers_.host_->get(at_hand_[n_at_hand_]);
            if (!data) continue;
            bytes += data.size_bytes();
            entries.push_back({at_hand_[n_at_hand_], std::move(data), TierKind::host});
        }
        std::lock_guard lock(tiers_.mutex_);
        tiers_.is_signalled_ = false;
        for (; bytes < most_bytes && !state_->ready.empty(); state_->ready.pop_front()) {
            bytes += state_->ready.front().data.size_bytes();
            tiers_.staged_bytes_ -= state_->ready.front().data.size_bytes();
            entries.push_back(std::move(state_->ready.front()));
        }
        tiers_.wanted_.notify_all();
        return entries;
    }
    bool is_done() const override {
        std::lock_guard lock(tiers_.mutex_);
        return n_at_hand_ == at_hand_.size() && state_->next == state_->keys.size() && state_->n_reading == 0 &&
               state_->ready.empty();
    }

  private:
    CacheTiers &tiers_;
    std::shared_ptr<FetchState> state_;
    std::vector<TierKey> at_hand_; // in memory of the host
    size_t n_at_hand_ = 0; // taken
};

CacheTiers::CacheTiers(const CacheTiersConfig &config, const CacheLayout &layout)
    : identity_(tier_identity(config.model, layout)), sizes_(layout), always_reads_(config.always_reads) {
    if (!config.disk_folder.empty())
        disk_ = std::make_unique<DiskTier>(config.disk_folder, config.disk_bytes, identity_, sizes_);
    if (config.ram_bytes > 0)
        host_ = std::make_unique<HostTier>(config.ram_bytes, [this](TierKey key, TierData data) {
            if (disk_ && !disk_->is_known(key)) enqueue(key, std::move(data));
        });
    if (!disk_) return;
    speeds_ = disk_->speeds().value_or(TierSpeeds{});
    threads_.emplace_back([this] { run_writer(); });
    for (int i = 0; i < n_readers; ++i) threads_.emplace_back([this] { run_reader(); });
}

bool CacheTiers::has_queue_room(size_t size_bytes) const {
    return !closing_ && queued_bytes_ + size_bytes <= most_queued_bytes;
}

bool CacheTiers::wants(const TierKey &key, TierOffer offer) {
    const auto size_bytes = sizes_.of(key.group);
    if (!size_bytes || retired_) return false;
    if (offer == TierOffer::evicted && host_) {
        if (!host_->is_known(key)) return true;
        host_->touch(key);
        return false;
    }
    if (!disk_) return false;
    const bool is_there = disk_->is_known(key);
    std::lock_guard lock(mutex_);
    if (queued_.contains(key)) return false;
    if (is_there) { // it was used until now
        if (!closing_ && to_write_.size() < most_queued)
            to_write_.push_back(queued_.emplace(key, TierData()).first->first);
        written_.notify_all();
        return false;
    }
    if (has_queue_room(*size_bytes)) return true;
    ++n_dropped_;
    return false;
}

void CacheTiers::put(const TierKey &key, TierData data, TierOffer offer) {
    if (offer == TierOffer::evicted && host_)
        host_->put(key, data);
    else if (disk_)
        enqueue(key, std::move(data));
}

void CacheTiers::enqueue(const TierKey &key, TierData data) {
    std::lock_guard lock(mutex_);
    if (queued_.contains(key)) return;
    if (!has_queue_room(data.size_bytes())) {
        ++n_dropped_;
        return;
    }
    queued_bytes_ += data.size_bytes();
    queued_.emplace(key, std::move(data));
    to_write_.push_back(key);
    written_.notify_all();
}

bool CacheTiers::keep(const TierEntry &entry) {
    if (retired_ || has(entry.key)) return true;
    if (!disk_) {
        host_->put(entry.key, entry.data);
        return true;
    }
    {
        std::lock_guard lock(mutex_);
        if (!has_queue_room(entry.data.size_bytes())) return false;
    }
    enqueue(entry.key, entry.data);
    return true;
}

TierData CacheTiers::queued(const TierKey &key) const {
    std::lock_guard lock(mutex_);
    const auto found = queued_.find(key);
    return found == queued_.end() ? TierData() : found->second;
}

bool CacheTiers::has(const TierKey &key) {
    if (retired_) return false;
    if (host_ && host_->is_known(key)) return true;
    return disk_ && (queued(key) || disk_->has(key));
}

TierData CacheTiers::get(const TierKey &key) {
    TierData data = host_ ? host_->get(key) : TierData();
    if (!data && disk_) data = queued(key);
    if (data || !disk_) return data;
    data = disk_->get(key);
    std::lock_guard lock(mutex_);
    // The writer notes the use: the system may let that wait for other writes.
    if (data && !closing_ && to_write_.size() < most_queued && queued_.try_emplace(key).second) {
        to_write_.push_back(key);
        written_.notify_all();
    }
    return data;
}

bool CacheTiers::is_worth_reading(std::span<const TierKey> keys, int64_t n_tokens) {
    if (always_reads_) return true;
    size_t bytes = 0;
    for (const TierKey &key : keys)
        if (!host_ || !host_->is_known(key)) bytes += sizes_.of(key.group).value_or(0);
    std::lock_guard lock(mutex_);
    const double read_s = static_cast<double>(bytes) * speeds_.read_s_per_byte;
    const double compute_s = static_cast<double>(n_tokens) * speeds_.compute_s_per_token;
    if (bytes == 0 || speeds_.read_s_per_byte == 0 || speeds_.compute_s_per_token == 0 || read_s < compute_s)
        return true;
    return ++n_refused_ % tried_again_after == 0;
}

std::unique_ptr<TierFetch> CacheTiers::fetch(std::vector<TierKey> keys) {
    return std::make_unique<Fetch>(*this, std::move(keys));
}

// With the mutex held.
void CacheTiers::learn(double &mean, double value) {
    const int n = mean > 0 ? 1 : saved_after;
    mean = mean > 0 ? mean + newest_weight * (value - mean) : value;
    if (!disk_) return;
    n_unsaved_ += n;
    if (n_unsaved_ >= saved_after) written_.notify_all();
}

void CacheTiers::keep_speeds(std::unique_lock<std::mutex> &lock) {
    const TierSpeeds speeds = speeds_;
    n_unsaved_ = 0;
    lock.unlock();
    disk_->keep(speeds);
    lock.lock();
}

void CacheTiers::retire() { retired_ = true; }

void CacheTiers::computed(int64_t n_tokens, double seconds) {
    if (n_tokens < least_step_tokens) return;
    std::lock_guard lock(mutex_);
    learn(speeds_.compute_s_per_token, seconds / static_cast<double>(n_tokens));
}

void CacheTiers::run_writer() {
    std::unique_lock lock(mutex_);
    std::optional<double> deadline_s;
    for (;;) {
        written_.wait(lock, [this] { return !to_write_.empty() || n_unsaved_ >= saved_after || closing_; });
        if (n_unsaved_ >= (closing_ ? 1 : saved_after)) keep_speeds(lock);
        if (closing_ && !deadline_s) deadline_s = now_s() + close_s;
        if (deadline_s && (to_write_.empty() || now_s() > *deadline_s)) return;
        if (to_write_.empty()) continue;
        const TierKey key = to_write_.front();
        const TierData data = queued_.at(key);
        to_write_.pop_front();
        lock.unlock();
        try {
            data ? disk_->put(key, data) : disk_->touch(key);
        } catch (const std::exception &) { // out of memory: as if the disk was full
        }
        lock.lock();
        queued_.erase(key);
        queued_bytes_ -= data.size_bytes();
    }
}

std::shared_ptr<CacheTiers::FetchState> CacheTiers::next_to_read() {
    std::erase_if(fetches_, [](const auto &fetch) { return fetch.expired(); });
    for (const auto &fetch : fetches_) {
        std::shared_ptr<FetchState> state = fetch.lock();
        if (state && state->next < state->keys.size() && state->has_room(staged_bytes_)) return state;
    }
    return nullptr;
}

void CacheTiers::run_reader() {
    std::unique_lock lock(mutex_);
    while (!closing_) {
        const std::shared_ptr<FetchState> state = next_to_read();
        if (!state) {
            wanted_.wait(lock);
            continue;
        }
        const TierKey key = state->keys[state->next++];
        ++state->n_reading;
        lock.unlock();
        const double start_s = now_s();
        TierData data;
        try {
            data = get(key);
        } catch (const std::exception &) { // out of memory: a miss
        }
        const double seconds = now_s() - start_s;
        lock.lock();
        --state->n_reading;
        if (data) learn(speeds_.read_s_per_byte, seconds / static_cast<double>(data.size_bytes()));
        if (data && !state->is_given_up) {
            staged_bytes_ += data.size_bytes();
            state->ready.push_back({key, std::move(data), TierKind::disk});
        }
        const bool is_last = state->next == state->keys.size() && state->n_reading == 0;
        if (!is_last && staged_bytes_ < signalled_bytes) continue;
        if (std::exchange(is_signalled_, true) || !arrived_) continue;
        lock.unlock();
        arrived_();
        lock.lock();
    }
}

void CacheTiers::close() {
    {
        std::lock_guard lock(mutex_);
        closing_ = true;
    }
    written_.notify_all();
    wanted_.notify_all();
    for (std::thread &thread : threads_)
        if (thread.joinable()) thread.join();
}

CacheTiersStats CacheTiers::stats() const {
    CacheTiersStats stats;
    for (const CacheTier *tier :
         {static_cast<const CacheTier *>(host_.get()), static_cast<const CacheTier *>(disk_.get())}) {
        if (tier == nullptr) continue;
        stats.kinds.push_back(tier->kind());
        stats.tiers.push_back(tier->stats());
    }
    std::lock_guard lock(mutex_);
    if (disk_) stats.tiers.back().n_dropped += n_dropped_;
    stats.queued_bytes = queued_bytes_;
    stats.n_refused = n_refused_;
    if (speeds_.read_s_per_byte > 0) stats.read_bytes_per_s = 1 / speeds_.read_s_per_byte;
    if (speeds_.compute_s_per_token > 0) stats.compute_tokens_per_s = 1 / speeds_.compute_s_per_token;
    return stats;
}

} // namespace quire
