#include "gguf/gguf_reader.h"

#include <cstdio>
#include <cstring>

#include "gguf/gguf_parser.h"

namespace quire {
namespace {

// The path of part `number` (from 0), from that of the first part: "name-00002-of-00003.gguf".
std::string part_path(const std::string &first, uint64_t number, uint64_t count) {
    char tail[64], wanted[64];
    std::snprintf(tail, sizeof tail, "-00001-of-%05llu.gguf", static_cast<unsigned long long>(count));
    std::snprintf(wanted, sizeof wanted, "-%05llu-of-%05llu.gguf", static_cast<unsigned long long>(number + 1),
                  static_cast<unsigned long long>(count));
    size_t n = std::strlen(tail);
    if (first.size() < n || first.compare(first.size() - n, n, tail) != 0) {
        throw LoadError("gguf", cat("'", first, "' is the first of ", count, " parts: rename it to NAME", tail));
    }
    return first.substr(0, first.size() - n) + wanted;
}

// The mapping is page-aligned, so an address is aligned like its offset.
void check_address(const GgufTensorInfo &info) {
    size_t wanted = is_quantized(info.dtype) ? 4 : block_bytes(info.dtype);
    if (info.offset_bytes % wanted != 0) {
        throw LoadError("gguf", cat("tensor '", info.name, "' of ", name(info.dtype), " starts at offset ",
                                    info.offset_bytes, ": expected a multiple of ", wanted));
    }
}

} // namespace

GgufReader::GgufReader(const std::string &path, LoadMode mode) {
    files_.push_back(MappedFile::open(path, mode));
    GgufParser parser(*this, 0);
    parser.parse();
    uint64_t count = parser.whole_number("split.count", 1);
    uint64_t number = parser.whole_number("split.no", 0);
    if (count > gguf_limit::splits)
        throw LoadError("gguf", cat("the model has ", count, " parts, the limit is ", gguf_limit::splits));
    if (count > 1 && number != 0)
        throw LoadError("gguf", cat("this is part ", number + 1, " of ", count, ": open the first part instead"));
    if (count > 1) open_parts(path, mode, count);
    for (const GgufTensorInfo &info : tensors_) check_address(info);
    for (const auto &file : files_) {
        // The cast is safe: the buffer is marked read-only, and so are the pages.
        buffers_.push_back(Buffer::borrow(const_cast<uint8_t *>(file->data()), file->size_bytes(), true, file));
    }
}

void GgufReader::open_parts(const std::string &path, LoadMode mode, uint64_t count) {
    const GgufValue *total = find("split.tensors.count");
    for (uint64_t number = 1; number < count; ++number) {
        files_.push_back(MappedFile::open(part_path(path, number, count), mode));
        GgufParser parser(*this, files_.size() - 1);
        parser.parse();
        uint64_t its_count = parser.whole_number("split.count", 1), its_number = parser.whole_number("split.no", 0);
        if (its_count != count || its_number != number) {
            throw LoadError("gguf", cat("'", files_.back()->path(), "' says it is part ", its_number + 1, " of ",
                                        its_count, ": expected part ", number + 1, " of ", count));
        }
    }
    if (total == nullptr) throw LoadError("gguf", "a split model without the key 'split.tensors.count'");
    if (total->is_array || scalar_bytes(total->type) == 0)
        throw LoadError("gguf", "key 'split.tensors.count' is not a number");
    uint64_t wanted = 0;
    std::memcpy(&wanted, total->bytes.data(), total->bytes.size());
    if (wanted != tensors_.size())
        throw LoadError("gguf", cat("the parts have ", tensors_.size(), " tensors together: expected ", wanted));
}

size_t GgufReader::size_bytes() const {
    size_t sum = 0;
    for (const auto &file : files_) sum += file->size_bytes();
    return sum;
}

const GgufValue *GgufReader::find(const std::string &key) const {
    auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
}

const GgufTensorInfo *GgufReader::find_tensor(const std::string &name) const {
    auto found = tensor_numbers_.find(name);
    return found == tensor_numbers_.end() ? nullptr : &tensors_[found->second];
}

Tensor GgufReader::tensor(const GgufTensorInfo &info) const {
    return Tensor::in_buffer(info.dtype, info.shape, buffers_[info.part], info.offset_bytes);
}

void GgufReader::check_unchanged() const {
    for (const auto &file : files_) file->check_unchanged();
}

std::string GgufReader::identity() const {
    std::string all;
    for (const auto &file : files_) {
        const std::string each = file->identity();
        if (each.empty()) return {};
        all += each + '\n';
    }
    return all;
}

std::vector<std::string_view> strings_of(const GgufValue &value) {
    std::vector<std::string_view> strings;
    strings.reserve(value.n);
    const uint8_t *p = value.bytes.data();
    for (uint64_t i = 0; i < value.n; ++i) {
        uint64_t n = 0;
        std::memcpy(&n, p, sizeof n);
        strings.emplace_back(reinterpret_cast<const char *>(p + sizeof n), n);
        p += sizeof n + n;
    }
    return strings;
}

} // namespace quire
