// Pronounce words with the portable bundle of g2p-en, over ONNX Runtime's C++ API, which is a header over its C API.
//
//   txport export g2p-en bundle && make && ./pronounce bundle hello world
//
// Ids and limits are read from the graphs' metadata (docs/embedding.md). Only `read_vocabulary` knows g2p-en: its
// tokenizer.json has a token for each letter. Other tokenizers need a library.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

using Ids = std::vector<int64_t>;

struct Graph {
  Ort::AllocatorWithDefaultOptions allocator;
  Ort::Session session;

  Graph(Ort::Env& env, const std::string& path) : session(env, path.c_str(), Ort::SessionOptions{}) {}

  // What it says of itself, such as "2" for `ends`; "" where it says nothing.
  std::string custom_metadata(const std::string& key) {
    const auto value = session.GetModelMetadata().LookupCustomMetadataMapAllocated(("txport." + key).c_str(), allocator);
    return value ? value.get() : "";
  }

  // The numbers of a value, apart by spaces.
  Ids numbers(const std::string& key) {
    std::istringstream text(custom_metadata(key));
    return {std::istream_iterator<int64_t>(text), {}};
  }

  std::vector<std::string> inputs() {
    std::vector<std::string> names;
    for (size_t at = 0; at < session.GetInputCount(); ++at)
      names.emplace_back(session.GetInputNameAllocated(at, allocator).get());
    return names;
  }

  std::vector<Ort::Value> run(const std::vector<std::string>& inputs, const std::vector<Ort::Value>& given,
                              const std::vector<std::string>& outputs) {
    std::vector<const char*> in, out;
    for (const auto& name : inputs) in.push_back(name.c_str());
    for (const auto& name : outputs) out.push_back(name.c_str());
    return session.Run(Ort::RunOptions{nullptr}, in.data(), given.data(), given.size(), out.data(), out.size());
  }
};

Ort::Value tensor(Ids& data) {  // (1, length), over memory that must outlive it
  static const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const Ids dims{1, static_cast<int64_t>(data.size())};
  return Ort::Value::CreateTensor<int64_t>(memory, data.data(), data.size(), dims.data(), dims.size());
}

// Greedy search: the tokens of a target, up to an end token.
Ids generate(Graph& encoder, Graph& decoder, Ids source) {
  Ids mask(source.size(), 1), tokens = decoder.numbers("start"), target;
  const Ids ends = decoder.numbers("ends");
  const auto longest = static_cast<size_t>(decoder.numbers("longest").at(0));
  const auto size = decoder.numbers("vocabulary").at(0);
  const std::string past = decoder.custom_metadata("past"), present = decoder.custom_metadata("present");

  std::vector<Ort::Value> read;
  read.push_back(tensor(source));
  read.push_back(tensor(mask));
  auto encoded = encoder.run({"input_ids", "attention_mask"}, read, {"last_hidden_state"});

  // The decoder's inputs in its own order; outputs are the logits, and then what becomes each cache.
  const auto inputs = decoder.inputs();
  std::vector<std::string> outputs{"logits"};
  std::vector<Ort::Value> given;
  std::vector<size_t> caches;
  for (size_t at = 0; at < inputs.size(); ++at) {
    if (inputs[at].rfind(past, 0) == 0) {
      auto dims = decoder.session.GetInputTypeInfo(at).GetTensorTypeAndShapeInfo().GetShape();
      dims[0] = 1;
      dims[2] = 0;  // empty at first
      given.push_back(Ort::Value::CreateTensor<float>(decoder.allocator, dims.data(), dims.size()));
      outputs.push_back(present + inputs[at].substr(past.size()));
      caches.push_back(at);
    } else if (inputs[at] == "encoder_hidden_states") {
      given.push_back(std::move(encoded[0]));
    } else {
      given.push_back(tensor(mask));
    }
  }
  const size_t ids = std::find(inputs.begin(), inputs.end(), "input_ids") - inputs.begin();
  while (target.size() < longest) {
    given[ids] = tensor(tokens);
    auto found = decoder.run(inputs, given, outputs);
    const float* logits = found[0].GetTensorData<float>() + (tokens.size() - 1) * size;
    tokens = {std::max_element(logits, logits + size) - logits};
    if (std::find(ends.begin(), ends.end(), tokens[0]) != ends.end()) break;
    target.push_back(tokens[0]);
    for (size_t each = 0; each < caches.size(); ++each) given[caches[each]] = std::move(found[each + 1]);
  }
  return target;
}

// The tokens of tokenizer.json, whose vocabulary is "token": id, "token": id, ... without escapes.
std::map<std::string, int64_t> read_vocabulary(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + " can't be read");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  text = text.substr(text.find("\"vocab\""));
  text = text.substr(0, text.find('}'));
  std::map<std::string, int64_t> ids;
  const std::regex pair("\"([^\"]+)\": *([0-9]+)");
  for (std::sregex_iterator each(text.begin(), text.end(), pair), end; each != end; ++each)
    ids[(*each)[1]] = std::stoll((*each)[2]);
  return ids;
}

int main(int argc, char** argv) try {
  if (argc < 3) throw std::runtime_error(std::string("usage: ") + argv[0] + " BUNDLE WORD...");
  const std::string folder = argv[1];
  Ort::Env env;
  Graph encoder(env, folder + "/onnx/encoder_model.onnx"), decoder(env, folder + "/onnx/decoder_model_merged.onnx");
  const auto ids = read_vocabulary(folder + "/tokenizer.json");
  std::map<int64_t, std::string> names;
  for (const auto& [name, id] : ids) names[id] = name;
  for (int word = 2; word < argc; ++word) {
    Ids source = encoder.numbers("source_before");
    for (const unsigned char letter : std::string(argv[word])) {
      const auto found = ids.find(std::string(1, static_cast<char>(std::tolower(letter))));
      if (found == ids.end()) throw std::runtime_error(std::string("the vocabulary lacks a letter of ") + argv[word]);
      source.push_back(found->second);
    }
    for (const auto id : encoder.numbers("source_after")) source.push_back(id);
    if (source.size() > static_cast<size_t>(encoder.numbers("source_longest").at(0)))
      throw std::runtime_error(std::string(argv[word]) + " is too long");
    const auto target = generate(encoder, decoder, source);
    for (size_t at = 0; at < target.size(); ++at) std::cout << (at ? " " : "") << names[target[at]];
    std::cout << '\n';
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 2;
}
