// Writes llama.cpp's logits and greedy tokens for small files: reads paths from
// standard input and writes PATH.logits.
//
//     llama_logits N_NEW PROMPTS
//
// PROMPTS has one prompt of token ids per line.  For each, the file gets the
// logits, N_VOCAB floats each, of all prompt tokens and of N_NEW greedy tokens
// except the last.  For an encoder it gets the vectors of all tokens, or the
// scores if the encoder scores texts.  For an encoder-decoder, the first 64
// tokens of a prompt are encoded and the others begin the answer.
//
// llama_cpp_peer.py compiles this file against llama.cpp's headers and
// libraries.  Each model file is read in its own process, since an assertion of
// llama.cpp would end it; its output is in PATH.log.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "llama.h"

namespace {

using Tokens = std::vector<llama_token>;

// The context length of most tiny models; some use it in their rotation.
constexpr int kContext = 256;
constexpr int kSource = 64; // number of prompt tokens that are encoded
constexpr rlim_t kSeconds = 20; // processor time for a file; one never ends

void write_floats(std::ofstream &out, const float *values, int n) {
  out.write(reinterpret_cast<const char *>(values),
            sizeof(float) * static_cast<std::size_t>(n));
}

llama_context *open_context(const std::string &path, llama_model *&model) {
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  model = llama_model_load_from_file(path.c_str(), model_params);
  if (model == nullptr)
    return nullptr;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = kContext;
  params.n_threads = params.n_threads_batch = 1;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  return llama_init_from_model(model, params);
}

enum class Part { encoder, decoder };

bool run(llama_context *context, Part part, const Tokens &tokens, int begin) {
  llama_batch batch = llama_batch_init(static_cast<int>(tokens.size()), 0, 1);
  batch.n_tokens = static_cast<int>(tokens.size());
  for (int i = 0; i < batch.n_tokens; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = begin + i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  const int status = part == Part::encoder ? llama_encode(context, batch)
                                           : llama_decode(context, batch);
  llama_batch_free(batch);
  return status == 0;
}

bool write_vectors(llama_context *context, const llama_model *model,
                   const Tokens &prompt, std::ofstream &out) {
  llama_set_embeddings(context, true);
  if (llama_memory_t memory = llama_get_memory(context))
    llama_memory_clear(memory, true);
  const bool encodes = llama_model_has_encoder(model);
  if (!run(context, encodes ? Part::encoder : Part::decoder, prompt, 0))
    return false;
  switch (llama_pooling_type(context)) {
  case LLAMA_POOLING_TYPE_NONE:
    for (int i = 0; i < static_cast<int>(prompt.size()); ++i)
      write_floats(out, llama_get_embeddings_ith(context, i),
                   llama_model_n_embd_out(model));
    return true;
  case LLAMA_POOLING_TYPE_RANK:
    write_floats(out, llama_get_embeddings_seq(context, 0),
                 llama_model_n_cls_out(model));
    return true;
  default:
    write_floats(out, llama_get_embeddings_seq(context, 0),
                 llama_model_n_embd_out(model));
    return true;
  }
}

bool write_answer(llama_context *context, int n_vocab, const Tokens &prompt,
                  int n_new, std::ofstream &out) {
  if (llama_memory_t memory = llama_get_memory(context))
    llama_memory_clear(memory, true);
  Tokens step = prompt;
  const llama_model *model = llama_get_model(context);
  int n_unwritten = 0;
  if (llama_model_has_encoder(model)) {
    const auto end = prompt.begin() + kSource;
    if (!run(context, Part::encoder, Tokens(prompt.begin(), end), 0))
      return false;
    step.assign(end, prompt.end());
    step.insert(step.begin(), llama_model_decoder_start_token(model));
    n_unwritten = 1;
  }
  for (int begin = 0, i = 0; i < std::max(n_new, 1); ++i) {
    if (!run(context, Part::decoder, step, begin))
      return false;
    const int n = static_cast<int>(step.size());
    for (int row = std::exchange(n_unwritten, 0); row < n; ++row)
      write_floats(out, llama_get_logits_ith(context, row), n_vocab);
    const float *last = llama_get_logits_ith(context, n - 1);
    begin += n;
    step = {static_cast<llama_token>(std::max_element(last, last + n_vocab) -
                                     last)};
  }
  return true;
}

int write_all(const std::string &path, const std::vector<Tokens> &prompts,
              int n_new) {
  llama_model *model = nullptr;
  llama_context *context = open_context(path, model);
  if (context == nullptr)
    return 1;
  std::ofstream out(path + ".logits", std::ios::binary);
  const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  // Encoders without a decoder keep nothing, except T5's and llama's.
  const bool is_encoder =
      n_new == 0 || llama_get_memory(context) == nullptr ||
      (llama_model_has_encoder(model) && !llama_model_has_decoder(model));
  for (const Tokens &prompt : prompts) {
    const bool is_written =
        is_encoder ? write_vectors(context, model, prompt, out)
                   : write_answer(context, n_vocab, prompt, n_new, out);
    if (!is_written)
      return 1;
  }
  return out.good() ? 0 : 1;
}

std::vector<Tokens> read_prompts(const char *path) {
  std::vector<Tokens> prompts;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream numbers(line);
    Tokens &prompt = prompts.emplace_back();
    for (llama_token token = 0; numbers >> token;)
      prompt.push_back(token);
  }
  return prompts;
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 3)
    return 2;
  const int n_new = std::atoi(argv[1]);
  const std::vector<Tokens> prompts = read_prompts(argv[2]);
  const int nowhere = open("/dev/null", O_RDWR);
  for (std::string path; std::getline(std::cin, path);) {
    const pid_t child = fork();
    if (child == 0) {
      // Do not use the parent's descriptors: a debugger started by an assertion
      // would read and write them.
      const int log =
          open((path + ".log").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(nowhere, 0);
      for (int descriptor : {1, 2})
        dup2(log, descriptor);
      const rlimit limit{kSeconds, kSeconds};
      setrlimit(RLIMIT_CPU, &limit);
      _exit(write_all(path, prompts, n_new));
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::printf("%d %s\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                path.c_str());
    std::fflush(stdout);
  }
}
