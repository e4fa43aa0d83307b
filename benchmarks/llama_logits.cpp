// Logits of llama.cpp for files of one model's keys, changed: reads paths from standard input, writes PATH.logits.
//
// Compiled by fuzz_gguf_keys.py against the peer's headers and libraries.  Each file has a process of its own, since
// an assertion of llama.cpp ends it.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "llama.h"

namespace {

int write_logits(const std::string &path, const std::vector<llama_token> &tokens) {
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    llama_model *model = llama_model_load_from_file(path.c_str(), model_params);
    if (model == nullptr) return 1;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_batch = params.n_ubatch = 256;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context *context = llama_init_from_model(model, params);
    if (context == nullptr) return 1;
    const int n = static_cast<int>(tokens.size());
    llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens = n;
    for (int i = 0; i < n; ++i) {
        batch.token[i] = tokens[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (llama_decode(context, batch) != 0) return 1;
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::ofstream out(path + ".logits", std::ios::binary);
    for (int i = 0; i < n; ++i)
        out.write(reinterpret_cast<const char *>(llama_get_logits_ith(context, i)), sizeof(float) * n_vocab);
    return out.good() ? 0 : 1;
}

} // namespace

int main(int argc, char **argv) {
    std::vector<llama_token> tokens;
    const int nowhere = open("/dev/null", O_RDWR);
    for (int i = 1; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    for (std::string path; std::getline(std::cin, path);) {
        const pid_t child = fork();
        if (child == 0) {
            // What it inherits is its parent's: a debugger that an assertion starts would read and write there.
            for (int descriptor : {0, 1, 2}) dup2(nowhere, descriptor);
            _exit(write_logits(path, tokens));
        }
        int status = 0;
        waitpid(child, &status, 0);
        std::printf("%d %s\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1, path.c_str());
        std::fflush(stdout);
    }
}
