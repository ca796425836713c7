// A graph of a bundle over ONNX Runtime's C++ API, which is a header over its C API.
#pragma once
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <iterator>
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

  std::vector<std::string> outputs() {
    std::vector<std::string> names;
    for (size_t at = 0; at < session.GetOutputCount(); ++at)
      names.emplace_back(session.GetOutputNameAllocated(at, allocator).get());
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

inline Ort::Value tensor(Ids& data) {  // (1, length), over memory that must outlive it
  static const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const Ids dims{1, static_cast<int64_t>(data.size())};
  return Ort::Value::CreateTensor<int64_t>(memory, data.data(), data.size(), dims.data(), dims.size());
}

// A cache for the input at a place: no token at first.
inline Ort::Value empty_cache(Graph& graph, size_t at) {
  auto dims = graph.session.GetInputTypeInfo(at).GetTensorTypeAndShapeInfo().GetShape();
  dims[0] = 1;
  dims[2] = 0;
  return Ort::Value::CreateTensor<float>(graph.allocator, dims.data(), dims.size());
}

inline int64_t argmax(const float* scores, int64_t size) { return std::max_element(scores, scores + size) - scores; }

inline bool contains(const Ids& ids, int64_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

inline bool begins(const std::string& name, const std::string& prefix) { return name.rfind(prefix, 0) == 0; }

// The ids that are arguments of a command, from the one at a place on.
inline Ids ids_of(int argc, char** argv, int from) {
  Ids ids;
  for (int at = from; at < argc; ++at) ids.push_back(std::stoll(argv[at]));
  return ids;
}
