// Greedy search over the portable bundle of a causal language model, over ONNX Runtime's C++ API.
//
//   make && ./continue bundle MOST ID...
//
// The ids are those of a prompt; it prints the ids that continue it, at most MOST.
#include <iostream>
#include <numeric>

#include "graph.h"

Ids generate(Graph& model, Ids tokens, int64_t most) {
  const Ids ends = model.numbers("ends");
  const auto size = model.numbers("vocabulary").at(0);
  const auto room = model.numbers("longest").at(0) - static_cast<int64_t>(tokens.size());
  const std::string past = model.custom_metadata("past"), present = model.custom_metadata("present");

  // Inputs in the graph's own order; outputs are the logits, and then what becomes each cache.
  const auto inputs = model.inputs();
  std::vector<std::string> outputs{"logits"};
  std::vector<Ort::Value> given;
  std::vector<size_t> caches;
  for (size_t at = 0; at < inputs.size(); ++at) {
    const bool is_cache = begins(inputs[at], past);
    given.push_back(is_cache ? empty_cache(model, at) : Ort::Value{nullptr});
    if (!is_cache) continue;
    outputs.push_back(present + inputs[at].substr(past.size()));
    caches.push_back(at);
  }
  Ids found, places, mask;
  while (static_cast<int64_t>(found.size()) < std::min(most, room)) {
    places.resize(tokens.size());
    std::iota(places.begin(), places.end(), static_cast<int64_t>(mask.size()));  // behind all tokens so far
    mask.resize(mask.size() + tokens.size(), 1);
    for (size_t at = 0; at < inputs.size(); ++at) {
      if (inputs[at] == "input_ids") given[at] = tensor(tokens);
      if (inputs[at] == "position_ids") given[at] = tensor(places);
      if (inputs[at] == "attention_mask") given[at] = tensor(mask);
    }
    auto results = model.run(inputs, given, outputs);
    tokens = {argmax(results[0].GetTensorData<float>() + (tokens.size() - 1) * size, size)};
    found.push_back(tokens[0]);
    if (contains(ends, tokens[0])) break;
    for (size_t each = 0; each < caches.size(); ++each) given[caches[each]] = std::move(results[each + 1]);
  }
  return found;
}

int main(int argc, char** argv) try {
  if (argc < 4) throw std::runtime_error(std::string("usage: ") + argv[0] + " BUNDLE MOST ID...");
  Ort::Env env;
  Graph model(env, std::string(argv[1]) + "/onnx/model.onnx");
  for (const auto id : generate(model, ids_of(argc, argv, 3), std::stoll(argv[2]))) std::cout << id << ' ';
  std::cout << '\n';
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 2;
}
