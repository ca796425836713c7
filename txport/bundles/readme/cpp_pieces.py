"""The pieces of the example in C++; words in capitals are placeholders that `cpp` replaces."""

from __future__ import annotations

INCLUDES = """\
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

using Ids = std::vector<int64_t>;
using Names = std::vector<std::string>;
using Values = std::vector<Ort::Value>;
"""
TENSORS = """\

template <class T>
Ort::Value tensor(std::vector<T>& data, const Ids& dims) {  // over memory that must outlive it
  static const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  return Ort::Value::CreateTensor<T>(memory, data.data(), data.size(), dims.data(), dims.size());
}

std::vector<const char*> pointers(const Names& names) {
  std::vector<const char*> found;
  for (const auto& name : names) found.push_back(name.c_str());
  return found;
}
"""
RUN = """\

Values run(Ort::Session& session, const Names& inputs, const Values& given, const Names& outputs) {
  return session.Run(Ort::RunOptions{nullptr}, pointers(inputs).data(), given.data(), given.size(),
                     pointers(outputs).data(), outputs.size());
}
"""
RUN_INTO = """\

void run(Ort::Session& session, const Names& inputs, const Values& given, const Names& outputs,
         Values& into) {
  session.Run(Ort::RunOptions{nullptr}, pointers(inputs).data(), given.data(), given.size(),
              pointers(outputs).data(), into.data(), into.size());
}
"""
HALF = """\

float half(uint16_t bits) {  // a 16-bit float
  const int power = bits >> 10 & 31, rest = bits & 1023;
  const float value = power ? std::ldexp(1024 + rest, power - 25) : std::ldexp(rest, -24);
  return bits >> 15 ? -value : value;
}
"""
FLOATS = {
    "float32": """\

std::vector<float> floats(const Ort::Value& value, size_t first, size_t count) {
  const float* data = value.GetTensorData<float>() + first;
  return {data, data + count};
}
""",
    "float16": """\

std::vector<float> floats(const Ort::Value& value, size_t first, size_t count) {
  const auto* data = reinterpret_cast<const uint16_t*>(value.GetTensorData<Ort::Float16_t>()) + first;
  std::vector<float> found(count);
  std::transform(data, data + count, found.begin(), half);
  return found;
}
""",
}
ARGMAX = """\

int64_t argmax(const std::vector<float>& scores) {
  return std::max_element(scores.begin(), scores.end()) - scores.begin();
}
"""
PORTABLE_SOURCE = """
Ids generate(Ids source, int64_t most = MOST) {
  const Ids dims{1, static_cast<int64_t>(source.size())};
  Ids mask(source.size(), 1);
  Values read;
  read.push_back(tensor(source, dims));
  read.push_back(tensor(mask, dims));
  auto encoded = run(encoder, {"input_ids", "attention_mask"}, read, {"last_hidden_state"});
  Names inputs{"input_ids", "encoder_hidden_states", "encoder_attention_mask"}, outputs{"logits"};
  Values given;
  given.emplace_back(nullptr);  // the tokens of each step
  given.push_back(std::move(encoded[0]));
  given.push_back(tensor(mask, dims));
"""
PORTABLE_FEATURES = """
Ids generate(std::vector<float> features, int64_t most = MOST) {  // BINS x FRAMES, one row after the other
  Values read;
  HALVES
  auto encoded = run(encoder, {"input_features"}, read, {"last_hidden_state"});
  Names inputs{"input_ids", "encoder_hidden_states"}, outputs{"logits"};
  Values given;
  given.emplace_back(nullptr);  // the tokens of each step
  given.push_back(std::move(encoded[0]));
"""
FEATURES = {
    "float32": "read.push_back(tensor(features, {1, BINS, FRAMES}));",
    "float16": """\
std::vector<Ort::Float16_t> halves(features.size());  // as float16: use a type of your compiler's
  std::transform(features.begin(), features.end(), halves.begin(), to_half);
  read.push_back(tensor(halves, {1, BINS, FRAMES}));""",
}
TO_HALF = """\

Ort::Float16_t to_half(float value) {  // rounded to the nearest 16-bit float, of numbers below 65504
  Ort::Float16_t found{};
  const float size = std::fabs(value);
  int power = 0;
  if (size > 0) std::frexp(size, &power);
  power = std::max(power, -13);
  const auto bits = static_cast<uint16_t>(std::lrint(std::ldexp(size, 11 - power)) + ((power + 13) << 10));
  reinterpret_cast<uint16_t&>(found) = std::signbit(value) ? bits | 0x8000 : bits;
  return found;
}
"""
PORTABLE_LOOP = """\
  std::vector<ELEMENT> none(1);
  for (const auto& name : cache_names()) {
    inputs.push_back("past_key_values" + name);
    outputs.push_back("present" + name);
    given.push_back(tensor(none, cache_dims(name, 0)));
  }
  Ids tokens = START, target;
  while (static_cast<int64_t>(target.size()) < most) {
    given[0] = tensor(tokens, {1, static_cast<int64_t>(tokens.size())});
    auto found = run(decoder, inputs, given, outputs);
    tokens = {CHOOSE(floats(found[0], (tokens.size() - 1) * VOCABULARY, VOCABULARY))};
    target.push_back(tokens[0]);
    if (std::find(ENDS.begin(), ENDS.end(), tokens[0]) != ENDS.end()) break;
    std::move(found.begin() + 1, found.end(), given.begin() + FIRST);
  }
  return target;
}
"""
PORTABLE_CAUSAL = """
Ids generate(Ids prompt, int64_t most = MOST) {
  Names inputs{"input_ids", "attention_mask", "position_ids"}, outputs{"logits"};
  Values given;
  for (int each = 0; each < 3; ++each) given.emplace_back(nullptr);  // those of each step
  std::vector<ELEMENT> none(1);
  for (const auto& name : cache_names()) {
    inputs.push_back("past_key_values" + name);
    outputs.push_back("present" + name);
    given.push_back(tensor(none, cache_dims(name, 0)));
  }
  most = std::min(most, LONGEST - static_cast<int64_t>(prompt.size()));
  Ids tokens = prompt, target, places, mask;
  while (static_cast<int64_t>(target.size()) < most) {
    const auto count = static_cast<int64_t>(tokens.size()), before = static_cast<int64_t>(mask.size());
    mask.resize(before + count, 1);
    places.clear();
    for (int64_t place = before; place < before + count; ++place) places.push_back(place);
    given[0] = tensor(tokens, {1, count});
    given[1] = tensor(mask, {1, before + count});
    given[2] = tensor(places, {1, count});
    auto found = run(decoder, inputs, given, outputs);
    tokens = {CHOOSE(floats(found[0], (tokens.size() - 1) * VOCABULARY, VOCABULARY))};
    target.push_back(tokens[0]);
    if (std::find(ENDS.begin(), ENDS.end(), tokens[0]) != ENDS.end()) break;
    std::move(found.begin() + 1, found.end(), given.begin() + 3);
  }
  return target;
}
"""
CPU_ENCODE = """
Ids generate(SOURCE, int64_t most = MOST) {
  std::vector<int32_t> lengths{LENGTH}, past{0};
  std::vector<int32_t> capacity{static_cast<int32_t>(START.size() + most)};
  Values read;
  read.push_back(READ);
  read.push_back(tensor(lengths, {1}));
  Names crossed;
  for (const auto& name : cache_names()) crossed.push_back("cross" + name);
  auto encoded = run(encoder, {"PORT", "source_lengths"}, read, crossed);
  Names inputs{"input_ids", "past_lengths", "cache_capacity", "k", "source_lengths"}, outputs{"logits"};
"""
CPU_CAUSAL = """
Ids generate(Ids prompt, int64_t most = MOST) {
  most = std::min(most, LONGEST - static_cast<int64_t>(prompt.size()));
  const auto kept = static_cast<int32_t>(prompt.size() - 1);
  std::vector<int32_t> capacity{kept + 1 + static_cast<int32_t>(most)}, past{kept};
  Names inputs{"input_ids", "past_lengths", "cache_capacity", "k"}, outputs{"logits"};
"""
CPU_STEP = """\
  Ids token{0}, count{0};  // k = 0: no best tokens, but logits
  std::vector<float> logits(VOCABULARY);
  Values given, into;
  given.push_back(tensor(token, {1, 1}));
  given.push_back(tensor(past, {1}));
  given.push_back(tensor(capacity, {1}));
  given.push_back(tensor(count, {1}));
"""
CPU_CACHES = """\
  into.push_back(tensor(logits, {1, VOCABULARY}));
  std::vector<std::vector<float>> caches;  // written in place: what a run reads is what it gives
  caches.reserve(cache_names().size());
  for (const auto& name : cache_names()) {
    const Ids dims = cache_dims(name, capacity[0]);
    caches.emplace_back(dims[1] * dims[2] * dims[3]);
    inputs.push_back("past" + name);
    outputs.push_back("present" + name);
    given.push_back(tensor(caches.back(), dims));
    into.push_back(tensor(caches.back(), dims));
  }
"""
CPU_LOOP = """\
  Ids tokens = START, target;
  while (static_cast<int64_t>(target.size()) < most) {
    for (const auto each : tokens) {
      token[0] = each;
      run(step, inputs, given, outputs, into);
      ++past[0];
    }
    tokens = {CHOOSE(logits)};
    target.push_back(tokens[0]);
    if (std::find(ENDS.begin(), ENDS.end(), tokens[0]) != ENDS.end()) break;
  }
  return target;
}
"""
CPU_PREFILL = """\
  if (kept) {
    std::vector<int32_t> last{kept - 1};
    Names filled{"input_ids", "last_places", "prompt_size"};
    Values read, kept_in;
    read.push_back(tensor(prompt, {1, kept}));  // all but the last token
    read.push_back(tensor(last, {1}));
    read.push_back(tensor(past, {1}));
    for (size_t each = 0; each < caches.size(); ++each) {
      const Ids dims = cache_dims(cache_names()[each], capacity[0]);
      filled.push_back(inputs[inputs.size() - caches.size() + each]);
      read.push_back(tensor(caches[each], dims));
      kept_in.push_back(tensor(caches[each], dims));
    }
    run(prefill, filled, read, {outputs.begin() + 1, outputs.end()}, kept_in);
  }
  Ids target;
  token[0] = prompt.back();
  while (static_cast<int64_t>(target.size()) < most) {
    run(step, inputs, given, outputs, into);
    ++past[0];
    token[0] = CHOOSE(logits);
    target.push_back(token[0]);
    if (std::find(ENDS.begin(), ENDS.end(), token[0]) != ENDS.end()) break;
  }
  return target;
}
"""
