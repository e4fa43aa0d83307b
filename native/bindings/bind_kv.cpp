#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/kv_values.h"
#include "core/error.h"
#include "kv/block_table.h"
#include "kv/cache_pool.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

using Tokens = std::vector<int32_t>;

BlockId to_block(int32_t id) { return BlockId{id}; }

py::object to_object(std::optional<BlockId> block) { return block ? py::object(py::int_(index(*block))) : py::none(); }

// A table with the context of its hashes, which the engine keeps with the sequence.
struct OwnedTable {
    BlockTable table;
    PrefixContext context;

    std::vector<PrefixHash> hashes(const Tokens &tokens) const {
        HashChain chain(context, table.pool()->block_tokens());
        const auto all = chain.of(tokens);
        return {all.begin(), all.end()};
    }
    int64_t match_prefix(const Tokens &tokens, std::optional<int64_t> max_tokens) {
        const auto known = hashes(tokens);
        const PrefixMatch match = table.match(known, max_tokens.value_or(static_cast<int64_t>(tokens.size())));
        table.take(known, match);
        return match.n_tokens;
    }
    void publish(const Tokens &tokens) { table.publish(hashes(tokens)); }
};

void bind_pool(py::module_ &m) {
    py::class_<BlockPool, std::shared_ptr<BlockPool>>(m, "BlockPool")
        .def(py::init([](int32_t n_blocks, int block_tokens, const std::string &reuse) {
                 return std::make_shared<BlockPool>(n_blocks, block_tokens, reuse_named(reuse));
             }),
             py::arg("n_blocks"), py::arg("block_tokens") = kv_block_tokens, py::kw_only(), py::arg("reuse") = "by_age")
        .def_property_readonly("n_blocks", &BlockPool::n_blocks)
        .def_property_readonly("n_usable", &BlockPool::n_usable)
        .def_property_readonly("block_tokens", &BlockPool::block_tokens)
        .def_property_readonly("n_free", &BlockPool::n_free)
        .def_property_readonly("n_referenced", &BlockPool::n_referenced)
        .def_property_readonly("n_published", &BlockPool::n_published)
        .def_property_readonly("n_evictions", &BlockPool::n_evictions)
        .def_property_readonly("free_blocks",
                               [](const BlockPool &self) {
                                   Tokens ids;
                                   for (BlockId block : self.free_blocks()) ids.push_back(index(block));
                                   return ids;
                               })
        .def("allocate",
             [](BlockPool &self) {
                 const auto block = self.allocate();
                 if (!block)
                     throw CapacityError("block_pool", cat("no free block: all ", self.n_usable(), " are in use"));
                 return index(*block);
             })
        .def(
            "retain", [](BlockPool &self, int32_t block) { self.retain(to_block(block)); }, py::arg("block"))
        .def(
            "release", [](BlockPool &self, int32_t block) { self.release(to_block(block)); }, py::arg("block"))
        .def(
            "n_references", [](const BlockPool &self, int32_t block) { return self.n_references(to_block(block)); },
            py::arg("block"))
        .def(
            "publish",
            [](BlockPool &self, int32_t block, const py::bytes &hash) {
                return self.publish(to_block(block), to_hash(hash));
            },
            py::arg("block"), py::arg("hash"))
        .def(
            "unpublish", [](BlockPool &self, int32_t block) { self.unpublish(to_block(block)); }, py::arg("block"))
        .def(
            "find", [](const BlockPool &self, const py::bytes &hash) { return to_object(self.find(to_hash(hash))); },
            py::arg("hash"))
        .def(
            "hash",
            [](const BlockPool &self, int32_t block) {
                const auto &hash = self.hash(to_block(block));
                return hash ? py::object(to_bytes(*hash)) : py::none();
            },
            py::arg("block"))
        .def("forget_published", &BlockPool::forget_published)
        .def("check", &BlockPool::check);
}

