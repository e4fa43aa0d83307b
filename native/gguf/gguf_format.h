// Constants of the GGUF container (specification: ggml, docs/gguf.md) and Quire's own limits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

enum class GgufType : uint32_t {
    u8 = 0,
    i8 = 1,
    u16 = 2,
    i16 = 3,
    u32 = 4,
    i32 = 5,
    f32 = 6,
    boolean = 7,
    string = 8,
    array = 9,
    u64 = 10,
    i64 = 11,
    f64 = 12,
};
inline constexpr uint32_t gguf_n_types = 13;

inline constexpr uint32_t gguf_magic = 0x46554747; // "GGUF", little-endian
inline constexpr uint32_t gguf_default_alignment = 32;

namespace gguf_limit {
inline constexpr uint64_t entries = 65536;       // keys and tensors, each
inline constexpr uint64_t string_bytes = 16U << 20;
inline constexpr uint64_t array_entries = 16U << 20;
inline constexpr uint64_t key_bytes = 65535;
inline constexpr uint64_t tensor_name_bytes = 63; // ggml stores 64 with the terminating NUL
inline constexpr uint64_t alignment = 65536;
inline constexpr uint32_t splits = 4096;
} // namespace gguf_limit

// The size of a scalar; 0 for strings and arrays.
constexpr size_t scalar_bytes(GgufType type) {
    switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean: return 1;
    case GgufType::u16:
    case GgufType::i16: return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32: return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64: return 8;
    default: return 0;
    }
}

constexpr const char *type_name(GgufType type) {
    constexpr const char *names[gguf_n_types] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                 "bool", "string", "array", "u64", "i64", "f64"};
    return names[static_cast<uint32_t>(type)];
}

} // namespace quire
