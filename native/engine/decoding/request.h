// Input and output of the decoder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"
#include "engine/sampling/log_probs.h"
#include "engine/sampling/sampling_params.h"
#include "engine/scheduling/prompt_media.h"
#include "engine/scheduling/sequence.h"

namespace quire {

enum class RequestId : uint64_t {};

enum class Task {
    generate,
    prompt_logits, // no sampling: every row of the prompt's logits is an answer
    embedding,     // no sampling: the answer is made of the prompt's hidden states
};
// The hidden states of an embedding: those of each token, their mean, the first token's (BERT's [CLS]), the last's, or
// the largest number of all tokens in each dimension.  Taps: for each token those after all tapped layers, side by side.
enum class Pooling { none, mean, cls, last, max, taps };
// The code that looks at a row of logits before a token is drawn from it.
enum class LogitsProcessor { none, outside };

// A constraint on the answer.  Its masks are computed outside, see engine/decoding/grammar_mask.h.
enum class Constraint { none, grammar };

// Announced: an event tells that the request has left the queue.
enum class Admission { silent, announced };

struct Request {
    std::vector<int32_t> token_ids;               // the prompt
    std::shared_ptr<const SamplingParams> params; // none where nothing is generated
    Task task = Task::generate;
    LogitsProcessor processor = LogitsProcessor::none;
    Constraint constraint = Constraint::none;
    std::string salt; // only requests of one salt share cached blocks
    int priority = 0; // higher first, under the policies that look at it
    std::string key;  // requests of one key share their part of the machine
    // Control tokens that show after all, with their text: marks that the reader of the text looks for.
    std::vector<std::pair<int32_t, std::string>> visible_tokens;
    Pooling pooling = Pooling::last; // for an embedding
    Admission admission = Admission::silent;
    std::vector<int64_t> snapshot_positions; // in the prompt, besides ends of messages: ends of images
    std::optional<int64_t> second_text; // its first token's position in the prompt, which is a pair of texts
    std::string speculation;         // name of a drafter, "auto" or "off"; empty: the decoder's default
    std::vector<int32_t> prediction; // expected answer, for drafters
    std::shared_ptr<const PromptMedia> media = {}; // null: the prompt is text
    std::vector<std::vector<int32_t>> bad_sequences = {}; // tokens that no answer has in this order
    std::vector<HeldAdapter> adapters = {};
    std::vector<LateAdapter> late_adapters = {}; // those of `adapters` that begin later
    // Names contents and scales of the others; only requests with the same name share cached blocks.
    std::string adapters_name = {};
    std::vector<float> steering = {}; // numbers that the model reads beside each token, after those of media
};

enum class EventKind {
    delta,         // tokens of a choice and the text that is safe to show
    logits,        // a row that waits for provide_logits()
    prompt_logits, // rows of the prompt
    embedding,     // the prompt's
    admitted,      // the first event of a request that asks for it: it runs from now on
    progress,      // more of the prompt of such a request has been read
    finish,        // the last event of a choice
    error,         // the last event of a request, all choices included
};
enum class FinishReason { stop, length, cancelled };

struct Timings {
    double queue_s = 0;   // until first admitted
    double prefill_s = 0; // from there to the first token
    double decode_s = 0;  // from there to the last one
};

struct Event {
    RequestId request{};
    int choice = 0;
    EventKind kind = EventKind::delta;
    std::string text;                          // delta
    std::vector<int32_t> token_ids;            // delta; logits: those that no delta has told yet
    std::vector<SampledToken> logprobs;        // delta: one per token id, where asked for
    std::vector<SampledToken> prompt_logprobs; // first delta of choice 0: of the prompt's tokens but the first
    std::vector<float>
        logits; // logits [n_vocab], prompt_logits [rows, n_vocab], embedding [n_hidden], or [rows, n_hidden] unpooled
    int64_t first_position = 0; // position of the first of those rows
    int64_t n_logit_rows = 0;
    FinishReason finish_reason = FinishReason::stop;
    std::variant<std::monostate, int32_t, std::string> stop_reason; // the token or string that ended the choice
    int64_t n_prompt_tokens = 0; // finish
    int64_t n_cached_tokens = 0; // admitted, finish: of the prompt, found in the cache
    int64_t n_host_tokens = 0, n_disk_tokens = 0; // finish: of those, found in these tiers below the pool
    int64_t n_read_tokens = 0;   // progress: of the prompt, those found in the cache included
    int64_t n_generated_tokens = 0; // finish
    int64_t n_drafted_tokens = 0;   // finish: computed because a drafter proposed them
    int64_t n_accepted_tokens = 0;  // finish: of those, in the answer
    Timings timings; // finish
    ErrorKind error_kind = ErrorKind::internal; // error
    std::string error;
};

} // namespace quire
