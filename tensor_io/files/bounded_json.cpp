#include "tensor_io/files/bounded_json.hpp"

#include <utility>
#include <vector>

#include "tensor_io/base/error.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {

namespace {

using nlohmann::json;

// Builds the document and counts on the way. (The library's own parser with a callback takes quadratic time: after each
// object it walks through the parent.)
class BoundedBuilder final : public nlohmann::json_sax<json> {
 public:
  BoundedBuilder(const std::string& where, const JsonLimits& limits, std::size_t text_offset)
      : where_(where), limits_(limits), text_offset_(text_offset) {}

  json take() { return std::move(root_); }

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(std::int64_t value) override { return add(value) != nullptr; }
  bool number_unsigned(std::uint64_t value) override { return add(value) != nullptr; }
  bool number_float(double value, const std::string&) override { return add(value) != nullptr; }
  bool string(std::string& value) override { return add(std::move(value)) != nullptr; }
  bool binary(json::binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (++keys_ > limits_.keys) refuse("more than " + std::to_string(limits_.keys) + " JSON keys");
    if (open_.back()->contains(name)) refuse("key " + printable(name) + " appears twice");
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    refuse("not valid JSON at offset " + std::to_string(text_offset_ + (position > 0 ? position - 1 : 0)));
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { throw Error(ErrorCode::bad_data, where_, why); }

  json* add(json value) {
    if (++values_ > limits_.values) refuse("more than " + std::to_string(limits_.values) + " JSON values");
    if (open_.empty()) return &(root_ = std::move(value));
    auto& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool open(json container) {
    if (open_.size() == limits_.depth) refuse("JSON nested deeper than " + std::to_string(limits_.depth) + " levels");
    open_.push_back(add(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& where_;
  const JsonLimits& limits_;
  const std::size_t text_offset_;
  json root_;
  std::vector<json*> open_;  // a parent does not change while a child is open, so these stay valid
  std::string key_;
  std::size_t keys_ = 0, values_ = 0;
};

}  // namespace

json parse_bounded_json(std::string_view text, const std::string& where, const JsonLimits& limits,
                        std::size_t text_offset) {
  BoundedBuilder builder(where, limits, text_offset);
  json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace troupe
