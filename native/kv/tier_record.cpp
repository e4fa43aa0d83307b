#include "kv/tier_record.h"

#include <bit>
#include <charconv>
#include <cstring>
#include <utility>

#include "core/q8_layout.h"
#include "kv/blake2b.h"
#include "kv/cache_ledger.h"

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr uint64_t format_version = 1; // for the headers, and for the meaning of the executors' contents
constexpr char record_magic[8] = {'q', 'u', 'i', 'r', 'e', 'k', 'v', '\n'};

// Offsets in a header.
constexpr size_t at_version = 8, at_group = 16, at_size = 24, at_checksum = 32, at_identity = 40, at_name = 72,
                 at_seal = 104;

template <class T> void put(RecordHeader &header, size_t at, const T &value) {
    std::memcpy(header.data() + at, &value, sizeof value);
}
template <class T> T get(const RecordHeader &header, size_t at) {
    T value;
    std::memcpy(&value, header.data() + at, sizeof value);
    return value;
}

uint64_t seal(const RecordHeader &header) { return checksum(std::span(header).first(at_seal)); }

// True if all numbers, without their signs, are below a limit: floats are in the order of their bits.
template <class T> bool all_below(std::span<const uint8_t> bytes, T magnitude, T limit) {
    T largest = 0;
    for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
        T bits;
        std::memcpy(&bits, bytes.data() + i, sizeof bits);
        const T value = static_cast<T>(bits & magnitude);
        largest = largest > value ? largest : value;
    }
    return largest < limit;
}

constexpr char digits[] = "0123456789abcdef";

std::string hex_of(std::span<const uint8_t> bytes) {
    std::string text;
    for (uint8_t byte : bytes) (text += digits[byte >> 4]) += digits[byte & 15];
    return text;
}

} // namespace

TierIdentity tier_identity(const std::string &model, const CacheLayout &layout) {
    Blake2b hash(sizeof(TierIdentity::bytes), "quire.kv.tiers.1");
    hash.update_u64(format_version);
    hash.update_u64(model.size());
    hash.update(model.data(), model.size());
    const std::string types = name(layout.types());
    hash.update_u64(types.size());
    hash.update(types.data(), types.size());
    hash.update_u64(static_cast<uint64_t>(layout.block_tokens()));
    hash.update_u64(layout.layers().size());
    for (const CacheSpec &layer : layout.layers()) {
        hash.update_u64(layer.rows.has_value());
        if (layer.rows) {
            const CacheRows &r = *layer.rows;
            for (int number : {r.n_kv_head, r.head_dim, r.v_head_dim, r.window, r.chunk, int{r.v_in_k}, r.every,
                               int{r.of_source}, int{r.bidirectional_media}})
                hash.update_u64(static_cast<uint64_t>(number));
        }
        hash.update_u64(layer.states.size());
        for (const CacheState &state : layer.states) hash.update_u64(static_cast<uint64_t>(state.n));
    }
    TierIdentity identity;
    hash.finish(identity.bytes);
    return identity;
}

TierSizes::Rows TierSizes::rows_of(DType type, int n_heads, int head_dim, int n_tokens) {
    Rows rows{static_cast<size_t>(n_heads), cache_head_bytes(type, head_dim, n_tokens), 0, type};
    if (type == DType::q8_0) {
        rows.codes_bytes = q8_codes_bytes(head_dim, n_tokens);
        rows.numbers = DType::f32;
    } else if (is_quantized(type)) { // scales, and with 5 bits smallest values (kernels/attention/low_bits.h)
        const auto n_scales = static_cast<size_t>(head_dim / block_size(type)) * static_cast<size_t>(n_tokens);
        rows.codes_bytes = rows.head_bytes - n_scales * (type == DType::q5_1 ? 4 : 2);
        rows.numbers = DType::f16;
    }
    return rows;
}

TierSizes::TierSizes(const CacheLayout &layout) : state_bytes_(layout.state_bytes()) {
    for (const CacheGroup &group : layout.groups()) {
        Group &made = groups_.emplace_back(Group{{}, group.block_bytes});
        for (const int layer : group.layers) {
            const CacheRows &rows = *layout.layers()[static_cast<size_t>(layer)].rows;
            const int n_tokens = rows.block_rows(layout.block_tokens());
            made.rows.push_back(rows_of(layout.types().k, rows.n_kv_head, rows.head_dim, n_tokens));
            if (!rows.v_in_k) made.rows.push_back(rows_of(layout.types().v, rows.n_kv_head, rows.v_head_dim, n_tokens));
        }
    }
}

std::optional<size_t> TierSizes::of(int group) const {
    if (group == CacheEdit::states) return state_bytes_ > 0 ? std::optional(state_bytes_) : std::nullopt;
    if (group < 0 || static_cast<size_t>(group) >= groups_.size()) return std::nullopt;
    return groups_[static_cast<size_t>(group)].size_bytes;
}

