// What an encoder makes of the ids of a text, special ones included, over ONNX Runtime's C++ API.
//
//   make && ./encode bundle ID...
//
// It prints numbers: a vector, scores of labels, the label of each token, the token for each mask, or the first and the
// last token of the likeliest answer in a context.
#include <algorithm>
#include <cmath>
#include <iostream>

#include "graph.h"

using Numbers = std::vector<double>;

double sigmoid(double value) { return 1 / (1 + std::exp(-value)); }

Numbers embed(Graph& model, const float* rows, size_t places, int64_t width) {
  const auto settings = model.custom_metadata("generation");  // JSON
  const bool is_first = settings.find("\"pooling\": \"first\"") != std::string::npos;
  const size_t used = is_first ? 1 : places;
  Numbers vector(width);
  for (size_t place = 0; place < used; ++place)
    for (int64_t at = 0; at < width; ++at) vector[at] += rows[place * width + at] / static_cast<double>(used);
  double squares = 0;
  for (const auto value : vector) squares += value * value;
  if (settings.find("\"normalize\": true") != std::string::npos)
    for (auto& value : vector) value /= std::sqrt(squares);
  return vector;
}

Numbers classify(Graph& model, const float* logits, int64_t width) {
  const auto function = model.custom_metadata("function_to_apply");
  if (function == "softmax" || function.empty()) return {static_cast<double>(argmax(logits, width))};
  Numbers scores(logits, logits + width);
  if (function == "sigmoid")
    for (auto& score : scores) score = sigmoid(score);
  return scores;
}

Numbers answer(const float* starts, const float* ends, size_t places) {
  size_t best[2] = {1, 1};
  for (size_t first = 1; first + 1 < places; ++first)
    for (size_t last = first; last < std::min(first + 15, places - 1); ++last)
      if (starts[first] + ends[last] > starts[best[0]] + ends[best[1]]) best[0] = first, best[1] = last;
  return {static_cast<double>(best[0]), static_cast<double>(best[1])};
}

Numbers encode(Graph& model, Ids ids) {
  const auto ability = model.custom_metadata("ability");
  Ids mask(ids.size(), 1);
  std::vector<Ort::Value> given;
  given.push_back(tensor(ids));
  given.push_back(tensor(mask));
  std::vector<std::string> names{"input_ids", "attention_mask"};
  Ids types(ids.size(), 0);  // 1 for the tokens of a second text
  if (model.inputs().size() > names.size()) {
    names.emplace_back("token_type_ids");
    given.push_back(tensor(types));
  }
  const auto outputs = model.outputs();
  const bool pools = std::find(outputs.begin(), outputs.end(), "sentence_embedding") != outputs.end();
  const std::string vectors = pools ? "sentence_embedding" : "last_hidden_state";
  if (ability == "answer") {
    const auto scores = model.run(names, given, {"start_logits", "end_logits"});
    return answer(scores[0].GetTensorData<float>(), scores[1].GetTensorData<float>(), ids.size());
  }
  const auto found = model.run(names, given, {ability == "embed" ? vectors : "logits"});
  const auto width = found[0].GetTensorTypeAndShapeInfo().GetShape().back();
  const float* rows = found[0].GetTensorData<float>();
  if (pools) return Numbers(rows, rows + width);
  if (ability == "embed") return embed(model, rows, ids.size(), width);
  if (ability == "classify") return classify(model, rows, width);
  Numbers result;
  for (size_t place = 0; place < ids.size(); ++place) {
    const float* row = rows + place * width;
    if (ability == "fill" && ids[place] != model.numbers("source_mask").at(0)) continue;
    result.push_back(ability == "tag" && width == 1 ? sigmoid(row[0]) : static_cast<double>(argmax(row, width)));
  }
  return result;
}

int main(int argc, char** argv) try {
  if (argc < 3) throw std::runtime_error(std::string("usage: ") + argv[0] + " BUNDLE ID...");
  Ort::Env env;
  Graph model(env, std::string(argv[1]) + "/onnx/model.onnx");
  std::cout.precision(9);
  for (const auto number : encode(model, ids_of(argc, argv, 2))) std::cout << number << ' ';
  std::cout << '\n';
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 2;
}
