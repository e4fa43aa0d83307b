#include <pybind11/stl.h>

#include "bindings/kv_values.h"
#include "bindings/testing/bind_testing.h"
#include "core/error.h"
#include "kv/blake2b.h"
#include "kv/sequence_cache.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

using Tokens = std::vector<int32_t>;

void bind_prefix_hash(py::module_ &m) {
    m.def(
        "blake2b",
        [](const py::bytes &data, size_t digest_size, const py::bytes &person) {
            Blake2b hash(digest_size, std::string_view(person));
            const std::string_view view = data;
            hash.update(view.data(), view.size());
            std::vector<uint8_t> digest(digest_size);
            hash.finish(digest);
            return py::bytes(reinterpret_cast<const char *>(digest.data()), digest.size());
        },
        py::arg("data"), py::kw_only(), py::arg("digest_size") = 64, py::arg("person") = py::bytes());
    m.def(
        "block_hash",
        [](const Tokens &tokens, const std::optional<py::bytes> &parent, std::string adapter, std::string media,
           std::string salt) {
            const auto known = parent ? std::optional(to_hash(*parent)) : std::nullopt;
            return to_bytes(block_hash(known, tokens, {std::move(adapter), std::move(media), std::move(salt)}));
        },
        py::arg("token_ids"), py::kw_only(), py::arg("parent") = py::none(), py::arg("adapter") = py::bytes(),
        py::arg("media") = py::bytes(), py::arg("salt") = py::bytes());
}

// All that is there in each group, and in all states, unless a budget says less.
std::shared_ptr<CachePool> make_cache_pool(std::vector<CachePoolSpec::Group> groups, int block_tokens, int32_t n_states,
                                           size_t state_bytes, std::optional<size_t> budget_bytes,
                                           const std::string &reuse) {
    CachePoolSpec spec{std::move(groups), block_tokens, n_states, state_bytes, 0, reuse_named(reuse)};
    size_t all = n_states > 0 ? static_cast<size_t>(n_states - 1) * state_bytes : 0;
    for (const auto &group : spec.groups) all += static_cast<size_t>(group.n_blocks - 1) * group.block_bytes;
    spec.budget_bytes = budget_bytes.value_or(all);
    return std::make_shared<CachePool>(std::move(spec));
}

void bind_pools(py::module_ &m) {
    py::class_<CachePoolSpec::Group>(m, "PoolGroup")
        .def(py::init([](int32_t n_blocks, size_t block_bytes, int window, int chunk, bool of_source,
                         bool bidirectional_media) {
                 return CachePoolSpec::Group{{window, chunk, of_source, bidirectional_media}, n_blocks, block_bytes};
             }),
             py::arg("n_blocks"), py::kw_only(), py::arg("block_bytes") = 1, py::arg("window") = 0,
             py::arg("chunk") = 0, py::arg("of_source") = false, py::arg("bidirectional_media") = false);
    py::class_<CachePool, std::shared_ptr<CachePool>>(m, "CachePool")
        .def(py::init(&make_cache_pool), py::arg("groups"), py::kw_only(), py::arg("block_tokens") = kv_block_tokens,
             py::arg("n_states") = 0, py::arg("state_bytes") = 0, py::arg("budget_bytes") = py::none(),
             py::arg("reuse") = "by_age")
        .def_property_readonly("groups",
                               [](const CachePool &self) {
                                   std::vector<std::shared_ptr<BlockPool>> groups;
                                   for (size_t i = 0; i < self.n_groups(); ++i) groups.push_back(self.group(i));
                                   return groups;
                               })
        .def_property_readonly("states", &CachePool::states_pool)
        .def_property_readonly("held_bytes", [](const CachePool &self) { return self.ledger().held_bytes(); })
        .def_property_readonly("filled_bytes", [](const CachePool &self) { return self.ledger().filled_bytes(); })
        .def_property_readonly("stats", &CachePool::stats)
        .def("take_edits", [](CachePool &self) { return self.take_edits(); })
        .def("check", &CachePool::check);
    py::class_<CacheEdit>(m, "CacheEdit")
        .def_property_readonly("kind",
                               [](const CacheEdit &self) {
                                   static const char *const names[] = {"copy", "discard", "offer", "load"};
                                   return names[static_cast<int>(self.kind)];
                               })
        .def_property_readonly("group",
                               [](const CacheEdit &self) {
                                   return self.group == CacheEdit::states ? std::nullopt : std::optional(self.group);
                               })
        .def_readonly("source", &CacheEdit::from)
        .def_readonly("target", &CacheEdit::to);
}

