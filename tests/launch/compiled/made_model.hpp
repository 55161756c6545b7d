#pragma once
#include <string>

#include <nlohmann/json.hpp>

namespace troupe::test {

/// The manifest of a compiled model of one block, for the tests of what reads it: `loss = f(input, a.w)`.
inline nlohmann::json made_manifest() {
  return nlohmann::json::parse(R"({
    "format": 1, "torch": "2.11.0", "device": "cpu", "instruction_set": [], "autocast": null, "model": "Net",
    "fields": [{"name": "input", "dtype": "F32"}],
    "tensors": [{"name": "a.w", "kind": "parameter", "dtype": "F32", "shape": [3], "trained": true}],
    "blocks": [{"path": "a", "type": "Layer"}],
    "graphs": [{
      "inputs": [{"dtype": "F32", "sizes": [[1, "s0"], 3], "order": [0, 1]},
                 {"dtype": "F32", "sizes": [3], "order": [0]}],
      "outputs": [{"dtype": "F32", "sizes": [], "order": []}],
      "writes": [], "backward": true, "saved": [["input", 0], ["output", 1, [0, 1]]],
      "tangents": [0], "gradients": [1]}],
    "passes": {
      "train": {"calls": [{"graph": 0, "block": "a", "arguments": [{"value": 0}, {"tensor": "a.w"}], "results": [1]}],
                "loss": {"loss": 1}, "chain": ""},
      "eval": {"calls": [{"graph": 0, "block": "a", "arguments": [{"value": 0}, {"tensor": "a.w"}], "results": [1]}],
               "loss": {"loss": 1}, "chain": ""}},
    "sections": []})");
}

}  // namespace troupe::test
