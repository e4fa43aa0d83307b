// Parts that differ between systems, GGUF files, the cache's pools,
// the scheduler, the decoder's thread and a model with attention, without
// Python: a program of its own for systems on which nobody runs Python here
// (ci/native_check core and windows-core).
//
//   core_check FOLDER: which it writes files to
//
// Oracles: the digest of RFC 7693, files written here byte by byte, the made-up
// model's documented hash, sums in double precision.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "core/paths.h"
#include "core/system.h"
#include "engine/decoding/decoder.h"
#include "testing/fake_executor.h"
#include "gguf/gguf_reader.h"
#include "graph/trace/fused_operations.h"
#include "graph/run/graph_executor.h"
#include "kv/blake2b.h"

namespace {

using namespace quire;
namespace fs = std::filesystem;

int failures = 0, checks = 0;

void expect(bool holds, const std::string &what) {
  ++checks;
  if (holds)
    return;
  ++failures;
  std::printf("FAIL %s\n", what.c_str());
}

// The kind of error that a call ends with; none: it ends well.
std::optional<ErrorKind> error_of(const std::function<void()> &call) {
  try {
    call();
  } catch (const Error &error) {
    return error.kind();
  }
  return std::nullopt;
}

using Bytes = std::vector<uint8_t>;

void check_system(const fs::path &folder) {
  const fs::path named = folder / path_from("Zürich 東京.bin");
  const std::string name = text_of(named);
  std::ofstream(named, std::ios::binary) << "before";
  Bytes bytes(100000);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(i * 7 % 251);
  std::string fresh;
  {
    File file = File::create(text_of(folder), "new-", ".tmp", fresh);
    expect(file.is_open(), cat("a file is made: ", system_error()));
    expect(file.write_at(bytes.data(), 60000, 0) &&
               file.write_at(bytes.data() + 60000, 40000, 60000),
           "it is written");
    expect(file.end_at(bytes.size()), cat("it ends: ", system_error()));
  }
  expect(rename_over(fresh, name),
         cat("a file takes another's name: ", system_error()));
  expect(!fs::exists(path_from(fresh)), "the name that it had is gone");
  File file = File::open(name);
  const std::optional<FileInfo> info = file.info();
  expect(info && info->size_bytes == bytes.size() && info->is_trusted,
         "the file is known, and this user's");
  uint8_t part[16] = {};
  expect(file.read_at(part, 16, 99990) == 10 &&
             std::memcmp(part, bytes.data() + 99990, 10) == 0,
         "its end is read");
  expect(file.read_at(part, 16, 100000) == 0, "behind its end is nothing");
  {
    const std::shared_ptr<uint8_t> mapped = map_file(file, bytes.size());
    expect(mapped && std::memcmp(mapped.get(), bytes.data(), bytes.size()) == 0,
           "it is mapped");
  }
  file.close();
  remove_file(name);
  expect(!fs::exists(named) && !File::open(name).is_open() &&
             !system_error().empty(),
         "it is gone, and errors have words");

  constexpr size_t size = size_t{1} << 20;
  const std::shared_ptr<uint8_t> pages = new_pages(size, false);
  const auto is_zero = [&] {
    return std::all_of(pages.get(), pages.get() + size,
                       [](uint8_t b) { return b == 0; });
  };
  expect(pages && is_zero(), "new pages are zero");
  std::memset(pages.get(), 5, size);
  give_back(pages.get(), size);
  expect(is_zero(), "pages that were given back are zero");
  expect(find_device("cpu").kind() == DeviceKind::cpu,
         "the CPU's module is found");
}

// GGUF as its specification has it: little endian, strings with 8 bytes of
// length.
struct Writer {
  Bytes bytes;
  template <class T> Writer &add(T value) {
    const auto *begin = reinterpret_cast<const uint8_t *>(&value);
    bytes.insert(bytes.end(), begin, begin + sizeof value);
    return *this;
  }
  Writer &text(std::string_view value) {
    add(uint64_t{value.size()});
    bytes.insert(bytes.end(), value.begin(), value.end());
    return *this;
  }
};

void check_gguf(const fs::path &folder) {
  Writer file;
  file.add(uint32_t{0x46554747})
      .add(uint32_t{3})
      .add(uint64_t{1})
      .add(uint64_t{2});
  file.text("general.architecture").add(uint32_t{8}).text("llama");
  file.text("numbers")
      .add(uint32_t{9})
      .add(uint32_t{4})
      .add(uint64_t{3})
      .add(uint32_t{1})
      .add(uint32_t{2})
      .add(uint32_t{3});
  file.text("w")
      .add(uint32_t{2})
      .add(uint64_t{4})
      .add(uint64_t{3})
      .add(uint32_t{0})
      .add(uint64_t{0});
  file.bytes.resize((file.bytes.size() + 31) / 32 * 32);
  for (int i = 0; i < 12; ++i)
    file.add(static_cast<float>(i) / 4);
  const std::string path = text_of(folder / path_from("模型.gguf"));
  const auto write = [&](size_t n) {
    std::ofstream out(path_from(path), std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char *>(file.bytes.data()),
              static_cast<std::streamsize>(n));
  };
  write(file.bytes.size());
  for (LoadMode mode : {LoadMode::mmap, LoadMode::copy, LoadMode::lock}) {
    const auto read = [&] {
      const GgufReader reader(path, mode);
      expect(reader.keys().size() == 2 &&
                 strings_of(*reader.find("general.architecture")).at(0) ==
                     "llama" &&
                 reader.find("numbers")->n == 3 &&
                 reader.find("numbers")->bytes[4] == 2,
             "keys are read");
      const Tensor w = reader.tensor(*reader.find_tensor("w"));
      float values[12];
      w.copy_to_host(values, sizeof values);
      expect(w.shape() == Shape{3, 4} && values[0] == 0 && values[11] == 2.75F,
             "the tensor is read");
      reader.check_unchanged();
    };
    const auto error = error_of(read);
    const bool may_not_lock =
        mode == LoadMode::lock && error == ErrorKind::capacity;
    expect(!error || may_not_lock,
           cat("a sound file is read, in mode ", static_cast<int>(mode)));
  }
  for (size_t n = 0; n < file.bytes.size(); n += 5) {
    write(n);
    expect(error_of([&] { GgufReader(path, LoadMode::mmap); }) ==
               ErrorKind::load,
           cat("a file truncated to ", n, " bytes is refused"));
  }
  expect(error_of([&] { GgufReader(text_of(folder), LoadMode::mmap); }) ==
             ErrorKind::load,
         "a folder is refused");
}

void check_hash() {
  Blake2b hash(64);
  hash.update("abc", 3);
  std::array<uint8_t, 64> digest{};
  hash.finish(digest);
  std::string text;
  for (uint8_t byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  expect(text ==
             "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
             "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923",
         "BLAKE2b of abc is RFC 7693's");
}

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr int n_vocab = 64, eog = 63;

// The next token of the made-up model (testing/fake_executor.h), never the end.
int32_t next_token(const std::vector<int32_t> &tokens) {
  uint64_t hash = 0;
  for (int32_t token : tokens)
    hash = mix(hash * 31 + static_cast<uint64_t>(token) + 1);
  int32_t best = 0;
  for (int32_t v = 0; v < n_vocab; ++v)
    if (v != eog && mix(hash + static_cast<uint64_t>(v)) >> 40 >
                        mix(hash + static_cast<uint64_t>(best)) >> 40)
      best = v;
  return best;
}

std::vector<int32_t> prompt(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t &token : tokens)
    token = static_cast<int32_t>(random() % 60);
  return tokens;
}

std::vector<int32_t> continued(std::vector<int32_t> tokens, size_t n) {
  while (n-- > 0)
    tokens.push_back(next_token(tokens));
  return tokens;
}

void check_scheduler() {
  // 40 blocks of 4 tokens for 24 texts of up to 60.
  CachePoolSpec spec{{{CacheLifetime{}, 41, 3}}, 4, 0, 0, 40 * 3};
  SchedulerConfig config;
  config.max_step_tokens = 24;
  config.max_running = 12;
  Scheduler scheduler(config, std::make_shared<CachePool>(spec));
  std::map<SequenceId, std::vector<int32_t>> expected;
  for (uint32_t i = 0; i < 24; ++i) {
    std::vector<int32_t> tokens =
        prompt(16, i % 3); // others have begun alike
    for (int32_t token : prompt(i, i))
      tokens.push_back(token);
    SequenceSpec sequence;
    sequence.max_tokens = static_cast<int64_t>(tokens.size() + 20);
    sequence.tokens = tokens;
    expected[scheduler.submit(std::move(sequence), 1, i).at(0)] =
        continued(tokens, 20);
  }
  double now_s = 100;
  for (int step = 0; !scheduler.empty() && step < 10000; ++step) {
    const Plan plan = scheduler.plan(now_s++);
    if (plan.items.empty())
      break;
    expect(plan.n_tokens <= config.max_step_tokens, "a step keeps its budget");
    scheduler.commit(plan);
    for (const PlanItem &item : plan.items) {
      const Sequence &sequence = scheduler.sequence(item.id);
      if (sequence.has_work())
        continue;
      if (sequence.n_tokens() < sequence.max_tokens) {
        scheduler.append(item.id, next_token(sequence.tokens));
        continue;
      }
      expect(sequence.tokens == expected[item.id],
             "a text is the one that was asked for");
      expected.erase(item.id);
      scheduler.remove(item.id);
    }
    scheduler.check();
  }
  expect(expected.empty() && scheduler.empty(),
         cat(expected.size(), " texts are left"));
  const SchedulerStats stats = scheduler.stats();
  expect(stats.n_preemptions > 0 && stats.n_prefix_hit_tokens > 0,
         "texts were preempted, and found in the cache");
}

void check_decoder() {
  FakeExecutorOptions options;
  options.n_vocab = n_vocab;
  options.n_blocks = 41;
  options.block_tokens = 4;
  options.max_rows = 64;
  options.max_logit_rows = 24;
  options.max_sequences = 16;
  auto vocab = std::make_shared<VocabInfo>();
  vocab->n_vocab = n_vocab;
  vocab->eog_ids = {eog};
  for (int i = 0; i < n_vocab; ++i)
    vocab->token_bytes.push_back(
        i == eog ? "" : std::string(1, static_cast<char>('a' + i % 26)));
  DecoderConfig config;
  config.n_ctx = 256;
  Decoder decoder(std::make_shared<FakeExecutor>(options), vocab, config);
  const auto submit = [&](std::vector<int32_t> tokens, int32_t max_tokens) {
    auto params = std::make_shared<SamplingParams>();
    params->temperature = 0;
    params->ignore_eos = true;
    params->max_tokens = max_tokens;
    Request request;
    request.token_ids = std::move(tokens);
    request.params = params;
    return decoder.submit(std::move(request));
  };
  expect(error_of([&] { submit({}, 4); }) == ErrorKind::request,
         "an empty prompt is refused");
  expect(error_of([&] { submit({n_vocab}, 4); }) == ErrorKind::request,
         "a token that there is not is refused");
  std::map<RequestId, std::vector<int32_t>> expected, answers;
  for (uint32_t i = 0; i < 24; ++i) {
    const std::vector<int32_t> tokens = prompt(1 + i * 3 % 40, i % 5);
    const std::vector<int32_t> all = continued(tokens, 12);
    expected[submit(tokens, 12)] = {
        all.begin() + static_cast<std::ptrdiff_t>(tokens.size()), all.end()};
  }
  const RequestId cancelled = submit(prompt(5, 9), 140);
  decoder.cancel(cancelled);
  size_t n_ended = 0;
  while (n_ended < expected.size() + 1) {
    const std::vector<Event> events = decoder.wait(20.0);
    if (events.empty())
      break;
    for (const Event &event : events) {
      expect(event.kind != EventKind::error, event.error);
      if (event.kind == EventKind::delta)
        answers[event.request].insert(answers[event.request].end(),
                                      event.token_ids.begin(),
                                      event.token_ids.end());
      if (event.kind != EventKind::finish && event.kind != EventKind::error)
        continue;
      ++n_ended;
      const bool is_cut = event.finish_reason == FinishReason::cancelled;
      expect(is_cut == (event.request == cancelled),
             "the cancelled request alone was cancelled");
    }
  }
  answers.erase(cancelled);
  expect(answers == expected, "answers are the made-up model's");
  decoder.close();
  const DecoderStats stats = decoder.stats();
  expect(stats.n_requests == 0 &&
             stats.n_free_blocks == stats.n_usable_blocks &&
             stats.n_failed_checks == 0,
         cat("all is given back; ", stats.failed_check));
  expect(error_of([&] { submit({1}, 4); }) == ErrorKind::request,
         "a closed decoder takes nothing");
}

// A layer of attention with two heads over rows of 64 numbers.
struct Model {
  static constexpr int n = 64, n_head = 2, head_dim = 32, n_words = 96;
  std::map<std::string, std::vector<float>> numbers;
  WeightRef matrix(const std::string &name, int rows) {
    std::mt19937 random(static_cast<uint32_t>(numbers.size() + 1));
    std::normal_distribution<float> normal(0, 0.3F);
    std::vector<float> values(static_cast<size_t>(rows * n));
    for (float &value : values)
      value = normal(random);
    const Tensor tensor =
        Tensor::empty(DType::f32, {rows, n}, find_device("CPU"));
    tensor.copy_from_host(values.data(), values.size() * sizeof(float));
    numbers[name] = values;
    return std::make_shared<Weight>(Weight{name, tensor});
  }
  Trace trace() {
    const auto tracer =
        Tracer::make({CacheSpec{CacheRows{n_head, head_dim, head_dim}, {}}});
    const TraceTensor x = embed(tracer->tokens(), matrix("words", n_words));
    const auto head = [&](const char *name) {
      return heads(linear(x, matrix(name, n), nullptr), n_head);
    };
    const TraceTensor q = head("q"), k = head("k"), v = head("v");
    const TraceTensor seen = merge_heads(attend(
        {q, k, v}, {0, 1 / std::sqrt(float{head_dim}), 0, nullptr, nullptr}));
    const TraceTensor last = select_rows(add(x, seen), tracer->logit_rows());
    return tracer->finish(linear(last, matrix("out", n_words), nullptr),
                          OutputKind::logits);
  }
  using Row = std::vector<double>;
  Row product(const std::string &name, const Row &x, int rows) const {
    Row y(static_cast<size_t>(rows));
    for (size_t i = 0; i < y.size() * n; ++i)
      y[i / n] += numbers.at(name)[i] * x[i % n];
    return y;
  }
  Row logits(const std::vector<int32_t> &tokens) const {
    std::vector<Row> x, k, v;
    for (int32_t token : tokens) {
      const float *begin = numbers.at("words").data() + token * n;
      x.emplace_back(begin, begin + n);
      k.push_back(product("k", x.back(), n));
      v.push_back(product("v", x.back(), n));
    }
    Row y = x.back();
    const Row q = product("q", x.back(), n);
    for (size_t h = 0; h < n; h += head_dim) {
      Row weights(tokens.size());
      double sum = 0;
      for (size_t t = 0; t < weights.size(); ++t) {
        double score = 0;
        for (size_t i = h; i < h + head_dim; ++i)
          score += q[i] * k[t][i];
        sum += weights[t] = std::exp(score / std::sqrt(double{head_dim}));
      }
      for (size_t t = 0; t < weights.size(); ++t)
        for (size_t i = h; i < h + head_dim; ++i)
          y[i] += weights[t] / sum * v[t][i];
    }
    return product("out", y, n_words);
  }
};

void check_model(Kernels kernels, const char *name) {
  Model model;
  ExecutorOptions options{4,  1,  2, DType::f32, kernels, 16, 2, Repack::keep,
                          {}, {}, {}};
  GraphExecutor executor(model.trace(), find_device("CPU"), options);
  const std::vector<int32_t> tokens = prompt(8, 3);
  double worst = 0, largest = 0;
  int32_t done = 0;
  for (int32_t n : {5, 1, 2}) { // a prompt, an answer's token, two more
    StepBatch batch;
    GroupBatch group;
    for (int32_t i = done; i < done + n; ++i) {
      batch.tokens.push_back(tokens[static_cast<size_t>(i)]);
      batch.positions.push_back(i);
      group.slots.push_back(kv_block_tokens + i);
    }
    batch.token_types.resize(static_cast<size_t>(n));
    batch.logit_rows = {n - 1};
    batch.row_begin = {0, n};
    batch.n_kv = {done += n};
    group.table_begin = {0};
    group.tables = {1};
    batch.groups = {group};
    const float *logits = executor.run(batch);
    const Model::Row expected =
        model.logits({tokens.begin(), tokens.begin() + done});
    for (size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::abs(logits[i] - expected[i]));
      largest = std::max(largest, std::abs(expected[i]));
    }
  }
  expect(worst <= 1e-4 * largest,
         cat(name, ": logits differ by ", worst, " of ", largest));
  std::printf("%s: logits differ by %.1e of %.1f\n", name, worst, largest);
}

} // namespace

int main(int n_arguments, char **arguments) {
  if (n_arguments != 2) {
    std::printf("core_check FOLDER\n");
    return 2;
  }
  try {
    const fs::path folder = path_from(arguments[1]);
    fs::create_directories(folder);
    check_system(folder);
    check_gguf(folder);
    check_hash();
    check_scheduler();
    check_decoder();
    check_model(Kernels::stock, "ggml's operators");
    check_model(Kernels::cpu, "own kernels");
  } catch (const std::exception &error) {
    expect(false, error.what());
  }
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