// The cache of one sequence with the context of its hashes.
struct OwnedCache {
    std::shared_ptr<CachePool> pool;
    SequenceCache cache;
    PrefixContext context;

    std::vector<PrefixHash> hashes(const Tokens &tokens) const {
        HashChain chain(context, pool->block_tokens());
        const auto all = chain.of(tokens);
        return {all.begin(), all.end()};
    }
};

std::vector<Tokens> tables_of(const SequenceCache &cache) {
    std::vector<Tokens> tables;
    for (const BlockTable &table : cache.tables()) {
        tables.emplace_back();
        for (BlockId block : table.blocks()) tables.back().push_back(index(block));
    }
    return tables;
}

void bind_sequence_cache(py::module_ &m) {
    py::class_<OwnedCache>(m, "SequenceCache")
        .def(py::init([](std::shared_ptr<CachePool> pool, int64_t step_tokens, std::string salt) {
                 return OwnedCache{pool, SequenceCache(pool, step_tokens), {{}, {}, std::move(salt)}};
             }),
             py::arg("pool").none(false), py::kw_only(), py::arg("step_tokens"), py::arg("salt") = py::bytes())
        .def_property_readonly("tables", [](const OwnedCache &self) { return tables_of(self.cache); })
        .def_property_readonly("state",
                               [](const OwnedCache &self) {
                                   const auto state = self.cache.state();
                                   return state ? std::optional(index(*state)) : std::nullopt;
                               })
        .def(
            "match",
            [](const OwnedCache &self, const Tokens &tokens, int64_t max_tokens) {
                const auto known = self.hashes(tokens);
                return self.cache.match({known}, max_tokens).n_tokens;
            },
            py::arg("token_ids"), py::arg("max_tokens"))
        .def(
            "take",
            [](OwnedCache &self, const Tokens &tokens, int64_t max_tokens) -> std::optional<int64_t> {
                const auto known = self.hashes(tokens);
                const CacheMatch match = self.cache.match({known}, max_tokens);
                const auto n_tokens = static_cast<int64_t>(tokens.size());
                if (!self.cache.has_room_for({known}, match, n_tokens, 0)) return std::nullopt;
                self.cache.take({known}, match, n_tokens);
                return match.n_tokens;
            },
            py::arg("token_ids"), py::arg("max_tokens"))
        .def(
            "has_room_to_write",
            [](const OwnedCache &self, int64_t begin, int64_t end) { return self.cache.has_room_to_write(begin, end); },
            py::arg("begin"), py::arg("end"))
        .def(
            "prepare", [](OwnedCache &self, int64_t begin, int64_t end) { self.cache.prepare(begin, end); },
            py::arg("begin"), py::arg("end"))
        .def(
            "advance",
            [](OwnedCache &self, const Tokens &tokens, int64_t n_computed) {
                const auto all = self.hashes(tokens);
                const auto n = static_cast<size_t>(n_computed / self.pool->block_tokens());
                self.cache.advance(std::span(all).first(n), n_computed, static_cast<int64_t>(tokens.size()));
            },
            py::arg("token_ids"), py::arg("n_computed"))
        .def(
            "snapshot",
            [](OwnedCache &self, const Tokens &tokens, bool rolling) {
                const auto known = self.hashes(tokens);
                if (known.empty() || tokens.size() % static_cast<size_t>(self.pool->block_tokens()) != 0)
                    throw ShapeError("sequence_cache",
                                     cat("a snapshot after ", tokens.size(), " tokens: expected the end of a block"));
                self.cache.snapshot(known, rolling ? SnapshotKind::rolling : SnapshotKind::message);
            },
            py::arg("token_ids"), py::kw_only(), py::arg("rolling") = false)
        .def_property_readonly("can_fork", [](const OwnedCache &self) { return self.cache.can_fork(); })
        .def("fork", [](const OwnedCache &self) { return OwnedCache{self.pool, self.cache.fork(), self.context}; })
        .def("release", [](OwnedCache &self) { self.cache.release(); });
}

} // namespace

void bind_cache_pool(py::module_ &m) {
    bind_prefix_hash(m);
    bind_pools(m);
    bind_sequence_cache(m);
}

} // namespace quire::bindings
