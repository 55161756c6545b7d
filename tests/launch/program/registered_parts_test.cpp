// A data set and a back end that a program brings along, chosen by name on its command line.
#include <atomic>
#include <string>
#include <vector>

#include "launch/config/config_help.hpp"
#include "launch/loop/rank.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"
#include "tests/support/relay_communicator.hpp"

using namespace troupe;

namespace {

void register_rows() {
  register_dataset("rows", "eight numbers, for a test", [](const DataOptions& options, std::uint64_t seed) {
    const auto input = at::full({8, 1}, static_cast<double>(seed));
    const auto target = at::zeros({8}, at::kLong);
    const auto data = std::make_shared<TensorDataset>(input, target, "rows of " + options.data_dir);
    return TrainAndHeldOut{data, nullptr};
  });
}

std::string refusal_of(const char* flag, const char* value) {
  Config config;
  const char* words[] = {"program", flag, value};
  try {
    parse_config(config, 3, words);
  } catch (const Error& error) {
    return error.what();
  }
  return "taken";
}

}  // namespace

TEST_CASE("[T04] a program's data set and back end are chosen by name, as those that ship") {
  register_rows();
  test::register_relay("relay", test::Fault::none);
  std::vector<std::string> words{"program",    "--ranks",      "2",      "--data",    "rows",
                                 "--data_dir", "here",         "--seed", "11",        "--backend",
                                 "relay",      "--save_every", "-1",     "--run_dir", ""};
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  std::atomic<int> right = 0;
  const int code = troupe::main(static_cast<int>(arguments.size()), arguments.data(), [&](Rank& rank) {
    const auto data = make_datasets(rank.config(), rank.config().seed).first;
    const auto sum = data->get(0, {}).input.clone();
    rank.all_reduce(sum);
    right += data->name() == "rows of here" && sum.item<double>() == 22 && rank.communicator().backend() == "relay";
  });
  CHECK(code == 0);
  CHECK(right == 2);
}

TEST_CASE("[T04] the config's help and its refusals have the names in the registries") {
  register_rows();
  test::register_relay("relay", test::Fault::none);
  const HelpOptions options{"program", 100, {}};
  const auto help = config_help(Config{}, options);
  CHECK_THAT(help, Catch::Contains("rows") && Catch::Contains("relay"));
  CHECK_THAT(config_help_on(Config{}, "data", options), Catch::Contains("eight numbers, for a test"));
  const auto backends = config_help_on(Config{}, "backend", options);
  CHECK_THAT(backends, Catch::Contains("relay") && Catch::Contains("over Gloo, for a test"));
  CHECK_THAT(backends, Catch::Contains("TCP between all ranks"));
  CHECK(refusal_of("--data", "rows") == "taken");
  const auto data = refusal_of("--data", "digit");
  CHECK_THAT(data, Catch::Contains("--data: 'digit' is not one of synthetic, digits, mnist") &&
                       Catch::Contains("rows") && Catch::Contains("did you mean digits?"));
  CHECK(data.find('\n') == std::string::npos);
  const auto backend = refusal_of("--backend", "rellay");
  CHECK_THAT(backend, Catch::Contains("--backend: 'rellay' is not one of auto, shm, gloo, hierarchical, nccl") &&
                          Catch::Contains("did you mean relay?"));
  CHECK(backend.find('\n') == std::string::npos);
}
