// Add up the splits of paged_attention.comp in their order: one group per head and row, one thread per number of a head.
#version 450

layout(constant_id = 0) const uint D = 128;
layout(constant_id = 1) const bool has_sinks = false;

layout(local_size_x = 32) in;

const uint most_splits = 64, least_split = 64;
const float no_score = -1e30;

layout(push_constant) uniform Args {
    uint spans_at, sinks_at, out_at;
    uint n_head, n_splits, n_rows;
};
layout(binding = 0) readonly buffer Spans { int spans[]; };
layout(binding = 1) readonly buffer Sinks { float sinks[]; };
layout(binding = 2) readonly buffer Partial { float partial[]; };
layout(binding = 3) writeonly buffer Out { float made[]; };

uint split_tokens(uint n) {
    uint size = least_split;
    while (size * most_splits < n) size *= 2;
    return size;
}

void main() {
    const uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    const uint n = uint(spans[spans_at + 2 * row + 1]), size = split_tokens(n), n_used = (n + size - 1) / size;
    const uint first = (row * n_head + head) * n_splits, stats = n_rows * n_head * n_splits * D;
    const float sink = has_sinks ? sinks[sinks_at + head] : no_score;
    float top = sink;
    for (uint i = 0; i < n_used; ++i) top = max(top, partial[stats + 2 * (first + i)]);
    float weight = has_sinks ? exp(sink - top) : 0.0;
    for (uint i = 0; i < n_used; ++i)
        weight += exp(partial[stats + 2 * (first + i)] - top) * partial[stats + 2 * (first + i) + 1];
    for (uint d = gl_LocalInvocationID.x; d < D; d += gl_WorkGroupSize.x) {
        float total = 0;
        for (uint i = 0; i < n_used; ++i)
            total += exp(partial[stats + 2 * (first + i)] - top) * partial[(first + i) * D + d];
        made[out_at + (row * n_head + head) * D + d] = n > 0 ? total / weight : 0.0;
    }
}
