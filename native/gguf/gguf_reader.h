// A strict reader of GGUF files: the whole file is checked before anything is used.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/tensor.h"
#include "gguf/gguf_format.h"
#include "gguf/mapped_file.h"

namespace quire {

// A metadata value; its contents stay in the file's memory.
struct GgufValue {
    GgufType type;                      // the type of the value, or of an array's elements
    bool is_array;
    uint64_t n;                         // number of elements; 1 unless it is an array
    std::span<const uint8_t> bytes; // the elements; each string is preceded by its length in 8 bytes
};

struct GgufTensorInfo {
    std::string name;
    DType dtype;
    Shape shape; // NumPy order
    size_t part;       // index of the file, 0 unless the model is split
    size_t offset_bytes; // from the start of the file
    size_t size_bytes;
};

// A model: one file, or all parts of a split one.  Tensors use the file's memory and keep it alive.
class GgufReader {
  public:
    // Throws LoadError if anything is wrong with the file, naming the key or tensor.
    GgufReader(const std::string &path, LoadMode mode);

    uint32_t version() const { return version_; }
    size_t alignment() const { return alignment_; }
    size_t n_files() const { return files_.size(); }
    size_t size_bytes() const;
    const std::vector<std::string> &keys() const { return keys_; }
    const GgufValue *find(const std::string &key) const; // null if absent
    const std::vector<GgufTensorInfo> &tensors() const { return tensors_; }
    const GgufTensorInfo *find_tensor(const std::string &name) const;
    Tensor tensor(const GgufTensorInfo &info) const;
    void check_unchanged() const;
    std::string identity() const; // MappedFile::identity of all files; empty if one of them is

  private:
    friend class GgufParser;
    void open_parts(const std::string &path, LoadMode mode, uint64_t count);
    uint32_t version_ = 0;
    size_t alignment_ = gguf_default_alignment;
    std::vector<std::shared_ptr<MappedFile>> files_;
    std::vector<std::shared_ptr<Buffer>> buffers_;
    std::vector<std::string> keys_;
    std::unordered_map<std::string, GgufValue> values_;
    std::vector<GgufTensorInfo> tensors_;
    std::unordered_map<std::string, size_t> tensor_numbers_;
};

// The strings of an array; a single string counts as an array of one.
std::vector<std::string_view> strings_of(const GgufValue &value);

} // namespace quire
