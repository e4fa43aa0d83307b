#include "gguf/gguf_parser.h"

#include <cstring>

namespace quire {

std::span<const uint8_t> ByteCursor::take(uint64_t n, const std::string &what) {
    if (n > left())
        throw LoadError("gguf", cat("truncated file: ", what, " needs ", n, " bytes at offset ", position_,
                                    ", the file has ", size_bytes_));
    std::span<const uint8_t> bytes(data_ + position_, static_cast<size_t>(n));
    position_ += static_cast<size_t>(n);
    return bytes;
}

std::string_view ByteCursor::string(uint64_t limit, const std::string &what) {
    auto n = scalar<uint64_t>(what);
    if (n > limit) throw LoadError("gguf", cat(what, " has ", n, " bytes, the limit is ", limit));
    std::span<const uint8_t> bytes = take(n, what);
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

bool is_utf8(std::string_view text) {
    const auto *p = reinterpret_cast<const unsigned char *>(text.data());
    const unsigned char *end = p + text.size();
    while (p < end) {
        if (*p < 0x80) {
            ++p;
            continue;
        }
        int n = *p >= 0xC2 && *p <= 0xDF ? 1 : (*p & 0xF0) == 0xE0 ? 2 : *p >= 0xF0 && *p <= 0xF4 ? 3 : 0;
        if (n == 0 || end - p <= n) return false;
        uint32_t code = *p & (0x3F >> n);
        for (int i = 1; i <= n; ++i) {
            if ((p[i] & 0xC0) != 0x80) return false;
            code = code << 6 | (p[i] & 0x3F);
        }
        bool overlong = (n == 2 && code < 0x800) || (n == 3 && code < 0x10000);
        if (overlong || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
        p += n + 1;
    }
    return true;
}

GgufParser::GgufParser(GgufReader &reader, size_t part)
    : reader_(reader), part_(part), cursor_(reader.files_[part]->data(), reader.files_[part]->size_bytes()) {}

void GgufParser::parse() {
    parse_header();
    keys_.reserve(n_keys_);
    for (uint64_t i = 0; i < n_keys_; ++i) parse_entry(i);
    parse_alignment();
    tensors_.reserve(n_tensors_);
    for (uint64_t i = 0; i < n_tensors_; ++i) parse_tensor(i);
    check_layout();
    if (part_ == 0) {
        reader_.alignment_ = alignment_;
        reader_.keys_ = std::move(keys_);
        reader_.values_ = values_;
    }
    for (GgufTensorInfo &info : tensors_) {
        if (!reader_.tensor_numbers_.emplace(info.name, reader_.tensors_.size()).second) {
            throw LoadError("gguf", cat("duplicate tensor '", info.name, "'"));
        }
        reader_.tensors_.push_back(std::move(info));
    }
}

void GgufParser::parse_header() {
    auto magic = cursor_.scalar<uint32_t>("the magic");
    if (magic != gguf_magic) throw LoadError("gguf", "not a GGUF file: it does not start with \"GGUF\"");
    auto version = cursor_.scalar<uint32_t>("the version");
    if (version == 0x02000000 || version == 0x03000000) throw LoadError("gguf", "big-endian files are not supported");
    if (version != 2 && version != 3)
        throw LoadError("gguf", cat("unsupported GGUF version ", version, ": expected 2 or 3"));
    reader_.version_ = version;
    n_tensors_ = cursor_.scalar<uint64_t>("the number of tensors");
    n_keys_ = cursor_.scalar<uint64_t>("the number of keys");
    if (n_tensors_ > gguf_limit::entries)
        throw LoadError("gguf", cat("the file has ", n_tensors_, " tensors, the limit is ", gguf_limit::entries));
    if (n_keys_ > gguf_limit::entries)
        throw LoadError("gguf", cat("the file has ", n_keys_, " keys, the limit is ", gguf_limit::entries));
    // The shortest key takes 13 bytes and the shortest tensor 36.  This limits what later code allocates for these counts
    // to a multiple of the file's size.
    if (n_keys_ * 13 + n_tensors_ * 36 > cursor_.left()) {
        throw LoadError("gguf", cat("truncated file: ", n_keys_, " keys and ", n_tensors_, " tensors cannot fit in ",
                                    cursor_.left(), " bytes"));
    }
}

void GgufParser::parse_entry(uint64_t number) {
    std::string key(cursor_.string(gguf_limit::key_bytes, cat("key ", number)));
    if (key.empty()) throw LoadError("gguf", cat("key ", number, " has an empty name"));
    if (!is_utf8(key) || key.find('\0') != std::string::npos)
        throw LoadError("gguf", cat("the name of key ", number, " is not UTF-8 or contains NUL"));
    GgufValue value = parse_value(key);
    if (!values_.emplace(key, value).second) throw LoadError("gguf", cat("duplicate key '", key, "'"));
    keys_.push_back(std::move(key));
}

GgufValue GgufParser::parse_value(const std::string &key) {
    const std::string what = cat("key '", key, "'");
    auto type_number = cursor_.scalar<uint32_t>(what);
    if (type_number >= gguf_n_types) throw LoadError("gguf", cat(what, " has the unknown type ", type_number));
    GgufValue value{static_cast<GgufType>(type_number), false, 1, {}};
    if (value.type == GgufType::array) {
        value.is_array = true;
        auto element = cursor_.scalar<uint32_t>(what);
        if (element >= gguf_n_types) throw LoadError("gguf", cat(what, " is an array of the unknown type ", element));
        value.type = static_cast<GgufType>(element);
        if (value.type == GgufType::array)
            throw LoadError("gguf", cat(what, " is an array of arrays, which is unsupported"));
        value.n = cursor_.scalar<uint64_t>(what);
        if (value.n > gguf_limit::array_entries)
            throw LoadError("gguf", cat(what, " has ", value.n, " elements, the limit is ", gguf_limit::array_entries));
    }
    if (value.type == GgufType::string) {
        size_t start = cursor_.position();
        for (uint64_t i = 0; i < value.n; ++i) cursor_.string(gguf_limit::string_bytes, what);
        const uint8_t *data = reader_.files_[part_]->data();
        value.bytes = {data + start, cursor_.position() - start};
        return value;
    }
    value.bytes = cursor_.take(value.n * scalar_bytes(value.type), what);
    if (value.type == GgufType::boolean) {
        for (uint8_t byte : value.bytes) {
            if (byte > 1) throw LoadError("gguf", cat(what, " has a boolean of ", int{byte}, ": expected 0 or 1"));
        }
    }
    return value;
}

const GgufValue *GgufParser::value(const std::string &key) const {
    auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
}

uint64_t GgufParser::whole_number(const std::string &key, uint64_t absent) const {
    const GgufValue *found = value(key);
    if (found == nullptr) return absent;
    bool whole = !found->is_array && scalar_bytes(found->type) > 0 && found->type != GgufType::f32 &&
                 found->type != GgufType::f64 && found->type != GgufType::boolean;
    if (!whole)
        throw LoadError("gguf", cat("key '", key, "' is ", found->is_array ? "an array" : type_name(found->type),
                                    ": expected an integer"));
    uint64_t number = 0;
    std::memcpy(&number, found->bytes.data(), found->bytes.size());
    return number;
}

void GgufParser::parse_alignment() {
    const GgufValue *found = value("general.alignment");
    if (found == nullptr) return;
    if (found->is_array || found->type != GgufType::u32)
        throw LoadError("gguf", cat("key 'general.alignment' is ", type_name(found->type), ": expected u32"));
    uint64_t alignment = whole_number("general.alignment", gguf_default_alignment);
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > gguf_limit::alignment) {
        throw LoadError("gguf", cat("key 'general.alignment' is ", alignment, ": expected a power of two up to ",
                                    gguf_limit::alignment));
    }
    alignment_ = alignment;
}

void GgufParser::parse_tensor(uint64_t number) {
    GgufTensorInfo info{};
    info.part = part_;
    info.name = std::string(cursor_.string(gguf_limit::tensor_name_bytes, cat("the name of tensor ", number)));
    if (info.name.empty()) throw LoadError("gguf", cat("tensor ", number, " has an empty name"));
    if (!is_utf8(info.name) || info.name.find('\0') != std::string::npos)
        throw LoadError("gguf", cat("the name of tensor ", number, " is not UTF-8 or contains NUL"));
    const std::string what = cat("tensor '", info.name, "'");
    auto n_dims = cursor_.scalar<uint32_t>(what);
    if (n_dims < 1 || n_dims > 4) throw LoadError("gguf", cat(what, " has ", n_dims, " dimensions: expected 1 to 4"));
    for (uint32_t i = 0; i < n_dims; ++i) {
        auto dim = cursor_.scalar<uint64_t>(what);
        if (dim < 1 || dim > (uint64_t{1} << 62))
            throw LoadError("gguf", cat(what, " has a dimension of ", dim, ": expected 1 to 2^62"));
        info.shape.insert(info.shape.begin(), static_cast<int64_t>(dim)); // the file has the fastest dimension first
    }
    auto type_number = cursor_.scalar<uint32_t>(what);
    std::optional<DType> dtype = dtype_from_id(type_number);
    if (!dtype) throw LoadError("gguf", cat(what, " has the unknown dtype ", type_number));
    info.dtype = *dtype;
    try {
        info.size_bytes = shape_bytes(info.dtype, info.shape);
    } catch (const Error &error) {
        throw LoadError("gguf", cat(what, " has an invalid shape: ", error.what()));
    }
    auto offset = cursor_.scalar<uint64_t>(what);
    if (offset % alignment_ != 0)
        throw LoadError("gguf", cat(what, " starts at offset ", offset, ": expected a multiple of ", alignment_));
    info.offset_bytes = offset;
    tensors_.push_back(std::move(info));
}

// Check that tensors are in order, inside the file and without overlap.  Offsets count from the first aligned byte
// after the header; this turns them into offsets from the start of the file.
void GgufParser::check_layout() {
    size_t file_bytes = reader_.files_[part_]->size_bytes();
    size_t start = (cursor_.position() + alignment_ - 1) / alignment_ * alignment_;
    uint64_t end = 0; // end of the previous tensor, from `start`
    for (GgufTensorInfo &info : tensors_) {
        if (info.offset_bytes < end) {
            throw LoadError("gguf", cat("tensor '", info.name, "' starts at offset ", info.offset_bytes,
                                        ", inside the previous tensor, which ends at ", end));
        }
        bool inside = start <= file_bytes && info.offset_bytes <= file_bytes - start &&
                      info.size_bytes <= file_bytes - start - info.offset_bytes;
        if (!inside) {
            throw LoadError("gguf",
                            cat("truncated file: tensor '", info.name, "' needs ", info.size_bytes, " bytes at offset ",
                                start, " + ", info.offset_bytes, ", the file has ", file_bytes));
        }
        end = info.offset_bytes + info.size_bytes;
        info.offset_bytes += start;
    }
}

} // namespace quire
