#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "core/error.h"
#include "kv/blake2b.h"
#include "kv/block_table.h"
#include "kv/kv_spec.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

using Tokens = std::vector<int32_t>;

py::bytes to_bytes(const PrefixHash &hash) {
    return py::bytes(reinterpret_cast<const char *>(hash.bytes.data()), hash.bytes.size());
}

PrefixHash to_hash(const py::bytes &bytes) {
    const std::string_view view = bytes;
    PrefixHash hash;
    if (view.size() != hash.bytes.size())
        throw ShapeError("prefix_hash", cat("a block's hash must have 32 bytes but has ", view.size()));
    std::copy(view.begin(), view.end(), hash.bytes.begin());
    return hash;
}

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

void bind_spec(py::module_ &m) {
    py::class_<KvLayer>(m, "KvLayer")
        .def(py::init([](int n_kv_head, int head_dim, std::optional<int> v_head_dim, std::optional<int> window) {
                 return KvLayer{n_kv_head, head_dim, v_head_dim.value_or(head_dim), window};
             }),
             py::arg("n_kv_head"), py::arg("head_dim"), py::arg("v_head_dim") = py::none(),
             py::arg("window") = py::none())
        .def_readonly("n_kv_head", &KvLayer::n_kv_head)
        .def_readonly("head_dim", &KvLayer::head_dim)
        .def_readonly("v_head_dim", &KvLayer::v_head_dim)
        .def_readonly("window", &KvLayer::window);
    py::class_<KvSpec>(m, "KvSpec")
        .def(py::init<DType, std::vector<KvLayer>, int>(), py::arg("dtype"), py::arg("layers"),
             py::arg("block_tokens") = default_block_tokens)
        .def_property_readonly("dtype", &KvSpec::dtype)
        .def_property_readonly("layers", &KvSpec::layers)
        .def_property_readonly("block_tokens", &KvSpec::block_tokens)
        .def_property_readonly("block_bytes", &KvSpec::block_bytes)
        .def_property_readonly("token_bytes", &KvSpec::token_bytes)
        .def("k_block_bytes", &KvSpec::k_block_bytes, py::arg("layer"))
        .def("v_block_bytes", &KvSpec::v_block_bytes, py::arg("layer"))
        .def("pool_bytes", &KvSpec::pool_bytes, py::arg("n_blocks"))
        .def("blocks_for_tokens", &KvSpec::blocks_for_tokens, py::arg("n_tokens"))
        .def("blocks_in_bytes", &KvSpec::blocks_in_bytes, py::arg("size_bytes"));
}

void bind_pool(py::module_ &m) {
    py::class_<BlockPool, std::shared_ptr<BlockPool>>(m, "BlockPool")
        .def(py::init<int32_t, int>(), py::arg("n_blocks"), py::arg("block_tokens") = default_block_tokens)
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
                     throw CapacityError("block_pool",
                                         cat("a block must be free but all ", self.n_usable(), " are in use"));
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

} // namespace

void bind_kv(py::module_ &m) {
    bind_prefix_hash(m);
    bind_spec(m);
    bind_pool(m);
    bind_table(m);
}

} // namespace quire::bindings
