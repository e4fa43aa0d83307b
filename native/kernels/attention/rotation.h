// Rotation of heads before they are rounded to 4 or 5 bits, because a few large dimensions would determine the scale of
// all others.  It is a Hadamard transform in blocks as large as the size allows: orthogonal, its own inverse, a few
// additions per number.  Queries are rotated like K, and the output is rotated back if V is rotated, so in exact
// arithmetic results would not change.
#pragma once

#include "kernels/attention/low_bits.h"
#include "kernels/attention/paged_attention.h"

namespace quire {

// The number of dimensions rotated together: the largest power of two that divides the size.
inline int rotated_together(int dim) { return dim & -dim; }
// The number for K; if V is part of K, 32 for both.
inline int key_rotated_together(const AttentionShape &shape) {
    return shape.v_in_k ? low_bits_group : rotated_together(shape.head_dim);
}
inline int value_rotated_together(const AttentionShape &shape) {
    return shape.v_in_k ? key_rotated_together(shape) : rotated_together(shape.v_head_dim);
}

// Rotate in place; dim and together are multiples of 32.  The order of sums is the same on every instruction set.
void rotate_head(float *x, int dim, int together);

} // namespace quire
