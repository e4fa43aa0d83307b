// A request inside the decoder: its choices, and the state of its prompt.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/decoding/grammar_mask.h"
#include "engine/decoding/phrase_bans.h"
#include "engine/decoding/request.h"
#include "engine/decoding/stop_matcher.h"
#include "engine/drafting/drafter.h"
#include "engine/sampling/sampler.h"
#include "engine/scheduling/item_rows.h"
#include "engine/scheduling/sequence.h"

namespace quire {

enum class ChoiceState { generating, awaiting_logits, awaiting_mask, ended };

// A token that nobody has been told of, as a banned phrase may begin in it.
struct HeldToken {
    Event delta;
    StopMatcher matcher_before; // the text without it
};

struct Choice {
    SequenceId sequence{};
    ChoiceState state = ChoiceState::generating;
    std::optional<Sampler> sampler; // none where nothing is generated
    std::shared_ptr<const TokenMask> mask; // the next token's, once taken
    StopMatcher stop_matcher;
    PhraseBans bans;
    std::vector<HeldToken> held_tokens = {}; // may be taken back
    size_t n_released = 0;                   // held tokens that the last one set free
    std::vector<float> held_rows = {}; // the row that waits and those after it, each after one more drafted token
    size_t n_held_drawn = 0;      // held rows that were drawn from
    int64_t n_generated = 0;
    int64_t n_drafted = 0, n_accepted = 0;
    double first_token_s = 0;
};

// How a choice ended with its last token.
struct Ending {
    FinishReason reason;
    std::variant<std::monostate, int32_t, std::string> stop_reason;
};

// Times are seconds on the decoder's clock.
class ActiveRequest {
  public:
    // RequestError naming the invalid part of the request.  n_ctx: the most tokens of prompt and answer together; with a
    // decoder_start, the most of the prompt, which is then a source text, and of the answer.  An encoder that reads sound
    // reads the request's media in its place, and the answer continues the prompt.
    ActiveRequest(Request request, std::shared_ptr<const VocabInfo> vocab, int64_t n_ctx,
                  std::optional<int32_t> decoder_start = std::nullopt);
    // The scheduler's part of the request, with its own copy of the prompt.
    SequenceSpec take_spec();
    bool hears() const { return decoder_start && request.media; } // the encoder reads a sound
    int64_t n_prompt_tokens() const { return n_source > 0 ? n_source : n_prompt; } // as the caller counts
    int n_choices() const { return static_cast<int>(choices.size()); }
    bool ended() const;
    bool wants_prompt_rows() const;
    // Takes more rows of the prompt, the first at a position of `tokens`: hidden states, log-probabilities, or an event.
    std::optional<Event> read_prompt(int64_t first, const ItemRows &rows, std::span<const int32_t> tokens);
    // The embedding, once every row is there.
    Event embedding_event();

    // Draws the next token of a choice into a delta.  RequestError if the logits or the mask allow none.
    Event sample(int choice, const LogitRow &row, std::span<const int32_t> tokens, double now_s);
    // Like StepBatch::likeliest, for the next rows of a choice.
    int32_t n_likeliest(int choice) const;
    // True if a choice may draw now: it follows no grammar, or the next mask is there (and is kept for sample()).
    bool take_mask(int choice);
    // Tells those who compute masks which token was drawn.
    void ask_for_mask(int choice, int32_t token);
    // A token that completes a banned phrase: how many of the last ones it takes back, itself included; their state is
    // then that before them.  Otherwise 0.
    int64_t take_back(int choice, Event &delta);
    // Once ending() has seen the delta: adds the tokens that nothing can take back any more, with the last one all.
    void release(int choice, Event delta, bool is_last, std::vector<Event> &events);
    // True if the token of the delta was the last one; its text is then complete.
    std::optional<Ending> ending(int choice, Event &delta);
    Event event(EventKind kind, int choice) const;
    Event finish_event(int choice, const Ending &ending, double now_s) const;

    RequestId id{};
    Request request;
    std::shared_ptr<const VocabInfo> vocab;
    std::unique_ptr<MaskLease> masks; // none without a grammar
    std::vector<Choice> choices;
    std::vector<SampledToken> prompt_logprobs; // until they are handed out
    std::vector<double> hidden_sum; // for an embedding
    std::vector<float> hidden_rows; // for an embedding that is not pooled
    int64_t n_hidden_rows = 0;
    std::optional<int32_t> decoder_start;
    int64_t n_source; // the prompt's tokens, if an encoder reads them; else 0
    int64_t n_prompt; // tokens that the answer continues: the prompt's, or decoder_start
    int64_t max_tokens; // those and generated ones
    int64_t n_cached = 0;
    int64_t n_from_host = 0, n_from_disk = 0; // parts of n_cached
    DrafterSet drafters = 0; // that may propose
    double submitted_s = 0;
    std::optional<double> admitted_s;
    bool prompt_done = false;

  private:
    void add_hidden(int64_t first, const ItemRows &rows); // the mean is taken in double
    void add_log_probs(int64_t first, const ItemRows &rows, std::span<const int32_t> tokens);
    // The bytes that a token shows in this request's text.
    const std::string &shown(int32_t token) const;
    bool is_stop_token(int32_t id) const;
};

} // namespace quire
