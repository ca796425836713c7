// Pronounce words with the portable bundle of g2p-en, over ONNX Runtime's C++ API.
//
//   txport export g2p-en bundle && make && ./pronounce bundle hello world
//
// Ids and limits are read from the graphs' metadata (docs/embedding.md). Only `read_vocabulary` knows g2p-en: its
// tokenizer.json has a token for each letter. Other tokenizers need a library.
#include <cctype>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>

#include "graph.h"

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
    if (begins(inputs[at], past)) {
      given.push_back(empty_cache(decoder, at));
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
    tokens = {argmax(logits, size)};
    if (contains(ends, tokens[0])) break;
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