bool TierSizes::are_numbers(int group, std::span<const uint8_t> contents) const {
    if (group == CacheEdit::states) // a running maximum may begin at -inf
        return all_below<int32_t>(contents, 0x7fffffff, 0x7f800001);
    const uint8_t *at = contents.data();
    for (const Rows &rows : groups_[static_cast<size_t>(group)].rows)
        for (size_t head = 0; head < rows.n_heads; ++head, at += rows.head_bytes) {
            const std::span numbers(at + rows.codes_bytes, rows.head_bytes - rows.codes_bytes);
            const bool are_finite = rows.numbers == DType::f32    ? all_below<int32_t>(numbers, 0x7fffffff, 0x7f800000)
                                    : rows.numbers == DType::bf16 ? all_below<int16_t>(numbers, 0x7fff, 0x7f80)
                                                                  : all_below<int16_t>(numbers, 0x7fff, 0x7c00);
            if (!are_finite) return false;
        }
    return true;
}

std::string entry_name(const TierKey &key) {
    return hex_of(key.name.bytes) + '-' + (key.group == CacheEdit::states ? "state" : std::to_string(key.group));
}

std::optional<TierKey> entry_key(const std::string &name) {
    TierKey key{CacheEdit::states, {}};
    const size_t n_digits = 2 * key.name.bytes.size();
    if (name.size() <= n_digits || name[n_digits] != '-') return std::nullopt;
    for (size_t i = 0; i < n_digits; ++i) {
        const char *at = std::strchr(digits, name[i]);
        if (name[i] == '\0' || at == nullptr) return std::nullopt;
        key.name.bytes[i / 2] |= static_cast<uint8_t>((at - digits) << (i % 2 == 0 ? 4 : 0));
    }
    const std::string group = name.substr(n_digits + 1);
    if (group == "state") return key;
    const char *end = group.data() + group.size();
    const auto [at, error] = std::from_chars(group.data(), end, key.group);
    return error == std::errc() && at == end && key.group >= 0 ? std::optional(key) : std::nullopt;
}

std::string identity_name(const TierIdentity &identity) { return hex_of(std::span(identity.bytes).first(16)); }

// Four lanes of 64 bits, so that it is as fast as memory.  Each step of a lane is a bijection of lane and word: one
// changed word always changes the result.
uint64_t checksum(std::span<const uint8_t> bytes) {
    constexpr uint64_t factor = 0x9fb21c651e98df25; // odd
    uint64_t lanes[4] = {1, 2, 3, 4};
    const auto add = [](uint64_t &lane, uint64_t word) { lane = std::rotl((lane ^ word) * factor, 29); };
    const uint8_t *at = bytes.data();
    size_t left = bytes.size();
    for (; left >= 32; at += 32, left -= 32)
        for (size_t i = 0; i < 4; ++i) {
            uint64_t word;
            std::memcpy(&word, at + 8 * i, 8);
            add(lanes[i], word);
        }
    uint8_t tail[32] = {};
    if (left > 0) std::memcpy(tail, at, left);
    for (size_t i = 0; i < 4; ++i) {
        uint64_t word;
        std::memcpy(&word, tail + 8 * i, 8);
        add(lanes[i], word);
    }
    uint64_t all = bytes.size();
    for (uint64_t lane : lanes) add(all, lane ^ (lane >> 32));
    return all ^ (all >> 32);
}

RecordHeader record_header(const TierIdentity &identity, const TierKey &key, std::span<const uint8_t> contents) {
    RecordHeader header{};
    std::memcpy(header.data(), record_magic, sizeof record_magic);
    put(header, at_version, format_version);
    put(header, at_group, static_cast<int64_t>(key.group));
    put(header, at_size, static_cast<uint64_t>(contents.size()));
    put(header, at_checksum, checksum(contents));
    put(header, at_identity, identity.bytes);
    put(header, at_name, key.name.bytes);
    put(header, at_seal, seal(header));
    return header;
}

std::optional<RecordInfo> read_header(const RecordHeader &header, const TierIdentity &identity) {
    if (std::memcmp(header.data(), record_magic, sizeof record_magic) != 0 ||
        get<uint64_t>(header, at_version) != format_version || get<uint64_t>(header, at_seal) != seal(header) ||
        std::memcmp(header.data() + at_identity, identity.bytes.data(), identity.bytes.size()) != 0)
        return std::nullopt;
    RecordInfo info{{static_cast<int>(get<int64_t>(header, at_group)), {}},
                    get<uint64_t>(header, at_size),
                    get<uint64_t>(header, at_checksum)};
    info.key.name.bytes = get<std::array<uint8_t, 32>>(header, at_name);
    return info;
}

std::optional<TierEntry> read_record(std::span<const uint8_t> record, const TierIdentity &identity,
                                     const TierSizes &sizes) {
    if (record.size() < record_header_bytes) return std::nullopt;
    RecordHeader header;
    std::memcpy(header.data(), record.data(), header.size());
    const std::span<const uint8_t> contents = record.subspan(header.size());
    const auto info = read_header(header, identity);
    if (!info || sizes.of(info->key.group) != contents.size() || info->size_bytes != contents.size() ||
        info->checksum != checksum(contents) || !sizes.are_numbers(info->key.group, contents))
        return std::nullopt;
    TierData data(contents.size());
    std::memcpy(data.fill(), contents.data(), contents.size());
    return TierEntry{info->key, std::move(data), TierKind::disk};
}

} // namespace quire