void bind_table(py::module_ &m) {
    py::class_<OwnedTable>(m, "BlockTable")
        .def(py::init([](std::shared_ptr<BlockPool> pool, std::string adapter, std::string media, std::string salt) {
                 return OwnedTable{BlockTable(std::move(pool)),
                                   {std::move(adapter), std::move(media), std::move(salt)}};
             }),
             py::arg("pool").none(false), py::kw_only(), py::arg("adapter") = py::bytes(),
             py::arg("media") = py::bytes(), py::arg("salt") = py::bytes())
        .def_property_readonly("pool", [](const OwnedTable &self) { return self.table.pool(); })
        .def_property_readonly("blocks",
                               [](const OwnedTable &self) {
                                   Tokens ids;
                                   for (BlockId block : self.table.blocks()) ids.push_back(index(block));
                                   return ids;
                               })
        .def("__len__", [](const OwnedTable &self) { return self.table.blocks().size(); })
        .def(
            "slot", [](const OwnedTable &self, int64_t position) { return self.table.slot(position); },
            py::arg("position"))
        .def("match_prefix", &OwnedTable::match_prefix, py::arg("token_ids"), py::arg("max_tokens") = py::none())
        .def(
            "blocks_needed",
            [](const OwnedTable &self, int64_t begin, int64_t end) { return self.table.blocks_needed(begin, end); },
            py::arg("begin"), py::arg("end"))
        .def(
            "reserve", [](OwnedTable &self, int64_t n_tokens) { self.table.reserve(n_tokens); }, py::arg("n_tokens"))
        .def(
            "ensure_writable",
            [](OwnedTable &self, int64_t position) -> std::optional<std::pair<int32_t, int32_t>> {
                const auto copy = self.table.ensure_writable(position);
                if (!copy) return std::nullopt;
                return std::pair(index(copy->from), index(copy->to));
            },
            py::arg("position"))
        .def("publish", &OwnedTable::publish, py::arg("token_ids"))
        .def("fork", [](const OwnedTable &self) { return OwnedTable{self.table.fork(), self.context}; })
        .def("release", [](OwnedTable &self) { self.table.release(); });
}

void bind_layout(py::module_ &m) {
    py::class_<CacheGroup>(m, "CacheGroup")
        .def_property_readonly("window", [](const CacheGroup &self) { return self.lifetime.window; })
        .def_property_readonly("chunk", [](const CacheGroup &self) { return self.lifetime.chunk; })
        .def_property_readonly("of_source", [](const CacheGroup &self) { return self.lifetime.of_source; })
        .def_property_readonly("bidirectional_media",
                               [](const CacheGroup &self) { return self.lifetime.bidirectional_media; })
        .def_readonly("layers", &CacheGroup::layers)
        .def_readonly("block_bytes", &CacheGroup::block_bytes);
    py::class_<CacheLayout>(m, "CacheLayout")
        .def(py::init([](std::vector<CacheSpec> layers, const std::string &types, int block_tokens) {
                 return CacheLayout(std::move(layers), cache_types_from_name(types), block_tokens);
             }),
             py::arg("layers"), py::arg("dtype"), py::arg("block_tokens") = kv_block_tokens)
        .def_property_readonly("dtype", [](const CacheLayout &self) { return name(self.types()); })
        .def_property_readonly("block_tokens", &CacheLayout::block_tokens)
        .def_property_readonly("groups", &CacheLayout::groups)
        .def_property_readonly("block_bytes", &CacheLayout::block_bytes)
        .def_property_readonly("state_bytes", &CacheLayout::state_bytes)
        .def("k_block_bytes", &CacheLayout::k_block_bytes, py::arg("layer"))
        .def("v_block_bytes", &CacheLayout::v_block_bytes, py::arg("layer"));
}

void bind_cache_stats(py::module_ &m) {
    py::class_<CacheStats::Kind>(m, "CacheBytes")
        .def_readonly("held", &CacheStats::Kind::held_bytes)
        .def_readonly("cached", &CacheStats::Kind::cached_bytes);
    py::class_<CacheStats>(m, "CacheStats")
        .def_readonly("budget_bytes", &CacheStats::budget_bytes)
        .def_readonly("groups", &CacheStats::groups)
        .def_readonly("states", &CacheStats::states)
        .def_readonly("n_snapshots", &CacheStats::n_snapshots);
}

} // namespace

void bind_kv(py::module_ &m) {
    bind_layout(m);
    bind_pool(m);
    bind_table(m);
    bind_cache_stats(m);
}

} // namespace quire::bindings
