// Attention of decoding rows with a paged cache, for Vulkan.  cuda/paged_attention.h describes the node.
//
// A row's tokens are cut into splits whose size depends on the row alone.  A group of 128 threads takes a split of one
// row for up to H heads that share K and V, 32 tokens at a time.  A thread has 8 of a head's dimensions of every
// (1024 / D)th token and reads 16 bytes of K or V at a time.  Sums go through shared memory in a fixed order, without
// subgroup operations, so that they are the same on every device.  add_splits.comp adds up the splits.
#version 450

layout(constant_id = 0) const uint D = 128;
layout(constant_id = 1) const uint H = 4;

layout(local_size_x = 128) in;

const uint n_threads = 128, tile_tokens = 32, block_tokens = 32, most_splits = 64, least_split = 64;
const uint lanes = D / 8, together = n_threads / lanes;
const float no_score = -1e30; // finite, so that differences are not NaN

// Offsets are in 4 bytes, and what follows a tensor's binding.
layout(push_constant) uniform Args {
    uint q_at, k_at, v_at, tables_at, spans_at;
    uint k_token_words, v_token_words; // 4 bytes each, between tokens
    uint n_blocks, n_head, n_kv_head, n_splits, n_rows;
    float scale, soft_cap;
};
layout(binding = 0) readonly buffer Q { float q[]; };
layout(binding = 1) readonly buffer K { uint k[]; };
layout(binding = 2) readonly buffer V { uint v[]; };
layout(binding = 1) readonly buffer K16 { uvec4 k16[]; };
layout(binding = 2) readonly buffer V16 { uvec4 v16[]; };
layout(binding = 3) readonly buffer Tables { int tables[]; };
layout(binding = 4) readonly buffer Spans { int spans[]; };
layout(binding = 5) writeonly buffer Partial { float partial[]; }; // sums, then the largest score and the sum of weights

shared float query[H * D];
shared float parts[H * tile_tokens * lanes > together * D ? H * tile_tokens * lanes : together * D];
shared float scores[H * tile_tokens];

uint split_tokens(uint n) {
    uint size = least_split;
    while (size * most_splits < n) size *= 2;
    return size;
}

void unpack(uvec4 words, out float values[8]) {
    for (uint i = 0; i < 4; ++i) {
        const vec2 pair = unpackHalf2x16(words[i]);
        values[2 * i] = pair.x;
        values[2 * i + 1] = pair.y;
    }
}

// Bindings of some devices begin at any multiple of 4 bytes.
uvec4 load_k(uint at) {
    return at % 4 == 0 ? k16[at / 4] : uvec4(k[at], k[at + 1], k[at + 2], k[at + 3]);
}
uvec4 load_v(uint at) {
    return at % 4 == 0 ? v16[at / 4] : uvec4(v[at], v[at + 1], v[at + 2], v[at + 3]);
}

void main() {
    const uint row = gl_WorkGroupID.z, split = gl_WorkGroupID.x, thread = gl_LocalInvocationID.x;
    const uint first = uint(spans[spans_at + 2 * row]), n = uint(spans[spans_at + 2 * row + 1]);
    const uint size = split_tokens(n), begin = split * size;
    if (begin >= n) return;
    const uint end = min(n, begin + size);
    const uint shared_by = n_head / n_kv_head, n_parts = (shared_by + H - 1) / H;
    const uint kv_head = gl_WorkGroupID.y / n_parts, part = gl_WorkGroupID.y % n_parts * H;
    const uint head = kv_head * shared_by + part, n_heads = min(H, shared_by - part);
    const uint lane = thread % lanes, group = thread / lanes;
    const uint table = tables_at + row * n_blocks, column = (kv_head * D + lane * 8) / 2;

    for (uint i = thread; i < H * D; i += n_threads)
        query[i] = i < n_heads * D ? q[q_at + (row * n_head + head) * D + i] * scale : 0.0;
    float mixed[H][8], largest[H], weight[H];
    for (uint h = 0; h < H; ++h) {
        for (uint j = 0; j < 8; ++j) mixed[h][j] = 0;
        largest[h] = no_score;
        weight[h] = 0;
    }
    for (uint tile = begin; tile < end; tile += tile_tokens) {
        barrier(); // queries are there; all are done with the scores of the tile before
        const uint n_tokens = min(tile_tokens, end - tile);
        for (uint token = group; token < n_tokens; token += together) {
            const uint at = first + tile + token;
            const uint slot = uint(tables[table + at / block_tokens]) * block_tokens + at % block_tokens;
            float key[8];
            unpack(load_k(k_at + slot * k_token_words + column), key);
            for (uint h = 0; h < H; ++h) {
                float sum = 0;
                for (uint j = 0; j < 8; ++j) sum += query[h * D + lane * 8 + j] * key[j];
                parts[(h * tile_tokens + token) * lanes + lane] = sum;
            }
        }
        barrier();
        for (uint i = thread; i < H * tile_tokens; i += n_threads) {
            float sum = 0;
            for (uint j = 0; j < lanes; ++j) sum += parts[i * lanes + j];
            if (soft_cap > 0) sum = soft_cap * tanh(sum / soft_cap);
            scores[i] = i % tile_tokens < n_tokens ? sum : no_score;
        }
        barrier();
        for (uint h = 0; h < H; ++h) {
            float top = largest[h];
            for (uint t = 0; t < tile_tokens; ++t) top = max(top, scores[h * tile_tokens + t]);
            const float shrink = exp(largest[h] - top);
            largest[h] = top;
            weight[h] *= shrink;
            for (uint j = 0; j < 8; ++j) mixed[h][j] *= shrink;
            for (uint t = 0; t < n_tokens; ++t) weight[h] += exp(scores[h * tile_tokens + t] - top);
        }
        for (uint token = group; token < n_tokens; token += together) {
            const uint at = first + tile + token;
            const uint slot = uint(tables[table + at / block_tokens]) * block_tokens + at % block_tokens;
            float value[8];
            unpack(load_v(v_at + slot * v_token_words + column), value);
            for (uint h = 0; h < H; ++h) {
                const float share = exp(scores[h * tile_tokens + token] - largest[h]);
                for (uint j = 0; j < 8; ++j) mixed[h][j] += share * value[j];
            }
        }
    }
    const uint stats = n_rows * n_head * n_splits * D;
    for (uint h = 0; h < H; ++h) {
        barrier();
        for (uint j = 0; j < 8; ++j) parts[group * D + lane * 8 + j] = mixed[h][j];
        barrier();
        if (h >= n_heads) continue;
        const uint place = (row * n_head + head + h) * n_splits + split;
        for (uint d = thread; d < D; d += n_threads) {
            float sum = 0;
            for (uint g = 0; g < together; ++g) sum += parts[g * D + d];
            partial[place * D + d] = sum;
        }
        if (thread == 0) {
            partial[stats + 2 * place] = largest[h];
            partial[stats + 2 * place + 1] = weight[h];
        }
    }
}
