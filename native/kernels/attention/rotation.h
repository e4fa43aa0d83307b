// Heads are rotated before they are rounded to 4 or 5 bits: a few large dimensions would make the scale of all others.
// The rotation is Hadamard's, by blocks as large as the size allows: orthogonal, its own inverse, a few additions for each
// number.  Queries are rotated as K is, and what comes of V is rotated back, so that exact results would not change.
#pragma once

#include "kernels/attention/low_bits.h"
#include "kernels/attention/paged_attention.h"

namespace quire {

// Dimensions that are rotated together: the largest power of two that the size is a multiple of.
inline int rotated_together(int dim) { return dim & -dim; }
// Of K; where its first dimensions are V, so many of both.
inline int key_rotated_together(const AttentionShape &shape) {
    return shape.v_in_k ? low_bits_group : rotated_together(shape.head_dim);
}
inline int value_rotated_together(const AttentionShape &shape) {
    return shape.v_in_k ? key_rotated_together(shape) : rotated_together(shape.v_head_dim);
}

// In place; dim is a multiple of 32, so is together.  Each sum has one order, on every instruction set.
void rotate_head(float *x, int dim, int together);

} // namespace quire
