"""Patch the unpacked ggml: fixes for supported systems where it does not compile or is wrong, and hooks for Quire.

    python vendor/edits.py [FOLDER]             # default: vendor/ggml beside this file

Edits that are already applied are skipped.  An edit whose text is not found is an error, so that the edits are reviewed
with each new version of ggml.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Edit:
    """Lines to insert around a block of `path`: before the line starting with `first`, after the one with `last`."""

    path: str
    first: str
    last: str
    before: str
    after: str


EDITS = (
    # Layer settings, which configure the validation layer, need version 272 of Vulkan's headers.  Debian 12 has 239,
    # and Ubuntu 22.04 has 204.
    Edit(
        path="src/ggml-vulkan/ggml-vulkan.cpp",
        first="    std::vector<vk::LayerSettingEXT> settings",
        last="    vk::InstanceCreateInfo instance_create_info(",
        before="#if VK_HEADER_VERSION >= 272 // edited: see vendor/README.md",
        after="#else\n    vk::InstanceCreateInfo instance_create_info({}, &app_info, layers, extensions);\n#endif",
    ),
    # Each thread group copies 512 numbers of a row, but only half of the groups needed are started, so rows of more
    # than 512 integers are copied in part.  Blocks of the cache are such rows.
    Edit(
        path="src/ggml-vulkan/ggml-vulkan.cpp",
        first="    ggml_vk_create_pipeline(device, device->pipeline_get_rows[GGML_TYPE_I32], ",
        last="    ggml_vk_create_pipeline(device, device->pipeline_get_rows[GGML_TYPE_I32], ",
        before="#if 0 // edited, rows of whole numbers: see vendor/README.md",
        after="""#else
    ggml_vk_create_pipeline(device, device->pipeline_get_rows[GGML_TYPE_I32], "get_rows_i32", get_rows_i32_len,
                            get_rows_i32_data, "main", 3, sizeof(vk_op_binary_push_constants), {512, 1, 1}, {}, 1);
