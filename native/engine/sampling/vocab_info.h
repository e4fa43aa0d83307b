// The vocabulary, as far as sampling and text output need it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"

namespace quire {

struct VocabInfo {
    int32_t n_vocab = 0;
    std::vector<int32_t> eog_ids;         // ids that end a generation
    std::vector<std::string> token_bytes; // [n_vocab] the bytes a token shows; empty for control tokens

    bool is_eog(int32_t id) const { return std::find(eog_ids.begin(), eog_ids.end(), id) != eog_ids.end(); }
    bool contains(int64_t id) const { return id >= 0 && id < n_vocab; }

    void validate() const {
        if (n_vocab < 1) throw RequestError("vocab", cat("n_vocab is ", n_vocab, ": expected a positive number"));
        if (token_bytes.size() != static_cast<size_t>(n_vocab))
            throw RequestError("vocab", cat("token_bytes has ", token_bytes.size(), " entries: expected ", n_vocab));
        for (int32_t id : eog_ids)
            if (!contains(id))
                throw RequestError("vocab", cat("eog_ids has token ", id, ": expected ids less than ", n_vocab));
    }
};

} // namespace quire