#endif""",
    ),
    # An operation writes only the buffers it uses into a descriptor set of 12; the others are those of the set's
    # previous use and may be freed.  Mesa's lavapipe binds all of a set, so on a CPU all are written.
    Edit(
        path="src/ggml-vulkan/ggml-vulkan-common.h",
        first="        vk::WriteDescriptorSet write_descriptor_set{ descriptor_set, 0, 0, pipeline->parameter_count",
        last="        vk::WriteDescriptorSet write_descriptor_set{ descriptor_set, 0, 0, pipeline->parameter_count",
        before="#if 0 // edited, all of a set: see vendor/README.md",
        after="""#else
        vk::DescriptorBufferInfo all_infos[MAX_PARAMETER_COUNT];
        const bool writes_all = ctx->device->properties.deviceType == vk::PhysicalDeviceType::eCpu;
        std::fill_n(all_infos, MAX_PARAMETER_COUNT, *descriptor_buffer_infos.begin());
        std::copy(descriptor_buffer_infos.begin(), descriptor_buffer_infos.end(), all_infos);
        const uint32_t n_infos = writes_all ? MAX_PARAMETER_COUNT : pipeline->parameter_count;
        vk::WriteDescriptorSet write_descriptor_set{ descriptor_set, 0, 0, n_infos,
                                                     vk::DescriptorType::eStorageBuffer, nullptr, all_infos };
#endif""",
    ),
    # Hooks for Quire's own operations on Vulkan (native/vulkan).  As on CUDA (below), ggml itself supports none.
    Edit(
        path="src/ggml-vulkan/ggml-vulkan.cpp",
        first='#include "ggml-vulkan-common.h"',
        last='#include "ggml-vulkan-common.h"',
        before="// edited, operations of our own: see vendor/README.md",
        after="""#ifdef QUIRE_VULKAN_OPERATIONS
bool quire_vulkan_supports(const vk_device & device, const ggml_tensor * op);
void quire_vulkan_compute(ggml_backend_vk_context * ctx, vk_context & subctx, ggml_tensor * dst);
#endif""",
    ),
    Edit(
        path="src/ggml-vulkan/ggml-vulkan.cpp",
        first="        ggml_vk_argmax(ctx, compute_ctx, src0, node);",
        last="        ggml_vk_argmax(ctx, compute_ctx, src0, node);",
        before="        // edited, the case behind this one: see vendor/README.md",
        after="""#ifdef QUIRE_VULKAN_OPERATIONS

        break;
    case GGML_OP_CUSTOM:
        quire_vulkan_compute(ctx, compute_ctx, node);
#endif""",
    ),
    Edit(
        path="src/ggml-vulkan/ggml-vulkan.cpp",
        first="                && ggml_is_contiguous(op->src[1]) && op->src[1]->type == GGML_TYPE_I32;",
        last="                && ggml_is_contiguous(op->src[1]) && op->src[1]->type == GGML_TYPE_I32;",
        before="                // edited, the case behind this one, too: see vendor/README.md",
        after="""#ifdef QUIRE_VULKAN_OPERATIONS
        case GGML_OP_CUSTOM:
            return quire_vulkan_supports(device, op);
#endif""",
    ),
    # Hooks for Quire's own operations (native/cuda).  The CUDA backend, which HIP and MUSA share, asks which
    # GGML_OP_CUSTOM nodes they support, and lets them compute these; ggml itself does not support any.
    Edit(
        path="src/ggml-cuda/ggml-cuda.cu",
        first='#include "ggml-cuda/common.cuh"',
        last='#include "ggml-cuda/common.cuh"',
        before="// edited, operations of our own: see vendor/README.md",
        after="""#ifdef QUIRE_CUDA_OPERATIONS
bool quire_cuda_supports(int device, const ggml_tensor * op);
bool quire_cuda_compute(ggml_backend_cuda_context & ctx, ggml_tensor * dst);
bool quire_cuda_wants_cublas(const ggml_tensor * matrix, int64_t n_rows);
#endif""",
    ),
    # Large steps may dequantize a matrix to BF16 and use cuBLAS (QUIRE_CUBLAS_ROWS).
    Edit(
        path="src/ggml-cuda/ggml-cuda.cu",
        first="        ggml_cuda_mul_mat_vec_q(ctx, src0, src1, nullptr, dst);",
        last="        ggml_cuda_mul_mat_vec_q(ctx, src0, src1, nullptr, dst);",
        before="        // edited, the choice of cuBLAS behind this one: see vendor/README.md",
        after="""#ifdef QUIRE_CUDA_OPERATIONS
        return;
    }
    if (quire_cuda_wants_cublas(src0, ne11)) {
        ggml_cuda_mul_mat_cublas_impl<GGML_TYPE_BF16>(ctx, src0, src1, dst);
#endif""",
    ),
    Edit(
        path="src/ggml-cuda/ggml-cuda.cu",
        first="            ggml_cuda_argmax(ctx, dst);",
        last="            ggml_cuda_argmax(ctx, dst);",
        before="            // edited, the case behind this one: see vendor/README.md",
        after="""#ifdef QUIRE_CUDA_OPERATIONS
            break;
        case GGML_OP_CUSTOM:
            if (!quire_cuda_compute(ctx, dst)) {
                return false;
            }
#endif""",
    ),
    Edit(
        path="src/ggml-cuda/ggml-cuda.cu",
        first="            return ggml_cuda_flash_attn_ext_supported(dev_ctx->device, op);",
        last="            return ggml_cuda_flash_attn_ext_supported(dev_ctx->device, op);",
        before="            // edited, the case behind this one, too: see vendor/README.md",
        after="""#ifdef QUIRE_CUDA_OPERATIONS
        case GGML_OP_CUSTOM:
            return quire_cuda_supports(dev_ctx->device, op);
#endif""",
    ),
)


def edited(text: str, edit: Edit) -> str:
    """Return the text with the edit applied, unchanged if it already is."""
    lines = text.split("\n")
    if edit.before in lines:
        return text
    starts = [i for i, line in enumerate(lines) if line.startswith(edit.first)]
    ends = [i for i, line in enumerate(lines) if line.startswith(edit.last)]
    if len(starts) != 1 or len(ends) != 1 or ends[0] < starts[0]:
        raise SystemExit(
            f"[vendor] no unique block from {edit.first.strip()!r} to {edit.last.strip()!r} in {edit.path}: "
            "vendor/edits.py was written for another version of ggml"
        )
    begin, end = starts[0], ends[0]
    lines[end + 1 : end + 1] = edit.after.split("\n")
    lines.insert(begin, edit.before)
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]).resolve() if arguments else HERE / "ggml"
    for edit in EDITS:
        path = folder / edit.path
        if not path.is_file():
            raise SystemExit(f"[vendor] file to edit not found: {path}")
        before = path.read_text(encoding="utf-8")
        after = edited(before, edit)
        if after == before:
            continue
        beside = path.with_name(path.name + ".edited")
        beside.write_text(after, encoding="utf-8")
        os.replace(beside, path)


if __name__ == "__main__":
    main(sys.argv[1:])
